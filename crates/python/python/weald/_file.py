"""Open files of images."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING, Any, NoReturn, Optional

if TYPE_CHECKING:
    from ._image import Image, Path

# Bytes that ``peek`` looks ahead, so that lines are not read byte by byte.
_PEEK_LEN = 8192


class File(io.RawIOBase):
    """A regular file of an image, open for reading in bytes.

    It has no buffer: ``io.BufferedReader`` adds one, and ``io.TextIOWrapper`` around that reads
    text. Several threads can share one if none of them relies on the position; ``pread`` does not
    use it.
    """

    def __init__(self, image: Image, path: Path) -> None:
        super().__init__()
        encoded = os.fsencode(path)
        opened = image._opened()
        node = opened.locate(encoded, True)
        opened.check_readable(node, encoded)
        self._image = image
        self._path = encoded
        self._node = node
        self._position = 0

    @property
    def name(self) -> str:
        """The path in the image."""
        return os.fsdecode(self._path)

    @property
    def mode(self) -> str:
        return "rb"

    @property
    def size(self) -> int:
        """Bytes of the file."""
        return self._node.size

    def pread(self, length: int, offset: int) -> bytes:
        """Bytes from ``offset`` on; fewer than ``length`` only at the end of the file."""
        self._check_open()
        if length < 0 or offset < 0:
            raise ValueError("length and offset cannot be negative")
        # The numbers of entries are those of the digest by which a forked process opens the image.
        return self._image._opened().read(self._node, offset, length)

    def read(self, size: Optional[int] = -1, /) -> bytes:
        if size is None or size < 0:
            size = max(self.size - self._position, 0)
        data = self.pread(size, self._position)
        self._position += len(data)
        return data

    def readall(self) -> bytes:
        return self.read()

    def readinto(self, buffer: Any, /) -> int:
        with memoryview(buffer) as view, view.cast("B") as target:
            data = self.pread(len(target), self._position)
            target[: len(data)] = data
        self._position += len(data)
        return len(data)

    def peek(self, size: int = 0, /) -> bytes:
        """The next bytes; the position stays."""
        return self.pread(max(size, _PEEK_LEN), self._position)

    def write(self, _data: Any, /) -> NoReturn:
        raise io.UnsupportedOperation("an image cannot be changed")

    def seek(self, offset: int, whence: int = os.SEEK_SET, /) -> int:
        self._check_open()
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}.get(whence)
        if base is None:
            raise ValueError(f"invalid whence: {whence}")
        if base + offset < 0:
            raise ValueError(f"negative position: {base + offset}")
        self._position = base + offset
        return self._position

    def tell(self) -> int:
        self._check_open()
        return self._position

    def readable(self) -> bool:
        self._check_open()
        return True

    def seekable(self) -> bool:
        self._check_open()
        return True

    def _check_open(self) -> None:
        if self.closed:
            raise ValueError("I/O operation on closed file")

    def __reduce__(self) -> tuple[Any, ...]:
        self._check_open()
        return _reopen, (self._image, self._path, self._position)

    def __repr__(self) -> str:
        return f"<weald.File {self.name!r}>"


def _reopen(image: Image, path: bytes, position: int) -> File:
    file = File(image, path)
    file.seek(position)
    return file
