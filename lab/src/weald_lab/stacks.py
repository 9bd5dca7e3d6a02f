"""Stacks: what a data set lives on. Each can create, mount, cool, unmount and destroy itself."""

from __future__ import annotations

import contextlib
import hashlib
import os
import re
import shlex
import signal
import subprocess
import time
import tomllib
from dataclasses import dataclass, field
from pathlib import Path

from weald_lab import devices, guard, trust
from weald_lab.measure import Probe, server_pids
from weald_lab.record import LabError


@dataclass(frozen=True)
class Place:
    """Where a stack may make things, and how large."""

    work: Path
    size_bytes: int
    entry_count: int
    weald: str
    environment: dict[str, str]
    device: Path | None = None
    device_uuid: str = ""


# What a run itself puts into the work directory.
RESERVED = ("home", "tmp", "source", "source.ready")
NAME_LEN_MAX = 100


@dataclass(frozen=True)
class Spec:
    """A stack as the user named it: `NAME` or `NAME=KIND`, with its settings."""

    name: str
    kind: str
    settings: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuses a name that is no name of a directory of its own in the work directory.

        Every source of stacks passes here: the command line, a stack file, the state of a run.
        """
        name = self.name
        if not name or "/" in name or name.startswith(".") or not name.isprintable() \
                or name in RESERVED or len(os.fsencode(name)) > NAME_LEN_MAX:
            raise LabError(
                f"stack {name!r}: a name is the name of a directory, too: no slash, no dot at its "
                f"beginning, at most {NAME_LEN_MAX} bytes, and none of {', '.join(RESERVED)}")

    def words(self, key: str) -> list[str]:
        """Returns the words of a setting."""
        return self.settings.get(key, "").split()


class Stack:
    """Base: names, directories, and commands that must succeed."""

    tools: tuple[str, ...] = ()
    file_systems: tuple[str, ...] = ()
    needs_root = True
    is_image = False
    cold_method = "unmount and mount again"
    settings: tuple[str, ...] = ()

    def __init__(self, spec: Spec, place: Place) -> None:
        self.spec, self.place = spec, place
        self.name = spec.name
        self.home = place.work / spec.name
        self.mount_point = self.home / "mnt"

    def create(self) -> None:
        """Makes the directory of the stack; subclasses add the file system. Once a run."""
        guard.make_home(self.home, self.place.work)
        self.mount_point.mkdir()

    def mount(self) -> None:
        """Mounts it."""

    def unmount(self) -> None:
        """Unmounts it; when it returns, everything is on the device."""

    def cold(self) -> None:
        """Empties caches of this stack and of no other."""
        self.unmount()
        self.mount()

    def destroy(self) -> None:
        """Removes what `create` made, and nothing else."""
        guard.remove_home(self.home, self.place.work)

    def probe(self) -> Probe:
        """Returns what to watch while a step runs."""
        return Probe()

    def commands(self) -> list[str]:
        """Returns the commands that make and mount it, for the record and the page."""
        return []

    def shown(self, *words: str | Path) -> str:
        """Returns a command with MNT, DIR and no other path of this machine in it."""
        text = " ".join(shlex.quote(str(word)) for word in words)
        for path, name in ((self.mount_point, "$MNT"), (self.home, "$DIR"),
                           (self.place.work / "source", "$SOURCE")):
            text = text.replace(str(path), name)
        program = str(words[0])
        return text.replace(program, Path(program).name, 1) if "/" in program else text

    def missing_parts(self) -> list[str]:
        """Returns the parts of the kernel that the stack needs and that are not there."""
        return []

    def run(self, *words: str | Path) -> str:
        """Runs a command that must succeed; returns its output."""
        done = trust.run(words, self.place.environment)
        _pass_interrupt(done.returncode)
        if done.returncode:
            raise LabError(f"{self.name}: {' '.join(map(str, words))}: exit {done.returncode}: "
                           f"{(done.stderr or done.stdout).strip()}")
        return done.stdout


def _pass_interrupt(returncode: int) -> None:
    """Ctrl-C that ended a command ends the run: it is no failure of the command."""
    if returncode == -signal.SIGINT:
        raise KeyboardInterrupt


DIRECT = "losetup --find --show --direct-io=on"


def attach_direct(owner: Stack, image: Path) -> str:
    """Attaches a loop device with direct I/O, whose data stays out of the host's page cache."""
    return owner.run(*DIRECT.split(), image).strip()


def require_direct(owner: Stack, device: str) -> None:
    """Switches a loop device to direct I/O, as those of the other stacks have it."""
    state = Path(f"/sys/block/{Path(device).name}/loop/dio")
    if state.read_text("utf-8").strip() != "1":
        owner.run("losetup", "--direct-io=on", device)
    if state.read_text("utf-8").strip() != "1":
        raise LabError(f"{owner.name}: {device} cannot have direct I/O, which the other stacks "
                       "have: their figures could not be compared")


def drop_pages(folder: Path) -> None:
    """Writes everything out, and empties the page cache of the files below a directory."""
    os.sync()
    for at, _, files in os.walk(folder):
        for name in files:
            try:
                handle = os.open(os.path.join(at, name),
                                 os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
            except OSError:
                continue
            with contextlib.suppress(OSError):
                os.posix_fadvise(handle, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(handle)


class Disk:
    """A kernel file system on a loop device with direct I/O, or on a device of the user."""

    def __init__(self, owner: Stack, kind: str, mount_point: Path, make: list[str],
                 options: str = "") -> None:
        self._owner, self._kind, self._make, self._options = owner, kind, make, options
        self.mount_point = mount_point
        self._image = owner.home / "disk.img"
        self.device = str(owner.place.device or "")

    def create(self) -> None:
        """Makes the file system."""
        self.mount_point.mkdir(exist_ok=True)
        if not self._owner.place.device:
            with self._image.open("xb") as handle:
                os.truncate(handle.fileno(), self._owner.place.size_bytes)
        self._attach()
        self._make_file_system()
        self._detach()

    def drives(self) -> list[str]:
        """Returns the devices whose transfers count."""
        return [self.device]

    def commands(self) -> list[str]:
        """Returns the commands that make and mount it."""
        device = self._owner.place.device
        lines = [] if device else [f"{DIRECT} $DIR/{self._image.name}"]
        return [*lines, " ".join((*self._make_words(), "$DEV")),
                self._owner.shown(*self._mount_words("DEV")).replace("DEV", "$DEV")]

    def _make_words(self) -> list[str]:
        return [f"mkfs.{self._kind}", *MKFS_QUIET[self._kind], *self._make]

    def _mount_words(self, device: str) -> list[str]:
        options = ["-o", self._options] if self._options else []
        return ["mount", "-t", self._kind, *options, device, str(self.mount_point)]

    def _make_file_system(self) -> None:
        """Makes it; on a device of the user with the run's own UUID, by which it is known again."""
        words = self._make_words()
        if self._owner.place.device:
            devices.refuse_if_in_use(self.device)
            option, key = MKFS_UUID[self._kind]
            words += [option, key + self._owner.place.device_uuid]
        self._owner.run(*words, self.device)

    def _attach(self) -> None:
        if self._owner.place.device:
            return
        self.device = attach_direct(self._owner, self._image)

    def _detach(self) -> None:
        if not self._owner.place.device:
            guard.detach(self.device)

    def mount(self) -> None:
        """Attaches and mounts."""
        self._attach()
        if self._owner.place.device:
            devices.refuse_if_not_ours(self.device, self._owner.place.device_uuid)
        self._owner.run(*self._mount_words(self.device))

    def unmount(self) -> None:
        """Unmounts and detaches, so that no page of the device stays in memory."""
        guard.unmount(self.mount_point)
        self._detach()


# Words by which mkfs takes a UUID, which follows the last of them at once.
MKFS_UUID = {"ext4": ("-U", ""), "xfs": ("-m", "uuid="), "btrfs": ("-U", "")}
MKFS_QUIET = {"ext4": ["-q", "-F"], "xfs": ["-q", "-f"], "btrfs": ["-q", "-f"]}


class KernelStack(Stack):
    """ext4, XFS or Btrfs."""

    settings: tuple[str, ...] = ("mkfs", "mount")

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.tools = (f"mkfs.{spec.kind}", "losetup", "mount", "umount")
        self.file_systems = (spec.kind,)
        self._disk = self.make_disk()

    def make_disk(self) -> Disk:
        """Returns the disk below."""
        return Disk(self, self.spec.kind, self.mount_point, self.make_words(self.spec.kind),
                    self.spec.settings.get("mount", ""))

    def make_words(self, kind: str) -> list[str]:
        """Returns the options of mkfs."""
        make = self.spec.words("mkfs")
        if kind == "ext4" and "-N" not in make:
            make += ["-N", str(self.place.entry_count)]
        return make

    def create(self) -> None:
        super().create()
        self._disk.create()

    def mount(self) -> None:
        self._disk.mount()

    def unmount(self) -> None:
        self._disk.unmount()

    def commands(self) -> list[str]:
        return self._disk.commands()

    def probe(self) -> Probe:
        return Probe(block_devices=self._disk.drives())


class TmpfsStack(Stack):
    """Memory: the floor below all others. It has no cold state."""

    tools = ("mount", "umount")
    file_systems = ("tmpfs",)
    settings = ("mount",)
    cold_method = "none: it lives in memory"

    def mount(self) -> None:
        self.run(*self._words())

    def _words(self) -> list[str]:
        options = [f"size={self.place.size_bytes}", self.spec.settings.get("mount", "")]
        return ["mount", "-t", "tmpfs", "-o", ",".join(o for o in options if o), "weald-lab",
                str(self.mount_point)]

    def commands(self) -> list[str]:
        return [self.shown(*self._words())]

    def unmount(self) -> None:
        guard.unmount(self.mount_point)

    def cold(self) -> None:
        return


class DirectoryStack(Stack):
    """A new directory below one that the user names, or in the work directory."""

    needs_root = False
    settings = ("path",)
    cold_method = "sync, and POSIX_FADV_DONTNEED for every file: names and attributes stay warm"

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        if "path" in spec.settings:
            # The same name when a run goes on, in another process.
            mark = hashlib.sha256(os.fsencode(place.work)).hexdigest()[:12]
            self.home = Path(spec.settings["path"]) / f"weald-lab-{mark}-{spec.name}"
            self.mount_point = self.home / "mnt"

    def cold(self) -> None:
        drop_pages(self.mount_point)

    def commands(self) -> list[str]:
        return ["mkdir $MNT"]


class LowerStack(Stack):
    """A stack whose file lies on ext4 on a loop device, so that cold is cold for all alike."""

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.lower = self.home / "lower"
        self._disk = Disk(self, "ext4", self.lower, ["-N", str(place.entry_count)])

    def create(self) -> None:
        super().create()
        self._disk.create()

    def commands(self) -> list[str]:
        return self._disk.commands()

    def probe(self) -> Probe:
        return Probe(block_devices=[self._disk.device])


class WealdVolumeStack(LowerStack):
    """A writable volume of Weald, its store on ext4."""

    file_systems = ("ext4", "fuse")
    settings = ("create", "mount")

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.tools = ("mkfs.ext4", "losetup", "mount", "umount", place.weald)

    def _name(self) -> str:
        return f"{self.lower}/store:lab"

    def create(self) -> None:
        super().create()
        self._disk.mount()
        for words in self._create_words():
            self.run(*words)
        self._disk.unmount()

    def _create_words(self) -> list[list[str]]:
        weald = self.place.weald
        return [[weald, "store", "create", str(self.lower / "store")],
                [weald, "volume", "create", self._name(), *self.spec.words("create")]]

    def _mount_words(self) -> list[str]:
        options = self.spec.settings.get("mount")
        return [self.place.weald, "mount", *(["-o", options] if options else []), self._name(),
                str(self.mount_point)]

    def mount(self) -> None:
        self._disk.mount()
        self.run(*self._mount_words())

    def commands(self) -> list[str]:
        words = [*self._create_words(), self._mount_words()]
        return [*super().commands(), *(self.shown(*line) for line in words)]

    def unmount(self) -> None:
        self.run(self.place.weald, "umount", self.mount_point)
        self._disk.unmount()

    def probe(self) -> Probe:
        return Probe(self.mount_point, [self._disk.device])


class PassthroughStack(LowerStack):
    """A directory of ext4 that a FUSE server passes through: the price of FUSE itself."""

    file_systems = ("ext4", "fuse")
    settings = ("program",)

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.program = spec.settings.get("program", "bindfs")
        self.tools = ("mkfs.ext4", "losetup", "mount", "umount", self.program)

    def create(self) -> None:
        super().create()
        self._disk.mount()
        (self.lower / "data").mkdir()
        self._disk.unmount()

    def mount(self) -> None:
        self._disk.mount()
        self.run(self.program, self.lower / "data", self.mount_point)

    def commands(self) -> list[str]:
        return [*super().commands(),
                self.shown(self.program, self.lower / "data", self.mount_point)]

    def unmount(self) -> None:
        guard.unmount(self.mount_point)
        # The server ends after umount(8) does, and holds the directory until then.
        end = time.monotonic() + guard.BUSY_S
        while server_pids(self.mount_point):
            if time.monotonic() > end:
                raise LabError(f"{self.name}: {self.program} does not end")
            time.sleep(0.01)
        self._disk.unmount()

    def probe(self) -> Probe:
        return Probe(self.mount_point, [self._disk.device])


class CommandStack(Stack):
    """Command lines of the user, with MNT, DIR, SIZE and DEV in their environment.

    DEV is a loop device of SIZE bytes with direct I/O, as the built-in stacks have one; it is made
    if a command names it. Loop devices that the commands make themselves are switched to direct
    I/O, and the pages of files in DIR are dropped for each cold step. So the page cache of the host
    favours nobody.
    """

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self._image = self.home / "device.img"
        self._device = ""
        self._loops: list[str] = []
        self._has_device = any(re.search(r"\$\{?DEV\b", t) for t in spec.settings.values())
        self.cold_method = (
            "unmount and mount again, on $DEV, a loop device with direct I/O" if self._has_device
            else "unmount and mount again; loop devices of its files have direct I/O, the pages "
            "of its files are dropped")
        self.tools = ("losetup",) if self._has_device else ()
        self.place_environment = {
            **place.environment, "MNT": str(self.mount_point), "DIR": str(self.home),
            "SIZE": str(place.size_bytes)}

    def commands(self) -> list[str]:
        settings = self.spec.settings
        return [*([f"{DIRECT} $DIR/{self._image.name}"] if self._has_device else []),
                *(settings[key] for key in ("create", "mount", "unmount") if key in settings)]

    def _attach(self) -> None:
        if self._has_device:
            self._device = attach_direct(self, self._image)

    def _detach(self) -> None:
        if self._device:
            guard.detach(self._device)
        self._device = ""

    def _shell(self, key: str) -> None:
        text = self.spec.settings.get(key, "")
        if not text:
            return
        done = subprocess.run(["sh", "-ec", text], capture_output=True, text=True, check=False,
                              env=self.place_environment | {"DEV": self._device}, cwd=self.home,
                              stdin=subprocess.DEVNULL)
        _pass_interrupt(done.returncode)
        if done.returncode:
            raise LabError(f"{self.name}: {key}: {text}: exit {done.returncode}: "
                           f"{(done.stderr or done.stdout).strip()}")

    def create(self) -> None:
        super().create()
        if self._has_device:
            with self._image.open("xb") as handle:
                os.truncate(handle.fileno(), self.place.size_bytes)
        self._attach()
        self._shell("create")
        self._detach()

    def mount(self) -> None:
        self._attach()
        self._shell("mount")
        self._loops = guard.loops_below(self.home)
        for device in self._loops:
            require_direct(self, device)

    def unmount(self) -> None:
        self._shell("unmount")
        self._detach()
        drop_pages(self.home)

    def destroy(self) -> None:
        self._shell("destroy")
        super().destroy()

    def probe(self) -> Probe:
        return Probe(self.mount_point, self._loops)


def read_stack_file(path: Path) -> list[Spec]:
    """Reads the stacks of a TOML file: `[[stack]]` with name, create, mount, unmount, destroy."""
    try:
        found = tomllib.loads(path.read_text("utf-8")).get("stack", [])
    except (OSError, ValueError, RecursionError) as error:
        raise LabError(f"{path}: cannot read the stacks: {error}") from error
    keys = {"name", "create", "mount", "unmount", "destroy"}
    specs = []
    for item in found:
        if not isinstance(item, dict) or not {"name", "mount", "unmount"} <= set(item) <= keys \
                or not all(isinstance(v, str) for v in item.values()):
            raise LabError(f"{path}: a [[stack]] has the text keys name, mount, unmount and, if "
                           f"needed, create and destroy; found {item!r}")
        specs.append(Spec(item["name"], "command",
                          {k: v for k, v in item.items() if k != "name"}))
    if not specs:
        raise LabError(f"{path}: no [[stack]] found")
    return specs
