"""Open images."""

from __future__ import annotations

import os
import posixpath
import stat as stat_bits
from collections.abc import Callable, Iterator
from typing import Any, Dict, List, NamedTuple, Optional, Set, Tuple, Union

from . import _weald
from ._file import File

Path = Union[str, bytes, "os.PathLike[str]", "os.PathLike[bytes]"]


class Generation(NamedTuple):
    """A state of an image that was appended to."""

    number: int
    digest: str
    tree_digest: str
    size: int


class Entry:
    """A name in a directory, with its attributes, as ``os.scandir`` gives them."""

    __slots__ = ("_node", "name", "path")

    def __init__(self, name: str, path: str, node: _weald.Node) -> None:
        self.name = name
        self.path = path
        self._node = node

    def stat(self) -> os.stat_result:
        """The attributes of the entry itself, also if it is a symlink. Reads nothing."""
        return _stat_result(self._node)

    def is_dir(self) -> bool:
        """Whether it is a directory. A symlink to one is none."""
        return stat_bits.S_ISDIR(self._node.mode)

    def is_file(self) -> bool:
        """Whether it is a regular file. A symlink to one is none."""
        return stat_bits.S_ISREG(self._node.mode)

    def is_symlink(self) -> bool:
        """Whether it is a symlink."""
        return stat_bits.S_ISLNK(self._node.mode)

    def __fspath__(self) -> str:
        return self.path

    def __repr__(self) -> str:
        return f"<weald.Entry {self.path!r}>"


class Image:
    """An open image, or a directory of one. ``weald.open`` makes it.

    Paths are relative to the root of the image; a leading slash changes nothing. Symlinks are
    followed inside the image and lead nowhere else. Names that are not UTF-8 are as ``os.fsdecode``
    gives them; for a path in bytes, names come in bytes.

    It is closed when nothing refers to it any more.

    An image can be used by many threads at once. A forked process opens it again by its path, and
    so does one that gets it by pickle: both see the generation that was open, or get
    ``ValueError``.
    """

    def __init__(
        self,
        path: Path,
        *,
        generation: Optional[int] = None,
        digest: Optional[str] = None,
        cache: Optional[int] = None,
    ) -> None:
        # Another process may have another working directory.
        self._name = _absolute(os.fsencode(path))
        self._generation = generation
        self._cache = cache
        opened = _weald.Opened(self._name, generation, digest, cache)
        self._digest = opened.digests[0]
        # Replaced as a whole, so that threads see an image with its process or none.
        self._opened_by: Optional[Tuple[int, _weald.Opened]] = (os.getpid(), opened)

    @property
    def name(self) -> str:
        """What was opened: a file, ``STORE:NAME`` or a URL, as an absolute path."""
        return os.fsdecode(self._name)

    @property
    def digest(self) -> str:
        """The image digest in hexadecimal digits: it authenticates every byte of the image."""
        return self._digest

    @property
    def tree_digest(self) -> str:
        """The digest of names, attributes and contents, however they are stored."""
        return self._opened().digests[1]

    @property
    def generation(self) -> int:
        """The number of the generation that is open, from 1."""
        return self._opened().generation

    def generations(self) -> List[Generation]:
        """The generations that the image has now, the oldest first."""
        return [Generation(*row) for row in _weald.generations(self._name)]

    def list(self, path: Path = "") -> List[Any]:
        """The names in a directory, as ``os.listdir`` gives them, in the order of their bytes."""
        encoded, decode = _paths(path)
        opened = self._opened()
        names = opened.entries(opened.locate(encoded, True), encoded)
        return [decode(name) for name, _ in names]

    def scan(self, path: Path = "") -> List[Entry]:
        """The entries of a directory with their attributes, for which no path is looked up."""
        encoded, _ = _paths(path)
        opened = self._opened()
        return self._entries(opened, opened.locate(encoded, True), os.fsdecode(encoded))

    def stat(self, path: Path = "", *, follow_symlinks: bool = True) -> os.stat_result:
        """The attributes of an entry, as ``os.stat`` gives them.

        Times that the image does not keep are that of the last change of the content.
        """
        return _stat_result(self._opened().locate(os.fsencode(path), follow_symlinks))

    def exists(self, path: Path) -> bool:
        """Whether there is an entry; a symlink that leads nowhere counts as none."""
        try:
            self._opened().locate(os.fsencode(path), True)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def read(self, path: Path, offset: int = 0, length: Optional[int] = None) -> bytes:
        """``length`` bytes of a regular file from ``offset`` on, or all; fewer only at its end."""
        if offset < 0 or (length is not None and length < 0):
            raise ValueError("offset and length cannot be negative")
        encoded = os.fsencode(path)
        opened = self._opened()
        node = opened.locate(encoded, True)
        opened.check_readable(node, encoded)
        return opened.read(node, offset, length)

    def open(self, path: Path) -> File:
        """Opens a regular file for reading in bytes, without a buffer of its own."""
        return File(self, path)

    def readlink(self, path: Path) -> Any:
        """The target of a symlink."""
        encoded, decode = _paths(path)
        opened = self._opened()
        return decode(opened.link_target(opened.locate(encoded, False), encoded))

    def xattrs(self, path: Path = "", *, follow_symlinks: bool = True) -> Dict[str, bytes]:
        """The extended attributes of an entry, which may be none."""
        opened = self._opened()
        node = opened.locate(os.fsencode(path), follow_symlinks)
        return {os.fsdecode(name): value for name, value in opened.xattrs(node)}

    def walk(
        self,
        path: Path = "",
        topdown: bool = True,
        onerror: Optional[Callable[[OSError], object]] = None,
        followlinks: bool = False,
    ) -> Iterator[Tuple[str, List[str], List[str]]]:
        """Walks over a directory as ``os.walk`` does: path, names of directories, other names.

        A symlink to a directory counts as a directory, and is entered only with ``followlinks``.
        """
        # Directories to enter, and what was found in those that come after their contents.
        stack: List[Union[str, Tuple[str, List[str], List[str]]]] = [os.fsdecode(path)]
        while stack:
            top = stack.pop()
            if isinstance(top, tuple):
                yield top
                continue
            try:
                dirs, links, others = self._sorted_names(top)
            except OSError as error:
                if onerror is not None:
                    onerror(error)
                continue
            if topdown:
                yield top, dirs, others
            else:
                stack.append((top, dirs, others))
            # The caller may have changed the list of directories.
            entered = (name for name in reversed(dirs) if followlinks or name not in links)
            stack.extend(_join(top, name) for name in entered)

    def _sorted_names(self, path: str) -> Tuple[List[str], Set[str], List[str]]:
        """Names in a directory: of directories, of symlinks to directories, and of the others."""
        dirs: List[str] = []
        links: Set[str] = set()
        others: List[str] = []
        for entry in self.scan(path):
            if entry.is_symlink() and self._leads_to_directory(entry.path):
                links.add(entry.name)
            is_dir = entry.is_dir() or entry.name in links
            (dirs if is_dir else others).append(entry.name)
        return dirs, links, others

    def _leads_to_directory(self, path: str) -> bool:
        try:
            return stat_bits.S_ISDIR(self.stat(path).st_mode)
        except OSError:
            return False

    def _entries(self, opened: _weald.Opened, node: _weald.Node, path: str) -> List[Entry]:
        found = opened.entries(node, os.fsencode(path))
        names = ((os.fsdecode(name), node) for name, node in found)
        return [Entry(name, _join(path, name), node) for name, node in names]

    def _opened(self) -> _weald.Opened:
        """The image as this process has it open."""
        process = os.getpid()
        opened_by = self._opened_by
        if opened_by is not None and opened_by[0] == process:
            return opened_by[1]
        opened = _weald.Opened(self._name, self._generation, self._digest, self._cache)
        if opened_by is not None:
            # Another thread of the parent may have held its locks when this process was forked.
            opened_by[1].abandon()
        self._opened_by = (process, opened)
        return opened

    def __reduce__(self) -> Tuple[Any, ...]:
        return _reopen, (self._name, self._generation, self._digest, self._cache)

    def __repr__(self) -> str:
        return f"<weald.Image {self.name!r} {self._digest[:12]}>"


def open(
    path: Path,
    *,
    generation: Optional[int] = None,
    digest: Optional[str] = None,
    cache: Optional[int] = None,
) -> Image:
    """Opens an image for reading.

    ``path`` is an image file, ``STORE:NAME`` or a URL; ``IMAGE@2`` names a generation of it and
    ``IMAGE:/DIR`` a directory in it. ``generation`` is that to read, the last one if it is None.
    ``digest`` refuses an image with another image digest. ``cache`` is the limit in bytes of
    decoded data that stays in memory, 256 MiB if it is None.

    Raises ``FileNotFoundError``, ``PermissionError`` or another ``OSError``; ``DamagedError`` for a
    damaged image, and ``NotAnImageError``, which is a ``ValueError`` too, for any other file;
    ``ValueError`` for a generation or a digest that the image does not have.
    """
    return Image(path, generation=generation, digest=digest, cache=cache)


def _reopen(name: bytes, generation: Optional[int], digest: str, cache: Optional[int]) -> Image:
    return Image(name, generation=generation, digest=digest, cache=cache)


def _absolute(name: bytes) -> bytes:
    is_url = b"://" in name
    return name if is_url or name.startswith(b"/") else os.path.join(os.getcwdb(), name)


def _paths(path: Path) -> Tuple[bytes, Callable[[bytes], Union[str, bytes]]]:
    """A path in bytes, and what makes a name from bytes to the type of the path."""
    is_bytes = isinstance(os.fspath(path), bytes)
    return os.fsencode(path), bytes if is_bytes else os.fsdecode


def _join(directory: str, name: str) -> str:
    return posixpath.join(directory, name) if directory else name


def _stat_result(node: _weald.Node) -> os.stat_result:
    mtime, atime, ctime = node.times_ns
    times = (mtime if atime is None else atime, mtime, mtime if ctime is None else ctime)
    visible = (
        node.mode,
        node.ino,
        0,
        node.nlink,
        node.uid,
        node.gid,
        node.size,
        *(time // 10**9 for time in times),
    )
    names = ("atime", "mtime", "ctime")
    more: Dict[str, Any] = {f"st_{name}": time / 10**9 for name, time in zip(names, times)}
    more.update({f"st_{name}_ns": time for name, time in zip(names, times)})
    more["st_blksize"] = 4096
    more["st_blocks"] = -(-node.size // 512)
    more["st_rdev"] = os.makedev(*node.device)
    return os.stat_result(visible, more)
