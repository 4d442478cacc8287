"""Streams: the epoch and sample of a position, and the inverse."""

from __future__ import annotations

import functools
import gc
import pickle
import weakref

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.oracle import Numbers, Turn, turned
from windeck import Permutation, Stream
from windeck.sources import EpochSource, Order, Source
from windeck.sources import Stream as StreamProtocol


class Reshuffled(Numbers):
    """An epoch source: place i of epoch e with seed s holds i + 100 * (e + 1) + s."""

    def __init__(self, size: int, offset: int = 0) -> None:
        super().__init__(size)
        self.offset = offset

    def at_epoch(self, epoch: int, /, *, seed: int) -> Reshuffled:
        return Reshuffled(self.size, 100 * (epoch + 1) + seed)

    def gather(
        self, indices: NDArray[np.int64], out: dict[str, NDArray[np.generic]] | None = None
    ) -> dict[str, NDArray[np.generic]]:
        return super().gather(indices + self.offset, out)


def test_ours_and_a_strangers_fit_the_protocols() -> None:
    assert isinstance(Numbers(3), Source)
    assert isinstance(Reshuffled(3), EpochSource)
    assert isinstance(Turn(3), Order)
    assert isinstance(Permutation(3), Order)
    assert isinstance(Stream(Numbers(3)), StreamProtocol)


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 9), st.lists(st.integers(0, 300), max_size=40))
def test_a_position_is_a_place_of_an_epochs_order(
    size: int, seed: int, positions: list[int]
) -> None:
    stream = Stream(Numbers(size), order=Turn, seed=seed)
    expected = [turned(size, p, seed) for p in positions]
    samples = stream.samples(np.array(positions, np.int64))
    assert samples.dtype == np.int64
    assert samples.tolist() == expected
    assert stream.gather(positions)["sample"].tolist() == expected


@settings(deadline=None)
@given(st.integers(1, 40), st.integers(0, 5))
def test_samples_are_found_back(size: int, epoch: int) -> None:
    stream = Stream(Numbers(size), seed=3)
    positions = np.arange(epoch * size, (epoch + 1) * size)
    samples = stream.samples(positions)
    assert sorted(samples) == list(range(size))
    assert stream.position_of(samples, epoch=epoch).tolist() == positions.tolist()


def test_the_default_order_is_the_permutation_of_seed_and_epoch() -> None:
    stream = Stream(Numbers(50), seed=9)
    for epoch in (0, 1, 2):
        order = Permutation(50, seed=9, epoch=epoch)
        found = stream.samples(np.arange(50) + 50 * epoch)
        np.testing.assert_array_equal(found, order.slice(0, 50))


def test_positions_of_several_epochs_are_one_call_of_the_source() -> None:
    source, calls = Numbers(5), []
    source.watch = lambda indices: calls.append(indices.tolist())
    batch = Stream(source, order=Turn).gather([3, 4, 5, 6, 12, 0])
    assert calls == [[turned(5, p) for p in (3, 4, 5, 6, 12, 0)]]
    assert batch["row"][:, 0].tolist() == [4 * sample for sample in calls[0]]


def test_batches_are_written_into_out() -> None:
    for source in (Numbers(5), Reshuffled(5)):
        stream = Stream(source)
        expected = stream.gather([3, 4, 5, 6])
        out = {key: np.zeros_like(array) for key, array in expected.items()}
        assert stream.gather([3, 4, 5, 6], out) is out
        for key, array in expected.items():
            np.testing.assert_array_equal(out[key], array)


def test_a_source_that_shuffles_inside_is_served_as_stored_by_epoch() -> None:
    stream = Stream(Reshuffled(4), seed=7)
    found = stream.gather([2, 3, 4, 5, 9])["sample"].tolist()
    assert found == [109, 110, 207, 208, 308]
    assert stream.gather([])["row"].shape == (0, 4)
    shuffled = Stream(Reshuffled(4), order=Turn, seed=7).gather([0, 1, 2, 3])["sample"]
    assert shuffled.tolist() == [107 + turned(4, p, 7) for p in range(4)]


def test_a_source_that_shuffles_inside_and_ignores_out_is_told_of() -> None:
    class Deaf(Reshuffled):
        def at_epoch(self, epoch: int, /, *, seed: int) -> Deaf:
            return Deaf(self.size, 100 * (epoch + 1) + seed)

        def gather(
            self, indices: NDArray[np.int64], out: object = None
        ) -> dict[str, NDArray[np.generic]]:
            return super().gather(indices)

    out: dict[str, NDArray[np.generic]] = {
        "sample": np.empty(3, np.int64),
        "row": np.empty((3, 4), np.float32),
    }
    message = r"^the source gave an array of its own for 'sample' instead of writing into `out`$"
    with pytest.raises(TypeError, match=message):
        Stream(Deaf(4), seed=7).gather([2, 3, 4], out)


def test_few_orders_are_kept() -> None:
    made: list[int] = []

    def counting(size: int, /, *, seed: int, epoch: int) -> Turn:
        made.append(epoch)
        return Turn(size, seed=seed, epoch=epoch)

    stream = Stream(Numbers(4), order=counting)
    for _ in range(5):
        stream.samples([2, 3, 4, 5])
    assert made == [0, 1]
    stream.samples(np.arange(0, 400, 4))
    assert len(made) == 100
    stream.samples([0])
    assert made[-1] == 0


def test_the_fingerprint_tells_source_order_and_seed() -> None:
    stream = Stream(Numbers(5), order=functools.partial(Turn), seed=2)
    assert stream.fingerprint == {
        "samples": 5,
        "order": "models.oracle.Turn()",
        "seed": 2,
        "source.name": "numbers",
        "source.size": 5,
    }
    assert Stream(Numbers(5)).fingerprint["order"] == "Permutation"


def test_threads_reach_only_sources_that_take_them() -> None:
    class Threaded(Numbers):
        supports_threads = True
        torch_dtypes = {"row": "bfloat16"}  # noqa: RUF012
        asked: int | None = None

        def gather(
            self,
            indices: NDArray[np.int64],
            out: dict[str, NDArray[np.generic]] | None = None,
            threads: int | None = None,
        ) -> dict[str, NDArray[np.generic]]:
            self.asked = threads
            return super().gather(indices, out)

    source = Threaded(5)
    stream = Stream(source)
    assert stream.supports_threads
    assert stream.torch_dtypes == {"row": "bfloat16"}
    stream.gather([1], threads=3)
    asked = [source.asked]
    stream.gather([1])
    assert [*asked, source.asked] == [3, None]
    assert not Stream(Numbers(5)).supports_threads
    Stream(Numbers(5)).gather([1], threads=3)


def test_a_stream_is_pickled_and_serves_the_same() -> None:
    stream = Stream(Numbers(9), order=functools.partial(Turn), seed=4)
    again = pickle.loads(pickle.dumps(stream))
    assert again.fingerprint == stream.fingerprint
    np.testing.assert_array_equal(again.samples(np.arange(30)), stream.samples(np.arange(30)))


def test_a_dropped_stream_lets_its_source_go_at_once() -> None:
    source = Numbers(5)
    gone = weakref.ref(source)
    stream = Stream(source)
    stream.gather([1, 2, 7])
    gc.disable()
    try:
        del source, stream
        assert gone() is None
    finally:
        gc.enable()


def test_a_trillion_samples_and_far_epochs() -> None:
    stream = Stream(Numbers(10**12), seed=1)
    positions = np.array([0, 10**12, 9 * 10**18])
    samples = stream.samples(positions)
    for position, sample in zip(positions.tolist(), samples.tolist(), strict=True):
        assert stream.position_of([sample], epoch=position // 10**12).tolist() == [position]


@pytest.mark.parametrize(
    ("positions", "error", "message"),
    [
        ([0.5], TypeError, r"^`positions` must be integers, got float64$"),
        (["a"], TypeError, r"^`positions` must be integers, got <U1$"),
        ([-1], IndexError, r"^`positions` must be at least 0, got -1$"),
        ([[1]], ValueError, r"^`positions` must be one-dimensional, got shape \(1, 1\)$"),
        (np.array([2**63], np.uint64), IndexError, r"^`positions` must be below 2\^63, got 92"),
    ],
)
def test_bad_positions(positions: object, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Stream(Numbers(5)).samples(positions)  # type: ignore[arg-type]


def test_bad_streams() -> None:
    with pytest.raises(ValueError, match=r"^the source has no samples$"):
        Stream(Numbers(0))
    with pytest.raises(TypeError, match=r"^expected a source .*, got list without gather, fing"):
        Stream([1, 2])  # type: ignore[arg-type]

    class Nameless:
        def __len__(self) -> int:
            return 5

        def gather(self, indices: object, out: object = None) -> dict[str, NDArray[np.generic]]:
            return {}

    # Raised by the constructor, not when the first state is saved.
    with pytest.raises(TypeError, match=r"^expected a source .*, got Nameless without fingerpr"):
        Stream(Nameless())  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^`order` must be a factory .*pass the class"):
        Stream(Numbers(5), order=Permutation(5))  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^`seed` must be at least 0, got -1$"):
        Stream(Numbers(5), seed=-1)
    with pytest.raises(TypeError, match=r"^`seed` must be an integer, got float 1.5$"):
        Stream(Numbers(5), seed=1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^order .* has 4 places, but the source 5 "):
        Stream(Numbers(5), order=lambda size, /, *, seed, epoch: Turn(4))
    with pytest.raises(IndexError, match=r"^sample 5 is out of range for 5 samples$"):
        Stream(Numbers(5)).position_of([5])


def test_a_source_whose_epochs_differ_in_length_is_refused() -> None:
    class Uneven(Reshuffled):
        def at_epoch(self, epoch: int, /, *, seed: int) -> Reshuffled:
            return Reshuffled(self.size + epoch)

    stream = Stream(Uneven(4))
    with pytest.raises(
        ValueError,
        match=r"same length, got 4 samples, but 5 in epoch 1",
    ):
        stream.gather([4])
