#!/bin/bash
# check.sh: what a change must pass before it is pushed: formats, lints, the rules of the house, every
# unit test, and the simulations of stores and volumes. Needs no root, no /dev/fuse and nothing but the
# Rust toolchain.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# The crates that read images can be packaged; a full run, which also builds what was packaged, is
# `cargo package` with these words but `--no-verify`.
package_readers() {
    local crate words=()
    for crate in format sys codec io filter remote store image vfs export; do words+=(-p "weald-$crate"); done
    mkdir -p "$target/package"
    cargo package "${words[@]}" --no-verify --allow-dirty --locked --offline --target-dir "$target/package" \
        >"$target/package/log" 2>&1 || { cat "$target/package/log"; die "the crates that read cannot be packaged"; }
}

need cargo
cd "$root"
# Tests of one program run in parallel, and builders among them share the limit of open files.
ulimit -S -n "$(ulimit -H -n)"
timed cargo fmt --check
timed cargo clippy --workspace --all-targets --all-features --locked -- -D warnings
timed unit_tests
timed cargo test --workspace --exclude weald-volume --locked --test house
timed package_readers
say "check: everything passed"
