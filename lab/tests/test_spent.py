"""Where the time of a run went, and what fits into a time."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner

from weald_lab import record
from weald_lab.cli import main


def test_time_is_shared_out_and_rounds_are_counted(tmp_path: Path) -> None:
    rows: list[record.Row] = [{"type": "run", "version": 1, "source": "test"}]
    for at in range(2):
        for stack, wall in (("slow", 4.0), ("fast", 1.0)):
            # Two steps with a second between them, in which nothing is measured.
            for index, step in enumerate(("du", "tar")):
                rows.append({"type": "repetition", "stack": stack, "shape": "2x5", "series": "x",
                             "round": at, "step": step, "temperature": "cold", "status": "ok",
                             "started_at": 100.0 * at + index * (wall + 1),
                             "wall_s": wall * (1 + 2 * index), "cpu_s": 1.0})
    record.write(tmp_path / "run.jsonl", rows)
    result = CliRunner().invoke(main, ["spent", str(tmp_path / "run.jsonl"), "--time", "2m"])
    assert result.exit_code == 0, result.output
    assert result.output.splitlines() == [
        "2x5: 10 files",
        "  slow: 17 s a round, 16 s in steps: tar 75 %, du 25 %",
        "  fast: 5 s a round, 4 s in steps: tar 75 %, du 25 %",
        "  all: 22 s a round, 2200 ms a file; 120 s have room for 5 rounds, and for 6 rounds of "
        "9 files",
    ]


def test_protocols_of_2015_have_no_times(tmp_path: Path, protocols: list[record.Row]) -> None:
    record.write(tmp_path / "2015.jsonl", protocols)
    result = CliRunner().invoke(main, ["spent", str(tmp_path / "2015.jsonl")])
    assert result.exit_code == 2
    assert "do not say when" in result.output
