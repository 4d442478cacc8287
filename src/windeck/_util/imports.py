"""Imports of what is asked for, when it is."""

from collections.abc import Callable, Mapping
from importlib import import_module
from typing import Any

__all__ = ["imported", "lazy_attributes"]


def imported(module: str, name: str) -> Any:
    """Return what a module has under a name, which a handler of a signal may ask for as well.

    Raises
    ------
    RuntimeError
        If this thread is importing the module, and has not come to the name.
    """
    found = vars(import_module(module))
    if name not in found:
        raise RuntimeError(
            f"{module}.{name} is asked for while {module} is being imported, as by a signal "
            "handler that interrupts the import, expected to be asked for after it: let the "
            "handler set a flag, or use the function once before the handler is set"
        )
    return found[name]


def lazy_attributes(package: str, names_of: Mapping[str, tuple[str, ...]]) -> Callable[[str], Any]:
    """Return a ``__getattr__`` of a package that imports its public names on first use (PEP 562).

    Parameters
    ----------
    package
        Name of the package.
    names_of
        The public names that each of its modules defines.
    """
    module_of = {name: module for module, names in names_of.items() for name in names}

    def get(name: str) -> Any:
        if name not in module_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        return imported(f"{package}.{module_of[name]}", name)

    return get
