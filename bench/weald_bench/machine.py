"""Facts about the machine of a run."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


def first_line(*command: str) -> str | None:
    """The first line that a command prints, to either output; None if it cannot be run."""
    try:
        ended = subprocess.run(
            command,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            check=False,
        )
    except OSError:
        return None
    lines = ended.stdout.strip().splitlines()
    return lines[0].strip() if lines else None


def pressure(kind: str) -> float | None:
    """Percent of the last ten seconds in which some process waited for this resource."""
    try:
        text = Path(f"/proc/pressure/{kind}").read_text()
    except OSError:
        return None
    found = re.search(r"some avg10=([0-9.]+)", text)
    return float(found.group(1)) if found else None


def processor() -> str:
    """The name of the processor."""
    found = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.M)
    return found.group(1) if found else os.uname().machine


def memory_gib() -> int:
    """Memory of the machine."""
    return round(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / (1 << 30))


def commit() -> str:
    """The commit of the repository that the harness is part of."""
    version = first_line("git", "-C", str(ROOT), "describe", "--always", "--dirty")
    return version if version and re.fullmatch(r"[\w.-]+", version) else "unknown"


def file_system(path: Path) -> str:
    """The kind of file system that a directory lies on."""
    return first_line("findmnt", "-nro", "FSTYPE", "-T", str(path)) or "unknown"


def facts(work: Path, weald: Path, tools: dict[str, str], free_pages: str) -> dict[str, Any]:
    """All facts, for a result."""
    version = first_line(str(weald), "--version") or "unknown"
    return {
        "commit": commit(),
        "weald_version": version.removeprefix("weald "),
        "kernel": os.uname().release,
        "processor": processor(),
        "processors": len(os.sched_getaffinity(0)),
        "memory_gib": memory_gib(),
        "load": " ".join(f"{value:.2f}" for value in os.getloadavg()),
        "pressure_cpu": pressure("cpu"),
        "pressure_io": pressure("io"),
        "pressure_memory": pressure("memory"),
        "file_system": file_system(work),
        "free_pages": free_pages,
        "tools": tools,
    }
