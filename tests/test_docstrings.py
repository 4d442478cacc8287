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


#: The package that the examples of a module need, besides those of all.
NEEDS = {
    "windeck.adapters.darts": "darts",
    "windeck.adapters.gluonts": "gluonts",
    "windeck.adapters.neuralforecast": "pandas",
    "windeck.adapters.pytorch_forecasting": "pytorch_forecasting",
    "windeck.checkpoint.stores.leveldb": "plyvel",
}


@pytest.mark.filterwarnings("ignore:::(?!windeck)")  # of the imports of other libraries
@pytest.mark.parametrize("name", MODULES)
def test_examples_in_docstrings(name: str) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    module = import_module(name)
    if doctest.testmod(module).failed:
        doctest.testmod(module, raise_on_error=True)  # skipped if a package is missing
        pytest.fail("the examples fail once")


def test_the_core_is_among_the_modules() -> None:
    assert "windeck._core" in MODULES
