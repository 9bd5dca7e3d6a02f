#!/bin/bash
# overlay.sh LOWER DIR: puts overlayfs on top of the mounted tree LOWER, with its layers in the new directory DIR; writes, removes,
# replaces and copies up everything, and compares.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Copying up reads whole files; those above this (sparse ones, of terabytes) stay below.
COPY_LEN_MAX=1G

lower=${1:?the mounted tree}
dir=${2:?directory for the layers}
work=$dir
upper=$dir/upper
merged=$dir/merged

mount_overlay() {
    mkdir "$upper" "$dir/scratch" "$merged"
    # The root is the upper layer's own; it begins as the image's.
    rsync -aAX --numeric-ids --exclude='*' "$lower/" "$upper/"
    mount -t overlay weald-overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$dir/scratch" "$merged"
}

# A tree may lie on overlayfs already (containers), which cannot be an upper layer; memory can.
mount_layers() {
    mkdir "$dir"
    if ! mount_overlay 2>"$dir/why"; then
        say "   $dir cannot hold an upper layer ($(head -n1 "$dir/why")): using a tmpfs"
        rm -rf "$dir"
        mkdir "$dir"
        mount -t tmpfs weald-layers "$dir"
        mount_overlay
    fi
}

# expect WHAT COMMAND...: the command must succeed.
expect() {
    local what=$1
    shift
    "$@" || die "overlay on $lower: $what"
}

# An image without extended attributes does not support them, as the kernel's own read-only file systems do not.
has_attributes() {
    local said
    if said=$(getfattr -h -m - -- "$lower" 2>&1); then return 0; fi
    [[ $said == *"Operation not supported"* ]] || die "$lower: $said"
    return 1
}

# Attributes of all kinds, of everything that is not larger than a copy should be: lines that can be compared.
attributes() {
    (
        cd "$1"
        find . ! -size "+$COPY_LEN_MAX" -print0 | sort -z | xargs -0 -r getfattr -h -d -m - -e hex --
    ) | awk '!/^trusted\.overlay\./'
}

new_files() {
    mkdir "$merged/.weald-overlay"
    printf 'fresh' >"$merged/.weald-overlay/file"
    expect "a new file" [ "$(cat "$merged/.weald-overlay/file")" = fresh ]
    expect "the image shows no new file" [ ! -e "$lower/.weald-overlay" ]
    rm -r "$merged/.weald-overlay"
    expect "a new directory goes away" [ ! -e "$merged/.weald-overlay" ]
}

# First of all, before anything touches times. Everything but what is too large comes up with the attributes that it had; a chmod that changes nothing is enough.
copy_up() {
    local count
    find "$merged" -mindepth 1 ! -type l ! -size "+$COPY_LEN_MAX" -print0 | xargs -0 -r chmod u+
    count=$(find "$upper" -mindepth 1 ! -type l | wc -l)
    expect "everything is copied up" [ "$count" = "$(find "$merged" -mindepth 1 ! -type l ! -size "+$COPY_LEN_MAX" | wc -l)" ]
    : >"$dir/above"
    if has_attributes; then
        attributes "$lower" >"$dir/below"
        attributes "$merged" >"$dir/above"
        expect "attributes of copies" diff "$dir/below" "$dir/above"
    fi
    # Copies of hard links are files of their own.
    rsync_differences "$lower" "$merged" || die "overlay on $lower: copies differ: $differences"
    say "   overlay: $count inodes copied up, $(grep -c '^system.posix_acl_access' "$dir/above" || true) with ACLs, $(
        grep -c '^security.capability' "$dir/above" || true
    ) with capabilities"
}

# Appends to one file, removes another, replaces a directory.
change() {
    local file before victim
    file=$(find "$lower" -type f -size +0 ! -size "+$COPY_LEN_MAX" -printf '%P\n' -quit)
    [ -n "$file" ] || die "$lower has no file to change"
    before=$(sha256sum <"$lower/$file")
    printf 'more' >>"$merged/$file"
    expect "appending" cmp -n "$(stat -c %s "$lower/$file")" "$lower/$file" "$merged/$file"
    expect "appended bytes" [ "$(tail -c 4 "$merged/$file")" = more ]
    rm "$merged/$file"
    expect "a removed file is gone" [ ! -e "$merged/$file" ]
    expect "a whiteout" [ "$(stat -c %t:%T:%F "$upper/$file")" = "0:0:character special file" ]
    expect "the image keeps what it had" [ "$(sha256sum <"$lower/$file")" = "$before" ]
    victim=$(find "$lower" -mindepth 1 -maxdepth 1 -type d -printf '%P\n' -quit)
    if [ -n "$victim" ]; then
        rm -rf "${merged:?}/$victim"
        mkdir "$merged/$victim"
        expect "a replaced directory is empty" [ -z "$(ls -A "$merged/$victim")" ]
    fi
}

need_root "overlayfs"
need getfattr setfattr rsync mountpoint
mount_layers
copy_up
new_files
change
umount "$merged"
if mountpoint -q "$dir"; then umount "$dir"; fi
rm -rf --one-file-system "$dir"
