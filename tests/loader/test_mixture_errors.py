"""Errors of mixtures: parts that do not fit, and other invalid input."""

from __future__ import annotations

from types import MappingProxyType
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.oracle import Numbers
from models.packed_model import Packed
from support.mixture_cases import C4
from windeck import Loader, Mixture, Stream


class Wide(Numbers):
    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        return {"sample": indices.copy(), "row": np.zeros((len(indices), 5), np.float32)}


class Single(Numbers):
    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        return {"sample": indices.copy()}


class Ragged(Numbers):
    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        return {"ends": np.concatenate([[0], indices])}


ALIKE = "batches of all parts must be alike: "


@pytest.mark.parametrize(
    ("parts", "error", "message"),
    [
        ([1], TypeError, r"^`parts` must be a dict by name, got list$"),
        ({}, ValueError, r"^a mixture must have at least one part, got none$"),
        ({1: (Numbers(3), 1)}, TypeError, r"^the names of parts must be strings, got 1$"),
        (
            {"a": Numbers(3)},
            TypeError,
            r"^part 'a' must be a pair \(source or stream, weight\), got Numbers$",
        ),
        ({"a": ([1], 1)}, TypeError, r"^part 'a' is invalid: expected a source .*, got list"),
        (
            {"a": (Numbers(0), 1)},
            ValueError,
            r"^part 'a' is invalid: the source has no samples$",
        ),
        (
            {"a": (Numbers(3), 1), "b": (Wide(3), 1)},
            ValueError,
            rf"^{ALIKE}part 'b' has 'row' as float32 of shape \(k, 5\) and not float32 of shape "
            r"\(k, 4\), unlike part 'a'$",
        ),
        (
            {"a": (Numbers(3), 1), "b": (Single(3), 1)},
            ValueError,
            rf"^{ALIKE}part 'b' has no key 'row', unlike part 'a'$",
        ),
        (
            {"a": (Single(3), 1), "b": (Numbers(3), 0)},
            ValueError,
            rf"^{ALIKE}part 'b' has a key 'row', unlike part 'a'$",
        ),
        (
            {"a": (Packed(C4), 1), "b": (Packed(C4, dtype="int32"), 1)},
            ValueError,
            rf"^{ALIKE}part 'b' has 'tokens' as int32 of shape \(k, 5\) and not int64 of shape "
            r"\(k, 5\), unlike part 'a'$",
        ),
        (
            {"a": (Ragged(3), 1)},
            ValueError,
            r"^part 'a' does not fit: 'ends' has shape \(1,\) in a batch of no rows, expected 0 ",
        ),
        (
            {"a": (Numbers(3), -1)},
            ValueError,
            r"^the weight of 'a' must be finite and at least 0, got -1$",
        ),
        ({"a": (Numbers(3), float("nan"))}, ValueError, r"^the weight of 'a' must be finite and"),
        ({"a": (Numbers(3), 0)}, ValueError, r"^at least one weight must be above 0, got only"),
        ({"a": (Numbers(3), "x")}, TypeError, r"^the weight of 'a' must be a number, got str"),
    ],
)
def test_bad_parts(parts: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Mixture(parts)


class Answers(Numbers):
    """Every batch is the same answer."""

    def __init__(self, answer: Any) -> None:
        super().__init__(3)
        self.answer = answer

    def gather(self, indices: NDArray[np.int64], out: Any = None) -> Any:
        return self.answer


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        (None, "the source returned None, expected a dict of arrays"),
        ([1], "the source returned a list, expected a dict of arrays"),
        ({}, "the source returned an empty dict, expected a dict of arrays"),
        (
            {"x": [1.0]},
            "the source returned a list for 'x'; the values of a batch must be NumPy .*",
        ),
        (
            {"x": np.empty(0, object)},
            "'x' is an array of objects, expected a NumPy array of values",
        ),
    ],
)
def test_batches_that_are_no_arrays(answer: Any, message: str) -> None:
    with pytest.raises(TypeError, match=rf"^part 'b' does not fit: {message}$"):
        Mixture({"a": (Numbers(3), 1), "b": (Answers(answer), 1)})


def test_a_schedule_by_position_names_its_list() -> None:
    schedule: Any = {5: {"a": 1}}
    message = r"^`schedule` must be a list of pairs \(position, weights\), got dict; list\(schedule"
    with pytest.raises(TypeError, match=message):
        Mixture({"a": (Numbers(3), 1)}, schedule=schedule)


def test_given_arrays_are_written_if_one_part_has_all_rows() -> None:
    class Deaf(Numbers):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            return super().gather(indices)

    mixture = Mixture({"a": (Deaf(9), 1)})
    expected = mixture.gather([3, 1, 8])
    out = {key: np.zeros_like(array) for key, array in expected.items()}
    assert mixture.gather_rows([3, 1, 8], out) is out
    for key, array in expected.items():
        np.testing.assert_array_equal(out[key], array)
    for array in out.values():
        array.flags.writeable = False
    with pytest.raises(ValueError, match="read-only"):
        mixture.gather_rows([3, 1, 8], out)
    wrong: Any = [1]
    with pytest.raises(TypeError, match=r"^`out` must be a dict of arrays, got list$"):
        mixture.gather_rows([3, 1, 8], wrong)


def test_bad_questions() -> None:
    mixture = Mixture({"a": (Numbers(3), 1), "b": (Numbers(3), 1)})
    with pytest.raises(KeyError, match=r"the mixture has no part 'x', only a, b"):
        mixture.position_of_part("x", [0])
    with pytest.raises(IndexError, match=r"^`positions` must be at least 0, got -1$"):
        mixture.gather([-1])
    with pytest.raises(TypeError, match=r"^`positions` must be integers, got float64$"):
        mixture.locate([0.5])
    with pytest.raises(TypeError, match=r"^samples of a mixture must be rows of 2 integers that"):
        mixture.position_of([1])
    with pytest.raises(IndexError, match=r"^part 2 is out of range for 2 parts$"):
        mixture.position_of([(2, 0)])
    with pytest.raises(ValueError, match=r"^`seed` must be at least 0, got -1$"):
        Mixture({"a": (Numbers(3), 1)}, seed=-1)
    with pytest.raises(TypeError, match=r"^Numbers has no documents\(\)$"):
        mixture.documents_at([0])


def test_arrays_to_write_into_have_to_fit() -> None:
    mixture = Mixture({"a": (Numbers(9), 1), "b": (Numbers(9), 1)})
    good: dict[str, NDArray[Any]] = dict(mixture.gather_rows(range(4)))
    for changed, message in (
        (
            {"row": np.zeros((3, 4), np.float32)},
            r"^`out` has 'row' of shape \(3, 4\), expected 4 r",
        ),
        ({"row": np.zeros((4, 4))}, r"^`out` has 'row' as float64 of shape \(k, 4\) and not float"),
        ({"x": np.zeros(4)}, r"^`out` has a key 'x', unlike the rows of this stream$"),
    ):
        with pytest.raises(ValueError, match=message):
            mixture.gather(range(4), {**good, **changed})
    with pytest.raises(ValueError, match=r"^`out` has no key 'row'"):
        mixture.gather(range(4), {"sample": good["sample"]})


def test_a_source_that_becomes_a_stream_needs_its_seed() -> None:
    """The error names the seed, which continues the state, also of a nested mixture."""

    def loader(wiki: Any, *, deep: bool) -> Loader:
        data = Mixture({"web": (Numbers(30), 3), "wiki": (wiki, 1)}, seed=7)
        if deep:
            data = Mixture({"all": (data, 1), "x": (Numbers(9), 1)}, seed=2)
        return Loader(data, batch_size=3, prefetch=0)

    for deep in (False, True):
        running = loader(Numbers(20), deep=deep)
        for _ in range(4):
            next(iter(running))
        state = running.state_dict()
        mixture: Any = running.stream
        mixture = mixture.parts["all"] if deep else mixture
        seed = mixture.parts["wiki"].seed
        words = rf"had seed {seed}, .* here it is 0; pass Stream\(\.\.\., seed={seed}\)"
        with pytest.raises(ValueError, match=words):
            loader(Stream(Numbers(20)), deep=deep).load_state_dict(state)
        grown = loader(Stream(Numbers(20), seed=seed, grown=[(60, Numbers(30))]), deep=deep)
        grown.load_state_dict(state)
        for one, two in zip(running, grown, strict=False):
            assert {k: v.tolist() for k, v in one.items()} == {
                k: v.tolist() for k, v in two.items()
            }
            if grown.step > 12:
                break


class OfEpochs(Numbers):
    """A source of epochs, which ignores `out`."""

    def at_epoch(self, epoch: int, *, seed: int) -> Any:
        return self

    def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        return {"sample": indices.copy()}


def test_sources_that_ignore_out_serve_all_epochs() -> None:
    """The first batch of an epoch was refused, and the same batch was taken when asked again."""
    mixture = Mixture({"a": (OfEpochs(10), 1), "b": (OfEpochs(10), 1)})
    expected = [mixture.gather(range(start, start + 8)) for start in range(0, 160, 8)]
    for start, batch in zip(range(0, 160, 8), expected, strict=True):
        out = {"sample": np.zeros(8, np.int64)}
        assert mixture.gather(range(start, start + 8), out=out) is out
        assert np.array_equal(out["sample"], batch["sample"])
    assert len(list(Loader(mixture, batch_size=4, max_steps=50))) == 50


def test_a_part_of_a_view_of_out_is_not_the_rows() -> None:
    class Short(Single):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            if out is None:
                return super().gather(indices)
            out["sample"][:1] = indices[:1]
            return {"sample": out["sample"][:1]}

    mixture = Mixture({"a": (Short(100), 1), "b": (Short(100), 1)})
    with pytest.raises(
        TypeError,
        match=r"^the source returned .sample. of shape \(1,\) for \d samples, expected \d rows$",
    ):
        mixture.gather([0, 2, 1, 3])


def test_batches_may_be_mappings() -> None:
    class Mapped(Single):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> Any:
            return MappingProxyType(super().gather(indices))

    batch = Mixture({"a": (Mapped(9), 1), "b": (Mapped(9), 1)}).gather(range(6))
    assert batch["sample"].shape == (6,)


def test_rows_of_many_axes() -> None:
    class Deep(Single):
        def gather(self, indices: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
            return {"sample": np.zeros((len(indices), *[1] * 9), np.float32)}

    batch = Mixture({"a": (Deep(9), 1), "b": (Deep(9), 1)}).gather(range(6))
    assert batch["sample"].shape == (6, *[1] * 9)


def test_out_of_lists_is_refused() -> None:
    mixture = Mixture({"a": (Single(9), 1)})
    with pytest.raises(TypeError, match=r"^`out` has 'sample' of type list, expected an array$"):
        mixture.gather([0, 1], out={"sample": [1, 2]})  # type: ignore[dict-item]
