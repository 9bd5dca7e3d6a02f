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

need cargo
need_root "testing: it makes devices, foreign owners and mounts, and"
need_fuse
cd "$root"
timed cargo fmt --check
timed cargo test --workspace --locked --no-fail-fast
timed cargo clippy --workspace --all-targets --locked -- -D warnings
# Built already, for the tests that run the program.
timed env WEALD_PROFILE=dev bash scripts/trees.sh quick
say "test: everything passed"
