"""Pages of first steps, and of what is known from other libraries: links, lengths, notebooks."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from support.page_session import blocks_of
from support.pages import ROOT, Page
from test_pages import faults_of_links

START = sorted((ROOT / "docs" / "start").glob("*.md"))
COMING_FROM = sorted((ROOT / "docs" / "coming_from").glob("*.md"))


@pytest.mark.parametrize("path", [*START, *COMING_FROM], ids=lambda path: path.stem)
def test_links_lead_to_a_heading_and_pages_are_short(path: Path) -> None:
    assert not list(faults_of_links(path))
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) < 130
    assert "words.md" in text or path in START


@pytest.mark.parametrize("path", COMING_FROM, ids=lambda path: path.stem)
def test_pages_of_other_libraries_have_the_same_parts(path: Path) -> None:
    """Code before and after, a table of words, and what is missing in windeck."""
    text = path.read_text(encoding="utf-8")
    places = [
        text.find(f"\n## {part}")
        for part in ("Before", "After", "Words", "What windeck does not do")
    ]
    assert -1 not in places
    assert places == sorted(places)


@pytest.mark.parametrize("path", START, ids=lambda path: path.stem)
def test_notebook_has_the_code_of_its_page(path: Path, tmp_path: Path) -> None:
    """Cells of code are the blocks in their order, so a notebook runs where its page runs."""
    script = str(ROOT / "docs" / "notebooks.py")
    command = [sys.executable, script, path, "--out", tmp_path]
    subprocess.run([*map(str, command)], check=True)
    notebook = json.loads((tmp_path / f"{path.stem}.ipynb").read_text(encoding="utf-8"))
    cells: dict[str, list[str]] = {"code": [], "markdown": []}
    for cell in notebook["cells"]:
        cells[cell["cell_type"]].append("".join(cell["source"]))
    in_python = [cell + "\n" for cell in cells["code"] if not cell.startswith("%%bash\n")]
    assert in_python == Page(str(path)).blocks
    assert len(cells["code"]) == len(list(blocks_of(path.read_text(encoding="utf-8"))))
    assert cells["markdown"][0].startswith("# ")
    assert not any("](" in cell for cell in cells["markdown"])
    assert (notebook["nbformat"], notebook["nbformat_minor"]) == (4, 5)
    assert len({cell["id"] for cell in notebook["cells"]}) == len(notebook["cells"])
