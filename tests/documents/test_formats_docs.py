"""The page on files of other tools does what it says."""

from __future__ import annotations

import numpy as np
import pytest

import windeck as wd
from support.pages import Page

PAGE = Page("docs/formats.md")


@pytest.mark.usefixtures("demo_folder")
def test_every_format_has_the_same_documents() -> None:
    """Those of the text in Parquet, which are bytes."""
    assert len(PAGE.blocks) == 8
    names = PAGE.run()
    texts = [document.tolist() for document in names["documents"]]
    assert len(texts) > 50
    names = PAGE.run(only=slice(1))
    assert names["batch"]["inputs"].shape == (2, 64)
    assert [document.tolist() for document in names["documents"]] == texts[: len(texts) * 9 // 10]
    for number, dtype in ((1, "uint16"), (2, "uint16"), (3, "uint16"), (4, "int64")):
        names = PAGE.run({"wd": wd}, only=slice(number, number + 1))
        documents = names["fineweb" if number == 1 else "documents"]
        assert [document.tolist() for document in documents] == texts
        assert documents[3].dtype == np.dtype(dtype)
    jsonl = PAGE.run(only=slice(5, 6))["documents"]
    assert [document.tolist() for document in jsonl] == texts
    (note,) = PAGE.run({"wd": wd}, only=slice(6, 7))["documents"]
    assert bytes(note.tolist()) == b"Words of a file.\nMore of them.\n"


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
