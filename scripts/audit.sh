#!/bin/bash
# audit.sh: checks all libraries for known vulnerabilities (cargo audit, cargo deny), licences and
# sources (deny.toml). Exit status 1 if it finds one, 2 if a tool or the vulnerability database is
# not available.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"
cd "$(dirname "$0")/.."

database=https://github.com/RustSec/advisory-db

die_found() {
    say "audit.sh: found $*"
    exit 1
}

for tool in audit deny; do
    if ! command -v "cargo-$tool" >/dev/null; then
        # The tools run for a second. Compiling them with optimisation takes half an hour.
        step "cargo install --locked --debug cargo-$tool"
        cargo install --locked --debug "cargo-$tool" ||
            die "cargo-$tool cannot be installed: nothing was checked"
    fi
done

# These checks need no database. The exit status of cargo deny is a sum of what it found.
step "cargo deny check licenses bans sources"
cargo deny --locked check --hide-inclusion-graph licenses bans sources ||
    die_found "a licence, a source or a ban to act on: see above, and deny.toml"

step "the vulnerability database, $database"
if ! cargo deny fetch db; then
    die "licences, sources and bans are right; known vulnerabilities were NOT looked for, because" \
        "the database cannot be fetched from $database: run 'make audit' where git reaches it"
fi
# cargo audit reads the copy that cargo deny has just fetched.
copies=("${CARGO_HOME:-$HOME/.cargo}"/advisory-dbs/advisory-db-*)
[ -d "${copies[0]}" ] || die "cargo deny fetch db left no database in ${copies[0]%/*}"
step "cargo audit"
cargo audit --no-fetch --db "${copies[0]}" || die_found "a library with a known vulnerability: see above"
step "cargo deny check advisories"
cargo deny --locked check advisories ||
    die_found "a library with a known vulnerability, or one that was yanked: see above"
say "audit.sh: no known vulnerabilities; licences, sources and bans are right"
