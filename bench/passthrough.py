"""Reads a mount of bench/passthrough.c, files 0 to COUNT - 1 of BYTES bytes, one after the other, and prints seconds.

passthrough.py DIR COUNT BYTES: what reading them in full takes, the first time and again. With a fourth word: what mapping them takes, and reading a byte of every
page, as a program does that is started."""

import mmap
import os
import sys
import time

CHUNK = 1 << 20


def read_all(root, count, buffer):
    begun = time.perf_counter()
    for no in range(count):
        file = os.open(os.path.join(root, str(no)), os.O_RDONLY)
        while os.readv(file, [buffer]) > 0:
            pass
        os.close(file)
    return time.perf_counter() - begun


def map_all(root, count, size):
    begun = time.perf_counter()
    total = 0
    for no in range(count):
        file = os.open(os.path.join(root, str(no)), os.O_RDONLY)
        with mmap.mmap(file, size, prot=mmap.PROT_READ) as mapped:
            total += sum(mapped[:: mmap.PAGESIZE])
        os.close(file)
    return time.perf_counter() - begun


def main():
    root, count, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    if len(sys.argv) > 4:
        print(f"{map_all(root, count, size):.4f}")
        return
    buffer = bytearray(min(CHUNK, size))
    print(f"{read_all(root, count, buffer):.4f} {read_all(root, count, buffer):.4f}")


main()
