"""Runs a plan: rounds over stacks in random order, one record, and a way back at any moment."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import random
import shutil
import signal
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import fmean
from typing import IO, Any

import numpy as np

from weald_lab import devices, guard, judge, life, measure, record, stats, trust
from weald_lab.images import ImageStack
from weald_lab.plan import GIT_CONFIG, Plan, header
from weald_lab.record import LabError, Row
from weald_lab.stacks import Stack

STATE = "state.json"
Tell = Callable[[str], None]


class Interrupted(Exception):
    """SIGINT or SIGTERM arrived. Everything is unmounted; `resume` goes on."""


class State:
    """Finished work, beside the record; written whole, so that a kill never tears it."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.done: set[tuple[int, str]] = set()
        self.created: set[str] = set()
        self.broken: dict[str, str] = {}
        self.spent_s = 0.0
        self.plan: dict[str, Any] = {}
        if path.exists():
            try:
                found = record.parse_json(path.read_text("utf-8"))
                self.done = {(r, s) for r, s in found["done"]}
                self.created, self.broken = set(found["created"]), found["broken"]
                self.spent_s, self.plan = found["spent_s"], found["plan"]
            except (ValueError, KeyError, TypeError) as error:
                raise LabError(f"{path}: not the state of a run: {error!r}") from error

    def save(self) -> None:
        """Replaces the file."""
        text = json.dumps({"done": sorted(self.done), "created": sorted(self.created),
                           "broken": self.broken, "spent_s": self.spent_s,
                           "plan": self.plan})
        fresh = self._path.with_suffix(".new")
        fresh.write_text(text + "\n", "utf-8")
        os.replace(fresh, self._path)


class Runner:
    """One run. `start` begins it, `resume` continues it; both end with a clean machine."""

    def __init__(self, plan: Plan, out: Path, tell: Tell) -> None:
        self.plan, self.out, self._tell = plan, out, tell
        self.work = Path(plan.work)
        self.shape = life.parse_shape(plan.shape)
        self.stacks = {stack.name: stack for stack in plan.stacks()}
        self.state = State(out / STATE)
        self.failed_count = 0
        self._took: dict[str, list[float]] = defaultdict(list)
        self._file: IO[str] | None = None

    def start(self) -> None:
        """Makes the directories and the record, and runs."""
        if not self.out.exists():
            trust.make(self.out)
        _own(self.out)
        self.plan.cold = {name: stack.cold_method for name, stack in self.stacks.items()}
        self.plan.commands = {name: stack.commands() for name, stack in self.stacks.items()}
        self.state.plan = self.plan.dump()
        self.state.save()
        record.write(self.out / record.FILE_NAME, [header(self.plan)])
        with _locked(self.out):
            self._run()

    def resume(self, confirmed_device: str | None = None) -> None:
        """Continues: rounds that were not finished are dropped from the record and run again."""
        with _locked(self.out):
            if self.work.exists():
                self._own_work()
            left = guard.clean(self.work)
            if left:
                raise LabError("; ".join(left))
            if self.plan.device:
                self._refuse_device(self.plan.device, confirmed_device)
            self._drop_unfinished()
            self._run()

    def _refuse_device(self, device: str, confirmed: str | None) -> None:
        """Fails if the run must not go on with its device: in use, another one, not confirmed."""
        if len(self.state.done) == len(self.stacks) * self.plan.rounds:
            return
        made = bool(self.state.created) and self.work.exists()
        found = devices.problems(device) or devices.changes(
            device, self.plan.device_identity, self.plan.device_uuid, made)
        if found:
            raise LabError("nothing was touched:\n  " + "\n  ".join(found))
        if not made and confirmed != device:
            raise LabError(f"{device} will be overwritten, for this run has no file system there "
                           f"yet: to confirm, say --confirm-device {device}")

    def _drop_unfinished(self) -> None:
        kept = []
        for row in record.read_torn(self.out / record.FILE_NAME):
            if row["type"] == "run" or (row["round"], row["stack"]) in self.state.done:
                kept.append(row)
        fresh = self.out / (record.FILE_NAME + ".new")
        record.write(fresh, kept)
        os.replace(fresh, self.out / record.FILE_NAME)

    def _run(self) -> None:
        with _signals():
            if not self.work.exists():
                if not self.work.parent.exists():
                    trust.make(self.work.parent)
                guard.make(self.work)
                self.state.created.clear()
                self.state.save()
            self._own_work()
            (self.work / "home").mkdir(exist_ok=True)
            (self.work / "tmp").mkdir(exist_ok=True)
            (self.work / "home/.gitconfig").write_text(GIT_CONFIG, "utf-8")
            guardian = guard.Guardian(self.work)
            try:
                with (self.out / record.FILE_NAME).open("a", encoding="utf-8") as self._file:
                    self._rounds()
                self._end()
            except KeyboardInterrupt:
                raise Interrupted from None
            finally:
                with _deaf():
                    left = guard.clean(self.work)
                    self.state.save()
                    guardian.dismiss()
                for text in left:
                    self._tell(text)

    def _own_work(self) -> None:
        """Nobody else may exchange what a run removes, and the settings of git that it reads."""
        _own(self.work)
        if not guard.is_made(self.work):
            raise LabError(f"{self.work}: not made by weald-lab run: it is left alone")

    def _end(self) -> None:
        for stack in self.stacks.values():
            if stack.name in self.state.created and stack.home.is_dir():
                stack.destroy()
        guard.remove(self.work)

    def _rounds(self) -> None:
        start = time.monotonic() - self.state.spent_s
        for line in self._needed():
            self._tell(line)
        source = self._source()
        for index in range(self.plan.rounds):
            names = [n for n in self._order(index) if n not in self.state.broken]
            todo = [n for n in names if (index, n) not in self.state.done]
            if todo and not self._has_time(index, time.monotonic() - start, todo):
                self._tell(f"the time given is over: {index} rounds are complete")
                return
            for place, name in enumerate(names):
                if name not in todo:
                    continue
                began = time.monotonic()
                left = self._left_s(index, names[place:], began - start)
                self._tell(f"round {index + 1}/{self.plan.rounds}: {name}"
                           + (f"; about {_clock(left)} left" if left is not None else ""))
                self._round(self.stacks[name], index, place, source)
                self._took[name].append(time.monotonic() - began)
                self.state.spent_s = time.monotonic() - start
                self.state.save()
            if index == 0 and todo:
                self._tell(self._fitting(time.monotonic() - start))
            if self.plan.until and self._is_narrow(self.plan.until):
                self._tell(f"all intervals are within {self.plan.until:g} %: "
                           f"{index + 1} rounds are complete")
                return

    def _counts(self) -> tuple[int, int]:
        """Returns how many comparisons there are at all cold steps of the largest table: of every
        two stacks, and of each with a baseline."""
        images = sum(stack.is_image for stack in self.stacks.values())
        count = max(images, len(self.stacks) - images)
        every = life.life_steps(Path("/"), self.shape, 0, self.plan.seed, False)
        steps = sum(step.family == "life" for step in every)
        return count * (count - 1) // 2 * steps, (count - 1) * steps

    def _needed(self) -> list[str]:
        """Says before the run what its rounds can tell."""
        pairs, planned = self._counts()
        if not pairs:
            return []
        time_s = self.plan.time_s
        given = f"at most {self.plan.rounds} rounds" + (f" in {_clock(time_s)}" if time_s else "")
        least, planned_least = stats.rounds_needed(pairs), stats.rounds_needed(planned)
        said = [f"{given}; at a single step, stacks can be told apart from a baseline by "
                f"{planned_least} rounds, every two stacks by {least}; how many fit is said after "
                "the first round"]
        if self.plan.rounds < planned_least:
            said.append(f"--rounds {self.plan.rounds} is too few to tell any two stacks apart at a "
                        "single step, whatever they do")
        return said

    def _fitting(self, spent_s: float) -> str:
        """Says after the first round how many fit, and what that many can tell."""
        round_s = self._round_s(list(self.stacks))
        fitting = self.plan.rounds
        if self.plan.time_s is not None and round_s > 0:
            fitting = min(fitting, 1 + int((self.plan.time_s - spent_s) / round_s))
        pairs, planned = self._counts()
        if not pairs:
            return f"a round takes {_clock(round_s)}: {fitting} rounds"
        can = ("every two stacks" if fitting >= stats.rounds_needed(pairs) else
               "stacks from a baseline, but not every two," if fitting
               >= stats.rounds_needed(planned) else "no two stacks")
        return (f"a round takes {_clock(round_s)}: {fitting} rounds fit, which can tell {can} "
                "apart at a single step")

    def _order(self, index: int) -> list[str]:
        """The order of the stacks in a round, from the recorded seed."""
        names = sorted(self.stacks)
        random.Random(f"{self.plan.seed}:{index}").shuffle(names)
        return names

    def _round_s(self, names: list[str]) -> float:
        known = [fmean(times) for times in self._took.values() if times]
        return sum(fmean(self._took[n]) if self._took[n] else fmean(known) for n in names) \
            if known else 0.0

    def _has_time(self, index: int, spent_s: float, todo: list[str]) -> bool:
        return index == 0 or self.plan.time_s is None \
            or spent_s + self._round_s(todo) <= self.plan.time_s

    def _left_s(self, index: int, names: list[str], spent_s: float) -> float | None:
        if not any(self._took.values()):
            return None
        later = (self.plan.rounds - index - 1) * self._round_s(list(self.stacks))
        left = self._round_s(names) + later
        return left if self.plan.time_s is None else min(left, max(0.0,
                                                                   self.plan.time_s - spent_s))

    def _source(self) -> Path | None:
        """Makes the repository that images pack, once a run; the seed makes it the same again."""
        if not any(stack.is_image for stack in self.stacks.values()):
            return None
        source, ready = self.work / "source", self.work / "source.ready"
        if not ready.exists():
            shutil.rmtree(source, ignore_errors=True)
            self._tell("making the tree that images pack")
            step = life.life_steps(self.work, self.shape, 0, self.plan.seed, False)[0]
            words = tuple("source" if word == "test0" else word for word in step.words)
            row = self._measured(life.Step(step.name, words, self.work), measure.Probe())
            if row["status"] != "ok":
                raise LabError(f"the tree that images pack could not be made: {row['error']}")
            ready.touch()
        for folder, _, files in os.walk(source):
            for name in files:
                path = Path(folder, name)
                if not path.is_symlink():
                    path.read_bytes()
        return source

    def _round(self, stack: Stack, index: int, place: int, source: Path | None) -> None:
        base = {"type": "repetition", "stack": stack.name, "shape": self.plan.shape,
                "series": self.out.resolve().name, "round": index, "order": place}
        at = "create"
        try:
            if stack.name not in self.state.created or stack.spec.kind == "tmpfs":
                guard.remove_home(stack.home, self.work)
                stack.create()
                self.state.created.add(stack.name)
                self.state.save()
            at = "mount"
            stack.mount()
            self._clear(stack, index)
            if isinstance(stack, ImageStack):
                assert source
                steps = life.image_steps(stack, source)
            else:
                steps = life.life_steps(stack.mount_point, self.shape, index, self.plan.seed,
                                        self.plan.annex_test)
            for step in steps:
                at = f"cold mount before {step.name}"
                stack.cold()
                self._step(stack, step, base)
            at = "unmount"
            self._clear(stack, index)
            stack.unmount()
        except (LabError, OSError) as error:
            self._broken(stack, base, at, str(error))
        self.state.done.add((index, stack.name))

    def _broken(self, stack: Stack, base: Row, at: str, text: str) -> None:
        """A stack that cannot be mounted is left out of later rounds; the record says why."""
        self._tell(f"{stack.name}: {at} failed: {text}; it is left out from now on")
        self.state.broken[stack.name] = text
        self._write({**base, "step": at, "temperature": "cold", "status": "failed",
                     "error": text[-measure.ERROR_LEN_MAX:]})
        self.failed_count += 1
        guard.clean_below(self.work, stack.home)

    def _clear(self, stack: Stack, index: int) -> None:
        """Removes what a round left. Its archive stays, so that file systems age."""
        trees = life.left_by_round(stack.mount_point, index)
        if isinstance(stack, ImageStack):
            stack.unmount_image()
            trees = [stack.lower / "extracted"]
            stack.image.unlink(missing_ok=True)
        for tree in trees:
            if tree.is_dir():
                for folder, _, _ in os.walk(tree):
                    os.chmod(folder, 0o755)
                shutil.rmtree(tree)

    def _step(self, stack: Stack, step: life.Step, base: Row) -> None:
        rows = [self._measured(step, stack.probe()) | {"temperature": "cold"}]
        if step.repeat and rows[0]["status"] == "ok":
            rows.append(self._measured(step, stack.probe()) | {"temperature": "warm"})
        count = {}
        if step.counted and step.counted.is_dir():
            count = {"entries": measure.entries(step.counted)}
        for row in rows:
            self._write({**base, "step": step.name, "family": step.family, **row, **count})
            if row["status"] != "ok":
                self.failed_count += 1
                self._tell(f"{stack.name}: {step.name}: failed, exit {row['exit']}; the record "
                           "has its output")

    def _measured(self, step: life.Step, probe: measure.Probe) -> dict[str, Any]:
        directory = step.directory if step.directory.is_dir() else self.work
        if directory != step.directory:
            return {"status": "failed", "exit": 127,
                    "error": f"{step.directory}: is missing: an earlier step has failed"}
        environment = self.plan.place().environment
        return measure.run(measure.Command(step.words, directory, environment,
                                           self.plan.step_timeout_s), probe, self.work)

    def _write(self, row: Row) -> None:
        assert self._file
        self._file.write(json.dumps(row, sort_keys=True) + "\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _is_narrow(self, percent: float) -> bool:
        rows = record.read_torn(self.out / record.FILE_NAME)
        groups: dict[tuple[str, str], list[float]] = defaultdict(list)
        for row in rows:
            if row["type"] == "repetition" and row["status"] == "ok" \
                    and row["temperature"] == "cold":
                groups[row["stack"], row["step"]].append(row["wall_s"])
        rng = np.random.default_rng(judge.SEED)
        for values in groups.values():
            if len(values) < stats.INTERVAL_COUNT_MIN:
                return False
            walls = np.array(values)
            low, high = stats.interval(np.median(stats.resample(walls, rng, 500), axis=1))
            if (high - low) / 2 > float(np.median(walls)) * percent / 100:
                return False
        return bool(groups)


def _clock(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60} h {minutes % 60} min" if minutes >= 60 else \
        f"{minutes} min" if minutes else f"{seconds:.0f} s"


def _own(folder: Path) -> None:
    told = trust.fault(folder)
    if told:
        raise LabError(told)


@contextlib.contextmanager
def _locked(out: Path) -> Iterator[None]:
    with (out / STATE).with_suffix(".lock").open("w") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            raise LabError(f"{out}: another weald-lab runs there") from error
        yield


@contextlib.contextmanager
def _signals() -> Iterator[None]:
    """SIGTERM and SIGHUP act like Ctrl-C."""
    def interrupt(_number: int, _frame: object) -> None:
        raise KeyboardInterrupt
    before = {n: signal.signal(n, interrupt) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _deaf() -> Iterator[None]:
    """A second Ctrl-C does not stop the cleaning."""
    numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
    before = {n: signal.signal(n, signal.SIG_IGN) for n in numbers}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
