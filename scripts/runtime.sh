#!/bin/bash
# runtime.sh: builds target/static/weald-runtime, the small program that stands before images that mount themselves, and
# tests it in a directory with nothing else as its root. The image is made by the program of the tests.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

# The limit that it keeps: a file that mounts itself is this much longer than its image.
LEN_MAX=1200000

need cargo musl-gcc strip unshare chroot setpriv
need_root "testing: it changes the root directory, and"
need_fuse
step "cargo build --profile runtime"
build_static "$root" "$target" runtime weald-runtime weald-runtime
runtime=$target/static/weald-runtime
without_paths "$runtime"
len=$(stat -c %s "$runtime")
[ "$len" -le "$LEN_MAX" ] || die "$runtime has $len bytes, expected at most $LEN_MAX"
(cd "$root" && cargo build --locked --quiet -p weald-cli --bin weald)
weald=$target/debug/weald

step "tests"
make_work
jail=$work/jail
mkdir -p "$jail/proc" "$jail/dev" "$jail/tmp" "$work/tree/bin"
: >"$jail/dev/fuse"
: >"$jail/dev/null"
# Whatever the program starts has to be static, too.
cp "$runtime" "$work/tree/bin/tool"
cp -a "$root/crates/image" "$work/tree/"
"$weald" build -q --self-mounting --run bin/tool --runtime "$runtime" "$work/tree" "$jail/app"
ln -s app "$jail/link"
inside() { chroot "$jail" "$@"; }
# Without /proc it says what is missing.
if inside /app --version 2>"$work/told"; then die "it finds its image without /proc"; fi
grep -qx 'weald: /proc is not mounted, .*' "$work/told"
mount -t proc proc "$jail/proc"
# The device is missing.
[ "$(inside /app --version)" = "$("$runtime" --version)" ] || die "it does not start with extracted files"
if WEALD_APP=mount inside /app --version 2>"$work/told"; then die "it mounts without /dev/fuse"; fi
grep -q 'WEALD_APP=extract extracts it' "$work/told"
mount --bind /dev/fuse "$jail/dev/fuse"
mount --bind /dev/null "$jail/dev/null"
chmod 1777 "$jail/tmp"
for how in mount extract; do
    for name in /app /link; do
        [ "$(WEALD_APP=$how inside "$name" --version)" = "$("$runtime" --version)" ] || die "$how: $name does not start"
    done
done
# Another user has no fusermount3 there, and extracts.
[ "$(WEALD_RUNTIME_DIR=/tmp/run HOME=/tmp inside /app --version)" = "$("$runtime" --version)" ] || die "no mount"
[ "$(env -u WEALD_RUNTIME_DIR HOME=/tmp chroot --userspec=65534:65534 "$jail" /app --version)" = \
    "$("$runtime" --version)" ] || die "it does not start as another user"
# All files come back, by the full program's judgement.
(cd "$work" && "$jail/app" --appimage-extract)
"$weald" diff "$work/squashfs-root" "$work/tree"
for _ in $(seq 200); do grep -q " $jail/.*fuse.weald" /proc/self/mounts || break; sleep 0.05; done
if grep -q " $jail/.*fuse.weald" /proc/self/mounts; then die "a mount stays"; fi
say "runtime: $runtime, $len bytes; everything passed"
