"""Tests that every kind of store passes, with a dict as the model."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Iterator

import pytest

from support.store_servers import EMBEDDED, KINDS
from support.threads import at_once
from windeck._core import crc32c
from windeck.checkpoint.stores import (
    LARGEST_KEY,
    LARGEST_VALUE,
    PartStore,
    Pieces,
    Store,
    View,
    open_store,
)


@pytest.fixture(params=(*KINDS, "unix"))
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_it_has_the_shape_of_a_store(store: Store, kind: str) -> None:
    assert isinstance(store, Store)
    assert isinstance(store, PartStore) == (kind in EMBEDDED)
    assert store.facts.backend == ("redis" if kind in ("unix", "cluster") else kind)
    assert store.url in repr(store)


def test_what_is_written_is_read(store: Store) -> None:
    assert store.get(b"a") is None
    assert list(store.scan()) == []
    assert store.get_many([]) == []
    store.put_many([(b"b", b"2"), (b"a", b"1"), (b"b", b"3")])
    assert store.get(b"a") == b"1"
    assert store.get_many([b"b", b"no", b"a", b"b"]) == [b"3", None, b"1", b"3"]
    store.put_many({b"a": b"new", b"c": b""}.items())
    assert list(store.scan()) == [(b"a", b"new"), (b"b", b"3"), (b"c", b"")]
    store.put_many([])
    assert list(store.keys()) == [b"a", b"b", b"c"]


def test_any_bytes_are_keys_and_values(store: Store) -> None:
    keys = [bytes([byte]) for byte in range(256)] + [bytes(range(256)), b"\0" * LARGEST_KEY]
    pairs = {key: key[::-1] * 2 for key in keys}
    pairs[b"long"] = random.Random(1).randbytes(5_000_000)
    store.put_many(pairs.items())
    assert dict(store.scan()) == pairs
    assert store.get_many(keys) == [pairs[key] for key in keys]
    assert list(store.keys()) == sorted(pairs)


def test_values_in_pieces(store: Store) -> None:
    whole = random.Random(2).randbytes(200_000)
    memory = bytearray(whole)
    pieces = [Pieces(whole[:at], memoryview(memory)[at:], crc32c(whole[at:])) for at in (0, 64, 9)]
    store.put_many([(b"a", pieces[0]), (b"b", pieces[1]), (b"c", Pieces(b"", memoryview(b""), 0))])

    def items() -> Iterator[tuple[bytes, Pieces]]:
        for number in range(3):  # the same memory, with other contents for each
            memory[:] = bytes([number]) * len(memory)
            yield b"d%d" % number, Pieces(b"head", memoryview(memory), crc32c(memory))
        memory[:] = bytes(len(memory))

    assert store.bulk_load(items()) == 3
    model = {b"a": whole, b"b": whole, b"c": b""}
    model |= {b"d%d" % i: b"head" + bytes([i]) * len(memory) for i in range(3)}
    assert dict(store.scan()) == model


def test_reading_without_checksums_agrees_with_get(store: Store) -> None:
    quick = getattr(store, "get_unchecked", None)
    assert (quick is not None) == (store.facts.backend == "rocksdb")
    if quick is None:
        return
    model = {b"k%02d" % i: random.Random(i).randbytes(i * 9000) for i in range(12)}
    store.bulk_load(model.items())
    store.put_many([(b"k05", b"new"), (b"z", b"z" * 50_000)])
    model |= {b"k05": b"new", b"z": b"z" * 50_000}
    store.delete_many([b"k06"])
    del model[b"k06"]
    for _ in range(2):
        for key in [*model, b"k", b"k06", b"k06x"]:
            assert quick(key) == store.get(key) == model.get(key)
        store.sync()
    for wrong in ("k", b""):
        with pytest.raises((TypeError, ValueError), match="expected a key"):
            quick(wrong)


KEYS = [b"", b"a", b"a*", b"a?", b"a[b]", b"a\\", b"a\xff", b"a\xff\xff", b"ab", b"b", b"{a}b"]
KEYS += [b"\0", b"\0\0", b"\xff", b"\xff\xff", b"\xff\xffa", b"a^", b"a-z", b"[^a]", b"a\nb"]


def test_scans_of_all_ranges(store: Store) -> None:
    model = {key: b"<" + key + b">" for key in KEYS if key}
    store.put_many(model.items())
    for prefix in KEYS:
        assert list(store.scan(prefix)) == expected(model, prefix), prefix
    for prefix in (b"", b"a", b"a\xff", b"\xff"):
        for start in (None, *KEYS):
            for stop in (None, *KEYS[::3]):
                wanted = expected(model, prefix, start, stop)
                assert list(store.keys(prefix, start=start, stop=stop)) == [k for k, _ in wanted]


def expected(
    model: dict[bytes, bytes], prefix: bytes, start: bytes | None = None, stop: bytes | None = None
) -> list[tuple[bytes, bytes]]:
    return [
        (key, value)
        for key, value in sorted(model.items())
        if key.startswith(prefix)
        and (start is None or start <= key)
        and (stop is None or key < stop)
    ]


def test_a_bulk_load_of_many_values_of_all_sizes(store: Store) -> None:
    draw = random.Random(7)
    store.put_many([(b"k00003", b"old"), (b"z", b"kept")])
    model = {b"k%05d" % i: draw.randbytes(draw.choice([0, 10, 300, 70_000])) for i in range(2000)}
    model[b"k00500"] = draw.randbytes(20_000_000)
    asked = []

    def items() -> Iterator[tuple[bytes, bytes]]:
        for key in sorted(model):
            asked.append(key)
            yield key, model[key]

    assert store.bulk_load(items()) == 2000
    assert asked == sorted(model)
    assert dict(store.scan()) == model | {b"z": b"kept"}
    assert store.get_many(asked) == [model[key] for key in asked]
    assert store.bulk_load(iter(())) == 0


@pytest.mark.parametrize("second", [b"b", b"a", b""])
def test_a_bulk_load_wants_ascending_keys(store: Store, second: bytes) -> None:
    error = f"expected keys in ascending order, got b'{second.decode()}' after b'b'"
    error = error if second else "expected a key of 1 to 65,535 bytes, got 0"
    with pytest.raises(ValueError, match=error):
        store.bulk_load([(b"b", b"1"), (second, b"2")])
    store.put_many([(b"c", b"3")])
    assert store.get(b"c") == b"3"


def test_an_error_of_the_items_passes_through(store: Store) -> None:
    def items() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", b"1"
        raise Exception("no more")  # the type that rocksdict raises itself

    with pytest.raises(Exception, match=r"^no more$") as caught:
        store.bulk_load(items())
    assert type(caught.value) is Exception


def test_deleting_keys(store: Store) -> None:
    store.put_many([(bytes([byte]), b"x") for byte in range(256)])
    store.delete_many([b"\x05", b"\x07", b"not there", b"\x05"])
    store.delete_many([])
    store.delete_many(iter([b"\x09"]))
    gone = {5, 7, 9}
    assert list(store.keys()) == [bytes([byte]) for byte in range(256) if byte not in gone]


@pytest.mark.parametrize(
    ("prefix", "start", "stop"),
    [
        (b"", None, None),
        (b"a", None, None),
        (b"a*", None, None),
        (b"\xff", None, None),
        (b"", b"a\xff", None),
        (b"", None, b"a\xff"),
        (b"a", b"a[", b"ab"),
        (b"", b"b", b"a"),
        (b"none", None, None),
    ],
)
def test_deleting_ranges(
    store: Store, prefix: bytes, start: bytes | None, stop: bytes | None
) -> None:
    model = {key: b"v" + key for key in KEYS if key}
    store.put_many(model.items())
    store.sync()
    store.delete_range(prefix, start=start, stop=stop)
    gone = {key for key, _ in expected(model, prefix, start, stop)}
    assert list(store.keys()) == sorted(model.keys() - gone)
    store.sync()
    store.put_many(model.items())
    assert dict(store.scan()) == model


def test_deleting_a_range_that_begins_at_the_last_key_or_behind_it(store: Store) -> None:
    rows = [(b"a", b"1"), (b"b", b"2"), (b"c", b"3")]
    store.put_many(rows)
    store.delete_range(b"", start=b"c\0")
    assert list(store.scan()) == rows
    store.delete_range(b"", start=b"c")
    assert list(store.scan()) == rows[:2]


def test_compare_and_set(store: Store) -> None:
    assert not store.compare_and_set(b"HEAD", b"1", b"2")
    assert store.get(b"HEAD") is None
    assert store.compare_and_set(b"HEAD", None, b"")
    assert not store.compare_and_set(b"HEAD", None, b"2")
    assert store.compare_and_set(b"HEAD", b"", b"2")
    assert not store.compare_and_set(b"HEAD", b"", b"3")
    assert store.compare_and_set(b"HEAD", b"2", b"\0\xff\r\n")
    assert store.get(b"HEAD") == b"\0\xff\r\n"


def test_of_many_writers_with_one_expectation_one_wins(store: Store) -> None:
    won: list[bytes] = []

    def write(number: int) -> None:
        name = b"%d" % number
        for _ in range(5):
            before = store.get(b"count")
            if store.compare_and_set(b"count", before, (before or b"") + name):
                won.append(name)

    at_once(8, write)
    assert sorted(store.get(b"count") or b"") == sorted(b"".join(won))
    assert len(won) >= 5


def test_threads_share_a_store(store: Store) -> None:
    def work(name: int) -> None:
        mine = {b"%d/%03d" % (name, i): b"%d" % i * 100 for i in range(60)}
        for key, value in mine.items():
            store.put_many([(key, value)])
            assert store.get(key) == value
        assert dict(store.scan(b"%d/" % name)) == mine
        assert store.get_many(list(mine)) == list(mine.values())

    at_once(4, work)
    assert len(list(store.keys())) == 240


def test_a_scan_gives_all_that_stays_while_others_come_and_go(store: Store) -> None:
    stays = [b"k%03d" % i for i in range(0, 300, 2)]
    store.put_many([(key, b"x") for key in stays])
    seen = []
    for number, (key, value) in enumerate(store.scan()):
        seen.append((key, value))
        store.put_many([(b"k%03d" % (2 * number + 1), b"y")])
        store.delete_many([b"k%03d" % (2 * number - 1)])
    assert [key for key, value in seen if value == b"x"] == stays
    assert [key for key, _ in seen] == sorted({key for key, _ in seen})


def test_a_snapshot_stays_as_it_was(store: Store, kind: str) -> None:
    store.put_many([(b"a", b"1"), (b"b", b"2")])
    if not store.facts.snapshots:
        with pytest.raises(io.UnsupportedOperation, match="Redis has no snapshots; read only"):
            store.snapshot()
        return
    with store.snapshot() as view:
        assert isinstance(view, View)
        store.put_many([(b"a", b"new"), (b"c", b"3")])
        store.delete_many([b"b"])
        store.bulk_load([(b"d", b"4")])
        assert view.get(b"a") == b"1"
        assert view.get_many([b"c", b"b"]) == [None, b"2"]
        assert list(view.scan()) == [(b"a", b"1"), (b"b", b"2")]
        assert list(view.keys(b"b")) == [b"b"]
    view.close()
    with pytest.raises(ValueError, match="is closed"):
        view.get(b"a")
    assert dict(store.scan()) == {b"a": b"new", b"c": b"3", b"d": b"4"}


def test_what_was_synced_is_there_when_opened_again(url: str) -> None:
    with open_store(url) as store:
        store.put_many([(b"a", b"1")])
        store.bulk_load([(b"b", b"2"), (b"c", b"3")])
        store.sync()
        store.sync()
    with open_store(url) as store:
        assert dict(store.scan()) == {b"a": b"1", b"b": b"2", b"c": b"3"}
        assert store.compare_and_set(b"a", b"1", b"2")
        store.sync()
    with open_store(url) as store:
        assert store.get(b"a") == b"2"


def test_a_closed_store_says_so(url: str) -> None:
    store = open_store(url)
    store.put_many([(b"a", b"1"), (b"b", b"2")])
    view = store.snapshot() if store.facts.snapshots else None
    scan = store.scan()
    next(scan)
    store.close()
    store.close()
    calls: list[Callable[[], object]] = [
        lambda: store.get(b"a"),
        lambda: store.get_many([b"a"]),
        lambda: list(store.scan()),
        lambda: list(store.keys()),
        lambda: store.put_many([(b"a", b"1")]),
        lambda: store.put_many([]),
        lambda: store.bulk_load([]),
        lambda: store.delete_many([b"a"]),
        lambda: store.delete_range(b""),
        lambda: store.compare_and_set(b"a", None, b"1"),
        store.sync,
        store.snapshot,
    ]
    if view is not None and store.facts.backend != "memory":  # a copy of a dict has no need to
        calls.append(lambda: view.get(b"a"))
        calls.append(lambda: list(scan))
    for call in calls:
        with pytest.raises(ValueError, match=r"the store .* (is|was) closed"):
            call()
    open_store(url).close()  # nothing holds it any more


def test_what_is_not_bytes_is_refused(store: Store) -> None:
    text: bytes = "text"  # type: ignore[assignment]
    for call in (
        lambda: store.get(text),
        lambda: store.get_many([b"a", text]),
        lambda: store.put_many([(text, b"1")]),
        lambda: store.delete_many([text]),
        lambda: store.compare_and_set(text, None, b"1"),
    ):
        with pytest.raises(TypeError, match="expected a key of type bytes, got str"):
            call()
    with pytest.raises(TypeError, match="expected a key of type bytes, got int"):
        store.delete_many(b"a")  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected a value of type bytes for b'a', got bytearray"):
        store.put_many([(b"a", bytearray(1))])  # type: ignore[list-item]
    with pytest.raises(TypeError, match="expected a value of type bytes for b'a', got str"):
        store.compare_and_set(b"a", text, b"1")
    with pytest.raises(TypeError, match="expected prefix of type bytes, got NoneType"):
        list(store.scan(None))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="expected start of type bytes, got str"):
        store.delete_range(b"", start=text)
    assert list(store.keys()) == []


def test_limits(store: Store) -> None:
    longest = b"k" * LARGEST_KEY
    store.put_many([(longest, b"1")])
    assert list(store.scan()) == [(longest, b"1")]
    for key in (b"", longest + b"k"):
        with pytest.raises(
            ValueError, match=f"expected a key of 1 to 65,535 bytes, got {len(key):,}"
        ):
            store.put_many([(b"a", b"1"), (key, b"2")])
    zeros = bytes(LARGEST_VALUE + 1)  # never touched, so never there
    with pytest.raises(
        ValueError, match="the value of b'a' has 536,870,913 bytes, expected at most"
    ):
        store.put_many([(b"a", zeros)])
    with pytest.raises(
        ValueError, match="the value of b'a' has 536,870,913 bytes, expected at most"
    ):
        store.compare_and_set(b"a", None, zeros)
    megabyte = bytes(1 << 20)
    too_many = ((b"%d" % i, megabyte) for i in range(600))
    with pytest.raises(
        ValueError, match=r"a batch reached 537,.* bytes at b'512', expected at most"
    ):
        store.put_many(too_many)
    assert list(store.keys()) == [longest]


@pytest.mark.slow
def test_the_largest_value(store: Store) -> None:
    value = bytes(100) + random.Random(3).randbytes(1000) + bytes(LARGEST_VALUE - 1200) + b"x" * 100
    store.put_many([(b"a", value)])
    assert store.get(b"a") == value
    assert store.bulk_load([(b"b", value)]) == 1
    assert store.compare_and_set(b"c", None, value)
    assert all(found == value for _, found in store.scan())
    store.sync()
    store.delete_range(b"")
