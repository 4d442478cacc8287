"""The examples in the docstrings of all modules run."""

from __future__ import annotations

import doctest
import pkgutil
from importlib import import_module

import pytest

import windeck

MODULES = sorted(
    module.name
    for module in pkgutil.walk_packages(windeck.__path__, "windeck.")
    if not module.name.endswith("__main__")
)


@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    if name.endswith("stores.leveldb"):
        pytest.importorskip("plyvel")
    module = import_module(name)
    if doctest.testmod(module).failed:
        doctest.testmod(module, raise_on_error=True)  # skipped if a package is missing
        pytest.fail("the examples fail once")
