"""Exceptions that Python lacks. The compiled module raises them by their names."""

from __future__ import annotations


class DamagedError(OSError):
    """Bytes of the image differ from their digest or break a rule of the format.

    No damaged byte is ever returned; the rest of the image can still be read.
    """


class NotAnImageError(DamagedError, ValueError):
    """The file does not begin as an image does.

    It has another format, or its beginning is damaged.
    """
