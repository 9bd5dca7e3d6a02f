#!/bin/bash
# same-tree.sh [--level N] [--deep] [--overlay] DIR...: packs each tree, mounts and extracts it, and
# compares both with the source: with rsync, with the testkit (nanoseconds, device numbers, link
# counts, holes), and with du.
#   --level N  of the build; WEALD_LEVEL where it is not given, else the default
#   --deep     the tree has paths that rsync cannot walk: only the testkit compares
#   --overlay  also writes on top of the mount through overlayfs
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# Number of attempts if another process changes the source meanwhile.
ATTEMPTS_MAX=3

# Additional disk space that the extracted files may use, because directories and extents are laid
# out again.
DU_SLACK_PERCENT=1
DU_SLACK_BYTES=4194304

level=${WEALD_LEVEL:-7}
is_deep=
with_overlay=
trees=()
while [ $# -gt 0 ]; do
    case $1 in
    --level) level=${2:?--level needs a number} && shift ;;
    --deep) is_deep=1 ;;
    --overlay) with_overlay=1 ;;
    -*) die "there is no option $1" ;;
    *) trees+=("$1") ;;
    esac
    shift
done
[ ${#trees[@]} -gt 0 ] || die "usage: same-tree.sh [--level N] [--deep] [--overlay] DIR..."

# Prints a digest that changes with every write to the tree.
fingerprint() { (cd "$1" && find . -printf '%p %s %T@ %C@ %i\n' | sha256sum); }

# same A B: whether rsync and the testkit find the trees equal.
same() {
    local differences
    if [ -z "$is_deep" ]; then
        say "   rsync -aHAXn --checksum --itemize-changes --delete $1/ $2/"
        rsync_differences "$1" "$2" --hard-links || {
            head -n 50 <<<"$differences" >&2
            return 1
        }
    fi
    say "   testkit: compare $1 $2"
    "$bin/compare" --no-rsync "$1" "$2" >"$work/differences" || {
        head -n 50 "$work/differences" >&2
        return 1
    }
}

# Disk space of regular files in bytes; hard links count once.
allocated_len() { (cd "$1" && find . -type f -printf '%D:%i %b\n') | sort -u | awk '{ sum += $2 } END { printf "%.0f", sum * 512 }'; }

# Checks that no hole was filled.
same_holes() {
    local source_len copy_len most
    source_len=$(allocated_len "$1")
    copy_len=$(allocated_len "$2")
    most=$((source_len + source_len * DU_SLACK_PERCENT / 100 + DU_SLACK_BYTES))
    say "   on disk: $source_len bytes in $1, $copy_len in $2"
    [ "$copy_len" -le "$most" ] || {
        say "   holes were filled: expected at most $most bytes"
        return 1
    }
}

enough_room() {
    local wanted free
    wanted=$(du -s --block-size=1 -- "$1" | cut -f1)
    free=$(df --output=avail --block-size=1 "$work" | tail -n1)
    [ "$free" -gt $((wanted * 2)) ] ||
        die "$work: $(human "$free") are free, but the image and the copy of $1 may need $(human $((wanted * 2))); set TMPDIR"
}

through_mount() {
    "$weald" mount "$work/image" "$work/mnt" || return 1
    same "$1" "$work/mnt" || return 1
    if [ -n "$with_overlay" ]; then
        bash "$root/scripts/overlay.sh" "$work/mnt" "$work/overlay" || return 1
    fi
    "$weald" umount "$work/mnt" || return 1
    if mountpoint -q "$work/mnt"; then
        say "still mounted"
        return 1
    fi
}

through_extract() {
    "$weald" extract "$work/image" "$work/out" || return 1
    same "$1" "$work/out" || return 1
    same_holes "$1" "$work/out" || return 1
}

# One attempt, in an empty work directory.
pack_and_compare() {
    local start
    start=$(seconds)
    "$weald" build --level "$level" --progress none --json "$1" "$work/image" >"$work/report" || return 1
    say "   packed in $(since "$start") s: $(stat -c %s "$work/image") bytes"
    "$weald" check --quiet "$work/image" || return 1
    through_mount "$1" || return 1
    through_extract "$1"
}

sweep() {
    local dir
    while read -r dir; do unmount_at_once "$dir"; done < <(mounts_below "$work" | tac)
    rm -rf --one-file-system "$work/image" "$work/out" "$work/overlay"
}

hold() {
    local tree=$1 attempt before
    for attempt in $(seq $ATTEMPTS_MAX); do
        step "same tree back: $tree (level $level)"
        before=$(fingerprint "$tree")
        if pack_and_compare "$tree"; then
            sweep
            return
        fi
        [ "$before" != "$(fingerprint "$tree")" ] || die "$tree: it did not come back the same"
        say "$tree: was changed by others meanwhile (attempt $attempt)"
        sweep
    done
    die "$tree: was changed by others during each of $ATTEMPTS_MAX attempts"
}

need cargo rsync mountpoint
need_fuse
build_programs
make_work
mkdir "$work/mnt"
for tree in "${trees[@]}"; do
    [ -d "$tree" ] || die "$tree: not a directory"
    tree=$(cd "$tree" && pwd -P)
    enough_room "$tree"
    hold "$tree"
done
say "same tree back: ${#trees[@]} of ${#trees[@]}"
