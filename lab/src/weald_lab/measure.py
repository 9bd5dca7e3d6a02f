"""Runs one command and measures it: wall, CPU, block I/O, memory, load and pressure."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from weald_lab import guard, launch

ERROR_LEN_MAX = 4000


@dataclass(frozen=True)
class Command:
    """Command to run, and its directory. `expect` is the exit status of success."""

    words: tuple[str, ...]
    directory: Path
    environment: dict[str, str]
    timeout_s: float


@dataclass
class Probe:
    """Read beside the command: the server of a mount, and the devices below."""

    server_path: Path | None = None
    block_devices: list[str] = field(default_factory=list)


def server_pids(mount_point: Path) -> list[int]:
    """Returns the processes that serve a FUSE mount: those that name the mount point."""
    found = []
    word = os.fsencode(mount_point)
    for entry in os.scandir("/proc"):
        if entry.name.isdigit():
            try:
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
            except OSError:
                continue
            if word in words:
                found.append(int(entry.name))
    return found


def _server_cpu_s(pids: list[int]) -> float:
    total = 0.0
    for pid in pids:
        # The CPU clock of a process, as clock_getcpuclockid(3) makes its number: nanoseconds of
        # all its threads, where /proc has ticks of 10 ms.
        with contextlib.suppress(OSError):
            total += time.clock_gettime((~pid << 3) | 2)
    return total


def _server_memory_bytes(pids: list[int]) -> int:
    total = 0
    for pid in pids:
        try:
            for line in Path(f"/proc/{pid}/status").read_text("utf-8").splitlines():
                if line.startswith("VmHWM:"):
                    total += int(line.split()[1]) * 1024
        except OSError:
            continue
    return total


def _sectors(devices: list[str]) -> tuple[int, int]:
    read = written = 0
    for device in devices:
        try:
            fields = Path(f"/sys/class/block/{Path(device).name}/stat").read_text("utf-8").split()
        except OSError:
            continue
        read += int(fields[2])
        written += int(fields[6])
    return read, written


def pressure() -> dict[str, float]:
    """Returns the share of the last ten seconds in which some task waited, by resource."""
    found = {}
    for name in ("cpu", "io", "memory"):
        try:
            text = Path(f"/proc/pressure/{name}").read_text("utf-8")
        except OSError:
            continue
        found[name] = float(text.split("avg10=")[1].split()[0])
    return found


def run(command: Command, probe: Probe, work: Path) -> dict[str, Any]:
    """Runs a command in a process group of its own; returns the fields of a repetition."""
    pids = server_pids(probe.server_path) if probe.server_path else []
    server_before, blocks_before = _server_cpu_s(pids), _sectors(probe.block_devices)
    row: dict[str, Any] = {"started_at": round(time.time(), 3), "load": os.getloadavg()[0],
                           "pressure": pressure()}
    report, said = _launched(command, work)
    if not pids and probe.server_path:  # the command itself has mounted
        pids = server_pids(probe.server_path)
    blocks = _sectors(probe.block_devices)
    server_s = max(0.0, _server_cpu_s(pids) - server_before)
    row |= {
        "wall_s": round(report["wall_s"], 6),
        "cpu_s": round(report["cpu_s"] + server_s, 6),
        "peak_memory_bytes": report["peak_memory_bytes"],
        "status": "ok" if report["exit"] == 0 else "failed",
    }
    if probe.server_path:
        row["server_cpu_s"] = round(server_s, 6)
        row["server_memory_bytes"] = _server_memory_bytes(pids)
    if probe.block_devices:
        row["read_bytes"] = max(0, blocks[0] - blocks_before[0]) * 512
        row["written_bytes"] = max(0, blocks[1] - blocks_before[1]) * 512
    if report["exit"] != 0:
        row["exit"] = report["exit"]
        row["error"] = said[-ERROR_LEN_MAX:]
    return row


def _launched(command: Command, work: Path) -> tuple[dict[str, Any], str]:
    """Runs the command by `launch`; returns its report and the command's output."""
    reading, writing = os.pipe()
    start = time.perf_counter()
    with tempfile.TemporaryFile() as output, open(reading, "rb") as report:
        try:
            process = subprocess.Popen(
                (sys.executable, "-I", "-S", launch.__file__, str(writing), *command.words),
                cwd=command.directory, env=command.environment, stdin=subprocess.DEVNULL,
                stdout=output, stderr=output, start_new_session=True, pass_fds=(writing,))
        finally:
            os.close(writing)
        guard.note_running(work, process.pid)
        timer = threading.Timer(command.timeout_s, _kill, [process.pid])
        timer.start()
        try:
            process.wait()
        except BaseException:
            _kill(process.pid)
            process.wait()
            raise
        finally:
            timer.cancel()
        found = report.read()
        output.seek(0)
        said = output.read().decode("utf-8", "replace")
    if found:
        return json.loads(found), said
    # The launcher was killed, or the command could not be started.
    return {"wall_s": time.perf_counter() - start, "cpu_s": 0.0, "peak_memory_bytes": 0,
            "exit": process.returncode or 127}, said


def _kill(pid: int) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(pid, signal.SIGKILL)


def entries(path: Path) -> int:
    """Counts the entries of a tree, its root included."""
    return 1 + sum(len(folders) + len(files) for _, folders, files in os.walk(path))
