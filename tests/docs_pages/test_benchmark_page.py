"""The page of benchmarks and its pictures have the figures of benchmarks/RESULTS.md."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType
from xml.etree import ElementTree

import pytest

from support.pages import ROOT, Page
from test_pages import faults_of_links

DOCS, RESULTS = ROOT / "docs", ROOT / "benchmarks" / "RESULTS.md"


@pytest.fixture
def script(monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    spec = importlib.util.spec_from_file_location("benchmark_page", DOCS / "benchmark_page.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "benchmark_page", module)  # dataclasses look it up
    spec.loader.exec_module(module)
    return module


def test_page_and_pictures_are_those_of_the_results(script: ModuleType) -> None:
    """Otherwise: `python docs/benchmark_page.py`."""
    files = script.pages(RESULTS.read_text(encoding="utf-8"))
    assert {name for name in files if (DOCS / name).read_text("utf-8") != files[name]} == set()
    assert not list(faults_of_links(DOCS / "benchmarks.md"))


def test_pictures_are_small_and_well_formed(script: ModuleType) -> None:
    for kind in script.KINDS:
        path = DOCS / "pictures" / f"benchmark_{kind.name}.svg"
        root = ElementTree.fromstring(path.read_text(encoding="utf-8"))
        bars = [bar for bar in root.iter() if bar.tag.endswith("rect")]
        assert len(bars) == len(kind.bars)
        assert path.stat().st_size < 5000


def test_page_shows_where_others_are_faster(script: ModuleType) -> None:
    rows = [line.split("|") for line in Page("docs/benchmarks.md").text.splitlines() if "|" in line]
    ratios = [float(row[3].replace(",", "")) for row in rows if row[3].strip()[0].isdigit()]
    assert len(ratios) == sum(len(kind.bars) for kind in script.KINDS)
    assert sum(ratio < 1 for ratio in ratios) >= 5


def test_a_row_that_results_lack_is_an_error(script: ModuleType) -> None:
    texts = {"orders": "| order of 2x | ours: 9x (8 to 9) | rival | 1,450x (33.6 to 49.3) | 2 |"}
    bar = script.Bar("orders", "order", "", "", contains="rival")
    assert script.figure(bar, texts) == ("1,450", "33.6 to 49.3")
    with pytest.raises(LookupError, match="no row of section 'orders' begins with 'an epoch'"):
        script.figure(script.Bar("orders", "an epoch", "", ""), texts)
    texts = {"orders": "| order of 10^8 | ours | rival | 45x | 20 |"}
    with pytest.raises(LookupError, match="has no ratio with its quartiles"):
        script.figure(script.Bar("orders", "order", "", ""), texts)


def test_picture_of_successors_is_what_the_page_makes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Up to the drawing of another version of matplotlib; that of 3.10 differs too much."""
    pytest.importorskip("matplotlib", minversion="3.11")
    pyplot = pytest.importorskip("matplotlib.pyplot")
    monkeypatch.chdir(tmp_path)
    Path("out").mkdir()
    page = Page("docs/why.md")
    exec("import windeck as wd\n" + page.blocks[-1], {})
    pyplot.close("all")
    committed = pyplot.imread(DOCS / "pictures" / "successors.png")
    made = pyplot.imread("out/successors.png")
    assert committed.shape == made.shape
    assert abs(committed - made).mean() < 0.02
    assert (DOCS / "pictures" / "successors.png").stat().st_size < 50_000
