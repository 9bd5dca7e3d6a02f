"""Runs on real loop devices, with real git-annex."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from weald_lab import guard, life, measure, record
from weald_lab.cli import main
from weald_lab.plan import Plan, parse_specs, problems
from weald_lab.runner import STATE, Runner, State

LIFE = ["make_testX_repo", "du -scm testX", "tar -cf testX.tar testX", "pigz testX.tar",
        "git clone testX testX.clone", "git annex get .", "git annex drop .",
        "du -scm testX.clone", "git annex unlock .", "du -scm testX (unlocked)",
        "git annex lock .", "chmod +w -R testX/.git/annex/objects", "rm -rf testX",
        "rm -rf testX.clone", "tar -xzf testX.tar.gz"]
READ = ["walk", "read all", "grep"]
WAIT_S = 120.0


def weald() -> str:
    """The program under test: of $WEALD, or of PATH."""
    found = shutil.which(os.environ.get("WEALD", "weald"))
    assert found, "set WEALD to the program weald"
    return found


def lab(*words: str | Path) -> Result:
    return CliRunner().invoke(main, [str(w) for w in words])


def started(*words: str | Path) -> subprocess.Popen[str]:
    """Starts weald-lab as a process of its own, which can be interrupted."""
    return subprocess.Popen(
        [sys.executable, "-c", "from weald_lab.cli import main; main()", *map(str, words)],
        stderr=subprocess.PIPE, text=True, start_new_session=True)


def wait_for(condition: object, what: str) -> None:
    end = time.monotonic() + WAIT_S
    assert callable(condition)
    while not condition():
        assert time.monotonic() < end, f"never: {what}"
        time.sleep(0.02)


def steps_of(rows: list[record.Row], stack: str) -> list[str]:
    return list(dict.fromkeys(r["step"] for r in rows if r.get("stack") == stack))


def nothing_left(work: Path) -> bool:
    return not guard.mounts_below(work) and not guard.loops_below(work)


@pytest.fixture
def neighbour(tmp_path: Path) -> Iterator[Path]:
    """A mounted loop device of somebody else, beside the run's work directory."""
    folder = tmp_path / "neighbour"
    (folder / "mnt").mkdir(parents=True)
    with (folder / "disk").open("xb") as handle:
        handle.truncate(32 << 20)
    subprocess.run(["mkfs.ext4", "-q", folder / "disk"], check=True)
    subprocess.run(["mount", "-o", "loop", folder / "disk", folder / "mnt"], check=True)
    (folder / "mnt/file").write_text("mine", "utf-8")
    yield folder / "mnt"
    assert (folder / "mnt/file").read_text("utf-8") == "mine"
    subprocess.run(["umount", folder / "mnt"], check=True)


def test_all_stacks(tmp_path: Path, neighbour: Path) -> None:
    writable = ["ext4", "xfs", "btrfs", "tmpfs", "directory", "weald-volume", "passthrough"]
    images = ["weald-image", "squashfs", "erofs"]
    out = tmp_path / "out"
    result = lab("run", "--on", ",".join(writable + images), "--shape", "2x5", "--rounds", "2",
                 "--seed", "3", "--out", out, "--weald", weald(),
                 "--set", "btrfs.mount=compress=zstd")
    assert result.exit_code == 0, result.output
    assert "round 2/2: " in result.output
    assert " left" in result.output
    rows = record.read(out / record.FILE_NAME)
    assert rows[0]["git_annex"].startswith("git-annex version: ")
    for stack in writable:
        assert [s for s in steps_of(rows, stack) if s not in READ] == LIFE, stack
        assert set(READ) <= set(steps_of(rows, stack))
    for stack in images:
        assert steps_of(rows, stack)[:5] == ["pack", "mount", *READ], stack
        assert "extract" in steps_of(rows, stack)
    count: dict[str, set[int]] = defaultdict(set)
    for row in rows[1:]:
        if row["step"] == "walk":
            count["walk"].add(row["entries"])
        assert row["status"] == "ok"
        assert row["cpu_s"] > 0
        assert set(row["pressure"]) == {"cpu", "io", "memory"}
    # Names of git's objects share folders by chance, hence a few more or fewer entries.
    assert max(count["walk"]) - min(count["walk"]) <= 30
    order = [[r["stack"] for r in rows[1:] if r["round"] == at] for at in range(2)]
    assert list(dict.fromkeys(order[0])) != list(dict.fromkeys(order[1]))
    made = [r for r in rows if r.get("step") == "make_testX_repo"]
    served = [r["server_cpu_s"] for r in made if r["stack"] in ("weald-volume", "passthrough")]
    assert len(served) == 4 and min(served) > 0
    assert all(r["written_bytes"] > 0 for r in rows if (r.get("stack"), r.get("step"))
               == ("ext4", "make_testX_repo"))
    cold = sum(r["read_bytes"] for r in rows if r.get("stack") == "ext4"
               and r["step"] == "walk" and r["temperature"] == "cold")
    warm = sum(r["read_bytes"] for r in rows if r.get("stack") == "ext4"
               and r["step"] == "walk" and r["temperature"] == "warm")
    assert cold > 0 == warm
    # The peak of `du` is that of `du`: the tests' own process has more than 100 MB.
    peaks = [r["peak_memory_bytes"] for r in rows if r.get("step") == "du -scm testX"]
    assert 1 << 20 < max(peaks) < 40 << 20
    assert not (out / "work").exists()
    assert nothing_left(out)


def test_archives_stay_so_that_file_systems_age(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    stacks = tmp_path / "stacks.toml"
    stacks.write_text(f"""[[stack]]
name = "mine"
create = "echo create >> {seen}; truncate -s 256M disk; mkfs.ext4 -q disk"
mount = "mount -o loop disk $MNT"
unmount = "ls $MNT >> {seen}; umount $MNT"
destroy = "echo destroy >> {seen}"
""", "utf-8")
    result = lab("run", "--stack-file", stacks, "--shape", "1x2", "--rounds", "2", "--out",
                 tmp_path / "out")
    assert result.exit_code == 0, result.output
    said = seen.read_text("utf-8").split()
    assert said[0] == "create"
    assert said[-4:] == ["lost+found", "test0.tar.gz", "test1.tar.gz", "destroy"]


def test_a_command_that_ctrl_c_ended_ends_the_run(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.toml"
    stacks.write_text("""[[stack]]
name = "mine"
mount = "kill -INT $$"
unmount = ":"
""", "utf-8")
    result = lab("run", "--stack-file", stacks, "--shape", "1x2", "--rounds", "2", "--out",
                 tmp_path / "out")
    assert result.exit_code == 130, result.output


def test_interrupt_cleans_up_and_resume_goes_on(tmp_path: Path, neighbour: Path) -> None:
    out = tmp_path / "out"
    file = out / record.FILE_NAME
    with started("run", "--on", "ext4,weald-volume", "--shape", "1x5", "--rounds", "2",
                 "--out", out, "--weald", weald()) as process:
        wait_for(lambda: file.exists() and file.read_text("utf-8").count('"round": 1') > 3,
                 "the second round")
        os.killpg(process.pid, signal.SIGINT)
        _, said = process.communicate(timeout=WAIT_S)
    assert process.returncode == 130, said
    assert f"weald-lab resume {out} goes on" in said
    assert "Traceback" not in said
    assert nothing_left(out)
    with file.open("a", encoding="utf-8") as handle:
        handle.write('{"type": "repetition", "stack": "ex')  # as a power cut leaves it
    result = lab("resume", out)
    assert result.exit_code == 0, result.output
    assert nothing_left(out)
    rows = record.read(file)
    for stack in ("ext4", "weald-volume"):
        for step in LIFE:
            cold = [r["round"] for r in rows[1:] if (r["stack"], r["step"], r["temperature"])
                    == (stack, step, "cold")]
            assert sorted(cold) == [0, 1], (stack, step)
    assert lab("resume", out).exit_code == 0  # nothing left to do
    assert len(record.read(file)) == len(rows)


def test_kill_leaves_no_mount_behind(tmp_path: Path, neighbour: Path) -> None:
    out = tmp_path / "out"
    file = out / record.FILE_NAME
    with started("run", "--on", "xfs", "--shape", "2x20", "--rounds", "1", "--out", out) as process:
        wait_for(lambda: file.exists() and file.read_text("utf-8").count("\n") > 2, "a step")
        wait_for(lambda: guard.mounts_below(out), "a mount")
        os.kill(process.pid, signal.SIGKILL)
        wait_for(lambda: nothing_left(out), "everything unmounted")
    result = lab("resume", out)
    assert result.exit_code == 0, result.output
    assert steps_of(record.read(file), "xfs")[-1] == LIFE[-1]


def test_failed_steps_are_recorded_and_not_fatal(tmp_path: Path) -> None:
    stacks = tmp_path / "stacks.toml"
    stacks.write_text("""[[stack]]
name = "tiny"
create = "truncate -s 1M disk; mkfs.ext4 -q disk"
mount = "mount -o loop disk $MNT"
unmount = "umount $MNT"
""", "utf-8")
    result = lab("run", "--stack-file", stacks, "--on", "tmpfs", "--shape", "1x30", "--rounds",
                 "1", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    rows = record.read(tmp_path / "out" / record.FILE_NAME)
    first = next(r for r in rows[1:] if r["stack"] == "tiny")
    assert first["status"] == "failed"
    assert "No space left on device" in first["error"]
    assert steps_of(rows, "tiny")[-1] == LIFE[-1]
    assert all(r["status"] == "ok" for r in rows[1:] if r["stack"] == "tmpfs")


def test_a_stack_that_cannot_be_mounted_leaves_the_others_alone(tmp_path: Path) -> None:
    result = lab("run", "--on", "bad=ext4,tmpfs", "--set", "bad.mount=no_such_option", "--shape",
                 "1x2", "--rounds", "2", "--out", tmp_path / "out")
    assert result.exit_code == 1, result.output
    assert "bad: mount failed" in result.output
    rows = record.read(tmp_path / "out" / record.FILE_NAME)
    assert [r["step"] for r in rows[1:] if r["stack"] == "bad"] == ["mount"]
    assert {r["round"] for r in rows[1:] if r["stack"] == "tmpfs"} == {0, 1}
    assert nothing_left(tmp_path)


def test_a_device_must_be_confirmed_and_free(tmp_path: Path) -> None:
    with (tmp_path / "disk").open("xb") as handle:
        handle.truncate(256 << 20)
    device = subprocess.run(["losetup", "--find", "--show", tmp_path / "disk"], check=True,
                            capture_output=True, text=True).stdout.strip()
    words = ["run", "--on", "ext4", "--shape", "1x2", "--rounds", "1", "--device", device]
    try:
        result = lab(*words, "--out", tmp_path / "a")
        assert result.exit_code == 2
        assert f"to confirm, say --confirm-device {device}" in result.output
        confirmed = [*words, "--confirm-device", device]
        subprocess.run(["mkfs.ext4", "-q", device], check=True)
        (tmp_path / "mnt").mkdir()
        subprocess.run(["mount", device, tmp_path / "mnt"], check=True)
        result = lab(*confirmed, "--out", tmp_path / "b")
        subprocess.run(["umount", tmp_path / "mnt"], check=True)
        assert result.exit_code == 2
        assert f"{device}: is mounted on {tmp_path / 'mnt'}" in result.output
        result = lab(*confirmed, "--out", tmp_path / "c")
        assert result.exit_code == 0, result.output
        attached = subprocess.run(["losetup", "--list", device], capture_output=True, check=True)
        assert device.encode() in attached.stdout
    finally:
        subprocess.run(["losetup", "--detach", device], check=True)


def test_problems_come_before_anything_is_made(tmp_path: Path) -> None:
    small = tmp_path / "small"
    small.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=8m", "none", small], check=True)
    try:
        result = lab("run", "--on", "ext4,weald-volume", "--shape", "small", "--out",
                     tmp_path / "out", "--work", small / "work", "--weald", "/no/such/weald")
        assert result.exit_code == 2
        assert "nothing was made" in result.output
        assert "weald-volume: missing: /no/such/weald" in result.output
        assert "MiB free" in result.output
        assert not (tmp_path / "out").exists()
        assert not any(small.iterdir())
    finally:
        subprocess.run(["umount", small], check=True)


def test_without_root_only_a_directory() -> None:
    plan = Plan([vars(s) for s in parse_specs("xfs,directory", (), None)], "1x2", 1, 1,
                "/tmp/weald-lab-test/work")
    os.seteuid(65534)
    try:
        found = problems(plan, Path("/tmp/weald-lab-test"))
    finally:
        os.seteuid(0)
    assert any("not root: xfs must be mounted" in text for text in found)


@pytest.mark.parametrize(("words", "message"), [
    (["--on", "ext5"], "unknown kind 'ext5'"),
    (["--on", "ext4,ext4"], "named twice"),
    (["--on", "../x=ext4"], "no slash"),
    (["--on", "ext4", "--set", "ext4.speed=1"], "no setting 'speed'"),
    (["--on", "ext4", "--set", "xfs.mkfs=1"], "a NAME of --on"),
    (["--on", "ext4", "--shape", "3by4"], "expected small, big or DIRSxFILES"),
    (["--on", "xfs", "--shape", "1x1", "--size", "20"], "xfs needs 300 MiB"),
    ([], "no stack"),
])
def test_bad_words_are_said(tmp_path: Path, words: list[str], message: str) -> None:
    result = lab("run", *words, "--out", tmp_path / "out")
    assert result.exit_code == 2
    assert message in result.output
    assert not (tmp_path / "out").exists()


def test_until_stops_when_intervals_are_narrow(tmp_path: Path) -> None:
    result = lab("run", "--on", "tmpfs", "--shape", "1x1", "--rounds", "30", "--until", "100000",
                 "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "6 rounds are complete" in result.output
    rows = record.read(tmp_path / "out" / record.FILE_NAME)
    assert max(r["round"] for r in rows[1:]) == 5


def test_time_stops_after_the_round_that_fits(tmp_path: Path) -> None:
    result = lab("run", "--on", "tmpfs", "--shape", "1x1", "--rounds", "999", "--time", "1s",
                 "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "the time given is over" in result.output
    rows = record.read(tmp_path / "out" / record.FILE_NAME)
    assert {r["step"] for r in rows[1:] if r["round"] == 0} >= set(LIFE)


def test_a_step_that_hangs_is_ended(tmp_path: Path) -> None:
    plan = Plan([vars(s) for s in parse_specs("directory", (), None)], "1x1", 1, 1,
                str(tmp_path / "work"), step_timeout_s=0.5)
    runner = Runner(plan, tmp_path / "out", lambda _text: None)
    guard.make(tmp_path / "work")
    row = runner._measured(life.Step("hang", ("sh", "-c", "sleep 1000 & wait"), tmp_path / "work"),
                           runner.stacks["directory"].probe())
    assert (row["status"], row["exit"]) == ("failed", -signal.SIGKILL)


def test_a_command_that_is_missing_has_failed(tmp_path: Path) -> None:
    guard.make(tmp_path / "work")
    command = measure.Command(("/no/such/command",), tmp_path, dict(os.environ), 60.0)
    row = measure.run(command, measure.Probe(), tmp_path / "work")
    assert row["status"] == "failed"
    assert "No such file or directory" in row["error"]


def test_the_work_directory_of_others_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "work").mkdir()
    (tmp_path / "work/file").write_text("mine", "utf-8")
    result = lab("run", "--on", "tmpfs", "--shape", "1x1", "--out", tmp_path / "out", "--work",
                 tmp_path / "work")
    assert result.exit_code == 2
    assert "must be a new one" in result.output
    with pytest.raises(OSError, match="not made by weald-lab"):
        guard.remove(tmp_path / "work")
    assert guard.clean(tmp_path / "work") == []
    assert (tmp_path / "work/file").exists()


def test_the_state_holds_what_resume_needs_and_the_header_no_paths(tmp_path: Path) -> None:
    result = lab("run", "--on", "t=tmpfs", "--shape", "1x1", "--rounds", "1", "--seed", "9",
                 "--out", tmp_path / "out")
    assert result.exit_code == 0, result.output
    text = (tmp_path / "out" / record.FILE_NAME).read_text("utf-8")
    assert str(tmp_path) not in text
    assert json.loads(text.split("\n")[0])["settings"]["cold"] == {"t": "none: it lives in memory"}
    plan = Plan(**State(tmp_path / "out" / STATE).plan)
    assert (plan.seed, plan.shape, plan.on[0]["kind"]) == (9, "1x1", "tmpfs")
    assert plan.work == str(tmp_path / "out/work")


def test_dwarfs_by_crates_has_the_steps_without_a_mount(tmp_path: Path) -> None:
    program = tmp_path / "packer"
    program.write_text("""#!/bin/sh
case $1 in
pack) exec tar -cf "$3" -C "$2" . ;;
extract) mkdir "$3" && exec tar -xf "$2" -C "$3" ;;
check) exec tar -tf "$2" ;;
version) echo crates ;;
*) exit 2 ;;
esac
""", "utf-8")
    program.chmod(0o755)
    out = tmp_path / "out"
    result = lab("run", "--on", "dwarfs-crates", "--set", f"dwarfs-crates.program={program}",
                 "--shape", "1x3", "--rounds", "2", "--out", out)
    assert result.exit_code == 0, result.output
    rows = record.read(out / record.FILE_NAME)
    assert steps_of(rows, "dwarfs-crates") == ["pack", "extract", "check"]
    extracted = [r["entries"] for r in rows[1:] if r["step"] == "extract"]
    assert extracted[0] == extracted[1] > 20
    assert rows[0]["tools"]["dwarfs-crates"] == "crates; not mkdwarfs, and no mount"
    assert rows[0]["settings"]["on"][0]["settings"] == {"program": "packer"}
    assert nothing_left(out)
