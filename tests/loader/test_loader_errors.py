"""Errors of the loader: types, messages with the value, and an unchanged loader."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.oracle import Numbers, Turn
from windeck import BlockPermutation, Loader, Permutation, Stream


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, r"^`batch_size` must be at least 1, got 0$"),
        ({"batch_size": -2}, ValueError, r"^`batch_size` must be at least 1, got -2$"),
        ({"batch_size": 2.0}, TypeError, r"^`batch_size` must be an integer, got float 2.0$"),
        (
            {"batch_size": 11, "drop_last": True},
            ValueError,
            r"^`drop_last` would drop every sample: 1 ranks with a batch size of 11 take 11 ",
        ),
        (
            {"drop_last": True, "rank": 0, "world_size": 4},
            ValueError,
            r"^`drop_last` would drop every sample: 4 ranks with a batch size of 3 take 12 "
            r"samples per step, but an epoch has 10$",
        ),
        (
            {"rank": 2, "world_size": 2},
            ValueError,
            r"^`rank` must be below `world_size` = 2, got 2$",
        ),
        ({"rank": -1, "world_size": 2}, ValueError, r"^`rank` must be at least 0, got -1$"),
        ({"rank": 0, "world_size": 0}, ValueError, r"^`world_size` must be at least 1, got 0$"),
        (
            {"rank": 1},
            TypeError,
            r"^`rank` and `world_size` must be given together, got ",
        ),
        ({"seed": 3}, ValueError, r"^`seed` has no effect without shuffle=True, got seed=3 for"),
        ({"seed": -1}, ValueError, r"^`seed` must be at least 0, got -1$"),
        ({"seed": 2**64}, ValueError, r"^`seed` must be at most 18446744073709551615, got 18446"),
        ({"seed": "1"}, TypeError, r"^`seed` must be an integer, got str '1'$"),
        ({"prefetch": -1}, ValueError, r"^`prefetch` must be at least 0, got -1$"),
        ({"threads": 0}, ValueError, r"^`threads` must be at least 1, got 0$"),
        ({"epochs": -1}, ValueError, r"^`epochs` must be at least 0, got -1$"),
        ({"order": Permutation(10)}, TypeError, r"^`order` must be a factory .* pass the class"),
        ({"device": "cuda:0"}, RuntimeError, r"^device='cuda:0', but torch finds no CUDA device"),
    ],
)
def test_bad_options(
    options: dict[str, Any], error: type[Exception], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("torch.cuda.is_available", lambda: False)
    with pytest.raises(error, match=message):
        Loader(Numbers(10), **{"batch_size": 3, **options})


@pytest.mark.parametrize("options", [{"order": Permutation}, {"seed": 0}, {"shuffle": True}])
def test_order_and_seed_are_the_streams_own(options: dict[str, Any]) -> None:
    (name,) = options
    message = rf"^`{name}` must not be given to the loader of a stream, which has an order"
    with pytest.raises(TypeError, match=message):
        Loader(Stream(Numbers(10)), batch_size=3, **options)


def test_what_is_neither_source_nor_stream() -> None:
    with pytest.raises(TypeError, match=r"^expected a source .*, got list without gather, fing"):
        Loader([1, 2, 3], batch_size=1)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^the source has no samples$"):
        Loader(Numbers(0), batch_size=1)


def saved_by(**options: Any) -> dict[str, Any]:
    loader = Loader(Numbers(10), **{"batch_size": 2, "order": Turn, "seed": 1, **options})
    next(iter(loader))
    return loader.state_dict()


def changed(**fields: Any) -> Callable[[], dict[str, Any]]:
    return lambda: {**saved_by(), **fields}


FOREIGN = r"^the state does not belong to this data: its fingerprint has "


@pytest.mark.parametrize(
    ("state", "error", "message"),
    [
        (
            lambda: Loader(Numbers(12), batch_size=2, order=Turn, seed=1).state_dict(),
            ValueError,
            FOREIGN + r"source.size = 12, here it is 10$",
        ),
        (
            lambda: Loader(Numbers(10, "tides"), batch_size=2, order=Turn, seed=1).state_dict(),
            ValueError,
            FOREIGN + r"source.name = 'tides', here it is 'numbers'$",
        ),
        (lambda: saved_by(seed=2), ValueError, FOREIGN + r"seed = 2, here it is 1$"),
        (
            lambda: saved_by(order=functools.partial(BlockPermutation, block_size=4)),
            ValueError,
            FOREIGN
            + r"order = 'BlockPermutation\(block_size=4\)', here it is 'models\.oracle\.Turn'$",
        ),
        (
            changed(order_version=0),
            ValueError,
            r"^the state has order_version 0, expected 1: its position would mean other samples$",
        ),
        (
            changed(fingerprint=3),
            TypeError,
            r"^`fingerprint` of the state must be a mapping, got in",
        ),
        (
            changed(fingerprint=None),
            TypeError,
            r"^`fingerprint` of the state .* mapping, got NoneType$",
        ),
        (changed(position=4.0), TypeError, r"^`position` must be an integer, got float 4.0$"),
        (changed(position=-1), ValueError, r"^`position` must be at least 0, got -1$"),
        (changed(position=2**63), ValueError, r"^`position` must be at most 922337203685477"),
        (changed(step=-1), ValueError, r"^`step` must be at least 0, got -1$"),
        (changed(excluded=[[5, 3]]), ValueError, r"^`excluded` of the state is invalid: `stop`"),
        (changed(excluded=7), ValueError, r"^`excluded` of the state is invalid: "),
        (changed(legs=[[0, 0]]), ValueError, r"^`legs` of the state is invalid: "),
        (
            changed(legs=[[0, 0, 0, 1, 0, 10]]),
            ValueError,
            r"^`legs` of the state is invalid: .* 1",
        ),
        (lambda: {"position": 4}, KeyError, r"the state has no 'fingerprint', only \['position'\]"),
        (lambda: [4], TypeError, r"^`state` must be a mapping, got list$"),
    ],
)
def test_a_state_of_something_else_changes_nothing(
    state: Callable[[], Any], error: type[Exception], message: str
) -> None:
    loader = Loader(Numbers(10), batch_size=3, order=Turn, seed=1)
    next(iter(loader))
    loader.exclude(5, 6)
    before = loader.state_dict()
    with pytest.raises(error, match=message):
        loader.load_state_dict(state())
    assert loader.state_dict() == before


def test_steps_and_samples_that_are_not() -> None:
    loader = Loader(Numbers(10), batch_size=3)
    with pytest.raises(IndexError, match=r"^sample 10 is out of range for 10 samples$"):
        loader.step_of(10)
    with pytest.raises(ValueError, match=r"^`sample` must be at least 0, got -1$"):
        loader.visited(-1)
    with pytest.raises(TypeError, match=r"^`step` must be an integer, got float 1.0$"):
        loader.samples(1.0)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"^`start` must be an integer, got float 1.0$"):
        loader.exclude(1.0, 2)  # type: ignore[arg-type]


def test_a_state_whose_legs_begin_later_does_not_know_of_earlier_steps() -> None:
    loader = Loader(Numbers(10), batch_size=2)
    state = loader.state_dict()
    loader.load_state_dict({**state, "position": 4, "step": 2, "legs": []})
    assert loader.samples(2).tolist() == [4, 5]
    assert loader.step_of(1) is None
    with pytest.raises(IndexError, match=r"^step 1 is before step 2, the first of the state$"):
        loader.samples(1)


def giving(array: NDArray[Any]) -> Loader:
    source = Numbers(3)
    source.gather = lambda indices, out=None: {"x": array}  # type: ignore[method-assign]
    return Loader(source, batch_size=1)


def test_arrays_that_cannot_be_batches() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"^the source returned a read-only array for 'x'; the"):
        next(iter(giving(frozen)))
    with pytest.raises(TypeError, match=r"^'x' has dtype <U1, which torch does not have$"):
        next(iter(giving(np.array(["a"]))))
    with pytest.raises(TypeError, match=r"^the source returned a list for 'x'; the values"):
        next(iter(giving([1, 2])))  # type: ignore[arg-type]


def test_a_lambda_has_no_state() -> None:
    loader = Loader(Numbers(4), batch_size=2, order=lambda size, /, *, seed, epoch: Turn(size))
    with pytest.raises(ValueError, match=r"^the order is a lambda, which a state cannot tell "):
        loader.state_dict()
