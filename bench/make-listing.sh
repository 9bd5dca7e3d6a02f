#!/bin/bash
# make-listing.sh COPIES DIR... writes a listing, paths that end in zero bytes, of realistic names
# in no order: those of everything below the DIRs, COPIES times under roots of their own; of each
# copy one name in 17, another for every copy, changed. The same trees give the same listing; only
# names are read. `weald build - --from listing` takes it.
set -euo pipefail
export LC_ALL=C

[ $# -ge 2 ] || {
    echo "usage: make-listing.sh COPIES DIR..." >&2
    exit 2
}
copies=$1
shift
find "$@" ! -type d -print0 | sort -z | python3 -I -c '
import random, sys

copies = int(sys.argv[1])
paths = sys.stdin.buffer.read().split(b"\0")[:-1]
# Each place in the output is one path of one copy; copies are shuffled together, so that
# memory is that of the places alone.
places = list(range(len(paths) * copies))
random.Random(1).shuffle(places)
out = []
for place in places:
    copy, no = divmod(place, len(paths))
    path = paths[no]
    end = b"~%d" % copy if (no + copy) % 17 == 0 else b""
    out.append(b"copy-%03d%s%s\0" % (copy, path, end))
    if len(out) == 65536:
        sys.stdout.buffer.write(b"".join(out))
        out.clear()
sys.stdout.buffer.write(b"".join(out))
' "$copies"
