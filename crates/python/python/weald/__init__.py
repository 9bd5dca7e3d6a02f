"""Reads file-system images of Weald.

``weald.open`` opens an image, a generation of it, a directory in it, or an image of a store:

    image = weald.open("forest.weald")
    image.list("/")
    image.read("etc/passwd")

``weald.fs`` has a file system for fsspec, so that pandas, pyarrow and others read from images.
"""

from __future__ import annotations

from ._errors import DamagedError, NotAnImageError
from ._file import File
from ._image import Entry, Generation, Image, open

__all__ = [
    "DamagedError",
    "Entry",
    "File",
    "Generation",
    "Image",
    "NotAnImageError",
    "open",
]
