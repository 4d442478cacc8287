"""The page on documents, and the examples in the code, do what they say."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
import pytest
from pyarrow import parquet

from support.corpora import write_corpus
from support.pages import Page

PAGE = Page("docs/documents.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    shards = {
        "c4/en/x.part1": [[1, 2], [], [3], [4], [5]],
        "c4/en/x.part3": [[6], [7], [8, 9, 10], [11]],
        "wiki/new/y.part0": [[12]],
    }
    write_corpus(tmp_path / "corpus", shards, counts=True)
    write_corpus(tmp_path / "web", {"c4/x.part0": [[number] for number in range(200)]})
    (tmp_path / "texts" / "dataset=a").mkdir(parents=True)
    parquet.write_table(pa.table({"text": ["héllo"]}), "texts/dataset=a/x.part0.parquet")
    assert len(PAGE.blocks) == 4
    names = PAGE.run()
    documents = names["documents"]
    assert documents.locate(7) == ("c4", 3, 2)
    assert documents.index(("c4", 3, 2)) == 7
    assert documents[7].tolist() == [8, 9, 10]
    assert len(names["c4"]) == 9
    assert len(names["first"]) == 10
    assert names["texts"][0].tolist() == list("héllo".encode())


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
