"""Tests of the tests: they use what packages offer, so that modules of windeck can move.

What no package offers is named in `support/internals.py` alone, where it is replaced.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support import internals

TESTS = Path(__file__).parent
SOURCES = TESTS.parent / "src"
INTERNALS = TESTS / "support" / "internals.py"
FILES = sorted({*TESTS.rglob("*.py")} - {INTERNALS, Path(__file__)})

#: Modules that offer names as packages do: documented ones, the core, and the command line.
MODULES = {
    "windeck._core",
    "windeck.checkpoint.accelerate",
    "windeck.checkpoint.lightning",
    "windeck.checkpoint.transformers",
    "windeck.cli.main",
    "windeck.device_orders",
    "windeck.orders",
    "windeck.shuffle_quality",
}
#: Attributes that named tuples, argparse and tensors have as well.
OTHERS = {"_actions", "_asdict", "_fields", "_replace", "_version"}
#: The most inner names in `support/internals.py`: they only shrink.
MOST_REPLACED = 116


@cache
def offered(package: str) -> set[str]:
    """Return the names in the `__all__` of a package, without importing it."""
    path = SOURCES.joinpath(*package.split("."), "__init__.py")
    tree = ast.parse(path.read_text(encoding="utf-8")) if path.exists() else ast.Module([], [])
    return {
        name
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
        for name in ast.literal_eval(node.value)
    }


def is_offered(module: str, name: str) -> bool:
    """Return whether a name may be imported from a module."""
    if f"{module}.{name}" in MODULES or offered(f"{module}.{name}"):
        return True
    return name in offered(module) or (module in MODULES and not name.startswith("_"))


def nodes_of(program: str) -> list[ast.AST]:
    """Return all nodes of a program, which each search would walk through once more."""
    return list(ast.walk(ast.parse(program)))


def deep_imports(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the imports of names that no package offers, in programs in strings too."""
    for node in nodes:
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "windeck":
            names = [(str(node.module), name.name) for name in node.names]
        elif isinstance(node, ast.Import):
            names = [tuple(f".{one.name}".rsplit(".", 1)) for one in node.names]  # type: ignore[misc]
            names = [(one[1:], name) for one, name in names if one.startswith(".windeck")]
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            found = re.findall(r"from (windeck[\w.]*) import ([\w, ]+)", node.value)
            names = [(module, name.split()[0]) for module, all in found for name in all.split(",")]
        else:
            continue
        yield from (f"{node.lineno}: {m}.{name}" for m, name in names if not is_offered(m, name))


@cache
def private_names() -> set[str]:
    """Return the names with an underscore that windeck defines."""
    names: set[str] = set()
    for path in (SOURCES / "windeck").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, (ast.FunctionDef, ast.ClassDef)):
                names.add(node.name)
            elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
                names.add(node.attr)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                names.add(node.id)
    return {name for name in names if name.startswith("_") and not name.endswith("_")}


def private_attributes(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the attributes that have a private name of windeck, and not of a class of the test."""
    own = {getattr(node, "name", "") for node in nodes} | OTHERS
    read = [node for node in nodes if isinstance(node, ast.Attribute)]
    own |= {node.attr for node in read if getattr(node.value, "id", "") in ("self", "cls")}
    private = private_names() - own
    for node in read:
        if node.attr in private and getattr(node.value, "id", "") != "os":
            yield f"{node.lineno}: {ast.unparse(node)}"


def replacements(nodes: list[ast.AST]) -> Iterator[str]:
    """Yield the calls that replace attributes of modules and classes of windeck."""
    names = {
        (name.asname or name.name).split(".")[0]
        for node in nodes
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for name in node.names
        if (getattr(node, "module", None) or name.name).startswith(("windeck", "support.internals"))
    }
    for node in nodes:
        if isinstance(node, ast.Call) and node.args:
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if called in ("setattr", "delattr", "patch", "object"):
                target = ast.unparse(node.args[0])
                if target.split(".")[0] in names or re.match("['\"]windeck", target):
                    yield f"{node.lineno}: {ast.unparse(node)}"


def test_tests_use_what_packages_offer() -> None:
    found = []
    for path in FILES:
        nodes = nodes_of(path.read_text(encoding="utf-8"))
        for find in (deep_imports, private_attributes, replacements):
            found += [f"{path}:{place}" for place in find(nodes)]
    assert not found


@pytest.mark.parametrize(
    "line",
    [
        "from windeck.io.blocks import open_parted",
        "from windeck.io import blocks",
        "from windeck.io import _missing",
        "import windeck.io.blocks",
        "from windeck.orders import _prepare",
        "run('from windeck.io.blocks import open_parted')",
    ],
)
def test_deep_imports_are_found(line: str) -> None:
    assert list(deep_imports(nodes_of(line)))


def test_names_of_packages_are_no_deep_imports() -> None:
    program = "import windeck as wd\nfrom windeck import Loader, checkpoint\nimport windeck.io\n"
    program += "from windeck.io import filesystem\nfrom windeck.checkpoint import stores\n"
    assert not list(deep_imports(nodes_of(program)))


def test_private_attributes_are_found() -> None:
    def found(program: str) -> list[str]:
        return list(private_attributes(nodes_of(program)))

    assert found("loader._sharding")
    assert not found("class A:\n    def f(self): self._sharding\nA()._sharding")
    assert not found("commit._replace(step=1), os._exit(1), torch._dynamo")


def test_replacements_are_found() -> None:
    def found(line: str) -> list[str]:
        imports = "import windeck as wd\nfrom windeck.io import filesystem\n"
        return list(replacements(nodes_of(imports + line)))

    assert found("patch.setattr(filesystem, 'load', None)")
    assert found("mock.patch.object(wd.Loader, 'steps', 1)")
    assert found("patch.setattr('windeck.io.csv.x', 1)")
    assert found("setattr(filesystem, 'load', None)")
    assert not found("patch.setattr(os, 'fsync', None)")


def test_internals_are_there_and_used() -> None:
    used = " ".join(path.read_text(encoding="utf-8") for path in FILES)
    assert not [name for name in internals.MODULE_OF if not re.search(rf"['\"]{name}['\"]", used)]
    assert len(internals.MODULE_OF) <= MOST_REPLACED
