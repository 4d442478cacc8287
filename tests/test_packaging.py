"""Tests of pyproject.toml: the extras, and the dependency groups that the Makefile installs."""

from __future__ import annotations

import re
from typing import Any

import pytest

from support.pages import ROOT

PROJECT: dict[str, Any] = pytest.importorskip("tomllib").loads(
    (ROOT / "pyproject.toml").read_text(encoding="utf-8")
)
EXTRAS = PROJECT["project"]["optional-dependencies"]
GROUPS = PROJECT["dependency-groups"]
MAKEFILE = (ROOT / "Makefile").read_text(encoding="utf-8")


def names(requirements: list[str]) -> set[str]:
    """Return the packages that requirements name; those of extras of windeck included."""
    found: set[str] = set()
    for requirement in requirements:
        name, extras = re.findall(r"^([\w-]+)(?:\[([\w,]+)\])?", requirement)[0]
        if name == "windeck":
            found = found.union(*(names(EXTRAS[extra]) for extra in extras.split(",")))
        else:
            found.add(name)
    return found


def test_the_extra_all_has_every_package_of_the_others() -> None:
    assert names(EXTRAS["all"]) == set.union(*(names(EXTRAS[extra]) for extra in EXTRAS))


def test_extras_are_for_users() -> None:
    """Tools for work on windeck are in dependency groups, which the metadata of a wheel omits."""
    assert EXTRAS.keys().isdisjoint(GROUPS)
    assert {"pytest", "mypy"} <= names([*GROUPS["test"], *GROUPS["lint"]])


def test_the_tests_that_need_no_torch_can_be_installed_without_it() -> None:
    assert names(GROUPS["test"]).isdisjoint({"torch", *names(GROUPS["frameworks"])})


def test_the_makefile_installs_extras_and_groups_that_exist() -> None:
    calls = re.findall(r"\$\(call installed,([\w$(),]+?)(?:,([a-z ]+))?\)$", MAKEFILE, re.MULTILINE)
    assert len(calls) == 4
    for extras, groups in calls:
        assert set(extras.split("$(comma)")) <= EXTRAS.keys()
        assert set(groups.split()) <= GROUPS.keys()
