"""Imports of modules on first use, and of packages that may not be installed."""

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any

__all__ = ["has_torch", "imported", "lazy_attributes", "needs_torch"]


def has_torch() -> bool:
    """Return whether torch is installed, without importing it."""
    from importlib.util import find_spec

    try:
        return find_spec("torch") is not None
    except (ImportError, ValueError):  # an import hook refuses it; a module without a spec
        return False


@contextmanager
def needs_torch(what: str, *others: str) -> Iterator[None]:
    """Give the import of something that needs torch an error that says so.

    Parameters
    ----------
    what
        What needs it, for the error message.
    others
        Other packages that it needs.

    Raises
    ------
    ModuleNotFoundError
        If the body imports torch, or one of the others, and it is not installed.

    Examples
    --------
    >>> with needs_torch("windeck.Loader"):
    ...     raise ModuleNotFoundError("No module named 'torch'", name="torch")
    Traceback (most recent call last):
        ...
    ModuleNotFoundError: windeck.Loader needs torch, which is not installed: pip install torch
    """
    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in ("torch", *others):
            raise
        raise ModuleNotFoundError(
            f"{what} needs {package}, which is not installed: pip install {package}", name=package
        ) from None


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
