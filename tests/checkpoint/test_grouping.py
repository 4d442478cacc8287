"""Tests of how the ranks of a group divide the writes, and of their names and options."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate
from torch.distributed.tensor.placement_types import _StridedShard

from support.gangs import gang
from support.sharded_ranks import distributed
from windeck import checkpoint
from windeck.checkpoint import Partition

Fresh = Callable[[str], str]

RANKS = 4
#: Of each tensor its dtype, and its boxes along the first dimension with the ranks that have them.
Case = dict[str, tuple[str, list[tuple[tuple[int, int], list[int]]]]]
#: Of each tensor's box, its bytes and the ranks that have it.
Holders = dict[tuple[str, tuple[int, int]], tuple[int, list[int]]]


def model(holders: Holders) -> dict[tuple[str, tuple[int, int]], int]:
    """Return a writer for each box: of those that one rank has, then of the largest ones left."""
    found = {key: having[0] for key, (_, having) in holders.items() if len(having) == 1}
    while len(found) < len(holders):
        left = [key for key in holders if key not in found]
        most = max(holders[key][0] for key in left)
        key = min(key for key in left if holders[key][0] == most)
        load = [sum(holders[k][0] for k in found if found[k] == rank) for rank in range(RANKS)]
        least = min(load[rank] for rank in holders[key][1])
        found[key] = min(rank for rank in holders[key][1] if load[rank] == least)
    return found


def drawn_case(seed: int) -> Case:
    """Return tensors of few sizes, cut into boxes that some ranks have, so that ties are many."""
    draw = random.Random(seed)
    found: Case = {}
    for name in draw.sample(["a", "a/b", "b", "z", "y/0", "x", "c", "d", "e"], draw.randint(4, 9)):
        ranks = draw.sample(range(RANKS), draw.randint(1, RANKS))
        boxes, first = list[tuple[tuple[int, int], list[int]]](), 0
        while ranks:
            count, size = draw.randint(1, len(ranks)), draw.randint(1, 3)
            boxes.append(((first, first + size), ranks[:count]))
            ranks, first = ranks[count:], first + size
        found[name] = draw.choice(["int8", "int16"]), boxes
    return found


CASES: list[Case] = [
    *map(drawn_case, range(30)),
    # Equal boxes go in the order of names to the first rank that has the least.
    {name: ("int64", [((0, 1), [3, 1, 2])]) for name in "dbeca"},
    # What one rank has counts before what several have.
    {"large": ("int8", [((0, 50), [0, 1])]), "own": ("int8", [((0, 10), [0])]),
     "z": ("int8", [((0, 41), [0, 1])])},
    {},
]  # fmt: skip


def save_cases(rank: int, ranks: int, url: str) -> None:
    """Save what this rank has of each case, in an order of its own; then two strided tensors."""
    for step, case in enumerate(CASES):
        own: dict[str, Any] = {}
        for name in random.Random(rank + step).sample(sorted(case), len(case)):
            dtype, boxes = case[name]
            for (first, end), having in boxes:
                if rank in having:
                    part = torch.zeros(end - first, dtype=getattr(torch, dtype))
                    own[name] = Partition(part, offset=(first,), shape=(boxes[-1][0][1],))
        checkpoint.save(url, step=step, model=own, group=dist.group.WORLD)
    mesh = init_device_mesh("cpu", (2, 2))
    layout = [Replicate(), _StridedShard(0, split_factor=2)]
    strided = {name: distributed(torch.zeros(8), mesh, layout) for name in "ba"}
    checkpoint.save(url, step=len(CASES), model=strided, group=dist.group.WORLD)


def writers(url: str, generation: int) -> dict[tuple[str, tuple[int, int]], int]:
    with checkpoint.open(url, generation=generation) as found:
        return {
            (name.removeprefix("model/"), part.box[0]): part.writer
            for name, entry in found.entries.items()
            for part in entry.parts
        }


def test_each_box_has_one_writer(fresh: Fresh) -> None:
    """In whatever order the ranks name their tensors."""
    url = fresh("redis")
    gang(RANKS, save_cases, url)
    for step, case in enumerate(CASES):
        holders = {
            (name, side): ((side[1] - side[0]) * getattr(torch, dtype).itemsize, having)
            for name, (dtype, boxes) in case.items()
            for side, having in boxes
        }
        assert writers(url, step + 1) == model(holders), case
    # Ranks 0 and 2 have rows 0 to 1 and 4 to 5 of both, ranks 1 and 3 the others.
    assert writers(url, len(CASES) + 1) == {
        ("a", (0, 2)): 0, ("a", (2, 4)): 1, ("a", (4, 6)): 2, ("a", (6, 8)): 3,
        ("b", (0, 2)): 0, ("b", (2, 4)): 1, ("b", (4, 6)): 2, ("b", (6, 8)): 3,
    }  # fmt: skip


#: The names of a root that a rank loads; None: it does not load the root.
NAMES = ["w", "v"]
CHOICES: list[list[str] | None] = [None, [], ["w"], ["v"], ["w", "v"]]
LOADS = [*itertools.product(CHOICES, CHOICES)]
#: Names of the models and of the optimizers that three ranks load, and what no rank has.
MORE: list[tuple[list[list[str] | None], list[list[str] | None], str, list[str]]] = [
    ([["w", "v"], ["v"], ["v"]], [None, None, None], "", []),
    ([[], ["w"], ["w"]], [None, None, None], "model", ["v"]),
    ([["w", "v"], ["v"], None], [None, ["o"], []], "optimizer", [*"abcdefgh"]),
    ([["w"], ["w"], None], [["o"], None, None], "model", ["v"]),
]
OPTIMIZER = dict.fromkeys("hgfedcbao")


def outcome(action: Callable[[], Any]) -> str:
    try:
        action()
    except (KeyError, ValueError) as error:
        return str(error.args[0])
    return "done"


def load_cases(rank: int, ranks: int, url: str) -> list[str]:
    def load(names: Any, others: Any = None) -> str:
        given: dict[str, Any] = {}
        if names is not None:
            given["model"] = {name: torch.zeros(2) for name in names}
        if others is not None:
            given["optimizer"] = {name: torch.zeros(1) for name in others}
        return outcome(lambda: checkpoint.load(url, **given, group=dist.group.WORLD))

    # Of three ranks the last one loads as the first one does.
    told = [load(pair[rank % 2]) for pair in LOADS]
    return told + [load(models[rank], others[rank]) for models, others, _, _ in MORE]


def test_names_that_no_rank_has(fresh: Fresh) -> None:
    """A name of the checkpoint is missing if no rank that loads its root has it."""
    url = fresh("redis")
    optimizer = {name: torch.ones(1) for name in OPTIMIZER}
    model = {name: torch.ones(2) for name in NAMES}
    checkpoint.save(url, step=1, model=model, optimizer=optimizer)
    words = "the names in {} are not those of generation 1: only in the target []; only in"
    words += " the checkpoint"
    told = gang(3, load_cases, url)
    assert told[0] == told[1] == told[2]
    expected = []
    for pair in LOADS:
        loading = [names for names in pair if names is not None]
        missing = sorted(set(NAMES).difference(*loading)) if loading else []
        expected.append(("model", missing))
    expected += [(root, missing) for _, _, root, missing in MORE]
    for said, (root, missing) in zip(told[0], expected, strict=True):
        if missing:
            listed = ", ".join(f"{root}/{name}" for name in missing)
            assert said.startswith(f"{words.format(root)} [{listed}]; strict=")
        else:
            assert said == "done"


def save_with(rank: int, ranks: int, url: str, options: list[list[dict[str, Any]]]) -> list[str]:
    def save(own: dict[str, Any]) -> str:
        given = {"model": {"w": torch.ones(2)}, **own}
        return outcome(lambda: checkpoint.save(url, **given, group=dist.group.WORLD))

    return [save(of_ranks[rank]) for of_ranks in options]


def test_options_that_are_not_the_same_on_all_ranks(fresh: Fresh) -> None:
    same = {"step": 3, "namespace": "a"}
    options = [
        [same, same, same],
        [same, same, {**same, "step": 4}],
        [same, {**same, "step": 4}, {**same, "step": 5}],
        [same, {**same, "namespace": "b"}, same],
        [same, same, {**same, "tag": "best"}],
    ]
    told = gang(3, save_with, fresh("redis"), options)
    assert told[0] == told[1] == told[2]
    assert told[0][0] == "done"
    words = r"`{}` must be the same on all ranks, got {} on rank 0 and {} on rank {}$"
    for said, differing in zip(
        told[0][1:],
        [("step", 3, 4, 2), ("step", 3, 4, 1), ("namespace", "'a'", "'b'", 1),
         ("tag", None, "'best'", 2)],
        strict=True,
    ):  # fmt: skip
        assert re.match(words.format(*differing), said)
