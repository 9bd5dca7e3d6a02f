#!/bin/bash
# overlay.sh LOWER DIR: mounts overlayfs over the mounted tree LOWER, with its layers in the new
# directory DIR. It writes, removes, replaces and copies up files, and compares the trees.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Copy-up reads whole files. Files over this size (sparse files of terabytes) are not copied up.
COPY_LEN_MAX=1G

lower=${1:?the mounted tree}
dir=${2:?directory for the layers}
work=$dir
upper=$dir/upper
merged=$dir/merged

mount_overlay() {
    mkdir "$upper" "$dir/scratch" "$merged"
    # overlayfs takes the root's attributes from the upper layer; they start equal to those of the
    # image.
    rsync -aAX --numeric-ids --exclude='*' "$lower/" "$upper/"
    mount -t overlay weald-overlay -o "lowerdir=$lower,upperdir=$upper,workdir=$dir/scratch" "$merged"
}

# If DIR is itself on overlayfs (in containers), it cannot be an upper layer; use a tmpfs then.
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

# An image without extended attributes does not support them, like read-only file systems of the
# kernel.
has_attributes() {
    local said
    if said=$(getfattr -h -m - -- "$lower" 2>&1); then return 0; fi
    [[ $said == *"Operation not supported"* ]] || die "$lower: $said"
    return 1
}

# Prints all attributes of everything that is copied up, as lines to compare.
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

# Copies up everything below the size limit: a chmod that changes nothing does that. Runs first,
# before another step changes times. All attributes must stay equal.
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
    # After copy-up, hard links are separate files.
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
