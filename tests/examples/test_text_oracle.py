"""Tests of the oracle: small cases by eye, counts, and properties proved in the literature."""

from __future__ import annotations

from fractions import Fraction
from itertools import pairwise
from typing import Literal

import pytest

from models.text_oracle import Packed, Packing, Padded, Streamed
from support.text_mixtures import Mixed, slot_counts, slots

CORPUS = [[[10, 11, 12], [], [13]], [], [[14, 15, 16, 17, 18, 19, 20], [21, 22]]]


@pytest.mark.parametrize("order", ["shards", "global"])
def test_every_token_of_an_epoch_but_the_tail(order: Literal["shards", "global"]) -> None:
    model = Packed(CORPUS, Packing(4, bos=1, eos=2, order=order))
    framed = 13 + 2 * 5
    assert len(model) == (framed - 1) // 4
    rows = [model.row(3, 8, sample) for sample in range(len(model))]
    for row, following in pairwise(rows):
        assert row.tokens[-1] == following.tokens[0]
    served = [token for row in rows for token in row.tokens[:-1]]
    assert served == [token for token, *_ in model.stream(3, 8)][: len(served)]
    assert sorted(t for t, *_ in model.stream(3, 8) if t > 2) == list(range(10, 23))


def test_position_ids_begin_again_at_documents_and_rows() -> None:
    model = Packed([[[10, 11, 12, 13, 14, 15, 16]], [[20]]], Packing(3, eos=2))
    rows = {tuple(model.row(0, 0, s).tokens): model.row(0, 0, s).position_ids for s in range(3)}
    known = {
        (10, 11, 12, 13): [0, 1, 2],
        (13, 14, 15, 16): [0, 1, 2],
        (16, 2, 20, 2): [0, 1, 0],
        (20, 2, 10, 11): [0, 1, 0],
        (11, 12, 13, 14): [0, 1, 2],
        (14, 15, 16, 2): [0, 1, 2],
    }
    assert rows.items() <= known.items()


def test_best_fit_takes_the_fullest_bin_that_suffices() -> None:
    shard = [[10] * 4, [11] * 3, [12] * 2, [13] * 9, [14]]
    model = Padded([shard], Packing(5, padded=True, pad=99))
    held = [[(p.doc, p.start, p.stop) for p in bin_] for bin_ in model.bins[0]]
    # 9 tokens are cut into [0, 6) and [5, 9); the rest of 4 fits nowhere, the last 1 beside 3 + 2.
    assert held == [[(0, 0, 4), (2, 0, 2)], [(1, 0, 3)], [(3, 0, 6)], [(3, 5, 9), (4, 0, 1)]]
    order = [model.places(0, 0).index(bin_) for bin_ in model.bins[0]]
    row = model.row(0, 0, order[3])
    assert row == ([13] * 4 + [14, 99], [0, 1, 2, 3, 0], [True, True, True, False, False])


def test_filters_leave_documents_in_the_order_without_tokens() -> None:
    how = Packing(2, bos=1, strip=(7, 9), min_length=2)
    assert how.framed([7, 9, 10, 7, 11, 9]) == [1, 10, 7, 11]
    assert how.framed([7, 10, 9]) is None
    assert Packing(2, bos=1, eos=2).framed([]) == [1, 2]


def test_the_running_epoch_finishes_over_the_old_corpus() -> None:
    old, new = Packed([[[10] * 7]], Packing(2)), Packed([[[10] * 7], [[11] * 4]], Packing(2))
    stream = Streamed(old, grown=[(4, new)])
    assert [len(old), len(new)] == [3, 5]
    found = [(place.corpus, place.epoch, place.sample) for place in map(stream.at, range(12))]
    assert found == [
        *((0, epoch, sample) for epoch in (0, 1) for sample in range(3)),
        *((1, 2, sample) for sample in range(5)),
        (1, 3, 0),
    ]


@pytest.mark.parametrize(
    "weights",
    [
        {"a": 0.7, "b": 0.3},
        {"a": 3, "b": 2, "c": 1},
        {"a": 1, "b": 0, "c": 1e-3},
        {"a": 0.31, "b": 0.22, "c": 0.17, "d": 0.3},
        {str(number): number * number for number in range(1, 9)},
    ],
)
def test_every_prefix_is_within_one_of_its_share(weights: dict[str, float]) -> None:
    counts, table = slot_counts(weights), slots(weights)
    served = dict.fromkeys(weights, 0)
    for slot, name in enumerate(table, 1):
        served[name] += 1
        assert all(
            abs(served[name] - Fraction(counts[name] * slot, len(table))) < 1 for name in weights
        )
    assert served == counts


def test_parts_go_on_where_they_were_when_weights_change() -> None:
    stream = Streamed(Packed([[[10] * 100]], Packing(2)))
    served = Mixed({"a": (stream, 1), "b": (stream, 1)}, [(5, {"a": 0, "b": 1})])
    assert [served.slot(position) for position in range(8)] == [
        ("a", 0),
        ("b", 0),
        ("a", 1),
        ("b", 1),
        ("a", 2),
        ("b", 2),
        ("b", 3),
        ("b", 4),
    ]
