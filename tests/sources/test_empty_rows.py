"""`windeck.sources.empty_rows`: arrays of a batch in memory of the pool."""

from __future__ import annotations

from enum import Enum
from types import MappingProxyType
from typing import Any

import numpy as np
import pytest

from windeck.sources import empty_rows


@pytest.mark.parametrize("count", [0, 1, 7])
def test_arrays_are_aligned_writable_and_apart(count: int) -> None:
    layout: dict[str, Any] = {
        "x": (np.dtype("f4"), (3,)),
        "time": (np.dtype("M8[s]"), ()),
        "none": (np.dtype(bool), (0, 2)),
        "text": (np.dtype("U3"), (2, 1)),
    }
    batch = empty_rows(layout, count)
    assert list(batch) == list(layout)
    for key, (dtype, shape) in layout.items():
        array = batch[key]
        assert (array.dtype, array.shape) == (dtype, (count, *shape))
        assert array.flags.writeable
        assert array.flags.c_contiguous
        assert array.ctypes.data % 64 == 0
    batch["x"][:], batch["time"][:] = 1, 0
    assert (batch["x"] == 1).all()
    assert (batch["time"] == np.datetime64(0, "s")).all()


def test_other_batches_do_not_share_their_memory() -> None:
    layout = {"x": (np.dtype("i8"), (5,))}
    first = empty_rows(layout, 3)["x"]
    first[:] = 7
    for number in range(20):
        empty_rows(layout, 3)["x"][:] = number
    assert (first == 7).all()


@pytest.mark.parametrize(
    ("layout", "count", "error", "message"),
    [
        ({"x": (np.dtype(object), ())}, 1, TypeError, r"^'x' has dtype object, expected values"),
        ({"x": 3}, 1, TypeError, r"^'x' has 3, expected a dtype and the shape of a row$"),
        (3, 1, TypeError, r"^layout is of type int, expected a dict of dtypes and shapes by key$"),
        ({}, 1.5, TypeError, r"^count is of type float, expected an integer$"),
        ({}, -1, ValueError, r"^count is -1, expected "),
        ({"x": (np.dtype("i8"), (2**62,))}, 2**10, (MemoryError, ValueError), "."),
        ({"x": (np.dtype("i8"), (2**40, 2**40))}, 1, MemoryError, "."),
        ({"x": (np.dtype("i8"), (2, -1))}, 1, ValueError, r"^'x' has rows of shape \(2, -1\), exp"),
        ({"x": (np.dtype("i1"), (1,) * 64)}, 1, ValueError, r"65 axes, of at most 64"),
    ],
)
def test_wrong_layouts_are_refused(layout: Any, count: Any, error: Any, message: str) -> None:
    with pytest.raises(error, match=message):
        empty_rows(layout, count)


def test_rows_have_as_many_axes_and_any_keys_as_numpy_and_dicts_allow() -> None:
    class Name(str, Enum):
        X = "x"

    layout: dict[Any, Any] = {Name.X: (np.dtype("i1"), (1,) * 30), 5: (np.dtype("i1"), ())}
    batch = empty_rows(MappingProxyType(layout), 2)
    assert list(batch) == [Name.X, 5]
    assert next(iter(batch)) is Name.X
    assert batch["x"].shape == (2, *[1] * 30)
