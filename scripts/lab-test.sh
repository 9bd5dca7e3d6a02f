#!/bin/bash
# lab-test.sh [PYTEST-ARGUMENT]...: installs the lab with pip into an environment of its own, and runs
# its tests, ruff and mypy. Needs root: the tests make loop devices and mounts. WEALD=PROGRAM says
# which weald; without it, the one that cargo built with WEALD_PROFILE (dev).
set -euo pipefail
export WEALD_PROFILE=${WEALD_PROFILE:-dev}
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need python3 git git-annex pigz losetup chromium chromedriver npm
need_root "the lab's tests make loop devices and mounts, which"
need_fuse
export WEALD=${WEALD:-$weald} PYTHONDONTWRITEBYTECODE=1
[ -x "$WEALD" ] || die "$WEALD is missing: run 'cargo build' first, or set WEALD to the program"
lab_environment "$root/lab[test]"
axe=$target/axe/node_modules/axe-core/axe.min.js
[ -e "$axe" ] || {
    step "npm install axe-core"
    npm install --prefix "$target/axe" --no-save --ignore-scripts --silent axe-core@4.14.1
}
export AXE=$axe
cd "$root/lab"
"$environment/bin/python" -P -m pytest -q -p no:cacheprovider "$@"
"$environment/bin/ruff" check --no-cache .
"$environment/bin/mypy" --cache-dir "$environment/mypy-cache" src tests
