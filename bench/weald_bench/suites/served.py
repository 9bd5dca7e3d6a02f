"""Latency of a mount of a forest."""

from __future__ import annotations

import os

from weald_bench import paths
from weald_bench.bench import Bench
from weald_bench.measure import drop_caches, output, process_peak_mib
from weald_bench.mounts import mount_time, mounted, weald_source

MOUNT_ROUNDS = 3
LOOK_UPS = 3000


def served(bench: Bench, image: str) -> dict[str, list]:
    """Measures the milliseconds of mounting and the first `ls`, when only the program itself is
    cached. Then it looks up random paths and absent names, and reads the server's memory."""
    source = weald_source(bench.weald, bench.work / image)
    with mounted(bench, source):
        drawn = paths.draw(bench.mnt, LOOK_UPS)
    times = []
    for _ in range(bench.rounds(MOUNT_ROUNDS)):
        drop_caches()
        # Programs are in the page cache, what they read is not.
        output(bench.weald.command("--version"))
        os.path.ismount(bench.mnt)
        output(["ls", bench.mnt])
        times.append(mount_time(bench, source))
    drop_caches()
    with mounted(bench, source) as mount:
        there = paths.look_up(bench.mnt, drawn)
        absent = paths.look_up(bench.mnt, drawn, absent=True)
        assert mount.pid
        peak = process_peak_mib(mount.pid)
    return {"ms": times, "there_us": [there], "absent_us": [absent], "server_mib": [peak]}
