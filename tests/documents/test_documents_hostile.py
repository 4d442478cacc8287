"""Damaged shards give documents or an exception that names the file, never a crash."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.corpora import WRITERS, write_corpus
from windeck import Documents

DOCS = [[1, 2, 3], [], [4] * 30, [5]]


def damaged(data: bytes, rng: np.random.Generator) -> bytes:
    """Return the file with some bytes changed, or a range zeroed or removed."""
    changed = bytearray(data)
    start, length = int(rng.integers(len(data))), int(rng.integers(1, 40))
    kind = rng.integers(4)
    if kind < 2:
        for place in rng.integers(len(data), size=rng.integers(1, 5)):
            changed[place] = rng.integers(256)
    elif kind == 2:
        changed[start : start + length] = bytes(len(changed[start : start + length]))
    else:
        del changed[start : start + length]
    return bytes(changed)


def read_all(root: Path) -> str:
    """Call every method that reads a file, and return the outcome."""
    try:
        documents = Documents(root)
        for number in range(min(len(documents), 100)):
            documents[number].sum()
        documents.verify()
    except (ValueError, TypeError, KeyError, OSError, MemoryError) as error:
        said = str(error)
        return "named" if "x.part0." in said or "has a token" in said else said
    return "fine"


def fuzz(root: Path, form: str, seed: int, times: int) -> set[str]:
    """Return the outcomes of reading damaged shards of a format."""
    write_corpus(root, {"c4/x.part0": DOCS}, form=form)
    path = next((root / "dataset=c4").iterdir())
    data, rng = path.read_bytes(), np.random.default_rng(seed)
    outcomes = set()
    for _ in range(times):
        path.write_bytes(damaged(data, rng))
        outcomes.add(read_all(root))
    return outcomes


@pytest.mark.parametrize("seed", [0, 1])
@pytest.mark.parametrize("form", WRITERS)
def test_damaged_shards_do_no_harm(form: str, seed: int, tmp_path: Path) -> None:
    assert fuzz(tmp_path, form, seed, 150) == {"fine", "named"}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(2, 8))
@pytest.mark.parametrize("form", WRITERS)
def test_more_damaged_shards_do_no_harm(form: str, seed: int, tmp_path: Path) -> None:
    assert fuzz(tmp_path, form, seed, 1000) == {"fine", "named"}
