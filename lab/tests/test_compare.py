"""Steps that became slower between two runs, and the exit status that says so."""

from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner, Result

from weald_lab import record
from weald_lab.cli import main


def write(path: Path, walls: dict[str, float], rounds: int, seed: int, stack: str = "a") -> Path:
    rng = np.random.default_rng(seed)
    rows: list[record.Row] = [{"type": "run", "version": 1, "source": "test"}]
    rows += [{"type": "repetition", "stack": stack, "shape": "small", "series": path.name,
              "round": at, "step": step, "temperature": "cold", "status": "ok",
              "wall_s": float(wall * rng.lognormal(0, 0.05)), "cpu_s": 1.0}
             for at in range(rounds) for step, wall in walls.items()]
    record.write(path, rows)
    return path


def compare(one: Path, two: Path, *words: str) -> Result:
    return CliRunner().invoke(main, ["compare", str(one), str(two), *words])


def test_slower_is_1_and_faster_is_0(tmp_path: Path) -> None:
    one = write(tmp_path / "1", {"du": 1.0, "tar": 1.0, "rm": 1.0}, 12, 1)
    two = write(tmp_path / "2", {"du": 1.5, "tar": 1.0, "rm": 0.5}, 12, 2)
    result = compare(one, two)
    assert result.exit_code == 1
    said = result.output.splitlines()
    assert said[0].startswith("slower ×1.5")
    assert "du  cold" in said[0]
    assert said[1].startswith("faster ×0.5")
    assert said[2] == "3 compared: 1 slower, 1 faster, 1 cannot be told apart by more than 5 %"
    assert compare(two, two).exit_code == 0
    assert compare(one, two, "--threshold", "80").exit_code == 0
    assert compare(one, two, "--value", "cpu_s").exit_code == 0
    assert compare(one, two, "--all").output.splitlines()[2].startswith("same ")


def test_two_rounds_prove_nothing_and_it_says_so(tmp_path: Path) -> None:
    one, two = write(tmp_path / "1", {"du": 1.0}, 2, 1), write(tmp_path / "2", {"du": 9.0}, 2, 2)
    result = compare(one, two)
    assert result.exit_code == 0
    assert "with fewer than 6 in each run no change can be certain" in result.output


@pytest.mark.parametrize("seed", range(10))
def test_noise_is_not_a_change(tmp_path: Path, seed: int) -> None:
    steps = {f"step{i}": 1.0 for i in range(20)}
    one = write(tmp_path / "1", steps, 10, seed)
    two = write(tmp_path / "2", steps, 10, seed + 100)
    assert compare(one, two, "--threshold", "0").exit_code == 0


def test_nothing_in_common_is_2(tmp_path: Path) -> None:
    one = write(tmp_path / "1", {"du": 1.0}, 6, 1)
    two = write(tmp_path / "2", {"du": 1.0}, 6, 1, stack="b")
    result = compare(one, two)
    assert result.exit_code == 2
    assert "no stack and step in common" in result.output
    assert compare(one, tmp_path / "missing").exit_code == 2
