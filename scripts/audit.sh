#!/bin/bash
# audit.sh: checks all libraries for known vulnerabilities (cargo audit, cargo deny), licences and
# sources (deny.toml). Exit status 1 if it finds one, 2 if the vulnerability database is not
# available.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

for tool in audit deny; do
    if ! command -v "cargo-$tool" >/dev/null; then
        step "cargo install --locked cargo-$tool"
        cargo install --locked "cargo-$tool"
    fi
done

# These checks need no database.
step "cargo deny check licenses bans sources"
cargo deny --locked check licenses bans sources

step "the database of known faults"
if ! cargo deny fetch db; then
    die "licences, bans and sources are right, but known faults were NOT looked for: the database at" \
        "https://github.com/RustSec/advisory-db cannot be had; run 'make audit' where it can be reached"
fi
step "cargo audit"
cargo audit
step "cargo deny check advisories"
cargo deny --locked check advisories
echo "audit.sh: no known faults, licences and sources are right"
