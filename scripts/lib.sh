# What the scripts share; sourced, never run. Needs bash and GNU coreutils.
# shellcheck shell=bash

# shellcheck disable=SC2034 # variables are for those who source this

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# The profile that programs are built in: release, or dev, which checks arithmetic and assertions and shares what the tests built.
profile=${WEALD_PROFILE:-release}
bin=${CARGO_TARGET_DIR:-$root/target}/${profile/#dev/debug}
weald=$bin/weald
export LC_ALL=C

say() { printf '%s\n' "$*" >&2; }

step() { printf '== %s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}

# need COMMAND...: fails unless all are there.
need() {
    local command
    for command in "$@"; do
        command -v "$command" >/dev/null || die "$command is missing: run 'make setup'"
    done
}

need_root() {
    [ "$(id -u)" = 0 ] || die "$1 needs root: run it as 'sudo -E env \"PATH=\$PATH\" make …'"
}

# FUSE must work for whoever runs this; nothing is skipped where it does not.
need_fuse() {
    [ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module (modprobe fuse), or give the container the device"
    if [ "$(id -u)" != 0 ]; then
        if [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then die "/dev/fuse is not open to $(id -un)"; fi
        need fusermount3
    fi
}

# Builds the program and what the scripts compare with.
build_programs() {
    step "cargo build --profile $profile"
    (cd "$root" && cargo build --profile "$profile" --locked --quiet --workspace --bins)
}

# make_work: sets $work to a new directory that is gone, with all mounts in it, when the script ends. Servers of mounts have their place
# there too: those of the user are not asked, and none is left to them.
make_work() {
    work=$(mktemp -d "${TMPDIR:-/tmp}/weald-XXXXXXXX")
    chmod 755 "$work"
    mkdir -m 700 "$work/run"
    export WEALD_RUNTIME_DIR=$work/run
    trap clean_work EXIT
    trap 'exit 130' INT
    trap 'exit 143' TERM
}

clean_work() {
    local dir dirs
    # A server that was asked for outlives its mounts.
    [ -z "${server:-}" ] || kill -TERM "$server" || true
    mapfile -t dirs < <(mounts_below "$work" | tac)
    for dir in "${dirs[@]}"; do
        unmount_at_once "$dir"
    done
    # Trees may be deeper than PATH_MAX, and hold directories that their owner cannot enter.
    rm -rf --one-file-system "$work" || {
        chmod -R u+rwx "$work" || true
        rm -rf --one-file-system "$work"
    }
}

# mounts_below DIR: the mount points below it, in the order of mounting.
mounts_below() {
    awk -v dir="$1/" 'index($2, dir) == 1 { print $2 }' /proc/self/mounts
}

unmount_at_once() {
    if [ "$(id -u)" = 0 ]; then
        umount --lazy "$1"
    else
        fusermount3 -u -z "$1"
    fi
}

# human BYTES: as 12.3 MB.
human() { numfmt --to=si --suffix=B --format='%.1f' "$1"; }

# ratio A B: A/B with two digits.
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }'; }

# tree_len DIR: bytes of its files, each inode once.
tree_len() { du -s --apparent-size --block-size=1 -- "$1" 2>/dev/null | cut -f1; }

# seconds: a clock.
seconds() { printf '%s' "$EPOCHREALTIME"; }

# since START: seconds since then, one digit.
since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# rsync would read every zero of a sparse file of terabytes, whatever --max-size says; larger files are for the testkit to compare.
RSYNC_LEN_MAX=1G

# rsync_differences A B [OPTION]...: what rsync would change to make B like A, in $differences; fails if that is not nothing.
rsync_differences() {
    local a=$1 b=$2
    shift 2
    find "$a" -type f -size "+$RSYNC_LEN_MAX" -printf '/%P\0' | sed -z '/[*?[]/ s/[*?[\\]/\\&/g' >"$work/too-large"
    differences=$(rsync -aAXn --checksum --itemize-changes --delete --numeric-ids --from0 --exclude-from="$work/too-large" "$@" "$a/" "$b/" 2>&1) ||
        differences+=$'\n'"rsync: exit status $?"
    [ -z "$differences" ]
}
