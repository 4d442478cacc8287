"""The include layers of the C++ sources.

Each noun (orders, windows, ...) is a folder in `cpp/include/windeck`, `cpp/src`, `cpp/bindings` and
`cpp/tests`. A noun includes only the nouns below it, the core includes neither Python nor the
bindings, and kernels include no functions of the standard library.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

CPP = Path(__file__).parents[1] / "cpp"

#: The nouns of the core, and those that each may include besides itself.
LAYERS: dict[str, set[str]] = {
    "base": set(),
    "orders": {"base"},
    "windows": {"base"},
    "tokens": {"base"},
    "checkpoint": {"base"},
    "gather": {"base", "windows"},
    "packing": {"base", "orders", "tokens"},
    "table": {"base", "checkpoint"},
}

#: Headers that kernels may include. They are compiled once for each instruction set: of an inline
#: function that several of them contain, the linker keeps any one, and that may use instructions
#: that the processor lacks.
KERNEL_HEADERS = {"cstddef", "cstdint", "immintrin.h", "type_traits"}

CORE = sorted([*CPP.glob("include/windeck/**/*.hpp"), *CPP.glob("src/**/*.[ch]pp")])
BINDINGS = sorted(CPP.glob("bindings/**/*.[ch]pp"))
KERNELS = sorted(CPP.glob("src/*/kernels/*.[ch]pp"))


def includes(path: Path, opening: str = '"') -> list[str]:
    """Return the names in the `#include` lines of a file, in quotes or (`opening="<"`) brackets."""
    pattern = rf'^\s*#\s*include\s*{opening}([^">]+)[">]'
    return re.findall(pattern, path.read_text(encoding="utf-8"), re.MULTILINE)


def noun(path: Path) -> str:
    """Return the folder that a file of the core belongs to."""
    parts = path.relative_to(CPP).parts
    return parts[2] if parts[0] == "include" else parts[1]


def found(name: str) -> Path:
    """Return the file of the core that an include names."""
    return CPP / "include" / name if name.startswith("windeck/") else CPP / "src" / name


def reachable(path: Path) -> Iterator[Path]:
    """Yield a file and all files of the core that it includes, directly or not."""
    seen, left = {path}, [path]
    while left:
        here = left.pop()
        yield here
        new = {found(name) for name in includes(here)} - seen
        seen |= new
        left += new


def named(path: Path) -> str:
    return str(path.relative_to(CPP))


@pytest.mark.parametrize("path", CORE, ids=named)
def test_the_core_includes_only_the_nouns_below(path: Path) -> None:
    for name in includes(path):
        assert found(name).is_file(), f"{name!r} is not a file of the core"
        allowed = LAYERS[noun(path)] | {noun(path)}
        assert noun(found(name)) in allowed, f"{noun(path)} must not include {name!r}"


@pytest.mark.parametrize("path", CORE, ids=named)
def test_the_core_includes_no_python(path: Path) -> None:
    assert not [n for n in includes(path, "<") if re.match(r"pybind11|Python\.h|numpy", n)]


@pytest.mark.parametrize("path", sorted(CPP.glob("include/windeck/**/*.hpp")), ids=named)
def test_public_headers_include_public_headers_only(path: Path) -> None:
    assert all(name.startswith("windeck/") for name in includes(path))


@pytest.mark.parametrize("path", BINDINGS, ids=named)
def test_bindings_include_the_public_headers_of_the_core(path: Path) -> None:
    for name in includes(path):
        folder = CPP / ("include" if name.startswith("windeck/") else "bindings")
        assert (folder / name).is_file(), f"{name!r} is neither a public header nor a binding"


@pytest.mark.parametrize("path", KERNELS, ids=named)
def test_kernels_include_no_functions_of_the_standard_library(path: Path) -> None:
    for source in reachable(path):
        extra = set(includes(source, "<")) - KERNEL_HEADERS
        assert not extra, f"{named(source)} includes {sorted(extra)}"


def test_every_noun_is_in_the_layers() -> None:
    assert {noun(path) for path in CORE} == set(LAYERS)


def test_layers_have_no_cycle() -> None:
    for below in LAYERS.values():
        for inner in below:
            assert LAYERS[inner] < below
