"""The file system for fsspec, and what pandas and pyarrow read by it."""

from __future__ import annotations

import os
import pickle
from pathlib import Path
from typing import Any

import fsspec
import pandas
import pyarrow.dataset
import pyarrow.fs
import pytest
import weald
from conftest import Forest, table
from weald.fs import WealdFileSystem


@pytest.fixture(params=["image", "stored"])
def options(request: pytest.FixtureRequest, forest: Forest) -> dict[str, Any]:
    return {"image": os.fspath(getattr(forest, request.param))}


@pytest.fixture
def fs(options: dict[str, Any]) -> WealdFileSystem:
    return fsspec.filesystem("weald", **options)


def test_the_entry_point_is_registered(fs: WealdFileSystem) -> None:
    assert type(fs) is WealdFileSystem
    assert "weald" in fsspec.available_protocols()


def test_pandas_reads_tables(options: dict[str, Any]) -> None:
    for name in ["table.csv", "table.csv.gz"]:
        read = pandas.read_csv(f"weald://tables/{name}", storage_options=options)
        pandas.testing.assert_frame_equal(read, table())
    read = pandas.read_parquet("weald://tables/table.parquet", storage_options=options)
    pandas.testing.assert_frame_equal(read, table())


def test_pandas_reads_an_image_behind_the_path(forest: Forest) -> None:
    for url in [f"weald://tables/table.csv::{at}" for at in (forest.image, f"file://{forest.image}")]:
        pandas.testing.assert_frame_equal(pandas.read_csv(url), table())


def test_pyarrow_reads_data_sets(fs: WealdFileSystem) -> None:
    parts = pyarrow.dataset.dataset(
        "tables/parts", filesystem=fs, format="parquet", partitioning="hive"
    )
    assert parts.count_rows() == len(table())
    firs = parts.to_table(filter=pyarrow.dataset.field("kind") == "fir").to_pandas()
    wanted = table().query("kind == 'fir'").reset_index(drop=True)
    found = firs.sort_values("number").reset_index(drop=True)
    pandas.testing.assert_frame_equal(found[["number", "height"]], wanted[["number", "height"]])
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    assert arrow.get_file_info("tables/table.csv").size == fs.size("tables/table.csv")
    assert arrow.get_file_info("tables/gone").type == pyarrow.fs.FileType.NotFound
    with arrow.open_input_file("tables/table.csv") as file:
        assert file.read_at(6, 0) == b"number"


# Would catch: a path or an answer that differs from that of fsspec's own file system of the disk.
def test_answers_are_those_of_the_disk(fs: WealdFileSystem, forest: Forest) -> None:
    disk = fsspec.filesystem("file")
    tree = os.fspath(forest.tree)

    def inside(path: str) -> str:
        return os.path.relpath(path, tree)

    for path in ["deep", "deep/er", "tables", "tables/parts"]:
        on_disk = [inside(name) for name in disk.find(f"{tree}/{path}") if "/up" not in name]
        assert [name for name in fs.find(path) if "/up" not in name] == sorted(on_disk)
        assert fs.du(path) == sum(
            disk.size(f"{tree}/{name}") for name in fs.find(path) if fs.isfile(name)
        )
        listed = map(inside, disk.ls(f"{tree}/{path}", detail=False))
        assert sorted(fs.ls(path, detail=False)) == sorted(listed)
    for path in ["one", "deep", "to-file", "to-dir", "to-nothing", "fifo", "gone", "one/below"]:
        for question in ["isfile", "isdir", "exists", "lexists"]:
            wanted = getattr(disk, question)(f"{tree}/{path}")
            assert getattr(fs, question)(path) == wanted, (question, path)
    assert fs.glob("deep/er/00?") == [f"deep/er/00{n}" for n in range(10)]
    assert fs.glob("tables/**/*.parquet") == sorted(
        map(inside, disk.glob(f"{tree}/tables/**/*.parquet"))
    )
    assert fs.info("page")["size"] == 4096 and fs.info("weald://page")["type"] == "file"
    assert fs.info("to-dir")["type"] == "directory" and fs.info("to-dir")["destination"] == "deep"
    assert fs.modified("one") == disk.modified(f"{tree}/one")
    assert fs.ukey("page") == fs.ukey("deep/hard-link") != fs.ukey("one")
    assert fs.info("")["type"] == "directory" and fs.isdir("/") and fs.exists("weald://")


def test_walks_end(fs: WealdFileSystem, forest: Forest) -> None:
    walked = {path for path, _, _ in fs.walk("")}
    assert walked == {path.strip("/") for path, _, _ in weald.open(forest.image).walk()}
    assert "to-dir" in fs.find("") and "to-dir" not in walked


def test_ranges(fs: WealdFileSystem, forest: Forest) -> None:
    long = (forest.tree / "long").read_bytes()
    ends = [(None, None), (5, 9), (-7, None), (None, -7), (9, 5), (0, 1 << 40), (-5, -2)]
    for start, end in ends:
        assert fs.cat_file("long", start, end) == long[start:end]
    assert fs.cat(["one", "page"]) == {
        name: (forest.tree / name).read_bytes() for name in ["one", "page"]
    }
    ranges = fs.cat_ranges(["long", "gone", "long"], [0, 0, 100], [10, 10, 200])
    assert ranges[0] == long[:10] and ranges[2] == long[100:200]
    assert isinstance(ranges[1], FileNotFoundError)
    with pytest.raises(FileNotFoundError):
        fs.cat_ranges(["gone"], 0, 10, on_error="raise")
    assert fs.head("long", 9) == long[:9] and fs.tail("long", 9) == long[-9:]
    assert fs.read_block("long", 100, 50) == long[100:150]


def test_files(fs: WealdFileSystem, forest: Forest, tmp_path: Path) -> None:
    path = forest.tree / "deep" / "words.txt"
    with fs.open("weald://deep/words.txt", "r") as text, open(path) as wanted:
        assert list(text) == list(wanted)
    with fs.open("long") as file:
        file.seek(5000)
        again = pickle.loads(pickle.dumps(file))
        assert again.tell() == 5000 and again.read(9) == file.read(9)
        assert file.size == 5 << 20
    fs.get("deep/er", os.fspath(tmp_path / "er"), recursive=True)
    for name in fs.ls("deep/er", detail=False):
        if fs.isfile(name):
            copy = tmp_path / "er" / os.path.basename(name)
            assert copy.read_bytes() == (forest.tree / name).read_bytes()
    for mode in ["wb", "ab", "xb", "r+b"]:
        with pytest.raises((PermissionError, ValueError, NotImplementedError)):
            fs.open("new", mode)
    with pytest.raises(FileNotFoundError):
        fs.open("gone")
    with pytest.raises(IsADirectoryError):
        fs.open("deep")
    with pytest.raises(FileNotFoundError):
        fs.ls("gone")


def test_file_systems_are_pickled(fs: WealdFileSystem, options: dict[str, Any]) -> None:
    again = pickle.loads(pickle.dumps(fs))
    assert again.cat("one") == fs.cat("one") and again.fsid == fs.fsid
    assert WealdFileSystem.from_json(fs.to_json()).ls("deep") == fs.ls("deep")
    assert fsspec.filesystem("weald", **options) is fs


def test_the_image_is_named_once(forest: Forest) -> None:
    with pytest.raises(ValueError, match="name the image once"):
        fsspec.filesystem("weald")
    with pytest.raises(FileNotFoundError):
        fsspec.filesystem("weald", image=os.fspath(forest.tree / "gone"))
    with pytest.raises(weald.NotAnImageError):
        pandas.read_csv(f"weald://a.csv::{forest.tree}/page")


def test_names_that_are_not_utf8(fs: WealdFileSystem) -> None:
    name = os.fsdecode(b"odd-\xff\xfe/\x80name")
    assert name in fs.find("") and fs.cat(name) == b"no UTF-8"
