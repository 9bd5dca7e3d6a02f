"""Runs one command and reports on it: `python -I -S launch.py REPORT_FD COMMAND...`.

A process of its own, and a small one: Linux counts the peak memory of the process that starts a
command as the command's own, and the lab with its libraries is larger than most commands.
"""

import json
import os
import sys
import time


def main(report_fd: int, words: list[str]) -> None:
    """Runs the command, waits for it, writes times, memory and exit status as JSON."""
    os.set_inheritable(report_fd, False)
    start = time.perf_counter()
    pid = os.posix_spawnp(words[0], words, os.environ)
    _, status, usage = os.wait4(pid, 0)
    report = {
        "wall_s": time.perf_counter() - start, "cpu_s": usage.ru_utime + usage.ru_stime,
        "peak_memory_bytes": usage.ru_maxrss * 1024, "exit": os.waitstatus_to_exitcode(status),
    }
    os.write(report_fd, json.dumps(report).encode())


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
