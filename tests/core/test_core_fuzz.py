"""The boundary of the core under random input: always an exception or the right answer.

Half of what is thrown at it is wrong in some way: dtypes, shapes, strides, memory that overlaps or
is read-only, rows far outside. A crash would end the test run.
"""

from __future__ import annotations

import copy
import pickle
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import pytest

from models import gather_model as model
from support import gather_cases as cases
from windeck import _core

Array = np.ndarray[Any, Any]
REFUSALS = (TypeError, ValueError, IndexError, KeyError, OverflowError, MemoryError)

# No huge number that could pass for a size: the system would lend the memory and take it back.
HUGE = [2**45, 2**61, 2**62, 2**62 + 1, 2**63 - 1]


def number(rng: np.random.Generator, low: int, high: int) -> int:
    """Return a mostly small number, sometimes a huge one of either sign."""
    if rng.random() < 0.02:
        return int(rng.choice([-1, 1])) * int(rng.choice(HUGE))
    return int(rng.integers(low, high))


def odd_array(rng: np.random.Generator, array: Array) -> Any:
    """Return the same values in another kind of memory, or other values, dtypes or shapes."""
    kind = int(rng.integers(0, 9))
    if kind == 0:
        return array[::-1].copy()[::-1]  # negative strides
    if kind == 1:
        repeated: Array = np.repeat(array, 3)[::3] if array.ndim == 1 else array.copy(order="F")
        return repeated
    if kind == 2:  # not aligned to its type
        packed = np.zeros(array.shape, dtype=[("before", "u1"), ("value", array.dtype)])
        packed["value"] = array
        unaligned: Array = packed["value"]
        return unaligned
    if kind == 3:
        read_only = array.copy()
        read_only.flags.writeable = False
        return read_only
    if kind == 4:
        converted: Array = array.astype(
            rng.choice(["f4", "i4", "i8", "c8", ">i8", "u8", "?", "O", "S3"])
        )
        return converted
    if kind == 5:
        return array[..., np.newaxis] if rng.random() < 0.5 else array.reshape(1, -1)
    if kind == 6:
        return array[: max(len(array) - 1, 0)]
    if kind == 7:
        return np.broadcast_to(array[:1], array.shape)  # stride 0
    return array.copy()


def fuzzed(rng: np.random.Generator, array: Array) -> Any:
    if rng.random() < 0.9:
        return array
    with np.errstate(all="ignore"):
        return odd_array(rng, array)


def try_gather(seed: int) -> str:
    rng = np.random.default_rng(seed)
    rows = int(rng.integers(0, 50))
    bounds = np.sort(rng.integers(0, rows + 1, int(rng.integers(1, 4))))
    bounds[0] = number(rng, 0, 1)
    series = len(bounds) - 1
    first = np.array([number(rng, -5, rows + 5) for _ in range(series)], dtype=np.int64)
    count = np.array([number(rng, 0, 9) for _ in range(series)], dtype=np.int64)
    index = _core.WindowIndex(fuzzed(rng, first), fuzzed(rng, count), number(rng, 1, 4))
    dtype = str(rng.choice(cases.DTYPES))
    values = [cases.random_values(rng, rows, dtype) for _ in range(int(rng.integers(1, 4)))]
    with np.errstate(all="ignore"):
        values = [fuzzed(rng, v) for v in values]
    named = "bfloat16" if dtype == "bfloat16" else None
    columns = [_core.Column(v, dtype=named, name="c") for v in values]
    out_dtype = dtype if rng.random() < 0.6 else str(rng.choice(cases.DTYPES))
    step_spans = [(number(rng, -4, 9), number(rng, 0, 7)) for _ in range(int(rng.integers(0, 3)))]
    options: dict[str, Any] = {
        "step_spans": step_spans,
        "dilation": number(rng, 1, 4),
        "dtype": out_dtype,
        "layout": str(rng.choice(["btc", "bct"])),
        "mask": bool(rng.random() < 0.5),
    }
    field = _core.Field("x", columns, **options)
    bounds = fuzzed(rng, bounds)
    gather = _core.Gather(index, bounds, [field])
    windows = len(index)
    indices = np.array([number(rng, 0, max(min(windows, 2**40), 1)) for _ in range(3)])
    indices = fuzzed(rng, indices)
    out = None
    if rng.random() < 0.6:
        plain = gather.gather(indices)
        out = {key: fuzzed(rng, value.copy()) for key, value in plain.items()}
        if rng.random() < 0.1:
            out["start"] = out["series_id"]
        if rng.random() < 0.1:
            out["x"] = values[0][: out["x"].size].reshape(out["x"].shape)
    batch = gather.gather(indices, out=out, threads=number(rng, 1, 4))
    kinds = [dtype if named else str(v.dtype) for v in values]
    models = [model.ModelColumn(v, k) for v, k in zip(values, kinds, strict=True)]
    expected = {"x": model.ModelField(columns=models, **options)}
    plain_bounds = [int(b) for b in bounds]
    case = cases.Case(gather, index, plain_bounds, expected, np.asarray(indices))
    return cases.assert_equals_model(case, batch)


def answers(attempt: Callable[[int], str], seeds: Iterable[int]) -> Counter[str]:
    """Count the answers and the kinds of errors; an error without a message fails the test."""

    def answer(seed: int) -> str:
        try:
            return attempt(seed)
        except REFUSALS as error:
            return type(error).__name__ if str(error) else "silent"

    told = Counter(map(answer, seeds))
    assert "silent" not in told
    return told


def test_random_input_is_answered_or_refused() -> None:
    told = answers(try_gather, range(6000))
    assert told["equal"] > 1000
    assert told["TypeError"] > 100
    assert told["ValueError"] > 100


@pytest.mark.slow
def test_much_random_input_is_answered_or_refused() -> None:
    answers(try_gather, range(10_000, 60_000))


@pytest.mark.parametrize("seed", range(5))
def test_columns_of_any_layout_in_memory(seed: int) -> None:
    """Unaligned, mirrored, repeated and empty memory gives what a plain copy gives."""
    rng = np.random.default_rng(seed)
    for dtype in ("float64", "float32", "int16", "uint8", "bool", "float16"):
        plain = cases.random_values(rng, 30, dtype)
        record = np.zeros(30, dtype=[("a", "u1"), ("v", dtype), ("b", "u1")])
        record["v"] = plain
        forms = [record["v"], plain[::-1].copy()[::-1], np.repeat(plain, 2)[::2]]
        index = _core.WindowIndex(np.array([-2]), np.array([30]), 1)
        for layout, out in (("btc", dtype), ("bct", "float64"), ("btc", "float32")):
            options: dict[str, Any] = {"step_spans": [(0, 5)], "layout": layout, "dtype": out}
            batches = []
            for form in (plain, *forms):
                columns = [_core.Column(form), _core.Column(form)]
                field = _core.Field("x", columns, **options)
                batches.append(_core.Gather(index, np.array([0, 30]), [field]).gather([0, 7, 29]))
            for batch in batches[1:]:
                assert cases.same_bits(batch["x"], batches[0]["x"], out)


CLASSES = [kind for kind in vars(_core).values() if isinstance(kind, type)]


@pytest.mark.parametrize("kind", CLASSES, ids=lambda kind: kind.__name__)
def test_objects_whose_constructor_never_ran_are_refused(kind: Any) -> None:
    empty = kind.__new__(kind)
    used = 0
    for name in dir(kind):
        if isinstance(getattr(kind, name), property):
            used += 1
            with pytest.raises(TypeError, match="made by __new__ alone"):
                getattr(empty, name)
    for special in ("__len__", "__repr__", "__hash__"):
        if special in vars(kind):
            used += 1
            with pytest.raises(TypeError, match="made by __new__ alone"):
                getattr(empty, special)()
    for method, given in {"gather": [0], "find": b"", "add": b""}.items():
        if hasattr(kind, method):
            used += 1
            with pytest.raises(TypeError, match="made by __new__ alone"):
                getattr(empty, method)(given)
    assert used or kind.__name__ in ("Column", "Field")


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_pickle_takes_what_can_be_pickled_and_refuses_the_rest(protocol: int) -> None:
    for order in (_core.Permutation(9, seed=2), _core.LCG(9, state=2)):
        again = pickle.loads(pickle.dumps(order, protocol))
        assert type(again) is type(order)
        assert repr(again) == repr(copy.copy(order)) == repr(order)
    shard = _core.TokenShard.from_arrays(np.arange(3), np.array([0, 3]))
    run = _core.DocumentRun(shard)
    for held in (shard, run, _core.BestFit(run, 4), _core.Cumulative(np.array([1]))):
        name = type(held).__name__
        with pytest.raises(TypeError, match=f"^cannot pickle 'windeck._core.{name}' object$"):
            pickle.dumps(held, protocol)
        with pytest.raises(TypeError, match=f"^cannot pickle 'windeck._core.{name}' object$"):
            held.__reduce__()
