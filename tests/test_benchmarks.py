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


def test_each_section_is_of_a_benchmark() -> None:
    names = re.findall(r"^## (.+)$", RESULTS, re.MULTILINE)
    assert names == sorted(names)
    assert {f"bench_{name}" for name in names} <= {path.stem for path in BENCHMARKS.glob("*.py")}


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
