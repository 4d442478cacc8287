"""The connection to Redis: how it is opened and checked, and how a command gets its answer."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any, TypeAlias, TypeVar

import redis
from redis.exceptions import AuthorizationError, RedisClusterException, RedisError

from windeck.checkpoint.stores.protocol import Wanted
from windeck.checkpoint.stores.redis_errors import from_redis
from windeck.checkpoint.stores.redis_receiving import receive
from windeck.checkpoint.stores.redis_sending import Pairs, send
from windeck.checkpoint.stores.redis_settings import database_of, settings_of
from windeck.checkpoint.stores.urls import StoreURL

__all__ = ["Command", "Link"]

Command: TypeAlias = tuple[Any, ...]
T = TypeVar("T")
#: Seconds to wait before asking again a server that dropped the connection or is starting.
PAUSES = (0.0, 0.1, 0.4)
#: Read at once from a server's socket: of the library's 64 KiB, a value of 256 KiB took many.
SOCKET_BYTES = 1 << 20


class Link:
    """One server, or a cluster; `run` sends commands and raises what their errors mean."""

    def __init__(self, url: StoreURL) -> None:
        self._url, self._where = url, str(url)
        self.is_cluster = url.scheme.endswith("+cluster")
        self._client: Any = None
        self._written_to: list[str] | None = None
        try:
            self._connect(url)
        except BaseException:
            self.close()
            raise

    def _connect(self, url: StoreURL) -> None:
        settings, database = settings_of(url), database_of(url)
        url.flag("allow_eviction")  # one that is none is an error, whatever the server says
        if not self.is_cluster:
            self._client = probe = redis.Redis(**settings)
            probe.connection_pool.connection_kwargs["socket_read_size"] = SOCKET_BYTES
            [info] = self.guard("opening", lambda: _told(probe, "cluster"))
            self.is_cluster = info.get("cluster_enabled", "0") != "0"
            if database or self.is_cluster:
                self.close()
        if not self.is_cluster and database:
            self._client = redis.Redis(**settings, db=database)
            self._client.connection_pool.connection_kwargs["socket_read_size"] = SOCKET_BYTES
        elif database:
            raise ValueError(f"a cluster has one database: expected /0 in {self._where}")
        elif self.is_cluster and "unix_socket_path" in settings:
            raise ValueError(
                f"{self._where} is one server of a cluster, and does not lead to the others: "
                "expected redis+cluster://host:port"
            )
        elif self.is_cluster:
            self._client = self.guard("opening", lambda: redis.RedisCluster(**settings))
        for node in self._nodes():
            server, memory = self.guard("opening", partial(_told, node, "server", "memory"))
            version = server.get("redis_version", "0")
            if int(version.split(".")[0]) < 6:
                raise OSError(
                    errno.ENOTSUP, f"{self._where} is Redis {version}, expected 6.0 or later"
                )
            self._refuse_eviction(memory)

    def check_keeps(self) -> None:
        """Refuse a server that would throw away what is stored, now and not only when opened."""
        self.check_open()
        if self._url.flag("allow_eviction"):
            return
        for node in self._nodes():
            [memory] = self.guard("making it durable", partial(_told, node, "memory"))
            self._refuse_eviction(memory)

    def _refuse_eviction(self, memory: dict[str, str]) -> None:
        policy = memory.get("maxmemory_policy", "noeviction")
        # volatile-* takes keys that have a time to live; ours have none.
        if policy.startswith("allkeys") and not self._url.flag("allow_eviction"):
            raise OSError(
                errno.ENOTSUP,
                f"{self._where} throws keys away when its memory is full (maxmemory-policy "
                f"{policy}), expected noeviction; ?allow_eviction=1 opens it all the same",
            )

    def note(self, doing: str) -> None:
        """Something is to be written: remember the servers, as they were started, for a `sync`."""
        self.check_open()
        if self._written_to is None:
            self._written_to = self.guard(doing, self._runs)

    def check_same(self) -> None:
        """Refuse servers started anew since something was written: they may have lost it."""
        before, self._written_to = self._written_to, None
        if before is not None and before != self.guard("making it durable", self._runs):
            raise ConnectionError(
                f"{self._where} was started anew after something was written, which may be lost: "
                "expected the same server until it was durable; write it again"
            )

    def _meant(self, error: Exception, doing: str) -> OSError:
        meant = from_redis(error, doing, self._url)
        if isinstance(meant, ConnectionError) and doing not in ("reading", "scanning"):
            self._written_to = None  # whoever writes has heard of it: what follows begins anew
        return meant

    def _runs(self) -> list[str]:
        return sorted(str(_told(node, "server")[0].get("run_id")) for node in self._nodes())

    def check_open(self) -> None:
        """ValueError once it is closed."""
        if self._client is None:
            raise ValueError(f"the store {self._where} is closed")

    def close(self) -> None:
        """Drop all connections; doing so twice is no error."""
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def run(self, doing: str, *commands: Command) -> list[Any]:
        """Send commands in one pipeline and return their replies; again if the server was away.

        What is sent this way may be sent twice: reads, and writes of a value whatever was there.
        """
        self.check_open()
        if not commands:
            return []
        return self.guard(doing, lambda: self._pipelined(doing, commands))

    def run_once(self, doing: str, command: Command) -> Any:
        """Send a command that must not be sent twice."""
        self.run(doing, ("EXISTS", command[3]))  # finds a dropped connection before it matters
        try:
            return self._client.execute_command(*command)
        except (redis.ConnectionError, redis.TimeoutError) as error:
            meaning = self._meant(error, doing)
            raise type(meaning)(
                f"{meaning}; whether it was done is not known: read the key"
            ) from None
        except (RedisError, RedisClusterException) as error:
            raise self._meant(error, doing) from None

    def send(self, doing: str, pairs: Pairs) -> int:
        """Write pairs to a server that is no cluster, as they come, and return how many they were.

        Nothing is sent twice once the first was sent: the pairs are gone by then, and a server that
        was started anew may have lost those it had answered.
        """
        self.check_open()
        with self._alone(doing) as connection:
            return send(connection, pairs)

    def receive(self, doing: str, wanted: Iterable[Wanted]) -> Iterator[int | None]:
        """Read values of a server that is no cluster to where they are wanted; see `receive`."""
        self.check_open()
        with self._alone(doing) as connection:
            yield from receive(connection, wanted)

    @contextmanager
    def _alone(self, doing: str) -> Iterator[Any]:
        """A connection that answers, for as long as is needed."""
        pool = self._client.connection_pool

        def answering() -> Any:
            connection = pool.get_connection()
            try:
                connection.send_command("PING")
                connection.read_response()
            except BaseException:
                connection.disconnect()
                pool.release(connection)
                raise
            return connection

        connection = self.guard(doing, answering)
        try:
            yield connection
        except BaseException as error:
            connection.disconnect()  # answers may be owed
            if isinstance(error, (RedisError, RedisClusterException)):
                raise self._meant(error, doing) from None
            raise
        finally:
            pool.release(connection)

    def guard(self, doing: str, call: Callable[[], T]) -> T:
        """Call, again if the server was away for a moment, and translate errors."""
        for pause in (*PAUSES, None):
            try:
                return call()
            except (RedisError, RedisClusterException) as error:  # noqa: PERF203
                if pause is None or not _is_away(error):
                    raise self._meant(error, doing) from None
                time.sleep(pause)
        raise AssertionError("unreachable")

    def by_slot(self, keys: list[bytes]) -> list[list[bytes]]:
        """Keys in groups that one command may name: a cluster's keys by slot, a server's all."""
        self.check_open()
        if not self.is_cluster:
            return [keys] if keys else []
        slots: dict[int, list[bytes]] = {}
        for key in keys:
            slots.setdefault(self._client.keyslot(key), []).append(key)
        return list(slots.values())

    def scan(self, prefix: bytes) -> set[bytes]:
        """All keys with a prefix. SCAN gives every key that is there all the time, in any order;
        unless the server restarts or keys move to another meanwhile, which is found out here."""
        self.check_open()
        pattern = b"".join(b"\\" + c if c in b"*?[]\\^-" else c for c in _characters(prefix)) + b"*"
        for _ in range(3):
            before = self.guard("scanning", self._layout)
            keys: set[bytes] = set()
            for node in self._nodes():
                keys.update(self.guard("scanning", partial(_scanned, node, pattern)))
            if self.guard("scanning", self._layout) == before:
                return keys
        raise ConnectionError(
            f"{self._where}: servers restarted or keys moved during a scan, three times in a row; "
            "expected a server or cluster at rest"
        )

    def nodes_with_keys(self) -> Iterator[tuple[Any, bytes]]:
        """Each server that takes writes, with a key that it would take."""
        if not self.is_cluster:
            yield self._client, b"windeck.sync"
            return
        for primary in self._client.get_primaries():
            keys = (b"windeck.sync{%d}" % number for number in range(1_000_000))
            own = (k for k in keys if self._client.get_node_from_key(k).name == primary.name)
            yield self._client.get_redis_connection(primary), next(own)

    def _nodes(self) -> list[Any]:
        if not self.is_cluster:
            return [self._client]
        primaries = self._client.get_primaries()
        return [self._client.get_redis_connection(node) for node in primaries]

    def _layout(self) -> object:
        """Differs when a server was started anew or a slot has moved."""
        runs = self._runs()
        if not self.is_cluster:
            return runs
        known = self._nodes()[0].cluster("NODES").values()
        if any(node["migrations"] for node in known):
            raise redis.exceptions.ClusterError("keys are moving from one server to another")
        return runs, sorted((node["node_id"], str(node["slots"])) for node in known)

    def _pipelined(self, doing: str, commands: tuple[Command, ...]) -> list[Any]:
        if len(commands) == 1:
            return [self._client.execute_command(*commands[0])]
        pipe = self._client.pipeline(transaction=False) if not self.is_cluster else None
        pipe = self._client.pipeline() if pipe is None else pipe
        with pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies


def _told(node: Any, *sections: str) -> list[dict[str, str]]:
    """What a server says of itself, all sections in one round trip. As redis-py's `info`, which
    makes numbers of every line there is."""
    pool = node.connection_pool
    connection = pool.get_connection()
    try:
        packed = connection.pack_commands([("INFO", section) for section in sections])
        connection.send_packed_command(packed)
        texts = [connection.read_response() for _ in sections]
    except BaseException:
        connection.disconnect()  # answers may be owed
        raise
    finally:
        pool.release(connection)
    lines = [str(bytes(text), "utf-8", "replace").splitlines() for text in texts]
    return [dict(line.split(":", 1) for line in some if ":" in line) for some in lines]


def _is_away(error: Exception) -> bool:
    refused = (redis.AuthenticationError, AuthorizationError)
    return isinstance(error, redis.ConnectionError) and not isinstance(error, refused)


def _characters(text: bytes) -> Iterator[bytes]:
    return (text[at : at + 1] for at in range(len(text)))


def _scanned(node: Any, pattern: bytes) -> set[bytes]:
    keys: set[bytes] = set()
    cursor = 0
    while True:
        cursor, found = node.scan(cursor, match=pattern, count=1000, _type="string")
        keys.update(found)
        if not int(cursor):
            return keys
