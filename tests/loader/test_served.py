"""Counters of samples, tokens and documents, compared with a log of all served positions."""

from __future__ import annotations

import itertools
import json
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.oracle import Numbers, Run, one_step
from models.packing_model import Model, ModelCorpus
from support.packing_cases import QUIET, packing
from windeck import Loader, Mixture, PackedSequences, Permutation, Stream, Table, Windows
from windeck.loader import Served
from windeck.sources import gather_rows, present, whole


def corpus(shards: int, seed: int, **options: Any) -> ModelCorpus:
    rng = np.random.default_rng(seed)
    stored = [
        [rng.integers(1, 9, n).tolist() for n in rng.integers(1, 20, 6)] for _ in range(shards)
    ]
    return ModelCorpus(stored, ["int32"] * shards, **options)


WAYS: list[dict[str, Any]] = [
    {"order": "shards"},
    {"order": "mixed", "mixed_shards": 2},
    {"order": "global", "eos": 55},
    {"order": "mixed-global"},
    {"padded": True, "bos": 44},
    {"order": "mixed", "mixed_shards": 2, "sequence_bos": 45, "sequence_eos": 46},
    {"padded": True, "sequence_bos": 45},
    {"padded": True, "order": "mixed", "mixed_shards": 3},
]


class Log:
    """The served positions, counted one by one."""

    def __init__(self, model: Model, seed: int) -> None:
        self.model, self.seed = model, seed
        self.dealt: set[int] = set()

    def served(self) -> tuple[int, int, int, int]:
        """Return samples, tokens, and documents begun and finished."""
        size = len(self.model.rows(0, self.seed))
        totals = np.array([len(self.dealt), 0, 0, 0])
        for epoch in {position // size for position in self.dealt}:
            rows = self.model.rows(epoch, self.seed)
            on = {p % size for p in self.dealt if p // size == epoch}
            held: dict[tuple[int, int], set[int]] = {}
            for number, row in enumerate(rows):
                for shard, document, *_ in row:
                    held.setdefault((shard, document), set()).add(number)
            held_tokens = (sum(b - a for *_, a, b in rows[number]) for number in on)
            totals[1] += sum(count + self.model.extra() - 1 for count in held_tokens)
            totals[2] += sum(bool(numbers & on) for numbers in held.values())
            totals[3] += sum(numbers <= on for numbers in held.values())
        samples, tokens, begun, finished = totals.tolist()
        return samples, tokens, begun, finished


def numbers(served: Served) -> tuple[int | None, ...]:
    return served.samples, served.tokens, served.documents_begun, served.documents_finished


#: Batch size, ranks, drop_last, steps, and positions to leave out from the next one on.
LEG = st.tuples(
    st.integers(1, 7),
    st.integers(1, 3),
    st.booleans(),
    st.integers(0, 9),
    st.sampled_from([(0, 0), (0, 0), (0, 3), (2, 11), (1, 60)]),
)


@settings(QUIET, max_examples=60)
@given(st.sampled_from(WAYS), st.integers(0, 99), st.lists(LEG, min_size=1, max_size=4))
def test_counts_of_packed_sequences_are_those_of_a_log(way: Any, seed: int, legs: Any) -> None:
    model = Model(corpus(5, seed), length=7, **way)
    stream = Stream(packing(model), seed=seed)
    log, state, position, excluded = Log(model, seed), None, 0, set[int]()
    seen: list[tuple[int, tuple[int, ...]]] = []
    for batch_size, ranks, drop_last, steps, (gap, count) in legs:
        loader = Loader(
            stream, batch_size=batch_size, world_size=ranks, rank=0, drop_last=drop_last, prefetch=0
        )
        if state is not None:
            loader.load_state_dict(json.loads(json.dumps(state)))
        if count:
            start = position + gap
            loader.exclude(start, start + count)
            excluded |= set(range(start, start + count))
        run = Run(len(model.rows(0, seed)), batch_size, ranks, drop_last, excluded)
        for _ in range(steps):
            shares, position = one_step(run, position)
            log.dealt |= {p for share in shares for p in share}
            next(iter(loader))
            seen.append((loader.step, log.served()))
            assert loader.position == position
            assert numbers(loader.served()) == seen[-1][1]
        state = loader.state_dict()
    for step, counts in seen:
        found = loader.served(step)
        assert numbers(found) == counts
        assert numbers(loader.served(step, documents=False)) == (*counts[:2], None, None)
        assert found.epoch == loader.state_dict(step=step)["position"] / run.size


@pytest.mark.parametrize("way", WAYS)
def test_tokens_are_the_targets_of_batches_without_padding(way: Any) -> None:
    model = Model(corpus(4, 3), length=7, pad=77 if way.get("padded") else 0, **way)
    loader = Loader(Stream(packing(model), seed=1), batch_size=3, prefetch=0)
    tokens = 0
    for batch in loader:
        tokens += int((batch["targets"] != 77).sum())
        assert loader.served(documents=False).tokens == tokens
    assert loader.served().tokens == tokens


@pytest.mark.parametrize("way", WAYS)
def test_finished_documents_are_those_that_were_visited(way: Any) -> None:
    model = Model(corpus(4, 8), length=7, **way)
    loader = Loader(Stream(packing(model), seed=5), batch_size=4, prefetch=0)
    loader.exclude(9, 12)
    for _ in range(2):
        for _ in loader:
            if loader.step % 3:
                continue
            visits = [
                loader.visited((*model.corpus.shard_name(shard), number), epoch=epoch)
                for epoch in range(loader.epoch + 1)
                for shard in range(4)
                for number in range(6)
            ]
            served = loader.served()
            assert served.documents_finished == sum(map(bool, visits))
            assert served.documents_begun == sum(visit.served > 0 for visit in visits)


def test_counts_of_the_future_are_those_that_will_be() -> None:
    model = Model(corpus(4, 2), length=7, order="mixed")
    loader = Loader(Stream(packing(model), seed=1), batch_size=5, drop_last=True, prefetch=0)
    planned = [loader.served(step) for step in range(20)]
    for step in range(20):
        assert loader.served() == planned[step]
        next(iter(loader))


def test_sequences_in_an_order_of_the_user_are_counted() -> None:
    model = Model(corpus(4, 6), length=7)
    stream = Stream(packing(model), order=Permutation, seed=9)
    size = len(model.rows(0, 9))
    for position in (0, 1, 10, size, size + 5, 3 * size + 1):
        log = Log(model, 9)
        for p in range(position):
            epoch = p // size
            log.dealt.add(epoch * size + Permutation(size, seed=9, epoch=epoch)[p % size])
        assert numbers(stream.served(position)) == log.served()


def test_counts_continue_when_a_source_has_grown() -> None:
    small, large = Model(corpus(2, 1), length=7), Model(corpus(5, 1), length=7)
    first, second = len(small.rows(0, 3)), len(large.rows(0, 3))
    grown = Stream(packing(small), seed=3, grown=[(2 * first - 1, packing(large))])
    for position in (0, first, 2 * first, 2 * first + 1, 2 * first + 2 * second + 3):
        whole = np.zeros(4, np.int64)
        for epoch in range(5):
            model, size = (small, first) if epoch < 2 else (large, second)
            begin = epoch * first if epoch < 2 else 2 * first + (epoch - 2) * second
            log = Log(model, 3)
            log.dealt = {epoch * size + p for p in range(min(size, max(0, position - begin)))}
            whole += log.served()
        found = grown.served(position)
        assert numbers(found) == tuple(whole)
    assert found.epoch == 4 + 3 / second


def mixture(retired: bool = False, **options: Any) -> tuple[Mixture, dict[str, Model]]:
    """Return a mixture of three parts, of which one ends at position 60."""
    models = {
        "web": Model(corpus(4, 1), length=7, order="mixed", mixed_shards=2),
        "books": Model(corpus(2, 2), length=7, eos=50),
        "old": Model(corpus(2, 3), length=7, order="global"),
    }
    weights = {"web": 5, "books": 2, "old": 3}
    parts: dict[str, Any] = {
        name: (Stream(packing(model), seed=4), weights[name]) for name, model in models.items()
    }
    if retired:
        parts["old"] = (None, weights["old"])
    return Mixture(parts, schedule=[(60, {"web": 3, "books": 1, "old": 0})], **options), models


def logs_of(data: Mixture, models: dict[str, Model], dealt: set[int]) -> dict[str, Any]:
    logs = {name: Log(model, 4) for name, model in models.items()}
    for position in dealt:
        (part,), (number,) = data.locate([position])
        logs[data.names[part]].dealt.add(int(number))
    return {name: log.served() for name, log in logs.items()}


@settings(QUIET, max_examples=20)
@given(st.lists(LEG, min_size=1, max_size=3))
def test_counts_of_a_mixture_are_those_of_its_parts(legs: Any) -> None:
    data, models = mixture()
    state, position, excluded, dealt = None, 0, set[int](), set[int]()
    for batch_size, ranks, drop_last, steps, (gap, count) in legs:
        loader = Loader(
            data, batch_size=batch_size, world_size=ranks, rank=0, drop_last=drop_last, prefetch=0
        )
        if state is not None:
            loader.load_state_dict(state)
        if count:
            start = position + gap
            loader.exclude(start, start + count)
            excluded |= set(range(start, start + count))
        run = Run(2**40, batch_size, ranks, drop_last, excluded)
        for _ in range(steps):
            shares, position = one_step_endless(run, position)
            dealt |= shares
        while loader.position < position:
            next(iter(loader))
        state = loader.state_dict()
    served, logs = loader.served(), logs_of(data, models, dealt)
    assert numbers(served) == tuple(np.sum(list(logs.values()), axis=0))
    assert served.epoch is None
    for name, log in logs.items():
        assert numbers(served.parts[name]) == log
        size = len(models[name].rows(0, 4))
        assert served.parts[name].epoch == data.position_in_part(name, position) / size


def one_step_endless(run: Run, position: int) -> tuple[set[int], int]:
    """Return the positions of all ranks in one step of an endless stream, and its end."""
    dealt: list[int] = []
    while len(dealt) < run.batch_size * run.world_size:
        if position not in run.excluded:
            dealt.append(position)
        position += 1
    return set(dealt), position


def test_a_retired_part_keeps_its_samples_and_tokens() -> None:
    whole, _ = mixture()
    rest, _ = mixture(retired=True)
    before, after = whole.served(100, skipped=[(3, 9)]), rest.served(100, skipped=[(3, 9)])
    assert (after.samples, after.tokens) == (before.samples, before.tokens)
    assert after.documents_finished is None  # Its documents are gone.
    old = before.parts["old"]
    assert after.parts["old"] == Served(old.samples, old.tokens)
    assert after.parts["web"] == before.parts["web"]


def test_tokens_of_a_retired_part_are_unknown_where_sequences_may_be_padded() -> None:
    live = PackedSequences(corpus(3, 1), sequence_length=7, keys=["targets_mask"])
    data = Mixture({"a": (live, 1), "b": (None, 1)}, schedule=[(10, {"a": 1, "b": 0})])
    served = data.served(30)
    assert served.parts["b"] == Served(5)
    assert served.tokens is None
    assert served.parts["a"].tokens == 25 * 7


def test_counts_of_nested_mixtures_have_the_names_of_all_parts() -> None:
    inner, _ = mixture()
    model = Model(corpus(3, 7), length=7)
    outer = Mixture({"all text": (inner, 3), "code": (packing(model), 1)})
    served = outer.served(80)
    assert served.parts["all text"] == inner.served(60)
    flat = served.as_dict()
    assert flat["code/samples"] == 20
    assert flat['"all text"/web/tokens'] == inner.served(60).parts["web"].tokens
    assert json.loads(json.dumps(flat)) == flat
    assert all(value is not None for value in flat.values())


def test_names_with_slashes_do_not_collide() -> None:
    served = Served(1, parts={"a": Served(2, parts={"b": Served(3)}), "a/b": Served(4)})
    assert sorted(served.as_dict().values()) == [1, 2, 3, 4]


def test_data_without_tokens_have_counts_of_samples_at_any_position() -> None:
    table = Table.from_columns({"load": np.arange(40.0)})
    loader = Loader(Windows(table, context_length=8), batch_size=5, shuffle=True)
    assert loader.served(step=0).as_dict() == {"samples": 0, "epoch": 0.0}
    assert loader.served(step=9).as_dict() == {"samples": 43, "epoch": 43 / 33}
    # No epoch is looked at.
    loader.load_state_dict({**loader.state_dict(), "position": 33 * 10**12 + 3, "legs": []})
    assert loader.served().samples == 33 * 10**12 + 3


def test_epochs_of_so_many_steps_are_counted_as_the_loader_counts_them() -> None:
    data, _ = mixture()
    loader = Loader(data, batch_size=2, steps_per_epoch=8)
    assert loader.served(step=12, documents=False).epoch == 1.5


class Endless:
    """A stream that is not of the library."""

    fingerprint: ClassVar[dict[str, int]] = {"endless": 1}
    epoch_length = None

    def gather(self, positions: Any, out: Any = None) -> Any:
        return Numbers(9).gather(positions % 9)


def test_a_stream_of_the_user_has_counts_of_samples() -> None:
    loader = Loader(Endless(), batch_size=3, prefetch=0)
    next(iter(loader))
    loader.exclude(4, 6)
    next(iter(loader))
    assert loader.position == 8
    assert loader.served() == Served(6)
    data = Mixture({"a": (Endless(), 1), "b": (Numbers(9), 1)})
    assert data.served(8, skipped=[(0, 2)]).as_dict() == {
        "samples": 6,
        "a/samples": 3,
        "b/samples": 3,
        "b/epoch": 4 / 9,
    }


def identity(batch: Any, random: Any) -> Any:
    return batch


def test_a_mapped_stream_has_the_counts_of_its_stream() -> None:
    data, _ = mixture()
    assert Loader(data.map(identity), batch_size=4).served(9) == data.served(36)


def test_a_loader_that_restarts_has_served_nothing() -> None:
    loader = Loader(Numbers(9), batch_size=3, restart=True)
    assert [len(batch) for batch in loader]
    assert loader.served().samples == 0


def test_a_state_without_steps_counts_what_is_before_its_position() -> None:
    model = Model(corpus(4, 2), length=7)
    stream = Stream(packing(model), seed=1)
    state = Loader(stream, batch_size=1).state_dict(step=5)
    loader = Loader(stream, batch_size=3, drop_last=True)
    loader.load_state_dict({name: state[name] for name in list(state)[:3]})
    assert numbers(loader.served())[:2] == (5, 35)


def test_ranges_to_skip_are_checked() -> None:
    stream = Stream(Numbers(9))
    assert stream.served(10, skipped=[(2, 4), (3, 5), (7, 7), (9, 20)]).samples == 6
    ranges = [(a, b) for a in range(7) for b in range(a, 7)]
    for one, two in itertools.product(ranges, repeat=2):  # in any order, and over each other
        left = set(range(5)) - set(range(*one)) - set(range(*two))
        assert stream.served(5, skipped=[one, two]).samples == len(left)
    for wrong in ([(4, 2)], [(-1, 2)]):
        with pytest.raises(ValueError, match="must be at least"):
            stream.served(5, skipped=wrong)
    with pytest.raises(TypeError, match="`position` must be an integer"):
        stream.served(1.5)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="`position` must be at least 0"):
        stream.served(-1)


class Uncounted:
    """Sequences of which nothing is known but their number."""

    fingerprint: ClassVar[dict[str, str | int]] = {"uncounted": "sequences"}

    def __init__(self, packed: PackedSequences) -> None:
        self.packed = packed

    def __len__(self) -> int:
        return len(self.packed)

    def gather(self, indices: Any, out: Any = None) -> Any:
        return gather_rows(self.packed, indices)

    def whole(self, rows: Any) -> Any:
        return whole(self.packed, rows)

    def present(self, batch: Any) -> Any:
        return present(self.packed, batch)


def test_a_sum_with_an_unknown_number_is_unknown() -> None:
    """Tokens of a mixture, where one of its parts has none."""
    packed = PackedSequences(corpus(2, 0), sequence_length=4)
    counted, uncounted = Stream(packed), Stream(Uncounted(packed))
    tokens = counted.served(6).tokens
    assert tokens is not None
    assert Mixture({"a": (counted, 1), "b": (counted, 1)}).served(12).tokens == 2 * tokens
    for parts in ({"a": (counted, 1), "b": (uncounted, 1)}, {"b": (uncounted, 1)}):
        served = Mixture(parts).served(12)
        assert served.samples == 12
        assert (served.tokens, served.documents_begun, served.documents_finished) == (None,) * 3
