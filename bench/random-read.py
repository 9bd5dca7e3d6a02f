"""Reads pieces of 4 KiB at random places: random-read.py FILE COUNT. The places are the same in every run.

The kernel is told not to read ahead, so that each piece is asked for by itself."""

import os
import sys


def main():
    path, count = sys.argv[1], int(sys.argv[2])
    file = os.open(path, os.O_RDONLY)
    size = os.fstat(file).st_size
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_RANDOM)
    state = 1
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        place = (state >> 16) % (size // 4096) * 4096
        if len(os.pread(file, 4096, place)) != 4096:
            sys.exit(f"random-read.py: a short read at {place}")


main()
