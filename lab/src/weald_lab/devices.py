"""A block device that the user names: whether it is in use, and whether it is the same one.

A name such as `/dev/sdb` or `/dev/loop0` says nothing: another disk may have it tomorrow. A run
notes size and lasting names of the device, and gives its file system a UUID of its own. It looks
before each mount and each mkfs.
"""

from __future__ import annotations

import os
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from weald_lab import trust
from weald_lab.record import LabError

SECTOR_BYTES = 512


@dataclass(frozen=True)
class Identity:
    """What tells a device from others. `uuid_before` is that of what the run overwrites."""

    size_bytes: int
    ids: tuple[str, ...]
    uuid_before: str

    def dump(self) -> dict[str, Any]:
        """Returns it as JSON has it."""
        return asdict(self) | {"ids": list(self.ids)}


def identity(device: str) -> Identity:
    """Looks at a device; follows the name that the user gave."""
    node = Path(device).resolve()
    folder = Path("/sys/class/block") / node.name
    sectors = int(_text(folder / "size") or 0)
    ids = [f"{key}:{text}" for key in ("wwid", "device/wwid", "device/serial", "dm/uuid",
                                       "loop/backing_file", "partition")
           if (text := _text(folder / key))]
    links = Path("/dev/disk/by-id")
    if links.is_dir():
        ids += [f"by-id:{link.name}" for link in links.iterdir() if link.resolve() == node]
    return Identity(sectors * SECTOR_BYTES, tuple(sorted(ids)), uuid_of(device))


def _text(path: Path) -> str:
    try:
        return path.read_text("utf-8", "replace").strip()
    except OSError:
        return ""


def uuid_of(device: str) -> str:
    """Returns the UUID of what lies on a device, read from the device; empty if nothing has one."""
    return trust.run(["blkid", "--probe", "--match-tag", "UUID", "--output", "value",
                      device]).stdout.strip()


def has_content(device: str) -> bool:
    """Tells whether a file system, a partition table or the like is known on a device."""
    return bool(trust.run(["blkid", "--probe", device]).stdout.strip())


def problems(device: str) -> list[str]:
    """Says why a block device must not be overwritten; a device in use is never touched."""
    path = Path(device)
    if not path.is_block_device():
        return [f"{device}: not a block device"]
    found = []
    name = path.resolve().name
    for line in Path("/proc/self/mountinfo").read_text("utf-8", "surrogateescape").splitlines():
        if line.partition(" - ")[2].split()[1] in (device, str(path.resolve())):
            found.append(f"{device}: is mounted on {line.split()[4]}")
    holders = Path(f"/sys/class/block/{name}/holders")
    if holders.is_dir() and any(holders.iterdir()):
        found.append(f"{device}: is used by {', '.join(h.name for h in holders.iterdir())}")
    if list(Path(f"/sys/class/block/{name}").glob(f"{name}*")):
        found.append(f"{device}: has partitions: name one of them, or a device without any")
    try:
        os.close(os.open(path, os.O_RDONLY | os.O_EXCL))
    except OSError as error:
        found.append(f"{device}: in use: {error.strerror}")
    return found


def refuse_if_in_use(device: str) -> None:
    """Fails if a device is in use; the look just before mkfs."""
    found = problems(device)
    if found:
        raise LabError("; ".join(found))


def refuse_if_not_ours(device: str, uuid: str) -> None:
    """Fails unless the file system of this run lies on a device."""
    now = uuid_of(device)
    if now != uuid:
        raise LabError(f"{device}: the file system of this run has the UUID {uuid}, but there is "
                       f"{now or 'none'}: another disk has the name now, or somebody overwrote it")


def changes(device: str, before: dict[str, Any], uuid: str, made: bool) -> list[str]:
    """Says why a device is not the one of an interrupted run.

    `made`: the run finished its file system there. If not, what lay there before may still be
    there, or nothing, where mkfs was interrupted.
    """
    now = identity(device)
    found = []
    if now.size_bytes != before["size_bytes"]:
        found.append(f"{device}: has {now.size_bytes} bytes; the run began on one of "
                     f"{before['size_bytes']}")
    if list(now.ids) != before["ids"]:
        found.append(f"{device}: is {', '.join(now.ids) or 'nameless'}; the run began on "
                     f"{', '.join(before['ids']) or 'a nameless one'}")
    known = [uuid] if made else [uuid, before["uuid_before"]]
    if now.uuid_before not in known and (made or has_content(device)):
        found.append(f"{device}: holds the file system {now.uuid_before or 'of no UUID'}, which is "
                     f"not that of the run, {uuid}")
    return found
