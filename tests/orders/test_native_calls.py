"""Calls of native classes and functions with arguments that they do not take."""

from __future__ import annotations

import inspect
import pickle
from typing import Any

import numpy as np
import pytest

import windeck as wd
from windeck import sources

ORDER, SEQUENCE = wd.Permutation(10), wd.LCG(10)
PERMUTATION = "expected Permutation(size, *, seed=0, epoch=0)"
INDEX = "expected Permutation.index(sample) or Permutation.index(samples, out=None)"
NEAR = "did you mean 'sample' or 'samples'?"

CALLS: list[tuple[Any, tuple[Any, ...], dict[str, Any], str]] = [
    (wd.Permutation, (10,), {"sed": 3}, "Permutation has no option `sed`; did you mean 'seed'"),
    (wd.Permutation, (10,), {"shuffle": True}, "Permutation has no option `shuffle`"),
    (
        wd.Permutation,
        (10,),
        {"random_state": 3},
        "Permutation has no option `random_state`, which is `seed` here",
    ),
    (wd.Permutation, (), {}, f"Permutation is called without `size`; {PERMUTATION}"),
    (wd.Permutation, (), {"seed": 3}, f"Permutation is called without `size`; {PERMUTATION}"),
    (
        wd.Permutation,
        (1, 2),
        {},
        f"Permutation is called with 2 positional arguments; {PERMUTATION}",
    ),
    (wd.Permutation, (1,), {"size": 2}, f"Permutation is called with `size` twice; {PERMUTATION}"),
    (wd.Permutation, ("a",), {}, "size is of type str, expected an integer"),
    (wd.Permutation, (10,), {"seed": 1.5}, "seed is of type float, expected an integer"),
    (
        ORDER.take,
        (),
        {},
        "Permutation.take is called without `positions`; expected Permutation.take",
    ),
    (ORDER.take, ([1],), {"oot": 3}, "Permutation.take has no option `oot`; did you mean 'out'?"),
    (ORDER.take, (5,), {}, "positions is of type int, expected an int64 array of one dimension"),
    (
        ORDER.slice,
        (1,),
        {},
        "Permutation.slice is called without `stop`; expected Permutation.slice",
    ),
    (ORDER.slice, (1, "a"), {}, "stop is of type str, expected an integer"),
    (ORDER.index, (), {}, f"Permutation.index is called without `sample`; {INDEX}"),
    (
        ORDER.index,
        (),
        {"sample": 3, "out": None},
        f"Permutation.index is called with `sample` and `out`; {INDEX}",
    ),
    (
        ORDER.index,
        (3,),
        {"out": None, "sample": 3},
        f"Permutation.index is called with `sample` twice; {INDEX}",
    ),
    (ORDER.index, (), {"sampel": 3}, f"Permutation.index has no option `sampel`; {NEAR}"),
    (ORDER.plot, (), {"axs": 3}, "Permutation.plot() got an unexpected keyword argument 'axs'"),
    (wd.LCG, (10,), {"mult": 5}, "LCG has no option `mult`; did you mean 'multiplier'?"),
    (wd.LCG, (), {}, "LCG is called without `size`; expected LCG(size, *, multiplier=5, "),
    (SEQUENCE.draw, (), {"cnt": 3}, "LCG.draw has no option `cnt`; did you mean 'count'?"),
    (
        SEQUENCE.draw,
        (),
        {},
        "LCG.draw is called without `count`; expected LCG.draw(count, out=None)",
    ),
    (SEQUENCE.draw, ("a",), {}, "count is of type str, expected an integer"),
    (
        SEQUENCE.jump,
        (1, 2),
        {},
        "LCG.jump is called with 2 positional arguments; expected LCG.jump(",
    ),
    (sources.empty_rows, ({},), {}, "empty_rows is called without `count`; expected empty_rows("),
]


@pytest.mark.parametrize(("call", "arguments", "options", "message"), CALLS)
def test_wrong_arguments_are_one_sentence(
    call: Any, arguments: tuple[Any, ...], options: dict[str, Any], message: str
) -> None:
    with pytest.raises(TypeError) as caught:
        call(*arguments, **options)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_every_public_method_of_native_classes_is_in_the_cases() -> None:
    called = {getattr(call, "__name__", "") for call, *_ in CALLS}
    for native in (wd.Permutation, wd.LCG):
        methods = inspect.getmembers(native, inspect.isroutine)
        assert {name for name, _ in methods if not name.startswith("_")} <= called


def test_right_calls_and_docstrings_are_as_before() -> None:
    order = wd.Permutation(size=100, seed=3, epoch=1)
    assert pickle.loads(pickle.dumps(order)) == order
    samples = order.take(positions=np.arange(5))
    np.testing.assert_array_equal(order.index(samples), np.arange(5))
    assert order.index(sample=int(samples[3])) == 3
    assert "called without" not in str(wd.Permutation.take.__doc__)
    assert str(wd.Permutation.take.__doc__).startswith("take(self: ")
