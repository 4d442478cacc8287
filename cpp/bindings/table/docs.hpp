// What Python shows for help on embedding tables.

#pragma once

namespace windeck::docs {

inline constexpr const char* table =
    R"(EmbeddingCore(dim, *, slots=0, initializer="normal", scale=0.01, slot_value=0.0, seed=0,
admit_after=1, first_bucket=0, end_bucket=1024)

Rows of float32 for any 64-bit ids, trained in place.

Parameters
----------
dim : int
    Floats of an embedding, 1 to 2**20.
slots : int
    Vectors of `dim` behind each embedding for the optimizer, 0 to 8: Adagrad needs 1, Adam 2.
initializer : str
    "normal" (standard deviation `scale`), "uniform" in [-scale, scale], or "zeros". An id's initial
    value depends on (seed, id) alone, the same on every platform, stored or not.
scale : float
    How large initial values are.
slot_value : float
    What slots begin with.
seed : int
    0 to 2**64 - 1.
admit_after : int
    An id gets a row when it has been looked up so many times.
first_bucket, end_bucket : int
    The table holds the ids with first_bucket <= bucket_of(id) < end_bucket, and refuses others.

Raises
------
TypeError, ValueError
    An argument of a wrong type or out of its range.

Notes
-----
Every int64 is an id. Thread-safe: each call is one atomic step, and lets other Python threads run.
Results never depend on `threads`. Memory is 4 * (1 + slots) * dim + 32 bytes a row and up to 43 an
id.

Examples
--------
>>> import numpy as np
>>> from windeck._core import EmbeddingCore
>>> core = EmbeddingCore(2, initializer="zeros")
>>> ids = np.array([7, -1, 7])
>>> core.lookup(ids, insert=True).shape, len(core)
((3, 2), 2)
>>> core.apply(ids, np.ones((3, 2), np.float32), kind="sgd", lr=0.5)
2
>>> core.lookup(ids, insert=False).tolist()
[[-1.0, -1.0], [-0.5, -0.5], [-1.0, -1.0]]
)";

inline constexpr const char* lookup = R"(The embedding of each id.

Parameters
----------
ids : int64[n]
    Any ids of this table's buckets, repeated ones too.
out : float32[n, dim], optional
    Written to and returned; by default a new array, a large one in memory of the pool, which goes
    back to it when the last array on it is gone.
insert : bool
    True counts each occurrence (frequency + 1, seen = clock + 1) and makes rows for ids that have
    been looked up `admit_after` times. False changes nothing.
threads : int, optional
    How many threads work at it; None for default_threads().

Returns
-------
float32[n, dim]
    Rows; for ids without one, their initial value.

Raises
------
ValueError
    An id of another bucket; an `out` of wrong shape, not contiguous, read-only or overlapping ids.
TypeError
    Another dtype than int64, or than float32 in `out`.
)";

inline constexpr const char* apply = R"(One step of an optimizer on the rows of `ids`.

The clock goes up by one. Gradients of the same id are summed in order of occurrence, in float32,
then its row is changed once and its version is the clock. Ids without a row are left out.

Parameters
----------
ids : int64[n]
grads : float32[n, dim]
    Copied where it is strided.
kind : str
    "sgd": w -= lr g. "adagrad": s += g^2, w -= lr g / (sqrt(s) + eps). "adam": with bias correction
    by the table's clock; lazy, that is rows without a gradient stay as they are, moments included.
lr, eps, weight_decay : float
    0 or more. weight_decay * w is added to g.
beta1, beta2 : float
    From 0 to below 1; for Adam.
threads : int, optional
    How many threads work at it; None for default_threads().

Returns
-------
int
    The number of rows changed.

Raises
------
ValueError
    An id of another bucket, a wrong shape, an option out of its range, too few slots. Nothing has
    changed then.
TypeError
    A wrong dtype.
)";

inline constexpr const char* evict = R"(Removes the ids for which all conditions given hold.

Parameters
----------
seen_before : int, optional
    `seen`, the clock of the step an id was last looked up for, is below this.
l2_below : float, optional
    The Euclidean norm of the embedding is below this. Ids without a row have none and stay.
frequency_below : int, optional
    It was looked up fewer times than this.

Returns
-------
int64[k]
    The ids removed, with a row or without, sorted by (bucket, id). They are remembered as dead.

Raises
------
ValueError
    No condition, or one that is not a finite number.

Notes
-----
O(ids), in one atomic step. For either of two conditions, call it twice.
)";

inline constexpr const char* remove = R"(remove(ids: int64[n]) -> int

Removes ids, with a row or without, and remembers them as dead. Those that are not there are left
out; returns how many were. ValueError for an id of another bucket.
)";

inline constexpr const char* facts = R"(What is known of ids: a dict of arrays, one entry each.

"versions", "frequencies" and "seen", int64[n], are 0 where nothing is known; "admitted", bool[n],
says whether an id has a row. ValueError for an id of another bucket.
)";

inline constexpr const char* row_values = R"(row_values(ids: int64[n], *, threads=1)

Whole rows, float32[n, (1 + slots) * dim]: the embedding, then the slots. For ids without a row,
what a new row would hold. ValueError for an id of another bucket.
)";

inline constexpr const char* insert = R"(Puts whole rows in, as `EmbeddingSnapshot.read` gives them.

Parameters
----------
keys, versions, frequencies, seen : int64[k]
    Numbers are from 0 to 2**62.
admitted : bool[k]
    Whether an id has a row.
values : float32[admitted.sum(), (1 + slots) * dim]
    The rows of those that have, in order.

Raises
------
ValueError
    An id that is there already or is given twice, of another bucket, or with a number out of its
    range; arrays of wrong shapes. Nothing has changed then.
TypeError
    A wrong dtype.
)";

inline constexpr const char* snapshot = R"(An embedding table at one moment, made by
`EmbeddingCore.snapshot`.

It never changes, whatever becomes of the table, and may be read from many threads. A context
manager; after `close` every call is a ValueError.
)";

inline constexpr const char* take = R"(The table as it is now: an EmbeddingSnapshot.

O(bytes / 256 KiB). Training goes on while it is read: each slab of about 256 KiB that is changed is
copied once, as long as the snapshot is open.

Examples
--------
>>> import numpy as np
>>> from windeck._core import EmbeddingCore
>>> core = EmbeddingCore(2, initializer="zeros")
>>> _ = core.lookup(np.array([5, 6]), insert=True)
>>> with core.snapshot() as snapshot:
...     _ = core.lookup(np.array([7]), insert=True)
...     rows = snapshot.read(0, 1024)
>>> sorted(rows["keys"].tolist()), rows["values"].shape
([5, 6], (2, 2))
)";

inline constexpr const char* counts = R"(counts(since=-1) -> int64[1024]

How many ids of each bucket have a version or seen above `since`; by default, all. O(ids).
)";

inline constexpr const char* read = R"(The ids of a range of buckets that changed after a clock.

Parameters
----------
first_bucket, end_bucket : int
    0 <= first_bucket <= end_bucket <= 1024.
since : int
    Only ids whose version or seen is above it; by default, all.

Returns
-------
dict of ndarray
    Sorted by (bucket, id): "keys", "versions", "frequencies", "seen", int64[k]; "admitted",
    bool[k]; "values", float32[admitted.sum(), (1 + slots) * dim], the embedding and then the slots
    of those that have a row.

Raises
------
ValueError
    A bucket out of range; a snapshot that is closed.

Notes
-----
Ranges read one after the other share passes over the table: one for about a million ids, which are
kept (16 MiB) until another range is asked for.
)";

inline constexpr const char* blocks = R"(The same ids as blocks, which is how a store keeps them.

Parameters
----------
first_bucket, end_bucket, since : int
    As in `read`.
dim, slots : int
    Of the table.
most : int
    Bytes that entries of a block may have, 33 each and 4 for each float of a row. A block ends
    where the next bucket would not fit; a bucket that does not fit is cut.
borders : sequence of int
    Buckets before which a block ends in any case.

Returns
-------
list of (memoryview, int, int, int, int, int, int, int)
    Of each block the bytes, as `docs/tables.md` tells, which nobody may change, and their CRC32C;
    how many entries, rows and dead it has; the id and the bucket of its first entry, and the bucket
    of its last.

Raises
------
TypeError, ValueError
    An argument of a wrong type or out of its range; a snapshot that is closed.

Notes
-----
Other Python threads run meanwhile. The memory is used again when the last of the blocks is gone.
)";

inline constexpr const char* pack_blocks = R"(Entries that are in order as blocks.

Parameters
----------
keys, versions, frequencies, seen : int64[k]
states : uint8[k]
    0 where an id is counted only, 1 where it has a row, 2 where it is dead.
values : float32[rows, (1 + slots) * dim]
    Of those that have a row, in order.
dim, slots, most, borders
    As in `EmbeddingSnapshot.blocks`.

Returns
-------
list of (memoryview, int, int, int, int, int, int, int)
    As `EmbeddingSnapshot.blocks` gives them.

Raises
------
TypeError, ValueError
    Columns of different lengths, of a wrong dtype or shape; an argument out of its range.

Examples
--------
>>> import numpy as np
>>> from windeck._core import bucket_of, pack_blocks
>>> none, states = np.zeros(2, np.int64), np.array([1, 0], np.uint8)
>>> [block] = pack_blocks(
...     np.array([0, 1]), none, none, none, states, np.ones((1, 2), np.float32),
...     dim=2, slots=0, most=1000, borders=[],
... )
>>> len(block[0]), block[2:]
(104, (2, 1, 0, 0, 0, 346))
)";

inline constexpr const char* dead = R"(dead(since=-1) -> (keys, clocks), int64[k] each

Ids that were removed and are not back, with the clock of the step before which they were (the
table's clock + 1), where that is above `since`; sorted by (bucket, id).
)";

inline constexpr const char* bucket_of = R"(bucket_of(ids: int64[n]) -> int64[n]

The bucket of each id, 0 to 1023: the upper ten bits of a published hash.

Examples
--------
>>> from windeck._core import bucket_of
>>> bucket_of([0, 1, -1]).tolist()
[0, 346, 723]
)";

}  // namespace windeck::docs
