"""Code in the README and in the walk through the library runs, and links lead somewhere."""

import re
import shlex
from pathlib import Path

import pytest

from support.internals import write_load_curve
from support.loaded_examples import example
from support.pages import ROOT, Page
from windeck.cli.main import main

PAGES = ["README.md", "docs/quickstart.md"]


@pytest.mark.parametrize("page", PAGES)
def test_code_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All blocks of a page, one after the other, on the kind of files they speak of."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "out").mkdir()
    write_load_curve(tmp_path / "out" / "load-curve.parquet", sites=2, days=100)
    assert example("text_demo").main(["--out", "out/text", "--corpus-only"]) == 0
    Page(page).run()
    for command in re.findall(r"^windeck (view .*?)(?: +#.*)?$", Page(page).text, re.MULTILINE):
        main(shlex.split(command))


def test_the_first_command_installs_what_the_readme_needs() -> None:
    """`make demo` installs the stores that are used, and writes the files that are read."""
    makefile = (ROOT / "Makefile").read_text()
    page = Page("README.md")
    installed = re.search(r"^\$\(VENV\)/\.demo:.*\n\t\$\(call installed,(.*)\)$", makefile, re.M)
    assert installed is not None
    stores = {scheme for block in page.blocks for scheme in re.findall(r'"(\w+)://\./', block)}
    assert stores == {"rocksdb"}
    assert {"cli", *stores} <= set(installed[1].split("$(comma)"))
    recipe = makefile.partition("\ndemo: ")[2].partition("\n\n")[0]
    assert "windeck demo" in recipe
    assert "text_demo.py --corpus-only" in recipe
    read = {path for block in page.blocks for path in re.findall(r'"(out/[\w/.-]+)"', block)}
    assert read == {"out/load-curve.parquet", "out/text/stdlib-corpus"}


def test_the_headline_says_what_it_is_compared_with() -> None:
    """Each ratio of the page is between the quartiles of the newest results."""
    page, results = Page("README.md").text, Page("benchmarks/RESULTS.md").text
    for rival, figure in (("numpy.random", "| order of 10^8 samples"),
                          ("fills and masks", "(filled, masked, numbered)"),
                          ("values alone", "(values only)"),
                          ("numpy.memmap", "packed batches of 64 x 1,024")):  # fmt: skip
        line = next(line for line in page.splitlines() if rival in line)
        found = next(line for line in results.splitlines() if figure in line)
        ratio, quartiles = line.split("|")[-2], re.search(r"x \(([\d.]+) to ([\d.]+)\)", found)
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
    assert len((ROOT / "README.md").read_text().splitlines()) < 150
