"""Durability of the data of a Redis server: `make_durable` chooses by its configuration.

====================================  ========================================================
append-only file, version >= 7.2      WAITAOF: waits until the end of the file is on disk
append-only file, appendfsync always  nothing: a write is on disk when it is acknowledged
append-only file, otherwise           BGREWRITEAOF: a new file, synced when it is finished
none                                  BGSAVE: a new dump, synced when it is finished
====================================  ========================================================
"""

from __future__ import annotations

import errno
from typing import Any

import redis

from windeck._util.retry import POLLING

__all__ = ["make_durable"]

#: Milliseconds of one WAITAOF; must be below the timeout of the socket.
WAIT_MS = 1000
_BUSY = ("rdb_bgsave_in_progress", "aof_rewrite_in_progress", "aof_rewrite_scheduled")


def make_durable(node: Any, key: bytes) -> None:
    """Make all writes that a server has acknowledged durable.

    Parameters
    ----------
    node
        A client of one server.
    key
        A key of this server. WAITAOF needs a write: this key, which expires after a millisecond.
    """
    if node.info("persistence").get("aof_enabled"):
        if _version(node) >= (7, 2):
            return _wait_for_file(node, key)
        if _appends(node) == "always":
            return None
        return _in_background(node, "BGREWRITEAOF", "aof_last_bgrewrite_status")
    return _in_background(node, "BGSAVE", "rdb_last_bgsave_status")


def _wait_for_file(node: Any, key: bytes) -> None:
    # WAITAOF waits for the writes of its own connection, and a pool has several. So write a key on
    # the same connection: it comes after all others in the file.
    while True:
        with node.pipeline(transaction=False) as pipe:
            pipe.execute_command("SET", key, b"", "PX", 1)
            pipe.execute_command("WAITAOF", 1, 0, WAIT_MS)
            _, reply = pipe.execute()
        if int(reply[0]) >= 1:
            return
        info = node.info("persistence")
        if info.get("aof_last_write_status", "ok") != "ok":
            raise OSError(errno.EIO, "the Redis server cannot write its append-only file")


def _appends(node: Any) -> str:
    try:
        return str(node.config_get("appendfsync").get("appendfsync", ""))
    except redis.ResponseError:
        return ""  # CONFIG is not allowed


def _in_background(node: Any, command: str, status: str) -> None:
    """Make a child process of the server write everything, and wait for it."""
    while True:
        _wait_until_idle(node)
        try:
            node.execute_command(command)
            break
        except redis.ResponseError as error:
            if "in progress" in str(error):  # started by another client before the last writes
                continue
            if isinstance(error, redis.exceptions.NoPermissionError) or "unknown" in str(error):
                raise OSError(
                    errno.ENOTSUP,
                    f"the Redis server does not allow {command}, so its data cannot be made "
                    "durable by this client; ?sync=server leaves durability to the server",
                ) from None
            raise
    _wait_until_idle(node)
    found = node.info("persistence").get(status)
    if found != "ok":
        raise OSError(
            errno.EIO,
            f"the Redis server could not write its data to its disk: {command} ended with {found}",
        )


def _wait_until_idle(node: Any) -> None:
    for _ in POLLING.attempts():
        info = node.info("persistence")
        if not any(int(info.get(name, 0)) for name in _BUSY):
            return


def _version(node: Any) -> tuple[int, ...]:
    numbers = str(node.info("server").get("redis_version", "0")).split(".")
    return tuple(int(number) for number in numbers[:2])
