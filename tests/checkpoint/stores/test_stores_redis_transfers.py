"""Tests of transfers to and from Redis: servers that answer wrongly, and real ones that stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from support.played_redis import Cut, Turns, played, trickling
from support.store_servers import RedisServer, need
from support.threads import at_once
from windeck._core import crc32c
from windeck.checkpoint.stores import Pieces, Store, open_store

need("redis")

LARGE = 100_000
#: Bytes that are sent to a server before it answers.
UNANSWERED_BYTES = 16 << 20


ROWS = {b"k%02d" % i: bytes([i]) * LARGE + b"%02d" % i for i in range(60)}


def one_by_one(store: Store, keys: list[bytes]) -> list[bytes | None]:
    return [store.get(key) for key in keys]


def together(store: Store, keys: list[bytes]) -> list[bytes | None]:
    return store.get_many(keys)


READS = pytest.mark.parametrize("read", [one_by_one, together])
Read = Callable[[Store, list[bytes]], "list[bytes | None]"]


# --- reading -------------------------------------------------------------------------------------


def test_closed_stores_and_keys_that_are_none(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server:
        store = open_store(server.url)
        with pytest.raises(TypeError, match="expected a key of type bytes, got str"):
            store.get_many(["k"])  # type: ignore[list-item]
        store.close()
        with pytest.raises(ValueError, match="is closed"):
            store.get_many([b"k"])
        with pytest.raises(ValueError, match="is closed"):
            store.bulk_load([(b"k", b"1")])


@pytest.mark.parametrize("turn", [0, 3])
@pytest.mark.parametrize("amid", [False, True])
def test_an_answer_that_is_cut_off_is_asked_for_again(amid: bool, turn: int) -> None:
    with played() as server:
        server.data.update(ROWS)
        cut, ended = Cut(server, turn), Turns(server, *[b"usual"] * turn, None)
        server.answers["GET"] = cut if amid else ended
        with open_store(server.url) as store:
            keys = list(ROWS)[:9]
            assert one_by_one(store, keys) == [ROWS[key] for key in keys]


BAD_ANSWERS = {
    "a length that overflows": b"$99999999999999999999999x\r\n",
    "no length": b"$\r\n\r\n",
    "nothing known": b"\x00" * 50 + b"\r\n",
    "an error": b"-ERR something else\r\n",
}


@READS
@pytest.mark.parametrize("bad", BAD_ANSWERS)
def test_an_answer_that_is_none(bad: str, read: Read) -> None:
    with played() as server:
        server.data.update(ROWS)
        with open_store(server.url) as store:
            for name in ("GET", "MGET"):
                server.answers[name] = lambda _: BAD_ANSWERS[bad]
            with pytest.raises(OSError, match=f"{server.url}: reading failed: "):
                read(store, list(ROWS))
            server.answers.clear()
            assert read(store, list(ROWS)) == list(ROWS.values())


@READS
@pytest.mark.parametrize("size", [LARGE + 2, 536_870_912])
def test_a_server_that_is_silent_amid_a_value(size: int, read: Read) -> None:
    with played() as server:
        server.data.update(ROWS)
        half = b"$%d\r\n" % size + bytes(50)
        server.answers["GET"] = lambda _: half
        server.answers["MGET"] = lambda words: b"*%d\r\n" % (len(words) - 1) + half
        with open_store(f"{server.url}?timeout=0.3") as store:
            error = r"did not answer in time: reading failed: Timeout reading from socket"
            with pytest.raises(TimeoutError, match=error):
                read(store, list(ROWS)[:5])
            server.answers.clear()  # what was still owed is not taken for the next answer
            assert read(store, list(ROWS)) == list(ROWS.values())


@READS
def test_answers_that_come_byte_by_byte(read: Read) -> None:
    with played() as server:
        server.data.update(ROWS)
        with trickling(server.port) as port, open_store(f"redis://127.0.0.1:{port}") as store:
            keys = list(ROWS)[:4]
            assert read(store, keys) == [ROWS[key] for key in keys]


# --- writing -------------------------------------------------------------------------------------


def mixed() -> dict[bytes, bytes]:
    """Values of sizes around those at which the way of sending changes."""
    sizes = [0, 1, 100, 32_767, 32_768, 32_769, 0, 300_000, 5, 262_144, 20_000, 20_000] * 4
    data = bytes(range(251)) * 1200  # no two parts of a value are the same
    return {b"%03d" % i: data[i : i + size] for i, size in enumerate(sizes)}


@pytest.mark.parametrize("pieces", [False, True])
def test_values_of_all_sizes_are_written(pieces: bool, tmp_path: Path) -> None:
    rows = mixed()

    def given() -> Iterator[tuple[bytes, bytes | Pieces]]:
        memory = bytearray(300_000)
        for key, value in rows.items():
            body = memoryview(memory)[: max(0, len(value) - 3)]
            body[:] = value[3:]
            yield key, Pieces(value[:3], body, crc32c(body)) if pieces else value
            memory[:] = bytes(300_000)  # may be changed once the next is asked for

    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:
        assert store.bulk_load(given()) == len(rows)
        assert dict(store.scan()) == rows
        assert store.bulk_load(iter(())) == 0


def test_answers_to_writes_that_come_byte_by_byte() -> None:
    rows = [(b"%02d" % i, bytes([i]) * 200_000) for i in range(6)]
    with (
        played(MSET=lambda _: b"+OK\r\n") as server,
        trickling(server.port) as port,
        open_store(f"redis://127.0.0.1:{port}") as store,
    ):
        assert store.bulk_load(rows) == 6


@pytest.mark.parametrize(
    ("odd", "rest"), [(b"+QUEUED\r\n", b""), (b"+O", b"K\r\n"), (b"", b"+OK\r\n")]
)
def test_answers_to_writes_of_which_one_is_odd(odd: bytes, rest: bytes) -> None:
    """One answer is not OK or is incomplete; the others arrive at once."""
    count = iter(range(36))

    def answer(_: list[bytes]) -> bytes:
        number = next(count)
        if number == 35:
            time.sleep(0.1)  # so that the odd one is seen alone
            return rest + b"+OK\r\n" * 15
        return b"+OK\r\n" if number < 20 else odd if number == 20 else b""

    with played(MSET=answer) as server, open_store(f"{server.url}?timeout=5") as store:
        assert store.bulk_load((b"%05d" % i, bytes(200_000)) for i in range(36)) == 36


def test_many_values_wait_for_few_answers() -> None:
    """A save sends and receives at once; otherwise it and the server would wait for each other."""
    held: list[int] = []

    def late(words: list[bytes]) -> bytes:
        held.append(1)
        time.sleep(0.0002)
        return b"+OK\r\n"

    with played(MSET=late) as server, open_store(f"{server.url}?timeout=10") as store:
        assert store.bulk_load((b"%05d" % i, bytes(200_000)) for i in range(300)) == 300
        assert len(held) == 300


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", OSError, "out of memory"),
        (
            b"-READONLY You can't write against a read only replica.\r\n",
            OSError,
            "read-only replica",
        ),
        (b"-LOADING Redis is loading the dataset in memory\r\n", ConnectionError, "is loading"),
        (b"-MISCONF Errors writing to the AOF file\r\n", OSError, "cannot write to its disk"),
        (b"-NOPERM this user has no permissions\r\n", PermissionError, "denies access"),
        (b"-ERR something else\r\n", OSError, "writing failed: something else"),
        (b"\x00\x01\x02\r\n", OSError, "writing failed: Protocol [Ee]rror"),
        (None, ConnectionError, "cannot be reached: writing failed: "),
    ],
)
@pytest.mark.parametrize("after", [0, 100])
def test_errors_amid_a_load(
    said: bytes | None, kind: type[OSError], words: str, after: int
) -> None:
    count = iter(range(10_000))

    def answer(_: list[bytes]) -> bytes | None:
        return b"+OK\r\n" if next(count) < after else said

    with played(MSET=answer) as server, open_store(server.url) as store:
        with pytest.raises(kind, match=words) as caught:
            store.bulk_load((b"%05d" % i, bytes(40_000)) for i in range(1000))
        assert server.url in str(caught.value)
        server.answers.clear()  # and the store can be used again
        assert store.bulk_load([(b"a", bytes(40_000)), (b"b", b"2")]) == 2
        assert store.get_many([b"a", b"b"]) == [bytes(40_000), b"2"]


@pytest.mark.parametrize("size", [200_000, 4_000_000])
def test_a_server_that_stops_answering_amid_a_load(size: int) -> None:
    """Not much is sent to it before that is found out."""
    most, taken = UNANSWERED_BYTES // size, list[int]()

    def rows() -> Iterator[tuple[bytes, bytes]]:
        for number in range(most + 50):
            taken.append(number)
            yield b"%05d" % number, bytes(size)

    with played(MSET=lambda _: b"") as server, open_store(f"{server.url}?timeout=0.3") as store:
        error = "did not answer in time: writing failed"
        with pytest.raises(TimeoutError, match=error):
            store.bulk_load(rows())
    assert most - 2 <= len(taken) <= most + 2


def test_a_server_that_stops_reading_amid_a_load() -> None:
    def stuck(_: list[bytes]) -> bytes:
        wait.wait(20)
        return b"+OK\r\n"

    wait = threading.Event()
    with played(MSET=stuck) as server, open_store(f"{server.url}?timeout=0.3") as store:
        error = "did not answer in time: writing failed: Timeout writing to socket"
        with pytest.raises(TimeoutError, match=error):
            store.bulk_load([(b"a", bytes(40_000)), (b"b", bytes(15_000_000))])
        wait.set()


def test_a_source_that_fails_amid_a_load(tmp_path: Path) -> None:
    def broken() -> Iterator[tuple[bytes, bytes]]:
        yield b"a", bytes(100_000)
        yield b"b", bytes(10)
        raise LookupError("no more")

    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:
        with pytest.raises(LookupError, match="no more"):
            store.bulk_load(broken())
        assert store.bulk_load([(b"c", bytes(100_000))]) == 1
        assert store.get(b"c") == bytes(100_000)


def test_a_load_over_an_idle_connection_that_was_dropped(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:
        store.bulk_load(ROWS.items())
        for call in (lambda: store.bulk_load(ROWS.items()), lambda: store.get_many(list(ROWS))):
            server.say("CLIENT", "KILL", "TYPE", "normal", "SKIPME", "yes")
            assert call() in (len(ROWS), list(ROWS.values()))


def test_a_server_killed_amid_a_load(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:

        def killing() -> Iterator[tuple[bytes, bytes]]:
            for i in range(400):
                if i == 200:
                    server.kill()
                    server.start()  # at once: what it had answered is lost, so all is
                yield b"%05d" % i, bytes(40_000)

        with pytest.raises(ConnectionError, match="cannot be reached: writing failed: "):
            store.bulk_load(killing())
        assert server.say("DBSIZE") == 0


def test_several_threads(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:

        def work(name: int) -> None:
            rows = {b"%d/%s" % (name, key): value for key, value in ROWS.items()}
            for _ in range(3):
                assert store.bulk_load(rows.items()) == len(rows)
                assert store.get_many(list(rows)) == list(rows.values())

        at_once(4, work)
