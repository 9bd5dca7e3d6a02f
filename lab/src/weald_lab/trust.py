"""Whose directories a run may use, and the environment of what it runs.

A run as root works with paths: it removes trees, reads a configuration of git, ends the process
that a file names. So nobody but root and the caller may be able to exchange a directory on the way.
A directory that others can write to is good enough only above, with the sticky bit, as `/tmp` is.
"""

from __future__ import annotations

import grp
import os
import pwd
import shutil
import stat
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

LINKS_MAX = 40


def _private_group(found: os.stat_result) -> bool:
    """Tells whether the group of a directory is its owner's own: nobody else is in it."""
    try:
        owner, group = pwd.getpwuid(found.st_uid), grp.getgrgid(found.st_gid)
    except KeyError:
        return False
    return group.gr_name == owner.pw_name and set(group.gr_mem) <= {owner.pw_name}


def _others_write(found: os.stat_result) -> bool:
    group = found.st_mode & stat.S_IWGRP and not _private_group(found)
    return bool(group or found.st_mode & stat.S_IWOTH)


def _fault(path: str, found: os.stat_result, last: bool) -> str | None:
    """Says why an entry on the way is in somebody else's hand."""
    caller = os.geteuid()
    if found.st_uid not in ((caller,) if last else (0, caller)):
        return (f"{path} belongs to user {found.st_uid}, who could exchange what lies there: give "
                "a directory of your own")
    if stat.S_ISLNK(found.st_mode):
        return None
    if not stat.S_ISDIR(found.st_mode):
        return f"{path} is not a directory"
    if _others_write(found) and (last or not found.st_mode & stat.S_ISVTX):
        return (f"{path} can be written to by others (mode {found.st_mode & 0o7777:04o}): give "
                "a directory of your own")
    return None


def fault(path: Path, own: bool = True) -> str | None:
    """Says why a directory, or one above it, is in somebody else's hand; None if it is not.

    What does not exist yet is no fault. `own`: the directory itself must be the caller's and
    closed to the writing of others; otherwise it is judged as those above it are.

    After a good answer the path leads to the same place until root or the caller changes it: each
    directory on it is theirs and closed to others, or has the sticky bit and an entry of theirs.
    """
    todo = list(path.absolute().parts[1:])[::-1]
    at, links = "/", 0
    while True:
        found = os.lstat(at)
        # `at` is a directory here. It is the last one if nothing is left to be walked.
        told = _fault(at, found, last=own and not todo)
        if told or not todo:
            return told
        name = todo.pop()
        if name == "..":
            at = os.path.dirname(at)
            continue
        entry = os.path.join(at, name)
        try:
            found = os.lstat(entry)
        except FileNotFoundError:
            return None
        except OSError as error:
            return f"{entry}: {error.strerror}"
        if stat.S_ISLNK(found.st_mode):
            told = _fault(entry, found, last=False)
            links += 1
            if told or links > LINKS_MAX:
                return told or f"{path}: too many symbolic links"
            target = os.readlink(entry)
            todo += [part for part in Path(target).parts if part != "/"][::-1]
            entry = "/" if target.startswith("/") else at
        at = entry


def make(path: Path) -> None:
    """Makes a directory, and those above it that are missing, which only the caller can enter.

    Raises `PermissionError` if one on the way is in somebody else's hand, and `FileExistsError`
    if the last one is there.
    """
    _refuse(path.parent, own=False)
    missing = [path]
    while not missing[-1].parent.exists():
        missing.append(missing[-1].parent)
    for folder in missing[::-1]:
        os.mkdir(folder, 0o700)
    # Between the look and the making, somebody may have put a directory on the way.
    _refuse(path, own=True)


def _refuse(path: Path, own: bool) -> None:
    told = fault(path, own)
    if told:
        raise PermissionError(told)


def file_fault(path: Path) -> str | None:
    """Says why a file, or a directory above it, is in somebody else's hand."""
    told = fault(path.parent)
    if told:
        return told
    found = os.lstat(path)
    if not stat.S_ISREG(found.st_mode):
        return f"{path} is not a regular file"
    if found.st_uid != os.geteuid() or _others_write(found):
        return f"{path} belongs to user {found.st_uid} or can be written to by others"
    return None


def search_path(path: str | None) -> str:
    """Returns PATH without its relative parts: these run what lies in the working directory."""
    parts = [part for part in (path or os.defpath).split(":") if part.startswith("/")]
    return ":".join([*parts, "/usr/sbin", "/sbin"])


def run(words: Sequence[str | Path],
        environment: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs a tool in the root directory and returns its output."""
    names = environment or {"PATH": search_path(os.environ.get("PATH")), "LC_ALL": "C.UTF-8"}
    return subprocess.run([str(word) for word in words], capture_output=True, text=True,
                          check=False, stdin=subprocess.DEVNULL, cwd="/", env=names)


def has_module(name: str) -> bool:
    """Tells whether a module of the kernel can be loaded."""
    found = shutil.which("modprobe", path=search_path(os.environ.get("PATH")))
    return found is not None and not run([found, "--dry-run", "--quiet", name]).returncode
