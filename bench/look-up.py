"""Times look-ups over a mount of `weald forest --fanout AxBxFILES`: look-up.py DIR A B FILES COUNT [--absent]. Prints microseconds a look-up.

Paths are drawn by a linear congruence, so that every run asks for the same ones, and hardly any twice."""

import os
import sys
import time


def main():
    root, *numbers = [word for word in sys.argv[1:] if word != "--absent"]
    a_count, b_count, file_count, count = map(int, numbers)
    is_absent = "--absent" in sys.argv
    widths = [len(str(n - 1)) for n in (a_count, b_count, file_count)]
    state, paths = 1, []
    for _ in range(count):
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        place = (state >> 16) % (a_count * b_count * file_count)
        leaf, file = divmod(place, file_count)
        parts = (*divmod(leaf, b_count), file)
        path = "/".join(str(part).zfill(width) for part, width in zip(parts, widths))
        paths.append(f"{root}/{path}" + ("x" if is_absent else ""))
    start = time.monotonic()
    found_count = sum(os.path.lexists(path) for path in paths)
    seconds = time.monotonic() - start
    if found_count != (0 if is_absent else count):
        sys.exit(f"look-up.py: {found_count} of {count} were there")
    print(f"{seconds / count * 1e6:.1f}")


main()
