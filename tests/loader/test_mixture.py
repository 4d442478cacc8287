"""Mixtures compared with a counter for each part, and with their parts."""

from __future__ import annotations

import pickle
from concurrent.futures import ThreadPoolExecutor
from decimal import Decimal
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.mixture_model import Counted, Entries
from models.oracle import Numbers, Turn
from models.packed_model import Packed, assert_same
from support.mixture_cases import C4, mixed, packed_parts
from windeck import Loader, Mixture, Stream, Table, Windows
from windeck._util import LIMIT
from windeck.sources import RowSource
from windeck.sources import Stream as StreamProtocol

# First rows of columns that vary are what batches have all the same.
pytestmark = pytest.mark.filterwarnings("ignore:static covariates vary:UserWarning")


def one_by_one(mixture: Mixture, positions: list[int], entries: Entries) -> dict[str, Any]:
    """Build a batch from single rows of the parts, with the arrays of the whole batch."""
    counted = Counted(entries, max(positions, default=-1) + 1).served
    streams: list[Any] = list(mixture.parts.values())
    rows = [streams[part].gather_rows([own]) for part, own in (counted[p] for p in positions)]
    batch = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
    model = Packed(C4)
    return model.present({**batch, **model.whole(batch)})


def test_a_mixture_is_a_stream() -> None:
    mixture = mixed({"c4": 0.7, "wiki": 0.3})
    assert isinstance(mixture, StreamProtocol)
    assert mixture.epoch_length is None
    assert mixture.names == ("c4", "wiki")
    assert not isinstance(mixture, RowSource)  # It has no length.


@settings(deadline=None, max_examples=60)
@given(
    st.lists(st.integers(0, 5), min_size=3, max_size=3).filter(any),
    st.lists(st.integers(0, 90), min_size=1, max_size=14),
    st.integers(0, 2),
)
def test_every_row_is_the_parts_own_and_bounds_are_of_the_whole_batch(
    weights: list[int], positions: list[int], seed: int
) -> None:
    mixture = mixed(dict(zip(("c4", "wiki", "books"), weights, strict=True)), seed)
    total = np.gcd.reduce(weights)
    expected = one_by_one(mixture, positions, [(0, [int(w // total) for w in weights])])
    assert_same(mixture.gather(positions), expected)
    rows = mixture.gather_rows(positions)
    assert_same(mixture.present({**rows, **mixture.whole(rows)}), expected)
    out = {key: np.full_like(array, -7) for key, array in rows.items()}
    assert_same(mixture.gather(positions, out), expected)
    assert_same(out, rows)


def test_each_part_is_asked_once_for_a_batch() -> None:
    sources = [Numbers(50), Numbers(50), Numbers(50)]
    calls: list[tuple[int, int]] = []
    for number, source in enumerate(sources):
        source.watch = lambda indices, number=number: calls.append((number, len(indices)))
    mixture = Mixture({str(i): (source, 1) for i, source in enumerate(sources)})
    calls.clear()
    mixture.gather(np.arange(12))
    assert calls == [(0, 4), (1, 4), (2, 4)]


def test_rows_that_lie_side_by_side_are_written_straight_into_place() -> None:
    parts = packed_parts()
    mixture = Mixture({"c4": (parts["c4"], 1), "wiki": (parts["wiki"], 1)})
    assert mixture.locate(np.arange(4))[0].tolist() == [0, 1, 0, 1]
    for part in parts.values():
        part.outs = 0
    mixture.gather([0, 2, 4, 1, 3])  # The rows of c4, then those of wiki.
    assert [parts[name].outs for name in ("c4", "wiki")] == [1, 1]
    mixture.gather([0, 1, 2, 3])  # Now they alternate.
    assert [parts[name].outs for name in ("c4", "wiki")] == [1, 1]


def test_batches_are_aligned_writable_and_contiguous() -> None:
    mixture = mixed({"c4": 2, "wiki": 1, "books": 1})
    for positions in (np.arange(7), np.arange(0)):
        rows = mixture.gather_rows(positions)
        for array in rows.values():
            assert array.flags.c_contiguous
            assert array.flags.writeable
            assert not array.size or array.ctypes.data % 64 == 0
            assert len(array) == len(positions)


def test_a_batch_of_no_rows_has_the_parts_dtypes_and_shapes() -> None:
    batch = mixed({"c4": 2, "wiki": 1}).gather([])
    assert {key: (a.dtype, a.shape) for key, a in batch.items()} == {
        "inputs": (np.dtype("int64"), (0, 4)),
        "targets": (np.dtype("int64"), (0, 4)),
        "position_ids": (np.dtype("int64"), (0, 4)),
        "cu_seqlens": (np.dtype("int32"), (1,)),
    }


def test_sources_without_rows_are_mixed_as_they_are() -> None:
    sources = {"a": Numbers(7), "b": Numbers(5)}
    mixture = Mixture({name: (source, 0.5) for name, source in sources.items()}, seed=3)
    served = Counted([(0, [1, 1])], 40).served
    streams: list[Any] = list(mixture.parts.values())
    expected = [int(streams[part].samples([own])[0]) for part, own in served]
    assert mixture.gather(np.arange(40))["sample"].tolist() == expected
    # Each epoch of a part contains every sample once.
    first = [sample for (part, own), sample in zip(served, expected, strict=True) if part == 0]
    assert sorted(first[:7]) == sorted(first[7:14]) == list(range(7))


def test_parts_have_seeds_of_their_own() -> None:
    def orders(seed: int, *names: str) -> list[list[int]]:
        mixture = Mixture({name: (Numbers(30), 1) for name in names}, seed=seed)
        streams: dict[str, Any] = mixture.parts
        return [streams[name].samples(np.arange(30)).tolist() for name in names]

    a, b = orders(0, "a", "b")
    assert a != b
    assert orders(0, "b", "a") == [b, a]  # The seed depends on the name, not on the index.
    assert orders(1, "a") != [a]
    # Published: the meaning of saved states depends on it.
    part: Any = Mixture({"a": (Numbers(3), 1)}, seed=7).parts["a"]
    assert part.seed == 13938496480738387455


def test_streams_are_taken_with_the_order_and_seed_they_have() -> None:
    stream = Stream(Numbers(9), order=Turn, seed=5)
    mixture = Mixture({"a": (stream, 1), "b": (Numbers(4), 1)})
    assert mixture.parts["a"] is stream


def test_threads_reach_the_parts_that_take_them() -> None:
    packed = Packed(C4)

    class Plain(Packed):
        supports_threads = False

    mixture = Mixture({"a": (packed, 1), "b": (Plain(C4), 1)})
    assert mixture.supports_threads
    packed.threads.clear()
    part: Any = mixture.parts["b"]
    plain = part.source
    plain.threads.clear()
    mixture.gather([0, 1], threads=5)
    assert (packed.threads, plain.threads) == ([5], [None])
    assert not Mixture({"b": (Plain(C4), 1)}).supports_threads


def test_bits_of_bfloat16_pass_through() -> None:
    class Bits(Numbers):
        torch_dtypes = {"row": "bfloat16"}  # noqa: RUF012

    mixture = Mixture({"a": (Bits(5), 1), "b": (Bits(5), 1)})
    assert mixture.torch_dtypes == {"row": "bfloat16"}
    message = r"part 'b' has torch dtypes {} and not {'row': 'bfloat16'}, unlike part 'a'$"
    with pytest.raises(ValueError, match=message):
        Mixture({"a": (Bits(5), 1), "b": (Numbers(5), 1)})


@settings(deadline=None, max_examples=40)
@given(st.data())
def test_a_mixture_of_mixtures_is_counted_twice(data: st.DataObject) -> None:
    counts = st.lists(st.integers(1, 4), min_size=2, max_size=2)
    outer, inner = data.draw(counts), data.draw(counts)
    parts = packed_parts()
    core = Mixture({"wiki": (parts["wiki"], inner[0]), "books": (parts["books"], inner[1])}, seed=1)
    mixture = Mixture({"c4": (parts["c4"], outer[0]), "core": (core, outer[1])}, seed=2)
    reduced = [[n // int(np.gcd.reduce(c)) for n in c] for c in (outer, inner)]
    outside = Counted([(0, reduced[0])], 60).served
    inside = Counted([(0, reduced[1])], 60).served
    samples = mixture.samples(np.arange(60)).tolist()
    rows = []
    for (part, own), sample in zip(outside, samples, strict=True):
        if part == 0:
            stream: Any = mixture.parts["c4"]
            assert sample == [0, int(stream.samples([own])[0]), -1]
        else:
            which, own = inside[own]
            stream = list(core.parts.values())[which]
            assert sample == [1, which, int(stream.samples([own])[0])]
        rows.append(stream.gather([own])["inputs"])
    assert mixture.gather(np.arange(60))["inputs"].tolist() == np.concatenate(rows).tolist()
    for position, sample in enumerate(samples):
        epoch = mixture.epoch_of(sample, at=position)
        assert mixture.position_of([sample], epoch=epoch).tolist() == [position]


@settings(deadline=None)
@given(st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(any))
def test_positions_of_parts_lead_back(weights: list[int]) -> None:
    mixture = Mixture({str(i): (Numbers(4 + i), w) for i, w in enumerate(weights)})
    positions = np.arange(100)
    part, own = mixture.locate(positions)
    for which, name in enumerate(mixture.names):
        mine = part == which
        assert mixture.position_of_part(name, own[mine]).tolist() == positions[mine].tolist()
        assert mixture.position_in_part(name, 100) == mine.sum()
        if not weights[which]:
            assert mixture.position_of_part(name, [0, 5]).tolist() == [-1, -1]
    samples = mixture.samples(positions)
    assert samples.shape == (100, 2)
    for position in range(0, 100, 7):
        epoch = mixture.epoch_of(samples[position], at=position)
        assert mixture.position_of(samples[[position]], epoch=epoch).tolist() == [position]


def test_shares_are_told_with_their_rounding() -> None:
    mixture = Mixture({"a": (Numbers(5), 0.7), "b": (Numbers(5), Decimal("0.3"))})
    assert mixture.shares == {"a": 0.7, "b": 0.3}
    assert mixture.explain() == (
        "from position 0, in periods of 10 samples:\n"
        "  a: 0.700000 requested, 7 slots = 0.700000\n"
        "  b: 0.300000 requested, 3 slots = 0.300000\n"
        "  shares are exact"
    )
    exact = Mixture({"a": (Numbers(5), 1), "b": (Numbers(5), 1e-6)})
    assert exact.shares["b"] == 1 / 1_000_001
    assert exact.explain() == (
        "from position 0, in periods of 1,000,001 samples:\n"
        "  a: 0.999999 requested, 1,000,000 slots = 0.999999\n"
        "  b: 0.000001 requested, 1 slot = 0.000001\n"
        "  shares are exact"
    )
    tiny = Mixture({"a": (Numbers(5), 1), "b": (Numbers(5), 1e-30)})
    assert "rounded by at most 2.2e-19" in tiny.explain()
    thirds = Mixture({name: (Numbers(5), Fraction(1, 3)) for name in "abc"})
    assert thirds.shares == {"a": 1 / 3, "b": 1 / 3, "c": 1 / 3}


def test_far_positions_are_as_near_as_any() -> None:
    mixture = mixed({"c4": 0.5, "wiki": 0.3, "books": 0.2})
    far = 10**18
    assert far % 10 == 0
    part, own = mixture.locate(np.arange(far, far + 50))
    near, first = mixture.locate(np.arange(50))
    assert part.tolist() == near.tolist()
    before = [mixture.position_in_part(name, far) for name in mixture.names]
    assert sum(before) == far
    assert (own - first).tolist() == [before[p] for p in part.tolist()]
    assert mixture.gather([far])["inputs"].shape == (1, 4)
    assert mixture.locate([LIMIT - 1])[1][0] > far


def test_a_pickled_mixture_serves_the_same() -> None:
    mixture = mixed({"c4": 0.5, "wiki": 0.5}, seed=4, schedule=[(9, {"c4": 1, "wiki": 0})])
    again = pickle.loads(pickle.dumps(mixture))
    assert again.fingerprint == mixture.fingerprint
    assert_same(again.gather(np.arange(20)), mixture.gather(np.arange(20)))


def test_threads_share_a_mixture() -> None:
    mixture = mixed({"c4": 0.5, "wiki": 0.3, "books": 0.2}, schedule=SWITCH)
    batches = [list(range(start, start + 9)) for start in range(0, 180, 9)]
    expected = [mixture.gather(batch) for batch in batches]
    fresh = mixed({"c4": 0.5, "wiki": 0.3, "books": 0.2}, schedule=SWITCH)
    with ThreadPoolExecutor(8) as pool:
        for _ in range(3):
            for found, batch in zip(pool.map(fresh.gather, batches), expected, strict=True):
                assert_same(found, batch)


SWITCH = [(70, {"c4": 0, "wiki": 1, "books": 1})]


def test_a_part_whose_rows_change_is_told_of() -> None:
    class Fickle(Numbers):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            batch: dict[str, NDArray[Any]] = super().gather(indices)
            return batch if not len(indices) else {**batch, "row": batch["row"].astype("f8")}

    mixture = Mixture({"a": (Fickle(9), 1), "b": (Numbers(9), 1)})
    with pytest.raises(
        TypeError, match=r"^a batch has 'row' as float64 of .* alike in all batches"
    ):
        mixture.gather(np.arange(4))
    with pytest.raises(TypeError, match=r"^a batch has 'row' as float64 of .* alike in all b"):
        mixture.gather([0, 2, 1, 3])


def test_a_part_that_gives_another_number_of_rows_is_told_of() -> None:
    class Short(Numbers):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            batch: dict[str, NDArray[Any]] = super().gather(indices[:1])
            return batch

    mixture = Mixture({"a": (Short(9), 1), "b": (Numbers(9), 1)})
    with pytest.raises(
        TypeError,
        match=r"^the source returned .sample. of shape \(1,\) for 2 samples, expected 2 rows$",
    ):
        mixture.gather(np.arange(4))


def test_sources_that_do_not_write_into_out_are_mixed_all_the_same() -> None:
    class Deaf(Numbers):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            return super().gather(indices)

    def mixture(kind: type[Numbers]) -> Mixture:
        return Mixture({"a": (kind(9), 2), "b": (kind(9), 1)})

    for positions in (range(9), [0, 1, 3, 4, 2, 5], [2, 5]):
        assert_same(mixture(Deaf).gather(positions), mixture(Numbers).gather(positions))


@pytest.mark.parametrize("layout", ["btc", "bct", "columns"])
def test_windows_are_mixed(layout: str) -> None:
    def windows(rows: int, dtype: str) -> Windows:
        load = np.arange(rows, dtype=np.float64)
        load[::7] = np.nan
        table = Table.from_columns({"load": load, "kind": np.ones(rows, np.int64)})
        return Windows(
            table,
            context_length=5,
            prediction_length=2,
            target_columns=["load"],
            static_covariates=["kind"],
            layout=layout,  # type: ignore[arg-type]
            dtype=dtype,
        )

    for dtype in ("float32", "bfloat16"):
        mixture = Mixture({"a": (windows(50, dtype), 3), "b": (windows(30, dtype), 1)})
        part, own = mixture.locate(range(20))
        streams: list[Any] = list(mixture.parts.values())
        rows = [
            streams[which].gather([number])
            for which, number in zip(part.tolist(), own.tolist(), strict=True)
        ]
        batch = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
        assert_same(mixture.gather(range(20)), batch)
        tensors = next(iter(Loader(mixture, batch_size=20)))
        assert ("bfloat16" in {str(t.dtype).split(".")[1] for t in tensors.values()}) == (
            dtype == "bfloat16"
        )


def test_a_thousand_parts() -> None:
    parts = {f"part {i}": (Numbers(3 + i), 1 + i % 3) for i in range(1000)}
    mixture = Mixture(parts)
    batch = mixture.gather(range(4000))
    part = mixture.locate(range(4000))[0]
    counts = np.bincount(part, minlength=1000)
    total = sum(weight for _, weight in parts.values())
    exact = np.array([4000 * weight / total for _, weight in parts.values()])
    assert (np.abs(counts - exact) < 1).all()
    assert batch["sample"].shape == (4000,)
