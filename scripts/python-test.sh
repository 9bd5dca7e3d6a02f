#!/bin/bash
# python-test.sh [PYTEST-ARGUMENT]...: builds a wheel of the Python package into target/python, installs
# it into an environment of its own, and runs its tests, ruff and mypy. WEALD=PROGRAM says which weald
# makes the images; without it, the one that cargo builds with WEALD_PROFILE (dev).
set -euo pipefail
export WEALD_PROFILE=${WEALD_PROFILE:-dev}
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

package=$root/crates/python
environment=$target/python-venv
python=$environment/bin/python

# The environment is made anew when the wanted versions change.
prepare_environment() {
    local stamp=$environment/requirements wanted
    wanted=$(python3 --version; cat "$package/tests/requirements.txt")
    if [ -e "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ]; then return; fi
    step "pip install -r crates/python/tests/requirements.txt"
    rm -rf "$environment"
    python3 -I -m venv "$environment"
    "$environment/bin/pip" install --quiet --disable-pip-version-check -r "$package/tests/requirements.txt"
    printf '%s\n' "$wanted" >"$stamp"
}

# The build has a directory of its own: with other features of the libraries, nothing could be shared.
build_wheel() {
    rm -f "$target"/python/weald-*.whl
    (cd "$package" && CARGO_TARGET_DIR=$target/python-build \
        "$environment/bin/maturin" build --release --locked --quiet --out "$target/python")
    "$environment/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-index \
        --force-reinstall "$target"/python/weald-*.whl
}

need cargo python3
if [ -z "${WEALD:-}" ]; then
    step "cargo build -p weald-cli"
    (cd "$root" && cargo build --profile "$profile" --locked --quiet -p weald-cli --bins)
fi
export WEALD=${WEALD:-$weald} PYTHONDONTWRITEBYTECODE=1
[ -x "$WEALD" ] || die "$WEALD is missing: set WEALD to the program"
prepare_environment
(cd "$package" && timed cargo fmt --check)
timed build_wheel
say "   $(ls "$target"/python/weald-*.whl)"
cd "$package"
timed "$python" -P -m pytest -q -p no:cacheprovider "$@" tests
timed "$environment/bin/ruff" check --no-cache .
timed "$environment/bin/mypy" --cache-dir "$environment/mypy-cache" --strict python/weald
