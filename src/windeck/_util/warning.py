"""Warnings at the line of the user that led to them."""

from __future__ import annotations

import sys
import warnings

__all__ = ["warn"]


def warn(message: str, category: type[Warning] = UserWarning) -> None:
    """Issue a warning at the innermost frame outside of windeck.

    `skip_file_prefixes` of `warnings.warn` does the same from Python 3.12 on.
    """
    level, frame = 1, sys._getframe()
    while frame.f_back is not None and _is_inside(frame.f_globals.get("__name__", "")):
        level, frame = level + 1, frame.f_back
    warnings.warn(message, category, stacklevel=level)


def _is_inside(module: str) -> bool:
    return module.partition(".")[0] == "windeck"
