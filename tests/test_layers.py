"""Imports that the contracts of import-linter do not see, because they go through a package."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src"
FILES = sorted(path for path in SOURCES.rglob("*.py") if path.name != "__init__.py")


def imports_through_packages(module: str, program: str) -> Iterator[str]:
    """Yield the imports of names from a package that has the module, its submodules left out.

    Such a package imports its modules, so each of these imports is part of a cycle. The command
    line alone takes public names from `windeck`, which imports nothing of it.
    """
    words = module.split(".")
    packages = {".".join(words[:count]) for count in range(1, len(words))}
    for node in ast.walk(ast.parse(program)):
        if not isinstance(node, ast.ImportFrom) or node.module not in packages:
            continue
        if node.module == "windeck" and words[1] == "cli":
            continue
        folder = SOURCES.joinpath(*node.module.split("."))
        for name in node.names:
            is_module = (folder / f"{name.name}.py").exists() or (folder / name.name).is_dir()
            if not is_module and (node.module, name.name) != ("windeck", "_core"):
                yield f"{module}:{node.lineno}: {node.module}.{name.name}"


def test_no_module_imports_names_from_a_package_that_has_it() -> None:
    found: list[str] = []
    for path in FILES:
        module = ".".join(path.relative_to(SOURCES).with_suffix("").parts)
        found += imports_through_packages(module, path.read_text(encoding="utf-8"))
    assert not found


@pytest.mark.parametrize(
    ("package", "name", "is_found"),
    [
        ("windeck", "Loader", True),
        ("windeck.windows", "Windows", True),
        ("windeck", "_core", False),
        ("windeck.windows", "index", False),
        ("windeck.table", "Table", False),
    ],
)
def test_imports_through_packages_are_found(package: str, name: str, is_found: bool) -> None:
    program = f"def use():\n    from {package} import {name}"
    assert bool(list(imports_through_packages("windeck.windows.splits", program))) is is_found
