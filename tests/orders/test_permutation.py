"""The native `Permutation` against its model, on every small size and around powers of two."""

from __future__ import annotations

import copy
import pickle
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from models.reference_permutation import ReferencePermutation
from support.programs import printed

LARGEST = 2**63 - 1
WORDS = st.integers(0, 2**64 - 1)
SIZES = st.integers(1, LARGEST) | st.integers(0, 62).flatmap(
    lambda k: st.integers(max(1, 2**k - 2), 2**k + 2)
)


def assert_is_a_bijection(order: wd.Permutation) -> None:
    """Assert that all samples occur once, and that the inverse finds each."""
    samples = order[:]
    positions = np.arange(len(order))
    seen = np.zeros(len(order), dtype=bool)
    seen[samples] = True
    assert seen.all()
    np.testing.assert_array_equal(order.index(samples), positions)


@pytest.mark.parametrize("start", range(1, 4097, 512))
def test_every_size_up_to_4096_is_a_bijection(start: int) -> None:
    for size in range(start, start + 512):
        assert_is_a_bijection(wd.Permutation(size, seed=size, epoch=3))


@pytest.mark.parametrize("start", range(1, 1200, 300))
def test_every_small_size_equals_the_model(start: int) -> None:
    for size in range(start, start + 300):
        model = ReferencePermutation(size, seed=9, epoch=size)
        np.testing.assert_array_equal(
            wd.Permutation(size, seed=9, epoch=size)[:], model.slice(0, size)
        )


# The first three are sizes at which Grain's index_shuffle repeats a sample and misses one.
@pytest.mark.parametrize("size", [65537, 262145, 1048577, 65535, 65536, 2**20 - 1, 2**20])
def test_sizes_around_powers_of_two_in_full(size: int) -> None:
    assert_is_a_bijection(wd.Permutation(size, seed=42))


@pytest.mark.parametrize("k", range(1, 63))
def test_round_trips_around_every_power_of_two(k: int) -> None:
    random = np.random.default_rng(k)
    for size in (2**k - 1, 2**k, 2**k + 1):
        order, model = wd.Permutation(size, seed=k, epoch=k), ReferencePermutation(size, k, k)
        positions = random.integers(0, size, 300)
        samples = order.take(positions)
        np.testing.assert_array_equal(samples, model.take(positions))
        np.testing.assert_array_equal(order.index(samples), positions)
        np.testing.assert_array_equal(model.index(samples), positions)
        assert [order[int(p)] for p in positions[:5]] == samples[:5].tolist()
        assert [order.index(s) for s in samples[:5]] == positions[:5].tolist()


@settings(deadline=None)
@given(size=SIZES, seed=WORDS, epoch=WORDS, data=st.data())
def test_any_order_equals_the_model(size: int, seed: int, epoch: int, data: st.DataObject) -> None:
    order, model = (
        wd.Permutation(size, seed=seed, epoch=epoch),
        ReferencePermutation(size, seed, epoch),
    )
    start = data.draw(st.integers(0, size - 1))
    stop = min(size, start + data.draw(st.integers(1, 40)))
    samples = order.slice(start, stop)
    assert samples.min() >= 0
    assert samples.max() < size
    assert len(np.unique(samples)) == stop - start
    np.testing.assert_array_equal(samples, model.slice(start, stop))
    np.testing.assert_array_equal(order.index(samples), np.arange(start, stop))


@pytest.mark.parametrize("size", [300, 1000, 70_000, 5_000_000, 2**33 + 5, 2**40])
def test_bulk_reads_do_not_depend_on_how_they_are_cut(size: int) -> None:
    order = wd.Permutation(size, seed=1)
    whole = order.slice(0, min(size, 60_000))
    for length in (1, 7, 63, 64, 1023, 1024, 1025, 4099):
        parts = [order.slice(a, min(a + length, len(whole))) for a in range(0, len(whole), length)]
        np.testing.assert_array_equal(np.concatenate(parts[:200]), whole[: 200 * length])
    backwards = np.arange(len(whole))[::-1]
    np.testing.assert_array_equal(order.take(backwards), whole[::-1])
    strided = np.repeat(np.arange(len(whole)), 2)[::2]
    np.testing.assert_array_equal(order.take(strided), whole)


DIGEST = """
import hashlib, numpy as np, windeck as wd
digest = hashlib.blake2b()
for size in (100, 257, 4096, 70_001, 2**31 + 1, 2**32, 2**32 + 1, 2**45 + 3, 2**62, 2**63 - 1):
    order = wd.Permutation(size, seed=11, epoch=5)
    samples = order.slice(max(0, size - 5001), size)
    digest.update(samples.tobytes())
    digest.update(order.index(samples).tobytes())
print(wd._core.simd(), digest.hexdigest())
"""


def digest_with(level: str) -> tuple[str, str]:
    """Return the instruction set and a digest of orders, in a process that requests `level`."""
    used, digest = printed(DIGEST, WINDECK_SIMD=level).split()
    return used, digest


def test_all_instruction_sets_give_the_same_bits() -> None:
    available = ("baseline", "avx2", "avx512")
    levels = available[: available.index(wd._core.simd()) + 1]
    found = [digest_with(level) for level in levels]
    assert tuple(used for used, _ in found) == levels
    assert len({digest for _, digest in found}) == 1


def test_seeds_and_epochs_are_hashed_not_added() -> None:
    first, second = wd.Permutation(10_000, seed=42, epoch=1), wd.Permutation(10_000, seed=43)
    # Two independent orders agree in about one place.
    assert (first[:] == second[:]).sum() < 10
    assert (
        len({tuple(wd.Permutation(50, seed=s, epoch=e)[:]) for s in range(20) for e in range(20)})
        == 400
    )


def test_eight_threads_share_one_order() -> None:
    order = wd.Permutation(1_000_003, seed=8)
    expected = order[:50_000]
    outs = [np.empty(50_000, dtype=np.int64) for _ in range(8)]

    def hammer(out: npt.NDArray[np.int64]) -> None:
        for _ in range(20):
            out[:] = -1
            order.slice(0, 50_000, out)
            np.testing.assert_array_equal(out, expected)
            np.testing.assert_array_equal(order.index(out[:1000]), np.arange(1000))
            assert order[17] == expected[17]

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(hammer, outs))


def test_python_behaviour() -> None:
    order = wd.Permutation(size=100, seed=3, epoch=4)
    assert (order.size, order.seed, order.epoch, len(order)) == (100, 3, 4, 100)
    assert repr(order) == "Permutation(100, seed=3, epoch=4)"
    assert order == wd.Permutation(100, seed=3, epoch=4)
    assert hash(order) == hash(wd.Permutation(100, seed=3, epoch=4))
    for other in (wd.Permutation(101, seed=3, epoch=4), wd.Permutation(100, seed=4, epoch=3), 7):
        assert order != other
    for twin in (pickle.loads(pickle.dumps(order)), copy.copy(order), copy.deepcopy(order)):
        assert twin == order
    samples = order[:].tolist()
    assert list(order) == samples
    assert order[-1] == samples[-1]
    assert order[True] == samples[1]
    assert order[np.int32(5)] == samples[5]
    for cut in (slice(3, 9), slice(-5, None), slice(90, 1000), slice(9, 3), slice(None, None, -7)):
        assert order[cut].tolist() == samples[cut]
    assert order.take([3, 1]).tolist() == [samples[3], samples[1]]
    assert order.take([]).tolist() == []
    assert wd.Permutation(100, seed=np.int64(3), epoch=4) == order
    assert len(wd.Permutation(LARGEST)) == LARGEST


def test_a_pickle_of_another_order_version_is_refused() -> None:
    order = wd.Permutation(100)
    version, size, seed, epoch = order.__getstate__()
    assert version == wd.ORDER_VERSION
    with pytest.raises(
        ValueError, match="order_version 2, expected 1: it would give another order"
    ):
        wd.Permutation.__new__(wd.Permutation).__setstate__((version + 1, size, seed, epoch))


def test_outputs_are_written_to_and_returned() -> None:
    order = wd.Permutation(1000)
    out = np.zeros(10, dtype=np.int64)
    assert order.slice(5, 15, out) is out
    np.testing.assert_array_equal(out, order[5:15])
    assert order.take(np.arange(10), out=out) is out
    np.testing.assert_array_equal(out, order[:10])
    samples = out.copy()
    assert order.index(samples, out=out) is out
    np.testing.assert_array_equal(out, np.arange(10))


def read_only() -> npt.NDArray[np.int64]:
    array = np.zeros(3, dtype=np.int64)
    array.flags.writeable = False
    return array


INTS = np.arange(3)
# Of any type, to be given what the types forbid.
MAKE: Any = wd.Permutation
ORDER: Any = wd.Permutation(1000)
BAD: list[tuple[Callable[[], object], type[Exception], str]] = [
    (lambda: MAKE(0), ValueError, "size is 0, expected an integer from 1 to 9223"),
    (lambda: MAKE(-1), ValueError, "size is -1, expected an integer from 1"),
    (lambda: MAKE(2**63), ValueError, "size is 9223372036854775808, expected an integer"),
    (
        lambda: MAKE(2**100),
        ValueError,
        "size is 1267650600228229401496703205376, expected",
    ),
    (lambda: MAKE(10.0), TypeError, "size is of type float, expected an integer"),
    (lambda: MAKE("10"), TypeError, "size is of type str, expected an integer"),
    (
        lambda: MAKE(10, seed=-1),
        ValueError,
        r"seed is -1, expected an integer from 0 to 2\^64 - 1",
    ),
    (
        lambda: MAKE(10, epoch=2**64),
        ValueError,
        "epoch is 18446744073709551616, expected",
    ),
    (lambda: MAKE(10, seed=None), TypeError, "seed is of type NoneType"),
    (
        lambda: ORDER[1000],
        IndexError,
        r"position 1000 is out of range, expected an integer in \[0, 1000\)",
    ),
    (lambda: ORDER[-1001], IndexError, "position -1001 is out of range"),
    (lambda: ORDER[10**40], IndexError, "is out of range"),
    (lambda: ORDER[-(10**40)], IndexError, "is out of range"),
    (lambda: ORDER[1.0], TypeError, "position is of type float, expected an integer"),
    (lambda: ORDER[0.0:3], TypeError, "slice indices must be integers"),
    (lambda: ORDER.slice(0, 1001), IndexError, "stop 1001 is out of range"),
    (lambda: ORDER.slice(-1, 5), IndexError, "start -1 is out of range"),
    (lambda: ORDER.slice(5, 4), ValueError, "stop is 4, expected at least start, 5"),
    (lambda: ORDER.slice(0.0, 4), TypeError, "start is of type float"),
    (
        lambda: ORDER.take(INTS.astype(float)),
        TypeError,
        "positions has dtype float64, expected int64",
    ),
    (
        lambda: ORDER.take(INTS.astype(np.int32)),
        TypeError,
        "positions has dtype int32, expected int64",
    ),
    (
        lambda: ORDER.take(INTS.astype(np.uint64)),
        TypeError,
        "positions has dtype uint64, expected int64",
    ),
    (lambda: ORDER.take(INTS.astype(">i8")), TypeError, "positions has dtype >i8, expected int64"),
    (
        lambda: ORDER.take(INTS.reshape(1, 3)),
        ValueError,
        r"positions has shape \(1, 3\), expected one dimension",
    ),
    (lambda: ORDER.take(5), TypeError, "positions is of type int, expected an int64 array"),
    (lambda: ORDER.take([1.5]), TypeError, "positions has dtype float64, expected int64"),
    (
        lambda: ORDER.take(np.array([0, 1000])),
        IndexError,
        r"position 1000 at \[1\] is out of range",
    ),
    (lambda: ORDER.take(np.array([0, 5, -1])), IndexError, r"position -1 at \[2\] is out of range"),
    (
        lambda: ORDER.take(np.array([-(2**63)])),
        IndexError,
        r"position -9223372036854775808 at \[0\]",
    ),
    (lambda: ORDER.take(np.array([LARGEST])), IndexError, r"position 9223372036854775807 at \[0\]"),
    (lambda: ORDER.index(1000), IndexError, "sample 1000 is out of range"),
    (lambda: ORDER.index(-1), IndexError, "sample -1 is out of range"),
    (lambda: ORDER.index(1.0), TypeError, "samples is of type float, expected an int64 array"),
    (lambda: ORDER.index(np.array([1000])), IndexError, r"sample 1000 at \[0\] is out of range"),
    (
        lambda: ORDER.take(INTS, [0, 0, 0]),
        TypeError,
        "out is of type list, expected an array of dtype int64",
    ),
    (lambda: ORDER.take(INTS, np.zeros(3)), TypeError, "out has dtype float64, expected int64"),
    (
        lambda: ORDER.take(INTS, np.zeros(4, np.int64)),
        ValueError,
        r"out has shape \(4,\), expected \(3,\)",
    ),
    (
        lambda: ORDER.take(INTS, np.zeros((3, 1), np.int64)),
        ValueError,
        r"out has shape \(3, 1\), expected \(3,\)",
    ),
    (lambda: ORDER.take(INTS, np.zeros(6, np.int64)[::2]), ValueError, "out is not contiguous"),
    (
        lambda: ORDER.take(INTS, read_only()),
        ValueError,
        "out is read-only, expected a writeable array",
    ),
    (
        lambda: ORDER.take(INTS, INTS),
        ValueError,
        "out overlaps positions, expected memory of its own",
    ),
    (
        lambda: ORDER.index(INTS, INTS),
        ValueError,
        "out overlaps samples, expected memory of its own",
    ),
    (
        lambda: ORDER.slice(0, 3, np.zeros(3, np.int32)),
        TypeError,
        "out has dtype int32, expected int64",
    ),
    (lambda: ORDER.slice(0, 3, read_only()), ValueError, "out is read-only"),
]


@pytest.mark.parametrize(("action", "error", "message"), BAD)
def test_bad_input(action: Callable[[], object], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        action()


def test_a_refused_call_writes_nothing() -> None:
    out = np.full(3, 7)
    with pytest.raises(IndexError):
        ORDER.take(np.array([0, 1, 1000]), out)
    assert (out == 7).all()


def test_more_than_memory_is_a_memory_error() -> None:
    with pytest.raises(MemoryError):
        wd.Permutation(10**15)[:]
