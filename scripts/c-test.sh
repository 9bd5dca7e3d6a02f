#!/bin/bash
# c-test.sh: builds the C library into target/c, compiles crates/c/tests/walk.c with cc against its shared
# and its static form, and compares what it reads from an image and a store with the tree itself.
set -euo pipefail
export WEALD_PROFILE=${WEALD_PROFILE:-dev}
# shellcheck source=lib.sh
. "$(dirname "$0")/lib.sh"

need cargo cc python3 setfattr
if [ -z "${WEALD:-}" ]; then
    step "cargo build -p weald-cli"
    (cd "$root" && cargo build --profile "$profile" --locked --quiet -p weald-cli --bins)
fi
weald=${WEALD:-$weald}
package=$root/crates/c
step "cargo build, crates/c"
(cd "$package" && CARGO_TARGET_DIR=$target/c-build cargo build --profile "$profile" --locked --quiet)
built=$target/c-build/${profile/#dev/debug}
rm -rf "$target/c"
mkdir -p "$target/c"
cp "$built"/libweald.{so,a} "$package/include/weald.h" "$target/c"

work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
cd "$work"
mkdir -p tree/sub/deep tree/empty
seq 3 >tree/file
ln tree/file tree/sub/twin
ln -s file tree/link
ln -s loop tree/loop
mkfifo tree/fifo
head -c 700000 /dev/urandom >tree/large
truncate -s 300000 tree/sparse
echo end >>tree/sparse
: >tree/sub/none
setfattr -n user.note -v text tree/file
setfattr -n user.other -v 0x00ff tree/sub
touch -h -d '1969-01-02 03:04:05.678901234 UTC' tree/link tree/sub/deep
if [ "$(id -u)" = 0 ]; then
    mknod tree/device c 1 3
    chown 12:34 tree/large
fi
for number in $(seq 3000); do echo "$number" >"tree/sub/deep/$number"; done
python3 -I "$package/tests/walk.py" tree >wanted

"$weald" build -q tree image
"$weald" store create -q store
"$weald" store import -q store image --name v1
flags=(-std=c11 -Wall -Wextra -Werror -Wpedantic -D_DEFAULT_SOURCE -pthread -I "$target/c")
step "cc, with the shared library"
cc "${flags[@]}" -o shared "$package/tests/walk.c" -L "$target/c" -lweald -Wl,-rpath,"$target/c"
step "cc, with the static library"
cc "${flags[@]}" -o static "$package/tests/walk.c" "$target/c/libweald.a" -lgcc_s -lutil -lrt -lm -ldl
echo '#include "weald.h"' >header.cc
if command -v c++ >/dev/null; then c++ -fsyntax-only -Wall -Werror -I "$target/c" header.cc; fi
for program in shared static; do
    for image in image image@1 store:v1; do
        step "$program: $image"
        "./$program" "$image" >found
        diff wanted found
    done
done
# Damage is an error with a text, and no crash.
cp image hurt
printf hurt | dd of=hurt bs=1 seek=$(($(stat -c %s hurt) / 2)) conv=notrunc status=none
status=0
./shared hurt >/dev/null 2>said || status=$?
[ "$status" = 3 ] || die "damage: status $status: $(cat said)"
grep -q "/large: errno 5: .*digest" said || die "damage: $(cat said)"
# Each function of the header is one of the library, and the other way round.
grep -o '\bweald_[a-z_]*(' "$target/c/weald.h" | tr -d '(' | sort -u >declared
nm -D --defined-only "$target/c/libweald.so" | sed -n 's/.* T //p' | grep '^weald_' | sort >exported
diff declared exported
say "the C library reads what the tree has"
