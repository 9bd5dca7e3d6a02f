#!/bin/bash
# soak.sh [MINUTES]: packs torture trees of new seeds with random options, and compares each with
# its source. Packs each tree also with one and with many threads, and compares the bytes.
# WEALD_SEED starts with a seed that failed.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

minutes=${1:-30}
seed=${WEALD_SEED:-$((SRANDOM % 1000000))}

pick() { printf '%s' "${@:RANDOM % $# + 1:1}"; }

# Chooses options that depend only on $seed.
choose_options() {
    RANDOM=$seed
    options=(--level "$(pick 0 1 2 3 4 5 6 7 8)" --order "$(pick path name)" --block-size "$(pick 4K 64K 256K 1M 16M)"
        --match-size "$(pick 0 64 512 4096)" --cluster-size "$(pick 0 4K 64K 1M)")
    cache=$(pick 1M 16M 256M)
}

one_round() {
    choose_options
    step "seed $seed: build ${options[*]}, mount with cachesize=$cache"
    "$bin/torture" "$work/tree" --seed "$seed"
    "$weald" build --quiet "${options[@]}" --threads 1 "$work/tree" "$work/one"
    "$weald" build --quiet "${options[@]}" --threads 7 "$work/tree" "$work/many"
    cmp "$work/one" "$work/many" || die "seed $seed: one thread and many gave different images"
    "$weald" check --quiet "$work/one"
    "$weald" mount -o "cachesize=$cache" "$work/one" "$work/mnt"
    "$bin/compare" "$work/tree" "$work/mnt" || die "seed $seed: the mounted tree differs"
    "$weald" umount "$work/mnt"
    "$weald" extract "$work/one" "$work/out"
    "$bin/compare" "$work/tree" "$work/out" || die "seed $seed: the extracted tree differs"
    rm -rf "$work/tree" "$work/out" "$work/one" "$work/many"
}

need cargo rsync
need_root "making trees with devices, foreign owners and capabilities"
need_fuse
build_programs
make_work
mkdir "$work/mnt"
end=$((SECONDS + minutes * 60))
rounds=0
while [ $SECONDS -lt $end ]; do
    one_round
    seed=$((seed + 1))
    rounds=$((rounds + 1))
done
say "soak: $rounds rounds, no difference"

seeds=${WEALD_SEEDS:-0..100000}
step "stores on a simulated disk with faults, seeds $seeds"
WEALD_SEEDS=$seeds cargo test --quiet --locked -p weald-store --lib a_store_equals_its_model_after_every_fault
say "soak: every store was equal to its model"

seeds=${WEALD_SEEDS:-0..1000000}
step "volumes on a simulated disk with faults, seeds $seeds"
WEALD_SEEDS=$seeds cargo test --quiet --release --locked -p weald-volume --lib a_volume_is_a_prefix
say "soak: every volume was a prefix of its operations"

step "servers are killed and disks lose power under load"
WEALD_KILLS=${WEALD_KILLS:-500} WEALD_CUTS=${WEALD_CUTS:-50} bash "$root/scripts/volume-crash.sh"
