#!/bin/bash
# test.sh: everything that must hold of a commit: scripts/check.sh, then every test of the workspace
# with real mounts, the benchmarks at a size of seconds, and trees, suites and killed servers.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# The tests of the program as it ships: without the faults that simulations of volumes plant in the
# store, which one run of cargo for all crates would turn on for the program, too.
test_programs() {
    cargo test --workspace --exclude weald-volume --locked --no-fail-fast --test '*'
    cargo test --workspace --locked --doc --quiet
    ! grep -qa 'this program has planted bugs' "$debug/weald" || die "the program under test has planted bugs"
}

# The workspaces beside this one, which have tests of their own (make c, python, fuzz), still compile.
check_other_workspaces() {
    local dir
    for dir in crates/c crates/python fuzz; do
        cd "$root/$dir"
        cargo fmt --check
        CARGO_TARGET_DIR=$target/others cargo check --locked --quiet --lib --bins --examples
    done
    cd "$root"
}

# Runs every benchmark suite at a size of seconds, with the program that the tests built. A command
# that fails is an error here; so is an option or a field that was renamed.
try_benchmarks() {
    local suite words
    # Tests alone build no examples.
    (cd "$root" && cargo build --workspace --exclude weald-volume --locked --quiet --example stub)
    for suite in main store build mount forest replica; do
        words=(--corpus "tiny=$root/bench" --rival squashfs-zstd)
        case $suite in
        mount) words+=(--part meta read dir many) ;;
        forest) words=() ;;
        replica) words=(--part new) ;;
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
export PYTHONPATH=$root/bench PYTHONDONTWRITEBYTECODE=1 WEALD_PROFILE=dev
need_root "testing: it makes devices, foreign owners and mounts, and"
need_fuse
cd "$root"
make_work
bash scripts/check.sh
timed check_other_workspaces
ulimit -S -n "$(ulimit -H -n)"
timed test_programs
timed python3 -P -m unittest discover -s bench/tests -t bench
timed try_benchmarks
timed bash scripts/trees.sh quick
timed bash scripts/volume-suites.sh posix fsx git sqlite cargo rsync
timed bash scripts/lab-test.sh
timed bash scripts/annex-test.sh
timed env WEALD_KILLS=8 WEALD_CUTS=3 bash scripts/volume-crash.sh
say "test: everything passed"
