"""The modules that take part in a batch are those that docs/design/hot_path.md lists."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest

import windeck as wd
from models.packing_model import ModelCorpus
from support.pages import Page

PACKAGE = Path(wd.__file__).parent
PAGE = Page("docs/design/hot_path.md")


def windows() -> wd.Loader:
    table = wd.Table.from_columns({"load": np.arange(5000.0)})
    data = wd.Windows(table, context_length=8)
    return wd.Loader(data, batch_size=600, shuffle=True, prefetch=0, threads=1)


def mixture() -> wd.Loader:
    documents = [[number] * (number % 90 + 10) for number in range(800)]
    corpus = ModelCorpus([documents[:400], documents[400:]], ["int32", "int32"])
    packed = wd.PackedSequences(corpus, sequence_length=16)
    parts = {"one": (packed, 0.7), "two": (packed, 0.3)}
    return wd.Loader(wd.Mixture(parts), batch_size=256, prefetch=0)


def modules_of_a_batch(loader: wd.Loader) -> set[str]:
    """Return the modules whose functions are called for a batch, the first ones left out."""
    files = set()

    def note(frame: FrameType, event: str, argument: Any) -> None:
        path = Path(frame.f_code.co_filename)
        if event == "call" and path.is_relative_to(PACKAGE):
            files.add(str(path.relative_to(PACKAGE)))

    batches = iter(loader)
    for _ in range(3):
        next(batches)
    sys.setprofile(note)
    try:
        next(batches)
    finally:
        sys.setprofile(None)
    return files


@pytest.mark.parametrize(
    ("title", "loader", "most"),
    [("A batch of windows", windows, 3), ("A batch of a packed mixture", mixture, 9)],
)
def test_modules_are_those_of_the_page(title: str, loader: Any, most: int) -> None:
    section = PAGE.text.split(f"## {title}")[1].split("## ")[0]
    listed = set(re.findall(r"`([a-z_/]+\.py)`", section))
    assert modules_of_a_batch(loader()) == listed
    assert len(listed) <= most
