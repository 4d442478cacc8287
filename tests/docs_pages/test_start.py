"""The first pages of three kinds of users run as written, and as notebooks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.pages import ROOT, Page
from test_pages import faults_of_links

PAGES = ["forecasting", "pretraining", "recommenders"]


@pytest.mark.parametrize("name", PAGES)
def test_page_runs_and_is_short(
    name: str, demo_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page = Page(f"docs/start/{name}.md")
    monkeypatch.chdir(demo_folder)
    page.run()
    assert len(page.text.splitlines()) < 120
    assert not list(faults_of_links(page.path))


@pytest.mark.parametrize("name", PAGES)
def test_notebook_has_the_code_of_its_page(name: str, tmp_path: Path) -> None:
    """Cells of code are the blocks in their order, so a notebook runs where its page runs."""
    page = Page(f"docs/start/{name}.md")
    command = [sys.executable, ROOT / "docs" / "notebooks.py", page.path, "--out", tmp_path]
    subprocess.run(command, check=True)
    notebook = json.loads((tmp_path / f"{name}.ipynb").read_text(encoding="utf-8"))
    cells = {"code": [], "markdown": []}
    for cell in notebook["cells"]:
        cells[cell["cell_type"]].append("".join(cell["source"]))
    assert [cell + "\n" for cell in cells["code"]] == page.blocks
    assert cells["markdown"][0].startswith("# ")
    assert not any("](" in cell for cell in cells["markdown"])
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
