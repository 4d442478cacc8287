"""Validation of numeric arguments: bytes; and of format numbers."""

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windeck._util import LIMIT, check_bytes, check_format

UNITS = {
    "B": 1, "kB": 10**3, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "kiB": 2**10, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "TiB": 2**40,
}  # fmt: skip


@pytest.mark.parametrize("unit", UNITS)
@given(number=st.integers(0, 2000), halves=st.booleans(), space=st.sampled_from(["", " "]))
def test_text_is_a_number_and_a_unit(unit: str, number: int, halves: bool, space: str) -> None:
    text = f"{number}{'.5' if halves else ''}{space}{unit}"
    expected = number * UNITS[unit] + (UNITS[unit] // 2 if halves else 0)
    assert check_bytes("size", text, least=0) == expected


@given(st.integers(1, LIMIT))
def test_integers_are_themselves(number: int) -> None:
    assert check_bytes("size", number) == number
    assert check_bytes("size", np.int64(number)) == number


@given(st.integers(1, 2**53))
def test_whole_floats_are_integers(number: int) -> None:
    assert check_bytes("size", float(number)) == number


@pytest.mark.parametrize(
    ("value", "error", "message"),
    [
        ("8 apples", ValueError, "`size` must be bytes as text such as \"64MB\", got '8 apples'"),
        ("8", ValueError, "`size` must be bytes as text such as"),
        ("-8MB", ValueError, "`size` must be bytes as text such as"),
        ("8iB", ValueError, "`size` must be bytes as text such as"),
        ("", ValueError, "`size` must be bytes as text such as"),
        ("0MB", ValueError, "`size` must be at least 1, got 0"),
        ("99999999TB", ValueError, "`size` must be at most"),
        (2.5, ValueError, "`size` must be a whole number of bytes, got 2.5"),
        (float("nan"), ValueError, "`size` must be a whole number of bytes, got nan"),
        (float("inf"), ValueError, "`size` must be a whole number of bytes, got inf"),
        (-1, ValueError, "`size` must be at least 1, got -1"),
        (True, TypeError, "`size` must be an integer, got bool True"),
        (None, TypeError, "`size` must be an integer, got NoneType None"),
        (b"8MB", TypeError, "`size` must be an integer, got bytes"),
    ],
)
def test_other_values_are_refused(value: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=f"^{message}"):
        check_bytes("size", value)


@pytest.mark.parametrize("found", [0, 2, None, "1", 1.0, True, [1], 2**70])
def test_other_formats_are_refused(found: Any) -> None:
    later = ": a later windeck wrote it" if found in (2, 2**70) else ""
    text = "no format" if found is None else f"format {found!r}"
    message = re.escape(f"x.json has {text}, expected 1{later}")
    with pytest.raises(ValueError, match=f"^{message}$"):
        check_format("x.json", found, 1)
    check_format("x.json", 1, 1)
