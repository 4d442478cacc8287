"""Imports of what is asked for, when it is."""

from importlib import import_module
from typing import Any

__all__ = ["imported"]


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
