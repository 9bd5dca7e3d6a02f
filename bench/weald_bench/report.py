"""docs/benchmarks.md, from the results of runs and from texts that are written by hand."""

from __future__ import annotations

from pathlib import Path

from weald_bench import chart, machine, markdown
from weald_bench.result import Result

TEXTS = machine.ROOT / "bench" / "text"

#: Titles of suites, in the order of the document.
TITLES = {
    "main": "Weald beside SquashFS, EROFS and DwarFS (`make bench`)",
    "store": "One store for many versions (`make bench-store`)",
    "views": "Views that the kernel mounts (`make bench-views`)",
    "volume": "Volumes (`make bench-volume`)",
    "replica": "Replicas (`make bench-replica`)",
    "build": "Building (`make bench-build`)",
    "mount": "Mounts (`make bench-mount`)",
    "forest": "Forests (`make bench-forest`)",
    "forest-soak": "Forests of up to 10^9 files (`make soak-forest`)",
}

NOTHING = "No result of a run of this harness is kept in `bench/results` yet.\n"


def load(directories: list[Path]) -> list[tuple[str, Result]]:
    """The results of all directories with their names, in the order of the document."""
    found = []
    for directory in directories:
        if not directory.is_dir():
            raise ValueError(f"{directory}: not a directory of results")
        found += [(path.stem, Result.load(path)) for path in sorted(directory.glob("*.json"))]
    order = list(TITLES)
    return sorted(
        found, key=lambda one: order.index(one[1].suite) if one[1].suite in order else len(order)
    )


def draw(name: str, result: Result, plots: Path) -> dict[str, str]:
    """Writes the plots of a result; their places, as docs/benchmarks.md links them."""
    pictures = {}
    for table in result.tables:
        picture = chart.of_table(table)
        if picture is not None:
            path = plots / f"{name}-{table.id}.svg"
            plots.mkdir(parents=True, exist_ok=True)
            path.write_text(picture, encoding="utf-8")
            pictures[table.id] = f"{plots.name}/{path.name}"
    return pictures


def document(directories: list[Path], plots: Path, texts: Path = TEXTS) -> str:
    """The whole document."""
    results = load(directories)
    lines = [(texts / "workloads.md").read_text(encoding="utf-8"), "# Results", ""]
    if not results:
        lines.append(NOTHING)
    for name, result in results:
        title = TITLES.get(result.suite, result.suite)
        lines += markdown.result_lines(result, title, draw(name, result, plots))
    return "\n".join(lines).rstrip() + "\n"
