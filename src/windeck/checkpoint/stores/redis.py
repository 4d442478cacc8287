"""Stores on a Redis server or cluster, through redis-py."""

from __future__ import annotations

import errno
import io
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple, NoReturn, TypeAlias, TypeVar

import redis
from redis.connection import PythonRespSerializer
from redis.exceptions import (
    AuthenticationWrongNumberOfArgsError,
    AuthorizationError,
    BusyLoadingError,
    ClusterError,
    NoPermissionError,
    OutOfMemoryError,
    RedisClusterException,
    RedisError,
)

from windeck._util.retry import COMMANDS, retry
from windeck._util.schemes import SCHEMES
from windeck.checkpoint.stores.protocol import (
    LARGEST_BATCH,
    Facts,
    Items,
    check_batch,
    check_compare_and_set,
    check_key,
    check_keys,
    is_empty_range,
    iter_ascending,
    key_range,
    portions_by_size,
)
from windeck.checkpoint.stores.redis_durability import make_durable
from windeck.checkpoint.stores.redis_settings import connection_settings, database_number
from windeck.checkpoint.stores.store_url import StoreURL

__all__ = ["RedisStore", "open_url"]

Command: TypeAlias = tuple[Any, ...]
T = TypeVar("T")

#: Bytes of one MSET of a bulk load into one server; a larger value has its own MSET.
COMMAND_BYTES = 256 << 10
#: Bytes of one pipeline of a bulk load into a cluster.
PIPELINE_BYTES = 16 << 20
#: Bytes of one MSET in such a pipeline.
SLOT_BYTES = 4 << 20
#: Bytes and commands that a bulk load sends to one server before it waits for a reply.
UNANSWERED_BYTES = 16 << 20
UNANSWERED = 256
#: Target for the bytes that one MGET of a scan reads.
READ_BYTES = 8 << 20
#: Bytes of one read from a socket. The default of 64 KiB needs many calls for a large value.
SOCKET_BYTES = 1 << 20
#: Larger parts of a command are sent without copying them into a packed command.
PACK_BYTES = 6000
#: Keys that one UNLINK removes.
UNLINK_KEYS = 1000

_LOGIN = (
    redis.AuthenticationError,
    AuthorizationError,
    NoPermissionError,
    AuthenticationWrongNumberOfArgsError,
)
#: redis-py raises ValueError for a reply that violates the protocol.
_ERRORS = (RedisError, RedisClusterException, ValueError)

# A script is atomic on the server. The first argument is the server's run id if there are writes
# that may be lost when it restarts; then a script does nothing after a restart.
_SAME_RUN = """
if ARGV[1] ~= '' then
    local server = redis.call('INFO', 'server')
    if not string.find(server, 'run_id:' .. ARGV[1], 1, true) then
        return -1
    end
end
"""
_UNLINK = f"""{_SAME_RUN}
for i = 1, #KEYS, 1000 do
    redis.call('UNLINK', unpack(KEYS, i, math.min(i + 999, #KEYS)))
end
return 1
"""
_COMPARE_AND_SET = f"""{_SAME_RUN}
local value = redis.call('GET', KEYS[1])
if ARGV[2] == '1' and value == ARGV[3] or ARGV[2] == '0' and not value then
    redis.call('SET', KEYS[1], ARGV[4])
    return 1
end
return 0
"""


class _Servers(NamedTuple):
    """The servers that accept writes."""

    #: An id of each by its name, which changes when it restarts.
    run_ids: dict[str, str]
    #: In a cluster, the slots of each, and those that are being moved.
    slots: list[tuple[str, str, str]]


class RedisStore:
    """A store on a Redis server or cluster. See `windeck.checkpoint.stores.protocol.Store`."""

    def __init__(self, url: StoreURL) -> None:
        self._url, self.url = url, str(url)
        self._trust_server = url.choice("sync", ("auto", "server"), "auto") == "server"
        self._allow_eviction = url.flag("allow_eviction")
        self._is_cluster = SCHEMES[url.scheme].is_cluster
        self._client: Any = None
        #: The servers at the first write since the last `sync`.
        self._written_to: _Servers | None = None
        #: In a cluster, names of the servers with writes that may not be durable.
        self._undurable: set[str] = set()
        try:
            self._connect()
        except BaseException:
            self.close()
            raise
        self.facts = Facts(
            backend="redis",
            atomic_batches=not self._is_cluster,
            snapshots=False,
            shared=True,
            shared_readers=True,
            ordered=False,
        )

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._execute("reading", ("GET", check_key(key)))[0]
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        return [value for _, value in self._values(check_keys(keys))]

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        first, end = key_range(prefix, start, stop)
        if is_empty_range((first, end)):
            return iter(())
        keys = self._scan_keys(prefix)
        return iter(sorted(k for k in keys if k >= first and (end is None or k < end)))

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for key, value in self._values(list(self.keys(prefix, start=start, stop=stop))):
            if value is not None:  # not removed since the keys were listed
                yield key, value

    def put_many(self, items: Items) -> None:
        self._check_open()
        pairs = check_batch(items)
        if pairs:
            self._note_write("writing", pairs)
            # One command is atomic on one server; a cluster needs one for each slot.
            self._execute("writing", *self._msets(list(pairs.items()), LARGEST_BATCH))

    def bulk_load(self, items: Items) -> int:
        self._note_write("writing")
        if not self._is_cluster:
            return self._stream(portions_by_size(iter_ascending(items), COMMAND_BYTES))
        count = 0
        for portion in portions_by_size(iter_ascending(items), PIPELINE_BYTES):
            self._execute("writing", *self._msets(portion, SLOT_BYTES))
            count += len(portion)
        return count

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = check_keys(keys)
        self._check_open()
        if gone and not self._is_cluster and (run_id := self._run_id_to_expect(gone[0])):
            (done,) = self._execute("deleting", ("EVAL", _UNLINK, len(gone), *gone, run_id))
            if done < 0:
                raise self._restarted()
            return
        step = UNLINK_KEYS if self._is_cluster else max(1, len(gone))
        for at in range(0, len(gone), step):
            slots = self._by_slot(gone[at : at + step])
            self._undurable.update(self._nodes() if self._is_cluster else ())
            self._execute("deleting", *(("UNLINK", *keys) for keys in slots))

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        gone = list(self.keys(prefix, start=start, stop=stop))
        for at in range(0, len(gone), UNLINK_KEYS):
            self.delete_many(gone[at : at + UNLINK_KEYS])

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        check_compare_and_set(key, expected, value)
        doing = "comparing and setting"
        self._note_write(doing, (key,))
        self._execute(doing, ("EXISTS", key))  # detects a dropped connection before EVAL is sent
        given = (b"0", b"") if expected is None else (b"1", expected)
        try:  # must not be sent twice
            done: int = self._client.execute_command(
                "EVAL", _COMPARE_AND_SET, 1, key, self._run_id_to_expect(key), *given, value
            )
        except (redis.ConnectionError, redis.TimeoutError) as error:
            translated = self._error(error, doing)
            raise type(translated)(
                f"{translated}; it is not known whether the value was set: read the key"
            ) from None
        except _ERRORS as error:
            raise self._error(error, doing) from None
        if done < 0:
            raise self._restarted()
        return done == 1

    def _run_id_to_expect(self, key: bytes) -> str:
        """Return the run id of the server of a key if it has writes without a `sync`."""
        return self._written_to.run_ids.get(self._name_of(key), "") if self._written_to else ""

    def order_writes(self, before: bytes | None = None) -> None:
        """Let no later write survive a crash without all writes so far.

        One server writes a log or a dump, which have that order. It must only not have restarted:
        then writes may be lost already. `compare_and_set` and `delete_many` check that, too. A
        cluster has a log for each server, so all servers but that of `before` are made durable.

        Parameters
        ----------
        before
            The key of the next write, a `compare_and_set`, if `sync` comes after it.
        """
        self._check_open()
        if self._undurable or not self._is_cluster:
            self._make_durable("ordering writes", spared=before, ordering=True)
        if self._is_cluster and not self._undurable:
            self._written_to = None

    def follow_writes(self) -> None:
        """Let a later `compare_and_set` fail if a single server restarts from now on."""
        if not self._is_cluster:
            self._note_write("following writes")

    def _restarted(self) -> ConnectionError:
        self._written_to, self._undurable = None, set()
        return ConnectionError(
            f"{self.url} was restarted after data was written, which may be lost: "
            "expected no restart between a write and the next sync; write the data again"
        )

    def sync(self) -> None:
        """Make all writes as durable as the server can, by its settings."""
        self._make_durable("making it durable")
        self._written_to, self._undurable = None, set()

    def _make_durable(
        self, doing: str, *, spared: bytes | None = None, ordering: bool = False
    ) -> None:
        """Do as `sync`, or as `order_writes`; raise an error if a server lost writes before."""
        self._check_open()
        nodes = self._nodes()
        for node in nodes.values():
            self._refuse_eviction(self._retry(doing, partial(node.info, "memory")))
        names = set(nodes)
        if self._is_cluster and (ordering or self._undurable) and not self._has_moved_slots(doing):
            names = self._undurable - ({self._name_of(spared)} if spared else set())
        if not self._trust_server and (self._is_cluster or not ordering):
            for name in sorted(names & nodes.keys()):
                self._retry(doing, partial(make_durable, nodes[name], self._key_of(name)))
        run_ids, before = self._retry(doing, self._run_ids), self._written_to
        written = self._undurable if self._is_cluster else set(nodes)
        if before is not None and any(before.run_ids.get(n) != run_ids.get(n) for n in written):
            raise self._restarted()
        self._undurable = written - names if self._is_cluster else set()

    def _has_moved_slots(self, doing: str) -> bool:
        """Return True if slots were moved since the first write, or are being moved."""
        slots = self._retry(doing, self._slots)
        before = slots if self._written_to is None else self._written_to.slots
        return slots != before or any(moving != "[]" for *_, moving in slots)

    def snapshot(self) -> NoReturn:
        self._check_open()
        raise io.UnsupportedOperation(
            f"{self.url}: Redis has no snapshots; read only keys that are never overwritten, such "
            "as those of a generation"
        )

    def close(self) -> None:
        client, self._client = self._client, None
        if client is not None:
            client.close()

    def __enter__(self) -> RedisStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- opening ---------------------------------------------------------------------------------

    def _connect(self) -> None:
        url = self._url
        settings, database = connection_settings(url), database_number(url)
        if not self._is_cluster:
            self._client = _client(settings)
            # Query database 0, since a cluster has no other.
            info = self._retry("opening", lambda: self._client.info("cluster"))
            self._is_cluster = bool(info.get("cluster_enabled", 0))
            if database or self._is_cluster:
                self.close()
        if self._is_cluster:
            if database:
                raise ValueError(f"a cluster has one database: expected /0 in {self.url}")
            if "unix_socket_path" in settings:
                raise ValueError(
                    f"{self.url} is the socket of one server of a cluster: expected "
                    "redis+cluster://host:port, which reaches all of them"
                )
            self._client = self._retry("opening", lambda: redis.RedisCluster(**settings))
        elif database:
            self._client = _client(settings, db=database)
        for node in self._nodes().values():
            server = self._retry("opening", partial(node.info, "server"))
            version = str(server.get("redis_version", "0"))
            if int(version.split(".")[0]) < 6:
                raise OSError(
                    errno.ENOTSUP, f"{self.url} is Redis {version}, expected 6.0 or later"
                )
            self._refuse_eviction(self._retry("opening", partial(node.info, "memory")))

    def _refuse_eviction(self, memory: dict[str, Any]) -> None:
        policy = str(memory.get("maxmemory_policy", "noeviction"))
        # volatile-* evicts only keys with a time to live, which no store sets.
        if policy.startswith("allkeys") and not self._allow_eviction:
            raise OSError(
                errno.ENOTSUP,
                f"{self.url} evicts keys when its memory is full (maxmemory-policy {policy}), "
                "expected noeviction; ?allow_eviction=1 allows it",
            )

    def _check_open(self) -> None:
        if self._client is None:
            raise ValueError(f"the store {self.url} is closed")

    # --- servers ---------------------------------------------------------------------------------

    def _nodes(self) -> dict[str, Any]:
        """Return a client for each server that accepts writes, by the server's name."""
        if not self._is_cluster:
            return {"": self._client}
        primaries = self._client.get_primaries()
        return {node.name: self._client.get_redis_connection(node) for node in primaries}

    def _name_of(self, key: bytes) -> str:
        """Return the name of the server of a key."""
        return str(self._client.get_node_from_key(key).name) if self._is_cluster else ""

    def _key_of(self, name: str) -> bytes:
        """Return a key that belongs to a server."""
        keys = (b"windeck.sync{%d}" % number for number in range(1_000_000))
        return next(key for key in keys if self._name_of(key) == name)

    def _run_ids(self) -> dict[str, str]:
        """Return an id of each server, which changes when it restarts."""
        nodes = self._nodes().items()
        return {name: str(node.info("server").get("run_id")) for name, node in nodes}

    def _slots(self) -> list[tuple[str, str, str]]:
        """Return in a cluster the id and the slots of each server, and those it is moving."""
        found = []
        for node in self._nodes().values() if self._is_cluster else ():
            known = node.cluster("NODES").values()  # of others, it does not know what they move
            found += [own for own in known if "myself" in own["flags"]]
        return sorted((n["node_id"], str(n["slots"]), str(n["migrations"])) for n in found)

    def _note_write(self, doing: str, keys: Iterable[bytes] | None = None) -> None:
        """Remember the servers before the first write after a `sync`.

        Parameters
        ----------
        keys
            The keys that are written; None: any.
        """
        self._check_open()
        if self._written_to is None:
            servers = self._retry(doing, lambda: _Servers(self._run_ids(), self._slots()))
            self._written_to = servers
        if self._is_cluster:
            self._undurable.update(
                self._written_to.run_ids if keys is None else map(self._name_of, keys)
            )

    def _layout(self) -> _Servers:
        """Return a value that changes when a server restarts or a slot moves."""
        found = _Servers(self._run_ids(), self._slots())
        if any(migrations != "[]" for *_, migrations in found.slots):
            raise ClusterError("keys are moving from one server to another")
        return found

    def _by_slot(self, keys: list[bytes]) -> list[list[bytes]]:
        """Group keys that one command may name: by slot in a cluster, all of them otherwise."""
        self._check_open()
        if not self._is_cluster:
            return [keys] if keys else []
        slots: dict[int, list[bytes]] = {}
        for key in keys:
            slots.setdefault(self._client.keyslot(key), []).append(key)
        return list(slots.values())

    # --- commands --------------------------------------------------------------------------------

    def _execute(self, doing: str, *commands: Command) -> list[Any]:
        """Send commands in one pipeline and return their replies.

        They are sent again after a dropped connection, so they must be reads, or writes whose
        result does not depend on stored values.
        """
        self._check_open()
        return self._retry(doing, lambda: self._pipelined(commands)) if commands else []

    def _pipelined(self, commands: tuple[Command, ...]) -> list[Any]:
        if len(commands) == 1:
            return [self._client.execute_command(*commands[0])]
        with self._client.pipeline(transaction=False) as pipe:
            for command in commands:
                pipe.execute_command(*command)
            replies: list[Any] = pipe.execute(raise_on_error=False)
        for reply in replies:
            if isinstance(reply, Exception):
                raise reply
        return replies

    def _retry(self, doing: str, call: Callable[[], T]) -> T:
        """Call a function, retry after connection errors, and translate other errors."""
        try:
            return retry(call, COMMANDS, _is_dropped)
        except _ERRORS as error:
            raise self._error(error, doing) from None

    def _error(self, error: Exception, doing: str) -> OSError:
        translated = _built_in_error(error, doing, self._url)
        if isinstance(translated, ConnectionError) and doing not in ("reading", "scanning"):
            self._written_to = None  # reported now: the next `sync` does not report it again
        return translated

    def _msets(self, pairs: list[tuple[bytes, bytes]], size: int) -> Iterator[Command]:
        """Yield commands of about `size` bytes that write pairs."""
        values = dict(pairs)
        for keys in self._by_slot(list(values)):
            for portion in portions_by_size(((key, values[key]) for key in keys), size):
                yield _mset(portion)

    def _stream(self, portions: Iterable[list[tuple[bytes, bytes]]]) -> int:
        """Write portions of pairs to one server without waiting for each reply; count the pairs.

        Nothing is sent twice: the items were consumed, and a server that was restarted may also
        have lost pairs that it had acknowledged.
        """
        pool = self._client.connection_pool
        connection = self._retry("writing", partial(_checked_connection, pool))
        count = unanswered = 0
        sizes: deque[int] = deque()
        try:
            for portion in portions:
                size = sum(len(key) + len(value) for key, value in portion)
                while sizes and (unanswered + size > UNANSWERED_BYTES or len(sizes) == UNANSWERED):
                    connection.read_response()
                    unanswered -= sizes.popleft()
                connection.send_command(*_mset(portion))
                sizes.append(size)
                unanswered += size
                count += len(portion)
            for _ in sizes:
                connection.read_response()
        except BaseException as error:
            connection.disconnect()  # replies may be outstanding
            if isinstance(error, RedisError):
                raise self._error(error, "writing") from None
            raise
        finally:
            pool.release(connection)
        return count

    def _values(self, keys: list[bytes]) -> Iterator[tuple[bytes, bytes | None]]:
        """Yield keys with their values, read in portions of about `READ_BYTES`."""
        at, count = 0, 64
        while at < len(keys):
            portion = keys[at : at + count]
            values: dict[bytes, bytes | None] = {}
            slots = self._by_slot(portion)
            replies = self._execute("reading", *(("MGET", *some) for some in slots))
            for some, reply in zip(slots, replies, strict=True):
                values.update(zip(some, reply, strict=True))
            yield from ((key, values[key]) for key in portion)
            held = sum(len(value) for value in values.values() if value)
            at += len(portion)
            count = max(16, min(8192, READ_BYTES * len(portion) // max(1, held)))

    def _scan_keys(self, prefix: bytes) -> set[bytes]:
        """Return all keys with a prefix.

        SCAN returns each key that is present during the whole scan, in any order, unless the server
        restarts or the key moves to another server meanwhile: then the scan is repeated.
        """
        self._check_open()
        letters = (prefix[at : at + 1] for at in range(len(prefix)))
        pattern = b"".join(b"\\" + c if c in b"*?[]\\^-" else c for c in letters) + b"*"
        for _ in range(3):
            before = self._retry("scanning", self._layout)
            keys: set[bytes] = set()
            for node in self._nodes().values():
                keys.update(self._retry("scanning", partial(_scan_node, node, pattern)))
            if self._retry("scanning", self._layout) == before:
                return keys
        raise ConnectionError(
            f"{self.url}: servers restarted or keys moved during a scan, three times in a row; "
            "expected a server or cluster without changes during a scan"
        )


def open_url(url: StoreURL) -> RedisStore:
    """Connect to a server, or to a cluster through one of its nodes."""
    return RedisStore(url)


def _mset(pairs: Iterable[tuple[bytes, bytes]]) -> Command:
    return ("MSET", *(part for pair in pairs for part in pair))


def _client(settings: dict[str, Any], **more: Any) -> Any:
    client = redis.Redis(**settings, **more)
    options = client.connection_pool.connection_kwargs
    options["socket_read_size"] = SOCKET_BYTES
    # With hiredis, redis-py would copy every value into a new command.
    options["command_packer"] = PythonRespSerializer(PACK_BYTES, client.get_encoder().encode)
    return client


def _checked_connection(pool: Any) -> Any:
    """Return a connection of the pool, after a PING on it."""
    connection = pool.get_connection()
    try:
        connection.send_command("PING")
        connection.read_response()
    except BaseException:
        connection.disconnect()
        pool.release(connection)
        raise
    return connection


def _scan_node(node: Any, pattern: bytes) -> set[bytes]:
    keys: set[bytes] = set()
    cursor = 0
    while True:
        cursor, found = node.scan(cursor, match=pattern, count=1000, _type="string")
        keys.update(found)
        if not int(cursor):
            return keys


# --- errors ---------------------------------------------------------------------------------------


def _is_dropped(error: Exception) -> bool:
    """Return True if a server has dropped the connection, or is starting."""
    refused = isinstance(error, (redis.AuthenticationError, AuthorizationError))
    return isinstance(error, redis.ConnectionError) and not refused


def _built_in_error(error: Exception, doing: str, url: StoreURL) -> OSError:
    """Return the built-in error for an error of redis-py, without the password."""
    text = " ".join(str(error).split()) or type(error).__name__
    if url.password:
        text = text.replace(url.password, "***")
    if len(text) > 300:
        text = text[:300] + "..."
    if isinstance(error, _LOGIN) or text.startswith(("NOAUTH", "WRONGPASS", "NOPERM")):
        return PermissionError(errno.EACCES, f"{url} denies access: {doing} failed: {text}")
    if isinstance(error, BusyLoadingError):
        return ConnectionError(f"{url} is loading its data after a start: try again later")
    if isinstance(error, redis.TimeoutError):
        return TimeoutError(f"{url} did not answer in time: {doing} failed: {text}")
    if isinstance(error, (ClusterError, RedisClusterException)):
        return ConnectionError(f"{url}: the cluster is incomplete: {doing} failed: {text}")
    if isinstance(error, redis.ConnectionError):
        return ConnectionError(f"{url} cannot be reached: {doing} failed: {text}")
    if isinstance(error, OutOfMemoryError) or text.startswith("OOM"):
        return OSError(errno.ENOMEM, f"{url} is out of memory: {doing} failed: {text}")
    if isinstance(error, redis.ReadOnlyError):
        return OSError(errno.EROFS, f"{url} is a read-only replica: {doing} failed: {text}")
    if text.startswith("MISCONF"):
        return OSError(errno.ENOSPC, f"{url} cannot write to its disk: {doing} failed: {text}")
    return OSError(errno.EIO, f"{url}: {doing} failed: {text}")
