"""Warnings name the line of the user, however deep in windeck they are issued."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import numpy as np
import pytest

import windeck as wd

SOURCES = Path(wd.__file__).parent


def test_one_function_issues_warnings() -> None:
    """A level that is counted by hand is wrong as soon as a call is one frame deeper."""
    issuing = [path for path in SOURCES.rglob("*.py") if "stacklevel" in path.read_text()]
    assert issuing == [SOURCES / "_util" / "warning.py"]


def windows() -> wd.Windows:
    values = {"id": np.repeat(["a", "b"], [9, 2]), "x": np.arange(11.0)}
    return wd.Windows(wd.Table.from_columns(values, id_columns="id"), context_length=3)


def test_the_line_of_the_user_is_named() -> None:
    with pytest.warns(UserWarning, match="shorter than a window") as caught:
        made = windows()
    for latest in (made.latest, partial(made.latest), lambda: list(map(wd.Windows.latest, [made]))):
        with pytest.warns(UserWarning, match="shorter than a context") as later:
            latest()
        caught.list.extend(later)
    assert [warning.filename for warning in caught] == [__file__] * 4
