#!/bin/bash
# static.sh [same]: builds target/static/weald, one file that runs on any Linux of this machine's architecture without a
# library, and tests it in a directory with nothing else as its root. "same" builds it in another directory, too, and
# compares: the bytes depend on the sources and the toolchain alone.
set -euo pipefail
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need cargo musl-gcc strip unshare chroot
need_root "testing: it changes the root directory, and"

step "cargo build --profile static"
build_static "$root" "$target" static weald-cli weald
weald=$target/static/weald

step "tests"
make_work
jail=$work/jail
mkdir -p "$jail/tree" "$jail/app/bin"
without_paths "$weald"
cp "$weald" "$jail/weald"
cp -a "$root/crates" "$jail/tree/"
ln "$jail/tree/crates/cli/Cargo.toml" "$jail/tree/linked"
ln -s crates/cli "$jail/tree/link"
mkfifo "$jail/tree/fifo"
inside() { chroot "$jail" "$@"; }
mkdir "$jail/proc" "$jail/dev" "$jail/tmp" "$jail/run"
: >"$jail/dev/fuse"
: >"$jail/dev/null"
"$weald" build -q "$jail/tree" "$jail/tree.weald"
# Neither /proc nor /dev nor /etc nor a library is there: images are read.
inside /weald check -q /tree.weald
inside /weald ls -lR /tree.weald >/dev/null
[ "$(inside /weald cat /tree.weald linked | sha256sum)" = "$(sha256sum <"$root/crates/cli/Cargo.toml")" ] ||
    die "the program reads other bytes than it packed"
if inside /weald build -q /tree /again.weald 2>"$work/told"; then die "it opens files without /proc"; fi
grep -qx 'weald: /proc is not mounted, .*: mount -t proc proc /proc' "$work/told"

# With /proc, everything works.
mount -t proc proc "$jail/proc"
inside /weald build -q /tree /again.weald
cmp "$jail/tree.weald" "$jail/again.weald"
inside /weald extract -q /tree.weald /out
inside /weald diff /tree /out
inside /weald diff /tree.weald /tree
diff -r --no-dereference "$jail/tree/crates" "$jail/out/crates"
inside /weald store create -q /store
inside /weald store add -q /store /tree --name one
inside /weald store check -q --data /store

# A file that mounts itself, with the program as what it starts.
cp "$weald" "$jail/app/bin/tool"
inside /weald build -q --self-mounting --run bin/tool --runtime /weald /app /tool
mount --bind /dev/fuse "$jail/dev/fuse"
mount --bind /dev/null "$jail/dev/null"
for how in mount extract; do WEALD_APP=$how inside /tool cat /tree.weald linked; done >"$work/said"
cat "$root/crates/cli/Cargo.toml" "$root/crates/cli/Cargo.toml" | cmp - "$work/said"

if [ "${1:-}" = same ]; then
    copy=$work/a-directory-with-another-name
    mkdir "$copy"
    git -C "$root" ls-files -z --cached --others --exclude-standard |
        while IFS= read -r -d '' file; do if [ -e "$root/$file" ]; then printf '%s\0' "$file"; fi; done |
        tar -C "$root" --null -T - -c | tar -C "$copy" -x
    step "the same in another directory"
    build_static "$copy" "$copy/build" static weald-cli weald
    cmp "$weald" "$copy/build/static/weald" || die "the program depends on the directory"
fi
say "static: $weald, $(stat -c %s "$weald") bytes; everything passed"
