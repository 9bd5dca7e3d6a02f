"""Bad records are refused with file and line; good ones survive a round trip."""

import json
from pathlib import Path

import pytest
from click.testing import CliRunner

from weald_lab.cli import main

HEAD = b'{"type": "run", "version": 1, "source": "test"}\n'
ROW = {"type": "repetition", "stack": "EXT4", "shape": "small", "series": "a", "round": 0,
       "step": "du", "temperature": "cold", "wall_s": 1.5, "status": "ok"}


@pytest.mark.parametrize(("data", "message"), [
    (b"", "the file is empty"),
    (HEAD + b'{"type": "repet', ":2: not a complete JSON value"),
    (HEAD + b'{"type": "repetition"}\n', ":2: $: 'stack' is a required property"),
    (HEAD + b"\xff\n", ":2: byte 0 is not UTF-8"),
    (b'[{"fs": "EXT4"}]\n', ':1: expected an object with "type": "run"'),
    (HEAD + json.dumps({**ROW, "wall_s": float("nan")}).encode(), ":2: not a complete JSON"),
])
def test_bad_record(tmp_path: Path, data: bytes, message: str) -> None:
    path = tmp_path / "bad.jsonl"
    path.write_bytes(data)
    result = CliRunner().invoke(main, ["validate", str(path)])
    assert result.exit_code == 2
    assert message in result.output


def test_import_validates(tmp_path: Path) -> None:
    source = Path(__file__).parent / "data" / "test_fs_protocols.tar.xz"
    out = str(tmp_path / "2015.jsonl")
    assert CliRunner().invoke(main, ["import", source.as_posix(), "--out", out]).exit_code == 0
    result = CliRunner().invoke(main, ["validate", out])
    assert result.exit_code == 0, result.output
