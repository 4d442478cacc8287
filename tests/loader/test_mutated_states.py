"""Tests of states with any part changed: they are refused in a sentence, or mean the same.

A state that is accepted continues: batches, questions and the next state raise no other error.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import islice
from typing import Any

import pytest

from models.oracle import Numbers
from models.packed_model import Packed
from windeck import IterDataset, Loader, Mixture, OrderSampler, Stream

NESTED: Any = 0
for _ in range(200):
    NESTED = [NESTED]

ODD = [
    None, True, "", "3", "nan", b"3", 0.5, float("nan"), float("inf"), -1, 1, 2, 2**31, 2**53 + 1,
    2**63 - 2, 2**63 - 1, 2**63, 2**64, -(2**63), 10**30, [], {}, [0], [[0]], {"a": 1}, [None] * 6,
    (1, 2), NESTED,
]  # fmt: skip


def places(found: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    yield at
    if isinstance(found, (dict, list)):
        for key in found if isinstance(found, dict) else range(len(found)):
            yield from places(found[key], (*at, key))


def mutations(state: Any) -> Iterator[tuple[tuple[Any, ...], Any, Any]]:
    """Yield each place, what was done to it, and the changed state."""
    for at in places(state):
        for odd in ODD:
            if not at:
                yield at, odd, odd
                continue
            changed = copy.deepcopy(state)
            holder = changed
            for key in at[:-1]:
                holder = holder[key]
            holder[at[-1]] = odd
            yield at, odd, changed
        if at:
            for how in ("removed", "added", "wrapped"):
                changed = copy.deepcopy(state)
                holder = changed
                for key in at[:-1]:
                    holder = holder[key]
                if how == "removed":
                    del holder[at[-1]]
                elif how == "wrapped":
                    holder[at[-1]] = [holder[at[-1]]]
                elif isinstance(holder, list):
                    holder.insert(at[-1], holder[at[-1]])
                else:
                    holder["more"] = 1
                yield at, how, changed


def mixture() -> Mixture:
    parts: dict[str, Any] = {
        "web": (Stream(Numbers(30), grown=[(40, Numbers(35))]), 3),
        "x": (Numbers(9), 1),
    }
    return Mixture(parts, seed=2, schedule=[(10, {"web": 1, "x": 1})])


def used_loader(make: Callable[[], Any], **options: Any) -> tuple[Any, Any]:
    loader = Loader(make(), prefetch=0, **{"batch_size": 4, **options})
    for _ in range(3):
        next(iter(loader))
    with_more = Loader(make(), prefetch=0, **{**options, "batch_size": 3})
    with_more.load_state_dict(loader.state_dict())
    next(iter(with_more))
    with_more.exclude(20, 23)
    return (
        lambda: Loader(make(), prefetch=0, **{"batch_size": 4, **options})
    ), with_more.state_dict()


def use_loader(loader: Any) -> None:
    for batch in islice(loader, 2):
        del batch
    for step in (loader.step, max(0, loader.step - 1), loader.step + 3):
        with suppress(IndexError):  # a step before the first of the state, or after the last
            loader.samples(step)
            loader.state_dict(step=step)
    if loader.position < 10**5:  # it goes through the epochs, with `drop_last` and for documents
        loader.served()
    again = loader.state_dict()
    assert json.loads(json.dumps(again)) == again


def iter_dataset() -> tuple[Any, Any]:
    dataset = IterDataset(mixture(), batch_size=4)
    return (lambda: IterDataset(mixture(), batch_size=4)), dataset.state_dict(12)


def use_dataset(dataset: Any) -> None:
    for batch in islice(dataset, 2):
        del batch
    dataset.state_dict()


def sampler() -> tuple[Any, Any]:
    found = OrderSampler(50, seed=3)
    list(islice(found, 7))
    return (lambda: OrderSampler(50, seed=3)), found.state_dict(consumed=7)


def use_sampler(found: Any) -> None:
    list(islice(found, 5))
    found.state_dict(consumed=2)


def sampler_loop() -> tuple[Any, Any]:
    loop: Any = iter(OrderSampler(50, seed=3))
    list(islice(loop, 7))
    return (lambda: iter(OrderSampler(50, seed=3))), loop.state_dict()


def dataset_loop() -> tuple[Any, Any]:
    loop: Any = iter(IterDataset(mixture(), batch_size=4))
    next(loop)
    return (lambda: iter(IterDataset(mixture(), batch_size=4))), loop.state_dict()


def use_loop(loop: Any) -> None:
    list(islice(loop, 2))
    loop.state_dict()


CASES: dict[str, tuple[Callable[[], tuple[Any, Any]], Callable[[Any], None]]] = {
    "loader": (lambda: used_loader(lambda: Stream(Numbers(31))), use_loader),
    "loader that drops": (lambda: used_loader(lambda: Numbers(31), drop_last=True), use_loader),
    "loader of documents": (lambda: used_loader(lambda: Packed([3, 9, 14, 6, 2])), use_loader),
    "loader of a mixture": (lambda: used_loader(mixture), use_loader),
    "dataset": (iter_dataset, use_dataset),
    "sampler": (sampler, use_sampler),
    "loop of a sampler": (sampler_loop, use_loop),
    "loop of a dataset": (dataset_loop, use_loop),
}


@pytest.mark.parametrize("case", CASES)
def test_any_change_of_a_state(case: str) -> None:
    start, use = CASES[case]
    make, state = start()
    plain = json.loads(json.dumps(state))
    fresh = make()
    fresh.load_state_dict(plain)
    use(fresh)
    outcomes = {"accepted": 0, "refused": 0}
    failures = []
    for at, how, changed in mutations(plain):
        target = make()
        try:
            target.load_state_dict(changed)
        except (TypeError, ValueError, KeyError) as error:
            text = str(error)
            if len(text) < 15 or len(text) > 2000 or " " not in text:
                failures.append((at, how, repr(error)[:200]))
            outcomes["refused"] += 1
            continue
        except Exception as error:
            failures.append((at, how, repr(error)[:200]))
            continue
        outcomes["accepted"] += 1
        try:
            use(target)
        except (IndexError, StopIteration, ValueError) as error:
            if "2^63" not in str(error) and "end of the stream" not in str(error):
                failures.append((at, how, f"used: {error!r}"[:200]))
        except Exception as error:
            failures.append((at, how, f"used: {error!r}"[:200]))
    assert not failures, "\n".join(map(str, failures[:40])) + f"\n{len(failures)}"
    assert outcomes["refused"] > outcomes["accepted"]
