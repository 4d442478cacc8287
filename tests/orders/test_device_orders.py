"""Permutations as torch operations: the values of the core, on `cpu` and on CUDA."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch._subclasses.fake_tensor import FakeTensorMode

from support.internals import planted
from support.meta_device import META, moved
from windeck import Permutation
from windeck._core import hash_words, permute_keyed
from windeck.device_orders import DevicePermutation, KeyedPermutations, permute

DEVICES = [
    "cpu",
    pytest.param(
        "cuda",
        marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no GPU"),
    ),
]
# The core walks from every value; of the largest sizes it takes one pass or two.
SIZES = st.one_of(st.integers(1, 40), st.integers(1, 1000), st.integers(1, 2**62))
WORDS = st.integers(0, 2**64 - 1)


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=150, deadline=None, derandomize=True, database=None)
@given(st.lists(SIZES, min_size=1, max_size=8), WORDS, st.integers(0, 2**32))
def test_keyed_permutations_are_those_of_the_core(
    device: str, sizes: list[int], seed: int, random: int
) -> None:
    """Samples of many orders, epochs and places are those of `permute_keyed`, bit for bit."""
    rng = np.random.default_rng(random)
    chosen = rng.integers(0, len(sizes), 30)
    epochs = rng.integers(0, 2 ** rng.integers(1, 63), 30)
    of_each = np.array(sizes)[chosen]
    places = rng.integers(0, of_each)
    expected = permute_keyed(of_each, chosen, epochs, places, seed=seed)
    orders = KeyedPermutations(torch.tensor(sizes, device=device), seed)
    found = orders.take(*(torch.tensor(one, device=device) for one in (chosen, epochs, places)))
    assert found.tolist() == expected.tolist()
    # Orders without samples do not matter to others.
    empty = KeyedPermutations(torch.tensor([*sizes, 0], device=device), seed)
    again = empty.take(*(torch.tensor(one, device=device) for one in (chosen, epochs, places)))
    assert again.tolist() == expected.tolist()


@pytest.mark.parametrize("size", [1, 2, 3, 100, 255, 256, 257, 1000])
def test_whole_epochs_of_a_keyed_permutation(size: int) -> None:
    """Every epoch of an order serves each sample once, and equals `Permutation`."""
    orders = KeyedPermutations(torch.tensor([5, size]), 7)
    places = torch.arange(size)
    for epoch in range(3):
        found = orders.take(torch.ones_like(places), torch.full_like(places, epoch), places)
        assert sorted(found.tolist()) == list(range(size))
        assert found.tolist() == list(Permutation(size, seed=hash_words(7, 1), epoch=epoch))


@pytest.mark.parametrize("device", DEVICES)
@settings(max_examples=100, deadline=None, derandomize=True, database=None)
@given(SIZES, WORDS, WORDS)
def test_a_permutation_has_the_samples_of_the_core(
    device: str, size: int, seed: int, epoch: int
) -> None:
    """Places of one order, tabulated or not, give the samples of `Permutation`."""
    order = Permutation(size, seed=seed, epoch=epoch)
    places = np.random.default_rng(size).integers(0, size, 20)
    found = DevicePermutation(order, torch.device(device)).take(torch.tensor(places, device=device))
    assert found.tolist() == order.take(places).tolist()


def test_no_operation_of_a_pass_mixes_devices() -> None:
    """All operations but the loop of passes are on the device of the orders."""
    orders = KeyedPermutations(torch.tensor([5, 1000]), 7)

    def one_pass(values: torch.Tensor, keys: torch.Tensor, *rest: torch.Tensor) -> torch.Tensor:
        return permute(values, keys.unbind(), rest[0])

    with FakeTensorMode(), planted("device_orders.walk", one_pass):
        wanted = [torch.empty(3, dtype=torch.int64, device=META) for _ in range(3)]
        found = moved(orders).take(*wanted)
    assert (found.device, found.dtype, found.shape) == (META, torch.int64, (3,))


def test_rounds_wrap_as_unsigned_numbers() -> None:
    """The rounds equal arithmetic on whole numbers of any size, for the largest domain."""
    keys = [2**63 - 3, 2**63 - 1] * 6 + [2**62 + 11]
    tensors = torch.tensor(keys).unbind()
    values = [0, 1, 2**62, 2**63 - 1, 123456789123456789]
    found = permute(torch.tensor(values), tensors, 63).tolist()
    expected = []
    for x in values:
        for factor, addend in zip(keys[:-1:2], keys[1:-1:2], strict=True):
            x = ((x ^ x >> 32) * factor + addend) % 2**63
        expected.append(((x ^ x >> 32) + keys[-1]) % 2**63)
    assert found == expected
