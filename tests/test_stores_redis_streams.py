"""Values streamed to and from Redis: servers that answer wrongly, and real ones that stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from played_redis import Cut, Turns, bulk, played, trickling
from store_servers import RedisServer, need
from threads import at_once
from windeck._core import crc32c
from windeck.checkpoint.stores import Pieces, Store, StreamView, open_store

need("redis")
from windeck.checkpoint.stores import redis_receiving, redis_sending  # noqa: E402

LARGE = 100_000


ROWS = {b"k%02d" % i: bytes([i]) * LARGE + b"%02d" % i for i in range(60)}


def read(store: Store, keys: list[bytes], *, head: int = 7) -> list[bytes | None]:
    """Values read into memory that is used again, where they came; None where they did not."""
    assert isinstance(store, StreamView)
    size = LARGE + 2
    start, memory = bytearray(head), bytearray(size - head)
    found: list[bytes | None] = []
    for crc in store.get_each_into((k, memoryview(start), memoryview(memory)) for k in keys):
        found.append(None if crc is None else bytes(start + memory))
        assert crc is None or crc == crc32c(memory)
    return found


# --- reading -------------------------------------------------------------------------------------


def test_values_are_read_in_a_row(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:
        store.bulk_load(ROWS.items())
        before = server.client().info("commandstats")["cmdstat_set"]["calls"]
        assert before == len(ROWS)  # a command for each, which the server need not copy
        for head in (0, 7, 64, LARGE + 2):
            assert read(store, list(ROWS), head=head) == list(ROWS.values())
        assert read(store, []) == []
        assert read(store, [b"k05", b"k05", b"k00"]) == [ROWS[b"k05"], ROWS[b"k05"], ROWS[b"k00"]]


@pytest.mark.parametrize("odd", ["missing", "short", "long", "list"])
def test_what_does_not_fit_is_not_given(odd: str, tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:
        store.bulk_load(ROWS.items())
        keys = list(ROWS)
        server.say("DEL", keys[20])
        if odd == "list":
            server.say("RPUSH", keys[20], "x")
        elif odd != "missing":
            server.say("SET", keys[20], bytes(LARGE + (1 if odd == "short" else 3)))
        found = read(store, keys)
        assert found[:20] == list(ROWS.values())[:20]
        assert found[20:] == [None] * 40
        # The connection with answers that nobody took was not used again.
        assert store.get(keys[21]) == ROWS[keys[21]]
        assert read(store, keys[:20]) == list(ROWS.values())[:20]


def test_a_stream_that_is_left_is_no_harm(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server, open_store(server.url) as store:
        store.bulk_load(ROWS.items())
        assert isinstance(store, StreamView)
        head, body = memoryview(bytearray(2)), memoryview(bytearray(LARGE))
        for left in (0, 1, 30):
            stream = store.get_each_into((key, head, body) for key in ROWS)
            for _ in range(left):
                next(stream)
            assert store.get(b"k59") == ROWS[b"k59"]  # meanwhile
            del stream
            assert read(store, list(ROWS)) == list(ROWS.values())
        assert server.client().info("clients")["connected_clients"] < 6


def test_closed_stores_and_keys_that_are_none(tmp_path: Path) -> None:
    with RedisServer(tmp_path / "server") as server:
        store = open_store(server.url)
        with pytest.raises(TypeError, match="expected a key of type bytes, got str"):
            read(store, ["k"])  # type: ignore[list-item]
        store.close()
        with pytest.raises(ValueError, match="is closed"):
            read(store, [b"k"])
        with pytest.raises(ValueError, match="is closed"):
            store.bulk_load([(b"k", b"1")])


BAD_ANSWERS = {
    "a length that is huge": b"$536870912\r\n" + bytes(1000),
    "a length that overflows": b"$99999999999999999999999\r\n" + bytes(1000),
    "a length below zero": b"$-7\r\n",
    "no length": b"$\r\n\r\n",
    "one byte less": b"$%d\r\n" % (LARGE + 1) + bytes(LARGE + 1) + b"\r\n",
    "no end": b"$%d\r\n" % (LARGE + 2) + bytes(LARGE + 2) + b"xx",
    "a number": b":100002\r\n",
    "a list": b"*1\r\n" + bulk(bytes(LARGE)),
    "a push": b">2\r\n" + bulk(b"message") + bulk(b"x"),
    "a null of the third protocol": b"_\r\n",
    "nothing known": b"\x00" * 50,
    "loading": b"-LOADING Redis is loading the dataset in memory\r\n",
    "an error": b"-ERR something else\r\n",
    "the end": None,
    "the end amid a value": b"$%d\r\n" % (LARGE + 2) + bytes(50),
}


@pytest.mark.parametrize("bad", BAD_ANSWERS)
@pytest.mark.parametrize("turn", [0, 3])
def test_an_answer_that_is_none_is_asked_for_another_way(bad: str, turn: int) -> None:
    with played() as server:
        server.data.update(ROWS)
        if bad == "the end amid a value":
            server.answers["GET"] = Cut(server, turn)
        else:
            server.answers["GET"] = Turns(server, *[b"usual"] * turn, BAD_ANSWERS[bad])
        with open_store(server.url) as store:
            keys = list(ROWS)[:9]
            found = read(store, keys)
            assert found[:turn] == [ROWS[key] for key in keys[:turn]]
            assert found[turn:] == [None] * (9 - turn)
            assert store.get(keys[turn]) == ROWS[keys[turn]]


def test_a_server_that_is_silent_amid_a_value() -> None:
    with played() as server:
        server.data.update(ROWS)
        answer = Turns(server, b"usual", b"$%d\r\n" % (LARGE + 2) + bytes(50))
        server.answers["GET"] = lambda words: answer(words) if stop() else b""
        count = iter(range(1000))

        def stop() -> bool:
            return next(count) < 2

        with open_store(f"{server.url}?timeout=0.3") as store:
            error = r"did not answer in time: reading failed: Timeout reading from socket"
            with pytest.raises(TimeoutError, match=error):
                read(store, list(ROWS)[:5])


def test_answers_that_come_byte_by_byte() -> None:
    with played() as server:
        server.data.update(ROWS)

        def slowly(words: list[bytes]) -> bytes:
            return bulk(server.data[words[1]])

        server.answers["GET"] = slowly
        with trickling(server.port) as port, open_store(f"redis://127.0.0.1:{port}") as store:
            keys = list(ROWS)[:4]
            assert read(store, keys) == [ROWS[key] for key in keys]


class Dripping:
    """A socket that gives so many bytes at a time, and what was read from it; then an error."""

    def __init__(self, data: bytes, most: int) -> None:
        self.data, self.most, self.at = data, most, 0

    def recvmsg_into(self, buffers: list[memoryview]) -> tuple[int, list[Any], int, None]:
        if self.at == len(self.data):
            raise ConnectionResetError(104, "reset")
        given = self.data[self.at :][: self.most]
        taken = 0
        for buffer in buffers:
            part = given[taken:][: len(buffer)]
            buffer[: len(part)] = part
            taken += len(part)
        self.at += taken
        return taken, [], 0, None


@pytest.mark.parametrize("most", [1, 2, 3, 7, 1000])
@pytest.mark.parametrize("head", [0, 3, 30])
def test_every_wrong_byte_around_a_value(most: int, head: int) -> None:
    """One in the length is seen with it, before more is waited for: it may never come."""
    value = bytes(range(30))
    good = b"$30\r\n" + value + b"\r\n"
    for at in (None, *range(5), 35, 36):
        answer = bytearray(good)
        if at is not None:
            answer[at] ^= 1
        start, body = bytearray(head), bytearray(30 - head)
        plain: Any = Dripping(bytes(answer), most)
        right = redis_receiving._take(plain, (b"k", memoryview(start), memoryview(body)))
        assert right == (at is None)
        if at is None or at >= 35:
            assert start + body == value
        else:
            assert plain.at == min(-(-(at + 1) // most) * most, len(good))
    for size in range(len(good)):
        plain = Dripping(good[:size], most)
        into = memoryview(bytearray(head)), memoryview(bytearray(30 - head))
        assert not redis_receiving._take(plain, (b"k", *into))


@pytest.mark.parametrize(
    ("size", "count", "most"), [(10, 2000, redis_receiving.AHEAD), (LARGE, 150, 42), (0, 600, 256)]
)
def test_no_more_is_asked_for_ahead_than_may_be(size: int, count: int, most: int) -> None:
    """And no less than half of it as long as there is more: 42 times 100,000 bytes are 4 MiB."""
    with played(GET=lambda _: bulk(bytes(size))) as server, open_store(server.url) as store:
        assert isinstance(store, StreamView)
        asked: list[int] = []
        memory = memoryview(bytearray(size))

        def wanted() -> Iterator[tuple[bytes, memoryview, memoryview]]:
            for number in range(count):
                asked.append(number)
                yield b"k", memory[:0], memory

        ahead, rounds = [], set()
        for came, crc in enumerate(store.get_each_into(wanted())):
            assert crc == crc32c(memory)
            ahead.append(len(asked) - came)  # this one too
            rounds.add(len(asked))
        assert len(ahead) == count
        assert max(ahead) == most
        assert min(ahead[: count - most]) >= most // 2
        assert len(rounds) <= 2 + count // (most // 2)  # many in one message


# --- writing -------------------------------------------------------------------------------------


def mixed() -> dict[bytes, bytes]:
    """Values around the sizes where they are sent another way."""
    sizes = [0, 1, 100, 32_767, 32_768, 32_769, 0, 300_000, 5, 262_144, 20_000, 20_000] * 4
    data = bytes(range(251)) * 1200  # no two parts of a value are the same
    return {b"%03d" % i: data[i : i + size] for i, size in enumerate(sizes)}


def test_small_values_share_commands_up_to_a_size() -> None:
    """Keys count too; what would make a command larger begins the next."""
    most = redis_sending.SMALL_BYTES
    sizes = [most // 16 - 4] * 16 + [10, *[most // 16 - 4] * 15, most // 16 - 14, 0, 1] * 2
    held, counts = most, list[int]()
    for size in sizes:
        fits = held + 4 + size <= most
        held = (held if fits else 0) + 4 + size
        counts = [*counts[:-1], counts[-1] + 1] if fits else [*counts, 1]
    pairs = [(b"%04d" % i, bytes(size)) for i, size in enumerate(sizes)]
    assert [count for _, count in redis_sending._commands(pairs)] == counts
    assert counts[0] == 16  # no byte more would have fitted


@pytest.mark.parametrize("most", [1, 2, 3, 5, 7, 100])
def test_a_command_of_which_a_part_is_taken_at_a_time(most: int) -> None:
    class Narrow:
        def sendmsg(self, parts: list[Any]) -> int:
            assert len(sent) < 12  # else it would go on for ever
            taken = b"".join(parts)[:most]
            sent.extend(taken)
            return len(taken)

    sent, plain = bytearray(), Narrow()
    parts: list[Any] = [b"abc", memoryview(b"defghij"), b"", b"kl"]
    redis_sending._put(plain, parts)  # type: ignore[arg-type]
    assert sent == b"abcdefghijkl"
    assert [len(part) for part in parts] == [3, 7, 0, 2]


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
    rows = [(b"%02d" % i, bytes([i]) * 33_000) for i in range(6)]
    with (
        played(SET=lambda _: b"+OK\r\n") as server,
        trickling(server.port) as port,
        open_store(f"redis://127.0.0.1:{port}") as store,
    ):
        assert store.bulk_load(rows) == 6


@pytest.mark.parametrize(
    ("odd", "rest"), [(b"+QUEUED\r\n", b""), (b"+O", b"K\r\n"), (b"", b"+OK\r\n")]
)
def test_answers_to_writes_of_which_one_is_odd(odd: bytes, rest: bytes) -> None:
    """Another word than OK, or half of one; then all the others at once."""
    count = iter(range(36))

    def answer(_: list[bytes]) -> bytes:
        number = next(count)
        if number == 35:
            time.sleep(0.1)  # so that the odd one is seen alone
            return rest + b"+OK\r\n" * 15
        return b"+OK\r\n" if number < 20 else odd if number == 20 else b""

    with played(SET=answer) as server, open_store(f"{server.url}?timeout=5") as store:
        assert store.bulk_load((b"%05d" % i, bytes(40_000)) for i in range(36)) == 36


def test_many_values_wait_for_few_answers() -> None:
    """A server that answers only once all was sent would wait for ever, and be waited for."""
    held: list[int] = []

    def late(words: list[bytes]) -> bytes:
        held.append(1)
        time.sleep(0.0002)
        return b"+OK\r\n"

    with played(SET=late) as server, open_store(f"{server.url}?timeout=10") as store:
        assert store.bulk_load((b"%05d" % i, bytes(32_768)) for i in range(1200)) == 1200
        assert len(held) == 1200


@pytest.mark.parametrize(
    ("said", "kind", "words"),
    [
        (b"-OOM command not allowed when used memory > 'maxmemory'.\r\n", OSError, "out of memory"),
        (b"-READONLY You can't write against a read only replica.\r\n", OSError, "only reads"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", ConnectionError, "is loading"),
        (b"-MISCONF Errors writing to the AOF file\r\n", OSError, "cannot write to its disk"),
        (b"-NOPERM this user has no permissions\r\n", PermissionError, "does not allow it"),
        (b"-ERR something else\r\n", OSError, "writing failed: something else"),
        (b"\x00\x01\x02\r\n", OSError, "writing failed: Protocol Error"),
        (None, ConnectionError, "cannot be reached: writing failed: "),
    ],
)
@pytest.mark.parametrize("after", [0, 700])
def test_errors_amid_a_load(
    said: bytes | None, kind: type[OSError], words: str, after: int
) -> None:
    count = iter(range(10_000))

    def answer(_: list[bytes]) -> bytes | None:
        return b"+OK\r\n" if next(count) < after else said

    with played(SET=answer) as server, open_store(server.url) as store:
        with pytest.raises(kind, match=words) as caught:
            store.bulk_load((b"%05d" % i, bytes(40_000)) for i in range(1000))
        assert server.url in str(caught.value)
        server.answers.clear()  # and the store can be used again
        assert store.bulk_load([(b"a", bytes(40_000)), (b"b", b"2")]) == 2
        assert store.get_many([b"a", b"b"]) == [bytes(40_000), b"2"]


def test_a_server_that_stops_answering_amid_a_load() -> None:
    rows = [(b"%05d" % i, bytes(40_000)) for i in range(1000)]
    with played(SET=lambda _: b"") as server, open_store(f"{server.url}?timeout=0.3") as store:
        error = "did not answer in time: writing failed"
        with pytest.raises(TimeoutError, match=error):
            store.bulk_load(rows)


def test_a_server_that_stops_reading_amid_a_load() -> None:
    def stuck(_: list[bytes]) -> bytes:
        wait.wait(20)
        return b"+OK\r\n"

    wait = threading.Event()
    with played(SET=stuck) as server, open_store(f"{server.url}?timeout=0.3") as store:
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
        for call in (lambda: store.bulk_load(ROWS.items()), lambda: read(store, list(ROWS))):
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
                assert read(store, list(rows)) == list(rows.values())

        at_once(4, work)
