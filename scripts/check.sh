#!/bin/bash
# check.sh: what a change must pass before it is pushed: formats, lints, the rules of the house, every
# unit test, and the simulations of stores and volumes. Needs no root, no /dev/fuse and nothing but the
# Rust toolchain.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need cargo
cd "$root"
# Tests of one program run in parallel, and builders among them share the limit of open files.
ulimit -S -n "$(ulimit -H -n)"
timed cargo fmt --check
timed cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
timed unit_tests
timed cargo test --workspace --exclude weald-volume --locked --test house
say "check: everything passed"
