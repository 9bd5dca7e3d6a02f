"""walk.py DIRECTORY: prints a tree of the machine as walk.c prints that of an image."""

import os
import stat
import sys

os.chdir(sys.argv[1])


def fnv(path):
    total = 0xCBF29CE484222325
    with open(path, "rb") as file:
        for byte in file.read():
            total = (total ^ byte) * 0x100000001B3 & 0xFFFFFFFFFFFFFFFF
    return total


def walk(path):
    at = os.lstat(path)
    seconds, nanoseconds = divmod(at.st_mtime_ns, 10**9)
    line = f"{path} {at.st_mode:o} {at.st_uid}:{at.st_gid} {seconds}.{nanoseconds:09}"
    is_dir = stat.S_ISDIR(at.st_mode)
    if not is_dir:
        line += f" {at.st_nlink}"
    if stat.S_ISCHR(at.st_mode) or stat.S_ISBLK(at.st_mode):
        line += f" {os.major(at.st_rdev)},{os.minor(at.st_rdev)}"
    if stat.S_ISLNK(at.st_mode):
        line += f" -> {os.readlink(path)}"
    if stat.S_ISREG(at.st_mode):
        line += f" {at.st_size} {fnv(path):016x}"
    for name in sorted(os.listxattr(path, follow_symlinks=False)):
        line += f" {name}={os.getxattr(path, name, follow_symlinks=False).hex()}"
    print(line)
    for name in sorted(os.listdir(path), key=os.fsencode) if is_dir else []:
        walk(f"{path}/{name}")


walk(".")
