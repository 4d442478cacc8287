"""Counts of tokens and documents in ranges of sequences, compared with rows of plain lists."""

from __future__ import annotations

import itertools
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from models.packing_model import Model, ModelCorpus
from support.packing_cases import QUIET, corpus, models, packing
from windeck import PackedSequences


def counted(model: Model, epoch: int, seed: int, served: Any) -> tuple[int, int, int]:
    """Return tokens and documents of the rows that are served, one by one."""
    rows = model.rows(epoch, seed)
    held: dict[tuple[int, int], set[int]] = {}
    for number, row in enumerate(rows):
        for shard, document, *_ in row:
            held.setdefault((shard, document), set()).add(number)
    tokens = sum(
        sum(stop - start for *_, start, stop in row) + model.extra() - 1
        for number, row in enumerate(rows)
        if number in served
    )
    begun = sum(bool(numbers & served) for numbers in held.values())
    return tokens, begun, sum(numbers <= served for numbers in held.values())


def bare_empty_documents(model: Model) -> int:
    """Return the documents without any token, not even of a frame."""
    if model.bos is not None or model.eos is not None:
        return 0
    return sum(model.corpus.kept(doc) == [] for shard in model.corpus.shards for doc in shard)


@st.composite
def subsets(draw: st.DrawFn, size: int) -> set[int]:
    """Some of the numbers below a size, in up to three ranges."""
    found: set[int] = set()
    for _ in range(draw(st.integers(1, 3))):
        start = draw(st.integers(0, size))
        found ^= set(range(start, draw(st.integers(start, size))))
    return found


@settings(QUIET, max_examples=120)
@given(models(), st.integers(0, 3), st.integers(0, 5), st.data())
def test_any_sequences_of_any_packing_are_counted_like_lists(
    model: Model, epoch: int, seed: int, data: st.DataObject
) -> None:
    packed = packing(model)
    size = len(packed)
    for served in (set(range(size)), set(range(size // 2)), data.draw(subsets(size))):
        ranges = [(number, number + 1) for number in sorted(served)]
        found = packed.count_served(ranges, epoch=epoch, seed=seed)
        tokens, begun, finished = counted(model, epoch, seed, served)
        empty = bare_empty_documents(model)
        assert found.tokens == tokens
        assert found.begun is not None
        assert found.finished is not None
        assert begun <= found.begun <= begun + empty
        assert finished <= found.finished <= finished + empty
        less = packed.count_served(ranges, epoch=epoch, seed=seed, documents=False)
        assert less == (tokens, None, None)


@pytest.mark.parametrize("order", ["global", "mixed-global"])
@pytest.mark.parametrize("min_length", [0, 4])
@pytest.mark.parametrize("eos", [None, 9])
def test_blocks_of_a_global_order_are_counted(order: str, min_length: int, eos: int | None) -> None:
    rng = np.random.default_rng(4)
    shards = [[[1] * size for size in rng.integers(1, 9, 700)] for _ in range(5)]
    held = ModelCorpus(shards, ["int32"] * 5, min_length=min_length)
    model = Model(held, 16, eos=eos, order=order, mixed_shards=2)
    packed = packing(model)
    size = len(packed)
    for served in (set(range(size)), set(range(9, size // 2)), {size - 1}):
        ranges = [(number, number + 1) for number in served]
        assert packed.count_served(ranges, epoch=1, seed=2) == counted(model, 1, 2, served)


def test_the_pass_over_filtered_documents_is_cached(tmp_path: Path) -> None:
    shards = [[[1] * (1 + (7 * n) % 11) for n in range(1500)]]
    for _ in range(2):
        data = ModelCorpus(shards, ["int32"], min_length=5)
        packed = PackedSequences(
            data, sequence_length=8, order="global", cache=tmp_path, live_shards=1
        )
        found = packed.count_served([(0, len(packed))])
        assert found[1:] == (int(data.shard_kept[0]), int(data.shard_kept[0]))
    (file,) = tmp_path.glob("windeck-kept-*")
    opened = len(data.opened)
    file.write_bytes(file.read_bytes()[:-1])  # A damaged file is made again.
    again = PackedSequences(data, sequence_length=8, order="global", cache=tmp_path, live_shards=1)
    assert again.count_served([(0, len(packed))]) == found
    assert len(data.opened) == 2 * opened + 1


@pytest.mark.parametrize("padded", [False, True])
def test_an_empty_document_without_a_frame_counts_with_a_token_beside_it(padded: bool) -> None:
    data = ModelCorpus([[[], [1, 2, 3], [], [], [4, 5, 6, 7, 8, 9], []], [[]]], ["int32"] * 2)
    packed = PackedSequences(data, sequence_length=3, padded=padded)
    size = len(packed)
    steps = [packed.count_served([(0, stop)]) for stop in range(size + 1)]
    assert steps[0] == (0, 0, 0)
    assert [step.begun for step in steps] == sorted(step.begun or 0 for step in steps)
    assert [step.finished for step in steps] == sorted(step.finished or 0 for step in steps)
    whole = [packed.count_served([(0, size)], epoch=epoch) for epoch in range(20)]
    assert all(found.begun == found.finished for found in whole)
    # Of the shard with nothing else there is no sequence; cut sequences leave out the tail.
    assert {found.finished for found in whole} == ({6} if padded else {3, 4, 5, 6, 7})


def test_the_lengths_of_shards_that_are_served_in_full_are_not_read() -> None:
    data = corpus()
    packed = PackedSequences(data, sequence_length=16, eos=1)
    data.opened.clear()
    packed.count_served([(0, len(packed) - 40)])
    assert len(data.opened) <= 2
    data.opened.clear()
    packed.count_served([(5, 90), (100, 101)], documents=False)
    assert data.opened == []


def test_counts_are_the_same_after_pickling() -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order="mixed", padded=True)
    again = pickle.loads(pickle.dumps(packed))
    assert again.count_served([(3, 50)]) == packed.count_served([(3, 50)])


@pytest.mark.parametrize("order", ["shards", "mixed", "global"])
def test_ranges_are_sorted_and_merged(order: Any) -> None:
    packed = PackedSequences(corpus(), sequence_length=16, order=order)
    expected = packed.count_served([(0, 3), (4, 7)])
    assert expected != packed.count_served([(0, 7)])
    for ranges in itertools.permutations([(4, 6), (1, 1), (0, 2), (6, 7), (2, 3)]):
        assert packed.count_served(list(ranges)) == expected
    assert packed.count_served([]) == packed.count_served([(3, 3)]) == (0, 0, 0)


def test_an_empty_document_is_served_with_the_token_before_it() -> None:
    data = ModelCorpus([[[], [1, 2], [], [3], [4, 5, 6], []]], ["int32"])
    packed = PackedSequences(data, sequence_length=1)
    size = len(packed)
    for epoch in range(20):
        at = packed.at_epoch(epoch)
        held: dict[Any, list[int]] = {}
        for number in range(size):
            for piece in at.documents(number):
                held.setdefault(piece[:3], []).append(number)
        # Of the empty documents alone.
        begun, finished = [], []
        for stop in range(size + 1):
            found: Any = at.count_served([(0, stop)])
            begun.append(found.begun - sum(min(of) < stop for of in held.values()))
            finished.append(found.finished - sum(max(of) < stop for of in held.values()))
        assert begun == sorted(begun)
        assert begun[1] >= finished[1]
        # A sequence has a token and its target, which the next one begins with.
        assert finished[2:-1] == begun[1:-2]
        assert begun[-1] == finished[-1] <= 3
