"""Data that grow: the current epoch serves the previous source, the next one the larger source."""

from __future__ import annotations

import json
import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from models.oracle import Numbers, Turn
from models.packed_model import Packed, assert_same
from support.stream_states import load_stream_position, stream_state
from windeck import IterDataset, Loader, Mixture, Stream
from windeck._util import LIMIT

Grown = list[tuple[int, int]]


def model(size: int, grown: Grown, count: int, seed: int = 0) -> list[tuple[int, int, int]]:
    """Yield (epoch, size, sample) of each position, epoch by epoch."""
    found: list[tuple[int, int, int]] = []
    epoch = 0
    while len(found) < count:
        for position, bigger in grown:
            if position <= len(found):
                size = bigger
        by = 7 * seed + 3 * epoch
        found += [(epoch, size, (place + by) % size) for place in range(size)]
        epoch += 1
    return found[:count]


def turning(size: int, grown: Grown, seed: int = 0) -> Stream:
    more = [(position, Numbers(bigger)) for position, bigger in grown]
    return Stream(Numbers(size), order=Turn, seed=seed, grown=more)


growths = st.lists(
    st.tuples(st.integers(0, 80), st.integers(1, 12)), max_size=4, unique_by=lambda pair: pair[0]
).map(sorted)


@settings(deadline=None, max_examples=150)
@given(st.integers(1, 9), growths, st.integers(0, 3), st.randoms(use_true_random=False))
def test_epochs_are_counted_out_one_by_one(
    size: int, grown: Grown, seed: int, shuffle: Any
) -> None:
    stream = turning(size, grown, seed)
    expected = model(size, grown, 120, seed)
    positions = list(range(120))
    assert stream.samples(positions).tolist() == [sample for _, _, sample in expected]
    assert [stream.epoch_at(p) for p in positions] == [epoch for epoch, _, _ in expected]
    for position, (epoch, _, sample) in enumerate(expected):
        assert stream.position_of([sample], epoch=epoch).tolist() == [position]
    shuffle.shuffle(positions)
    batch = stream.gather(positions)
    assert batch["sample"].tolist() == [expected[p][2] for p in positions]


def test_an_epochs_length_is_none_where_epochs_differ() -> None:
    assert turning(5, [(7, 5)]).epoch_length == 5
    assert turning(5, [(7, 6)]).epoch_length is None
    assert turning(5, [(0, 6)]).epoch_length == 6
    with pytest.raises(IndexError, match=r"^sample 5 is out of range for 5 samples$"):
        turning(5, [(7, 6)]).position_of([5], epoch=1)
    assert turning(5, [(7, 6)]).position_of([5], epoch=2).tolist() == [10 + 5]


def test_packed_documents_grow_within_a_batch() -> None:
    small, big = Packed([3, 9, 1, 6]), Packed([3, 9, 1, 6, 8])  # 4 and 6 sequences.
    stream = Stream(small, seed=1, grown=[(5, big)])
    sources = [(small, 0, p) for p in range(4)] + [(small, 1, p) for p in range(4)]
    sources += [(big, 2, p) for p in range(6)] + [(big, 3, p) for p in range(6)]
    rows = [s.at_epoch(e, seed=1).gather_rows(np.array([p])) for s, e, p in sources]
    batch = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
    expected = small.present({**batch, **small.whole(batch)})
    assert_same(stream.gather(range(20)), expected)
    assert stream.documents_at([8])[0] == big.at_epoch(2, seed=1).documents(0)
    assert stream.document_positions(("c4", 0, 4), at=8).tolist() == [
        8 + s for s in big.at_epoch(2, seed=1).sequences_of(("c4", 0, 4))
    ]
    with pytest.raises(IndexError, match=r"^document 4 is out of range$"):
        stream.document_positions(("c4", 0, 4), at=7)


@settings(deadline=None, max_examples=60)
@given(st.integers(1, 9), growths, st.integers(1, 90))
def test_a_state_takes_any_growth_of_epochs_to_come(size: int, grown: Grown, position: int) -> None:
    stream = turning(size, grown)
    state = json.loads(json.dumps(stream_state(stream, position)))
    # The samples before the position, and the rest of its epoch.
    served = [entry[1] for entry in model(size, grown, position)]
    past = [(at, bigger) for at, bigger in grown if at < position]
    assert load_stream_position(turning(size, [*past, (position, 13)]), state) == position
    if any(now != size for now in served):
        with pytest.raises(ValueError, match=r"^the state does not belong to this data: "):
            load_stream_position(turning(size, []), state)
    # An entry at the first position of an epoch serves that epoch, also with as many samples.
    elif all(at and stream.epoch_at(at - 1) == stream.epoch_at(position - 1) for at, _ in past):
        assert load_stream_position(turning(size, []), state) == position


def test_the_fingerprint_tells_what_has_begun() -> None:
    stream = turning(5, [(7, 6), (30, 7)])
    base = dict(Stream(Numbers(5), order=Turn).fingerprint)
    assert stream.fingerprint_at(10) == base
    first = {"grown.2.samples": 6, "grown.2.source.name": "numbers", "grown.2.source.size": 6}
    assert stream.fingerprint_at(11) == {**base, **first}
    assert set(stream.fingerprint) - set(base) - set(first) == {
        "grown.6.samples",
        "grown.6.source.name",
        "grown.6.source.size",
    }
    # An entry that replaces the source before the first sample is that source.
    assert turning(5, [(0, 6)]).fingerprint == Stream(Numbers(6), order=Turn).fingerprint
    message = r"fingerprint has grown.2.source.size = 6, here it is 8$"
    with pytest.raises(ValueError, match=message):
        load_stream_position(turning(5, [(7, 8)]), stream_state(stream, 12))
    message = (
        r"^the state does not belong to this data: it was saved with a source in `grown` from "
        r"epoch 2 on, which has begun and is missing here$"
    )
    with pytest.raises(ValueError, match=message):
        load_stream_position(turning(5, []), stream_state(stream, 12))
    message = (
        r"^the state does not belong to this data: `grown` has a source from epoch 2 on, but that "
        r"epoch had begun without it when the state was saved$"
    )
    with pytest.raises(ValueError, match=message):
        load_stream_position(stream, stream_state(turning(5, []), 12))


def test_a_grown_source_explains_itself() -> None:
    def stream(last: int) -> Stream:
        return Stream(Packed([9, 9]), grown=[(3, Packed([9, 9, last]))])

    message = "^the state does not belong to this data: the documents were 9 9 5 long$"
    with pytest.raises(ValueError, match=message):
        load_stream_position(stream(6), stream_state(stream(5), 9))
    assert load_stream_position(stream(6), stream_state(stream(5), 4)) == 4


def test_loaders_and_datasets_pass_over_the_border() -> None:
    stream = turning(5, [(7, 8)])
    samples = [sample for _, _, sample in model(5, [(7, 8)], 40)]
    loader = Loader(stream, batch_size=4, prefetch=2)
    found: list[int] = []
    for batch in loader:
        found += batch["sample"].tolist()
        if loader.step == 4:
            break
    dataset = IterDataset(stream, batch_size=3)
    dataset.load_state_dict(loader.state_dict())
    for batch in dataset:
        found += batch["sample"].tolist()
        if batch["position"] >= 40:
            break
    assert found == samples[: len(found)]
    assert len(found) == 40
    # The current epoch is that of the position, although the loader has no epochs.
    assert loader.visited(samples[15])
    assert not loader.visited(samples[16])
    assert loader.step_of(samples[12]) == 3
    assert loader.visited(samples[3], epoch=0)


@pytest.mark.parametrize("drop_last", [False, True])
def test_steps_of_before_growth_was_planned_keep_their_epochs(drop_last: bool) -> None:
    # 11 samples, 2 ranks of 3: the second step of an epoch is short, or dropped.
    log: dict[tuple[int, int], list[int]] = {}

    def run(stream: Stream, state: Any, batch_size: int, steps: int) -> Any:
        for rank in (0, 1):
            loader = Loader(
                stream,
                batch_size=batch_size,
                rank=rank,
                world_size=2,
                drop_last=drop_last,
                prefetch=0,
            )
            if state is not None:
                loader.load_state_dict(state)
            for _ in range(steps):
                while (batch := next(iter(loader), None)) is None:
                    pass
                log[loader.step - 1, rank] = batch["sample"].tolist()
        state = json.loads(json.dumps(loader.state_dict()))
        for (step, of_rank), samples in log.items():
            assert loader.samples(step, rank=of_rank).tolist() == samples
        return state

    state = run(turning(11, []), None, 3, 5)
    assert [leg[5] for leg in state["legs"]] == [11]
    border = -(-state["position"] // 11) * 11
    grown = turning(11, [(border - 3, 20)])
    state = run(grown, state, 3, 4)
    assert [leg[5] for leg in state["legs"]] == [11, 2**63 - 1]
    state = run(grown, state, 4, 3)
    assert [leg[5] for leg in state["legs"]] == [11, 2**63 - 1, 2**63 - 1]
    served = [sample for _, _, sample in model(11, [(border - 3, 20)], state["position"])]
    dealt = [sample for key in sorted(log) for sample in log[key]]
    if not drop_last:
        assert dealt == served
    # Without the entry, which had taken effect, the state is refused; so are invalid legs.
    with pytest.raises(ValueError, match=r"^the state does not belong to this data"):
        Loader(turning(11, []), batch_size=2).load_state_dict(state)
    state["legs"][1].append(7)
    with pytest.raises(ValueError, match=r"^`legs` of the state is invalid: "):
        Loader(grown, batch_size=2).load_state_dict(state)


def test_a_part_of_a_mixture_grows_by_its_own_positions() -> None:
    part = turning(5, [(7, 8)])
    mixture = Mixture({"a": (part, 1), "b": (Numbers(3, "b"), 1)})
    where, own = mixture.locate(range(60))
    expected = model(5, [(7, 8)], 40)
    for position in np.flatnonzero(where == 0).tolist():
        sample = expected[int(own[position])][2]
        assert mixture.samples([position]).tolist() == [[0, sample]]
    later = Mixture({"a": (turning(5, [(7, 9)]), 1), "b": (Numbers(3, "b"), 1)})
    first = int(mixture.position_of_part("a", [10])[0])  # The first sample of the grown epoch.
    assert load_stream_position(later, stream_state(mixture, first)) == first
    with pytest.raises(ValueError, match=r"part.a.grown.2.source.size = 8, here it is 9$"):
        load_stream_position(later, stream_state(mixture, first + 1))


def test_a_grown_stream_is_pickled() -> None:
    stream = turning(5, [(7, 6)])
    again = pickle.loads(pickle.dumps(stream))
    assert again.samples(range(40)).tolist() == stream.samples(range(40)).tolist()
    assert again.fingerprint == stream.fingerprint


def test_growth_beyond_the_last_position_is_never_served() -> None:
    stream = turning(5, [(LIMIT - 1, 6)])
    assert stream.epoch_length == 5
    assert stream.samples([LIMIT - 1]).tolist() == [(LIMIT - 1 + 3 * ((LIMIT - 1) // 5)) % 5]


class Wide(Numbers):
    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        return {"sample": indices.copy(), "row": np.zeros((len(indices), 5), np.float32)}


@pytest.mark.parametrize(
    ("grown", "error", "message"),
    [
        ([7], TypeError, r"^`grown` must be a list of pairs \(position, source\), got 7$"),
        ([("a", Numbers(6))], TypeError, r"^a position in grown must be an integer, got str 'a'$"),
        ([(-1, Numbers(6))], ValueError, r"^a position in grown must be at least 0, got -1$"),
        (
            [(9, Numbers(6)), (9, Numbers(7))],
            ValueError,
            r"^the positions in `grown` must be ascending, got 9 after 9$",
        ),
        ([(9, Numbers(0))], ValueError, r"^the source has no samples$"),
        ([(9, 5)], TypeError, r"^expected a source .*, got int without __len__"),
        (
            [(9, Packed([9, 9]))],
            TypeError,
            r"^the source in `grown` at 9 must not have at_epoch\(\), like the first one$",
        ),
        (
            [(9, Wide(6))],
            ValueError,
            r"^batches of all parts must be alike: the source from position 10 has "
            r"'row' as float32 of shape \(k, 5\) and not float32 of shape \(k, 4\), unlike the "
            r"source from position 0$",
        ),
    ],
)
def test_bad_growth(grown: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Stream(Numbers(5), order=Turn, grown=grown)
