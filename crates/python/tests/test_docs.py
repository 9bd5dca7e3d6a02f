"""The examples of `docs/python.md`."""

from __future__ import annotations

import doctest
import os
from pathlib import Path

import pytest
from conftest import run_weald

DOCUMENT = Path(__file__).parents[3] / "docs" / "python.md"


def test_examples(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tree" / "data").mkdir(parents=True)
    (tmp_path / "tree" / "leaf.txt").write_text("one leaf\n")
    (tmp_path / "tree" / "data" / "trees.csv").write_text("height,kind\n12,oak\n9,fir\n")
    os.symlink("leaf.txt", tmp_path / "tree" / "link")
    monkeypatch.chdir(tmp_path)
    run_weald("build", "tree", "forest.weald")
    run_weald("store", "create", "store")
    run_weald("store", "add", "store", "tree", "--name", "forest")
    failed, count = doctest.testfile(
        os.fspath(DOCUMENT), module_relative=False, optionflags=doctest.NORMALIZE_WHITESPACE
    )
    assert failed == 0 and count > 20
