"""Redis, one server or a cluster: every rank opens it itself."""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import NoReturn

from windeck.checkpoint.stores import checks
from windeck.checkpoint.stores.protocol import Facts, Items, Wanted
from windeck.checkpoint.stores.redis_durable import make_durable
from windeck.checkpoint.stores.redis_link import Command, Link
from windeck.checkpoint.stores.urls import StoreURL

__all__ = ["RedisStore", "open_url"]

#: Bytes of one MSET of a bulk load, of a pipeline of them, and about those of one MGET of a scan.
COMMAND_BYTES = 4 << 20
PIPELINE_BYTES = 16 << 20
READ_BYTES = 8 << 20
#: Keys removed at once.
UNLINK_KEYS = 1000

# In one step on the server: a script runs alone.
_COMPARE_AND_SET = """
local value = redis.call('GET', KEYS[1])
if ARGV[1] == '1' and value == ARGV[2] or ARGV[1] == '0' and not value then
    redis.call('SET', KEYS[1], ARGV[3])
    return 1
end
return 0
"""


class RedisStore:
    """Redis; made by `open_store`. See `windeck.checkpoint.stores.protocol.Store`."""

    def __init__(self, url: StoreURL, link: Link) -> None:
        self._trust = url.choice("sync", ("auto", "server"), "auto") == "server"
        self._link = link
        self.url = str(url)
        self.facts = Facts(
            backend="redis",
            atomic_batches=not self._link.is_cluster,
            snapshots=False,
            shared=True,
            shared_readers=True,
            ordered=False,
        )

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    def get(self, key: bytes) -> bytes | None:
        found: bytes | None = self._link.run("reading", ("GET", checks.check_key(key)))[0]
        return found

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        wanted = checks.check_keys(keys)
        found: list[bytes | None] = []
        for group in self._fetched(wanted):
            found += [value for _, value in group]
        return found

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        first, end = checks.bounds(prefix, start, stop)
        if checks.is_empty((first, end)):
            return iter(())
        keys = self._link.scan(prefix)
        return iter(sorted(k for k in keys if k >= first and (end is None or k < end)))

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        for group in self._fetched(list(self.keys(prefix, start=start, stop=stop))):
            for key, value in group:
                if value is not None:  # removed since the keys were listed
                    yield key, value

    def put_many(self, items: Items) -> None:
        self._link.check_open()
        pairs = checks.batch(items)
        if pairs:
            self._link.note("writing")
            # One command, so that one server shows all or nothing; on a cluster one for a slot.
            self._link.run("writing", *self._msets(list(pairs.items()), None))

    def bulk_load(self, items: Items) -> int:
        self._link.note("writing")
        if not self._link.is_cluster:
            return self._link.send("writing", checks.in_pieces(items))
        count = 0
        for group in checks.groups(checks.ascending(items), PIPELINE_BYTES):
            self._link.run("writing", *self._msets(group, COMMAND_BYTES))
            count += len(group)
        return count

    def delete_many(self, keys: Iterable[bytes]) -> None:
        gone = checks.check_keys(keys)
        self._link.check_open()
        step = UNLINK_KEYS if self._link.is_cluster else max(1, len(gone))
        for at in range(0, len(gone), step):
            slots = self._link.by_slot(gone[at : at + step])
            self._link.run("deleting", *(("UNLINK", *keys) for keys in slots))

    def delete_range(
        self, prefix: bytes, *, start: bytes | None = None, stop: bytes | None = None
    ) -> None:
        gone = list(self.keys(prefix, start=start, stop=stop))
        for at in range(0, len(gone), UNLINK_KEYS):
            self.delete_many(gone[at : at + UNLINK_KEYS])

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        checks.check_value(checks.check_key(key), value)
        if expected is not None:
            checks.check_value(key, expected)
        self._link.note("comparing and setting")
        given = (b"0", b"") if expected is None else (b"1", expected)
        done: int = self._link.run_once(
            "comparing and setting", ("EVAL", _COMPARE_AND_SET, 1, key, *given, value)
        )
        return done == 1

    def sync(self) -> None:
        """As durable as the server can make it; see docs/stores.md for what it does when."""
        self._link.check_keeps()
        if not self._trust:
            for node, key in self._link.nodes_with_keys():
                self._link.guard("making it durable", partial(make_durable, node, key))
        self._link.check_same()

    def snapshot(self) -> NoReturn:
        self._link.check_open()
        raise io.UnsupportedOperation(
            f"{self.url}: Redis has no snapshots; read keys that nobody overwrites, as those of a "
            "checkpoint's generation"
        )

    def close(self) -> None:
        self._link.close()

    def __enter__(self) -> RedisStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _msets(self, pairs: list[tuple[bytes, bytes]], size: int | None) -> Iterator[Command]:
        """Commands that write pairs; with a `size`, of about so many bytes each."""
        values = dict(pairs)
        for keys in self._link.by_slot(list(values)):
            inside = [(key, values[key]) for key in keys]
            for group in checks.groups(inside, size) if size else [inside]:
                yield ("MSET", *(part for pair in group for part in pair))

    def _fetched(self, keys: list[bytes]) -> Iterator[list[tuple[bytes, bytes | None]]]:
        """Keys with their values, in groups of about as many bytes as may be held at once."""
        at, count = 0, 64
        while at < len(keys):
            group = keys[at : at + count]
            values: dict[bytes, bytes | None] = {}
            slots = self._link.by_slot(group)
            replies = self._link.run("reading", *(("MGET", *some) for some in slots))
            for some, reply in zip(slots, replies, strict=True):
                values.update(zip(some, reply, strict=True))
            yield [(key, values[key]) for key in group]
            held = sum(len(value) for value in values.values() if value)
            at += len(group)
            count = max(16, min(8192, READ_BYTES * len(group) // max(1, held)))


class PlainRedisStore(RedisStore):
    """One server without TLS, whose answers can be read straight to where they are wanted."""

    def get_each_into(self, wanted: Iterable[Wanted]) -> Iterator[int | None]:
        checked = ((checks.check_key(key), head, body) for key, head, body in wanted)
        return self._link.receive("reading", checked)


def open_url(url: StoreURL) -> RedisStore:
    """Connect to a server, or to a cluster through one of its nodes."""
    link = Link(url)
    plain = not link.is_cluster and url.scheme in ("redis", "redis+unix")
    return (PlainRedisStore if plain else RedisStore)(url, link)
