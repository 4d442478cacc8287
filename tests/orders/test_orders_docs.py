"""The page on orders, and the examples in the code, do what they say."""

from __future__ import annotations

import doctest

import pytest

import windeck as wd
from support.pages import Page

PAGE = Page("docs/orders.md")


def test_code_on_the_page_runs(capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PAGE.blocks) == 5
    names = PAGE.run()
    assert names["order"].index(names["batch"][0]) == 64
    assert names["saved"] == names["lcg"].state
    assert "FAILED" not in capsys.readouterr().out


@pytest.mark.parametrize("native", [wd.Permutation, wd.LCG])
def test_native_examples_run(native: type) -> None:
    finder, runner = doctest.DocTestFinder(), doctest.DocTestRunner()
    for example in finder.find(native, native.__name__):
        runner.run(example)
    assert not runner.summarize(verbose=False).failed
    assert runner.tries
