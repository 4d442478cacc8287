"""Tests of headers of values, in which every byte matters, with a table of struct offsets."""

from __future__ import annotations

import struct
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.internals import plant
from windeck._core import crc32c
from windeck.checkpoint.format import Kind, Label, decode, encode, keys, values
from windeck.checkpoint.stores import CorruptStoreError

LABEL = Label(Kind.CHUNK, generation=5, save=2**64 - 1, object=7, part=3, index=2)
KEY = keys.chunk("run", 5, 3, 7, 2)


def model_crc(data: bytes) -> int:
    state = 0xFFFFFFFF
    for byte in data:
        state ^= byte
        for _ in range(8):
            state = state >> 1 ^ (0x82F63B78 if state & 1 else 0)
    return state ^ 0xFFFFFFFF


def forged(at: int, layout: str, number: int, payload: bytes = b"hello") -> bytes:
    """Return a value with a changed field and a valid checksum."""
    value = bytearray(encode(LABEL, payload))
    struct.pack_into(layout, value, at, number)
    struct.pack_into("<I", value, 60, model_crc(bytes(value[:60])))
    return bytes(value)


def test_crc32c_is_the_published_one() -> None:
    assert crc32c(b"123456789") == 0xE3069283
    assert crc32c(bytes(32)) == 0x8A9136AA
    assert crc32c(b"") == 0
    data = np.random.default_rng(1).integers(0, 256, 40_000).astype(np.uint8)
    assert crc32c(data) == crc32c(data.tobytes()) == model_crc(data.tobytes())
    assert crc32c(data[17:], crc32c(data[:17].tobytes())) == crc32c(data)
    assert crc32c(data.view(np.float64)) == crc32c(data)


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        (("text",), TypeError, "buffer is of type str, expected bytes"),
        ((np.zeros(8, np.uint8)[::2],), ValueError, "the buffer is strided, expected a contig"),
        ((b"", -1), ValueError, "crc is -1, expected an integer from 0 to 4294967295"),
        ((b"", 1.0), TypeError, "crc is of type float, expected an integer"),
    ],
)
def test_crc32c_refuses(given: tuple[Any, ...], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        crc32c(*given)


@pytest.mark.parametrize("payload", [b"", b"x", bytes(range(256)) * 5])
def test_what_is_encoded_is_decoded(payload: bytes) -> None:
    value = encode(LABEL, np.frombuffer(payload, np.uint8))
    assert value[64:] == payload
    assert struct.unpack_from("<II", value, 56) == (model_crc(payload), model_crc(value[:60]))
    assert bytes(decode(KEY, value, LABEL, length=len(payload))) == payload


def test_the_fields_of_a_label_are_zero_unless_given() -> None:
    assert Label(Kind.HEAD) == (Kind.HEAD, 0, 0, 0, 0, 0)
    assert encode(Label(Kind.HEAD))[8:40] == bytes(32)


def test_a_payload_of_the_largest_size_is_the_last_that_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, "values.LARGEST_PAYLOAD", 5)
    pieces = values.encode_pieces(LABEL, b"hello")
    assert pieces.head + bytes(pieces.body) == encode(LABEL, b"hel", b"lo")
    assert pieces.body_crc == crc32c(b"hello")
    for refused in (
        lambda: encode(LABEL, b"hello", b"!"),
        lambda: values.encode_pieces(LABEL, b"hello!"),
    ):
        with pytest.raises(ValueError, match="a value has 6 bytes, expected at most 5"):
            refused()


def test_the_save_of_a_header_is_read_unverified() -> None:
    value = encode(LABEL, b"")
    assert values.save_of(value) == LABEL.save
    assert values.save_of(value[:-1]) is None


def test_the_generation_of_a_value_is_replaced() -> None:
    moved = values.with_generation(encode(LABEL, b"hello"), 9)
    assert moved == encode(LABEL._replace(generation=9), b"hello")


@pytest.mark.parametrize(("room", "requests"), [(1, [1] * 5), (2, [2, 2, 1]), (9, [5])])
def test_values_are_requested_in_batches(room: int, requests: list[int]) -> None:
    """A batch has as many values as fit, with the bytes of their keys, and one or more."""
    payloads = [bytes([number]) * 100 for number in range(5)]
    wanted = [(keys.chunk("run", 5, 3, 7, n), LABEL._replace(index=n), 100) for n in range(5)]
    held = {
        key: encode(label, data) for (key, label, _), data in zip(wanted, payloads, strict=True)
    }
    asked: list[int] = []

    def get_many(some: Any) -> list[bytes]:
        asked.append(len(some))
        return [held[key] for key in some]

    limit = room * (100 + values.KEY_BYTES)
    view: Any = SimpleNamespace(get_many=get_many, facts=SimpleNamespace(read_bytes=limit))
    assert [bytes(payload) for payload in values.read_payloads(view, wanted)] == payloads
    assert asked == requests


def test_each_flipped_bit_and_each_length_is_found_out() -> None:
    value = encode(LABEL, b"hello")
    for bit in range(8 * len(value)):
        wrong = bytearray(value)
        wrong[bit // 8] ^= 1 << bit % 8
        with pytest.raises(CorruptStoreError, match=r"~run~.* is damaged: found .*, expected"):
            decode(KEY, bytes(wrong), LABEL)
    for size in range(len(value)):
        with pytest.raises(CorruptStoreError, match="is damaged"):
            decode(KEY, value[:size], LABEL)
    with pytest.raises(CorruptStoreError, match="payload of 6 bytes, expected 5 as its header"):
        decode(KEY, value + b"!", LABEL)
    with pytest.raises(CorruptStoreError, match=r"~run~\S+ is missing, expected a chunk"):
        decode(KEY, None, LABEL)


@pytest.mark.parametrize("field", ["generation", "save", "object", "part", "index"])
def test_a_value_of_another_place_is_found_out(field: str) -> None:
    other = LABEL._replace(**{field: getattr(LABEL, field) - 1})
    words = f"found a value of {field} {getattr(other, field)}, expected {field} "
    with pytest.raises(CorruptStoreError, match=words):
        decode(KEY, encode(other, b"hello"), LABEL)


@pytest.mark.parametrize(
    ("value", "error", "words"),
    [
        (forged(4, "<H", 2), ValueError, "has format 2, expected 1: a later windeck wrote it"),
        (forged(6, "<B", 3), CorruptStoreError, "found manifest, expected chunk"),
        (forged(6, "<B", 99), CorruptStoreError, "found kind 99, expected chunk"),
        (forged(7, "<B", 1), CorruptStoreError, "found codec 1 of 5 bytes, expected codec 0"),
        (forged(40, "<Q", 2**63), CorruptStoreError, "found codec 0 of 5 bytes"),
        (forged(48, "<Q", 2**64 - 1), CorruptStoreError, "of 18,446,744,073,709,551,615 bytes"),
    ],
)
def test_a_header_that_says_what_cannot_be(value: bytes, error: Any, words: str) -> None:
    with pytest.raises(error, match=words):
        decode(KEY, value, LABEL)


def test_the_length_the_manifest_says_counts() -> None:
    with pytest.raises(CorruptStoreError, match="found a payload of 5 bytes, expected 8"):
        decode(KEY, encode(LABEL, b"hello"), LABEL, length=8)


def test_keys_sort_as_their_numbers() -> None:
    numbers = [0, 1, 9, 10, 255, 256, 2**31]
    makers: list[Callable[[int], bytes]] = [
        lambda n: keys.chunk("r", 1, 0, 0, n),
        lambda n: keys.chunk("r", 1, 0, n, 0),
        lambda n: keys.chunk("r", 1, n, 0, 0),
        lambda n: keys.manifest("r", n),
        lambda n: keys.shard("r", n, 0),
    ]
    for make in makers:
        made = [make(n) for n in numbers]
        assert made == sorted(made)
        assert len({len(key) for key in made}) == 1


@pytest.mark.parametrize("wrong", ["", "a{b}", "ä", "a b", "x" * 201])
def test_namespaces_are_checked(wrong: str) -> None:
    with pytest.raises(ValueError, match="expected a namespace of 1 to 200 letters"):
        keys.check_namespace(wrong)
    with pytest.raises(TypeError, match="expected a namespace of type str, got bytes"):
        keys.check_namespace(b"run")  # type: ignore[arg-type]
