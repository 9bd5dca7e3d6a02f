"""Asks for paths, one after the other: paths.py DIR [--absent] <PATHS, ended by zero bytes. Prints microseconds each. With --absent it asks for names
beside them, none of which may be there.

What the loop itself costs is about 1 us."""

import os
import sys
import time


def main():
    root = os.fsencode(sys.argv[1])
    paths = [root + b"/" + path for path in sys.stdin.buffer.read().split(b"\0") if path]
    if "--absent" in sys.argv[2:]:
        paths = [path + b"~" for path in paths]
        start = time.monotonic()
        there = sum(os.path.lexists(path) for path in paths)
        if there:
            sys.exit(f"paths.py: {there} names are there that should not be")
    else:
        start = time.monotonic()
        for path in paths:
            os.lstat(path)
    print(f"{(time.monotonic() - start) / len(paths) * 1e6:.1f}")


main()
