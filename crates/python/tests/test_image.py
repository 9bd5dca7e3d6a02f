"""Images beside the trees that they were built from."""

from __future__ import annotations

import io
import os
import shutil
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest
import weald
from conftest import Forest, run_weald


@pytest.fixture(params=["image", "stored"])
def image(request: pytest.FixtureRequest, forest: Forest) -> weald.Image:
    return weald.open(getattr(forest, request.param))


Walked = dict[str, tuple[list[str], list[str]]]


def walked(walk: Iterator[tuple[str, list[str], list[str]]], top: str = "") -> Walked:
    """What a walk found, by the path below ``top``."""
    found = {}
    for path, dirs, others in walk:
        found[path[len(top) :].strip("/")] = sorted(dirs), sorted(others)
    return found


# Would catch: a name, a byte, a type or an attribute that differs from the tree.
def test_the_whole_tree_is_the_same(image: weald.Image, forest: Forest) -> None:
    tree = os.fspath(forest.tree)
    on_disk = walked(os.walk(tree), tree)
    # An absolute target begins at the root of the image.
    on_disk[""][1].remove("to-root")
    on_disk[""][0].append("to-root")
    assert walked(image.walk()) == on_disk
    assert walked(image.walk("/", topdown=False)) == on_disk
    count = 0
    for path, dirs, others in os.walk(tree):
        inside = os.path.relpath(path, tree)
        for name in [*dirs, *others, "."]:
            compare(image, os.path.join(inside, name), os.path.join(path, name))
            count += 1
    assert count > 300


def compare(image: weald.Image, inside: str, path: str) -> None:
    found, wanted = image.stat(inside, follow_symlinks=False), os.lstat(path)
    fields = ["st_mode", "st_uid", "st_gid", "st_mtime_ns", "st_mtime"]
    if not stat.S_ISDIR(wanted.st_mode):
        fields += ["st_size", "st_nlink"]
    for field in fields:
        assert getattr(found, field) == getattr(wanted, field), (path, field)
    if stat.S_ISLNK(wanted.st_mode):
        assert image.readlink(inside) == os.readlink(path)
    elif stat.S_ISDIR(wanted.st_mode):
        assert image.list(inside) == sorted(os.listdir(path), key=os.fsencode)
        assert image.list(os.fsencode(inside)) == sorted(os.listdir(os.fsencode(path)))
    elif stat.S_ISREG(wanted.st_mode):
        assert image.read(inside) == Path(path).read_bytes()
    names = os.listxattr(path, follow_symlinks=False)
    xattrs = {name: os.getxattr(path, name, follow_symlinks=False) for name in names}
    assert image.xattrs(inside, follow_symlinks=False) == xattrs


def test_hard_links_share_a_number(image: weald.Image) -> None:
    one, other = image.stat("page"), image.stat("deep/hard-link")
    assert (one.st_ino, one.st_nlink) == (other.st_ino, 2)


def test_symlinks_are_followed_inside_the_image(image: weald.Image) -> None:
    words = image.read("deep/words.txt")
    for path in ["to-file", "/to-file", "to-dir/words.txt", "to-dir/up/to-file", b"to-file"]:
        assert image.read(path) == words
    assert image.list("to-root") == image.list("deep/er")
    assert image.list("../../to-dir/up") == image.list()
    assert image.exists("to-file") and not image.exists("to-nothing")
    assert not image.exists("one/below")
    followed = [path for path, _, _ in image.walk("to-dir", followlinks=False)]
    assert followed == ["to-dir", "to-dir/er", "to-dir/er/est"]


def test_ranges(image: weald.Image, forest: Forest) -> None:
    long = (forest.tree / "long").read_bytes()
    ends = [0, 1, 4095, 4097, len(long) // 2, len(long) - 1, len(long), len(long) + 9]
    for offset in ends:
        for length in [0, 1, 5000, (1 << 20) + 1, len(long), 1 << 62]:
            assert image.read("long", offset, length) == long[offset : offset + length]
        assert image.read("long", offset) == long[offset:]
    assert image.read("sparse", 1 << 20, 7) == bytes(7)
    with pytest.raises(ValueError, match="negative"):
        image.read("long", -1)


def test_errors_have_the_classes_of_python(image: weald.Image) -> None:
    for call in [image.read, image.list, image.stat, image.open, image.readlink]:
        with pytest.raises(FileNotFoundError, match="no such file"):
            call("deep/gone")
        with pytest.raises(NotADirectoryError):
            call("one/below")
    with pytest.raises(FileNotFoundError):
        image.read("to-nothing")
    with pytest.raises(OSError, match="too many levels"):
        image.read("loop")
    for directory in ["deep", "to-dir", ""]:
        with pytest.raises(IsADirectoryError):
            image.read(directory)
        with pytest.raises(IsADirectoryError):
            image.open(directory)
    with pytest.raises(NotADirectoryError):
        image.list("one")
    with pytest.raises(OSError, match="not a symlink"):
        image.readlink("one")
    with pytest.raises(OSError, match="not a regular file"):
        image.read("fifo")
    errors: list[OSError] = []
    assert list(image.walk("gone", onerror=errors.append)) == []
    assert [type(error) for error in errors] == [FileNotFoundError]


def test_files_behave_as_those_of_python(image: weald.Image, forest: Forest) -> None:
    path = forest.tree / "deep" / "words.txt"
    with image.open("deep/words.txt") as file, io.FileIO(path) as wanted:
        for read in [
            lambda f: f.read(10),
            lambda f: f.tell(),
            lambda f: f.readline(),
            lambda f: f.seek(-7, io.SEEK_END),
            lambda f: f.read(100),
            lambda f: f.read(1),
            lambda f: f.seek(3),
            lambda f: f.seek(5, io.SEEK_CUR),
            lambda f: f.readinto(bytearray(9)),
            lambda f: f.tell(),
            lambda f: f.readall(),
            lambda f: f.seek(1 << 40),
            lambda f: f.read(),
            lambda f: (f.readable(), f.seekable(), f.writable(), f.closed),
        ]:
            assert read(file) == read(wanted)
        with pytest.raises(ValueError, match="negative"):
            file.seek(-1)
        with pytest.raises(io.UnsupportedOperation):
            file.write(b"x")
    assert file.closed
    for call in [file.read, file.tell, lambda: file.seek(0), lambda: file.readinto(bytearray(1))]:
        with pytest.raises(ValueError, match="closed"):
            call()
    with io.TextIOWrapper(io.BufferedReader(image.open("to-file"))) as text:
        assert list(text) == path.read_text().splitlines(keepends=True)
    buffer = bytearray(20)
    assert image.open("one").readinto(memoryview(buffer)[3:]) == 1
    assert list(image.open("deep/words.txt"))[:2] == [b"0: 0 leaves\n", b"1: 1 leaves\n"]


def test_entries_of_a_directory(image: weald.Image) -> None:
    entries = {entry.name: entry for entry in image.scan("/")}
    assert list(entries) == image.list("/")
    assert entries["deep"].is_dir() and entries["one"].is_file()
    assert entries["to-dir"].is_symlink() and not entries["to-dir"].is_dir()
    assert entries["one"].stat() == image.stat("one")
    assert image.read(entries["one"]) == image.read("one")


def test_directories_and_generations_have_names(forest: Forest, tmp_path: Path) -> None:
    tree, path = tmp_path / "tree", tmp_path / "a.weald"
    shutil.copytree(forest.tree / "deep", tree, symlinks=True)
    run_weald("build", tree, path)
    (tree / "new").write_text("second")
    run_weald("build", "--append", tree, path)
    newest = weald.open(path)
    assert newest.generation == 2 and newest.read("new") == b"second"
    first = weald.open(f"{path}@1")
    assert first.generation == 1 and not first.exists("new")
    assert weald.open(path, generation=1).digest == first.digest
    assert weald.open(path, digest=first.digest).generation == 1
    assert weald.open(f"{path}@{first.digest[:9]}").digest == first.digest
    numbers = [(g.number, g.digest) for g in newest.generations()]
    assert numbers == [(1, first.digest), (2, newest.digest)]
    assert newest.generations()[-1].size == path.stat().st_size
    inside = weald.open(f"{path}@1:/er")
    assert inside.list() == first.list("er") and inside.read("/007") == first.read("er/007")
    for wrong in [{"generation": 3}, {"digest": "0" * 64}, {"digest": "short"}]:
        with pytest.raises(ValueError):
            weald.open(path, **wrong)
    with pytest.raises(ValueError, match="leave one out"):
        weald.open(f"{path}@1", generation=1)
    with pytest.raises(NotADirectoryError):
        weald.open(f"{path}:/words.txt")
    with pytest.raises(FileNotFoundError):
        weald.open(f"{path}:/gone")
    assert weald.open(f"{forest.stored}/deep").list() == weald.open(forest.image).list("deep")


def test_what_is_no_image_is_refused(forest: Forest, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        weald.open(tmp_path / "gone")
    with pytest.raises(FileNotFoundError):
        weald.open(f"{forest.store}:gone")
    for content in [b"", b"PK\x03\x04", b"hsqs" * 100, bytes(1 << 20)]:
        path = tmp_path / "foreign"
        path.write_bytes(content)
        with pytest.raises(weald.NotAnImageError) as caught:
            weald.open(path)
        assert isinstance(caught.value, ValueError) and isinstance(caught.value, OSError)
        assert "foreign" in str(caught.value)
    for directory in [tmp_path, forest.store]:
        with pytest.raises(IsADirectoryError):
            weald.open(directory)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_permissions(forest: Forest, tmp_path: Path) -> None:
    path = tmp_path / "secret.weald"
    shutil.copy(forest.image, path)
    path.chmod(0)
    for directory in [path.parent, *path.parents]:
        if not directory.stat().st_mode & 0o001 and directory.stat().st_uid == 0:
            directory.chmod(directory.stat().st_mode | 0o011)
    os.seteuid(65534)
    try:
        with pytest.raises(PermissionError):
            weald.open(path)
    finally:
        os.seteuid(0)
