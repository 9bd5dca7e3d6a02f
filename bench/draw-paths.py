"""Draws paths of files: draw-paths.py DIR COUNT prints them relative to DIR, each ended by a zero byte; always the same for the same tree.

Each is found by going down from DIR, any name of a directory as likely as the others, until it leads to no directory."""

import os
import random
import sys


def main():
    root, count = os.fsencode(sys.argv[1]), int(sys.argv[2])
    draw = random.Random(1)
    kept = {}

    def listed(path):
        if path in kept:
            return kept[path]
        with os.scandir(os.path.join(root, path)) as entries:
            found = sorted((entry.name, entry.is_dir(follow_symlinks=False)) for entry in entries)
        # Leaves are many, and hardly ever drawn twice.
        if any(is_dir for _, is_dir in found):
            kept[path] = found
        return found

    for _ in range(count):
        path, is_dir = b"", True
        while is_dir:
            name, is_dir = draw.choice(listed(path))
            path = os.path.join(path, name)
        sys.stdout.buffer.write(path + b"\0")


main()
