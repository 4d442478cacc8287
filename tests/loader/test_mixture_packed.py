"""Mixtures of packed sequences: every token, on any number of ranks, resumed anywhere."""

from __future__ import annotations

import itertools
import json
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader

from models.packed_model import assert_same
from models.packing_model import ModelCorpus
from support.host_gpu import host_gpu
from windeck import IterDataset, Loader, Mixture, PackedSequences, Stream


def corpus(seed: int, shards: int) -> ModelCorpus:
    """Return documents of 0 to 30 tokens that identify their document."""
    rng = np.random.default_rng(seed)
    documents = [
        [[(1000 * seed + 100 * s + d) % 30000] * int(rng.integers(0, 31)) for d in range(9)]
        for s in range(shards)
    ]
    return ModelCorpus(documents, ["uint16"] * shards)


def packed(seed: int, shards: int, **options: Any) -> PackedSequences:
    return PackedSequences(corpus(seed, shards), sequence_length=8, eos=40000, **options)


def mixture(**options: Any) -> Mixture:
    inner = Mixture({"wiki": (packed(1, 2), 0.5), "books": (packed(2, 3, order="global"), 0.5)})
    parts: dict[str, Any] = {"web": (Stream(packed(3, 4), seed=9), 0.6), "good": (inner, 0.4)}
    return Mixture(parts, seed=5, **options)


def expected(data: Any, positions: list[int]) -> dict[str, Any]:
    """Build a batch from single rows, with bounds counted by the test."""
    rows = [data.gather_rows([position]) for position in positions]
    batch = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
    bounds = [0]
    for place, position in enumerate(batch["position_ids"].reshape(-1).tolist()):
        if position == 0 and place:
            bounds.append(place)
    tokens = batch.pop("tokens")
    ends = np.array([*bounds, tokens[:, 1:].size], np.int32)
    return {**batch, "inputs": tokens[:, :-1], "targets": tokens[:, 1:], "cu_seqlens": ends}


SCHEDULE = [(150, {"web": 0.1, "good": 0.9}), (260, {"web": 1, "good": 0})]


@settings(deadline=None, max_examples=12)
@given(st.lists(st.tuples(st.integers(1, 9), st.integers(1, 6), st.integers(1, 5)), max_size=4))
def test_stops_and_other_ranks_change_no_token(legs: list[tuple[int, int, int]]) -> None:
    data = mixture(schedule=SCHEDULE)
    state, position = None, 0
    for batch_size, ranks, steps in legs:
        loaders = [
            Loader(data, batch_size=batch_size, rank=rank, world_size=ranks, prefetch=0)
            for rank in range(ranks)
        ]
        for loader in loaders:
            if state is not None:
                loader.load_state_dict(state)
        for _ in range(steps):
            for loader in loaders:
                mine = list(range(position, position + batch_size))
                batch = {key: tensor.numpy() for key, tensor in next(iter(loader)).items()}
                assert_same(batch, expected(data, mine))
                position += batch_size
        states = [json.dumps(loader.state_dict(), sort_keys=True) for loader in loaders]
        assert len(set(states)) == 1
        state = json.loads(states[0])


def test_documents_are_found_where_their_tokens_are() -> None:
    data = mixture(schedule=SCHEDULE)
    rows = data.gather_rows(range(60))["tokens"].tolist()
    pieces = data.documents_at(range(60))
    for row, of_row in zip(rows, pieces, strict=True):
        assert sum(piece.stop - piece.start for piece in of_row) == len(row) == 9
    loader = Loader(data, batch_size=20, prefetch=0)
    for _ in itertools.islice(loader, 3):
        pass
    assert loader.position == 60
    held = {piece[:3] for of_row in pieces for piece in of_row}
    for document in sorted(held):
        # The datasets of these parts have equal names, so a document is searched for in each.
        for part in ((), ("web",), ("good",)):
            asked = (*part, document) if part else document
            try:
                visit = loader.visited(asked)
            except KeyError:
                continue
            for position, step in zip(visit.positions, visit.steps, strict=True):
                served = [piece[:3] for piece in data.documents_at([position])[0]]
                assert document in served
                assert step == position // 20
            assert visit.served == sum(position < 60 for position in visit.positions)


def test_pinned_rows_of_several_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    data = mixture()
    host_gpu(monkeypatch)
    loader = Loader(data, batch_size=5, threads=2, pin_memory=True, prefetch=0)
    for number, batch in zip(range(4), loader, strict=False):
        assert_same(batch, data.gather(range(5 * number, 5 * number + 5)))
        assert batch["inputs"].dtype == torch.int64


def test_parts_of_other_lengths_do_not_fit() -> None:
    message = (
        r"^batches of all parts must be alike: part 'b' has 'tokens' as int64 of "
        r"shape \(k, 10\) and not int64 of shape \(k, 9\), unlike part 'a'$"
    )
    longer = PackedSequences(corpus(1, 2), sequence_length=9)
    with pytest.raises(ValueError, match=message):
        Mixture({"a": (packed(1, 2), 1), "b": (longer, 1)})
    message = r"part 'b' has a key 'targets_mask', unlike part 'a'$"
    with pytest.raises(ValueError, match=message):
        Mixture({"a": (packed(1, 2), 1), "b": (packed(1, 2, padded=True), 1)})


def test_a_changed_corpus_is_named_through_all_that_is_around_it() -> None:
    loader = Loader(Mixture({"a": (packed(1, 2), 1)}), batch_size=2)
    state = loader.state_dict()
    state["fingerprint"]["part.a.source.documents.tokens"] += 1
    message = r"^the state does not belong to this data: in part 'a', tokens was \d+ and is \d+$"
    with pytest.raises(ValueError, match=message):
        loader.load_state_dict(state)


@pytest.mark.parametrize("threads", [None, 3])
def test_loaders_hand_threads_on(threads: int | None) -> None:
    data = mixture()
    batch = next(iter(Loader(data, batch_size=12, threads=threads, prefetch=2)))
    assert_same(batch, data.gather(range(12)))


@pytest.mark.parametrize(
    ("workers", "start"), [(2, "fork"), pytest.param(1, "spawn", marks=pytest.mark.slow)]
)
@pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")
def test_workers_of_torchs_own_loader(workers: int, start: str) -> None:
    data = mixture(schedule=SCHEDULE)
    dataset = IterDataset(data, batch_size=5, rank=1, world_size=2, position=140)
    batches = iter(
        DataLoader(dataset, batch_size=None, num_workers=workers, multiprocessing_context=start)
    )
    for number in range(4):
        batch = next(batches)
        begin = 140 + 10 * number
        assert batch.pop("position") == begin + 10
        assert_same(batch, data.gather(range(begin + 5, begin + 10)))
    del batches
