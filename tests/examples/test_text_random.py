"""Tests of random corpora, mixtures, ranks, batches and stops, compared with `text_oracle`."""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

import windeck as wd
from models.text_oracle import Corpus, Packed, Packing, Row, Streamed, pack
from support.text_corpora import Lists
from support.text_mixtures import Mixed
from support.text_runs import batches

SIZES = st.one_of(st.integers(0, 6), st.integers(0, 40), st.sampled_from([0, 0, 0, 150]))
SHAPES = st.lists(st.lists(SIZES, max_size=9), min_size=1, max_size=5)
SEEDS = st.one_of(st.integers(0, 5), st.integers(0, 2**64 - 1))


def corpus_of(shape: list[list[int]]) -> Corpus:
    """Documents of these sizes whose tokens are all different."""
    numbers = count(100)
    return [[[next(numbers) for _ in range(size)] for size in shard] for shard in shape]


@st.composite
def packings(
    draw: Callable[..., Any], length: int | None = None, padded: bool | None = None
) -> Any:
    padded = draw(st.booleans()) if padded is None else padded
    return Packing(
        length=length or draw(st.integers(1, 20)),
        bos=draw(st.sampled_from([None, 1])),
        eos=draw(st.sampled_from([None, 2])),
        padded=padded,
        pad=draw(st.integers(0, 3)) if padded else 0,
        order="shards" if padded else draw(st.sampled_from(["shards", "global"])),
        strip=draw(st.sampled_from([(), (100, 101, 105)])),
        min_length=draw(st.sampled_from([0, 0, 1, 5])),
    )


def packed(corpus: Corpus, how: Packing, name: str = "lists", **more: Any) -> wd.PackedSequences:
    return wd.PackedSequences(
        Lists(corpus, how, name),
        sequence_length=how.length,
        bos=how.bos,
        eos=how.eos,
        order=how.order,
        padded=how.padded,
        pad=how.pad,
        **more,
    )


def check_batch(batch: dict[str, Any], rows: list[Row], length: int) -> None:
    """Assert that a batch has the expected keys and values."""
    tokens = np.array([row.tokens for row in rows]).reshape(-1, length + 1)
    ids = np.array([row.position_ids for row in rows]).reshape(-1, length)
    masks = [row.mask for row in rows if row.mask is not None]
    assert set(batch) - {"targets_mask"} == {"inputs", "targets", "position_ids", "cu_seqlens"}
    assert np.array_equal(batch["inputs"], tokens[:, :-1])
    assert np.array_equal(batch["targets"], tokens[:, 1:])
    assert np.array_equal(batch["position_ids"], ids)
    borders = [0, *np.flatnonzero(ids.ravel() == 0)[1:], ids.size] if rows else [0]
    assert np.array_equal(batch["cu_seqlens"], borders)
    assert ("targets_mask" in batch) == bool(masks) or not rows
    if masks:
        assert np.array_equal(batch["targets_mask"], np.array(masks))


@given(SHAPES, packings(), st.sampled_from([0, 1, 1000]), SEEDS, st.data())
@settings(max_examples=60, deadline=None)
def test_packed(shape: list[list[int]], how: Packing, epoch: int, seed: int, data: Any) -> None:
    corpus = corpus_of(shape)
    model = pack(corpus, how)
    assume(len(model))
    source = packed(corpus, how, dtype=data.draw(st.sampled_from(["int64", "int32"])))
    assert len(source) == len(model)
    wanted = data.draw(st.lists(st.integers(0, len(model) - 1), max_size=6))
    batch = source.at_epoch(epoch, seed=seed).gather(np.array(wanted, np.int64))
    check_batch(batch, [model.row(epoch, seed, sample) for sample in wanted], how.length)
    for sample in wanted:
        found = source.documents(sample, epoch=epoch, seed=seed)
        expected = [("lists", *piece) for piece in model.pieces(epoch, seed, sample)]
        assert [tuple(piece) for piece in found] == expected


@given(SHAPES, packings(), st.integers(0, 3), SEEDS)
@settings(max_examples=30, deadline=None)
def test_sequences_of_every_document(
    shape: list[list[int]], how: Packing, epoch: int, seed: int
) -> None:
    corpus = corpus_of(shape)
    model = pack(corpus, how)
    assume(len(model))
    source = packed(corpus, how)
    held: dict[tuple[int, int], set[int]] = {}
    for sample in range(len(model)):
        for piece in model.pieces(epoch, seed, sample):
            held.setdefault(piece[:2], set()).add(sample)
    for number, shard in enumerate(corpus):
        for doc in range(len(shard)):
            found = source.sequences_of(("lists", number, doc), epoch=epoch, seed=seed)
            assert found.tolist() == sorted(held.get((number, doc), ()))


@pytest.mark.parametrize("eos", [None, 2])
def test_many_blocks_of_the_global_order(eos: int | None) -> None:
    rng = np.random.default_rng(0)
    corpus = corpus_of([rng.integers(0, 4, size).tolist() for size in (700, 0, 1500, 900, 1)])
    how = Packing(17, eos=eos, order="global")
    model, source = Packed(corpus, how), packed(corpus, how)
    wanted = range(len(model))
    for epoch in (0, 3):
        batch = source.at_epoch(epoch, seed=9).gather(np.array(wanted))
        check_batch(batch, [model.row(epoch, 9, sample) for sample in wanted], how.length)


WEIGHTS = (1, 2, 0.1, 0.3, 0.7, 1e-4, 5)


@st.composite
def mixtures(
    draw: Callable[..., Any], given_weights: tuple[float, ...] = WEIGHTS
) -> tuple[wd.Mixture, Mixed]:
    """Draw a mixture of one to three streams with a schedule, for the library and the oracle."""
    length, padded = draw(st.integers(1, 12)), draw(st.booleans())
    names = draw(st.permutations(["web", "code", "wiki"]))[: draw(st.integers(1, 3))]
    ours: dict[str, Any] = {}
    models: dict[str, Any] = {}
    for name in names:
        corpus, how = corpus_of(draw(SHAPES)), draw(packings(length, padded))
        model, seed, permuted = pack(corpus, how), draw(SEEDS), draw(st.booleans())
        assume(0 < len(model) <= 300)
        order = wd.Permutation if permuted else None
        weight = draw(st.sampled_from(given_weights))
        grown, bigger = [], []
        if draw(st.booleans()):
            more = corpus + corpus_of(draw(SHAPES))
            at = draw(st.integers(0, 60))
            grown, bigger = [(at, packed(more, how, name))], [(at, pack(more, how))]
        source = packed(corpus, how, name)
        ours[name] = wd.Stream(source, seed=seed, order=order, grown=grown), weight
        models[name] = Streamed(model, seed, permuted, bigger), weight
    schedule = []
    for at in sorted(draw(st.sets(st.integers(1, 150), max_size=2))):
        weights = {name: draw(st.sampled_from([0, 1, 3, 0.25])) for name in names}
        assume(any(weights.values()))
        schedule.append((at, weights))
    return wd.Mixture(ours, schedule=schedule), Mixed(models, schedule)


def legs(both: tuple[wd.Mixture, Mixed], data: Any) -> None:
    """Run legs of random ranks, batch sizes and lengths; compare each with the oracle."""
    mixture, served = both
    state, position, step = None, 0, 0
    for _ in range(data.draw(st.integers(1, 4), label="legs")):
        world = data.draw(st.sampled_from([1, 2, 3, 4, 6, 12]), label="world")
        batch_size = data.draw(st.integers(1, 7), label="batch")
        loaders = [
            wd.Loader(mixture, batch_size=batch_size, rank=rank, world_size=world, prefetch=0)
            for rank in range(world)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        iterators = [iter(loader) for loader in loaders]
        dealt = batches(served, position, batch_size, world)
        for _ in range(data.draw(st.integers(0, 5), label="steps")):
            shares, position = next(dealt)
            step += 1
            for places, batches_of_rank in zip(shares, iterators, strict=True):
                rows = [place.row() for place in places]
                batch = {key: value.numpy() for key, value in next(batches_of_rank).items()}
                check_batch(batch, rows, len(rows[0].position_ids))
        state = loaders[-1].state_dict()
        assert (state["position"], state["step"]) == (position, step)


@given(mixtures(), st.data())
@settings(max_examples=20, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_mixtures_on_ranks_that_come_and_go(both: tuple[wd.Mixture, Mixed], data: Any) -> None:
    legs(both, data)


@pytest.mark.slow
@given(mixtures(), st.data())
@settings(max_examples=400, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_many_more_mixtures(both: tuple[wd.Mixture, Mixed], data: Any) -> None:
    legs(both, data)


@given(mixtures(), st.integers(0, 30_000), st.integers(1, 300))
@settings(max_examples=15, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_slots_of_mixtures(both: tuple[wd.Mixture, Mixed], start: int, size: int) -> None:
    """Positions map to part and index over several periods, and back."""
    mixture, served = both
    positions = np.arange(start, start + size)
    parts, places = mixture.locate(positions)
    names = list(served.parts)
    expected = [served.slot(position) for position in range(start, start + size)]
    assert [(names[p], k) for p, k in zip(parts, places.tolist(), strict=True)] == expected
    for number, name in enumerate(names):
        mine = parts == number
        assert np.array_equal(mixture.position_of_part(name, places[mine]), positions[mine])


def last_positions(served: Mixed, until: int) -> dict[tuple[str, int], int]:
    """Return the position of each sample (part, index) served before `until`."""
    return {served.slot(position): position for position in range(until)}


@given(mixtures((1, 2, 0.3)), st.data())
@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_visits_of_every_document(both: tuple[wd.Mixture, Mixed], data: Any) -> None:
    """After legs of several sizes: where every document is served, in which step, and how much."""
    mixture, served = both
    steps: dict[int, int] = {}
    state, position = None, 0
    for _ in range(data.draw(st.integers(1, 3), label="legs")):
        world = data.draw(st.integers(1, 3), label="world")
        batch_size = data.draw(st.integers(1, 5), label="batch")
        loader = wd.Loader(mixture, batch_size=batch_size, rank=0, world_size=world, prefetch=0)
        full = world * batch_size
        if state is not None:
            loader.load_state_dict(state)
        full = world * batch_size
        for _, _ in zip(range(data.draw(st.integers(0, 12), label="steps")), loader, strict=False):
            steps |= dict.fromkeys(range(position, position + full), len(set(steps.values())))
            position += full
        state = loader.state_dict()
    made = len(set(steps.values()))
    # No epoch is longer than 300 samples, and hardly a part has less than one slot in 25.
    where = last_positions(served, position + 10_000)
    for name in served.parts:
        stream = served.parts[name]
        assert isinstance(stream, Streamed)
        before = sum(served.slot(p)[0] == name for p in range(position))
        corpus, epoch, first = stream.epochs(before)
        held: dict[tuple[int, int], set[int]] = {}
        for sample in range(len(stream.corpora[corpus])):
            for piece in stream.at(first + sample).pieces():
                held.setdefault(piece[:2], set()).add(first + sample)
        for (shard, doc), numbers in held.items():
            visit = loader.visited((name, shard, doc))
            positions = sorted(where[name, k] for k in numbers if (name, k) in where)
            expected = [
                steps[p] if p < position else made + (p - position) // full for p in positions
            ]
            assert visit.positions == tuple(positions)
            assert visit.steps == tuple(expected)
            assert (visit.epoch, visit.sequences) == (epoch, len(numbers))
            assert visit.served == sum(p < position for p in positions)
            assert bool(visit) == (visit.served == len(numbers))
