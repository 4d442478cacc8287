"""Export of a table as one key for each id, to be served without windeck, and its import.

===============================  ================================================================
``namespace/r/name/<id>``        the id in decimals; float32, little-endian, nothing else
``namespace/r/name``             JSON: ``format``, ``dim``, ``dtype``, ``slots``, ``rows``,
                                 ``clock``, ``with_slots``
===============================  ================================================================
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from typing import Any

import numpy as np

from windeck._core import bucket_of
from windeck._util.options import explain_options
from windeck._util.validation import check_format
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.manifests import encode_json
from windeck.checkpoint.format.table_blocks import ROW, TableShape
from windeck.checkpoint.format.table_entries import BUCKETS
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.stores.urls import opened
from windeck.checkpoint.tables.entries import Entries, Int64s, concatenate, convert_values
from windeck.checkpoint.tables.loading import check_empty
from windeck.checkpoint.tables.reading import SavedTable
from windeck.checkpoint.tables.writing import check_table, forget_saves, iter_entries, table_shape

__all__ = ["export", "import_rows"]

#: Format of an export, in its JSON.
_FORMAT = 1
#: Bytes of rows that are sorted and written at once.
_WRITE_BYTES = 16 << 20
#: Keys that are read or removed at once.
_KEYS = 8192


@explain_options
def export(
    store: Store | str,
    table: Any,
    name: str,
    *,
    layout: str = "rows",
    slots: bool = False,
    namespace: str = "windeck",
) -> int:
    """Export a table for serving: one key for each id that has a row.

    Parameters
    ----------
    store
        An open store, or the URL of one.
    table
        A table in memory, exported as it is when this is called, so that training may go on; or a
        saved one, from `Checkpoint.table`.
    name
        Its name in the keys: letters, digits, ``-``, ``_`` and ``.``.
    layout
        ``"rows"``. `windeck.checkpoint.save` writes a table as blocks.
    slots
        Write the optimizer's slots after each embedding.
    namespace
        Prefix of all keys.

    Returns
    -------
    int
        Number of rows written. Rows of ids that the table no longer has are removed.

    Raises
    ------
    TypeError, ValueError
        For a value that is not a table, an invalid name, another layout.
    OSError
        See `windeck.checkpoint.stores.protocol`.

    Notes
    -----
    O(rows) time; 8 bytes of memory for each row and some 30 MiB. Rows are replaced one after the
    other, so a reader may see old and new rows meanwhile. They have no checksums.

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> from windeck import checkpoint
    >>> table = wd.EmbeddingTable(2, optimizer="sgd", lr=0.1, initializer="zeros")
    >>> found = table.core.lookup(np.array([5, -7]), insert=True)
    >>> store = checkpoint.stores.open_store("memory://")
    >>> checkpoint.export(store, table, "user", layout="rows")
    2
    >>> np.frombuffer(store.get(b"windeck/r/user/-7"), "<f4")
    array([0., 0.], dtype=float32)
    """
    if layout != "rows":
        raise ValueError(f"`layout` must be 'rows', got {layout!r}; save() writes blocks")
    prefix = _prefix(namespace, name)
    shape, clock, batches, close = _open_table(table, name)
    stored = replace(shape, dtype="float32")
    try:
        with opened(store) as place:
            ids, written = [], slice(shape.width) if slots else shape.columns_of(0)
            for rows in _sorted_batches(batches):
                ids.append(rows.keys)
                values = convert_values(rows.values, stored)[:, written]
                place.bulk_load(_pairs(prefix, rows.keys, values))
            known = np.sort(np.concatenate(ids)) if ids else np.empty(0, np.int64)
            _remove_others(place, prefix, known)
            header = {
                "format": _FORMAT,
                "dim": shape.dim,
                "dtype": shape.dtype,
                "slots": shape.slots,
                "rows": len(known),
                "clock": clock,
                "with_slots": bool(slots),
            }
            place.put_many([(prefix[:-1], encode_json(header))])
            place.sync()
            return len(known)
    finally:
        close()


@explain_options
def import_rows(
    store: Store | str, table: Any, name: str, *, cast: bool = False, namespace: str = "windeck"
) -> int:
    """Import the rows that `export` wrote into an empty table, for the ids that it owns.

    Slots that were not exported get the optimizer's initial values. Versions are the clock of the
    export, and each id counts as seen once.

    Parameters
    ----------
    cast
        Convert between float32 and bfloat16 instead of raising an error if the table that was
        exported had another dtype.

    Returns
    -------
    int
        Number of rows inserted.

    Raises
    ------
    FileNotFoundError
        If there is no such export.
    TypeError
        For a table of another dtype, without `cast`.
    ValueError
        For a table of another dim or with other slots, or one that has ids.
    CorruptStoreError
        For a key or a value that is not from an export, or missing rows. The table has no ids then.

    Notes
    -----
    O(rows) time; some MiB of memory besides the table.

    Examples
    --------
    >>> import numpy as np
    >>> import windeck as wd
    >>> from windeck import checkpoint
    >>> one, two = (wd.EmbeddingTable(2, optimizer="sgd", lr=0.1) for _ in range(2))
    >>> found = one.core.lookup(np.array([5, -7]), insert=True)
    >>> store = checkpoint.stores.open_store("memory://")
    >>> checkpoint.export(store, one, "user"), checkpoint.import_rows(store, two, "user")
    (2, 2)
    """
    core, prefix = check_table(name, table), _prefix(namespace, name)
    check_empty(name, core)
    with opened(store, reading=True) as place:
        header = _read_header(place, prefix)
        found, wanted = (core.dim, core.slots), (header["dim"], header["slots"])
        if found[0] != wanted[0] or (header["with_slots"] and found != wanted):
            raise ValueError(
                f"the table {name} has dim {found[0]} and {found[1]} slots, expected {wanted[0]} "
                f"and {wanted[1]} as exported"
            )
        dtype = header["dtype"]
        if dtype != table_shape(core).dtype and not cast:
            raise TypeError(
                f"the table {name} has dtype {table_shape(core).dtype}, expected {dtype} as "
                "exported; cast=True casts"
            )
        forget_saves(core)
        try:
            count = seen = 0
            pairs = place.scan(prefix)
            while portion := list(islice(pairs, _KEYS)):
                seen += len(portion)
                count += _insert(core, table, prefix, portion, header)
            if seen != header["rows"]:
                raise CorruptStoreError(
                    f"{prefix.decode()} has {seen:,} rows, expected {header['rows']:,} as exported"
                )
            core.set_clock(header["clock"])
        except BaseException:
            core.clear()
            raise
        return count


def _prefix(namespace: str, name: str) -> bytes:
    keys.check_namespace(namespace)
    if not isinstance(name, str) or not re.fullmatch(r"[A-Za-z0-9_.\-]{1,200}", name):
        raise ValueError(f"`name` must have letters, digits, -, _ and . only, got {name!r}")
    return f"{namespace}/r/{name}/".encode()


def _open_table(table: Any, name: str) -> tuple[TableShape, int, Iterable[Entries], Any]:
    """Return shape, clock and entries in order, and a function to call after reading."""
    if isinstance(table, SavedTable):
        shape = TableShape(table.info.dim, table.info.slots, table.info.dtype)
        return shape, table.info.clock, table.entries(), lambda: None
    core = check_table(name, table)
    shape, snapshot = table_shape(core), core.snapshot()
    batches = iter_entries(snapshot, (0, BUCKETS), -1, shape)
    return shape, int(snapshot.clock), batches, snapshot.close


def _sorted_batches(batches: Iterable[Entries]) -> Iterator[Entries]:
    """Yield the entries with rows in batches, each sorted as its keys in the store are."""
    held: list[Entries] = []
    size = 0
    for batch in batches:
        rows = batch.take(np.flatnonzero(batch.states == ROW))
        held.append(rows)
        size += rows.values.nbytes
        if size >= _WRITE_BYTES:
            yield _sort_by_key(held)
            held, size = [], 0
    if size:
        yield _sort_by_key(held)


def _sort_by_key(batches: list[Entries]) -> Entries:
    rows = concatenate(batches)
    return rows.take(np.argsort(rows.keys.astype("S20"), kind="stable"))


def _pairs(prefix: bytes, ids: Int64s, values: Any) -> Iterator[tuple[bytes, bytes]]:
    for key, row in zip(ids.tolist(), values, strict=True):
        yield prefix + b"%d" % key, row.tobytes()


def _remove_others(place: Store, prefix: bytes, known: Int64s) -> None:
    """Remove the rows of ids that are not in `known`, which is sorted."""
    found = place.keys(prefix)
    while portion := list(islice(found, _KEYS)):
        ids = _parse_ids(prefix, portion)
        at = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
        there = known[at] == ids if len(known) else np.zeros(len(ids), bool)
        place.delete_many(key for key, kept in zip(portion, there, strict=True) if not kept)


def _parse_ids(prefix: bytes, found: Iterable[bytes]) -> Int64s:
    ids = []
    for key in found:
        text = key[len(prefix) :]
        number = int(text) if re.fullmatch(rb"0|-?[1-9][0-9]{0,18}", text) else 1 << 63
        if not -(1 << 63) <= number < 1 << 63:
            raise CorruptStoreError(f"{key!r} is not the key of an id, expected a key of an export")
        ids.append(number)
    return np.array(ids, np.int64)


def _read_header(place: Store, prefix: bytes) -> dict[str, Any]:
    value = place.get(prefix[:-1])
    if value is None:
        raise FileNotFoundError(f"there is no export {prefix[:-1].decode()}, expected that key")
    what = prefix[:-1].decode()
    try:
        header: dict[str, Any] = dict(json.loads(value))
        number = header["format"]
        if number == _FORMAT:
            _check_header(header)
    except (KeyError, RecursionError, TypeError, ValueError) as error:
        raise CorruptStoreError(f"{what} cannot be read as an export: {error}") from error
    check_format(what, number, _FORMAT)
    return header


def _check_header(header: Mapping[str, Any]) -> None:
    numbers = [header[key] for key in ("dim", "slots", "rows", "clock")]
    if any(type(n) is not int or not 0 <= n < 1 << 62 for n in numbers):
        raise ValueError(f"expected numbers, found {numbers}")
    if type(header["with_slots"]) is not bool:
        raise ValueError("expected true or false in with_slots")
    if header["dtype"] not in ("float32", "bfloat16"):
        raise ValueError(f"expected float32 or bfloat16, found {str(header['dtype'])[:80]!r}")


def _insert(
    core: Any, table: Any, prefix: bytes, portion: list[tuple[bytes, bytes]], header: dict[str, Any]
) -> int:
    """Insert the rows of the ids that a table owns; return their number."""
    shape = TableShape(core.dim, core.slots)
    columns = slice(shape.width) if header["with_slots"] else shape.columns_of(0)
    given = columns.stop
    for key, value in portion:
        if len(value) != 4 * given:
            raise CorruptStoreError(
                f"{key.decode(errors='replace')} has {len(value)} bytes, expected {4 * given}"
            )
    ids = _parse_ids(prefix, (key for key, _ in portion))
    values = np.full((len(ids), shape.width), _slot_value(core, table), np.float32)
    rows = np.frombuffer(b"".join(value for _, value in portion), "<f4")
    values[:, columns] = rows.reshape(len(ids), given)
    buckets = bucket_of(ids)
    own = (buckets >= core.first_bucket) & (buckets < core.end_bucket)
    count = int(own.sum())
    clocks, ones = np.full(count, header["clock"], np.int64), np.ones(count, np.int64)
    rows = convert_values(values[own], table_shape(core))
    core.insert(ids[own], clocks, ones, clocks, np.ones(count, bool), rows)
    return count


def _slot_value(core: Any, table: Any) -> float:
    found = getattr(core, "slot_value", None)
    return float(table.config.get("slot_value", 0.0) if found is None else found)
