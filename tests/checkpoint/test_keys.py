"""Keys of values in a store: names, numbers and namespaces, there and back."""

from __future__ import annotations

import itertools

import pytest

from windeck.checkpoint.format import keys

NUMBERS = [(5,), (2**64 - 1, 3), (10, 3, 258), (0, 1, 2, 2**32 - 1)]


@pytest.mark.parametrize("letter", keys.LETTERS)
@pytest.mark.parametrize("namespace", ["run", "run/s", "a.b-c_d"])
def test_a_key_is_parsed_in_its_namespace_only(letter: str, namespace: str) -> None:
    for generation, *rest in NUMBERS:
        key = keys.make(namespace, letter, generation, *rest)
        assert keys.parse(namespace, key) == (letter, (generation, *rest))
        assert keys.parse(namespace + "x", key) is None
        assert keys.parse(namespace[:-1], key) is None
        assert key.startswith(keys.kind_prefix(namespace, letter))
        assert key.startswith(keys.prefix(namespace, letter, generation)) == bool(rest)


def test_namespaces_have_up_to_200_characters() -> None:
    for namespace in ("a", "a" * 200):
        assert keys.check_namespace(namespace) == namespace
    for namespace in ("", "a" * 201, "a b", "run/m/" + "0" * 16):
        with pytest.raises(ValueError, match="expected a namespace"):
            keys.check_namespace(namespace)


def test_other_keys_are_not_parsed() -> None:
    for letter, end in itertools.product("dm", [b"x", b"/0", b"/", b"/00000001" * 4, b"/0000000g"]):
        assert keys.parse("run", keys.make("run", letter, 5) + end) is None
    for key in (b"", b"run", b"run/HEAD", b"~run~", b"~run~5/d", b"run/m/5"):
        assert keys.parse("run", key) is None


def test_nested_namespaces() -> None:
    own = [keys.make("run", letter, 5, 1) for letter in keys.SMALL_LETTERS]
    nested = [keys.make("run/s", letter, 5, 1) for letter in keys.SMALL_LETTERS]
    nested += [b"run/s/HEAD", b"run/s/NEXT", b"run/s/m/HEAD"]
    assert all(keys.is_nested("run", key) for key in nested)
    for key in (*own, b"run/HEAD", b"run/s/TAIL", b"other/s/HEAD", b"run/s/m/5"):
        assert not keys.is_nested("run", key)
    assert not any(keys.is_nested("run/s", key) for key in own)
