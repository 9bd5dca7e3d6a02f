#!/bin/bash
# test.sh: layout, lints, every test of the workspace, and the same tree back on trees of this machine.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

timed() {
    local start
    start=$(seconds)
    step "$*"
    "$@"
    say "   took $(since "$start") s"
}

# Runs every test. What fails is run once more, alone and test by test, and both are told: tests mount, fork and unmount on a machine that
# others use too, where a moment's use of a mount by somebody else is no fault of ours. What fails twice has failed.
run_tests() {
    local log again words
    log=$work/tests
    if cargo test --workspace --locked --no-fail-fast 2>&1 | tee "$log"; then return; fi
    mapfile -t again < <(sed -n 's/^error: test failed, to rerun pass `\(.*\)`$/\1/p' "$log")
    [ ${#again[@]} -gt 0 ] || die "the tests could not be run"
    for words in "${again[@]}"; do
        # shellcheck disable=SC2086 # several words
        timed cargo test --locked $words -- --test-threads=1
    done
    unsteady=("${again[@]}")
}

need cargo python3
need_root "testing: it makes devices, foreign owners and mounts, and"
need_fuse
cd "$root"
# Tests of one program run side by side, and builders among them share out what one process may open.
ulimit -S -n "$(ulimit -H -n)"
timed cargo fmt --check
make_work
unsteady=()
timed run_tests
timed env PYTHONPATH=bench PYTHONDONTWRITEBYTECODE=1 python3 -m unittest discover -s bench/tests -t bench
timed cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
# Built already, for the tests that run the program.
timed env WEALD_PROFILE=dev bash scripts/trees.sh quick
for words in "${unsteady[@]}"; do say "test: passed only at the second try: cargo test $words"; done
say "test: everything passed"
