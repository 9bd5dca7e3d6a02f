"""The work directory: everything that a run makes lies in it, and only that is ever undone.

`run` makes the directory, which must not exist, and marks it. A mount below it, a loop device whose
file lies below it and the process group named in it belong to the run; nothing else does.

Started as a program (`python -I -S guard.py DIR`), it waits until its standard input ends
and then cleans up. A run that is killed leaves no mounts behind that way. It imports the standard
library only, so that nothing of the working directory or of a `PYTHONPATH` runs as root.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

MARK = ".weald-lab"
RUNNING = ".running"
HOME_MARK = ".weald-lab-home"
BUSY_S = 60.0
SETTLE_S = 20.0


def make(work: Path) -> None:
    """Makes and marks the work directory, which only the caller enters. Fails if it exists."""
    work.mkdir(0o700)
    (work / MARK).write_text("made by weald-lab run; see the record beside it\n", "utf-8")


def is_made(work: Path) -> bool:
    """Tells whether a run made the directory."""
    return (work / MARK).is_file()


def make_home(home: Path, work: Path) -> None:
    """Makes the directory of a stack. Fails if it exists: what lies there is not the run's."""
    home.mkdir(0o700)
    (home / HOME_MARK).write_text(f"{work.resolve()}\n", "utf-8")


def remove_home(home: Path, work: Path) -> None:
    """Removes the directory of a stack, if this run made it and nothing is mounted below."""
    if home.is_symlink() or not home.is_dir():
        return
    inside = home.parent.resolve() == work.resolve() and is_made(work)
    if not inside and not _is_marked(home, work):
        raise OSError(f"{home}: not made by this run: it is left alone")
    if any(path.is_relative_to(home.resolve()) for path in mounts_below(home.parent)):
        raise OSError(f"{home}: something is still mounted below it: it is left alone")
    shutil.rmtree(home)


def _is_marked(home: Path, work: Path) -> bool:
    mark = home / HOME_MARK
    try:
        return home.stat().st_uid == os.geteuid() and not mark.is_symlink() \
            and mark.read_text("utf-8") == f"{work.resolve()}\n"
    except OSError:
        return False


def _tool(*words: str) -> subprocess.CompletedProcess[str]:
    """Runs a tool in the root directory, found without the relative parts of PATH."""
    parts = [p for p in os.environ.get("PATH", os.defpath).split(":") if p.startswith("/")]
    return subprocess.run(words, capture_output=True, text=True, check=False, cwd="/",
                          stdin=subprocess.DEVNULL, env={
                              "PATH": ":".join([*parts, "/usr/sbin", "/sbin"]),
                              "LC_ALL": "C.UTF-8"})


def mounts_below(work: Path) -> list[Path]:
    """Returns the mount points below the directory, the last mounted first."""
    found = []
    for line in Path("/proc/self/mountinfo").read_bytes().split(b"\n"):
        words = line.split(b" ")
        if len(words) < 5:
            continue
        # The kernel writes blanks and the like as \040, and all other bytes as they are.
        path = Path(os.fsdecode(re.sub(rb"\\([0-7]{3})", lambda m: bytes([int(m[1], 8)]),
                                       words[4])))
        if path.is_relative_to(work.resolve()) and path != work.resolve():
            found.append(path)
    return found[::-1]


def loops_below(work: Path) -> list[str]:
    """Returns the loop devices whose files lie below the directory."""
    out = _tool("losetup", "--json", "--list", "--output", "NAME,BACK-FILE").stdout
    devices = json.loads(out)["loopdevices"] if out.strip() else []
    inside = str(work.resolve()) + "/"
    return [d["name"] for d in devices if (d["back-file"] or "").startswith(inside)]


def holders(device: str, blocks: Path = Path("/sys/class/block")) -> list[str]:
    """Returns the names of the devices that lie on a device, the uppermost first."""
    found: list[str] = []
    folder = blocks / Path(device).name / "holders"
    for name in sorted(h.name for h in folder.iterdir()) if folder.is_dir() else []:
        found += [n for n in (*holders(name, blocks), name) if n not in found]
    return found


def release(name: str) -> None:
    """Stops a device of MD or of the device mapper."""
    if name.startswith("dm-"):
        mapped = Path(f"/sys/class/block/{name}/dm/name").read_text("utf-8").strip()
        words = ["dmsetup", "remove", mapped]
    else:
        words = ["mdadm", "--stop", f"/dev/{name}"]
    done = _tool(*words)
    if done.returncode:
        raise OSError(f"{name}: cannot stop: {done.stderr.strip()}")


def free(device: str) -> None:
    """Stops what lies on a loop device, and detaches it."""
    for name in holders(device):
        release(name)
    detach(device)


def unmount(path: Path) -> None:
    """Unmounts; waits while a server or a leaving process keeps the mount busy."""
    end = time.monotonic() + BUSY_S
    while True:
        done = _tool("umount", str(path))
        if done.returncode == 0:
            return
        if time.monotonic() > end:
            raise OSError(f"{path}: cannot unmount: {done.stderr.strip()}")
        time.sleep(0.1)


def detach(device: str) -> None:
    """Detaches a loop device and waits until it is free."""
    _tool("losetup", "--detach", device)
    backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
    end = time.monotonic() + BUSY_S
    while backing.exists():
        if time.monotonic() > end:
            raise OSError(f"{device}: cannot detach: something keeps it open")
        time.sleep(0.05)


def start_time(pid: int) -> str:
    """Returns when a process started, in clock ticks; empty if there is none."""
    try:
        return Path(f"/proc/{pid}/stat").read_text("utf-8").rpartition(")")[2].split()[19]
    except OSError:
        return ""


def note_running(work: Path, pid: int) -> None:
    """Notes the process group of a step, so that a cleaner can end it."""
    (work / RUNNING).write_text(f"{pid} {start_time(pid)}\n", "utf-8")


def _end_running(work: Path) -> None:
    with contextlib.suppress(OSError, ValueError):
        pid, started = (work / RUNNING).read_text("utf-8").split()
        if start_time(int(pid)) == started:
            os.killpg(int(pid), signal.SIGKILL)


def _is_busy(work: Path) -> bool:
    """Tells whether a process names a path below the directory, such as a mount that begins."""
    inside = os.fsencode(work.resolve()) + b"/"
    for entry in os.scandir("/proc"):
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                words = Path(entry.path, "cmdline").read_bytes().split(b"\0")
                if any(word.startswith(inside) for word in words):
                    return True
    return False


def clean(work: Path) -> list[str]:
    """Ends the step that runs, unmounts and detaches; returns what could not be undone.

    It looks again while commands of the run still end: one of them may mount at the last moment.
    """
    if not is_made(work):
        return []
    _end_running(work)
    end = time.monotonic() + SETTLE_S
    while True:
        failed: list[str] = []
        for path in mounts_below(work):
            try:
                unmount(path)
            except OSError as error:
                failed.append(str(error))
        for device in loops_below(work):
            try:
                free(device)
            except OSError as error:
                failed.append(str(error))
        left = mounts_below(work) or loops_below(work) or _is_busy(work)
        if failed or not left or time.monotonic() > end:
            return failed
        time.sleep(0.1)


def clean_below(work: Path, part: Path) -> None:
    """Unmounts and detaches what lies below a part of the work directory, as far as it can."""
    for path in mounts_below(work):
        if path.is_relative_to(part.resolve()):
            with contextlib.suppress(OSError):
                unmount(path)
    for device in loops_below(work):
        backing = Path(f"/sys/block/{Path(device).name}/loop/backing_file")
        with contextlib.suppress(OSError):
            if Path(backing.read_text("utf-8").strip()).is_relative_to(part.resolve()):
                free(device)


def remove(work: Path) -> None:
    """Removes the work directory with everything in it, after a last look for mounts."""
    if not is_made(work):
        raise OSError(f"{work}: not made by weald-lab run: it is left alone")
    if mounts_below(work):
        raise OSError(f"{work}: something is still mounted below it: it is left alone")
    shutil.rmtree(work)


class Guardian:
    """A process that cleans up if this one dies without doing so."""

    def __init__(self, work: Path) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-I", "-S", __file__, str(work)], stdin=subprocess.PIPE,
            start_new_session=True, cwd="/")

    def dismiss(self) -> None:
        """Ends the guardian: the run has cleaned up."""
        assert self._process.stdin
        with contextlib.suppress(BrokenPipeError):
            self._process.stdin.write(b"done\n")
            self._process.stdin.close()
        self._process.wait()


def _main() -> None:
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    if sys.stdin.read() == "":
        for text in clean(Path(sys.argv[1])):
            print(f"weald-lab: {text}", file=sys.stderr)


if __name__ == "__main__":
    _main()
