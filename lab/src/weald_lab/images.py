"""Stacks of read-only images: packed from a tree, mounted, read, extracted and checked."""

from __future__ import annotations

from pathlib import Path

from weald_lab import guard
from weald_lab.measure import Probe
from weald_lab.stacks import LowerStack, Place, Spec

Words = tuple[str, ...]


class ImageStack(LowerStack):
    """An image on ext4 on a loop device. Subclasses give the commands, which are the steps."""

    is_image = True
    settings: Words = ("pack",)
    mounts = True
    binaries: Words = ()

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.tools = ("mkfs.ext4", "losetup", "mount", "umount", *self.binaries)
        self.image = self.lower / "image"
        self._is_mounted = False

    def pack_words(self, source: Path) -> Words:
        """The command that packs a tree."""
        raise NotImplementedError

    def mount_words(self) -> Words:
        """The command that mounts the image."""
        raise NotImplementedError

    def extract_words(self, target: Path) -> Words:
        """The command that extracts all files into a directory that does not exist."""
        raise NotImplementedError

    def check_words(self) -> Words | None:
        """The command that checks the image; None if the format has none."""
        return None

    def mount(self) -> None:
        self._disk.mount()

    def unmount_image(self) -> None:
        """Unmounts the image if it is mounted."""
        if self.mount_point.is_mount():
            guard.unmount(self.mount_point)

    def unmount(self) -> None:
        self.unmount_image()
        self._disk.unmount()

    def cold(self) -> None:
        was_mounted = self.mount_point.is_mount()
        self.unmount()
        self.mount()
        if was_mounted:
            self.run(*self.mount_words())

    def commands(self) -> list[str]:
        words = [self.pack_words(self.place.work / "source")]
        words += [self.mount_words()] if self.mounts else []
        return [*super().commands(), *(self.shown(*line) for line in words)]

    def probe(self) -> Probe:
        return Probe(self.mount_point, [self._disk.device])


class WealdImageStack(ImageStack):
    """An image of Weald."""

    file_systems = ("ext4", "fuse")

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.tools = (*self.tools, place.weald)

    def pack_words(self, source: Path) -> Words:
        return (self.place.weald, "build", *self.spec.words("pack"), str(source), str(self.image))

    def mount_words(self) -> Words:
        return (self.place.weald, "mount", "--isolated", str(self.image), str(self.mount_point))

    def unmount_image(self) -> None:
        if self.mount_point.is_mount():
            self.run(self.place.weald, "umount", self.mount_point)

    def extract_words(self, target: Path) -> Words:
        return (self.place.weald, "extract", str(self.image), str(target))

    def check_words(self) -> Words:
        return (self.place.weald, "check", str(self.image))


class KernelImageStack(ImageStack):
    """An image that the kernel mounts through a loop device."""

    def mount_words(self) -> Words:
        return ("mount", "-t", self.spec.kind, "-o", "loop,ro", str(self.image),
                str(self.mount_point))

    def probe(self) -> Probe:
        return Probe(block_devices=[self._disk.device])


class SquashfsStack(KernelImageStack):
    """SquashFS, by squashfs-tools."""

    file_systems = ("ext4", "squashfs")
    binaries = ("mksquashfs", "unsquashfs")

    def pack_words(self, source: Path) -> Words:
        words = self.spec.words("pack") or ["-comp", "zstd"]
        return ("mksquashfs", str(source), str(self.image), "-noappend", "-quiet", "-no-progress",
                *words)

    def extract_words(self, target: Path) -> Words:
        return ("unsquashfs", "-quiet", "-no-progress", "-dest", str(target), str(self.image))


class ErofsStack(KernelImageStack):
    """EROFS, by erofs-utils."""

    file_systems = ("ext4", "erofs")
    binaries = ("mkfs.erofs", "fsck.erofs")

    def pack_words(self, source: Path) -> Words:
        words = self.spec.words("pack") or ["-zlz4hc"]
        return ("mkfs.erofs", "--quiet", *words, str(self.image), str(source))

    def extract_words(self, target: Path) -> Words:
        return ("fsck.erofs", f"--extract={target}", str(self.image))

    def check_words(self) -> Words:
        return ("fsck.erofs", "--extract", str(self.image))


class DwarfsStack(ImageStack):
    """DwarFS, by its own tools."""

    file_systems = ("ext4", "fuse")
    binaries = ("mkdwarfs", "dwarfs", "dwarfsextract", "dwarfsck")

    def pack_words(self, source: Path) -> Words:
        return ("mkdwarfs", "--force", "--no-progress", *self.spec.words("pack"), "-i",
                str(source), "-o", str(self.image))

    def mount_words(self) -> Words:
        return ("dwarfs", str(self.image), str(self.mount_point))

    def extract_words(self, target: Path) -> Words:
        return ("sh", "-ec", 'mkdir "$2" && dwarfsextract -i "$1" -o "$2"', "sh",
                str(self.image), str(target))

    def check_words(self) -> Words:
        return ("dwarfsck", "--check-integrity", str(self.image))


class DwarfsCratesStack(ImageStack):
    """DwarFS by the Rust crates `dwarfs-enc` and `dwarfs`, which cannot mount.

    The setting `program` is the program of Weald's bench/dwarfs-rs. It packs without DwarFS's order
    by similarity, so that its figures are not those of mkdwarfs.
    """

    settings = ("pack", "program")
    mounts = False
    cold_method = "unmount and mount again; by crates, without a mount"

    def __init__(self, spec: Spec, place: Place) -> None:
        super().__init__(spec, place)
        self.program = spec.settings.get("program", "weald-bench-dwarfs")
        self.tools = (*self.tools, self.program)

    def pack_words(self, source: Path) -> Words:
        return (self.program, "pack", str(source), str(self.image), *self.spec.words("pack"))

    def extract_words(self, target: Path) -> Words:
        return (self.program, "extract", str(self.image), str(target))

    def check_words(self) -> Words:
        return (self.program, "check", str(self.image))
