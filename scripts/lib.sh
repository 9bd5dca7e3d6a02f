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

# build_static DIR TARGET PROFILE PACKAGE PROGRAM: TARGET/static/PROGRAM of the sources in DIR, one file without libraries
# and without the paths of this machine. ARCH is the architecture (default: that of this machine); for another one the file
# is TARGET/static/ARCH/PROGRAM.
build_static() {
    local dir=$1 into=$2 static=$3 package=$4 program=$5 home=${CARGO_HOME:-$HOME/.cargo}
    local maps flags triple out words=() c_flags='' environment=()
    triple=${ARCH:-$(uname -m)}-unknown-linux-musl
    out=$into/static${ARCH:+/$ARCH}
    # Of those that match, the last one counts.
    maps=("$home=/cargo" "$(rustc --print sysroot)=/rust" "$dir=/weald" "$into=/target")
    flags=$(printf -- '--remap-path-prefix=%s ' "${maps[@]}")
    [ "${ARCH:-$(uname -m)}" = "$(uname -m)" ] || use_cross_compiler "$triple"
    if [ "$static" = runtime ]; then without_all_but_code; fi
    export WEALD_COMMIT=${WEALD_COMMIT:-$(git -C "$root" rev-parse --short=12 HEAD 2>/dev/null || true)}
    (cd "$dir" && env -u CARGO_INCREMENTAL "${environment[@]}" RUSTFLAGS="$flags" CARGO_TARGET_DIR="$into" \
        "CFLAGS_${triple//-/_}=${cross_flags:-}$c_flags $(printf -- '-ffile-prefix-map=%s ' "${maps[@]}")" \
        cargo build --profile "$static" --locked --target "$triple" -p "$package" --bins "${words[@]}")
    mkdir -p "$out"
    "${STRIP:-strip}" --remove-section=.comment -o "$out/$program" "$into/$triple/${static/#dev/debug}/$program"
}

# For build_static: what makes a program small and is not for others. Rust's own library is compiled anew, without the
# code that prints where a panic came from; that is not stable yet, and RUSTC_BOOTSTRAP=1 lets the compiler that builds
# everything else do it. A panic ends the program without a word. No tables for unwinding, and none of Zstandard's second
# decoders for Huffman codes.
without_all_but_code() {
    environment=(RUSTC_BOOTSTRAP=1)
    words=(-Zbuild-std=std,panic_abort -Zbuild-std-features=optimize_for_size)
    flags+='-Cforce-unwind-tables=no -Zunstable-options -Cpanic=immediate-abort -Zlocation-detail=none '
    flags+='-Clink-arg=-Wl,-O2,-z,pack-relative-relocs,-z,noseparate-code,--build-id=none'
    c_flags='-fno-asynchronous-unwind-tables -fno-unwind-tables -DHUF_FORCE_DECOMPRESS_X1 -DZSTD_STRIP_ERROR_STRINGS'
}

# use_cross_compiler TRIPLE: Debian's compiler for another architecture, whose C library is not used: the objects of musl
# come with Rust. Its atomics of another kind would ask for that library.
use_cross_compiler() {
    local tools=${1%%-*}-linux-gnu name=${1//-/_}
    need "$tools-gcc" "$tools-strip"
    STRIP=$tools-strip
    export "CC_$name=$tools-gcc" "AR_$name=$tools-ar" "CARGO_TARGET_${name^^}_LINKER=$tools-gcc"
    cross_flags=-mno-outline-atomics
}

# without_paths PROGRAM: fails if it holds paths of this machine.
without_paths() {
    if grep -aqF -e "${CARGO_HOME:-$HOME/.cargo}" -e "$root/" "$1"; then die "$1 holds paths of this machine"; fi
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
