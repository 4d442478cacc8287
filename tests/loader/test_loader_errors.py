"""What bad input gets: one sentence with the value in it, the right type, and nothing half done."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.oracle import Numbers, Turn
from windeck import BlockPermutation, Permutation
from windeck.loader.loader import Loader
from windeck.loader.stream import Stream


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"batch_size": 0}, ValueError, r"^`batch_size` must be at least 1, got 0$"),
        ({"batch_size": -2}, ValueError, r"^`batch_size` must be at least 1, got -2$"),
        ({"batch_size": 2.0}, TypeError, r"^`batch_size` must be an integer, got float 2.0$"),
        ({"batch_size": 11}, ValueError, r"^batch_size 11 is larger than the epoch of 10 samples$"),
        (
            {"drop_last": True, "rank": 0, "world_size": 4},
            ValueError,
            r"^drop_last would drop everything: 4 ranks of batch_size 3 take 12 samples a step, "
            r"an epoch has 10$",
        ),
        (
            {"rank": 2, "world_size": 2},
            ValueError,
            r"^`rank` must be below the world size of 2, got 2$",
        ),
        ({"rank": -1, "world_size": 2}, ValueError, r"^`rank` must be at least 0, got -1$"),
        ({"rank": 0, "world_size": 0}, ValueError, r"^`world_size` must be at least 1, got 0$"),
        ({"rank": 1}, TypeError, r"^rank and world_size go together, got rank=1 and world_size=N"),
        ({"seed": -1}, ValueError, r"^`seed` must be at least 0, got -1$"),
        ({"seed": 2**64}, ValueError, r"^`seed` must be at most 18446744073709551615, got 18446"),
        ({"seed": "1"}, TypeError, r"^`seed` must be an integer, got str '1'$"),
        ({"prefetch": -1}, ValueError, r"^`prefetch` must be at least 0, got -1$"),
        ({"threads": 0}, ValueError, r"^`threads` must be at least 1, got 0$"),
        ({"epochs": -1}, ValueError, r"^`epochs` must be at least 0, got -1$"),
        ({"order": Permutation(10)}, TypeError, r"^order has to be a factory .* pass the class"),
        ({"device": "cuda:0"}, RuntimeError, r"^device='cuda:0', but torch sees no CUDA device"),
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
    message = rf"^{name} is the stream's own: give it to Stream\(\.\.\.\), not to the loader$"
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
            FOREIGN + r"samples = 12, here it is 10$",
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
            r"^the state was saved with order version 0, this is version \d+: its position would",
        ),
        (
            changed(fingerprint=3),
            TypeError,
            r"^the state's fingerprint has to be a mapping, got in",
        ),
        (
            changed(fingerprint=None),
            TypeError,
            r"^the state's fingerprint .* mapping, got NoneType$",
        ),
        (changed(position=4.0), TypeError, r"^`position` must be an integer, got float 4.0$"),
        (changed(position=-1), ValueError, r"^`position` must be at least 0, got -1$"),
        (changed(position=2**63), ValueError, r"^`position` must be at most 922337203685477"),
        (changed(step=-1), ValueError, r"^`step` must be at least 0, got -1$"),
        (
            changed(excluded=[[5, 3]]),
            ValueError,
            r"^the state's excluded ranges are damaged: `stop`",
        ),
        (changed(excluded=7), ValueError, r"^the state's excluded ranges are damaged: "),
        (changed(legs=[[0, 0]]), ValueError, r"^the state's legs are damaged: "),
        (changed(legs=[[0, 0, 0, 1, 0]]), ValueError, r"^the state's legs are damaged: .* 1, got"),
        (lambda: {"position": 4}, KeyError, r"the state has no 'fingerprint', only \['position'\]"),
        (lambda: [4], TypeError, r"^a state has to be a mapping, got list$"),
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
    with pytest.raises(IndexError, match=r"^sample 10 is out of range of 10 samples$"):
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
    with pytest.raises(IndexError, match=r"^step 1 lies before step 2, where the state began$"):
        loader.samples(1)


def giving(array: NDArray[Any]) -> Loader:
    source = Numbers(3)
    source.gather = lambda indices, out=None: {"x": array}  # type: ignore[method-assign]
    return Loader(source, batch_size=1)


def test_arrays_that_cannot_be_batches() -> None:
    frozen = np.arange(3)
    frozen.flags.writeable = False
    with pytest.raises(ValueError, match=r"^the source gave a read-only array for 'x'; a batch "):
        next(iter(giving(frozen)))
    with pytest.raises(TypeError, match=r"^torch has no dtype for 'x', which is <U1$"):
        next(iter(giving(np.array(["a"]))))
    with pytest.raises(TypeError, match=r"^the source gave a value of type list for 'x'; a batch"):
        next(iter(giving([1, 2])))  # type: ignore[arg-type]


def test_a_lambda_has_no_state() -> None:
    loader = Loader(Numbers(4), batch_size=2, order=lambda size, /, *, seed, epoch: Turn(size))
    with pytest.raises(ValueError, match=r"^the order is a lambda, which a state cannot tell "):
        loader.state_dict()
