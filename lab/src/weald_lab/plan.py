"""The plan of a run, and what must be there before anything is made."""

from __future__ import annotations

import os
import platform
import shutil
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from weald_lab import arrays, devices, images, life, stacks, trust
from weald_lab.record import LabError, Row
from weald_lab.stacks import Place, Spec, Stack

MIB = 1 << 20
KINDS: dict[str, type[Stack]] = {
    "ext4": stacks.KernelStack, "xfs": stacks.KernelStack, "btrfs": stacks.KernelStack,
    **dict.fromkeys(arrays.KINDS, arrays.ArrayStack),
    "tmpfs": stacks.TmpfsStack, "directory": stacks.DirectoryStack,
    "weald-volume": stacks.WealdVolumeStack, "weald-image": images.WealdImageStack,
    "squashfs": images.SquashfsStack, "erofs": images.ErofsStack, "dwarfs": images.DwarfsStack,
    "dwarfs-crates": images.DwarfsCratesStack,
    "passthrough": stacks.PassthroughStack, "command": stacks.CommandStack,
}
ALWAYS = ("git", "git-annex", "pigz", "tar", "du", "find", "grep", "sh")
# Measured: a file of a repository takes 40 KiB and 20 inodes with its clone, at 4 KiB a block;
# half as much again is reserve. An archive that a round leaves takes 12 KiB a file.
FILE_BYTES, ARCHIVE_BYTES, FILE_ENTRIES = 96 << 10, 16 << 10, 40


@dataclass
class Plan:
    """All that a run needs to know; it is kept beside the record, so that `resume` has it."""

    on: list[dict[str, Any]]
    shape: str
    rounds: int
    seed: int
    work: str
    weald: str = "weald"
    device: str | None = None
    time_s: float | None = None
    until: float | None = None
    step_timeout_s: float = 3600.0
    annex_test: bool = False
    size_mib: int | None = None
    cold: dict[str, str] = field(default_factory=dict)
    commands: dict[str, list[str]] = field(default_factory=dict)
    device_uuid: str = ""
    device_identity: dict[str, Any] = field(default_factory=dict)

    @property
    def size_bytes(self) -> int:
        """Size of each file system."""
        if self.size_mib:
            return self.size_mib * MIB
        shape = life.parse_shape(self.shape)
        extra = 512 * MIB if self.annex_test else 0
        return (512 * MIB + extra + shape.total * FILE_BYTES
                + shape.total * self.rounds * ARCHIVE_BYTES)

    def place(self) -> Place:
        """Where stacks may make things."""
        shape = life.parse_shape(self.shape)
        return Place(Path(self.work), self.size_bytes, 65536 + shape.total * FILE_ENTRIES,
                     self.weald, environment(Path(self.work)),
                     Path(self.device) if self.device else None, self.device_uuid)

    def stacks(self) -> list[Stack]:
        """Returns the stacks."""
        place = self.place()
        return [KINDS[s["kind"]](Spec(**s), place) for s in self.on]

    def own_commands(self) -> list[str]:
        """Returns the commands that the user wrote, and programs given by path, one a line."""
        found = []
        for spec in self.on:
            keys = ("program",) if spec["kind"] != "command" else tuple(spec["settings"])
            found += [f"{spec['name']}: {key}: {spec['settings'][key]}" for key in keys
                      if key in spec["settings"]]
        return found + ([f"weald: {self.weald}"] if "/" in self.weald else [])

    def dump(self) -> dict[str, Any]:
        """Returns all of it, for `resume`."""
        return asdict(self)

    def settings(self) -> dict[str, Any]:
        """Returns the settings for the record's header, without paths of this machine."""
        found = asdict(self) | {"weald": Path(self.weald).name}
        for spec in found["on"]:
            if "program" in spec["settings"]:
                spec["settings"]["program"] = Path(spec["settings"]["program"]).name
        for key in ("work", "device_uuid", "device_identity"):
            del found[key]
        return found


def environment(work: Path) -> dict[str, str]:
    """Returns the environment of all steps: own HOME, one locale, nothing of the user's git."""
    return {
        "PATH": trust.search_path(os.environ.get("PATH")),
        "HOME": str(work / "home"), "LC_ALL": "C.UTF-8", "TZ": "UTC", "GIT_CONFIG_NOSYSTEM": "1",
        "PYTHONDONTWRITEBYTECODE": "1", "TMPDIR": str(work / "tmp"),
        "XDG_RUNTIME_DIR": str(work / "tmp"),
    }


GIT_CONFIG = """[user]
\tname = Weald Lab
\temail = lab@example.invalid
[init]
\tdefaultBranch = main
[gc]
\tauto = 0
\tautoDetach = false
[maintenance]
\tauto = false
[safe]
\tdirectory = *
"""


def parse_specs(on: str, sets: tuple[str, ...], stack_file: Path | None) -> list[Spec]:
    """Reads `--on NAME[=KIND],…`, `--set NAME.KEY=VALUE` and the stack file."""
    specs: dict[str, Spec] = {}
    for spec in stacks.read_stack_file(stack_file) if stack_file else []:
        if spec.name in specs:
            raise LabError(f"{stack_file}: stack {spec.name!r} is there twice")
        specs[spec.name] = spec
    of_file = set(specs)
    for word in filter(None, on.split(",")):
        name, _, kind = word.partition("=")
        kind = kind or name
        if name in of_file:
            raise LabError(f"stack {name!r} is in {stack_file}, which adds all its stacks by "
                           f"itself: leave it out of --on, or give the one of --on a name of its "
                           f"own, {name}-2={kind}")
        if name in specs:
            raise LabError(f"stack {name!r} is named twice: give the second one a name of its "
                           f"own, {name}-2={kind}")
        if kind not in KINDS or kind == "command":
            raise LabError(f"stack {word!r}: unknown kind {kind!r}: expected one of "
                           f"{', '.join(k for k in KINDS if k != 'command')}")
        specs[name] = Spec(name, kind)
    for text in sets:
        target, _, value = text.partition("=")
        name, _, key = target.rpartition(".")
        if name not in specs:
            raise LabError(f"--set {text}: expected NAME.KEY=VALUE with a NAME of --on")
        known = KINDS[specs[name].kind].settings
        if key not in known:
            raise LabError(f"--set {text}: {specs[name].kind} has no setting {key!r}: expected "
                           f"{' or '.join(known) or 'none'}")
        if key == "path" or (key == "program" and "/" in value):
            value = os.path.abspath(value)
        specs[name].settings[key] = value
    if not specs:
        raise LabError("no stack: give --on or --stack-file")
    return list(specs.values())


def problems(plan: Plan, out: Path) -> list[str]:
    """Returns what stands in the way, all of it, before anything is made."""
    found = []
    made = plan.stacks()
    if out.exists() and (not out.is_dir() or any(out.iterdir())):
        found.append(f"{out}: is there already: give a new directory, or use weald-lab resume")
    if os.path.lexists(plan.work):
        found.append(f"{plan.work}: is there already: the work directory must be a new one")
    strange = [trust.fault(out, own=out.exists()), trust.fault(Path(plan.work).parent, own=False)]
    found += dict.fromkeys(text for text in strange if text)
    if os.geteuid() != 0:
        rooted = [s.name for s in made if s.needs_root]
        if rooted:
            found.append(f"not root: {', '.join(rooted)} must be mounted; only 'directory' needs "
                         "no root")
    found += _missing_tools(made)
    found += _missing_file_systems(made)
    found += _space(plan, made)
    if plan.device:
        found += device_problems(plan.device, made)
    for stack in made:
        path = stack.spec.settings.get("path")
        if path and stack.spec.kind == "directory":
            if not Path(path).is_dir():
                found.append(f"{stack.name}: {path} is not a directory")
            elif told := trust.fault(Path(path), own=False):
                found.append(f"{stack.name}: {told}")
    return found


def _missing_tools(made: list[Stack]) -> list[str]:
    path = environment(Path("/"))["PATH"]
    found = [f"{tool} is missing: every stack needs it" for tool in ALWAYS
             if not shutil.which(tool, path=path)]
    for stack in made:
        missing = [t for t in stack.tools if not shutil.which(t, path=path)]
        if missing:
            found.append(f"{stack.name}: missing: {', '.join(missing)}")
    return found


def _missing_file_systems(made: list[Stack]) -> list[str]:
    known = {line.split()[-1] for line in
             Path("/proc/filesystems").read_text("utf-8").splitlines() if line}
    found = []
    for stack in made:
        for name in stack.file_systems:
            if name not in known and not trust.has_module(name):
                found.append(f"{stack.name}: this kernel has no {name}")
        found += [f"{stack.name}: this kernel has no {part}" for part in stack.missing_parts()]
    if any("fuse" in s.file_systems for s in made) and not Path("/dev/fuse").exists():
        found.append("/dev/fuse is missing: FUSE stacks need it")
    if any("losetup" in s.tools for s in made) and not Path("/dev/loop-control").exists():
        found.append("/dev/loop-control is missing: kernel file systems need loop devices")
    return found


def _existing_parent(path: Path) -> Path:
    path = path.absolute()
    while not path.exists():
        path = path.parent
    return path


def _space(plan: Plan, made: list[Stack]) -> list[str]:
    shape = life.parse_shape(plan.shape)
    rounds = min(plan.rounds, 50) if plan.time_s else plan.rounds
    each = shape.total * (FILE_BYTES + rounds * ARCHIVE_BYTES) + 64 * MIB
    files = [s for s in made if s.spec.kind != "tmpfs" and not plan.device]
    # RAID 6 over six drives writes half as much again.
    needed = each * len(files) + sum(each for s in files if s.spec.kind in arrays.KINDS) // 2
    parent = _existing_parent(Path(plan.work))
    free = shutil.disk_usage(parent).free
    found = []
    if needed > free:
        found.append(f"{parent}: {needed // MIB} MiB needed for {len(files)} stacks, "
                     f"{free // MIB} MiB free: take fewer stacks, a smaller shape or another "
                     "--work")
    least = {"xfs": 300, "btrfs": 120}
    for stack in made:
        kind = stack.spec.kind.partition("-")[0]
        if plan.size_bytes < least.get(kind, 0) * MIB:
            found.append(f"{stack.name}: --size {plan.size_bytes // MIB} MiB is too small: "
                         f"{kind} needs {least[kind]} MiB")
    if any(s.spec.kind == "tmpfs" for s in made):
        memory = _memory_free_bytes()
        if each > memory:
            found.append(f"tmpfs: {each // MIB} MiB needed, {memory // MIB} MiB of memory free")
    return found


def _memory_free_bytes() -> int:
    for line in Path("/proc/meminfo").read_text("utf-8").splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return 0


def device_problems(device: str, made: list[Stack]) -> list[str]:
    """Says why a device cannot be overwritten by the stacks of a run."""
    found = devices.problems(device)
    if len(made) != 1 or made[0].spec.kind not in ("ext4", "xfs", "btrfs"):
        found.append(f"{device}: a device holds one file system: give one of ext4, xfs and btrfs")
    return found


def _version(*words: str) -> str:
    try:
        done = trust.run(words, environment(Path("/nonexistent")))
    except OSError:
        return ""
    lines = (done.stdout + done.stderr).strip().splitlines()
    return lines[0] if lines else ""


def header(plan: Plan) -> Row:
    """Returns the record's first line: machine, versions and settings."""
    tools = {"python": platform.python_version(), "pigz": _version("pigz", "--version"),
             "tar": _version("tar", "--version")}
    words = {"ext4": ("mkfs.ext4", "-V"), "xfs": ("mkfs.xfs", "-V"),
             "btrfs": ("mkfs.btrfs", "--version"), "squashfs": ("mksquashfs", "-version"),
             "erofs": ("mkfs.erofs", "--version"), "dwarfs": ("mkdwarfs", "--version"),
             "weald-volume": (plan.weald, "--version"), "weald-image": (plan.weald, "--version")}
    for stack in plan.stacks():
        if isinstance(stack, images.DwarfsCratesStack):
            version = _version(stack.program, "version")
            tools[stack.spec.kind] = f"{version}; not mkdwarfs, and no mount"
        if isinstance(stack, stacks.PassthroughStack):
            tools[stack.spec.kind] = _version(stack.program, "--version")
    for spec in plan.on:
        kind = spec["kind"].partition("-")[0] if spec["kind"] in arrays.KINDS else spec["kind"]
        if kind in words:
            tools[kind] = _version(*words[kind])
    parent = _existing_parent(Path(plan.work))
    host = _version("stat", "--file-system", "--format=%T", str(parent))
    cpu = next((line.partition(": ")[2] for line in
                Path("/proc/cpuinfo").read_text("utf-8").splitlines()
                if line.startswith("model name")), platform.machine())
    memory = next(int(line.split()[1]) for line in
                  Path("/proc/meminfo").read_text("utf-8").splitlines())
    return {
        "type": "run", "version": 1, "source": "weald-lab run", "seed": plan.seed,
        "kernel": platform.release(), "git": _version("git", "--version"),
        "git_annex": _version("git", "annex", "version"), "tools": tools,
        "machine": {"cpu": cpu, "cores": os.cpu_count() or 0, "memory_mib": memory // 1024,
                    "host_file_system": host},
        "settings": plan.settings(),
    }
