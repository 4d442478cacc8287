"""The page on incremental saves does what it says."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from support.pages import Page
from support.store_servers import need
from windeck import checkpoint

PAGE = Page("docs/incremental.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    lines = PAGE.blocks[0].splitlines(keepends=True)
    looks = next(i for i, line in enumerate(lines) if line.startswith("["))
    names: dict[str, object] = {}
    exec("".join(lines[:looks]), names)
    shown = lines[looks].split("#")[1].strip()
    found = [(commit.generation, commit.bases) for commit in checkpoint.log(str(names["url"]))]
    assert str(found) == shown
    exec("".join(lines[looks + 1 :]), names)
    assert float(names["model"]["head"][0]) == 3.0  # type: ignore[index]
    assert len(checkpoint.log(str(names["url"]))) == 1


def test_the_table_of_chains_is_what_happens() -> None:
    state = {"w": torch.zeros(40)}
    with checkpoint.stores.open_store("memory://") as store:
        for step in range(5):
            state["w"][4 * step] = 1  # a chunk more each time, so that each save is needed
            checkpoint.save(
                store, step=step, model=state, chunk_bytes=16, incremental=True, longest_chain=3
            )
        found = [commit.bases for commit in reversed(checkpoint.log(store))]
    # Generations 5, 6, ... of the page are 1, 2, ... here.
    assert found == [(), (1,), (1, 2), (1, 2, 3), ()]
    for own, bases in zip(range(5, 9), found, strict=False):
        moved = tuple(base + 4 for base in bases)
        assert f"\n    {own:<13}{moved!s:<13}{len(bases) + 1}" in PAGE.text


def test_links_lead_somewhere() -> None:
    assert "incremental.md" in Page("docs/checkpoint.md").text
    Page("docs/checkpoint.md").check_links()
