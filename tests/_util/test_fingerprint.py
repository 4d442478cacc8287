"""Fingerprints are the same everywhere, and name the field that differs."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from support.programs import printed
from windeck._util import check_fingerprint, digest, order_name, sample_rows


def a_factory(size: int, *, seed: int, epoch: int, **options: object) -> range:
    return range(size)


def test_a_digest_is_a_published_value() -> None:
    # Saved states hold it: a change here makes every saved state useless.
    assert digest("load", 3, np.arange(3)) == "65b0b4b21d639c551cc349e2c3bdf7e7"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (("ab", "c"), ("a", "bc")),
        ((1,), (True,)),
        ((1,), ("1",)),
        ((1,), (1.0,)),
        ((1, 2), 12),
        ((None,), ()),
        (([1, 2], 3), ([1], 2, 3)),
        ((np.zeros((2, 3)),), (np.zeros((3, 2)),)),
        ((np.zeros(2, np.int64),), (np.zeros(2, np.float64),)),
        ((b"x",), ("x",)),
    ],
)
def test_different_values_have_different_digests(
    one: tuple[object, ...], other: tuple[object, ...]
) -> None:
    assert digest(one) != digest(other)


def test_layout_and_byte_order_of_an_array_do_not_matter() -> None:
    array = np.arange(12, dtype="<i4").reshape(3, 4)
    assert digest(array) == digest(np.asfortranarray(array)) == digest(array.astype(">i4"))


def test_what_has_no_canonical_bytes_is_refused() -> None:
    with pytest.raises(TypeError, match="got object"):
        digest(object())
    with pytest.raises(TypeError, match="in an array, got object"):
        digest(np.array([object()]))


def test_a_digest_does_not_depend_on_the_process() -> None:
    code = "from windeck._util import digest; print(digest({'a': 1.5, 'b': 'x'}, [None]))"
    outputs = {printed(code).strip() for _ in range(2)}
    assert outputs == {digest({"a": 1.5, "b": "x"}, [None])}


def test_check_names_the_first_field_that_differs() -> None:
    check_fingerprint({"size": 3, "order": "Permutation"}, {"order": "Permutation", "size": 3})
    with pytest.raises(ValueError, match=r"has size = 3, here it is 4$"):
        check_fingerprint({"size": 3, "seed": 0}, {"size": 4, "seed": 1})
    with pytest.raises(ValueError, match=r"has no rows, here it is 4$"):
        check_fingerprint({}, {"rows": 4})
    with pytest.raises(ValueError, match=r"has rows = 4, here it is missing$"):
        check_fingerprint({"rows": 4}, {})


def test_check_prefers_a_field_that_can_be_explained() -> None:
    def explain(field: str, was: object, now: object) -> str | None:
        return f"{field} went from {was} to {now}" if field in "bc" else None

    with pytest.raises(ValueError, match=r"does not belong to this data: b went from 2 to 3$"):
        check_fingerprint({"a": 1, "b": 2, "c": 3}, {"a": 2, "b": 3, "c": 4}, explain)
    with pytest.raises(ValueError, match=r"has a = 1, here it is 2$"):
        check_fingerprint({"a": 1, "b": 2, "d": 3}, {"a": 2, "b": 2, "d": 4}, explain)


def test_check_lets_the_data_explain_what_it_knows_of() -> None:
    def explain(field: str, was: object, now: object) -> str | None:
        return f"a file is gone ({was} were, {now} are)" if field == "files" else None

    with pytest.raises(ValueError, match=r"^the state does not belong .*: a file is gone \(3 wer"):
        check_fingerprint({"files": 3}, {"files": 2}, explain)
    with pytest.raises(ValueError, match=r"has seed = 3, here it is 2$"):
        check_fingerprint({"seed": 3}, {"seed": 2}, explain)
    # A state from elsewhere may hold anything.
    with pytest.raises(ValueError, match=r"has 5 = 1, here it is missing$"):
        check_fingerprint({5: 1}, {}, explain)  # type: ignore[dict-item]


@pytest.mark.parametrize("n", [0, 1, 2, 4095, 4096, 4097, 10**6, 10**12, 2**63 - 1])
def test_sampled_rows_spread_evenly_from_the_first_to_the_last(n: int) -> None:
    rows = sample_rows(n)
    assert rows.dtype == np.int64
    assert len(rows) == min(n, 4096)
    if n:
        assert rows[0] == 0
        assert rows[-1] == n - 1
        steps = np.diff(rows)
        assert (steps > 0).all()
        assert len(steps) == 0 or steps.max() - steps.min() <= 1


def test_a_negative_number_of_rows_is_refused() -> None:
    with pytest.raises(ValueError, match="got -1"):
        sample_rows(-1)


def test_an_order_is_named_with_its_options_and_without_addresses() -> None:
    offsets = np.arange(20)
    assert order_name(a_factory) == f"{__name__}.a_factory"
    partial = functools.partial(a_factory, lanes=4, blocks=offsets)
    assert order_name(partial) == f"{__name__}.a_factory(blocks=#{digest(offsets)}, lanes=4)"
    assert order_name(functools.partial(a_factory, inner=a_factory)).count("a_factory") == 2
    assert "0x" not in order_name(lambda size, *, seed, epoch: range(size))


def test_a_callable_object_goes_by_its_type_and_its_own_repr() -> None:
    class Plain:
        def __call__(self, size: int, *, seed: int, epoch: int) -> range:
            return range(size)

    class Telling(Plain):
        def __repr__(self) -> str:
            return "Telling(3)"

    assert "0x" not in order_name(Plain())
    assert order_name(Telling()).endswith("Telling:Telling(3)")
