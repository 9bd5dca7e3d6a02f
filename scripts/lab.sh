#!/bin/bash
# lab.sh: times the life of a git-annex repository on every file system here and writes the report
# to docs/lab. Needs root and at most a quarter of an hour. SHAPE (4x25), TIME (12m), ROUNDS (30),
# SEED (1), ON and WEALD (the program) change the run; OUT (docs/lab) is where the page goes.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need python3 git git-annex pigz losetup chromium chromedriver
need_root "the lab makes loop devices and mounts, which"
need_fuse
weald=${WEALD:-$weald}
[ -x "$weald" ] || die "$weald is missing: run 'make' first"
lab_environment "$root/lab[test]"
stacks=ext4,xfs,btrfs,tmpfs,passthrough,weald-volume,weald-image,squashfs,erofs
sets=()
if command -v mkdwarfs >/dev/null; then
    stacks+=,dwarfs
elif [ -z "${ON:-}" ]; then
    # The rival on Rust crates, a project of its own, is built once.
    step "cargo build in bench/dwarfs-rs"
    crates=$target/dwarfs-rs
    (cd "$root/bench/dwarfs-rs" && CARGO_TARGET_DIR=$crates cargo build --release --locked --quiet)
    stacks+=,dwarfs-crates
    sets+=(--set "dwarfs-crates.program=$crates/release/weald-bench-dwarfs")
fi
out=${OUT:-$root/docs/lab}
make_work
mkdir -p "$out"
"$environment/bin/weald-lab" run --on "${ON:-$stacks}" "${sets[@]}" --shape "${SHAPE:-4x25}" \
    --rounds "${ROUNDS:-30}" --time "${TIME:-12m}" --seed "${SEED:-1}" --weald "$weald" \
    --out "$work/run"
cp "$work/run/record.jsonl" "$out/run.jsonl"
"$environment/bin/weald-lab" spent "$out/run.jsonl" --time "${TIME:-12m}"
"$environment/bin/weald-lab" report "$out/run.jsonl" --html "$out/run.html" \
    --markdown "$out/run.md" --title "The life of a data set, timed by make lab"
"$environment/bin/weald-lab" import "$root/lab/tests/data/test_fs_protocols.tar.xz" \
    --out "$work/2015.jsonl"
"$environment/bin/weald-lab" report "$work/2015.jsonl" --html "$out/2015.html" \
    --title "The DataLad benchmark of 2015, judged again"
if [ "$out" = "$root/docs/lab" ]; then
    for document in "$out/README.md" "$root/README.md"; do
        "$environment/bin/weald-lab" readme "$document" --record "run=$out/run.jsonl" \
            --record "y2015=$work/2015.jsonl"
    done
fi
"$environment/bin/python" "$root/lab/tests/shots.py" "$out" "$out/run.html" "$out/2015.html"
say "lab: $out/run.html, $out/2015.html"
