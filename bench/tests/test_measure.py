"""Figures from the kernel, by the real program, and what failing commands give."""

import os
import subprocess
import tempfile
import unittest
from pathlib import Path

from weald_bench import measure
from weald_bench.measure import CommandFailed, Meter
from weald_bench.runner import Step, interleave

BENCH = Path(__file__).resolve().parents[1]


class Kernel(unittest.TestCase):
    def setUp(self) -> None:
        place = tempfile.TemporaryDirectory()
        self.addCleanup(place.cleanup)
        self.place = Path(place.name)
        program = self.place / "measure"
        subprocess.run(["cc", "-O2", "-o", program, BENCH / "measure.c"], check=True)
        log = open(self.place / "log", "wb")  # noqa: SIM115
        self.addCleanup(log.close)
        self.meter = Meter(program, log)

    def test_memory_is_that_of_the_command_and_not_of_python(self) -> None:
        small = self.meter.run(["true"]).peak_mib
        own = measure.process_peak_mib(os.getpid())
        self.assertLess(small, own)
        script = "data = bytearray(b'x') * (64 << 20)"
        large = self.meter.run(["python3", "-S", "-c", script]).peak_mib
        self.assertGreater(large, 64)

    def test_processor_time_of_all_processes_of_a_pipeline_counts(self) -> None:
        spin = "import time\nwhile time.process_time() < 0.2: pass"
        script = f"python3 -S -c '{spin}' | python3 -S -c '{spin}'"
        used = self.meter.run(["sh", "-c", script])
        self.assertGreaterEqual(used.cpu_s, 0.4)
        self.assertGreater(used.wall_s, 0)

    def test_bytes_that_reach_storage_are_counted(self) -> None:
        # On a tmpfs, no bytes reach storage.
        target = self.place / "written"
        command = ["dd", "if=/dev/zero", f"of={target}", "bs=1M", "count=2", "conv=fsync"]
        used = self.meter.run(command)
        kind = subprocess.run(
            ["stat", "-f", "-c", "%T", self.place], capture_output=True, text=True, check=True
        ).stdout
        least = 0 if kind.strip() in ("tmpfs", "overlayfs") else 2 << 20
        self.assertGreaterEqual(used.written_bytes, least)

    def test_a_failing_command_has_no_figures(self) -> None:
        for command, status in (
            (["false"], "exit status 1"),
            (["sh", "-c", "kill -9 $$"], "exit status 137"),
            (["/nothing/there"], "exit status 127"),
        ):
            with self.assertRaisesRegex(CommandFailed, status):
                self.meter.run(command)
            with self.assertRaisesRegex((CommandFailed, OSError), "status|nothing"):
                self.meter.quiet(command)

    def test_a_pipeline_fails_if_any_of_its_commands_fails(self) -> None:
        self.meter.pipe(["echo", "x"], ["cat"])
        with self.assertRaisesRegex(CommandFailed, "false"):
            self.meter.pipe(["false"], ["cat"])
        with self.assertRaisesRegex(CommandFailed, "false"):
            self.meter.pipe(["true"], ["false"])

    def test_output_goes_to_the_log_and_to_a_file_that_is_asked_for(self) -> None:
        target = self.place / "out"
        self.meter.run(["echo", "to the file"], stdout=target)
        self.meter.run(["echo", "to the log"])
        self.assertEqual(target.read_text(), "to the file\n")
        log = (self.place / "log").read_text()
        self.assertIn("\n$ echo to the log\nto the log\n", log)
        self.assertNotIn("\nto the file", log)


class Parsing(unittest.TestCase):
    def test_a_line_of_the_measuring_program(self) -> None:
        used, status = measure.parse_usage("1.500000 1.250000 0.250000 2048 4096 512 3\n")
        self.assertEqual((used.wall_s, used.cpu_s, used.peak_mib), (1.5, 1.5, 2.0))
        self.assertEqual((used.read_bytes, used.written_bytes, status), (4096, 512, 3))
        with self.assertRaises(ValueError):
            measure.parse_usage("1.5 1.2\n")

    def test_busy_seconds_leave_out_waiting(self) -> None:
        # user, nice, system, idle, iowait, irq, softirq
        stat = "cpu  100 200 300 9000 9000 400 500 0 0 0\ncpu0 1 1 1 1 1 1 1 0 0 0\n"
        self.assertEqual(measure.busy_seconds(stat), 1500 / os.sysconf("SC_CLK_TCK"))


class Interleaving(unittest.TestCase):
    def run_steps(
        self, count: int, rounds: int, limit: float, length: float = 1.0, bad: str = ""
    ) -> tuple[list[str], list[Step], int]:
        """Runs steps that take so long each; the order in which they ran."""
        ran: list[str] = []
        now = [0.0]

        def step(name: str) -> None:
            now[0] += length
            ran.append(name)
            if name == bad:
                raise CommandFailed("exit status 1")

        steps = [Step(name, lambda name=name: step(name)) for name in "abc"[:count]]
        done = interleave(steps, rounds, limit, lambda _: None, lambda: now[0])
        return ran, steps, done

    def test_the_first_of_a_round_is_the_last_of_the_next(self) -> None:
        ran, _, done = self.run_steps(3, 3, 100)
        self.assertEqual(("".join(ran), done), ("abcbcacab", 3))

    def test_no_round_begins_that_would_end_after_the_limit(self) -> None:
        self.assertEqual(self.run_steps(3, 9, 7)[2], 2)
        # The first one is always run in full.
        self.assertEqual(self.run_steps(3, 9, 0)[2], 1)

    def test_a_step_that_fails_is_not_run_again_and_says_why(self) -> None:
        ran, steps, _ = self.run_steps(3, 2, 100, bad="b")
        self.assertEqual("".join(ran), "abcca")
        self.assertEqual(steps[1].problem, "failed: exit status 1")
        self.assertIsNone(steps[0].problem)


if __name__ == "__main__":
    unittest.main()
