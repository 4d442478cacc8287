"""A pytest plugin for environments without torch: tests that need it are skipped.

So are tests that need another package of the group ``test`` that is not installed there. With
torch, a package that is missing is an error.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from doctest import UnexpectedException
from importlib.util import find_spec
from typing import Any

import pytest

__all__ = ["pytest_pycollect_makemodule", "pytest_runtest_call", "pytest_runtest_setup"]

#: Modules that may be missing where torch is.
OPTIONAL: tuple[str, ...] = (
    "torch",
    "accelerate",
    "aiohttp",
    "arro3",
    "datasets",
    "duckdb",
    "gcp_storage_emulator",
)
OPTIONAL += ("jax", "lightning", "matplotlib", "moto", "plyvel", "polars", "pybind11_stubgen")
OPTIONAL += ("ray", "redis", "rocksdict", "safetensors", "torchdata", "transformers")
MISSING = frozenset(name for name in OPTIONAL if find_spec(name) is None)
if "torch" not in MISSING:
    MISSING = frozenset()


#: Files of tests that start programs with torch, and wait for or compare what they do.
WAITING = (
    "test_ddp.py",
    "test_examples_beijing.py",
    "test_loader_killed.py",
    "test_stores_forked.py",
)
_IN_CHILD = re.compile(
    rf"No module named '({'|'.join(MISSING) or 'none'})[.']"
    r"|needs (torch), which is not installed|(torch)run: command not found"
)


def missing_package(error: BaseException | None) -> str | None:
    """Return the package whose absence an error is of, directly or as its cause."""
    if isinstance(error, UnexpectedException):
        error = error.exc_info[1]  # of an example in a docstring or on a page
    if error is not None and (found := _IN_CHILD.search(str(error))):
        return found[found.lastindex or 0]  # of a program in a child process
    while error is not None:
        name = (error.name or "") if isinstance(error, ImportError) else ""
        if (package := name.partition(".")[0]) in MISSING:
            return package
        error = error.__cause__ or error.__context__
    return None


class _Module(pytest.Module):
    """A file of tests that is skipped if a package that it imports is missing."""

    def _getobj(self) -> Any:
        if self.path.name in WAITING:
            pytest.skip("its programs need torch, which is not installed", allow_module_level=True)
        try:
            return super()._getobj()  # type: ignore[no-untyped-call]
        except self.CollectError as error:
            _skip(error)
            raise


def _skip(error: BaseException) -> None:
    if MISSING and (name := missing_package(error)) is not None:
        pytest.skip(f"needs {name}, which is not installed", allow_module_level=True)


def pytest_pycollect_makemodule(module_path: Any, parent: pytest.Collector) -> pytest.Module | None:
    """Collect a file of tests, which is skipped if it needs what is missing."""
    return _Module.from_parent(parent, path=module_path) if MISSING else None


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup() -> Iterator[None]:
    """Skip a test whose fixtures need what is missing."""
    yield from _skipping()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call() -> Iterator[None]:
    """Skip a test that needs what is missing."""
    yield from _skipping()


def _skipping() -> Iterator[None]:
    try:
        yield
    except (Exception, pytest.fail.Exception) as error:
        _skip(error)
        raise
