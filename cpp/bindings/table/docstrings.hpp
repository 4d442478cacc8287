// The docstrings of embedding tables.

#pragma once

namespace windeck::docs {

inline constexpr const char* table =
    R"(EmbeddingCore(dim, *, slots=0, initializer="normal", scale=0.01, slot_value=0.0, seed=0,
admit_after=1, first_bucket=0, end_bucket=1024, dtype="float32")

A hash table from 64-bit ids to rows of float32 or bfloat16, trained in place.

Parameters
----------
dim : int
    The number of numbers of an embedding, 1 to 2**20.
slots : int
    The number of vectors of `dim` numbers after each embedding for the state of the optimizer, 0 to
    8: Adagrad needs 1, Adam 2.
initializer : str
    "normal" (standard deviation `scale`), "uniform" in [-scale, scale], or "zeros". The initial
    value of an id depends only on (seed, id), and is the same on every platform.
scale : float
    The scale of initial values.
slot_value : float
    The initial value of slots.
seed : int
    0 to 2**64 - 1.
admit_after : int
    The number of lookups after which an id gets a row.
first_bucket, end_bucket : int
    The table holds the ids with first_bucket <= bucket_of(id) < end_bucket; other ids are an error.
dtype : str
    "float32" or "bfloat16", of rows and slots. Arrays of bfloat16 rows are uint16, their bits:
    float32[...] below is then uint16[...], except for gradients. An update computes in float32 and
    rounds its results, to nearest, ties to even.

Raises
------
TypeError, ValueError
    An argument of a wrong type or outside its range.

Notes
-----
Every int64 is an id. Thread-safe: each call is atomic and releases the GIL. Results do not
depend on `threads`. Memory is (1 + slots) * dim numbers + 32 bytes per row and up to 43 bytes per id.

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

inline constexpr const char* lookup = R"(Return the embedding of each id.

Parameters
----------
ids : int64[n]
    Ids in the buckets of this table; repeats are allowed.
out : float32[n, dim], optional
    Written to and returned. By default a new array, if large in memory of the pool, which is reused
    after the array is deleted.
insert : bool
    True counts each occurrence (frequency + 1, seen = clock + 1) and adds rows for ids that were
    looked up `admit_after` times. False changes nothing.
threads : int, optional
    The number of threads; None for default_threads().

Returns
-------
float32[n, dim]
    The embeddings; for ids without a row, their initial values.

Raises
------
ValueError
    An id in a bucket outside the table; an `out` with another shape, not contiguous, read-only or
    overlapping `ids`.
TypeError
    A dtype other than int64, or other than float32 in `out`.
)";

inline constexpr const char* apply = R"(Apply one step of an optimizer to the rows of `ids`.

The clock increases by one. Gradients of the same id are summed in float32 in order of occurrence,
then its row is updated once, and its version is set to the clock. Ids without a row are ignored.

Parameters
----------
ids : int64[n]
grads : float32[n, dim]
    Copied if it is strided.
kind : str
    "sgd": w -= lr g. "adagrad": s += g^2, w -= lr g / (sqrt(s) + eps). "adam": with bias correction
    by the clock of the table; lazy: rows without a gradient, and their moments, do not change.
lr, eps, weight_decay : float
    0 or more. weight_decay * w is added to g.
beta1, beta2 : float
    At least 0 and below 1; for Adam.
threads : int, optional
    The number of threads; None for default_threads().

Returns
-------
int
    The number of rows changed.

Raises
------
ValueError
    An id in a bucket outside the table, a wrong shape, an option outside its range, too few slots.
    The table is unchanged.
TypeError
    A wrong dtype.
)";

inline constexpr const char* evict = R"(Remove the ids that satisfy all given conditions.

Parameters
----------
seen_before : int, optional
    `seen`, the clock of the step of the last lookup of the id, is below this.
l2_below : float, optional
    The Euclidean norm of the embedding is below this. Ids without a row are kept.
frequency_below : int, optional
    The id was looked up fewer times than this.

Returns
-------
int64[k]
    The removed ids, with or without a row, sorted by (bucket, id). They are recorded as dead.

Raises
------
ValueError
    No condition, or a condition that is not a finite number.

Notes
-----
O(ids), atomic. To remove ids that satisfy either of two conditions, call it twice.
)";

inline constexpr const char* remove = R"(remove(ids: int64[n]) -> int

Remove ids, with or without a row, record them as dead, and return their number. Ids that are not in
the table are ignored. ValueError for an id in a bucket outside the table.
)";

inline constexpr const char* facts =
    R"(Return a dict of arrays with the metadata of ids, one entry per id.

"versions", "frequencies" and "seen", int64[n], are 0 for unknown ids; "admitted", bool[n], is True
for ids with a row. ValueError for an id in a bucket outside the table.
)";

inline constexpr const char* row_values = R"(row_values(ids: int64[n], *, threads=1)

Return whole rows, float32[n, (1 + slots) * dim]: the embedding, then the slots. For ids without a
row, the values of a new row. ValueError for an id in a bucket outside the table.
)";

inline constexpr const char* insert =
    R"(Insert whole rows, as `EmbeddingSnapshot.read` returns them.

Parameters
----------
keys, versions, frequencies, seen : int64[k]
    Versions, frequencies and seen are from 0 to 2**62.
admitted : bool[k]
    Whether an id has a row.
values : float32[admitted.sum(), (1 + slots) * dim]
    The rows of the ids that have one, in order.

Raises
------
ValueError
    An id that is already in the table, is given twice, or is in a bucket outside the table; a
    number outside its range; arrays of wrong shapes. The table is unchanged.
TypeError
    A wrong dtype.
)";

inline constexpr const char* snapshot = R"(An immutable snapshot of an embedding table.

Made by `EmbeddingCore.snapshot`. Several threads may read it while the table changes. A context
manager; after `close` every call is a ValueError.
)";

inline constexpr const char* take =
    R"(Return an EmbeddingSnapshot of the current state of the table.

O(bytes / 256 KiB). The table may change while the snapshot is open: each slab of about 256 KiB is
copied before its first change.

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

Return the number of ids in each bucket whose version or seen is above `since`; by default, of all
ids. O(ids).
)";

inline constexpr const char* read =
    R"(Return the ids of a range of buckets that changed after a clock.

Parameters
----------
first_bucket, end_bucket : int
    0 <= first_bucket <= end_bucket <= 1024.
since : int
    Only ids whose version or seen is above this; by default, all ids.

Returns
-------
dict of ndarray
    Sorted by (bucket, id): "keys", "versions", "frequencies", "seen", int64[k]; "admitted",
    bool[k]; "values", float32[admitted.sum(), (1 + slots) * dim], the embedding and then the slots
    of the ids with a row.

Raises
------
ValueError
    A bucket outside its range; a closed snapshot.

Notes
-----
Consecutive ranges share passes over the table: a pass finds about a million ids, which are kept
(16 MiB) until a range needs others.
)";

inline constexpr const char* blocks = R"(Return the same ids as blocks, the format of stores.

Parameters
----------
first_bucket, end_bucket, since : int
    As in `read`.
dim, slots : int
    Those of the table.
most : int
    The maximum size of the entries of a block: 33 bytes per entry, and those of rows. A
    block ends where the next bucket does not fit; a bucket larger than a block is cut.
borders : sequence of int
    Buckets that must begin a block.
threads : int or None
    The number of threads; None for the number of processors.

Returns
-------
list of (memoryview, int, int, int, int, int, int, int)
    For each block: its bytes in the format of saved tables, read-only; their CRC32C; its
    numbers of entries, rows and dead ids; the id and the bucket of its first entry, and
    the bucket of its last.

Raises
------
TypeError, ValueError
    An argument of a wrong type or outside its range; a closed snapshot.

Notes
-----
Releases the GIL. The memory is reused after the last of the blocks is deleted.
)";

inline constexpr const char* insert_blocks = R"(Insert the entries of stored blocks.

Parameters
----------
payloads : sequence of buffers
    Blocks in the format of saved tables, aligned to 8 bytes, of rows as the table's. Their
    memory must not change meanwhile.
lines : buffer
    For each block its line of the index: its first id as int64; the buckets of its first and its
    last id, its numbers of entries, rows and dead ids, and 0, as uint32.
first_bucket, end_bucket : int
    Entries in other buckets are left out.
after : int or None
    The id that the first block has to come after.
threads : int or None
    The number of threads; None for the number of processors.

Returns
-------
int or None
    The number of the first block that is not as its line says, has dead ids, is not in order, or
    does not begin after the block before; then nothing was inserted. None if all are right.

Raises
------
TypeError, ValueError
    As `insert`; fewer lines than payloads.

Notes
-----
Releases the GIL. Copies ids and states, but not rows.
)";

inline constexpr const char* pack_blocks = R"(Return sorted entries as blocks.

Parameters
----------
keys, versions, frequencies, seen : int64[k]
states : uint8[k]
    0 for an id that is only counted, 1 for an id with a row, 2 for a dead id.
values : float32[rows, (1 + slots) * dim]
    The rows of the ids with a row, in order; uint16 for the bits of bfloat16.
dim, slots, most, borders
    As in `EmbeddingSnapshot.blocks`.

Returns
-------
list of (memoryview, int, int, int, int, int, int, int)
    As `EmbeddingSnapshot.blocks` returns them.

Raises
------
TypeError, ValueError
    Columns with different lengths, a wrong dtype or shape; an argument outside its range.

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

Return the ids that were removed and not inserted again, and the clock of the step after their
removal (the clock of the table + 1), where it is above `since`; sorted by (bucket, id).
)";

inline constexpr const char* bucket_of = R"(bucket_of(ids: int64[n]) -> int64[n]

Return the bucket of each id, 0 to 1023: the upper ten bits of a published hash.

Examples
--------
>>> from windeck._core import bucket_of
>>> bucket_of([0, 1, -1]).tolist()
[0, 346, 723]
)";

}  // namespace windeck::docs
