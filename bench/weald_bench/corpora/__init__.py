"""The trees that are packed, one module for each kind."""

from __future__ import annotations

from pathlib import Path

from weald_bench.corpora import container, forests, libraries, system
from weald_bench.corpora.base import Corpus, Given

#: All corpora that have a name.
ALL: list[Corpus] = [
    forests.Forest("forest", "forest-small.list"),
    forests.Forest("judge", "forest-judge.list"),
    forests.Forest("full-forest", "forest.list"),
    forests.Forest("versions", "forest-store.list"),
    system.System("usr", Path("/usr")),
    system.System("include", Path("/usr/include")),
    system.System("share", Path("/usr/share")),
    system.Toolchain(),
    container.Container("container"),
    libraries.Libraries("libraries"),
    *forests.unseen(),
]


def by_word(word: str) -> Corpus:
    """The corpus that a word of `--corpus` names: NAME, or NAME=DIR for any tree."""
    name, is_given, directory = word.partition("=")
    if is_given:
        return Given(name, Path(directory))
    for corpus in ALL:
        if corpus.name == name:
            return corpus
    known = ", ".join(corpus.name for corpus in ALL)
    raise ValueError(f"unknown corpus '{name}': expected NAME=DIR or one of {known}")
