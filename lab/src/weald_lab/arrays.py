"""Kernel file systems on several drives: MD arrays, LVM volumes, both, and Btrfs's own RAID.

The commands are those of the benchmark of 2015 (`test_fs.py` of datalad/benchmarking): RAID 6 by
MD over all drives and a wait until it is in sync, a linear volume on the array, a striped volume,
metadata of Btrfs in RAID 6. Drives are loop devices, names are the run's own, LVM sees no other
device, and nothing is written to /etc.
"""

from __future__ import annotations

import hashlib
import os
import time
from pathlib import Path

from weald_lab import guard, trust
from weald_lab.record import LabError
from weald_lab.stacks import DIRECT, Disk, KernelStack, Place, Spec, attach_direct

# Layers below each kind of file system, lowest first, and the drives of 2015.
LAYERS = {"md": ("md",), "lvm": ("dm",), "lvm-md": ("md", "dm"), "raid6": ("btrfs",)}
DRIVES = {"md": 6, "lvm": 4, "lvm-md": 6, "raid6": 6}
DRIVES_MIN = {"md": 4, "lvm": 2, "lvm-md": 4, "raid6": 4}
DRIVES_MAX = 64
KINDS = tuple(f"{kind}-{below}" for kind in ("ext4", "xfs", "btrfs") for below in LAYERS
              if kind == "btrfs" or below != "raid6")
TOOLS = {"md": ("mdadm",), "dm": ("lvm", "dmsetup"), "btrfs": ("btrfs",)}
LAYER_WORDS = {"md": "mdadm --create --level=6", "dm": "lvcreate --extents 100%FREE, with stripes",
               "btrfs": "mkfs.btrfs -m raid6 over all of them"}
# Superblocks, bitmaps and reserves on each drive.
RESERVE_BYTES = 160 << 20
SYNC_S = 3600.0
LVM_CONFIG = "activation { udev_sync=0 udev_rules=0 } backup { backup=0 archive=0 }"


class ArrayDisk(Disk):
    """A kernel file system on drives that MD, LVM or Btrfs join."""

    def __init__(self, owner: KernelStack, kind: str, below: str, count: int,
                 make: list[str]) -> None:
        super().__init__(owner, kind, owner.mount_point, make, owner.spec.settings.get("mount", ""))
        self._layers, self._count = LAYERS[below], count
        # RAID 6 has room for the data of all drives but two.
        data = count if below == "lvm" else count - 2
        self._image_bytes = owner.place.size_bytes // data + RESERVE_BYTES
        self._images = [owner.home / f"disk{i}.img" for i in range(count)]
        mark = hashlib.sha256(os.fsencode(owner.mount_point)).hexdigest()[:12]
        self._name = f"weald_lab_{mark}"
        self._loops: list[str] = []

    def create(self) -> None:
        self.mount_point.mkdir(exist_ok=True)
        for image in self._images:
            with image.open("xb") as handle:
                os.truncate(handle.fileno(), self._image_bytes)
        self._attach_loops()
        if "md" in self._layers:
            self._owner.run("mdadm", "--create", f"/dev/md/{self._name}", "--run", "--level=6",
                            f"--raid-devices={self._count}", "--homehost=any", *self._loops)
            self._wait_for_sync()
        if "dm" in self._layers:
            members = self._members()
            self._lvm("pvcreate", "-ff", "--yes", *members)
            self._lvm("vgcreate", self._name, *members)
            stripes = ["--stripes", str(len(members))] if len(members) > 1 else []
            self._lvm("lvcreate", "--yes", *stripes, "--extents", "100%FREE", "--name", "lab",
                      self._name)
        self.device = self._top()
        self._make_file_system()
        self._detach()

    def drives(self) -> list[str]:
        return self._loops

    def _attach_loops(self) -> None:
        self._loops = [attach_direct(self._owner, image) for image in self._images]

    def commands(self) -> list[str]:
        loops = f"{DIRECT} $DIR/disk0.img: {self._count} of these"
        return [loops, *(LAYER_WORDS[layer] for layer in self._layers), *super().commands()[1:]]

    def _array(self) -> str:
        """The MD device that holds the first drive, or nothing."""
        found = [name for name in guard.holders(self._loops[0]) if name.startswith("md")]
        return f"/dev/{found[0]}" if found else ""

    def _members(self) -> list[str]:
        """The devices below the uppermost layer."""
        return [self._array()] if "md" in self._layers else self._loops

    def _top(self) -> str:
        """The device that is mounted."""
        return f"/dev/mapper/{self._name}-lab" if "dm" in self._layers else self._members()[0]

    def _attach(self) -> None:
        self._attach_loops()
        # udev assembles arrays of its own accord on some machines.
        if "md" in self._layers and not self._array():
            self._owner.run("mdadm", "--assemble", "--run", f"/dev/md/{self._name}", *self._loops)
        if "dm" in self._layers:
            self._lvm("vgchange", "--activate", "y", self._name)
        if "btrfs" in self._layers:
            self._owner.run("btrfs", "device", "scan", *self._loops)
        self.device = self._top()

    def _detach(self) -> None:
        if "dm" in self._layers:
            self._lvm("vgchange", "--activate", "n", self._name)
        if "md" in self._layers:
            self._owner.run("mdadm", "--stop", self._array())
        if "btrfs" in self._layers:
            self._owner.run("btrfs", "device", "scan", "--forget", *self._loops)
        for loop in self._loops:
            guard.detach(loop)

    def _make_file_system(self) -> None:
        if "btrfs" not in self._layers:
            super()._make_file_system()
            return
        self._owner.run("mkfs.btrfs", "-q", "-f", "-m", "raid6", *self._make, *self._loops)

    def _lvm(self, command: str, *words: str) -> None:
        self._owner.run("lvm", command, "--config", LVM_CONFIG, "--devices",
                        ",".join(self._members()), *words)

    def _wait_for_sync(self) -> None:
        """Waits until the array has its parity, as in 2015: its making is no part of a step."""
        action = Path(f"/sys/class/block/{Path(self._array()).name}/md/sync_action")
        end = time.monotonic() + SYNC_S
        while action.read_text("utf-8").strip() != "idle":
            if time.monotonic() > end:
                raise LabError(f"{self._owner.name}: the array is not in sync after {SYNC_S:.0f} s")
            time.sleep(0.5)


class ArrayStack(KernelStack):
    """ext4, XFS or Btrfs on drives that a layer below joins."""

    settings = ("mkfs", "mount", "drives")

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        kind, _, below = spec.kind.partition("-")
        self.tools = (f"mkfs.{kind}", "losetup", "mount", "umount",
                      *(tool for layer in LAYERS[below] for tool in TOOLS[layer]))
        self.file_systems = (kind,)

    def make_disk(self) -> Disk:
        kind, _, below = self.spec.kind.partition("-")
        text = self.spec.settings.get("drives", str(DRIVES[below]))
        if not text.isdecimal() or not DRIVES_MIN[below] <= int(text) <= DRIVES_MAX:
            raise LabError(f"--set {self.name}.drives={text}: {self.spec.kind} takes "
                           f"{DRIVES_MIN[below]} to {DRIVES_MAX}")
        return ArrayDisk(self, kind, below, int(text), self.make_words(kind))

    def missing_parts(self) -> list[str]:
        layers = LAYERS[self.spec.kind.partition("-")[2]]
        found = []
        if "md" in layers and not _has_raid6() and not trust.has_module("raid456"):
            found.append("MD with RAID 6: neither /proc/mdstat nor the module raid456 has it")
        if "dm" in layers and not _has_device_mapper() and not trust.has_module("dm_mod"):
            found.append("device mapper: neither /proc/misc nor the module dm_mod has it")
        return found


def _has_raid6() -> bool:
    try:
        return "[raid6]" in Path("/proc/mdstat").read_text("utf-8")
    except OSError:
        return False


def _has_device_mapper() -> bool:
    lines = Path("/proc/misc").read_text("utf-8").splitlines()
    return any(line.split()[-1] == "device-mapper" for line in lines)
