"""Tests of how the ranks of a group divide the writes, and of missing names, without processes."""

from __future__ import annotations

import itertools
import random
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as some

from support.internals import (
    assign_writers,
    check_equal_options,
    check_unclaimed_names,
    find_holders,
)

#: Of each tensor's box, its bytes and the ranks that have it.
Holders = dict[tuple[str, tuple[tuple[int, int], ...]], tuple[int, list[int]]]


def model(holders: Holders, ranks: int) -> dict[Any, int]:
    """The same, one box after another: what one rank has, then the largest of those left."""
    found = {key: having[0] for key, (_, having) in holders.items() if len(having) == 1}
    while len(found) < len(holders):
        left = [key for key in holders if key not in found]
        most = max(holders[key][0] for key in left)
        key = min(key for key in left if holders[key][0] == most)
        load = [sum(holders[k][0] for k in found if found[k] == rank) for rank in range(ranks)]
        least = min(load[rank] for rank in holders[key][1])
        found[key] = min(rank for rank in holders[key][1] if load[rank] == least)
    return found


def keys() -> some.SearchStrategy[Any]:
    boxes = [(), ((0, 1),), ((0, 2),), ((1, 2),), ((0, 1), (5, 7))]
    return some.tuples(some.sampled_from(["a", "a/b", "b", "z"]), some.sampled_from(boxes))


@given(
    some.dictionaries(
        keys(), some.tuples(some.integers(0, 4), some.sets(some.integers(0, 3), min_size=1))
    ),
    some.randoms(use_true_random=False),
)
def test_each_box_has_one_writer_in_whichever_order_they_are_told(
    told: dict[Any, tuple[int, set[int]]], rng: random.Random
) -> None:
    """Few sizes and few ranks give many ties."""
    holders = {key: (size, sorted(having)) for key, (size, having) in told.items()}
    mixed = dict(rng.sample(sorted(holders.items()), len(holders)))
    for key, (size, having) in mixed.items():
        mixed[key] = size, rng.sample(having, len(having))
    assert assign_writers(holders, 4) == assign_writers(mixed, 4) == model(holders, 4)


def test_equal_boxes_go_in_the_order_of_names_and_boxes_to_the_first_rank() -> None:
    one, two = ((0, 4),), ((4, 8),)
    names = [("b", one), ("a", two), ("b", two), ("a", one), ("c", ())]
    expected = dict(zip(sorted(names), (0, 1, 2, 0, 1), strict=True))
    for order in itertools.permutations(names):
        assert assign_writers({key: (8, [2, 1, 0]) for key in order}, 3) == expected


def test_what_one_rank_has_counts_before_what_several_have() -> None:
    box = ((0, 9),)
    holders: Holders = {
        ("large", box): (50, [0, 1]),
        ("own", box): (10, [0]),
        ("z", box): (41, [0, 1]),
        ("nothing", box): (0, [1, 0]),
    }
    assert assign_writers(holders, 2) == {
        ("own", box): 0, ("large", box): 1, ("z", box): 0, ("nothing", box): 1
    }  # fmt: skip
    assert assign_writers({}, 3) == {}


def test_holders_of_boxes() -> None:
    first = [["w", "float32", 4, [[[0, 2], [0, 3]]]], ["s", "int64", 8, [[]]]]
    second = [["w", "float32", 4, [[[2, 5], [0, 3]], [[0, 2], [0, 3]]]], ["none", "int8", 1, []]]
    third = [["s", "int64", 8, [[]]], ["w", "float32", 4, [[[5, 5], [0, 3]], [[0, 2], [0, 3]]]]]
    assert find_holders([first, second, [], third]) == {
        ("w", ((0, 2), (0, 3))): (24, [0, 1, 3]),
        ("w", ((2, 5), (0, 3))): (36, [1]),
        ("w", ((5, 5), (0, 3))): (0, [3]),
        ("s", ()): (8, [0, 3]),
    }
    assert find_holders([]) == {}


def test_names_that_no_rank_has() -> None:
    """A name of the checkpoint is missing if no rank that loads its root has it."""
    fine: list[list[dict[str, list[str]]]] = [
        [],
        [{}, {}],
        [{"model": []}, {"model": ["w", "v"]}],
        [{"model": ["w"]}, {"model": ["v"]}],
        [{"model": ["w", "v"]}, {"model": ["v", "u"]}, {"model": ["u", "w"]}],
        [{"model": []}, {"extra": []}],
    ]
    for names in fine:
        check_unclaimed_names(names, "generation 3")
    refused: list[tuple[list[dict[str, list[str]]], str, str]] = [
        ([{"model": ["w", "v"]}], "model", "v, w"),
        ([{"model": ["w", "v", "u"]}, {"model": ["u", "w", "t"]}], "model", "u, w"),
        ([{"model": ["w"]}, {}], "model", "w"),
        ([{"model": [*"hgfedcba"]}] * 2, "model", "a, b, c, d, e, f, g, h"),
        ([{"model": []}, {"model": ["w"], "extra": ["e"]}, {"extra": ["e", "f"]}], "extra", "e"),
        ([{"optimizer": ["o"], "model": ["w"]}, {"model": ["w"]}], "optimizer", "o"),
    ]
    for names, root, told in refused:
        words = f"the names in {root} are not those of generation 3: only in the target []; only in"
        with pytest.raises(KeyError, match=re.escape(f"{words} the checkpoint [{told}]; strict=")):
            check_unclaimed_names(names, "generation 3")


def test_options_that_are_not_the_same_on_all_ranks() -> None:
    same = {"step": 3, "namespace": "a"}
    check_equal_options([same])
    check_equal_options([same, dict(same), dict(same)])
    words = "`step` must be the same on all ranks, got 3 on rank 0 and 4 on rank 2"
    with pytest.raises(ValueError, match=f"^{words}$"):
        check_equal_options([same, same, {**same, "step": 4}, {**same, "step": 5}])
    with pytest.raises(
        ValueError, match=r"^`namespace` must be .*, got 'a' on rank 0 and 'b' on rank 1$"
    ):
        check_equal_options([same, {**same, "namespace": "b"}])
