# Shared functions of the scripts; sourced, never run. Needs bash and GNU coreutils.
# shellcheck shell=bash

# shellcheck disable=SC2034 # the scripts that source this file use the variables

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
# Cargo profile of the programs: release, or dev, which checks arithmetic and assertions and reuses
# what the tests built.
profile=${WEALD_PROFILE:-release}
# Cargo takes a relative path from the directory of the call, which scripts leave.
target=$(realpath --canonicalize-missing -- "${CARGO_TARGET_DIR:-$root/target}")
[ -z "${CARGO_TARGET_DIR:-}" ] || export CARGO_TARGET_DIR=$target
bin=$target/${profile/#dev/debug}
weald=$bin/weald
export LC_ALL=C

say() { printf '%s\n' "$*" >&2; }

step() { printf '== %s\n' "$*" >&2; }

die() {
    printf '%s: %s\n' "$(basename "$0")" "$*" >&2
    exit 2
}

# need COMMAND...: fails unless all commands are installed.
need() {
    local command
    for command in "$@"; do
        command -v "$command" >/dev/null || die "$command is missing: run 'make setup'"
    done
}

need_root() {
    [ "$(id -u)" = 0 ] || die "$1 needs root: run it as 'sudo -E env \"PATH=\$PATH\" make …'"
}

# Fails unless the current user can use FUSE: no check is skipped.
need_fuse() {
    [ -e /dev/fuse ] || die "/dev/fuse is missing: load the kernel module (modprobe fuse), or give the container the device"
    if [ "$(id -u)" != 0 ]; then
        if [ ! -r /dev/fuse ] || [ ! -w /dev/fuse ]; then die "/dev/fuse is not open to $(id -un)"; fi
        need fusermount3
    fi
}

# timed COMMAND...: runs it and says how long it took.
timed() {
    local start
    start=$(seconds)
    step "$*"
    "$@"
    say "   took $(since "$start") s"
}

# Every unit test, those of programs, too. The crate of volumes comes alone: its simulations turn on faults of the store, which
# the program that other tests run must not have.
unit_tests() {
    cargo test --workspace --exclude weald-volume --locked --no-fail-fast --lib --bins
    cargo test -p weald-volume --locked --no-fail-fast --lib
}

# Builds weald and the programs that the scripts compare with. Those of the profile dev are built as
# the tests are: with other features of the libraries, they would all be built twice.
build_programs() {
    step "cargo build --profile $profile"
    case $profile in
    dev) (cd "$root" && cargo build --workspace --exclude weald-volume --locked --quiet --bins --tests) ;;
    *) (cd "$root" && cargo build --profile "$profile" --locked --quiet --workspace --bins) ;;
    esac
}

# lab_environment REQUIREMENT: sets $environment to a virtual environment with the lab in it. It is
# made anew when the lab's requirements change; the lab itself is installed each time.
lab_environment() {
    local stamp wanted
    environment=$target/lab-venv
    stamp=$environment/requirements
    wanted=$(python3 --version; cat "$root/lab/pyproject.toml")
    if [ ! -e "$stamp" ] || [ "$(cat "$stamp")" != "$wanted" ]; then
        step "pip install $1"
        rm -rf "$environment"
        python3 -I -m venv "$environment"
        "$environment/bin/pip" install --quiet "$1"
        printf '%s\n' "$wanted" >"$stamp"
    else
        "$environment/bin/pip" install --quiet --no-deps --force-reinstall "${1%\[*}"
    fi
}

# make_work: creates the directory $work; when the script ends, it and all mounts in it are removed.
# Mount servers use sockets in $work, apart from the servers of the user.
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
    # A lasting server does not end with its mounts.
    [ -z "${server:-}" ] || kill -TERM "$server" || true
    mapfile -t dirs < <(mounts_below "$work" | tac)
    for dir in "${dirs[@]}"; do
        unmount_at_once "$dir"
    done
    # Trees may be deeper than PATH_MAX, and contain directories without permissions for the owner.
    rm -rf --one-file-system "$work" || {
        chmod -R u+rwx "$work" || true
        rm -rf --one-file-system "$work"
    }
}

# mounts_below DIR: mount points below DIR, in the order of mounting. The kernel writes blanks and the
# like as \040.
mounts_below() {
    local point rest
    while read -r _ point rest; do
        printf -v point %b "${point//\\/\\0}"
        case $point in "$1"/*) printf '%s\n' "$point" ;; esac
    done </proc/self/mounts
}

unmount_at_once() {
    if [ "$(id -u)" = 0 ]; then
        umount --lazy "$1"
    else
        fusermount3 -u -z "$1"
    fi
}

# human BYTES: formats bytes as in 12.3 MB.
human() { numfmt --to=si --suffix=B --format='%.1f' "$1"; }

# ratio A B: A/B with two decimals.
ratio() { awk -v a="$1" -v b="$2" 'BEGIN { if (b > 0) printf "%.2f", a / b; else printf "-" }'; }

# tree_len DIR: total length of the files in bytes; hard links count once.
tree_len() { du -s --apparent-size --block-size=1 -- "$1" 2>/dev/null | cut -f1; }

# seconds: current time in seconds.
seconds() { printf '%s' "$EPOCHREALTIME"; }

# since START: seconds since START, one decimal.
since() { awk -v a="$1" -v b="$EPOCHREALTIME" 'BEGIN { printf "%.1f", b - a }'; }

# Larger files are sparse and compared by the testkit only: rsync would read terabytes of zeros,
# even with --max-size.
RSYNC_LEN_MAX=1G

# rsync_differences A B [OPTION]...: sets $differences to the changes by which rsync would make B
# equal to A; fails if there are any.
rsync_differences() {
    local a=$1 b=$2
    shift 2
    find "$a" -type f -size "+$RSYNC_LEN_MAX" -printf '/%P\0' | sed -z '/[*?[]/ s/[*?[\\]/\\&/g' >"$work/too-large"
    differences=$(rsync -aAXn --checksum --itemize-changes --delete --numeric-ids --from0 --exclude-from="$work/too-large" "$@" "$a/" "$b/" 2>&1) ||
        differences+=$'\n'"rsync: exit status $?"
    [ -z "$differences" ]
}
