"""The page on the loader, and the examples in the code, do what they say."""

from __future__ import annotations

from types import ModuleType

import pytest

import windeck._util.fingerprints
import windeck.loader.loader
import windeck.loader.sharding
import windeck.loader.stream
import windeck.loader.torch_adapters
from support.pages import Page, check_examples

# Forks beside torch's threads: Python 3.12 and later warn of them.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")

PAGE = Page("docs/loader.md")


def test_code_on_the_page_runs_from_top_to_bottom() -> None:
    PAGE.run()
    assert len(PAGE.blocks) > 5


@pytest.mark.parametrize(
    "module",
    [
        windeck.loader.torch_adapters,
        windeck._util.fingerprints,
        windeck.loader,
        windeck.loader.sharding,
        windeck.loader.torch_adapters,
        windeck.loader.stream,
    ],
)
def test_examples_in_docstrings(module: ModuleType) -> None:
    check_examples(module.__name__)
