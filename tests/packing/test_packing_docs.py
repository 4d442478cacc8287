"""The page on packing, and the examples in the code, do what they say."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from support.corpora import write_corpus
from support.pages import Page

PAGE = Page("docs/packing.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    shards = {
        f"{name}.part{part}": [rng.integers(3, 99, n).tolist() for n in rng.integers(0, 200, 30)]
        for name in ("c4/x", "wiki/y")
        for part in (1, 3)
    }
    write_corpus(tmp_path / "corpus", shards, counts=True)
    assert len(PAGE.blocks) == 5
    names = PAGE.run()
    packed = names["packed"]
    assert len(names["loader"]) == -(-len(packed) // 8)
    assert names["pieces"][0][:3] in {
        (name, part, doc) for name in ("c4", "wiki") for part in (1, 3) for doc in range(30)
    }
    assert sum(p.stop - p.start for p in names["pieces"]) == 65
    for piece in names["pieces"]:
        assert 0 in packed.sequences_of(piece[:3], epoch=3, seed=42)
    assert 0.5 < names["batch"]["targets_mask"].mean() <= 1
