"""`make bench` keeps the newest figures of each benchmark in benchmarks/RESULTS.md."""

from __future__ import annotations

import importlib
import re
from typing import Any

import pytest

from support.pages import ROOT

BENCHMARKS = ROOT / "benchmarks"
RESULTS = (BENCHMARKS / "RESULTS.md").read_text(encoding="utf-8")


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("run")


def test_each_benchmark_has_the_section_that_make_bench_writes() -> None:
    """Notes on them, and figures of other machines, are in docs/design/figures.md."""
    _, *sections = re.split(r"^## ", RESULTS, flags=re.MULTILINE)
    names = [text.partition("\n")[0] for text in sections]
    assert [f"bench_{name}" for name in names] == sorted(
        path.stem for path in BENCHMARKS.glob("bench_*.py")
    )
    for text in sections:
        _, _, machine, _, *table = text.strip().split("\n")
        assert re.fullmatch(r"Machine: .+, \d+ cores, \w+, \d{4}-\d\d-\d\d\.", machine)
        assert table[:2] == ["| question | ours | rival | ratio | asked |", "|---|---|---|---|---|"]
        for row in table[2:]:
            assert re.search(r"\| [\d.,]+x \([\d.,]+ to [\d.,]+\) \| [\d.,]* \|$", row), row
        assert len(table) > 2


def test_a_run_replaces_its_sections_alone(run: Any) -> None:
    assert run.updated(RESULTS, {}) == RESULTS
    text = "# Results\n\nIntroduction.\n\n## gather\n\nold\n\n## table\n\nkept\n"
    row = run.measure.Row(
        "read", "ours", "theirs", run.measure.ratio_of([(1.0, 2.0), (1.0, 3.0)]), 1.5
    )
    new = {name: run.section(name, [row], "a machine") for name in ("gather", "orders")}
    found = run.updated(text, new)
    assert re.findall("^#.*", found, re.M) == ["# Results", "## gather", "## orders", "## table"]
    assert "old" not in found
    assert "\n\n## table\n\nkept\n" in found
    assert "Machine: a machine.\n" in found
    assert found.count("\n| read | ours | theirs | 2.5x (2.25 to 2.75) | 1.5 |\n") == 2
    assert run.updated(found, new) == found
