"""The README and the first page of the site: their figures, their length, and what they install."""

import re
from pathlib import Path

import pytest

from support.demo_folder import copy_demo_files
from support.page_session import blocks_of
from support.pages import ROOT, Page

PAGES = ["README.md", "docs/quickstart.md"]
#: Pages that begin with figures.
FIRST = ["README.md", "docs/index.md"]


def test_the_first_command_installs_what_the_readme_needs(tmp_path: Path) -> None:
    """The demo writes the files that are read, and `make demo` has the extras of the README."""
    makefile = (ROOT / "Makefile").read_text()
    page = Page("README.md")
    installed = re.search(
        r"^\$\(VENV\)/\.demo:.*\n\t\$\(call installed,([^)]*\)?\w*)\)", makefile, re.M
    )
    extras = re.search(r"pip install 'windeck\[([\w,]+)\]'", page.text)
    assert installed is not None
    assert extras is not None
    assert installed[1].split("$(comma)") == extras[1].split(",")
    recipe = makefile.partition("\ndemo: ")[2].partition("\n\n")[0]
    assert recipe.count("windeck demo") == 1
    copy_demo_files(tmp_path / "out")
    read = {path for block in page.blocks for path in re.findall(r'"(out/[\w/.-]+)"', block)}
    assert read == {"out/load-curve.parquet"}


@pytest.mark.parametrize("page", FIRST)
def test_the_first_pages_say_what_is_compared(page: str) -> None:
    """Each ratio of the page is between the quartiles of the newest results."""
    text, results = Page(page).text, Page("benchmarks/RESULTS.md").text
    figures = re.findall(r"^\| (.+) \| (\d+) \|$", text, re.M)
    figures += re.findall(r"[:;] (\d+) for ([^;]+)", " ".join(text.split()))
    assert len(figures) == 3
    for rival, figure in (("numpy.random", "| order of 10^8 samples"),
                          ("values alone", "(values only)"),
                          ("numpy.memmap", "packed batches of 64 x 1,024")):  # fmt: skip
        (pair,) = (pair for pair in figures if rival in " ".join(pair))
        found = next(line for line in results.splitlines() if figure in line)
        ratio = next(part for part in pair if part.isdigit())
        quartiles = re.search(r"x \(([\d.]+) to ([\d.]+)\)", found)
        assert quartiles is not None
        assert float(quartiles[1]) <= float(ratio) <= float(quartiles[2])


@pytest.mark.parametrize("page", [*PAGES, "docs/words.md"])
def test_links_lead_somewhere(page: str) -> None:
    Page(page).check_links()


def test_no_two_pages_write_to_one_place() -> None:
    """The blocks run one after the other in one folder, with the output that the page shows."""
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
    used: dict[str, str] = {}
    for page in pages:
        for block in Page(str(page.relative_to(ROOT))).blocks:
            for place in re.findall(r"\w+://(\./[\w/]+)", block):
                assert used.setdefault(place, page.name) == page.name, place
    assert len(used) > 10


def test_the_readme_is_about_one_screen() -> None:
    text = (ROOT / "README.md").read_text()
    assert len(text.splitlines()) < 65
    (program,) = (block.code for block in blocks_of(text) if block.language == "python")
    assert len(program.splitlines()) <= 12
