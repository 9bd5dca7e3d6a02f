"""Reads the protocols of the DataLad benchmark of 2015 into the record."""

from __future__ import annotations

import re
import tarfile
from pathlib import Path
from typing import IO

from weald_lab.record import LabError, Row, parse_json

NOT_REPEATED_S = -10
# The longest protocol of 2015 has 145 KB.
PROTOCOL_LEN_MAX = 16 << 20


def _sources(path: Path) -> list[tuple[str, bytes]]:
    try:
        if path.is_dir():
            return [(p.name, _read(p.open("rb"), p.name)) for p in sorted(path.glob("*.json"))
                    if p.is_file()]
        found = []
        with tarfile.open(path) as archive:
            for member in archive.getmembers():
                handle = archive.extractfile(member) if member.isfile() else None
                if handle and member.name.endswith(".json"):
                    found.append((Path(member.name).name, _read(handle, member.name)))
        return sorted(found)
    except (OSError, EOFError, tarfile.TarError) as error:
        raise LabError(f"{path}: cannot read the protocols: {error}") from error


def _read(handle: IO[bytes], name: str) -> bytes:
    with handle:
        data = handle.read(PROTOCOL_LEN_MAX + 1)
    if len(data) > PROTOCOL_LEN_MAX:
        raise LabError(f"{name}: longer than {PROTOCOL_LEN_MAX >> 20} MiB: not a protocol of 2015")
    return data


def normal_step(command: str) -> str:
    """Removes `cd DIR; ` and the round's number; keeps blanks, which tell the two `du` apart."""
    command = re.sub(r"^cd [^;]*; *", "", command)
    command = re.sub(r"test\d+", "testX", command)
    command = re.sub(r"^<function (\w+) at 0x[0-9a-f]+>$", r"\1", command)
    return command.replace("make_test_repo", "make_testX_repo").strip()


def _stack(name: str) -> str:
    return re.sub(r"<class '__main__\.(\w+)'>", r"\1", name)


def _rows(name: str, data: bytes) -> list[Row]:
    series = name.removesuffix(".json")
    shape = "big" if name.startswith("simpleannex-big") else "small"
    rows: list[Row] = []
    for index, item in enumerate(parse_json(data.decode("utf-8"))):
        for time in item["times"]:
            for temperature in ("cold", "warm"):
                wall_s = time[temperature]
                if wall_s == NOT_REPEATED_S:
                    continue
                if not isinstance(wall_s, int | float) or wall_s < 0:
                    raise ValueError(f"{wall_s!r} is no time in seconds")
                rows.append({
                    "type": "repetition", "stack": _stack(item["fs"]), "shape": shape,
                    "series": series, "round": index, "step": normal_step(time["command"]),
                    "temperature": temperature, "wall_s": wall_s, "status": "ok",
                })
    return rows


def load(path: Path) -> list[Row]:
    """Returns a record of all protocols in a directory or a tar archive."""
    rows: list[Row] = [{"type": "run", "version": 1, "source": "DataLad test_fs_protocols, 2015"}]
    for name, data in _sources(path):
        try:
            rows += _rows(name, data)
        except (ValueError, KeyError, TypeError) as error:
            raise LabError(f"{path}: {name}: not a protocol of 2015: {error!r}") from error
    if len(rows) == 1:
        raise LabError(f"{path}: no protocol (*.json) found")
    return rows
