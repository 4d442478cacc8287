"""Many values to one server: sent as they come, while it is still at those before.

Nothing is copied on the way, and nobody waits for an answer as long as few are owed, so that what
makes the values and what takes them work at the same time.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any, TypeAlias

import redis

from windeck.checkpoint.stores.protocol import Pieces

__all__ = ["Pairs", "plain_socket", "send"]

Pairs: TypeAlias = Iterable[tuple[bytes, "bytes | Pieces"]]
#: A value of so many bytes gets a command of its own: a server keeps it where it received it.
LARGE_BYTES = 32 << 10
#: Bytes of a command for many small ones.
SMALL_BYTES = 256 << 10
#: Bytes and commands sent before the answer to the first of them is waited for.
UNANSWERED_BYTES = 16 << 20
UNANSWERED = 256
_OK = b"+OK\r\n"


def send(connection: Any, pairs: Pairs) -> int:
    """Write pairs over a connection of redis-py, and return how many they were.

    All were answered when this returns. When it raises, answers may still be owed.

    Raises
    ------
    redis.RedisError
        As redis-py means it: what the server said, or what became of the connection.
    """
    count = owed = 0
    sizes: deque[int] = deque()
    plain, answers = plain_socket(connection), _Answers(connection)
    for parts, pairs_in in _commands(pairs):
        size = sum(map(len, parts))
        while sizes and (owed + size > UNANSWERED_BYTES or len(sizes) == UNANSWERED):
            for _ in range(answers.take(len(sizes))):
                owed -= sizes.popleft()
        # With this the bytes are the kernel's: the next pair may be made where they were.
        if plain is None:
            connection.send_packed_command(parts, check_health=False)
        else:
            _put(plain, parts)
        sizes.append(size)
        owed += size
        count += pairs_in
    left = len(sizes)
    while left:
        left -= answers.take(left)
    return count


class _Answers:
    """What a server says to commands that are answered by OK.

    As long as all is well it is the same five bytes again and again: these are taken together,
    where redis-py takes longer for each than the server. From whatever else there is on, redis-py
    reads: it may have read ahead then.
    """

    def __init__(self, connection: Any) -> None:
        self._connection, self._plain = connection, plain_socket(connection)

    def take(self, owed: int) -> int:
        """Wait for answers, and return how many came: one at least, and no more than are owed."""
        count = self._take_plain(self._plain, owed) if self._plain is not None else 0
        if count:
            return count
        self._plain = None
        self._connection.read_response()
        return 1

    @staticmethod
    def _take_plain(plain: socket.socket, owed: int) -> int:
        try:
            came = plain.recv(owed * len(_OK), socket.MSG_PEEK)
            count = len(came) // len(_OK)
            if not came.startswith(_OK * max(1, count)):
                return 0
            left = count * len(_OK)
            while left:
                left -= len(plain.recv(left))
            return count
        except TimeoutError:
            raise redis.TimeoutError("Timeout reading from socket") from None
        except OSError as error:
            raise redis.ConnectionError(
                f"Error {error.errno} while reading from socket. {error}"
            ) from None


def plain_socket(connection: Any) -> socket.socket | None:
    """The socket of a connection of redis-py; None where more than its bytes count, as with TLS."""
    found = getattr(connection, "_sock", None)
    return found if type(found) is socket.socket else None


def _put(plain: socket.socket, parts: list[bytes | memoryview]) -> None:
    """Have the kernel take all of a command: in one call where it can, of redis-py's one a part."""
    left = parts
    try:
        while left:
            taken, left = plain.sendmsg(left), left.copy()
            while left and taken >= len(left[0]):
                taken -= len(left.pop(0))
            if left:
                left[0] = memoryview(left[0])[taken:]
    except TimeoutError:
        raise redis.TimeoutError("Timeout writing to socket") from None
    except OSError as error:
        raise redis.ConnectionError(
            f"Error {error.errno} while writing to socket. {error}"
        ) from None


def _commands(pairs: Pairs) -> Iterator[tuple[list[bytes | memoryview], int]]:
    """Commands in the parts they are sent in, each with how many pairs it writes."""
    small: list[bytes] = []
    held = 0
    for key, value in pairs:
        size = len(value)
        if size >= LARGE_BYTES:
            yield _set(key, value, size), 1
            continue
        if held + len(key) + size > SMALL_BYTES and small:
            yield _mset(small), len(small) // 2
            small, held = [], 0
        small += (key, bytes(value))
        held += len(key) + size
    if small:
        yield _mset(small), len(small) // 2


def _set(key: bytes, value: bytes | Pieces, size: int) -> list[bytes | memoryview]:
    head = b"*3\r\n$3\r\nSET\r\n$%d\r\n%b\r\n$%d\r\n" % (len(key), key, size)
    if isinstance(value, Pieces):
        return [head, value.head, value.body, b"\r\n"]
    return [head, value, b"\r\n"]


def _mset(words: list[bytes]) -> list[bytes | memoryview]:
    command = b"*%d\r\n$4\r\nMSET\r\n" % (1 + len(words))
    return [command + b"".join([b"$%d\r\n%b\r\n" % (len(word), word) for word in words])]
