"""The page on orders, and the examples in the code, do what they say."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

import windeck as wd

PAGE = Path(__file__).resolve().parents[1] / "docs" / "orders.md"


def test_code_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert len(blocks) == 4
    names: dict[str, Any] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert names["order"].index(names["batch"][0]) == 64
    assert names["saved"] == names["lcg"].state
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize("name", ["windeck.orders", "windeck.shuffle_quality"])
def test_examples_run(name: str) -> None:
    failed, tried = doctest.testmod(import_module(name))
    assert not failed
    assert tried


@pytest.mark.parametrize("native", [wd.Permutation, wd.LCG])
def test_native_examples_run(native: type) -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for example in finder.find(native, native.__name__):
        runner.run(example)
    assert not runner.summarize(verbose=False).failed
    assert runner.tries
