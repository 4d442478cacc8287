"""`quality` passes good shuffles, and each of its checks catches a planted fault."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

import windeck as wd
from models.reference_permutation import ReferencePermutation, hashed, many_orders

Indices = npt.NDArray[np.int64]
Factory = Callable[..., Any]


def fisher_yates(size: int, *, seed: int, epoch: int) -> Indices:
    return np.random.default_rng([seed, epoch]).permutation(size)


@lru_cache
def table(rounds: int, size: int) -> Indices:
    return many_orders(size, 2400, rounds=rounds)


def few_rounds(rounds: int, size: int, *, seed: int, epoch: int) -> Any:
    if size <= 256 and epoch == 0:
        return table(rounds, size)[seed]
    return ReferencePermutation(size, seed, epoch, rounds=rounds)


def plain_lcg(size: int, *, seed: int, epoch: int) -> Indices:
    """a = 5 alone: full period, and nothing else."""
    increment = hashed(seed, epoch) % 2**32 | 1
    return wd.LCG(size, multiplier=5, increment=increment, state=hashed(epoch, seed)).draw(size)


def grain(size: int, *, seed: int, epoch: int) -> Indices:
    """Grain's domain: ceil(log2(size - 1)) bits, one too few at 2^k + 1."""
    bits = max(8, math.ceil(math.log2(size - 1)))
    inner = ReferencePermutation(2**bits, seed, epoch)
    samples = inner.take(np.arange(size) % 2**bits)
    outside = samples >= size
    while outside.any():
        samples[outside] = inner.take(samples[outside])
        outside = samples >= size
    return samples


def added(size: int, *, seed: int, epoch: int) -> wd.Permutation:
    return wd.Permutation(size, seed=seed + epoch)


def translated(size: int, *, seed: int, epoch: int) -> Indices:
    """The orders of all seeds are one order, shifted."""
    return (wd.Permutation(size)[:] + hashed(seed, epoch) % size) % size


def rotated(size: int, *, seed: int, epoch: int) -> Indices:
    """The orders of all seeds are one order, begun elsewhere."""
    return np.roll(wd.Permutation(size)[:], hashed(seed, epoch) % size)


def of_one_sign(size: int, *, seed: int, epoch: int) -> Indices:
    """Fisher-Yates, and then made even."""
    order = fisher_yates(size, seed=seed, epoch=epoch)
    seen = np.zeros(size, dtype=bool)
    cycles = 0
    for start in range(size if size <= 256 else 0):
        cycles += not seen[start]
        while not seen[start]:
            seen[start] = True
            start = order[start]
    if (size - cycles) % 2:
        order[[0, 1]] = order[[1, 0]]
    return order


def biased(size: int, *, seed: int, epoch: int) -> Indices:
    """The well-known wrong shuffle: each place swapped with any place."""
    if size > 16:
        return fisher_yates(size, seed=seed, epoch=epoch)
    random = np.random.default_rng([seed, epoch])
    order = np.arange(size)
    for place, other in enumerate(random.integers(0, size, size)):
        order[[place, other]] = order[[other, place]]
    return order


def far_lag(size: int, *, seed: int, epoch: int) -> Indices:
    """Neighbours in value are 32 places apart."""
    if size < 64:
        return fisher_yates(size, seed=seed, epoch=epoch)
    pairs = fisher_yates(size // 2, seed=seed, epoch=epoch).reshape(-1, 32)
    return np.concatenate([2 * pairs, 2 * pairs + 1], axis=1).ravel()


def nearly_sorted(size: int, *, seed: int, epoch: int) -> Indices:
    """Each sample near its place: blocks of an eighth, shuffled inside."""
    random = np.random.default_rng([seed, epoch])
    return random.permuted(np.arange(size).reshape(min(size, 8), -1), axis=1).ravel()


FAULTS: dict[str, tuple[Factory, str]] = {
    "sequential": (wd.Sequential, "|correlation| of neighbours"),
    "far lag": (far_lag, "largest |correlation|, lags 2 to 64"),
    "plain LCG": (plain_lcg, "parity flips, off one half"),
    "2 rounds": (partial(few_rounds, 2), "distinct pair XORs"),
    "nearly sorted": (nearly_sorted, "position x value"),
    "plain LCG, low": (plain_lcg, "position x value, last bits"),
    "2 rounds, pairs": (partial(few_rounds, 2), "successors"),
    "plain LCG, pairs": (plain_lcg, "successors, last bits"),
    "displaced": (nearly_sorted, "mean displacement / size"),
    "2 rounds, bits": (partial(few_rounds, 2), "avalanche"),
    "epoch added to seed": (added, "alike but for a shift of samples"),
    "translation": (translated, "alike but for a shift of samples"),
    "rotation": (rotated, "alike but for a shift of positions"),
    "one sign": (of_one_sign, "even permutations of 256"),
    "3 rounds": (partial(few_rounds, 3), "first bit's difference, 256"),
    "2 rounds, first bit": (partial(few_rounds, 2), "first bit's difference, 4,096"),
    "wrong shuffle": (biased, "position x value, 16 over seeds"),
    "wrong shuffle of 4": (biased, "orders of 4 elements"),
}


@pytest.mark.parametrize("name", FAULTS)
def test_each_check_catches_a_planted_fault(name: str) -> None:
    factory, check = FAULTS[name]
    size = 4096 if name != "2 rounds, bits" else 65_536
    report = wd.quality(factory, size=size, orders=2)
    assert not report[check].passed, str(report)
    assert not report.passed


def test_every_check_has_its_planted_fault() -> None:
    report = wd.quality(fisher_yates, size=256, orders=1)
    assert {check for _, check in FAULTS.values()} == {check.name for check in report.checks}


def test_a_domain_one_bit_short_is_no_bijection() -> None:
    size = 65_537
    assert not wd.quality(grain(size, seed=1, epoch=0), limit=size).is_bijection
    assert wd.quality(wd.Permutation(size), limit=size).passed


@pytest.mark.parametrize("factory", [wd.Permutation, fisher_yates])
@pytest.mark.parametrize("size", [300, 4096])
def test_good_shuffles_pass(factory: Factory, size: int) -> None:
    report = wd.quality(factory, size=size, orders=4)
    assert report.passed, str(report)


@pytest.mark.parametrize("size", [2**21 + 1, 10**12, 2**62])
def test_huge_orders_pass(size: int) -> None:
    report = wd.quality(wd.Permutation(size, seed=3), limit=20_000)
    assert report.passed, str(report)
    assert (report.size, report.read) == (size, 20_000)


@dataclass(frozen=True)
class LostWhereItWas:
    """An order whose inverse is wrong."""

    order: wd.Permutation

    def __len__(self) -> int:
        return len(self.order)

    def take(self, positions: Indices) -> Indices:
        return self.order.take(positions)

    def index(self, samples: Indices) -> Indices:
        wrong: Indices = (self.order.index(samples) + 1) % len(self.order)
        return wrong


def test_a_wrong_inverse_is_no_bijection() -> None:
    assert not wd.quality(LostWhereItWas(wd.Permutation(1000))).is_bijection


def test_the_report_reads_well() -> None:
    text = str(wd.quality(wd.Sequential(1000)))
    assert text.splitlines()[0] == "Sequential(1000), size 1,000, 1,000 positions read"
    assert "Fisher-Yates" in text
    assert "FAILED" in text
    assert "bijection                                      yes" in text


def test_too_small_sizes_are_refused() -> None:
    with pytest.raises(ValueError, match=r"`size` must be at least 256 .*, got 10"):
        wd.quality(wd.Permutation(10))
    with pytest.raises(ValueError, match=r"`size` must be at least 256 .*, got 255"):
        wd.quality(wd.Permutation, size=255)
