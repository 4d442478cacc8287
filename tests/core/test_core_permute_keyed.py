"""A few positions of many permutations equal those of single ones; wrong arguments raise."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from windeck import Permutation
from windeck._core import hash_words, permute_keyed


@given(st.lists(st.tuples(st.integers(1, 600), st.integers(0, 9), st.integers(0, 5)), max_size=9))
def test_many_permutations_equal_single_ones(given: list[tuple[int, int, int]]) -> None:
    sizes, keys, epochs = (np.array([one[i] for one in given], np.int64) for i in range(3))
    places = sizes // 2
    found = permute_keyed(sizes, keys, epochs, places, seed=2**64 - 1)
    wanted = [
        Permutation(size, seed=hash_words(2**64 - 1, key), epoch=epoch)[size // 2]
        for size, key, epoch in given
    ]
    assert found.tolist() == wanted


def test_positions_outside_of_their_order_raise() -> None:
    one = np.array([1])
    for size, epoch, place in ((3, 0, 3), (3, 0, -1), (3, -1, 0), (0, 0, 0)):
        with pytest.raises(IndexError, match="a position is outside of its order"):
            permute_keyed(np.array([size]), one, np.array([epoch]), np.array([place]), seed=0)
    with pytest.raises(ValueError, match="must have one length"):
        permute_keyed(one, one, one, np.array([0, 0]), seed=0)
