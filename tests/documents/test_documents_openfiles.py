"""The number of files that a corpus maps at a time."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.corpora import SHARDS, write_corpus
from support.threads import at_once
from windeck import Documents


def mapped(root: Path) -> set[str]:
    """Return the files below a folder that this process has mapped."""
    if not Path("/proc/self/maps").exists():
        pytest.skip("the system does not tell what is mapped")
    lines = Path("/proc/self/maps").read_text().splitlines()
    return {line.split(maxsplit=5)[-1] for line in lines if f" {root}/" in line}


@pytest.mark.parametrize("limit", [1, 3, 8])
def test_at_most_so_many_are_mapped(limit: int, tmp_path: Path) -> None:
    shards = {f"c4/x.part{part}": [[part] * 50, [1]] for part in range(20)}
    documents = Documents(write_corpus(tmp_path, shards), open_files=limit)
    seen = set()
    for i in np.random.default_rng(0).integers(len(documents), size=200).tolist():
        assert documents[i].tolist() == ([i // 2] * 50 if i % 2 == 0 else [1])
        seen.add(len(mapped(tmp_path)))
    assert seen <= set(range(limit + 1))
    assert max(seen) == limit
    del documents
    assert not mapped(tmp_path)


def test_counting_and_verifying_map_no_more(tmp_path: Path) -> None:
    root = write_corpus(tmp_path, {f"c4/x.part{part}": [[1, 2]] * 50 for part in range(40)})
    seen: list[int] = []
    documents = Documents(
        root,
        open_files=3,
        threads=8,
        progress=lambda done, total: seen.append(len(mapped(root))),
    )
    documents.verify(progress=lambda done, total: seen.append(len(mapped(root))))
    assert len(seen) == 80
    assert max(seen) <= 3
    assert not mapped(root)


def test_none_is_mapped_before_it_is_asked_for(tmp_path: Path) -> None:
    root = write_corpus(tmp_path, SHARDS, counts=True)
    for options in ({}, {"min_length": 1}):
        documents = Documents(root, **options)  # type: ignore[arg-type]
        documents.locate(np.arange(8))
        assert documents.fingerprint
        assert not mapped(tmp_path)


def test_shards_in_use_stay(tmp_path: Path) -> None:
    documents = Documents(write_corpus(tmp_path, SHARDS), open_files=1)
    held = [documents.open(shard) for shard in range(4)]
    assert [len(shard) for shard in held] == [4, 0, 2, 2]
    assert held[0].document(3).tolist() == [5, 6]


def test_many_threads_at_once(tmp_path: Path) -> None:
    shards = {f"c4/x.part{part}": [[part, j] for j in range(5)] for part in range(9)}
    documents = Documents(write_corpus(tmp_path, shards), open_files=2)

    def read(seed: int) -> None:
        asked = np.random.default_rng(seed).integers(len(documents), size=300).tolist()
        assert [documents[i].tolist() for i in asked] == [[i // 5, i % 5] for i in asked]

    at_once(8, read)
