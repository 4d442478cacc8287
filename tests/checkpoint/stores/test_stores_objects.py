"""Tests of stores in files: their format, scans, damage and lists from outside."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import tracemalloc
from collections.abc import Callable
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

from support.internals import plant
from support.object_servers import Website
from windeck._core import crc32c
from windeck._util import run_in_threads
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, StoreURL, open_store, write_part

Pairs = dict[bytes, bytes]


def writable(folder: Path) -> Any:
    """Return an open store in files, with the methods that `checkpoint.copy` uses."""
    store = open_store(f"file://{folder}")
    assert keys.has_segments(store)
    return store


def write(folder: Path, *groups: Pairs, small: Pairs | None = None) -> Any:
    """Write groups of pairs into a folder, each into segments of its own."""
    store = writable(folder)
    store.begin_copy()
    files = store.segment_files()
    found = [*store.segments]
    for number, pairs in enumerate(groups):
        found += store.write_segments(
            f"g{number}", sorted(pairs.items()), files, lambda key: key[:1]
        )
    store.commit(found, {**store.small_values, **(small or {})})
    return store


def read(store: Store, key: bytes) -> bytes | CorruptStoreError | None:
    """Return a value, or the error of reading it."""
    try:
        return store.get(key)
    except CorruptStoreError as error:
        return error


def keys_and_values(seed: int, count: int = 300) -> Pairs:
    rng = random.Random(seed)
    return {
        b"%c/%06x" % (rng.choice(b"abc"), rng.randrange(1 << 20)): rng.randbytes(rng.randrange(300))
        for _ in range(count)
    }


@pytest.fixture
def small_segments(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "objects.SEGMENT_BYTES", 4000)


@pytest.mark.usefixtures("small_segments")
@pytest.mark.parametrize("seed", range(3))
def test_reads_are_those_of_a_dict(tmp_path: Path, seed: int) -> None:
    first, second, small = keys_and_values(seed), keys_and_values(seed + 9), {b"b/HEAD": b"small"}
    write(tmp_path, first, {k: v for k, v in second.items() if k not in first}, small=small)
    expected = {**second, **first, **small}
    with open_store(f"file://{tmp_path}") as store:
        assert keys.has_segments(store)
        assert len(store.segments) > 10
        assert list(store.scan()) == sorted(expected.items())
        rng = random.Random(seed)
        asked = [*rng.sample(sorted(expected), 50), b"a/", b"b/0000001", b"zz", b"b/HEAD"]
        assert store.get_many(asked) == [expected.get(key) for key in asked]
        for prefix, start, stop in [
            (b"b/", None, None), (b"", b"a/8", b"c/1"), (b"b/", b"b/7", None), (b"x", None, None),
            (b"", b"b", b"a"),
        ]:  # fmt: skip
            model = [
                key
                for key in sorted(expected)
                if key.startswith(prefix) and key >= (start or b"") and (not stop or key < stop)
            ]
            assert list(store.keys(prefix, start=start, stop=stop)) == model
            found = list(store.scan(prefix, start=start, stop=stop))
            assert found == [(key, expected[key]) for key in model]
    with pytest.raises(ValueError, match=r"^the store file:///.* is closed$"):
        store.get(b"a")


@pytest.mark.usefixtures("small_segments")
def test_threads_read_one_store(tmp_path: Path) -> None:
    pairs = keys_and_values(7)
    write(tmp_path, pairs)
    with open_store(f"file://{tmp_path}") as store:

        def work(seed: int) -> bool:
            rng = random.Random(seed)
            asked = [rng.sample(sorted(pairs), 20) for _ in range(20)]
            return all(store.get_many(some) == [pairs[key] for key in some] for some in asked)

        assert all(run_in_threads(work, 8, 8, portion=1))


def test_what_only_a_database_has_is_one_sentence(tmp_path: Path) -> None:
    url = f"file://{tmp_path}"
    with open_store(url) as store:
        calls: list[Callable[[], Any]] = [
            lambda: store.put_many([]),
            lambda: store.bulk_load([]),
            lambda: store.delete_many([]),
            lambda: store.delete_range(b""),
            lambda: store.compare_and_set(b"a", None, b"b"),
            store.snapshot,
        ]
        for call in calls:
            with pytest.raises(
                io.UnsupportedOperation, match=r"^file:///.* checkpoint\.copy"
            ) as caught:
                call()
            assert str(caught.value).startswith(url)
        store.sync()
        assert list(store.scan()) == []
    with pytest.raises(io.UnsupportedOperation, match=r"^file:///.* has no parts"):
        write_part(url, "part", [])
    assert not os.listdir(tmp_path)


def test_urls(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"^expected an absolute path, as in file:///path, got "):
        open_store("file://./relative")
    with pytest.raises(ValueError, match="host and port of a s3:// URL cannot be read") as caught:
        open_store("s3://AKIA:hid/den@bucket/run")
    assert "hid" not in str(caught.value)
    with pytest.raises(ValueError, match="`storage_options` are for stores in files, such as s3:"):
        open_store("memory://", storage_options={"key": "secret"})
    shown = str(StoreURL.parse("s3://AKIA:hidden@bucket/run/7?secret_key=hidden&region=here"))
    assert shown == "s3://bucket/run/7"
    assert str(StoreURL.parse("abfs://container@account.net/x")) == "abfs://container@account.net/x"
    assert str(StoreURL.parse("https://me:hidden@host:80/x")) == "https://host:80/x"
    with open_store(f"file://{tmp_path}/a%20b") as store:
        assert store.url == f"file://{tmp_path}/a%20b"
    import fsspec
    from pyarrow import fs

    for system, path in (
        (fsspec.filesystem("memory"), "memory://windeck-objects/run"),
        (fs.LocalFileSystem(), f"{tmp_path}/arrow"),
        (fsspec.filesystem("file"), f"{tmp_path}/fsspec"),
    ):
        with open_store(path, filesystem=system) as store:
            assert keys.has_segments(store)
            store.begin_copy()
            some = store.write_segments("g", [(b"a", b"1"), (b"b", b"22")], {})
            store.commit(some, {b"c": b"3"})
        with open_store(path, filesystem=system) as store:
            assert list(store.scan()) == [(b"a", b"1"), (b"b", b"22"), (b"c", b"3")]
            assert keys.has_segments(store)
            store.commit([], {})
            store.remove_segments(store.segment_files())
            assert store.segment_files() == {}


@pytest.mark.usefixtures("small_segments")
def test_every_damage_of_a_segment_is_an_error_that_names_it(tmp_path: Path) -> None:
    pairs = keys_and_values(1, 60)
    write(tmp_path, pairs)
    files = sorted((tmp_path / "segments").iterdir())
    assert len(files) >= 2
    rng = random.Random(4)

    def damaged(file: Path, content: bytes | None) -> None:
        was = file.read_bytes()
        if content is None:
            file.unlink()
        else:
            file.write_bytes(content)
        with open_store(f"file://{tmp_path}") as store:
            # Other segments can be read.
            with pytest.raises(CorruptStoreError, match=f"segments/{file.name} is "):
                list(store.scan())
            found = {key: read(store, key) for key in pairs}
            wrong = {key: value for key, value in found.items() if value != pairs[key]}
            assert 0 < len(wrong) < len(pairs)
            assert all(file.name in str(error) for error in wrong.values())
        file.write_bytes(was)

    for file, other in zip(files, files[1:] + files[:1], strict=True):
        content = file.read_bytes()
        for _ in range(6):
            at = rng.randrange(len(content))
            damaged(file, content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        damaged(file, content[:-1])
        damaged(file, content[: len(content) // 2])
        damaged(file, b"")
        damaged(file, content + b"\0")
        damaged(file, None)
        damaged(file, other.read_bytes())
        damaged(file, other.read_bytes()[: len(content)].ljust(len(content), b"\0"))
    with open_store(f"file://{tmp_path}") as store:
        assert dict(store.scan()) == pairs


def test_damaged_lists_are_errors_that_name_them(tmp_path: Path) -> None:
    write(tmp_path, {b"a": b"1"}, small={b"b": b"2"})
    newest = max((tmp_path / "lists").iterdir())
    content = newest.read_bytes()
    for at in range(len(content)):
        newest.write_bytes(content[:at] + bytes([content[at] ^ 1]) + content[at + 1 :])
        with pytest.raises((CorruptStoreError, ValueError), match=newest.name):
            open_store(f"file://{tmp_path}")
    for size in range(len(content)):
        newest.write_bytes(content[:size])
        with pytest.raises(CorruptStoreError, match=newest.name):
            open_store(f"file://{tmp_path}")
    for file in (tmp_path / "lists").iterdir():
        file.unlink()
    with pytest.raises(CorruptStoreError, match=r"there is no list of segments in .*expected one"):
        open_store(f"file://{tmp_path}")


@pytest.mark.parametrize("url", ["s3://", "s3:///run", "s3://key:secret@/run", "gs://", "abfs://"])
def test_urls_without_a_bucket(url: str) -> None:
    with pytest.raises(
        ValueError, match=r"^[a-z0-9]+://.* has no bucket or host, expected"
    ) as told:
        open_store(url)
    assert "secret" not in str(told.value)


#: The list of a store without values.
EMPTY: dict[str, Any] = {"segments": [], "values": {}}


def put_list(folder: Path, data: bytes) -> Path:
    """Write the first list of a store."""
    place = folder / "lists" / f"{1:016x}-{2:016x}"
    place.parent.mkdir()
    place.write_bytes(data)
    return place


def as_list(content: Any) -> bytes:
    data = json.dumps(content, separators=(",", ":")).encode()
    return b"windeck-segments 1 %d %08x\n" % (len(data), crc32c(data)) + data


GOOD: list[Any] = ["g-00", 100, 50, 7, [["a", "b"], ["d", "e"]]]
#: Wrong values of each of these.
WRONG: list[list[Any]] = [
    ["../../etc/passwd", "a/b-0", "", "nohyphen", ".", 7, "g-" + "0" * 300],
    [-1, 1 << 64, 1.5, "100", None, True, 20],
    [-1, 1 << 64, 97, None],
    [-1, 1 << 32, "7"],
    [
        *([], None, 7, [["a"]], [["b", "a"]], [["a", "c"], ["b", "d"]], [["", "a"]], [["a", 7]]),
        *([["a", "\u1234"]], [["a", "a" * 70_000]]),
    ],
]


@pytest.mark.parametrize(
    "content",
    [
        [],
        {},
        {"segments": []},
        {"segments": [[]], "values": {}},
        {"segments": {}, "values": {"a": "not base64!"}},
        {"segments": [], "values": {"": ""}},
        *(
            {"segments": [[*GOOD[:at], wrong, *GOOD[at + 1 :]]], "values": {}}
            for at, some in enumerate(WRONG)
            for wrong in some
        ),
    ],
)
def test_lists_from_outside_are_checked(content: Any, tmp_path: Path) -> None:
    place = put_list(tmp_path, as_list(EMPTY))
    with open_store(f"file://{tmp_path}") as store:
        assert list(store.keys()) == []
    place.write_bytes(as_list(content))
    with pytest.raises(
        CorruptStoreError, match=f"lists/{place.name} cannot be read as a list of segments"
    ):
        open_store(f"file://{tmp_path}")


def test_a_later_format_is_no_damage(tmp_path: Path) -> None:
    place = put_list(tmp_path, as_list(EMPTY).replace(b"segments 1", b"segments 2"))
    words = f"lists/{place.name} has format 2, expected 1: a later windeck"
    with pytest.raises(ValueError, match=words):
        open_store(f"file://{tmp_path}")


def test_indices_from_outside_are_checked(tmp_path: Path) -> None:
    """With the checksum of the index in the list, so that its contents are looked at."""
    sums = struct.pack("<2I", crc32c(b"12"), crc32c(b"3"))
    index = struct.pack("<I2H2I", 2, 1, 1, 2, 1) + sums + b"ab"
    place = put_list(tmp_path, b"")
    file = tmp_path / "segments" / "g-00"
    file.parent.mkdir()

    def places(changed: bytes, last: str = "b") -> list[Any]:
        file.write_bytes(b"123" + changed)
        segment = ["g-00", 3 + len(changed), 3, crc32c(changed), [["a", last]]]
        place.write_bytes(as_list({"segments": [segment], "values": {}}))
        with writable(tmp_path) as store:
            return [*store.index(*store.segments).items()]

    assert places(index) == [(b"a", (0, 2, crc32c(b"12"))), (b"b", (2, 1, crc32c(b"3")))]
    with pytest.raises(CorruptStoreError, match="its keys are not in ascending order"):
        places(index[:-1] + b"a", last="a")
    rng = random.Random(5)
    for size in range(4, len(index)):
        with pytest.raises(CorruptStoreError, match="segments/g-00 is damaged: its index cannot"):
            places(index[:size])
    for _ in range(2000):
        wrong = bytearray(index)
        for _ in range(rng.randrange(1, 4)):
            wrong[rng.randrange(len(wrong) - 10)] = rng.randrange(256)
        if struct.unpack("<I2H2I", wrong[:16]) == struct.unpack("<I2H2I", index[:16]):
            continue  # checksums of values, which are compared with them
        try:
            found = places(bytes(wrong))
        except CorruptStoreError:
            continue
        assert all(0 <= p.offset <= p.offset + p.size <= 3 for _, p in found)


def test_a_listed_size_is_compared_before_memory_is_taken(tmp_path: Path) -> None:
    write(tmp_path, keys_and_values(1, 60))
    with open_store(f"file://{tmp_path}") as store:
        assert keys.has_segments(store)
        segment = sorted(store.segments)[0]._replace(size=1 << 50)
        with pytest.raises(CorruptStoreError, match=r"expected 1,125,899,906,842,624 as listed"):
            store.index(segment)


def test_files_of_one_content_have_one_name(tmp_path: Path) -> None:
    with writable(tmp_path) as store:
        (first,) = store.write_segments("g", [(b"a", b"1")], {})
        files = store.segment_files()
        stamp = os.stat(tmp_path / "segments" / first.name).st_mtime_ns
        assert store.write_segments("g", [(b"a", b"1")], files) == [first]
        assert os.stat(tmp_path / "segments" / first.name).st_mtime_ns == stamp
        (other,) = store.write_segments("g", [(b"a", b"2")], files)
        assert other.name != first.name
        assert other.group == first.group == "g"
        # One that another process left unfinished is written again.
        (tmp_path / "segments" / first.name).write_bytes(b"")
        store.write_segments("g", [(b"a", b"1")], store.segment_files())
        assert store.segment_files()[first.name] == first.size


def test_a_list_is_not_written_over_another_one(tmp_path: Path) -> None:
    write(tmp_path, {b"a": b"1"})
    first, second = (writable(tmp_path) for _ in range(2))
    some = first.write_segments("g", [(b"b", b"2")], {})
    first.commit([*first.segments, *some], {})
    with pytest.raises(RuntimeError, match="another process meanwhile, expected one copy or gc"):
        second.commit([], {})
    with open_store(f"file://{tmp_path}") as store:
        assert dict(store.scan()) == {b"a": b"1", b"b": b"2"}
    assert len(list((tmp_path / "lists").iterdir())) == 2  # the one in force, and its former


@pytest.mark.usefixtures("quick_retries")
def test_two_lists_of_one_number_are_not_chosen_from(tmp_path: Path) -> None:
    write(tmp_path, {b"a": b"1"})
    newest = max((tmp_path / "lists").iterdir())
    newest.with_name(newest.name[:17] + "0" * 16).write_bytes(as_list(EMPTY))
    with pytest.raises(CorruptStoreError, match="were written at the same time, expected one"):
        open_store(f"file://{tmp_path}")


def test_a_segment_that_vanished_is_not_listed(tmp_path: Path) -> None:
    with writable(tmp_path) as store:
        store.begin_copy()
        some = store.write_segments("g", [(b"a", b"1")], {})
        store.remove_segments(store.segment_files())
        with pytest.raises(CorruptStoreError, match=r"is missing, .* nothing was listed"):
            store.commit(some, {})
    with open_store(f"file://{tmp_path}") as found:
        assert list(found.scan()) == []


def test_a_write_that_fails_leaves_no_segment(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken() -> Any:
        yield b"a", b"1"
        raise ConnectionError("gone for the test")

    with writable(tmp_path) as store:
        with pytest.raises(ConnectionError, match="gone for the test"):
            store.write_segments("g", broken(), {})
        with pytest.raises(ValueError, match="expected keys in ascending order"):
            store.write_segments("g", [(b"b", b"1"), (b"a", b"1")], {})
        assert store.segment_files() == {}
        plant(monkeypatch, "objects.SEGMENT_BYTES", 100)

        def full(path: str, pieces: list[bytes]) -> None:
            raise OSError(28, "no space for the test")

        plant(monkeypatch, "objects.write_object", full)
        with pytest.raises(OSError, match="no space for the test"):
            store.write_segments("g", [(b"%03d" % i, bytes(60)) for i in range(9)], {})


def test_memory_is_that_of_some_segments(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "objects.SEGMENT_BYTES", 2 << 20)
    rng = random.Random(1)
    store = write(tmp_path / "first", {b"a": b""})
    tracemalloc.start()
    try:
        found = store.write_segments(
            "g", ((b"%03d" % i, rng.randbytes(1 << 18)) for i in range(256)), {}
        )
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert len(found) == 37  # of 64 MiB
    assert peak < 20 << 20


def test_the_format_is_the_documented_one(tmp_path: Path) -> None:
    pairs = [(b"n/a/1", b"one"), (b"n/b/1", b""), (b"n/b/2", b"four")]
    small = {b"n/HEAD": b"\0\1\xff"}
    with writable(tmp_path) as store:
        (segment,) = store.write_segments("group", pairs, {}, lambda key: key[:3])
        store.commit([segment], small)
    lengths = struct.pack("<I3H3I", 3, 5, 5, 5, 3, 0, 4)
    sums = struct.pack("<3I", *(crc32c(value) for _, value in pairs))
    index = lengths + sums + b"n/a/1n/b/1n/b/2"
    name = f"group-{blake2b(b'onefour' + index, digest_size=16).hexdigest()}"
    (file,) = (tmp_path / "segments").iterdir()
    assert (file.name, file.read_bytes()) == (name, b"onefour" + index)
    ranges = ((b"n/a/1", b"n/a/1"), (b"n/b/1", b"n/b/2"))
    assert tuple(segment) == (name, 7 + len(index), 7, crc32c(index), ranges)
    listed = [name, 7 + len(index), 7, crc32c(index), [["n/a/1"] * 2, ["n/b/1", "n/b/2"]]]
    (place,) = (tmp_path / "lists").iterdir()
    expected = as_list({"segments": [listed], "values": {"n/HEAD": "AAH/"}})
    assert place.read_bytes() == expected
    with writable(tmp_path) as store:
        assert (store.segments, store.small_values) == ([segment], small)
        assert dict(store.scan()) == {**dict(pairs), **small}


def test_a_web_server_is_enough_to_read(tmp_path: Path, web: Website) -> None:
    pairs = keys_and_values(3)
    write(tmp_path, pairs, small={b"b/HEAD": b"small"})
    for path in tmp_path.rglob("*-*"):
        web.objects[f"run/{path.relative_to(tmp_path)}"] = path.read_bytes()
    with open_store(f"{web.url}/run") as store:
        assert dict(store.scan()) == {**pairs, b"b/HEAD": b"small"}
        assert keys.has_segments(store)
        with pytest.raises(NotImplementedError, match=r"cannot write .* takes no files"):
            store.commit(store.segments, {})
