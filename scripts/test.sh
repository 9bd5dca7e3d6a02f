#!/bin/bash
# test.sh: checks formatting and lints, runs every test of the workspace, and compares trees of this
# machine after packing.
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

# Runs the tests of the program as it ships: without the faults that the tests of volumes plant in the
# store, which one run of cargo for all crates would turn on for the program, too.
test_as_shipped() {
    local status=0
    cargo test --workspace --exclude weald-volume --locked --no-fail-fast || status=$?
    if grep -qa 'this program has planted bugs' "$debug/weald"; then
        die "the program under test has planted bugs"
    fi
    return $status
}

test_all() {
    local status=0
    test_as_shipped || status=$?
    cargo test -p weald-volume --locked --no-fail-fast || status=$?
    return $status
}

# Runs every test. A failed test is run once more, alone, and both results are shown: another
# process of the machine may use a mount for a moment and so disturb a test. A test that fails twice
# has failed.
run_tests() {
    local log again words
    log=$work/tests
    if test_all 2>&1 | tee "$log"; then return; fi
    mapfile -t again < <(sed -n 's/^error: test failed, to rerun pass `\(.*\)`$/\1/p' "$log")
    [ ${#again[@]} -gt 0 ] || die "the tests could not be run"
    for words in "${again[@]}"; do
        # shellcheck disable=SC2086 # several words
        timed cargo test --locked $words -- --test-threads=1
    done
    unsteady=("${again[@]}")
}

# Runs every benchmark suite at a size of seconds, with the program that the tests built. A command
# that fails is an error here; so is an option or a field that was renamed.
try_benchmarks() {
    local suite words
    for suite in main store build mount forest; do
        words=(--corpus "tiny=$root/bench" --rival squashfs-zstd)
        case $suite in
        mount) words+=(--part meta read dir many) ;;
        forest) words=() ;;
        store) words=(--corpus "tiny=$root/bench/weald_bench" --rival none) ;;
        esac
        python3 -P -m weald_bench run --suite $suite --scale tiny "${words[@]}" \
            --out "$work/bench-out" --weald "$debug/weald" --stub "$debug/examples/stub" >"$work/bench.log" 2>&1 || {
            cat "$work/bench.log" "$work/bench-out/$suite.log"
            die "the suite $suite of the benchmarks failed"
        }
    done
}

need cargo python3
debug=$target/debug
export PYTHONPATH=$root/bench PYTHONDONTWRITEBYTECODE=1
need_root "testing: it makes devices, foreign owners and mounts, and"
need_fuse
cd "$root"
# Tests of one program run in parallel, and builders among them share the limit of open files.
ulimit -S -n "$(ulimit -H -n)"
timed cargo fmt --check
make_work
unsteady=()
timed run_tests
timed python3 -P -m unittest discover -s bench/tests -t bench
timed try_benchmarks
timed cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
# The programs are built already, for the command tests.
timed env WEALD_PROFILE=dev bash scripts/trees.sh quick
timed env WEALD_PROFILE=dev bash scripts/volume-suites.sh
timed bash scripts/lab-test.sh
timed bash scripts/annex-test.sh
timed env WEALD_PROFILE=dev bash scripts/volume-crash.sh
for words in "${unsteady[@]}"; do say "test: passed only at the second try: cargo test $words"; done
say "test: everything passed"
