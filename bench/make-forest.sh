#!/bin/bash
# make-forest.sh LIST DIR: unpacks many versions of real packages side by side, fetched by the
# clients of their registries (pip, npm, cargo). Existing packages stay, so that a run that was
# cut short goes on where it stopped.
#
# A line of LIST is one of
#   pypi NAME VERSION      a wheel
#   pypyc NAME VERSION     a wheel, with the byte code that an install would add
#   npm NAME VERSION       a package
#   crate NAME VERSION     a crate
#   deb NAME SUITE         a package of Debian, as apt finds it; SUITE is only for the reader
#   env NAME PKG==VERSION… several wheels of LIST in one directory, as an install leaves them
# DIR/KIND/NAME/VERSION is where it goes. All times are the same, so that runs on different days
# make equal trees.
set -euo pipefail

MTIME=@1700000000

die() {
    printf 'make-forest.sh: %s\n' "$*" >&2
    exit 2
}

# wheel NAME VERSION: unpacks into $scratch/tree.
wheel() {
    local platform platforms=()
    for platform in manylinux_2_28 manylinux_2_27 manylinux_2_17 manylinux2014; do
        platforms+=(--platform "${platform}_x86_64")
    done
    platforms+=(--platform any)
    python3 -I -m pip download --quiet --no-deps --no-cache-dir --only-binary=:all: \
        --python-version 3.11 --implementation cp --abi cp311 --abi abi3 --abi none \
        "${platforms[@]}" -d "$scratch" "$1==$2"
    mkdir "$scratch/tree"
    python3 -I -m zipfile -e "$scratch"/*.whl "$scratch/tree"
}

# Some files of a wheel need not compile; pip goes on without their byte code, and so does this.
byte_code() {
    python3 -I -m compileall -q --invalidation-mode unchecked-hash \
        -s "$scratch/tree" -p /usr/lib/python3/site-packages \
        "$scratch/tree" >/dev/null 2>&1 || true
}

npm_package() {
    (
        cd "$scratch"
        npm pack --loglevel error "$1@$2" >/dev/null
        tar -xzf ./*.tgz --no-same-owner
    )
    mv "$(find "$scratch" -mindepth 1 -maxdepth 1 -type d | head -n1)" "$scratch/tree"
}

# Cargo fetches for a package only; so there is one that wants nothing else.
crate() {
    mkdir -p "$scratch/want/src"
    : >"$scratch/want/src/lib.rs"
    printf '%s\n' '[package]' 'name = "want"' 'version = "0.0.0"' 'edition = "2021"' \
        '[dependencies]' "$1 = { version = \"=$2\", default-features = false }" '[workspace]' \
        >"$scratch/want/Cargo.toml"
    (cd "$scratch/want" && cargo fetch --quiet)
    cp -r "${CARGO_HOME:-$HOME/.cargo}"/registry/src/*/"$1-$2" "$scratch/tree"
    rm -f "$scratch/tree/.cargo-ok"
}

debian_package() {
    (cd "$scratch" && apt-get download --quiet "$1" >/dev/null)
    dpkg-deb -x "$scratch"/*.deb "$scratch/tree"
}

# environment PKG==VERSION...: merges what is unpacked already.
environment() {
    local want dir
    mkdir "$scratch/tree"
    for want in "$@"; do
        for dir in "$forest"/{pypi,pypyc}"/${want%%==*}/${want##*==}"; do
            if [ -d "$dir" ]; then cp -r "$dir/." "$scratch/tree/"; fi
        done
    done
}

# fetch KIND NAME VERSION...: makes $scratch/tree.
fetch() {
    case $1 in
    pypi) wheel "$2" "$3" ;;
    pypyc)
        wheel "$2" "$3"
        byte_code
        ;;
    npm) npm_package "$2" "$3" ;;
    crate) crate "$2" "$3" ;;
    deb) debian_package "$2" ;;
    env) environment "${@:3}" ;;
    *) die "unknown kind '$1'" ;;
    esac
}

place_of() {
    if [ "$1" = env ]; then
        printf '%s/env/%s' "$forest" "$2"
    else
        printf '%s/%s/%s/%s' "$forest" "$1" "$2" "$3"
    fi
}

grow() {
    local place
    place=$(place_of "$@")
    [ ! -e "$place" ] || return 0
    rm -rf "$scratch"
    mkdir "$scratch"
    fetch "$@" </dev/null
    find "$scratch/tree" -exec touch -h -d "$MTIME" {} +
    mkdir -p "$(dirname "$place")"
    mv "$scratch/tree" "$place"
    printf '%s\n' "$*" >&2
}

list=${1:?usage: make-forest.sh LIST DIR}
mkdir -p "${2:?usage: make-forest.sh LIST DIR}"
forest=$(cd "$2" && pwd)
scratch=$(mktemp -d "$forest/.scratch-XXXXXX")
line=
trap 'rm -rf "$scratch"; [ -z "$line" ] || die "$line: could not be fetched"' EXIT
mapfile -t lines < <(grep -Ev '^[[:space:]]*(#|$)' "$list")
for line in "${lines[@]}"; do
    read -ra words <<<"$line"
    # Not followed by ||, which would take errexit away from everything in it.
    grow "${words[@]}"
done
line=
find "$forest" -mindepth 1 -maxdepth 2 -type d ! -name '.scratch-*' -exec touch -d "$MTIME" {} +
