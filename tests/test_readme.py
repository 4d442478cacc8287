"""Code in the README and in the walk through the library runs, and links lead somewhere."""

import re
from pathlib import Path

import pytest

from support.loaded_examples import example
from support.pages import ROOT, Page
from windeck.cli.demo_data import write_load_curve

PAGES = ["README.md", "docs/quickstart.md"]


@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, one after the other, on the kind of files they speak of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    write_load_curve(tmp_path / "out" / "load-curve.parquet", sites=2, days=100)
    example("text_demo").write_corpus(tmp_path / "out" / "text" / "stdlib-corpus")
    Page(page).run()


@pytest.mark.parametrize("page", [*PAGES, "docs/words.md"])
def test_links_lead_somewhere(page: str) -> None:
    Page(page).check_links()


def test_no_two_pages_write_to_one_place() -> None:
    """Who tries them one after the other, in one folder, sees what each of them says."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    used: dict[str, str] = {}
    for page in pages:
        for block in Page(str(page.relative_to(ROOT))).blocks:
            for place in re.findall(r"\w+://(\./[\w/]+)", block):
                assert used.setdefault(place, page.name) == page.name, place
    assert len(used) > 10


def test_the_readme_is_about_one_screen() -> None:
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
