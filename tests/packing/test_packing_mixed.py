"""Mixed orders: batches of many documents from few shards, and what shuffle=True serves."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from models.oracle import Numbers
from models.packing_model import ModelCorpus
from support.packing_cases import corpus, tokens
from windeck import Loader, Mixture, PackedSequences, Permutation, Stream


def long_documents(shards: int = 24, documents: int = 6, length: int = 2000) -> ModelCorpus:
    """Documents of many sequences each."""
    numbers = iter(range(10**6))
    stored = [[[next(numbers)] * length for _ in range(documents)] for _ in range(shards)]
    return ModelCorpus(stored, ["int32"] * shards)


@pytest.mark.parametrize("order", ["mixed", "mixed-global"])
def test_a_batch_has_pieces_of_many_documents(order: Any) -> None:
    plain = order.replace("mixed-", "").replace("mixed", "shards")
    counts: dict[str, list[int]] = {}
    for name in (plain, order):
        packed = PackedSequences(long_documents(), sequence_length=50, order=name)
        loader, counts[name] = Loader(packed, batch_size=32, prefetch=0), []
        for step in range(0, len(loader) - 1, 8):
            rows = loader.documents(step)
            counts[name].append(len({piece[:3] for row in rows for piece in row}))
    assert max(counts[plain]) <= 3
    assert np.median(counts[order]) >= 16


@pytest.mark.parametrize("padded", [False, True])
def test_few_shards_are_open_at_a_time(padded: bool) -> None:
    data = long_documents(shards=23)
    packed = PackedSequences(
        data, sequence_length=50, order="mixed", mixed_shards=4, live_shards=1, padded=padded
    )
    data.opened.clear()
    for start in range(0, len(packed), 8):
        packed.gather(np.arange(start, min(start + 8, len(packed))))
    # 6 groups of 3 or 4 shards; the first shard of the next group may be opened once more.
    assert len(data.opened) <= 23 + (0 if padded else 6)
    assert set(data.opened) == set(range(23))
    opened = np.array(data.opened)
    assert len(set(opened[:3])) == 3


def test_one_group_of_all_shards_is_a_shuffle_of_all_sequences() -> None:
    mixed = PackedSequences(corpus(), sequence_length=16, order="mixed", mixed_shards=12)
    plain = PackedSequences(corpus(), sequence_length=16)
    found, stored = tokens(mixed).tolist(), tokens(plain).tolist()
    assert found != stored
    assert sorted(found) == sorted(stored)


@pytest.mark.parametrize("order", ["shards", "global"])
@pytest.mark.parametrize("options", [{}, {"mixed_shards": 3}])
def test_shuffle_serves_the_mixed_order(order: Any, options: dict[str, Any]) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order=order, **options)
    name: Any = {"shards": "mixed", "global": "mixed-global"}[order]
    mixed = PackedSequences(corpus(), sequence_length=16, order=name, **options)
    assert packed.shuffled().options == mixed.options
    assert mixed.shuffled() is mixed
    loaders = [
        Loader(packed, batch_size=5, shuffle=True, seed=3),
        Loader(mixed, batch_size=5, seed=3),
        Loader(mixed, batch_size=5, shuffle=True, seed=3),
        Loader(packed.shuffled(), batch_size=5, seed=3),
    ]
    for _epoch in range(2):
        batches = [[b["inputs"].tolist() for b in loader] for loader in loaders]
        assert batches[0] == batches[1] == batches[2] == batches[3]
    plain = Loader(packed, batch_size=5, seed=3)
    assert [b["inputs"].tolist() for b in plain] != batches[0]
    assert len({json.dumps(loader.state_dict()) for loader in loaders}) == 1
    state = loaders[0].state_dict()
    assert state["fingerprint"]["source.order"] == name
    assert state["fingerprint"]["source.mixed_shards"] == options.get("mixed_shards", 8)


@pytest.mark.parametrize("order", ["shards", "global"])
def test_states_of_another_order_are_refused_by_name(order: Any) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order=order)
    plain, shuffled = Loader(packed, batch_size=5), Loader(packed, batch_size=5, shuffle=True)
    next(iter(plain))
    mixed: Any = packed.shuffled().options.order
    with pytest.raises(ValueError, match=rf"has source.order = '{order}', here it is '{mixed}'$"):
        shuffled.load_state_dict(plain.state_dict())
    next(iter(shuffled))
    with pytest.raises(ValueError, match=rf"has source.order = '{mixed}', here it is '{order}'$"):
        plain.load_state_dict(shuffled.state_dict())
    other = PackedSequences(corpus(), sequence_length=16, order=mixed, mixed_shards=2)
    with pytest.raises(ValueError, match=r"has source.mixed_shards = 8, here it is 2$"):
        Loader(other, batch_size=5).load_state_dict(shuffled.state_dict())


def test_the_option_is_not_in_the_fingerprint_of_other_orders() -> None:
    plain = PackedSequences(corpus(), sequence_length=16)
    other = PackedSequences(corpus(), sequence_length=16, mixed_shards=3)
    assert plain.fingerprint == other.fingerprint
    assert "mixed_shards" not in plain.fingerprint


def test_an_order_of_ones_own_stays() -> None:
    packed = PackedSequences(corpus(), sequence_length=16)
    loader = Loader(packed, batch_size=5, shuffle=True, order=Permutation, seed=3)
    stream = Stream(packed, order=Permutation, seed=3)
    expected = stream.gather(np.arange(5))["inputs"].tolist()
    assert next(iter(loader))["inputs"].tolist() == expected
    assert next(iter(Loader(Numbers(9), batch_size=9, shuffle=True)))["sample"].shape == (9,)


def test_results_of_passes_are_passed_on() -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order="global")
    packed.build_index(3)
    data = packed.corpus
    shuffled = packed.shuffled()
    assert shuffled.corpus is data
    data.opened.clear()  # type: ignore[attr-defined]
    shuffled.build_index(3)
    assert data.opened == []  # type: ignore[attr-defined]


def test_a_mixture_of_mixed_parts_resumes_on_other_ranks() -> None:
    def mixture() -> Mixture:
        parts = {
            "a": (PackedSequences(corpus(), sequence_length=16, order="mixed"), 0.7),
            "b": (PackedSequences(corpus(5), sequence_length=16, order="mixed-global"), 0.3),
        }
        return Mixture(parts, seed=5)

    loader = Loader(mixture(), batch_size=6)
    batches = iter(loader)
    for _ in range(20):
        next(batches)
    whole = mixture()
    for rank in range(2):
        other = Loader(mixture(), batch_size=4, rank=rank, world_size=2)
        other.load_state_dict(json.loads(json.dumps(loader.state_dict())))
        expected = whole.gather(np.arange(120 + 4 * rank, 124 + 4 * rank))
        found = next(iter(other))
        for key, array in expected.items():
            assert found[key].numpy().tolist() == array.tolist()


def test_documents_are_found_where_they_are_served() -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order="mixed", mixed_shards=3)
    loader = Loader(packed, batch_size=7, seed=2)
    for _batch in loader:
        if loader.step == 9:
            break
    held: dict[Any, set[int]] = {}
    for step in range(len(loader)):
        for row in loader.documents(step):
            for piece in row:
                held.setdefault(piece[:3], set()).add(step)
    for document, steps in list(held.items())[::9]:
        visit = loader.visited(document)
        assert set(visit.steps) - {None} == steps
        assert bool(visit) == (max(steps) < 9 and None not in visit.steps)


def test_bad_options() -> None:
    with pytest.raises(ValueError, match=r"^`mixed_shards` must be at least 1, got 0$"):
        PackedSequences(corpus(), sequence_length=16, order="mixed", mixed_shards=0)
    with pytest.raises(
        ValueError, match=r"must be 'shards' for padded=True, .*, or 'mixed', got 'mixed-global'$"
    ):
        PackedSequences(corpus(), sequence_length=16, order="mixed-global", padded=True)
    bad: Any = "blocks"
    with pytest.raises(ValueError, match=r"one of shards, global, mixed, mixed-global, got 'bl"):
        PackedSequences(corpus(), sequence_length=16, order=bad)
