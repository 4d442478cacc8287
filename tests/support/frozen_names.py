"""The public names as text, one line each, with kinds and signatures.

Of a parameter its name, kind and default count. Annotations do not: they name aliases of types
that are no part of what is promised, and are printed differently by every version of Python.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import cached_property
from importlib import import_module
from typing import Any

MODULES = (
    "windeck",
    "windeck.adapters",
    "windeck.adapters.chronos2",
    "windeck.adapters.darts",
    "windeck.adapters.gluonts",
    "windeck.adapters.neuralforecast",
    "windeck.adapters.pytorch_forecasting",
    "windeck.adapters.time_series_library",
    "windeck.checkpoint",
    "windeck.checkpoint.stores",
    "windeck.checkpoint.dcp",
    "windeck.checkpoint.safetensors",
)


def described() -> str:
    """Return the lines of all modules."""
    return "\n".join(line for name in MODULES for line in _module(name)) + "\n"


def _module(name: str) -> Iterator[str]:
    module = import_module(name)
    yield f"module {name}"
    for public in sorted(module.__all__):
        yield from (f"  {line}" for line in _named(public, getattr(module, public)))


def _named(name: str, value: Any) -> Iterator[str]:
    if inspect.ismodule(value):
        yield f"{name}: module"
    elif inspect.isclass(value):
        made_by_users = name not in _NOT_MADE_BY_USERS and not getattr(value, "_is_protocol", False)
        yield f"class {name}{_signature(value) if made_by_users else ''}"
        yield from (f"  {line}" for line in _members(value))
    elif callable(value):
        yield f"def {name}{_signature(value)}"
    else:
        shown = "" if name == "__version__" else f" = {value!r}"
        yield f"{name}: {type(value).__name__}{shown}"


#: Classes whose objects come out of functions and class methods: how they are made is internal.
_NOT_MADE_BY_USERS = {"Checkpoint", "SavedTable", "Table"}


def _members(kind: type) -> Iterator[str]:
    """Yield public methods and properties, without those inherited from other packages."""
    ours = [base for base in kind.__mro__ if base.__module__.split(".")[0] == "windeck"]
    names = sorted({name for base in ours for name in vars(base) if _is_public(name)})
    for name in names:
        value = next(vars(base)[name] for base in ours if name in vars(base))
        if isinstance(value, (classmethod, staticmethod)):
            yield f"{type(value).__name__} {name}{_signature(value.__func__)}"
        elif isinstance(value, (property, cached_property)) or inspect.isdatadescriptor(value):
            yield f"property {name}{' (may be set)' if getattr(value, 'fset', None) else ''}"
        elif callable(value):
            yield f"def {name}{_signature(value)}"
        else:
            yield f"{name} = {value!r}"


#: Special methods that are part of what a class promises.
_SPECIAL = {"__getitem__", "__getitems__", "__len__", "__iter__", "__contains__", "__enter__"}
_SPECIAL |= {"__exit__", "__call__", "__bytes__", "__bool__", "__deepcopy__"}


def _is_public(name: str) -> bool:
    return name in _SPECIAL or not name.startswith("_")


def _signature(value: Callable[..., Any]) -> str:
    if _is_native(value):
        first = (inspect.getdoc(value) or "").strip().splitlines()
        return f": {_plain(first[0])}" if first else ""
    found = inspect.signature(value)
    public = [one for name, one in found.parameters.items() if not name.startswith("_")]
    plain = [one.replace(annotation=one.empty) for one in public]
    return _plain(str(found.replace(parameters=plain, return_annotation=found.empty)))


def _is_native(value: Any) -> bool:
    """Return True for objects of the extension, whose signatures are in docstrings only."""
    return (
        type(value).__name__.startswith(("pybind11", "builtin", "instancemethod"))
        or getattr(value, "__module__", "") == "windeck._core"
    )


def _plain(text: str) -> str:
    """Return the text without the paths of modules."""
    return re.sub(r"\b(windeck|numpy|typing|collections)\.([\w.]*\.)?(?=\w)", "", text)
