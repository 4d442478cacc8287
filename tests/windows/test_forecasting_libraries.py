"""Windows of other forecasting libraries, as the benchmark makes them, are those of windeck."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import Any

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def benchmark(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.syspath_prepend(BENCHMARKS)
    return importlib.import_module("bench_forecasting_libraries")


def test_windeck_serves_each_window_once(benchmark: Any) -> None:
    """An epoch of the loader holds every window of every series, and each once."""
    series = benchmark.ragged(5)
    found = benchmark.multiset(benchmark.windeck(series))
    assert found.total() == benchmark.windows_in(series)
    steps = benchmark.STEPS
    windows = [one[i : i + steps] for one in series for i in range(len(one) - steps + 1)]
    assert found == benchmark.Counter(window.tobytes() for window in windows)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["gluonts", "darts", "neuralforecast"])
def test_windows_are_equal_as_multisets(benchmark: Any, name: str) -> None:
    """A library that serves all complete windows serves those of windeck, as often."""
    pytest.importorskip(name)
    series = benchmark.ragged(5)
    rival = benchmark.LIBRARIES[name](series)
    assert benchmark.multiset(rival) == benchmark.multiset(benchmark.windeck(series))
