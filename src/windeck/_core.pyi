"""
The native core of windeck: orders, windows, gather.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['BestFit', 'Column', 'Cumulative', 'DocumentBlock', 'DocumentRun', 'EmbeddingCore', 'EmbeddingSnapshot', 'Field', 'Gather', 'LCG', 'ORDER_VERSION', 'PartOrder', 'Permutation', 'TokenShard', 'WindowIndex', 'add_block_sums', 'bucket_of', 'checked_bulk', 'checked_one', 'checked_range', 'crc32c', 'crc32c_joined', 'cu_seqlens', 'default_threads', 'fit_pieces', 'hash_words', 'pack', 'pack_blocks', 'pool_stats', 'simd', 'trim_pool']
class Cumulative:
    """
    Cumulative(sizes)
    
    Parts of given sizes laid end to end, and the part a position falls in.
    
    Parameters
    ----------
    sizes : int64[S]
        The size of each part, 0 or more. Parts of size 0 are never found.
    
    Raises
    ------
    TypeError
        Another dtype than int64.
    ValueError
        A negative size.
    OverflowError
        Sizes that add up to more than 2**63 - 1.
    
    Notes
    -----
    Memory is 16 bytes a part. Immutable and thread-safe; calls let other Python threads run.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import Cumulative
    >>> files = Cumulative(np.array([3, 0, 5]))
    >>> files.total, len(files)
    (8, 3)
    >>> [a.tolist() for a in files.find(np.array([2, 3, 7]))]
    [[0, 2, 2], [2, 0, 4]]
    >>> files.before(np.array([0, 2, 3])).tolist()
    [0, 3, 8]
    """
    def __init__(self, sizes: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of parts.
        """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def before(self, parts: typing.Any) -> numpy.typing.NDArray[numpy.int64]:
        """
        before(parts: int64[k]) -> int64[k]: positions before each part, which may be the number of parts too. IndexError outside of [0, len].
        """
    def find(self, positions: typing.Any) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        The part each position falls in, and how far it lies within it.
        
        Parameters
        ----------
        positions : int64[k]
            Each in [0, total).
        
        Returns
        -------
        part, within : int64[k]
            before(part) + within is the position.
        
        Raises
        ------
        IndexError
            A position outside of [0, total).
        TypeError
            Another dtype than int64.
        
        Notes
        -----
        O(1) expected a position where parts are of much the same size, O(log S) at worst.
        """
    @property
    def total(self) -> int:
        """
        The sum of all sizes.
        """
class LCG:
    """
    The classic full-period linear congruential generator.
    
    With m the least power of two >= size, a raw step is state = (multiplier * state + increment) % m.
    `draw` yields the states after a step and skips those >= size, so m raw steps in a row give each
    value of [0, size) exactly once.
    
    This is a sequence to draw from and a poor shuffle, here for jobs whose order was made with it:
    with increment 2 * (rank + seed) + 1 and state seed + rank it gives the document order of
    fms-fsdp. To shuffle, use `Permutation`.
    
    Parameters
    ----------
    size : int
        1 to 2**63 - 1.
    multiplier : int
        1 modulo 4, as a full period needs.
    increment : int
        Odd, as a full period needs.
    state : int
        Where to begin, taken modulo m.
    
    Raises
    ------
    ValueError
        A number out of its range.
    TypeError
        No integer.
    
    Examples
    --------
    >>> import windeck as wd
    >>> lcg = wd.LCG(10)
    >>> lcg.draw(4).tolist(), lcg.state
    ([1, 6, 2, 8], 8)
    >>> lcg.jump(-1)  # raw steps: 11 came before 8 and was skipped
    >>> lcg.state
    11
    """
    def __getstate__(self) -> tuple[int, int, int, int]:
        ...
    def __init__(self, size: typing.SupportsIndex, *, multiplier: typing.SupportsIndex = 5, increment: typing.SupportsIndex = 1, state: typing.SupportsIndex = 0) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, arg0: tuple[int, int, int, int]) -> None:
        ...
    def draw(self, count: typing.SupportsIndex, out: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        The next `count` values, int64 of shape (count,).
        
        Afterwards `state` is the last of them. `out`, if given, is an int64 array of that shape,
        contiguous and writeable; it is written to and returned.
        
        Raises
        ------
        ValueError
            A negative count; an `out` of wrong shape, not contiguous or read-only.
        TypeError
            A count that is no integer; an `out` of another dtype.
        """
    def jump(self, steps: typing.SupportsIndex) -> None:
        """
        Goes `steps` raw steps ahead, or back if negative.
        
        Skipped values count as steps. O(log m), however far (Brown 1994).
        """
    @property
    def increment(self) -> int:
        """
        The increment.
        """
    @property
    def multiplier(self) -> int:
        """
        The multiplier.
        """
    @property
    def period(self) -> int:
        """
        m, the number of raw steps after which it begins anew.
        """
    @property
    def size(self) -> int:
        """
        Values drawn lie in [0, size).
        """
    @property
    def state(self) -> int:
        """
        The last value drawn, or where a jump led: what to save.
        """
class PartOrder:
    """
    PartOrder(sizes, *, seed=0, epoch=0, every=1)
    
    Parts in the order of Permutation(parts, seed=seed, epoch=epoch), laid end to end.
    
    Parameters
    ----------
    sizes : int64[P]
        The size of each part, 0 or more.
    seed, epoch : int
        0 to 2**64 - 1 each, hashed.
    every : int
        Sums are kept for every so many parts: less memory, more time for a look-up.
    
    Raises
    ------
    ValueError
        No part, a negative size, or `every` below 1.
    OverflowError
        Sizes that add up to more than 2**63 - 1.
    
    Notes
    -----
    O(P) time; 8 bytes a part for the sizes, which all epochs share, and 8 / every for the sums.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import PartOrder
    >>> order = PartOrder(np.array([3, 0, 5]), seed=1)
    >>> order.total, len(order)
    (8, 3)
    >>> sum(order.before(order.index(part)) <= 4 for part in (0, 2)) in (1, 2)
    True
    """
    def __init__(self, sizes: typing.Any, *, seed: typing.Any = 0, epoch: typing.Any = 0, every: typing.Any = 1) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def at(self, place: typing.Any) -> int:
        """
        The part at a place.
        """
    def before(self, place: typing.Any) -> int:
        """
        The sum of the sizes before a place.
        """
    def index(self, part: typing.Any) -> int:
        """
        The place of a part.
        """
    def pieces(self, indices: typing.Any, stride: typing.Any, length: typing.Any, samples: typing.Any) -> tuple:
        """
        pieces(indices: int64[k], stride, length, samples) -> (parts, row_offsets, part_of, starts, lengths): where positions [i * stride, i * stride + length) lie, for each index i. Row r is pieces row_offsets[r] to row_offsets[r + 1]; piece p is `lengths` positions from `starts` on in part parts[part_of[p]]. IndexError for an index outside [0, samples).
        """
    def reordered(self, *, seed: typing.Any, epoch: typing.Any) -> PartOrder:
        """
        The same parts in another order; the sizes are shared.
        """
    def size(self, part: typing.Any) -> int:
        """
        The size of a part.
        """
    @property
    def total(self) -> int:
        """
        The sum of all sizes.
        """
class DocumentBlock:
    """
    DocumentBlock(places): documents of several shards, by place. `read` them shard by shard, then make a DocumentRun of it.
    """
    def __init__(self, places: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def bare(self) -> DocumentBlock:
        """
        A new block of the same documents, without their tokens.
        """
    def read(self, shard: typing.Any, documents: typing.Any, places: typing.Any, *, take: str = 'copies') -> None:
        """
        read(shard, documents: int64[m], places: int64[m], *, take='copies'): put documents of a shard at places of the block. take='addresses' keeps the shard instead of a copy, take='lengths' neither.
        """
class DocumentRun:
    """
    DocumentRun(documents, *, seed=None, epoch=0, bos=None, eos=None, threads=1)
    
    Framed documents, one after the other, with the sums of their lengths.
    
    Parameters
    ----------
    documents : TokenShard or DocumentBlock
        Where they come from; kept alive.
    seed, epoch : int, optional
        For a shard: the documents come in the order of Permutation(documents, seed=seed, epoch=epoch);
        as stored when the seed is None.
    bos, eos : int, optional
        Tokens before and after every document that is not filtered.
    threads : int
        How many threads may read lengths.
    
    Raises
    ------
    TypeError, ValueError
        For something else than documents, and numbers out of range.
    OSError
        When a file became shorter while it was mapped.
    
    Notes
    -----
    O(documents) time and 8 bytes a document. Immutable and thread-safe.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import DocumentRun, TokenShard
    >>> shard = TokenShard.from_arrays(np.arange(5, dtype=np.int32), np.array([0, 2, 5]))
    >>> run = DocumentRun(shard, eos=0)
    >>> run.total, run.extent(1)
    (7, (3, 7))
    """
    def __init__(self, documents: typing.Any, *, seed: typing.Any = None, epoch: typing.Any = 0, bos: typing.Any = None, eos: typing.Any = None, threads: typing.Any = 1) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def extent(self, document: typing.Any) -> tuple[int, int]:
        """
        (start, stop) of a document in the run's tokens; of a place, in a run of a block.
        """
    def spans(self, start: typing.Any, length: typing.Any) -> tuple:
        """
        spans(start, length) -> (documents, starts, stops), int64 each: the ranges of framed documents that the run's tokens [start, start + length) are.
        """
    @property
    def total(self) -> int:
        """
        Framed tokens.
        """
class BestFit:
    """
    BestFit(run, capacity): the sequences of at most `capacity` tokens that the documents of a run make, each document whole, in the order of the run: into the open sequence with the least room that suffices, of these the one opened last, or else into a new one. A longer document is cut into pieces that overlap by one token. O(documents log documents).
    """
    def __init__(self, run: DocumentRun, capacity: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def sequences_with(self, start: typing.Any, stop: typing.Any) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        sequences_with(start, stop) -> int64[m]: the sequences that hold some of the run's tokens [start, stop), ascending.
        """
    @property
    def tokens(self) -> int:
        """
        Tokens in all sequences; those that pieces share count twice.
        """
class Permutation:
    """
    A shuffle that needs no memory: position -> sample and back.
    
    Parameters
    ----------
    size : int
        Number of samples, 1 to 2**63 - 1.
    seed, epoch : int
        0 to 2**64 - 1 each. They are hashed, never added: (seed 42, epoch 1) has nothing to do
        with (seed 43, epoch 0).
    
    Raises
    ------
    ValueError
        A size, seed or epoch out of its range.
    TypeError
        A size, seed or epoch that is no integer.
    
    Notes
    -----
    O(1) memory and constant time a sample, wherever it lies. The order of given (size, seed, epoch)
    is the same on every machine and in every later version (see ORDER_VERSION).
    
    Examples
    --------
    >>> import windeck as wd
    >>> order = wd.Permutation(10, seed=42, epoch=1)
    >>> sorted(int(sample) for sample in order[:])
    [0, 1, 2, 3, 4, 5, 6, 7, 8, 9]
    >>> order.index(order[3])
    3
    """
    def __eq__(self, arg0: typing.Any) -> bool:
        ...
    @typing.overload
    def __getitem__(self, positions: slice) -> numpy.typing.NDArray[numpy.int64]:
        ...
    @typing.overload
    def __getitem__(self, position: typing.SupportsIndex) -> int:
        ...
    def __getstate__(self) -> tuple[int, int, int, int]:
        ...
    def __hash__(self) -> int:
        ...
    def __init__(self, size: typing.SupportsIndex, *, seed: typing.SupportsIndex = 0, epoch: typing.SupportsIndex = 0) -> None:
        ...
    def __iter__(self) -> collections.abc.Iterator[int]:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, arg0: tuple[int, int, int, int]) -> None:
        ...
    @typing.overload
    def index(self, sample: int) -> int:
        """
        The position of a sample: the inverse of order[position].
        """
    @typing.overload
    def index(self, samples: typing.Any, out: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        The positions of the given samples: the inverse of `take`.
        
        Parameters
        ----------
        samples : ndarray
            int64, shape (n,), each in [0, size). It must not change during the call.
        out : ndarray, optional
            As in `take`.
        
        Returns
        -------
        ndarray
            int64, shape (n,).
        
        Raises
        ------
        IndexError, ValueError, TypeError
            As in `take`.
        """
    def slice(self, start: typing.SupportsIndex, stop: typing.SupportsIndex, out: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        The samples at positions start to stop, stop excluded.
        
        Parameters
        ----------
        start, stop : int
            0 <= start <= stop <= size.
        out : ndarray, optional
            int64, shape (stop - start,), contiguous and writeable; written to and returned.
        
        Returns
        -------
        ndarray
            int64, shape (stop - start,).
        
        Raises
        ------
        IndexError
            A start or stop outside of [0, size].
        ValueError
            A stop before start; an `out` of wrong shape, not contiguous or read-only.
        TypeError
            An `out` of another dtype.
        """
    def take(self, positions: typing.Any, out: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        The samples at the given positions.
        
        Parameters
        ----------
        positions : ndarray
            int64, shape (n,), each in [0, size). It must not change during the call.
        out : ndarray, optional
            int64, shape (n,), contiguous, writeable and apart from `positions`; written to and returned.
        
        Returns
        -------
        ndarray
            int64, shape (n,).
        
        Raises
        ------
        IndexError
            A position outside of [0, size).
        ValueError
            More than one dimension; an `out` of wrong shape, not contiguous, read-only or overlapping.
        TypeError
            Another dtype than int64.
        """
    @property
    def epoch(self) -> int:
        """
        The epoch it was made for.
        """
    @property
    def seed(self) -> int:
        """
        The seed it was made with.
        """
    @property
    def size(self) -> int:
        """
        Number of samples.
        """
class Column:
    """
    A column to gather from, read in place and kept alive.
    
    Parameters
    ----------
    values : ndarray of shape (rows,)
        float64, float32, float16, any integer or bool, of any stride; uint16 for bfloat16.
    validity : uint8[n], optional
        Arrow validity bitmap, least significant bit first: row i is present where bit
        i + validity_offset is 1. What an absent row holds does not matter.
    validity_offset : int
        The bit of row 0.
    nan_is_missing : bool
        Whether NaN counts as missing in fields that have a mask.
    name : str
        For messages.
    dtype : str, optional
        "bfloat16" says that uint16 values are bfloat16 bits.
    
    Raises
    ------
    TypeError
        Another dtype, or no array.
    ValueError
        More than one dimension, or a bitmap that is too short.
    """
    def __init__(self, values: typing.Any, *, validity: typing.Any = None, validity_offset: typing.Any = 0, nan_is_missing: bool = True, name: str = '', dtype: typing.Any = None) -> None:
        ...
    def __len__(self) -> int:
        """
        The rows.
        """
    def __reduce__(self) -> tuple:
        ...
    @property
    def dtype(self) -> str:
        """
        The type of the values, by name.
        """
    @property
    def name(self) -> str:
        """
        For messages.
        """
class Field:
    """
    One array of a batch: which columns, which steps, and how.
    
    Parameters
    ----------
    name : str
        Its key; with a mask there is "<name>_mask" too.
    columns : sequence of Column
        The channels, in order.
    segments : sequence of (offset, length)
        Steps are the rows anchor + offset + j * dilation, 0 <= j < length, of every segment in turn.
    dilation : int
        Rows from a step to the next, 1 or more.
    layout : str
        "btc" (batch, time, channel), "bct", "bt" for one column or "bc" for one step.
    dtype : str
        Of the values: float64, float32, float16, bfloat16 (uint16 bits), an integer type or bool.
        A column of this type that is not scaled is copied as it is.
    mask : bool
        Whether to give a bool array of the same shape, True where a value is present.
    fill : float
        What stands where a row lies outside the series of its window, or its value is missing.
    scale, shift : float64[C] or float64[series, C], optional
        Values are value * scale + shift, in float64, rounded once. Missing values are not scaled.
    anchor : str
        "window", the window's start row, or "series", the first row of its series.
    
    Raises
    ------
    TypeError, ValueError
        What does not fit together, named; some of it only when a Gather is made.
    """
    def __init__(self, name: str, columns: typing.Any, *, segments: typing.Any, dilation: typing.Any = 1, layout: str = 'btc', dtype: str = 'float32', mask: bool = False, fill: typing.Any = 0.0, scale: typing.Any = None, shift: typing.Any = None, anchor: str = 'window') -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    @property
    def name(self) -> str:
        """
        The key in the batch.
        """
class Gather:
    """
    Makes batches of windows.
    
    Parameters
    ----------
    index : WindowIndex
        The windows.
    bounds : int64[S + 1]
        Series s is the rows [bounds[s], bounds[s + 1]).
    fields : sequence of Field
        The arrays of a batch.
    
    Raises
    ------
    TypeError, ValueError
        Bounds that decrease or leave a column, keys that clash, a field that does not fit.
    
    Notes
    -----
    Immutable and thread-safe; keeps index, fields and columns alive.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import Column, Field, Gather, WindowIndex
    >>> load = Column(np.arange(6.0))
    >>> index = WindowIndex(np.array([0]), np.array([6]), 1)
    >>> past = Field("past", [load], segments=[(0, 2)], layout="bt", mask=True, fill=-1)
    >>> batch = Gather(index, np.array([0, 6]), [past]).gather([2, 5])
    >>> batch["past"].tolist(), batch["past_mask"].tolist()
    ([[2.0, 3.0], [5.0, -1.0]], [[True, True], [True, False]])
    >>> batch["start"].tolist()
    [2, 5]
    """
    def __init__(self, index: typing.Any, bounds: typing.Any, fields: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of windows.
        """
    def __reduce__(self) -> tuple:
        ...
    def gather(self, indices: typing.Any, *, out: typing.Any = None, threads: typing.Any = 1) -> dict:
        """
        The batch of some windows.
        
        Parameters
        ----------
        indices : int64[n]
            Windows, in any order, repeated or not.
        out : dict of ndarray, optional
            Arrays to write into, for every key, of exactly the batch's dtypes and shapes, C-contiguous,
            aligned and writeable, apart from each other and from the columns. By default one aligned slab
            of the pool holds the batch, and goes back to it when the last array on it is gone.
        threads : int, optional
            How many threads work at it; None for default_threads().
        
        Returns
        -------
        dict of ndarray
            Every field, its mask if it has one, "series_id" and "start", int64[n].
        
        Raises
        ------
        IndexError
            An index that is no window, before anything is written.
        TypeError, ValueError, KeyError
            Indices or `out` of the wrong kind, before anything is written; ValueError also for a value that
            an integer field cannot hold, naming column and row. What `out` holds then is unspecified.
        MemoryError
            A batch that does not fit into memory.
        
        Notes
        -----
        The GIL is released while the batch is made.
        """
class EmbeddingCore:
    """
    EmbeddingCore(dim, *, slots=0, initializer="normal", scale=0.01, slot_value=0.0, seed=0,
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
    """
    def __init__(self, dim: typing.SupportsIndex, *, slots: typing.SupportsIndex = 0, initializer: str = 'normal', scale: typing.Any = 0.01, slot_value: typing.Any = 0.0, seed: typing.SupportsIndex = 0, admit_after: typing.SupportsIndex = 1, first_bucket: typing.SupportsIndex = 0, end_bucket: typing.SupportsIndex = 1024) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of ids with a row.
        """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def apply(self, ids: typing.Any, grads: typing.Any, *, kind: str, lr: typing.Any, eps: typing.Any = 1e-10, beta1: typing.Any = 0.9, beta2: typing.Any = 0.999, weight_decay: typing.Any = 0.0, threads: typing.Any = 1) -> int:
        """
        One step of an optimizer on the rows of `ids`.
        
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
        """
    def clear(self) -> None:
        """
        Back to how the table was made: no ids, no dead, clock 0.
        """
    def evict(self, *, seen_before: typing.Any = None, l2_below: typing.Any = None, frequency_below: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        Removes the ids for which all conditions given hold.
        
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
        """
    def facts(self, ids: typing.Any) -> dict:
        """
        What is known of ids: a dict of arrays, one entry each.
        
        "versions", "frequencies" and "seen", int64[n], are 0 where nothing is known; "admitted", bool[n],
        says whether an id has a row. ValueError for an id of another bucket.
        """
    def find(self, ids: typing.Any) -> numpy.typing.NDArray[numpy.bool]:
        """
        find(ids) -> bool[n]: whether each id has a row.
        """
    def forget_dead(self, clock: typing.SupportsIndex) -> None:
        """
        Forgets the dead whose clock is at most this.
        """
    def insert(self, keys: typing.Any, versions: typing.Any, frequencies: typing.Any, seen: typing.Any, admitted: typing.Any, values: typing.Any) -> None:
        """
        Puts whole rows in, as `EmbeddingSnapshot.read` gives them.
        
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
        """
    def lookup(self, ids: typing.Any, out: typing.Any = None, *, insert: bool, threads: typing.Any = 1) -> numpy.typing.NDArray[numpy.float32]:
        """
        The embedding of each id.
        
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
        """
    def remove(self, ids: typing.Any) -> int:
        """
        remove(ids: int64[n]) -> int
        
        Removes ids, with a row or without, and remembers them as dead. Those that are not there are left
        out; returns how many were. ValueError for an id of another bucket.
        """
    def reserve(self, ids: typing.SupportsIndex) -> None:
        """
        Makes room for this many ids in all, so that none grows the index.
        """
    def row_values(self, ids: typing.Any, *, threads: typing.Any = 1) -> numpy.typing.NDArray[numpy.float32]:
        """
        row_values(ids: int64[n], *, threads=1)
        
        Whole rows, float32[n, (1 + slots) * dim]: the embedding, then the slots. For ids without a row,
        what a new row would hold. ValueError for an id of another bucket.
        """
    def set_clock(self, clock: typing.SupportsIndex) -> None:
        """
        Sets the clock, 0 to 2**62, as after a restore.
        """
    def snapshot(self) -> EmbeddingSnapshot:
        """
        The table as it is now: an EmbeddingSnapshot.
        
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
        """
    @property
    def admit_after(self) -> int:
        """
        Occurrences that make a row.
        """
    @property
    def bytes(self) -> int:
        """
        Bytes held; what only snapshots hold is not counted.
        """
    @property
    def clock(self) -> int:
        """
        The number of updates so far.
        """
    @property
    def counted(self) -> int:
        """
        The number of ids that are known but have no row.
        """
    @property
    def dim(self) -> int:
        """
        Floats of an embedding.
        """
    @property
    def end_bucket(self) -> int:
        """
        The bucket behind the last.
        """
    @property
    def first_bucket(self) -> int:
        """
        The first bucket this table holds.
        """
    @property
    def history(self) -> int:
        """
        How often something was done that a snapshot's counts and dead do not tell: rows inserted, the clock set, all cleared, dead forgotten.
        """
    @property
    def initializer(self) -> str:
        """
        'normal', 'uniform' or 'zeros'.
        """
    @property
    def scale(self) -> float:
        """
        How large initial values are.
        """
    @property
    def seed(self) -> int:
        """
        The seed of the initial values.
        """
    @property
    def slot_value(self) -> float:
        """
        What slots begin with.
        """
    @property
    def slots(self) -> int:
        """
        Vectors of `dim` behind each embedding.
        """
class EmbeddingSnapshot:
    """
    An embedding table at one moment, made by
    `EmbeddingCore.snapshot`.
    
    It never changes, whatever becomes of the table, and may be read from many threads. A context
    manager; after `close` every call is a ValueError.
    """
    def __enter__(self) -> typing.Any:
        ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of ids, with a row or without.
        """
    def __reduce__(self) -> tuple:
        ...
    def blocks(self, first_bucket: typing.SupportsIndex, end_bucket: typing.SupportsIndex, since: typing.SupportsIndex = -1, *, dim: typing.SupportsIndex, slots: typing.SupportsIndex, most: typing.SupportsIndex, borders: collections.abc.Sequence) -> list[tuple[memoryview, int, int, int, int, int, int, int]]:
        """
        The same ids as blocks, which is how a store keeps them.
        
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
        """
    def close(self) -> None:
        """
        Lets go of what it holds; a second time does nothing.
        """
    def counts(self, since: typing.SupportsIndex = -1) -> numpy.typing.NDArray[numpy.int64]:
        """
        counts(since=-1) -> int64[1024]
        
        How many ids of each bucket have a version or seen above `since`; by default, all. O(ids).
        """
    def dead(self, since: typing.SupportsIndex = -1) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        dead(since=-1) -> (keys, clocks), int64[k] each
        
        Ids that were removed and are not back, with the clock of the step before which they were (the
        table's clock + 1), where that is above `since`; sorted by (bucket, id).
        """
    def read(self, first_bucket: typing.SupportsIndex, end_bucket: typing.SupportsIndex, since: typing.SupportsIndex = -1) -> dict:
        """
        The ids of a range of buckets that changed after a clock.
        
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
        """
    @property
    def clock(self) -> int:
        """
        The table's clock when the snapshot was taken.
        """
    @property
    def history(self) -> int:
        """
        The table's history when the snapshot was taken.
        """
    @property
    def rows(self) -> int:
        """
        The number of ids with a row.
        """
    @property
    def width(self) -> int:
        """
        Floats of a row: (1 + slots) * dim.
        """
class TokenShard:
    """
    The documents of one file, by address; made by `from_stream` or
    `from_arrays`.
    
    Documents are numbered from 0 in the order of the file. Tokens are integers of 8 to 64 bits, kept
    where they lie: in arrays or in a mapped file. Immutable and thread-safe; no method copies more
    than it returns, and those that loop let other Python threads run.
    
    Filters: leading and trailing runs of the tokens in `strip` are left out; then a document with
    fewer than `min_length` tokens is filtered: it keeps its number, has length -1 and no tokens.
    
    Notes
    -----
    Memory is O(arrays) for lists, 16 bytes a document where each is an array of its own.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import TokenShard
    >>> tokens = np.array([5, 6, 7, 0, 8], dtype=np.uint16)
    >>> shard = TokenShard.from_arrays(tokens, np.array([0, 3, 3, 5]), strip=np.array([0]))
    >>> len(shard), shard.dtype, shard.lengths().tolist()
    (3, 'uint16', [3, 0, 1])
    >>> shard.document(2)
    array([8], dtype=uint16)
    """
    @staticmethod
    def from_arrays(values: typing.Any, offsets: typing.Any, *, strip: typing.Any = None, min_length: typing.Any = 0, name: str = '') -> TokenShard:
        """
        Documents of one array: number j has the values
        [offsets[j], offsets[j + 1]).
        
        Parameters
        ----------
        values : ndarray
            Any integer dtype, shape (m,). Kept, not copied, unless it is strided: do not change it.
        offsets : ndarray
            int64, shape (n + 1,), in [0, m], never decreasing.
        strip : ndarray, optional
            int64, shape (k,): tokens whose leading and trailing runs are left out of every document.
        min_length : int
            Fewer tokens than these, once stripped, and a document is filtered.
        name : str
            What messages call it.
        
        Raises
        ------
        TypeError
            Values that are no integers, offsets or strip of another dtype than int64.
        ValueError
            No offsets, offsets that decrease or leave the values (O(n)), a negative min_length.
        """
    @staticmethod
    def from_stream(stream: typing.Any, *, strip: typing.Any = None, min_length: typing.Any = 0, region: typing.Any = None, owner: typing.Any = None, name: str = '') -> TokenShard:
        """
        Documents of an Arrow column, over the C data interface.
        
        Parameters
        ----------
        stream : object with __arrow_c_stream__
            A pyarrow ChunkedArray, a table of one column or the like. Each row of a list, large_list or
            fixed_size_list of integers is a document, a null one an empty document. Of a column of
            integers each chunk is one document; hand in the ChunkedArray then, as a pyarrow table leaves
            out empty chunks.
        strip, min_length, name
            As in `from_arrays`.
        region : (int, int, int), optional
            Address and bytes of the mapped file the arrays were read from, and its descriptor (it is
            duplicated) or -1. Of arrays that lie in it only the addresses are kept, and a file that is cut
            short while it is mapped is an OSError wherever it is read.
        owner : object, optional
            What keeps `region` mapped. Kept alive as long as something lies in it.
        
        Raises
        ------
        TypeError
            A column of another type, which is named; dictionary-encoded ones too.
        ValueError
            Null tokens, more than one column, offsets that decrease or leave the values, a negative
            min_length, an array that reaches over the end of `region`, a stream that fails.
        OSError
            A file that was cut short, a descriptor that cannot be duplicated.
        
        Notes
        -----
        O(documents). Outside of `region`, buffers are trusted to be as long as their arrays say, which
        `validate()` of pyarrow makes sure of.
        
        Examples
        --------
        >>> import pyarrow as pa
        >>> from windeck._core import TokenShard
        >>> tokens = pa.chunked_array([pa.array([[1, 2], None, [3]], pa.list_(pa.uint16()))])
        >>> TokenShard.from_stream(tokens).lengths().tolist()
        [2, 0, 1]
        """
    def __len__(self) -> int:
        """
        The number of documents, filtered ones too.
        """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def document(self, document: typing.SupportsIndex) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        document(j) -> ndarray: a copy of its tokens after filters, none where it is filtered. IndexError outside of [0, len); OSError when the file was cut short or written to.
        """
    def lengths(self, out: typing.Any = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        lengths(out=None) -> int64[n]: tokens of every document after filters, -1 for those that are filtered. OSError when the file was cut short.
        """
    def totals(self) -> tuple[int, int, int, int]:
        """
        totals() -> (documents, tokens, kept_documents, kept_tokens): what is stored, and what the filters keep of it. O(arrays), or O(n) with filters. OSError when the file was cut short.
        """
    @property
    def dtype(self) -> str:
        """
        The dtype of the tokens, such as 'int32'.
        """
    @property
    def mapped(self) -> bool:
        """
        Whether the tokens are read from a mapped file.
        """
    @property
    def name(self) -> str:
        """
        What messages call it.
        """
class WindowIndex:
    """
    WindowIndex(first, count, stride, *, series=None, keep=None)
    
    The windows of runs, by arithmetic: the j-th candidate of run r starts at row first[r] + j * stride.
    
    Parameters
    ----------
    first : int64[R]
        Row the first candidate of each run starts at; may lie before its series.
    count : int64[R]
        Number of candidates in each run, 0 or more.
    stride : int
        Rows from one candidate to the next, 1 or more.
    series : int64[R], optional
        Series of each run; by default run r is series r.
    keep : uint8[ceil(sum(count) / 8)], optional
        Bitmap over all candidates in order, least significant bit first: 1 keeps the candidate.
    
    Raises
    ------
    TypeError
        An array of another dtype.
    ValueError
        A stride below 1, a negative count or series, lengths that differ, a window held twice.
    OverflowError
        Rows or a number of windows beyond 2**63 - 1.
    
    Notes
    -----
    Memory is O(R), plus 1.25 bits a candidate with `keep`. Immutable and thread-safe.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import WindowIndex
    >>> index = WindowIndex(np.array([0, 100]), np.array([3, 2]), 10)
    >>> len(index)
    5
    >>> [list(map(int, a)) for a in index.locate(np.array([2, 3]))]
    [[0, 1], [20, 100]]
    """
    def __init__(self, first: typing.Any, count: typing.Any, stride: typing.Any, *, series: typing.Any = None, keep: typing.Any = None) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of windows.
        """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def index_of(self, series: typing.Any, rows: typing.Any) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        index_of(series, rows) -> int64[n]: the window that starts at that row of that series, -1 where there is none. The inverse of locate.
        """
    def locate(self, indices: typing.Any) -> tuple:
        """
        locate(indices: int64[n]) -> (series int64[n], rows int64[n]): series and start row of each window. IndexError for an index outside [0, len).
        """
    def slice(self, start: typing.Any, stop: typing.Any) -> tuple:
        """
        slice(start, stop) -> (series, rows) of the windows [start, stop).
        """
    @property
    def size(self) -> int:
        """
        The number of windows.
        """
def _memcpy_rows(arg0: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], arg1: typing.Any, arg2: typing.Any, arg3: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]) -> None:
    """
    Rows [start, start + rows) of a matrix for each start, by memcpy alone: for benchmarks.
    """
def add_block_sums(shard: typing.Any, *, size: typing.Any, seed: typing.Any, first: typing.Any, block_size: typing.Any, frame: typing.Any, sums: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], threads: typing.Any = 1) -> None:
    """
    Adds the framed length of each document of a shard to the block that its place in Permutation(size, seed=seed) falls in; document j of the shard is number first + j. `frame` is how many tokens a frame has. Callable for several shards at once.
    """
def bucket_of(ids: typing.Any) -> numpy.typing.NDArray[numpy.int64]:
    """
    bucket_of(ids: int64[n]) -> int64[n]
    
    The bucket of each id, 0 to 1023: the upper ten bits of a published hash.
    
    Examples
    --------
    >>> from windeck._core import bucket_of
    >>> bucket_of([0, 1, -1]).tolist()
    [0, 346, 723]
    """
def checked_bulk(values: typing.Any, size: typing.SupportsIndex, what: str, out: typing.Any) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    (values, output) as int64 arrays, all values in [0, size).
    """
def checked_one(value: typing.SupportsIndex, size: typing.SupportsIndex, what: str, *, from_end: bool = False) -> int:
    """
    An int in [0, size); `from_end`: negative ones count from the end.
    """
def checked_range(start: typing.SupportsIndex, stop: typing.SupportsIndex, size: typing.SupportsIndex, out: typing.Any) -> tuple[int, int, numpy.typing.NDArray[numpy.int64]]:
    """
    (start, stop, output) of order.slice.
    """
def crc32c(buffer: typing.Any, crc: typing.Any = 0) -> int:
    """
    The CRC32C (Castagnoli) of bytes.
    
    Parameters
    ----------
    buffer : bytes, memoryview, uint8 array or any contiguous buffer
        The bytes of its memory, whatever its items are.
    crc : int
        The sum of bytes that come before these.
    
    Returns
    -------
    int
        In [0, 2**32). crc32c(b, crc32c(a)) == crc32c(a + b).
    
    Raises
    ------
    TypeError
        For what has no buffer.
    ValueError
        For a buffer that is not contiguous, or a crc outside of [0, 2**32).
    
    Notes
    -----
    O(n); other Python threads run meanwhile, unless it is a matter of a microsecond.
    
    Examples
    --------
    >>> from windeck._core import crc32c
    >>> hex(crc32c(b"123456789"))
    '0xe3069283'
    >>> crc32c(b"6789", crc32c(b"12345")) == crc32c(b"123456789")
    True
    """
def crc32c_joined(first: typing.Any, second: typing.Any, second_size: typing.Any) -> int:
    """
    The CRC32C of bytes a + b, from the sums of a and of b alone.
    
    Parameters
    ----------
    first, second : int
        The sums of a and of b, in [0, 2**32).
    second_size : int
        The number of bytes of b, in [0, 2**63).
    
    Returns
    -------
    int
        crc32c(a + b).
    
    Raises
    ------
    TypeError, ValueError
        For what is no integer, or outside of these ranges.
    
    Notes
    -----
    O(log n).
    
    Examples
    --------
    >>> from windeck._core import crc32c, crc32c_joined
    >>> crc32c_joined(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
    True
    """
def cu_seqlens(position_ids: typing.Any) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
    """
    cu_seqlens(position_ids) -> int32[m]: 0, the places behind the first at which the flattened ids are 0, and their number: where the sequences of a flattened batch begin.
    """
def default_threads() -> int:
    """
    The number of threads where none is given: WINDECK_NUM_THREADS, or the processors.
    """
def fit_pieces(fits: collections.abc.Sequence, fit_of: typing.Any, sequences: typing.Any) -> tuple:
    """
    fit_pieces(fits, fit_of: int64[k], sequences: int64[k]) -> (row_offsets, run_of, starts, lengths): the pieces of the rows that are sequence sequences[r] of fit fit_of[r].
    """
def hash_words(*args: typing.SupportsIndex) -> int:
    """
    Words of 64 bits hashed to one, as in cpp/include/windeck/base/hash.hpp: a key for a part that has nothing to do with any other part's.
    """
def pack(runs: collections.abc.Sequence, row_offsets: typing.Any, run_of: typing.Any, starts: typing.Any, lengths: typing.Any, *, sequence_length: typing.Any, dtype: typing.Any = 'int64', pad: typing.Any = None, out: typing.Any = None, threads: typing.Any = 1) -> dict:
    """
    Writes a batch of rows out of pieces of runs.
    
    Parameters
    ----------
    runs : sequence of DocumentRun
        What pieces are of.
    row_offsets : int64[k + 1]
        Row r is the pieces row_offsets[r] to row_offsets[r + 1].
    run_of, starts, lengths : int64[p]
        Piece j is `lengths[j]` tokens from starts[j] on of run run_of[j].
    sequence_length : int
        L: rows have L + 1 tokens and L position_ids.
    dtype : str
        "int64" or "int32".
    pad : int, optional
        Rows may be shorter, and are filled up with this token. Without it they are full.
    out : dict of ndarray, optional
        Arrays to write into, of exactly the batch's dtypes and shapes. By default one aligned slab of
        the pool holds the batch.
    threads : int, optional
        How many threads work at it; None for default_threads().
    
    Returns
    -------
    dict of ndarray
        "tokens" (k, L + 1); "position_ids" (k, L), counting from 0 at each row's, piece's and
        document's begin; with `pad` "targets_mask" (k, L), bool.
    
    Raises
    ------
    TypeError, ValueError, KeyError
        Arrays of the wrong kind, pieces that do not lie inside their runs, rows of a wrong length,
        before anything is written; ValueError for a token that the dtype cannot hold, naming it and
        its document. What `out` holds then is unspecified.
    OSError
        When a file became shorter while it was mapped.
    
    Notes
    -----
    The GIL is released while the batch is written.
    """
def pack_blocks(keys: typing.Any, versions: typing.Any, frequencies: typing.Any, seen: typing.Any, states: typing.Any, values: typing.Any, *, dim: typing.SupportsIndex, slots: typing.SupportsIndex, most: typing.SupportsIndex, borders: collections.abc.Sequence) -> list[tuple[memoryview, int, int, int, int, int, int, int]]:
    """
    Entries that are in order as blocks.
    
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
    """
def pool_stats() -> dict:
    """
    State of the pool of batch memory: slabs ever allocated and taken, slabs and bytes in use (live) and waiting (free).
    """
def simd() -> str:
    """
    The instruction set in use: 'baseline', 'avx2' or 'avx512' (see WINDECK_SIMD).
    """
def trim_pool() -> None:
    """
    Gives the waiting memory of the pool back to the system.
    """
ORDER_VERSION: int = 1
