"""Many values from one server, to where they are wanted: asked for ahead, and not copied.

What comes is compared with the one answer there can be, byte for byte, as it comes. Nothing is
allocated and nothing is parsed: after anything else the connection is given up, and what it was has
to be asked another way.
"""

from __future__ import annotations

import socket
from collections import deque
from collections.abc import Iterable, Iterator
from typing import Any

import redis

from windeck._core import crc32c
from windeck.checkpoint.stores.protocol import Wanted
from windeck.checkpoint.stores.redis_sending import plain_socket

__all__ = ["receive"]

#: Bytes and values asked for that have not come yet.
AHEAD_BYTES = 4 << 20
AHEAD = 256


def receive(connection: Any, wanted: Iterable[Wanted]) -> Iterator[int | None]:
    """Read values over a connection of redis-py, each when it is asked for.

    Yields
    ------
    int or None
        The CRC32C of a value's body. None for what did not come, and for all after it.

    Raises
    ------
    redis.TimeoutError
        When nothing came in time.

    Notes
    -----
    Unless this ends by itself, answers may still be owed. When it gave None, the connection is
    closed.
    """
    left, waiting = iter(wanted), deque[Wanted]()
    plain = plain_socket(connection)
    owed, more = 0, True
    while True:
        if more and owed <= AHEAD_BYTES // 2 and len(waiting) <= AHEAD // 2:
            asked = _ahead(left, owed, len(waiting))
            more = bool(asked)
            owed += sum(_size(value) for value in asked)
            waiting.extend(asked)
            if plain is not None and not _ask(plain, asked):
                plain = None
        if not waiting:
            return
        value = waiting.popleft()
        owed -= _size(value)
        if plain is not None and not _take(plain, value):
            plain = None
        if plain is None:
            connection.disconnect()
        yield None if plain is None else crc32c(value[2])


def _ahead(left: Iterator[Wanted], owed: int, count: int) -> list[Wanted]:
    """The next to be asked for: at least one, if there is any and none is waited for."""
    found: list[Wanted] = []
    for value in left:
        found.append(value)
        owed += _size(value)
        if owed >= AHEAD_BYTES or count + len(found) >= AHEAD:
            break
    return found


def _size(value: Wanted) -> int:
    return len(value[1]) + len(value[2])


def _ask(plain: socket.socket, asked: list[Wanted]) -> bool:
    """Send for values; False when the connection is gone."""
    words = [b"*2\r\n$3\r\nGET\r\n$%d\r\n%b\r\n" % (len(key), key) for key, _, _ in asked]
    try:
        plain.sendall(b"".join(words))
    except TimeoutError:
        raise redis.TimeoutError("Timeout writing to socket") from None
    except OSError:
        return False
    return True


def _take(plain: socket.socket, value: Wanted) -> bool:
    """Whether just the value came that was wanted; it is in its place then."""
    start = b"$%d\r\n" % _size(value)
    came, end = bytearray(len(start)), bytearray(2)
    parts = [memoryview(came), value[1], value[2], memoryview(end)]
    known, left = 0, [part for part in parts if len(part)]
    try:
        while left:
            taken = plain.recvmsg_into(left)[0]
            if not taken:
                return False
            known = min(len(start), known + taken)
            if came[:known] != start[:known]:  # before more is waited for: it may never come
                return False
            while left and taken >= len(left[0]):
                taken -= len(left.pop(0))
            if left:
                left[0] = left[0][taken:]
    except TimeoutError:
        raise redis.TimeoutError("Timeout reading from socket") from None
    except OSError:
        return False
    return end == b"\r\n"
