#!/bin/bash
# trees.sh quick|full: packs and compares trees of this machine.
#   quick  /etc, a part of /usr, the torture tree: a minute or two, part of 'make test'
#   full   also all of /usr, the language toolchains, and the torture tree with a directory of 10^6 entries
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

QUICK_LEN_MIN=20000000
QUICK_LEN_MAX=150000000

# A real part of /usr that takes seconds.
part_of_usr() {
    local dir len
    for dir in /usr/lib/python3* /usr/include /usr/lib/gcc /usr/share/doc /usr/share/perl /usr/share/locale /usr/lib/*-linux-gnu/* /usr/bin; do
        [ -d "$dir" ] || continue
        len=$(tree_len "$dir")
        if [ "$len" -ge $QUICK_LEN_MIN ] && [ "$len" -le $QUICK_LEN_MAX ]; then
            printf '%s' "$dir"
            return
        fi
    done
    die "found no part of /usr of $(human $QUICK_LEN_MIN) to $(human $QUICK_LEN_MAX)"
}

# Language toolchains outside /usr; those inside are part of it.
toolchains() {
    local dir
    for dir in "$(rustc --print sysroot)" "${RUSTUP_HOME:-$HOME/.rustup}"/toolchains/* "${PYENV_ROOT:-$HOME/.pyenv}"/versions/* \
        "${NVM_DIR:-$HOME/.nvm}"/versions/node/* "${SDKMAN_DIR:-$HOME/.sdkman}"/candidates/*/* /opt/go; do
        if [ -d "$dir" ] && [ ! -L "$dir" ]; then (cd "$dir" && pwd -P); fi
    done | grep -v '^/usr/' | sort -u
}

same_tree() { bash "$root/scripts/same-tree.sh" "$@"; }

torture() {
    step "making a torture tree: torture $*"
    "$bin/torture" "$work/torture" "$@"
}

quick() {
    same_tree --overlay /etc
    same_tree "$(part_of_usr)"
    torture --seed "${WEALD_SEED:-1}"
    same_tree --overlay "$work/torture"
    rm -rf "$work/torture"
    torture --deep 1500
    same_tree --deep --level 1 "$work/torture"
}

full() {
    local tree trees
    quick
    rm -rf "$work/torture"
    torture --seed "${WEALD_SEED:-1}" --big
    same_tree "$work/torture"
    rm -rf "$work/torture"
    mapfile -t trees < <(toolchains)
    for tree in "${trees[@]}" /usr; do
        same_tree "$tree"
    done
}

need cargo rustc rsync
need_root "making trees with devices, foreign owners and capabilities"
need_fuse
build_programs
start=$(seconds)
make_work
case ${1:-} in
quick) quick ;;
full) full ;;
*) die "usage: trees.sh quick|full" ;;
esac
say "trees: all came back the same, in $(since "$start") s"
