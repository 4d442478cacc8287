"""A save by one process stores what a save by a plan of one writer does, without its plan."""

from __future__ import annotations

import re
import sys
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import ModelCore, ModelTable
from windeck import checkpoint
from windeck.checkpoint.format import HEADER_BYTES
from windeck.checkpoint.stores import Store, open_store


def state(step: int) -> dict[str, Any]:
    """Tensors of many sizes, shared, empty and not contiguous, and other values."""
    rows = torch.arange(600_000.0).view(800, 750) + step
    weight = torch.full((3, 4), step, dtype=torch.bfloat16)
    model = {
        "w": weight, "tied": weight, "scalar": torch.tensor(step), "none": torch.empty(0, 3),
        "rows": rows, "turned": rows.T[:7], "more": ([torch.ones(5)], (torch.zeros(2), 1.5)),
    }  # fmt: skip
    return {
        "model": model,
        "optimizer": {"lr": 0.1, 0: None},
        "extra": [step, "text", float("inf")],
    }


def table() -> dict[str, ModelTable]:
    core = ModelCore(2, 1)
    core.fill(range(60), np.random.default_rng(0))
    return {"t": ModelTable(core)}


def payloads(store: Store) -> dict[bytes, bytes]:
    """Return the values, but for HEAD and writers' manifests, without the number of the save."""
    found = {key: value[HEADER_BYTES:] for key, value in store.scan(b"windeck/")}
    del found[b"windeck/HEAD"]
    return {
        key: re.sub(rb'"save":\d+', b"", value)
        for key, value in found.items()
        if not key.startswith(b"windeck/s/")
    }


@pytest.mark.parametrize("incremental", [False, True])
def test_the_stored_values_are_those_of_a_plan_of_one_writer(incremental: bool) -> None:
    with open_store("memory://") as alone, open_store("memory://") as planned:
        checkpoint.save(alone, step=1, embeddings=table(), incremental=incremental, **state(1))
        plan = checkpoint.begin(planned, step=1, writers=1, incremental=incremental)
        checkpoint.save_shard(planned, plan, writer=0, embeddings=table(), **state(1))
        checkpoint.merge(planned, plan)
        assert payloads(alone) == payloads(planned)
        assert not list(alone.keys(b"windeck/s/"))


def test_what_is_kept_is_the_same() -> None:
    changed, found = state(1), []
    changed["model"]["rows"][5] = 0
    with open_store("memory://") as alone, open_store("memory://") as planned:
        for given in (state(1), changed):
            checkpoint.save(alone, step=1, incremental=True, chunk_bytes=1 << 16, **given)
            plan = checkpoint.begin(
                planned, step=1, writers=1, incremental=True, chunk_bytes=1 << 16
            )
            checkpoint.save_shard(planned, plan, writer=0, **given)
            checkpoint.merge(planned, plan)
        for store in (alone, planned):
            with checkpoint.open(store) as opened:
                parts = {name: entry.parts for name, entry in opened.entries.items()}
            found.append(
                {
                    name: [
                        (part.box, part.writer, part.item, [run[:3] + run[4:] for run in part.kept])
                        for part in own
                    ]
                    for name, own in parts.items()
                }
            )
    assert found[0] == found[1]
    assert found[0]["model/rows"][0][3]


class Refused:
    """A store that a save by one process may not use in the ways of a save by many."""

    def __init__(self, store: Store) -> None:
        self.store, self.written = store, list[bytes]()

    def put_many(self, items: Any) -> None:
        pairs = list(items)
        self.written += [key for key, _ in pairs]
        self.store.put_many(pairs)

    def bulk_load(self, items: Any) -> int:
        pairs = list(items)
        self.written += [key for key, _ in pairs]
        return self.store.bulk_load(pairs)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        self.written.append(key)
        return self.store.compare_and_set(key, expected, value)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.store, name)


def test_each_key_is_written_once_and_head_last() -> None:
    with open_store("memory://") as store:
        place: Any = Refused(store)
        checkpoint.save(place, step=1, model={"w": torch.zeros(12)})
        number = b"%016x" % 1
        assert place.written == [
            b"windeck/HEAD",  # empty
            b"windeck/NEXT",
            b"~windeck~%s/t/00000000/00000000/00000000" % number,
            b"windeck/m/%s" % number,
            b"windeck/HEAD",
        ]
        place.written.clear()
        checkpoint.save(place, step=2, model={"w": torch.zeros(12)})
        assert [key.split(b"/")[1] for key in place.written] == [b"NEXT", b"t", b"m", b"HEAD"]


def test_a_number_that_python_does_not_print_is_refused_before_anything_is_written() -> None:
    limit = sys.get_int_max_str_digits()
    with open_store("memory://") as store:
        try:
            sys.set_int_max_str_digits(700)
            with pytest.raises(ValueError, match="700 digits"):
                checkpoint.save(store, step=1, extra={"n": 10**800})
        finally:
            sys.set_int_max_str_digits(limit)
        assert not list(store.keys())
