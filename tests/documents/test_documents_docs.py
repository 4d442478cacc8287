"""The page on documents, and the examples in the code, do what they say."""

from __future__ import annotations

import pytest

from support.pages import Page

PAGE = Page("docs/documents.md")


@pytest.mark.usefixtures("demo_folder")
def test_code_on_the_page_runs() -> None:
    assert len(PAGE.blocks) == 5
    names = PAGE.run()
    documents = names["documents"]
    assert documents.locate(7) == ("stdlib-modules", 0, 7)
    assert documents.index(("stdlib-modules", 0, 7)) == 7
    assert set(names["short"].dataset_ids) == {"stdlib-short"}
    parts = [(documents.locate(index)[:2]) for index in range(len(documents))]
    wanted = [p for p in parts if p[0] == "stdlib-modules" or p[1] < 3]
    assert len(names["first"]) == len(wanted)
    assert bytes(names["texts"][0]).decode().startswith('"""')
    for part in (names["validation"], names["test"]):
        assert 0 < part.shard_kept.sum() < len(documents) / 4


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
