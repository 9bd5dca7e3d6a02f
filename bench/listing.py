"""Many realistic paths from few: listing.py ROOTS <PATHS >LISTING, both ended by zero bytes.

Every path is told under ROOTS roots; in all but the first, one name in 17 is another one; the lines are shuffled, always alike. One path after the
other is drawn, so that memory is that of PATHS: place i of the output is path (i * step + 1) mod all."""

import math
import sys
import zlib


def changed(path, root):
    names = path.split(b"/")
    for index, name in enumerate(names):
        # By what stands before it too: a directory changes for all that lies in it.
        before = b"/".join(names[: index + 1])
        if zlib.crc32(before, root) % 17 == 0 and root > 0:
            names[index] = name + b"-%d" % root
    return b"/".join(names)


def main():
    root_count = int(sys.argv[1])
    paths = [path.strip(b"/") for path in sys.stdin.buffer.read().split(b"\0") if path.strip(b"/")]
    all_count = len(paths) * root_count
    step = int(all_count * 0.6180339887)
    while math.gcd(step, all_count) != 1:
        step += 1
    at, out = 1, sys.stdout.buffer
    for _ in range(all_count):
        at = (at + step) % all_count
        root, index = divmod(at, len(paths))
        out.write(b"root%02d/%s\0" % (root, changed(paths[index], root)))


main()
