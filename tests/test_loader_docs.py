"""The page on the loader, and the examples in the code, do what they say."""

from __future__ import annotations

import doctest
import re
from pathlib import Path
from types import ModuleType

import pytest

import windeck.datasets
import windeck.fingerprint
import windeck.loader
import windeck.positions
import windeck.sampler
import windeck.streams

# Forks beside torch's threads: Python 3.12 and later warn of them.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

PAGE = Path(__file__).resolve().parents[1] / "docs" / "loader.md"


def test_code_on_the_page_runs_from_top_to_bottom() -> None:
    blocks = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.S)
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, PAGE.name, "exec"), names)
    assert len(blocks) > 5


@pytest.mark.parametrize(
    "module",
    [
        windeck.datasets,
        windeck.fingerprint,
        windeck.loader,
        windeck.positions,
        windeck.sampler,
        windeck.streams,
    ],
)
def test_examples_in_docstrings(module: ModuleType) -> None:
    failed, tried = doctest.testmod(module)
    assert tried > 0
    assert failed == 0
