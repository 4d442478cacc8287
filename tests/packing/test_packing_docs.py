"""The page on packing, and the examples in the code, do what they say."""

from __future__ import annotations

import re

import pytest

from support.pages import Page

PAGE = Page("docs/packing.md")


@pytest.mark.usefixtures("demo_folder")
def test_code_on_the_page_runs() -> None:
    assert len(PAGE.blocks) == 5
    names = PAGE.run()
    packed, documents = names["packed"], names["documents"]
    assert len(names["loader"]) == -(-len(packed) // 8)
    datasets = {documents.locate(index)[0] for index in range(len(documents))}
    assert {piece.dataset_id for piece in names["pieces"]} <= datasets
    assert sum(p.stop - p.start for p in names["pieces"]) == 65
    for piece in names["pieces"]:
        assert 0 in packed.sequences_of(piece[:3], epoch=3, seed=42)
    assert re.search(
        r"^pieces\[0\]  # Piece\(dataset_id='stdlib-\w+', ", PAGE.blocks[4], re.MULTILINE
    )
    assert 0.5 < names["batch"]["targets_mask"].mean() <= 1
