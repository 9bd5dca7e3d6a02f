"""The published tables of 2015 come out of the protocols again."""

import csv
from pathlib import Path

from weald_lab import protocols2015, ranking

DATA = Path(__file__).parent / "data"


def test_all_published_cells() -> None:
    rows = protocols2015.load(DATA / "test_fs_protocols.tar.xz")
    with (DATA / "published-2015.tsv").open(encoding="utf-8") as handle:
        cells = list(csv.DictReader(handle, delimiter="\t"))
    assert len(cells) == 622
    wrong = []
    tables: dict[str, ranking.Table] = {}
    for cell in cells:
        name = cell["table"]
        if name not in tables:
            shape, count, temperature = name.split("-")
            tables[name] = ranking.rank(rows, shape, temperature, int(count))
        step = cell["command"].split(": ", 1)[1]
        if cell["command"] == "09: du -scm testX":
            step = "du  -scm testX"  # the second du of the big shape, after `git annex direct`
        stack = cell["filesystem"]
        got = tables[name].cells.get((stack, step))
        want = (int(cell["rank"]), f"{float(cell['mean_s']):.2f}", float(cell["rating"]))
        found = got and (got.rank, f"{got.mean_s:.2f}", tables[name].ratings[stack])
        if found != want:
            wrong.append((name, stack, step, want, found))
    assert not wrong, (len(wrong), wrong[:8])
