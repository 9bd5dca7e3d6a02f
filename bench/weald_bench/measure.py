"""Time, processor time, memory and bytes, from the kernel."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

#: The kernel returns free blocks from this order on to the host of a virtual machine.
REPORTED_ORDER = Path("/sys/module/page_reporting/parameters/page_reporting_order")
#: An order above that of any block: nothing is reported.
ORDER_NEVER = "11"

Words = Sequence[Any]


class CommandFailed(Exception):
    """A command that did not end with status 0. It has no figures."""


@dataclass(frozen=True)
class Usage:
    """Resources used by a command. `cpu_s` is user and system time; `peak_mib` is the largest
    resident set of any one of its processes; bytes are those that reached storage."""

    wall_s: float
    cpu_s: float
    peak_mib: float = 0.0
    read_bytes: int = 0
    written_bytes: int = 0


def shown(command: Words) -> str:
    """A command as a line of text."""
    return " ".join(os.fspath(word) for word in command)


def parse_usage(line: str) -> tuple[Usage, int]:
    """Parses the output of bench/measure.c: figures and exit status of the command."""
    words = line.split()
    if len(words) != 7:
        raise ValueError(f"not a line of measure.c: {line!r}")
    wall, user, system = (float(word) for word in words[:3])
    peak, read, written, status = (int(word) for word in words[3:])
    return Usage(wall, user + system, peak / 1024, read, written), status


class Meter:
    """Runs commands and measures them with the program that is compiled from bench/measure.c. Their
    output goes to the log."""

    def __init__(self, program: Path, log: IO[bytes]) -> None:
        self.program = program
        self.log = log
        self.log_name = str(log.name)

    def note(self, command: Words) -> None:
        """Writes a command into the log, before what it prints."""
        self.log.write(f"\n$ {shown(command)}\n".encode())
        self.log.flush()

    def run(
        self,
        command: Words,
        env: Mapping[str, str] | None = None,
        stdin: Path | None = None,
        stdout: Path | None = None,
    ) -> Usage:
        """Measures a command; raises CommandFailed unless it ends with status 0."""
        self.note(command)
        read_end, write_end = os.pipe()
        words = [os.fspath(self.program), str(write_end), *map(os.fspath, command)]
        with (
            open(stdin or os.devnull, "rb") as source,
            open(read_end, "rb") as usage_pipe,
            open(stdout, "wb") if stdout else nullcontext(self.log) as target,
        ):
            try:
                ended = subprocess.run(
                    words,
                    stdin=source,
                    stdout=target,
                    stderr=self.log,
                    env={**os.environ, **env} if env else None,
                    pass_fds=[write_end],
                    check=False,
                )
            finally:
                os.close(write_end)
            line = usage_pipe.read().decode()
        if ended.returncode != 0 or not line:
            raise CommandFailed(f"{shown(command)}: could not be measured: see {self.log_name}")
        usage, status = parse_usage(line)
        if status != 0:
            raise CommandFailed(f"{shown(command)}: exit status {status}: see {self.log_name}")
        return usage

    def quiet(self, command: Words, **more: Any) -> None:
        """Runs a command that is not measured; raises CommandFailed unless it ends with 0."""
        self.note(command)
        ended = subprocess.run(
            [os.fspath(word) for word in command],
            stdin=more.pop("stdin", subprocess.DEVNULL),
            stdout=more.pop("stdout", self.log),
            stderr=self.log,
            check=False,
            **more,
        )
        if ended.returncode != 0:
            raise CommandFailed(
                f"{shown(command)}: exit status {ended.returncode}: see {self.log_name}"
            )

    def pipe(self, *commands: Words) -> None:
        """Runs commands as a pipeline, the output of the last one thrown away; raises
        CommandFailed unless all end with status 0."""
        running: list[subprocess.Popen[bytes]] = []
        source: Any = subprocess.DEVNULL
        for index, command in enumerate(commands):
            is_last = index == len(commands) - 1
            started = subprocess.Popen(
                [os.fspath(word) for word in command],
                stdin=source,
                stdout=subprocess.DEVNULL if is_last else subprocess.PIPE,
                stderr=self.log,
            )
            if running and running[-1].stdout:
                running[-1].stdout.close()
            source = started.stdout
            running.append(started)
        statuses = [started.wait() for started in running]
        for command, status in zip(commands, statuses):
            if status != 0:
                raise CommandFailed(f"{shown(command)}: exit status {status}: see {self.log_name}")


def output(command: Words, env: Mapping[str, str] | None = None) -> str:
    """Output of a command; raises CommandFailed unless it ends with status 0."""
    ended = subprocess.run(
        [os.fspath(word) for word in command],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        env={**os.environ, **env} if env else None,
        check=False,
    )
    if ended.returncode != 0:
        said = ended.stderr.strip()[-300:]
        raise CommandFailed(f"{shown(command)}: exit status {ended.returncode}: {said}")
    return ended.stdout


def busy_seconds(stat: str | None = None) -> float:
    """CPU seconds that all processes and the kernel have used since boot."""
    text = Path("/proc/stat").read_text() if stat is None else stat
    words = text.split("\n", 1)[0].split()
    # user, nice, system, irq, softirq
    ticks = sum(int(words[index]) for index in (1, 2, 3, 6, 7))
    return ticks / os.sysconf("SC_CLK_TCK")


def measure_machine(action: Callable[[], Any]) -> Usage:
    """Returns the wall time of an action and the CPU seconds of the whole machine meanwhile, so
    that servers and kernel threads count too. The figure is right only on a quiet machine."""
    busy, start = busy_seconds(), time.perf_counter()
    action()
    return Usage(time.perf_counter() - start, busy_seconds() - busy)


def process_cpu(pid: int | None) -> float:
    """CPU seconds of a process; 0 of none."""
    if pid is None:
        return 0.0
    words = Path(f"/proc/{pid}/stat").read_text().rsplit(") ", 1)[1].split()
    return (int(words[11]) + int(words[12])) / os.sysconf("SC_CLK_TCK")


def process_peak_mib(pid: int) -> float:
    """The largest resident set of a process so far."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise CommandFailed(f"process {pid} has no memory: it has ended")


def drop_caches() -> None:
    """Writes what is not on storage yet and empties the page cache."""
    os.sync()
    Path("/proc/sys/vm/drop_caches").write_text("3\n")


def warm(path: Path) -> None:
    """Reads a file or all files of a directory, so that they lie in the page cache."""
    files = [path] if path.is_file() else (one for one in path.rglob("*"))
    buffer = bytearray(1 << 20)
    for one in files:
        if one.is_file() and not one.is_symlink():
            with open(one, "rb", buffering=0) as file:
                while file.readinto(buffer):
                    pass


class FreePages:
    """Stops a virtual machine from giving free pages back to its host while the context is entered,
    where that is possible. Otherwise each gigabyte of page cache that a mount frees must be waited
    for again."""

    def __init__(self) -> None:
        self.order: str | None = None
        self.state = "not told to a host"

    def __enter__(self) -> FreePages:
        try:
            order = REPORTED_ORDER.read_text()
        except OSError:
            return self
        try:
            REPORTED_ORDER.write_text(ORDER_NEVER)
            self.order, self.state = order, "kept from the host meanwhile"
        except OSError:
            self.state = "told to the host, which takes them away"
        return self

    def __exit__(self, *_: object) -> None:
        if self.order is not None:
            REPORTED_ORDER.write_text(self.order)
