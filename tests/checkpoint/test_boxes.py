"""Tests of runs of elements as boxes, compared with NumPy's indexing."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest

from windeck.checkpoint.format import boxes_in_range, shape_of, slices, whole


@pytest.mark.parametrize("shape", [(), (1,), (5,), (3, 4), (2, 1, 3), (1, 4, 2), (2, 2, 2, 2)])
def test_pieces_hold_each_element_once_and_in_order(shape: tuple[int, ...]) -> None:
    array = np.arange(math.prod(shape)).reshape(shape)
    for start, stop in itertools.combinations_with_replacement(range(array.size + 1), 2):
        found: list[int] = []
        for box, place in boxes_in_range(shape, start, stop):
            assert place == start + len(found)
            found += array[slices(box)].ravel().tolist()
        assert found == list(range(start, stop))
        assert len(list(boxes_in_range(shape, start, stop))) <= max(1, 2 * len(shape))


def test_boxes_and_shapes() -> None:
    assert whole((2, 3)) == ((0, 2), (0, 3))
    assert shape_of(((4, 6), (3, 3))) == (2, 0)
