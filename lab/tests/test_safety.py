"""What a run of root must not do: run the code of others, enter directories that are theirs."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from test_run import lab, nothing_left, wait_for

from weald_lab import devices, guard, record, trust
from weald_lab.plan import Plan
from weald_lab.record import LabError
from weald_lab.runner import STATE, State
from weald_lab.stacks import RESERVED, DirectoryStack, Spec

OTHER = 65534
ROOT = Path(__file__).parents[2]
SHORT = ("--on", "d=directory", "--shape", "1x1", "--rounds", "1")


def of_other(path: Path, mode: int = 0o755) -> Path:
    """Makes a directory of another user."""
    path.mkdir()
    path.chmod(mode)
    os.chown(path, OTHER, OTHER)
    return path


def test_every_call_of_python_leaves_the_working_directory_out() -> None:
    """`-m`, `-c` and `-` put the working directory first; a script's path puts its own there."""
    files = [*(ROOT / "scripts").glob("*.sh"), *(ROOT / "bench").glob("*.sh"), ROOT / "Makefile"]
    seen = 0
    for file in files:
        for line in file.read_text("utf-8").splitlines():
            if line.lstrip().startswith("#"):
                continue
            for call in re.findall(r"(?:python3|bin/python)\"? (-.*)", line):
                if not call.startswith("--version"):
                    seen += 1
                    assert call.startswith(("-I ", "-P ")), (file, line)
    assert seen > 15
    for file in (ROOT / "lab/src").rglob("*.py"):
        for words in re.findall(r"sys\.executable, ([^)\]]*)", file.read_text("utf-8")):
            assert words.startswith('"-I", "-S", '), (file, words)


def test_nothing_of_the_working_directory_runs(tmp_path: Path) -> None:
    here = tmp_path / "here"
    here.mkdir(mode=0o1777)
    proof = tmp_path / "proof"
    for module in ("contextlib", "json", "random", "weald_lab", "shutil", "signal"):
        (here / f"{module}.py").write_text(f"open({str(proof)!r}, 'a').write('{module}')\n")
    for tool in ("git", "losetup", "stat", "pigz", "du", "tar", "umount"):
        (here / tool).write_text(f"#!/bin/sh\necho {tool} >> {proof}\nexit 1\n")
        (here / tool).chmod(0o755)
    done = subprocess.run(
        [sys.executable, "-I", "-c", "from weald_lab.cli import main; main()", "run", *SHORT,
         "--out", tmp_path / "out"], cwd=here, capture_output=True, text=True, check=False,
        env=dict(os.environ) | {"PATH": ".:" + os.environ["PATH"] + ":"})
    assert done.returncode == 0, done.stderr
    assert not proof.exists(), proof.read_text("utf-8")


@pytest.mark.parametrize("where", ["out", "work"])
def test_directories_of_others_are_refused(tmp_path: Path, where: str) -> None:
    theirs = of_other(tmp_path / "theirs")
    (theirs / "sub").mkdir()
    wide = tmp_path / "wide"
    wide.mkdir()
    wide.chmod(0o777)
    link = tmp_path / "link"
    link.symlink_to(tmp_path)
    os.chown(link, OTHER, OTHER, follow_symlinks=False)
    for parent, said in ((theirs, "belongs to user 65534"), (theirs / "sub", "belongs to user"),
                         (wide, "can be written to by others"), (link, "belongs to user 65534")):
        named = tmp_path / "fine" if where == "work" else parent / "new"
        result = lab("run", *SHORT, "--out", named, "--work",
                     parent / "new" if where == "work" else parent / "new/work")
        assert result.exit_code == 2, result.output
        assert "nothing was made" in result.output
        assert said in result.output
        assert not (parent / "new").exists()
        assert not (tmp_path / "fine").exists()


def test_an_empty_directory_must_be_the_callers(tmp_path: Path) -> None:
    for name, mode, uid in (("theirs", 0o700, OTHER), ("wide", 0o777, 0), ("sticky", 0o1777, 0)):
        (tmp_path / name).mkdir()
        (tmp_path / name).chmod(mode)
        os.chown(tmp_path / name, uid, uid)
        assert lab("run", *SHORT, "--out", tmp_path / name).exit_code == 2
        assert not any((tmp_path / name).iterdir())
    (tmp_path / "mine").mkdir()
    assert lab("run", *SHORT, "--out", tmp_path / "mine").exit_code == 0
    # Below a directory with the sticky bit, which `/tmp` is, a new one is good, and closed.
    assert lab("run", *SHORT, "--out", tmp_path / "sticky/new/deep").exit_code == 0
    assert (tmp_path / "sticky/new").stat().st_mode & 0o777 == 0o700
    assert (tmp_path / "sticky/new/deep").stat().st_mode & 0o777 == 0o700


def test_a_directory_that_is_planted_while_it_is_made_is_refused(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sticky = tmp_path / "sticky"
    sticky.mkdir()
    sticky.chmod(0o1777)
    real = os.mkdir

    def planted(path: Path, mode: int = 0o777) -> None:
        real(path, mode)
        if path == sticky / "a":
            os.chown(path, OTHER, OTHER)
    monkeypatch.setattr(os, "mkdir", planted)
    with pytest.raises(PermissionError, match="belongs to user"):
        trust.make(sticky / "a/b")


def test_resume_runs_only_what_is_the_callers(tmp_path: Path) -> None:
    proof = tmp_path / "proof"
    stacks = tmp_path / "stacks.toml"
    stacks.write_text(f'[[stack]]\nname = "s"\nmount = "echo x >> {proof}"\nunmount = "true"\n')
    out = tmp_path / "out"
    result = lab("run", "--stack-file", stacks, "--shape", "1x1", "--rounds", "1", "--out", out)
    assert result.exit_code == 0, result.output
    state = json.loads((out / STATE).read_text("utf-8"))
    (out / STATE).write_text(json.dumps(state | {"done": []}), "utf-8")
    proof.unlink()
    for path, mode, uid in ((out, 0o700, OTHER), (out, 0o777, 0), (out / STATE, 0o644, OTHER),
                            (out / STATE, 0o666, 0), (out / record.FILE_NAME, 0o644, OTHER)):
        before = path.stat()
        path.chmod(mode)
        os.chown(path, uid, uid)
        result = lab("resume", out)
        assert result.exit_code == 2, result.output
        assert "its commands are not run" in result.output
        assert not proof.exists()
        os.chown(path, 0, 0)
        path.chmod(before.st_mode & 0o7777)
    result = lab("resume", out)
    assert result.exit_code == 0, result.output
    assert f"s: mount: echo x >> {proof}" in result.output
    assert proof.exists()


def test_resume_refuses_a_state_that_is_none(tmp_path: Path) -> None:
    for text in ("[" * 200_000, "{}", '{"done": 1}', "null", json.dumps(
            {"done": [], "created": [], "broken": {}, "spent_s": 0, "plan": {"on": 3}})):
        out = tmp_path / "out"
        shutil.rmtree(out, ignore_errors=True)
        out.mkdir()
        (out / STATE).write_text(text, "utf-8")
        (out / record.FILE_NAME).write_text("", "utf-8")
        result = lab("resume", out)
        assert result.exit_code == 2, result.output
        assert "not the state of a run" in result.output
        assert result.exception is None or isinstance(result.exception, SystemExit)


@pytest.fixture
def loop(tmp_path: Path) -> Iterator[str]:
    """A free loop device with an image of 256 MiB; a test may exchange the image."""
    with (tmp_path / "one").open("xb") as handle:
        handle.truncate(256 << 20)
    device = subprocess.run(["losetup", "--find", "--show", tmp_path / "one"], check=True,
                            capture_output=True, text=True).stdout.strip()
    yield device
    subprocess.run(["losetup", "--detach", device], check=False, capture_output=True)


def exchange(device: str, file: Path, label: str) -> None:
    """Gives the name of a device to another disk, with a file system that is dear to somebody."""
    subprocess.run(["losetup", "--detach", device], check=True)
    if not file.exists():
        with file.open("xb") as handle:
            handle.truncate(256 << 20)
    subprocess.run(["losetup", device, file], check=True)
    if label:
        subprocess.run(["mkfs.ext4", "-q", "-L", label, device], check=True)


def label_of(device: str) -> str:
    return subprocess.run(["blkid", "-p", "-s", "LABEL", "-o", "value", device], check=False,
                          capture_output=True, text=True).stdout.strip()


def test_resume_overwrites_no_device_unasked(tmp_path: Path, loop: str) -> None:
    out = tmp_path / "out"
    file = out / record.FILE_NAME
    words = ["run", "--on", "ext4", "--shape", "1x3", "--rounds", "3", "--device", loop,
             "--confirm-device", loop, "--out", str(out)]
    with subprocess.Popen([sys.executable, "-I", "-c", "from weald_lab.cli import main; main()",
                           *words], stderr=subprocess.PIPE, text=True,
                          start_new_session=True) as process:
        wait_for(lambda: file.exists() and file.read_text("utf-8").count('"round": 1') > 1,
                 "the second round")
        os.killpg(process.pid, signal.SIGINT)
        process.communicate(timeout=120)
    assert nothing_left(out)
    uuid = State(out / STATE).plan["device_uuid"]
    assert devices.uuid_of(loop) == uuid
    shutil.copytree(out, tmp_path / "kept")

    # Another disk has the name: refused, with the file system there and without, confirmed or not.
    exchange(loop, tmp_path / "two", "precious")
    for more in ([], ["--confirm-device", loop]):
        result = lab("resume", out, *more)
        assert result.exit_code == 2, result.output
        assert "nothing was touched" in result.output
        shutil.rmtree(out / "work", ignore_errors=True)
    assert label_of(loop) == "precious"

    # The same disk, but somebody has a file system of his own on it.
    exchange(loop, tmp_path / "one", "mine")
    shutil.rmtree(out)
    shutil.copytree(tmp_path / "kept", out)
    result = lab("resume", out)
    assert result.exit_code == 2 and "holds the file system" in result.output, result.output
    shutil.rmtree(out / "work")
    result = lab("resume", out, "--confirm-device", loop)
    assert result.exit_code == 2 and label_of(loop) == "mine", result.output

    # The same disk and file system, but mounted; then the work directory gone, and unconfirmed.
    subprocess.run(["mkfs.ext4", "-q", "-F", "-U", uuid, loop], check=True)
    (tmp_path / "mnt").mkdir()
    subprocess.run(["mount", loop, tmp_path / "mnt"], check=True)
    result = lab("resume", out, "--confirm-device", loop)
    subprocess.run(["umount", tmp_path / "mnt"], check=True)
    assert result.exit_code == 2 and "is mounted on" in result.output, result.output
    result = lab("resume", out)
    assert result.exit_code == 2, result.output
    assert f"to confirm, say --confirm-device {loop}" in result.output
    result = lab("resume", out, "--confirm-device", loop)
    assert result.exit_code == 0, result.output


def test_a_round_mounts_no_other_file_system(tmp_path: Path, loop: str) -> None:
    subprocess.run(["mkfs.ext4", "-q", "-L", "precious", loop], check=True)
    with pytest.raises(LabError, match="another disk has the name now"):
        devices.refuse_if_not_ours(loop, "11111111-2222-3333-4444-555555555555")


@pytest.mark.parametrize("name", ["../../victim", "/etc/victim", "a/b", "", ".", "..", ".running",
                                  "new\nline", "x" * 200, *RESERVED])
def test_names_of_stacks_stay_in_the_work_directory(tmp_path: Path, name: str) -> None:
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "file").write_text("mine", "utf-8")
    with pytest.raises(LabError, match="a name is the name of a directory"):
        Spec(name, "command")
    stacks = tmp_path / "evil.toml"
    stacks.write_text(f'[[stack]]\nname = {json.dumps(name)}\nmount = "true"\nunmount = "true"\n')
    result = lab("run", "--stack-file", stacks, "--shape", "1x1", "--rounds", "1", "--out",
                 tmp_path / "out/deep")
    assert result.exit_code == 2, result.output
    assert not (tmp_path / "out").exists()
    assert (victim / "file").exists()
    plan = Plan([{"name": name, "kind": "command", "settings": {}}], "1x1", 1, 1,
                str(tmp_path / "w"))
    with pytest.raises(LabError, match="a name is the name of a directory"):
        plan.stacks()


def test_only_what_the_run_made_is_removed(tmp_path: Path) -> None:
    plan = Plan([{"name": "d", "kind": "directory", "settings": {"path": str(tmp_path)}}], "1x1",
                1, 1, str(tmp_path / "work"))
    guard.make(tmp_path / "work")
    stack = plan.stacks()[0]
    assert isinstance(stack, DirectoryStack)
    assert stack.home == plan.stacks()[0].home
    stack.home.mkdir()
    (stack.home / "file").write_text("mine", "utf-8")
    for attempt in (stack.create, stack.destroy):
        with pytest.raises(OSError):
            attempt()
    assert (stack.home / "file").exists()
    shutil.rmtree(stack.home)
    stack.home.symlink_to(tmp_path / "work")
    with pytest.raises(FileExistsError):
        stack.create()
    stack.destroy()
    assert (tmp_path / "work" / guard.MARK).exists()
    stack.home.unlink()
    stack.create()
    stack.destroy()
    assert not stack.home.exists()
    with pytest.raises(OSError, match="not made by this run"):
        guard.remove_home(of_other(tmp_path / "theirs"), tmp_path / "work")


def test_a_stack_of_the_file_that_is_named_again(tmp_path: Path) -> None:
    stacks = tmp_path / "f.toml"
    one = '[[stack]]\nname = "ext2"\nmount = "true"\nunmount = "true"\n'
    stacks.write_text(one)
    result = lab("run", "--on", "ext4,ext2=ext4", "--stack-file", stacks, "--out", tmp_path / "o")
    assert result.exit_code == 2
    assert "adds all its stacks by itself: leave it out of --on" in result.output
    stacks.write_text(one + one)
    result = lab("run", "--stack-file", stacks, "--out", tmp_path / "o")
    assert result.exit_code == 2
    assert "is there twice" in result.output


@pytest.mark.parametrize("text", ["[" * 200_000, '{"a":' * 200_000, "[NaN]", '[{"fs": 1}]',
                                  '[{"fs": "a", "times": [{"command": "c", "cold": "x", '
                                  '"warm": 1}]}]', "\x00", '[{"fs": "a", "times": 3}]'])
def test_bad_protocols_are_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "in").mkdir()
    (tmp_path / "in/p.json").write_text(text, "utf-8")
    result = lab("import", tmp_path / "in", "--out", tmp_path / "o")
    assert result.exit_code == 2, result.output
    assert "not a protocol of 2015" in result.output
    assert isinstance(result.exception, SystemExit)


def test_deep_nesting_is_said_wherever_a_file_is_read(tmp_path: Path) -> None:
    (tmp_path / "r.jsonl").write_text("[" * 200_000 + "\n", "utf-8")
    (tmp_path / "s.toml").write_text("stack = " + "[" * 100_000 + "\n", "utf-8")
    calls: list[list[str | Path]] = [["validate", tmp_path / "r.jsonl"],
             ["spent", tmp_path / "r.jsonl"],
             ["compare", tmp_path / "r.jsonl", tmp_path / "r.jsonl"],
             ["report", tmp_path / "r.jsonl", "--csv", tmp_path / "c"],
             ["run", "--stack-file", tmp_path / "s.toml", "--out", tmp_path / "o"]]
    for words in calls:
        result = lab(*words)
        assert result.exit_code == 2, result.output
        assert isinstance(result.exception, SystemExit)
        assert "Traceback" not in result.output
