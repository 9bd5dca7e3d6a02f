"""Trees and files that are made for one part: always the same bytes."""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path

from weald_bench.bench import Bench
from weald_bench.measure import CommandFailed
from weald_bench.rivals.base import shell

PIECE = 1 << 20


def random_bytes(bench: Bench, path: Path, length: int, key: str) -> None:
    """A file of bytes that look random, the key stream of AES: the same for the same key."""
    script = (
        'set +o pipefail; openssl enc -aes-128-ctr -nosalt -K "$1" -iv 00 -in /dev/zero '
        '2>/dev/null | head -c "$2" >"$3"'
    )
    bench.quiet(shell(script, key, str(length), path))
    if path.stat().st_size != length:
        raise CommandFailed(f"{path.name}: openssl and head made {path.stat().st_size} bytes")


def write_pieces(path: Path, pieces: Iterator[bytes], length: int) -> None:
    """Writes pieces until the file has its length."""
    with open(path, "wb") as file:
        rest = length
        for piece in pieces:
            file.write(piece[:rest])
            rest -= len(piece)
            if rest <= 0:
                return


def periodic(path: Path, period: int, length: int) -> None:
    """A file that repeats random bytes with a period."""
    run = random.Random(period).randbytes(period) * (1 + PIECE // period)
    write_pieces(path, iter(lambda: run, b""), length)


def many_files(directory: Path, count: int) -> None:
    """Makes `count` files in a thousand directories. Two of three files are empty; each of the
    others holds up to 200 bytes that no other file holds."""
    for parent in range(min(count, 1000)):
        (directory / f"{parent:04}").mkdir()
    for index in range(count):
        path = f"{directory}/{index % 1000:04}/file-{index:07}"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        if index % 3 == 0:
            os.write(file, b"file %d\n" % index * (1 + index % 12))
        os.close(file)


def tar_of_usr(bench: Bench, path: Path, length: int) -> None:
    """The first bytes of a tar of /usr."""
    script = (
        "set +o pipefail; tar --sort=name -C / -c usr/lib usr/share usr/bin 2>/dev/null "
        '| head -c "$1" >"$2"'
    )
    bench.quiet(shell(script, str(length), path))


def torture(bench: Bench, directory: Path) -> list[Path]:
    """Makes sparse, constant and periodic files, and one file whose samples are all in the match
    table although no repeat is long enough: the same 200 bytes again and again, with 24 random
    bytes between them."""
    shrink = bench.sized(1, 512)
    directory.mkdir()
    sparse = directory / "sparse"
    with open(sparse, "wb") as file:
        file.truncate((16 << 30) // shrink)
        file.seek(9_000_000_000 // shrink)
        file.write(b"x")
    constant = directory / "constant"
    write_pieces(constant, iter(lambda: b"a" * PIECE, b""), (4 << 30) // shrink)
    files = [sparse, constant]
    for period in (255, 256, 257, 65537):
        files.append(directory / f"period-{period}")
        periodic(files[-1], period, (512 << 20) // shrink)
    noise = directory / "noise"
    random_bytes(bench, noise, (64 << 20) // shrink, "01")
    files.append(directory / "colliding")
    same = bytes((index * 167 + 13) % 251 for index in range(1, 201))
    with open(noise, "rb") as source, open(files[-1], "wb") as target:
        while piece := source.read(24 * 4096):
            target.write(b"".join(same + piece[at : at + 24] for at in range(0, len(piece), 24)))
    noise.unlink()
    return files


def listing(bench: Bench, target: Path, at_least: int) -> tuple[int, int]:
    """Names below /usr under as many roots as it takes, shuffled; how many roots and paths."""
    count = int(
        subprocess.run(
            ["sh", "-c", "find /usr ! -type d | wc -l"], capture_output=True, text=True, check=True
        ).stdout
    )
    copies = -(-at_least // count)
    script = Path(__file__).resolve().parents[2] / "make-listing.sh"
    with open(target, "wb") as file:
        bench.quiet(["bash", script, str(copies), "/usr"], stdout=file)
    with open(target, "rb") as file:
        paths = sum(piece.count(b"\0") for piece in iter(lambda: file.read(PIECE), b""))
    return copies, paths
