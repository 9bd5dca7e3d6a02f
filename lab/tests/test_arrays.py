"""Stacks on several drives: what the kernel must have, the order of the commands, a real run."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from weald_lab import arrays, guard, record, trust
from weald_lab.cli import main
from weald_lab.plan import Plan, parse_specs, problems
from weald_lab.record import LabError


def plan_of(on: str, work: Path, *sets: str) -> Plan:
    """A plan for a small shape."""
    return Plan([vars(s) for s in parse_specs(on, sets, None)], "1x2", 1, 1, str(work))


@pytest.mark.parametrize(("kind", "parts"), [
    ("ext4-md", ["MD with RAID 6"]), ("xfs-lvm", ["device mapper"]),
    ("btrfs-lvm-md", ["MD with RAID 6", "device mapper"]), ("btrfs-raid6", []),
])
def test_what_the_kernel_lacks_is_said_before_anything_is_made(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, parts: list[str]) -> None:
    monkeypatch.setattr(trust, "has_module", lambda _module: False)
    for has in (False, True):
        monkeypatch.setattr(arrays, "_has_raid6", lambda has=has: has)
        monkeypatch.setattr(arrays, "_has_device_mapper", lambda has=has: has)
        found = problems(plan_of(f"s={kind}", tmp_path / "work"), tmp_path / "out")
        said = [text for text in found if "this kernel has no" in text]
        assert len(said) == (0 if has else len(parts)), said
        for part, text in zip(parts, said, strict=False):
            assert text.startswith(f"s: this kernel has no {part}: neither /proc/")
    assert not (tmp_path / "work").exists()


def test_arrays_run_where_the_kernel_has_them_and_are_refused_elsewhere(tmp_path: Path) -> None:
    for kind in ("ext4-md", "btrfs-lvm-md", "xfs-lvm", "btrfs-raid6"):
        lacking = problems(plan_of(kind, tmp_path / "work"), tmp_path / "out")
        out = tmp_path / kind
        result = CliRunner().invoke(main, ["run", "--on", kind, "--shape", "1x2", "--rounds", "1",
                                           "--out", str(out)])
        if lacking:
            assert kind != "btrfs-raid6", lacking
            assert result.exit_code == 2, result.output
            assert "nothing was made" in result.output
            assert not out.exists()
            continue
        assert result.exit_code == 0, result.output
        rows = record.read(out / record.FILE_NAME)[1:]
        assert all(row["status"] == "ok" for row in rows)
        assert any(row["written_bytes"] > 0 for row in rows)
        assert not guard.loops_below(out)


def commands_of(monkeypatch: pytest.MonkeyPatch, kind: str, work: Path) -> list[str]:
    """The commands that a stack runs: to make it, mount it and unmount it."""
    said: list[str] = []
    count = iter(range(100))

    def run(_stack: object, *words: str | Path) -> str:
        said.append(" ".join(str(w) for w in words))
        return f"/dev/loop{next(count)}\n" if words[0] == "losetup" else ""

    def holders(_loop: str) -> list[str]:
        made = [text for text in said if text.startswith("mdadm")]
        return [] if not made or "--stop" in made[-1] else ["dm-3", "md7"]

    stack = plan_of(f"s={kind}", work, "s.mount=noatime").stacks()[0]
    monkeypatch.setattr(arrays.ArrayStack, "run", run)
    monkeypatch.setattr(arrays.ArrayDisk, "_wait_for_sync", lambda _disk: said.append("wait"))
    monkeypatch.setattr(guard, "holders", holders)
    monkeypatch.setattr(guard, "detach", lambda loop: said.append(f"detach {loop}"))
    monkeypatch.setattr(guard, "unmount", lambda path: said.append(f"umount {path.name}"))
    stack.create()
    stack.mount()
    stack.unmount()
    mark = next(w for text in said for w in text.split() if "weald_lab_" in w) \
        if "raid6" not in kind else "weald_lab_"
    name = mark[mark.index("weald_lab_"):].partition("-")[0]
    config = f"--config {arrays.LVM_CONFIG} --devices"
    return [text.replace(name, "NAME").replace(config, "CONFIG").replace(f"{work}/s/", "")
            for text in said if not text.startswith("losetup")]


def test_the_commands_are_those_of_2015_and_undone_from_above(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = plan_of("ext4", tmp_path).place().entry_count
    loops = [" ".join(f"/dev/loop{i}" for i in range(first, first + 6)) for first in (0, 6)]
    detached = [[f"detach {loop}" for loop in text.split()] for text in loops]
    assert commands_of(monkeypatch, "ext4-lvm-md", tmp_path) == [
        f"mdadm --create /dev/md/NAME --run --level=6 --raid-devices=6 --homehost=any {loops[0]}",
        "wait",
        "lvm pvcreate CONFIG /dev/md7 -ff --yes /dev/md7",
        "lvm vgcreate CONFIG /dev/md7 NAME /dev/md7",
        "lvm lvcreate CONFIG /dev/md7 --yes --extents 100%FREE --name lab NAME",
        f"mkfs.ext4 -q -F -N {entries} /dev/mapper/NAME-lab",
        "lvm vgchange CONFIG /dev/md7 --activate n NAME", "mdadm --stop /dev/md7", *detached[0],
        f"mdadm --assemble --run /dev/md/NAME {loops[1]}",
        "lvm vgchange CONFIG /dev/md7 --activate y NAME",
        "mount -t ext4 -o noatime /dev/mapper/NAME-lab mnt",
        "umount mnt",
        "lvm vgchange CONFIG /dev/md7 --activate n NAME", "mdadm --stop /dev/md7", *detached[1],
    ]


def test_a_striped_volume_has_a_stripe_on_each_drive(
        tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = commands_of(monkeypatch, "xfs-lvm", tmp_path)
    drives = "/dev/loop0 /dev/loop1 /dev/loop2 /dev/loop3"
    devices = drives.replace(" ", ",")
    assert said[:4] == [
        f"lvm pvcreate CONFIG {devices} -ff --yes {drives}",
        f"lvm vgcreate CONFIG {devices} NAME {drives}",
        f"lvm lvcreate CONFIG {devices} --yes --stripes 4 --extents 100%FREE --name lab NAME",
        "mkfs.xfs -q -f /dev/mapper/NAME-lab",
    ]


def test_drives_must_be_enough(tmp_path: Path) -> None:
    for sets in ("s.drives=3", "s.drives=65", "s.drives=four"):
        with pytest.raises(LabError, match="takes 4 to 64"):
            plan_of("s=ext4-md", tmp_path, sets).stacks()
    with pytest.raises(LabError, match="no setting 'drives'"):
        plan_of("s=ext4", tmp_path, "s.drives=4")


def test_what_lies_on_a_device_is_found_from_above(tmp_path: Path) -> None:
    for below, above in (("loop1", "md7"), ("loop2", "md7"), ("md7", "dm-3"), ("md7", "dm-4")):
        (tmp_path / below / "holders").mkdir(parents=True, exist_ok=True)
        (tmp_path / below / "holders" / above).touch()
    assert guard.holders("/dev/loop1", tmp_path) == ["dm-3", "dm-4", "md7"]
    assert guard.holders("/dev/loop9", tmp_path) == []
