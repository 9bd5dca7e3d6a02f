#!/bin/bash
# soak.sh [PART]...: tests for hours. Without arguments, all parts:
#   trees    packs random trees with random options for MINUTES (30), compares each with its source
#            and the images of one thread and of many threads. WEALD_SEED: the first seed
#   stores   stores on a simulated disk with faults. WEALD_SEEDS (0..100000)
#   replicas a store and its replica on two machines, WEALD_SEEDS (0..100000); both sides killed, WEALD_KILLS (500)
#   tiers    a store with tiers on three disks, WEALD_SEEDS (0..100000); a moving server killed, WEALD_KILLS (500)
#   volumes  volumes on a simulated disk with faults. WEALD_SEEDS (0..1000000); an hour on two cores
#   rows     volumes whose rows were changed: no hang, no panic. WEALD_MUTATIONS (0..100000)
#   crashes  real servers killed and disks shut down. WEALD_KILLS (500), WEALD_CUTS (50)
#   fsx      random operations on a file of a mounted volume. FSX_SEEDS (20), FSX_COUNT (1000000)
#   drill    16 bytes of a store are damaged, checked and salvaged, at 200 places a round. DRILL_ROUNDS (20)
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

minutes=${MINUTES:-30}
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

soak_trees() {
    local end=$((SECONDS + minutes * 60)) rounds=0
    mkdir "$work/mnt"
    while [ $SECONDS -lt $end ]; do
        one_round
        seed=$((seed + 1))
        rounds=$((rounds + 1))
    done
    say "soak: $rounds rounds, no difference"
}

# simulate CRATE TEST SEEDS: runs a test of simulated disks over a range of seeds.
simulate() {
    step "$1 on a simulated disk with faults, seeds $3"
    WEALD_SEEDS=$3 cargo test --quiet --release --locked -p "$1" --lib "$2"
    say "soak: $1 equals its model for the seeds $3"
}

soak_stores() { simulate weald-store a_store_equals_its_model_after_every_fault "${WEALD_SEEDS:-0..100000}"; }

soak_replicas() {
    simulate weald-store simulation::replica::a_replica "${WEALD_SEEDS:-0..100000}"
    simulate weald-store simulation::standby::a_standby "${WEALD_SEEDS:-0..100000}"
    step "both sides of a replica are killed, and a standby"
    (cd "$root" && WEALD_KILLS=${WEALD_KILLS:-500} cargo test --quiet --release --locked -p weald-cli --test store killed_at_any_moment)
}

soak_tiers() {
    simulate weald-store simulation::tiers::a_store "${WEALD_SEEDS:-0..100000}"
    step "a server is killed while it moves segments"
    (cd "$root" && WEALD_KILLS=${WEALD_KILLS:-500} cargo test --quiet --release --locked -p weald-cli --test store killed_while_it_moves)
}

soak_volumes() { simulate weald-volume a_volume_is_a_prefix "${WEALD_SEEDS:-0..1000000}"; }

soak_rows() {
    local range=${WEALD_MUTATIONS:-0..100000}
    step "whole volumes with changed rows, mutations $range"
    WEALD_MUTATIONS=$range cargo test --quiet --release --locked -p weald-volume --lib whole_volumes_with_changed_rows
    say "soak: no hang and no panic in the mutations $range"
}

soak_crashes() {
    step "servers are killed and disks lose power under load"
    WEALD_KILLS=${WEALD_KILLS:-500} WEALD_CUTS=${WEALD_CUTS:-50} bash "$root/scripts/volume-crash.sh"
}

soak_fsx() {
    step "fsx on a mounted volume"
    FSX_SEEDS=${FSX_SEEDS:-20} FSX_COUNT=${FSX_COUNT:-1000000} bash "$root/scripts/volume-suites.sh" fsx
    say "soak: fsx found no difference"
}

soak_drill() {
    local round
    for round in $(seq "${DRILL_ROUNDS:-20}"); do
        step "drill: round $round, seed $seed"
        (cd "$root" && WEALD_SEED=$seed cargo test --quiet --release --locked -p weald-cli --test drill -- --nocapture) 2>&1 |
            grep -v "^thread" || die "seed $seed: check or salvage was wrong"
        seed=$((seed + 1))
    done
}

need cargo rsync
need_root "making trees with devices, foreign owners and capabilities"
need_fuse
build_programs
make_work
[ $# -gt 0 ] || set -- trees stores replicas tiers volumes rows crashes fsx drill
for part in "$@"; do
    case $part in
    trees | stores | replicas | tiers | volumes | rows | crashes | fsx | drill) "soak_$part" ;;
    *) die "soak.sh has no part \"$part\": trees, stores, replicas, tiers, volumes, rows, crashes, fsx, drill" ;;
    esac
done
