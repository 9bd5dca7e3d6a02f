"""Damaged images: an exception or the right bytes, never wrong ones."""

from __future__ import annotations

import os
import random
from pathlib import Path

import pytest
import weald
from conftest import Forest, run_weald

DAMAGE_LEN = 16


def contents(image: weald.Image) -> dict[str, object]:
    """All that the tree has: names, and what stands under each; exceptions of damage included."""
    found: dict[str, object] = {}
    errors: list[OSError] = []
    for path, dirs, others in image.walk(onerror=errors.append):
        for name in [*dirs, *others]:
            inside = os.path.join(path, name)
            try:
                found[inside] = content(image, inside)
            except weald.DamagedError as error:
                found[inside] = error
    found.update({f"walk {n}": error for n, error in enumerate(errors)})
    return found


def content(image: weald.Image, path: str) -> object:
    status = image.stat(path, follow_symlinks=False)
    attributes = (status.st_mode, status.st_size, status.st_mtime_ns, image.xattrs(path))
    try:
        return attributes, image.read(path)
    except weald.DamagedError:
        raise
    except OSError as error:
        return attributes, type(error)


# Would catch: bytes that are returned before their digest was compared, and damage that comes as
# another exception, or as a file that is not there.
@pytest.mark.parametrize("seed", range(120))
def test_damaged_images_never_give_wrong_bytes(small: Path, tmp_path: Path, seed: int) -> None:
    wanted = contents(weald.open(small))
    bytes_of_image = bytearray(small.read_bytes())
    numbers = random.Random(seed)
    places = [0, len(bytes_of_image) - DAMAGE_LEN]
    offset = places[seed] if seed < 2 else numbers.randrange(places[1])
    bytes_of_image[offset : offset + DAMAGE_LEN] = numbers.randbytes(DAMAGE_LEN)
    path = tmp_path / "damaged.weald"
    path.write_bytes(bytes_of_image)
    try:
        found = contents(weald.open(path))
    except weald.DamagedError:
        return
    for name, content in found.items():
        is_damage = isinstance(content, weald.DamagedError)
        assert is_damage or content == wanted[name], (seed, offset, name)
    damage = [content for content in found.values() if isinstance(content, Exception)]
    assert damage or found == wanted, (seed, offset)


@pytest.fixture(scope="session")
def small(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An image without second copies, of which every byte counts."""
    work = tmp_path_factory.mktemp("small")
    numbers = random.Random(3)
    for directory in ["a", "b", "b/c"]:
        (work / "tree" / directory).mkdir(parents=True)
        for n in range(8):
            name = work / "tree" / directory / f"{n}"
            name.write_bytes(numbers.randbytes(700 * n))
            os.setxattr(name, "user.n", numbers.randbytes(4))
            (work / "tree" / directory / f"{n}.txt").write_text(f"{n} leaves\n" * 200 * n)
    os.symlink("a/3", work / "tree" / "link")
    run_weald("build", work / "tree", work / "small.weald")
    return work / "small.weald"


# Would catch: one damaged file that takes the others with it.
def test_the_rest_can_be_read(forest: Forest, tmp_path: Path) -> None:
    path, long = tmp_path / "damaged.weald", (forest.tree / "long").read_bytes()
    bytes_of_image = bytearray(forest.image.read_bytes())
    # Random bytes are stored as they are.
    offset = bytes_of_image.index(long[3 << 20 : (3 << 20) + 64])
    bytes_of_image[offset : offset + DAMAGE_LEN] = bytes(DAMAGE_LEN)
    path.write_bytes(bytes_of_image)
    image = weald.open(path)
    with pytest.raises(weald.DamagedError) as caught:
        image.read("long")
    assert isinstance(caught.value, OSError) and "F-" in str(caught.value)
    with pytest.raises(weald.DamagedError):
        image.open("long").readall()
    words = (forest.tree / "deep" / "words.txt").read_bytes()
    assert image.read("deep/words.txt") == words
    assert image.read("long", 0, 1000) == long[:1000]


@pytest.mark.parametrize("share", [0.0001, 0.3, 0.99])
def test_truncated_images_are_refused(forest: Forest, tmp_path: Path, share: float) -> None:
    path, whole = tmp_path / "short.weald", forest.image.read_bytes()
    path.write_bytes(whole[: int(len(whole) * share)])
    with pytest.raises(weald.DamagedError):
        weald.open(path)
