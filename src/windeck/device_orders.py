"""Permutations of the core as torch operations on int64 tensors, on any device.

int64 products and sums wrap around as those of unsigned numbers do, and a mask after each shift to
the right brings in zeros. So every value is that of ``cpp/include/windeck/orders/permutation.hpp``
and ``cpp/include/windeck/base/hash.hpp``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from windeck._core import ORDER_VERSION, Permutation, hash_words, round_keys
from windeck._util.imports import needs_torch

with needs_torch("windeck.device_orders"):
    import torch

__all__ = ["DevicePermutation", "KeyedPermutations", "permute"]

#: Sizes of which walking takes many passes, and the core keeps the whole order.
TABULATED = 256

# Constants of hash.hpp.
_GOLDEN = 0x9E3779B97F4A7C15
_FACTORS = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)

# Rounds of a permutation: each has a factor and an addend; one more addend comes last.
_ROUNDS = 6


def permute(
    values: torch.Tensor, keys: Sequence[torch.Tensor], bits: int | torch.Tensor
) -> torch.Tensor:
    """Return E(values) of ``cpp/include/windeck/orders/permutation.hpp``.

    int64 products and sums wrap around, and the mask keeps the bits that are right. Values are not
    negative, so a shift to the right brings in zeros.

    Parameters
    ----------
    values
        int64, in [0, 2^bits).
    keys
        Factor and addend of each round, and the last addend; int64 of shape (), or of the shape of
        `values`.
    bits
        Bits of the domain, at most 63; one number, or int64 of the shape of `values`.
    """
    shift, mask = (bits + 1) // 2, (1 << bits) - 1
    for factor, addend in zip(keys[:-1:2], keys[1:-1:2], strict=True):
        values = ((values ^ (values >> shift)) * factor + addend) & mask
    return ((values ^ (values >> shift)) + keys[-1]) & mask


def walk(
    values: torch.Tensor, keys: torch.Tensor, bits: int | torch.Tensor, sizes: int | torch.Tensor
) -> torch.Tensor:
    """Return the first of E(values), E(E(values)), ... that is below the sizes.

    Each pass waits for the device once: the number of passes depends on the values.

    Parameters
    ----------
    values
        int64 of shape (n,), in [0, sizes): other values may have no result.
    keys
        int64 of shape (13, n), or (13, 1) for equal keys; see `permute`.
    bits, sizes
        One number, or int64 of shape (n,).
    """
    found = permute(values, keys.unbind(), bits)
    left = outside = (found >= sizes).nonzero()[:, 0]
    while len(outside):
        keys, bits, sizes = (_rows_of(one, outside) for one in (keys, bits, sizes))
        again = permute(found[left], keys.unbind(), bits)
        found[left] = again
        outside = (again >= sizes).nonzero()[:, 0]
        left = left[outside]
    return found


def _rows_of(values: Any, rows: torch.Tensor) -> Any:
    """Return the values of some rows; one value for all rows as it is."""
    if isinstance(values, int) or values.shape[-1] == 1:
        return values
    return values.index_select(-1, rows)


class DevicePermutation:
    """A `Permutation` whose samples are tensors on a device.

    Of few samples the whole order is copied there; more samples are computed.
    """

    def __init__(self, order: Permutation, device: torch.device) -> None:
        self._size = len(order)
        self._table: torch.Tensor | None = None
        if self._size <= TABULATED:
            self._table = torch.from_numpy(order.slice(0, self._size)).to(device)
        else:
            self._bits, keys = round_keys(order)
            self._keys = torch.tensor(keys, dtype=torch.int64, device=device)[:, None]

    def take(self, places: torch.Tensor) -> torch.Tensor:
        """Return the samples at places in [0, size), an int64 tensor of shape (n,)."""
        if self._table is not None:
            return self._table.index_select(0, places)
        return walk(places, self._keys, self._bits, self._size)


class KeyedPermutations:
    """The orders ``Permutation(sizes[s], seed=hash_words(seed, s), epoch=c)`` for all s and c.

    Equal to `windeck._core.permute_keyed`. O(orders) time and 24 bytes for each order.

    Parameters
    ----------
    sizes
        int64 of shape (orders,), on the device. An order of size 0 cannot be used.
    seed
        In [0, 2^64).
    """

    def __init__(self, sizes: torch.Tensor, seed: int) -> None:
        numbers = torch.arange(len(sizes), device=sizes.device)
        seeds = _absorb(_scalar(hash_words(seed)), numbers)
        version = _scalar(hash_words(ORDER_VERSION))
        self._state = _absorb(_absorb(version, sizes), seeds)
        self._bits = torch.full_like(sizes, 8)
        for bit in range(8, 63):
            self._bits += (sizes - 1) >> bit > 0
        # The only sample of an order is found without walking through the whole domain.
        self._limits = torch.where(sizes == 1, torch.iinfo(torch.int64).max, sizes)
        steps = [_scalar(_GOLDEN * (i + 1)) for i in range(2 * _ROUNDS + 1)]
        # Factors are 5 modulo 8, and addends odd, but for the last one.
        kept, bits = [~7, ~1] * _ROUNDS + [~0], [5, 1] * _ROUNDS + [0]
        constants = torch.tensor([steps, kept, bits], dtype=torch.int64, device=sizes.device)
        self._steps, self._kept, self._set = constants[:, :, None].unbind()

    def take(
        self, orders: torch.Tensor, epochs: torch.Tensor, places: torch.Tensor
    ) -> torch.Tensor:
        """Return the sample at a place of an epoch of an order, for each.

        All are int64 of shape (n,): numbers of orders, epochs of at least 0, places in [0, size).
        """
        bits = self._bits.index_select(0, orders)
        limits = self._limits.index_select(0, orders)
        states = _absorb(self._state.index_select(0, orders), epochs)
        keys = _mix(states + self._steps)
        keys = ((keys & self._kept) | self._set) & ((1 << bits) - 1)
        found = walk(places, keys, bits, limits)
        return torch.where(limits == torch.iinfo(torch.int64).max, 0, found)


# --- hash.hpp --------------------------------------------------------------------------------


def _scalar(word: int) -> int:
    """Return the signed number with the lowest 64 bits of a word."""
    return (word + 2**63) % 2**64 - 2**63


def _mix(values: torch.Tensor) -> torch.Tensor:
    """Return mix(values) of hash.hpp, as signed numbers."""
    values = (values ^ _shifted(values, 30)) * _scalar(_FACTORS[0])
    values = (values ^ _shifted(values, 27)) * _scalar(_FACTORS[1])
    return values ^ _shifted(values, 31)


def _shifted(values: torch.Tensor, bits: int) -> torch.Tensor:
    """Return unsigned numbers shifted to the right."""
    return (values >> bits) & ((1 << (64 - bits)) - 1)


def _absorb(state: int | torch.Tensor, words: torch.Tensor) -> torch.Tensor:
    """Return absorb(state, words) of hash.hpp."""
    return _mix(_mix(words + _scalar(_GOLDEN)) ^ state)
