"""A file system for fsspec: ``weald://PATH`` with the storage option ``image``.

    pandas.read_csv("weald://data/table.csv", storage_options={"image": "forest.weald"})

The image may also stand behind the path: ``weald://data/table.csv::/path/forest.weald``.
"""

from __future__ import annotations

import datetime
import io
import os
import stat
from typing import Any, Dict, List, Optional, Tuple

from fsspec import AbstractFileSystem
from fsspec.implementations.local import LocalFileSystem

from ._image import Entry, Image, open

_BUFFER_LEN = 1 << 18
_LOCAL = (None, "file", "local")


class WealdFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """The files of an image, for reading.

    ``image``, ``generation``, ``digest`` and ``cache`` are the arguments of ``weald.open``. fsspec
    itself gives ``fo`` and ``target_protocol`` where the image stands behind the path.
    """

    protocol = "weald"
    root_marker = ""
    # Listings are not kept: the image has them in its cache, which has a limit.
    use_listings_cache = False

    def __init__(
        self,
        image: Any = None,
        generation: Optional[int] = None,
        digest: Optional[str] = None,
        cache: Optional[int] = None,
        fo: Any = None,
        target_protocol: Optional[str] = None,
        target_options: Optional[Dict[str, Any]] = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if (image is None) == (fo is None):
            raise ValueError("name the image once: as the storage option image, or behind '::'")
        if image is None:
            image = LocalFileSystem._strip_protocol(fo) if target_protocol in _LOCAL else fo
        if isinstance(image, Image):
            self.image = image
        else:
            self.image = open(image, generation=generation, digest=digest, cache=cache)

    @classmethod
    def _strip_protocol(cls, path: Any) -> Any:
        if isinstance(path, list):
            return [cls._strip_protocol(one) for one in path]
        return super()._strip_protocol(path).strip("/")

    @property
    def fsid(self) -> str:
        """Names the contents, wherever the image lies."""
        return f"weald-{self.image.digest}"

    def info(self, path: str, **_: Any) -> Dict[str, Any]:
        """The attributes of an entry: of a symlink, those of what it leads to, and its target.

        A symlink that leads nowhere has the type ``other``.
        """
        path = self._strip_protocol(path)
        status = self.image.stat(path, follow_symlinks=False)
        return self._info(path, status, enters_links=True)

    def ls(self, path: str, detail: bool = True, **_: Any) -> List[Any]:
        """The entries of a directory, or the file at the path.

        A symlink to a directory has the type ``link``, so that what goes down a tree ends.
        """
        path = self._strip_protocol(path)
        try:
            entries = [self._info_of(entry) for entry in self.image.scan(path)]
        except NotADirectoryError:
            entries = [self.info(path)]
        return entries if detail else [entry["name"] for entry in entries]

    def _info_of(self, entry: Entry) -> Dict[str, Any]:
        return self._info(entry.path, entry.stat(), enters_links=False)

    def _info(self, path: str, status: os.stat_result, enters_links: bool) -> Dict[str, Any]:
        info: Dict[str, Any] = {"name": path, "islink": stat.S_ISLNK(status.st_mode)}
        if info["islink"]:
            info["destination"] = self.image.readlink(path)
            try:
                status = self.image.stat(path)
            except OSError:
                # It leads nowhere, and stays a symlink.
                pass
        if stat.S_ISDIR(status.st_mode):
            info["type"] = "directory" if enters_links or not info["islink"] else "link"
        elif stat.S_ISREG(status.st_mode):
            info["type"] = "file"
        else:
            info["type"] = "other"
        info["size"] = status.st_size if info["type"] == "file" else 0
        info["mode"] = status.st_mode
        info["uid"], info["gid"] = status.st_uid, status.st_gid
        info["mtime"], info["ino"] = status.st_mtime, status.st_ino
        info["nlink"] = status.st_nlink
        return info

    def exists(self, path: str, **_: Any) -> bool:
        """Whether there is an entry, or a symlink that leads to one."""
        return self.image.exists(self._strip_protocol(path))

    def lexists(self, path: str, **_: Any) -> bool:
        """Whether there is an entry, symlinks that lead nowhere included."""
        try:
            self.image.stat(self._strip_protocol(path), follow_symlinks=False)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isdir(self, path: str) -> bool:
        """Whether the path leads to a directory."""
        return self._has_type(path, stat.S_ISDIR)

    def isfile(self, path: str) -> bool:
        """Whether the path leads to a regular file."""
        return self._has_type(path, stat.S_ISREG)

    def _has_type(self, path: str, is_of_type: Any) -> bool:
        try:
            return bool(is_of_type(self.image.stat(self._strip_protocol(path)).st_mode))
        except OSError:
            return False

    def modified(self, path: str) -> datetime.datetime:
        """When the content was changed last."""
        mtime = self.image.stat(self._strip_protocol(path)).st_mtime
        return datetime.datetime.fromtimestamp(mtime, tz=datetime.timezone.utc)

    def ukey(self, path: str) -> str:
        """Names the content of a file: it never changes."""
        return f"{self.image.digest}-{self.image.stat(self._strip_protocol(path)).st_ino}"

    def checksum(self, path: str) -> int:
        """As ``ukey``, as a number."""
        digest, _, inode = self.ukey(path).partition("-")
        return int(digest[:32], 16) ^ int(inode)

    def cat_file(
        self, path: str, start: Optional[int] = None, end: Optional[int] = None, **_: Any
    ) -> bytes:
        """Bytes from ``start`` to ``end`` of a file; negative ones count from its end."""
        with self.image.open(self._strip_protocol(path)) as file:
            first, last = _range(start, end, file.size)
            return file.pread(last - first, first)

    def cat_ranges(
        self,
        paths: List[str],
        starts: Any,
        ends: Any,
        max_gap: Optional[int] = None,
        on_error: str = "return",
        **_: Any,
    ) -> List[Any]:
        """Ranges of files, each read by itself: none is worth merging with its neighbour."""
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("paths, starts and ends must have the same length")
        ranges: List[Any] = []
        for path, start, end in zip(paths, starts, ends):
            try:
                ranges.append(self.cat_file(path, start, end))
            except Exception as error:
                if on_error != "return":
                    raise
                ranges.append(error)
        return ranges

    def _open(self, path: str, mode: str = "rb", *_: Any, **__: Any) -> io.BufferedReader:
        if mode != "rb":
            raise PermissionError(f"{path}: an image cannot be changed")
        return _Reader(self.image.open(self._strip_protocol(path)), _BUFFER_LEN)


class _Reader(io.BufferedReader):
    """A file with a buffer, and the length that readers of Parquet and others look for."""

    @property
    def size(self) -> int:
        return int(self.raw.size)  # type: ignore[attr-defined]

    def __reduce__(self) -> Tuple[Any, ...]:
        return _reader_at, (self.raw, self.tell())


def _reader_at(raw: Any, position: int) -> _Reader:
    reader = _Reader(raw, _BUFFER_LEN)
    reader.seek(position)
    return reader


def _range(start: Optional[int], end: Optional[int], size: int) -> Tuple[int, int]:
    first, last, _ = slice(start, end).indices(size)
    return first, max(first, last)
