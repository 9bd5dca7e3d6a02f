#!/bin/bash
# demo.sh [DIR]: packs a real tree, mounts it, lists it, compares it with its source byte for byte, and shows its size beside
# SquashFS's. Exit status 0 only if nothing differs.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Trees that machines have, the first of a size that takes a minute or two is taken.
LEN_MIN=60000000
LEN_MAX=500000000

choose_tree() {
    local dir len
    for dir in /usr/share /usr/include /usr/lib/python3* "$(rustc --print sysroot)/lib" /usr/share/doc /usr/lib/*-linux-gnu /usr/lib; do
        if [ ! -d "$dir" ] || ! is_readable "$dir"; then continue; fi
        len=$(tree_len "$dir")
        if [ "$len" -ge $LEN_MIN ] && [ "$len" -le $LEN_MAX ]; then
            printf '%s' "$dir"
            return
        fi
    done
    die "found no tree of $(human $LEN_MIN) to $(human $LEN_MAX): name one, 'bash scripts/demo.sh DIR'"
}

is_readable() { [ -z "$(find "$1" ! -type l ! -readable -print -quit 2>&1)" ]; }

pack() {
    step "weald build $tree"
    "$weald" build "$tree" "$work/tree.weald" || die "the build had problems"
}

list() {
    step "weald mount: the first entries, as ls shows them"
    mkdir "$work/mnt"
    "$weald" mount "$work/tree.weald" "$work/mnt"
    ls -l "$work/mnt" >"$work/list"
    head -n 12 "$work/list"
    say "$(find "$work/mnt" | wc -l) entries are there"
    if touch "$work/mnt/new" 2>/dev/null; then die "the mount can be written to"; fi
}

compare() {
    step "rsync -aHAXn --checksum --itemize-changes --delete: source against mount"
    local differences
    rsync_differences "$tree" "$work/mnt" --hard-links || {
        head -n 50 <<<"$differences" >&2
        die "the mounted tree differs from $tree"
    }
    say "nothing differs"
}

unmount() {
    step "weald umount"
    "$weald" umount "$work/mnt"
    if mountpoint -q "$work/mnt"; then die "still mounted"; fi
}

squash() {
    step "mksquashfs -comp zstd -b 1M, for comparison"
    mksquashfs "$tree" "$work/tree.squashfs" -comp zstd -b 1M -no-progress -quiet >&2
}

sizes() {
    local tree_bytes weald_bytes squash_bytes
    tree_bytes=$(tree_len "$tree")
    weald_bytes=$(stat -c %s "$work/tree.weald")
    squash_bytes=$(stat -c %s "$work/tree.squashfs")
    printf '\n%-28s %12s  %s\n' "$tree" "$(human "$tree_bytes")" "1.00 of the tree"
    printf '%-28s %12s  %s of the tree\n' "SquashFS, zstd, 1 MiB blocks" "$(human "$squash_bytes")" "$(ratio "$squash_bytes" "$tree_bytes")"
    printf '%-28s %12s  %s of the tree, %s of SquashFS\n' "Weald, default level" "$(human "$weald_bytes")" \
        "$(ratio "$weald_bytes" "$tree_bytes")" "$(ratio "$weald_bytes" "$squash_bytes")"
}

need cargo rsync mksquashfs mountpoint
need_fuse
build_programs
tree=${1:-${WEALD_DEMO_TREE:-$(choose_tree)}}
[ -d "$tree" ] || die "$tree: not a directory"
start=$(seconds)
make_work
pack
list
compare
unmount
squash
sizes
say "demo: done in $(since "$start") s"
