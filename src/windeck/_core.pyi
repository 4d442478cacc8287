"""
The native core of windeck: orders, windows, gather, packing, tables, checksums.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['BestFit', 'Column', 'Cumulative', 'DocumentBlock', 'DocumentRun', 'EmbeddingCore', 'EmbeddingSnapshot', 'Field', 'Gather', 'LCG', 'ORDER_VERSION', 'PartOrder', 'Permutation', 'ShareTree', 'TokenShard', 'WindowIndex', 'add_block_sums', 'bucket_of', 'checked_bulk', 'checked_one', 'checked_range', 'crc32c', 'crc32c_joined', 'cu_seqlens', 'default_threads', 'empty_rows', 'fit_pieces', 'hash_words', 'pack', 'pack_blocks', 'permute_keyed', 'pool_stats', 'round_keys', 'simd', 'trim_pool']
class Cumulative:
    """
    Cumulative(sizes)
    
    Prefix sums of the sizes of parts, to find the part that holds a position.
    
    Parameters
    ----------
    sizes : int64[S]
        The size of each part, 0 or more. No position is in a part of size 0.
    
    Raises
    ------
    TypeError
        A dtype other than int64.
    ValueError
        A negative size.
    OverflowError
        A total of more than 2**63 - 1.
    
    Notes
    -----
    16 bytes of memory per part. Immutable and thread-safe; calls release the GIL.
    
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
        Return the number of positions before each part, int64[k]. `parts` is int64[k], each in [0, len], else an IndexError.
        """
    def find(self, positions: typing.Any) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        Find the part of each position, and the offset in that part.
        
        Parameters
        ----------
        positions : int64[k]
            Each in [0, total).
        
        Returns
        -------
        part, within : int64[k]
            The position is before(part) + within.
        
        Raises
        ------
        IndexError
            A position outside [0, total).
        TypeError
            A dtype other than int64.
        
        Notes
        -----
        Expected O(1) time per position for parts of similar size, O(log S) at worst.
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
    `draw` returns the state after each step and skips states >= size, so m raw steps give each value of
    [0, size) exactly once.
    
    It is a poor shuffle, provided for jobs whose order was made with it: with increment
    2 * (rank + seed) + 1 and state seed + rank it gives the document order of fms-fsdp. To shuffle, use
    `Permutation`.
    
    Parameters
    ----------
    size : int
        1 to 2**63 - 1.
    multiplier : int
        1 modulo 4, which a full period requires.
    increment : int
        Odd, which a full period requires.
    state : int
        The initial state, taken modulo m.
    
    Raises
    ------
    ValueError
        A number out of its range.
    TypeError
        An argument that is not an integer.
    
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
        Return the next `count` values, int64 of shape (count,).
        
        `state` is the last of them afterwards. `out`, if given, is an int64 array of that shape, contiguous
        and writeable; it is written to and returned.
        
        Raises
        ------
        ValueError
            A negative count; an `out` with another shape, not contiguous or read-only.
        TypeError
            A count that is not an integer; an `out` with another dtype.
        """
    def jump(self, steps: typing.SupportsIndex) -> None:
        """
        Advance the state by `steps` raw steps, backwards if negative.
        
        Skipped values count as steps. O(log m) time (Brown 1994).
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
        m, the number of raw steps after which the sequence repeats.
        """
    @property
    def size(self) -> int:
        """
        Values drawn are in [0, size).
        """
    @property
    def state(self) -> int:
        """
        The state after the last draw or jump; save it to continue the sequence.
        """
class PartOrder:
    """
    PartOrder(sizes, *, seed=0, epoch=0, every=1)
    
    Parts in the order of Permutation(parts, seed=seed, epoch=epoch), with prefix sums of their sizes.
    
    Parameters
    ----------
    sizes : int64[P]
        The size of each part, 0 or more.
    seed, epoch : int
        0 to 2**64 - 1 each, hashed.
    every : int
        The number of parts per stored sum: a larger one needs less memory and more time to find.
    
    Raises
    ------
    ValueError
        No parts, a negative size, or `every` below 1.
    OverflowError
        A total of more than 2**63 - 1.
    
    Notes
    -----
    O(P) time. Memory per part is 8 bytes for the sizes, which all epochs share, and 8 / every bytes for
    the sums.
    
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
        Return the part at a place.
        """
    def before(self, place: typing.Any) -> int:
        """
        Return the sum of the sizes before a place.
        """
    def index(self, part: typing.Any) -> int:
        """
        Return the place of a part.
        """
    def pieces(self, indices: typing.Any, stride: typing.Any, length: typing.Any, samples: typing.Any) -> tuple:
        """
        Return the pieces of parts that hold the positions [i * stride, i * stride + length) of each index i (int64[k]), as (parts, row_offsets, part_of, starts, lengths). Row r has the pieces row_offsets[r] to row_offsets[r + 1]; piece p has lengths[p] positions of part parts[part_of[p]] from starts[p] on. IndexError for an index outside [0, samples).
        """
    def reordered(self, *, seed: typing.Any, epoch: typing.Any) -> PartOrder:
        """
        Return the same parts in another order; both share the sizes.
        """
    def size(self, part: typing.Any) -> int:
        """
        Return the size of a part.
        """
    @property
    def total(self) -> int:
        """
        The sum of all sizes.
        """
class DocumentBlock:
    """
    Documents of several shards at numbered places. `read` documents shard by shard, then make a DocumentRun of the block.
    """
    def __init__(self, places: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def bare(self) -> DocumentBlock:
        """
        Return a block of the same documents without their tokens.
        """
    def read(self, shard: typing.Any, documents: typing.Any, places: typing.Any, *, take: str = 'copies') -> None:
        """
        Put documents (int64[m]) of a shard at places (int64[m]) of the block. take='copies' copies their tokens, take='addresses' refers to the shard, take='lengths' does neither.
        """
class DocumentRun:
    """
    DocumentRun(documents, *, seed=None, epoch=0, bos=None, eos=None, threads=1)
    
    The framed documents of a shard or block, concatenated, with prefix sums of their lengths.
    
    Parameters
    ----------
    documents : TokenShard or DocumentBlock
        The source of the documents; the document run holds a reference to it.
    seed, epoch : int, optional
        For a shard: the order is Permutation(documents, seed=seed, epoch=epoch), or that of the file
        if the seed is None.
    bos, eos : int, optional
        The tokens before and after every document that is not filtered.
    threads : int
        The number of threads that read lengths.
    
    Raises
    ------
    TypeError, ValueError
        An object that has no documents; a number outside its range.
    OSError
        A file that became shorter while it was mapped.
    
    Notes
    -----
    O(documents) time, 8 bytes of memory per document. Immutable and thread-safe.
    
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
        Return (start, stop) of a document in the tokens of the document run; for a block, of a place.
        """
    def spans(self, start: typing.Any, length: typing.Any) -> tuple:
        """
        Return the ranges of framed documents that the tokens [start, start + length) of the document run consist of, as (documents, starts, stops), int64 each.
        """
    @property
    def total(self) -> int:
        """
        The number of framed tokens.
        """
class BestFit:
    """
    Sequences of at most `capacity` tokens, packed with best fit from the whole documents of a document run. Each document in turn goes into the open sequence with the least room that suffices, of these the one opened last, or else into a new one. A longer document is cut into pieces that overlap by `overlap` tokens, 0 or 1. O(documents log documents).
    """
    def __init__(self, document_run: DocumentRun, capacity: typing.Any, overlap: typing.Any = 1) -> None:
        ...
    def __len__(self) -> int:
        ...
    def __reduce__(self) -> tuple:
        ...
    def sequences_with(self, start: typing.Any, stop: typing.Any) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return the sequences that hold any of the tokens [start, stop) of the document run, int64[m], ascending.
        """
    @property
    def tokens(self) -> int:
        """
        The tokens in all sequences; tokens that two pieces share count twice.
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
        A size, seed or epoch outside its range.
    TypeError
        A size, seed or epoch that is not an integer.
    
    Notes
    -----
    O(1) memory, and constant time per sample at any position. The order of a (size, seed, epoch) is the
    same on every machine and in every later version (see ORDER_VERSION).
    
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
    def __getitem__(self, position: typing.SupportsIndex) -> int:
        ...
    @typing.overload
    def __getitem__(self, positions: slice) -> numpy.typing.NDArray[numpy.int64]:
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
        Return the position of a sample, the inverse of order[position].
        """
    @typing.overload
    def index(self, samples: typing.Any, out: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        Return the positions of the given samples, the inverse of `take`.
        
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
    def plot(self, *, ax: typing.Any = None) -> typing.Any:
        """
        Draw which sample is at each position; see `windeck.orders.plot_order`.
        """
    def slice(self, start: typing.SupportsIndex, stop: typing.SupportsIndex, out: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        Return the samples at positions start to stop, stop excluded.
        
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
            A start or stop outside [0, size].
        ValueError
            A stop before start; an `out` with another shape, not contiguous or read-only.
        TypeError
            An `out` with another dtype.
        """
    def take(self, positions: typing.Any, out: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        Return the samples at the given positions.
        
        Parameters
        ----------
        positions : ndarray
            int64, shape (n,), each in [0, size). It must not change during the call.
        out : ndarray, optional
            int64, shape (n,), contiguous, writeable and not overlapping `positions`; written to and
            returned.
        
        Returns
        -------
        ndarray
            int64, shape (n,).
        
        Raises
        ------
        IndexError
            A position outside [0, size).
        ValueError
            More than one dimension; an `out` with another shape, not contiguous, read-only or overlapping.
        TypeError
            A dtype other than int64.
        """
    @property
    def epoch(self) -> int:
        """
        The epoch of the order.
        """
    @property
    def seed(self) -> int:
        """
        The seed of the order.
        """
    @property
    def size(self) -> int:
        """
        Number of samples.
        """
class Column:
    """
    A column to gather from, read in place.
    
    Parameters
    ----------
    values : ndarray of shape (rows,)
        float64, float32, float16, any integer type or bool, with any stride; uint16 for bfloat16.
        The column holds a reference to it.
    validity : uint8[n], optional
        Arrow validity bitmap, least significant bit first: row i is present where bit
        i + validity_offset is 1. Values of absent rows are ignored.
    validity_offset : int
        The bit of row 0.
    nan_is_missing : bool
        Whether NaN is a missing value in fields with a mask or `fill_nan`.
    name : str
        The name in error messages.
    dtype : str, optional
        "bfloat16" for uint16 values that are the bits of bfloat16.
    
    Raises
    ------
    TypeError
        A value that is not an array, or has another dtype.
    ValueError
        More than one dimension, or a bitmap that is too short.
    """
    def __init__(self, values: typing.Any, *, validity: typing.Any = None, validity_offset: typing.Any = 0, nan_is_missing: bool = True, name: str = '', dtype: typing.Any = None) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of rows.
        """
    def __reduce__(self) -> tuple:
        ...
    def count_missing(self) -> int:
        """
        Return the number of rows that are null, or NaN where NaN is missing. O(rows) time, O(1) memory.
        """
    @property
    def dtype(self) -> str:
        """
        The name of the dtype of the values.
        """
    @property
    def name(self) -> str:
        """
        The name in error messages.
        """
class Field:
    """
    The description of one array of a batch: its columns, steps and dtype.
    
    Parameters
    ----------
    name : str
        The key in the batch; a field with a mask also gives "<name>_mask".
    columns : sequence of Column
        The channels, in order.
    step_spans : sequence of (offset, length)
        The steps of each step span are the rows anchor + offset + j * dilation, 0 <= j < length.
    dilation : int
        Rows from one step to the next, 1 or more.
    layout : str
        "btc" (batch, time, channel), "bct", "bt" (one column), "bc" (one step) or "b" (one of both).
    dtype : str
        The dtype of the values: float64, float32, float16, bfloat16 (as uint16), an integer type or
        bool. A column of this dtype that is not scaled is copied unchanged.
    mask : bool
        Whether to make a bool array of the same shape, True where a value is present.
    fill : float
        The value of rows outside the series of the window, and of missing values.
    scale, shift : float64[C] or float64[series, C], optional
        The result is value * scale + shift: the product and the sum are each rounded to float64, and
        the sum to `dtype`. Missing values are not scaled.
    anchor : str
        "window" for the start row of the window, "series" for the first row of its series.
    fill_nan : bool
        Whether NaN becomes `fill` in a field without a mask too.
    
    Raises
    ------
    TypeError, ValueError
        Arguments that are not valid, or do not fit each other; some are checked by Gather.
    """
    def __init__(self, name: str, columns: typing.Any, *, step_spans: typing.Any, dilation: typing.Any = 1, layout: str = 'btc', dtype: str = 'float32', mask: bool = False, fill: typing.Any = 0.0, scale: typing.Any = None, shift: typing.Any = None, anchor: str = 'window', fill_nan: bool = False) -> None:
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
    A gather of windows of columns into batches.
    
    Parameters
    ----------
    index : WindowIndex
        The windows to choose from.
    bounds : int64[S + 1]
        Series s has the rows bounds[s] to bounds[s + 1].
    fields : sequence of Field
        The arrays of a batch.
    index_keys : sequence of str
        Which of "series_id" and "start" a batch has.
    
    Raises
    ------
    TypeError, ValueError
        Bounds that decrease or exceed a column, a key given twice, a field that is not valid.
    
    Notes
    -----
    Immutable and thread-safe. Holds references to the index, the fields and the columns.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import Column, Field, Gather, WindowIndex
    >>> load = Column(np.arange(6.0))
    >>> index = WindowIndex(np.array([0]), np.array([6]), 1)
    >>> past = Field("past", [load], step_spans=[(0, 2)], layout="bt", mask=True, fill=-1)
    >>> batch = Gather(index, np.array([0, 6]), [past]).gather([2, 5])
    >>> batch["past"].tolist(), batch["past_mask"].tolist()
    ([[2.0, 3.0], [5.0, -1.0]], [[True, True], [True, False]])
    >>> batch["start"].tolist()
    [2, 5]
    """
    def __init__(self, index: typing.Any, bounds: typing.Any, fields: typing.Any, *, index_keys: typing.Any = ('series_id', 'start')) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of windows.
        """
    def __reduce__(self) -> tuple:
        ...
    def batches(self, order: typing.Any, start: typing.Any, stop: typing.Any, count: typing.Any, step: typing.Any, wrap: collections.abc.Callable, wrap_keys: dict) -> list:
        """
        Return batches of the windows at some places of an order, by one call.
        
        Parameters
        ----------
        order : Permutation or None
            The order; None for the windows in sequence.
        start, stop : int
            0 <= start <= stop <= size of the order and number of windows: the places of the first batch.
        count : int
            The number of batches, of equally many places each.
        step : int
            The number of places from the start of a batch to that of the next one: no place is in two.
        wrap : callable
            Makes the value of a key of a batch from its array.
        wrap_keys : dict of callable
            Used in place of `wrap` for its keys.
        
        Returns
        -------
        list of dict
            As of `gather`, with wrapped arrays; those of each batch are in a slab of their own.
        
        Raises
        ------
        TypeError, ValueError
            Arguments that are not valid; otherwise as `gather`.
        
        Notes
        -----
        Releases the GIL while it writes the batches.
        """
    def gather(self, indices: typing.Any, out: typing.Any = None, threads: typing.Any = 1) -> dict:
        """
        Return the batch of the given windows.
        
        Parameters
        ----------
        indices : int64[n]
            Numbers of windows, in any order; repeats are allowed.
        out : dict of ndarray, optional
            Arrays to write into, one for every key, with exactly the dtypes and shapes of the batch,
            C-contiguous, aligned and writeable; they must not overlap each other or the columns. By default
            the arrays are new, in one slab of the pool, which is reused after the last of them is deleted.
        threads : int, optional
            The number of threads; None for default_threads().
        
        Returns
        -------
        dict of ndarray
            Every field, its mask if it has one, and the index keys, int64[n].
        
        Raises
        ------
        IndexError
            An index outside [0, len); nothing is written.
        TypeError, ValueError, KeyError
            Indices or `out` that are not valid; nothing is written. ValueError also for a value that an
            integer field cannot hold, with its column and row; the contents of `out` are then unspecified.
        MemoryError
            A batch that does not fit in memory.
        
        Notes
        -----
        Releases the GIL while it writes the batch.
        """
    @property
    def row_bytes(self) -> int:
        """
        Bytes of a row of all arrays.
        """
class ShareTree:
    """
    ShareTree(sizes)
    
    Division of an endless sequence among parts, in exact shares, with random access both ways.
    
    After any number of positions each part is within 2 of its exact share, which is its size over the
    sum of all sizes.
    
    Parameters
    ----------
    sizes : int64[P]
        The size of each part, 0 or more; their sum is from 1 to 2**62.
    
    Raises
    ------
    TypeError
        A dtype other than int64.
    ValueError
        A negative size, or a sum out of range.
    
    Notes
    -----
    O(P log P) time and O(P) memory. Immutable and thread-safe; calls release the GIL.
    
    Examples
    --------
    >>> import numpy as np
    >>> from windeck._core import ShareTree
    >>> tree = ShareTree(np.array([6273, 12000, 34, 880]))
    >>> part, number = tree.locate(np.arange(8))
    >>> part.tolist(), number.tolist()
    ([1, 0, 1, 1, 0, 1, 0, 1], [0, 0, 1, 2, 1, 3, 2, 4])
    >>> tree.count_before(19187 * 10**9).tolist()
    [6273000000000, 12000000000000, 34000000000, 880000000000]
    >>> tree.position_of(0, np.array([0, 1, 2]), 100).tolist()
    [1, 4, 6]
    """
    def __init__(self, sizes: typing.Any) -> None:
        ...
    def __reduce__(self) -> tuple:
        ...
    def count_before(self, count: typing.Any) -> numpy.typing.NDArray[numpy.int64]:
        """
        Return the number of positions of each part among the first `count`, int64[P]. O(P).
        """
    def locate(self, positions: typing.Any) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        Return the part at each position (int64[k], 0 or more), and the number of earlier positions of that part: two int64[k]. O(log P) on average for each.
        """
    def position_of(self, part: typing.Any, numbers: typing.Any, most: typing.Any) -> numpy.typing.NDArray[numpy.int64]:
        """
        Return the position of each number of a part (int64[k], from 0), the inverse of locate: int64[k], -1 for positions above `most` and for a part of size 0.
        """
    @property
    def counts(self) -> numpy.typing.NDArray[numpy.int64]:
        """
        The size of each part, int64[P]. O(P).
        """
    @property
    def period(self) -> int:
        """
        The sum of all sizes.
        """
class EmbeddingCore:
    """
    EmbeddingCore(dim, *, slots=0, initializer="normal", scale=0.01, slot_value=0.0, seed=0,
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
    """
    def __init__(self, dim: typing.SupportsIndex, *, slots: typing.SupportsIndex = 0, initializer: str = 'normal', scale: typing.Any = 0.01, slot_value: typing.Any = 0.0, seed: typing.SupportsIndex = 0, admit_after: typing.SupportsIndex = 1, first_bucket: typing.SupportsIndex = 0, end_bucket: typing.SupportsIndex = 1024, dtype: str = 'float32') -> None:
        ...
    def __len__(self) -> int:
        """
        The number of ids with a row.
        """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def advance(self, steps: typing.SupportsIndex) -> None:
        """
        Add to the clock, and to each version and seen that is not 0: ages stay. O(ids).
        """
    def apply(self, ids: typing.Any, grads: typing.Any, *, kind: str, lr: typing.Any, eps: typing.Any = 1e-10, beta1: typing.Any = 0.9, beta2: typing.Any = 0.999, weight_decay: typing.Any = 0.0, threads: typing.Any = 1) -> int:
        """
        Apply one step of an optimizer to the rows of `ids`.
        
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
        """
    def clear(self) -> None:
        """
        Reset the table to its initial state: no ids, no dead ids, clock 0.
        """
    def evict(self, *, seen_before: typing.Any = None, l2_below: typing.Any = None, frequency_below: typing.Any = None) -> numpy.typing.NDArray[numpy.int64]:
        """
        Remove the ids that satisfy all given conditions.
        
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
        """
    def facts(self, ids: typing.Any) -> dict:
        """
        Return a dict of arrays with the metadata of ids, one entry per id.
        
        "versions", "frequencies" and "seen", int64[n], are 0 for unknown ids; "admitted", bool[n], is True
        for ids with a row. ValueError for an id in a bucket outside the table.
        """
    def find(self, ids: typing.Any) -> numpy.typing.NDArray[numpy.bool]:
        """
        Return a bool array, True for each id with a row.
        """
    def forget_dead(self, clock: typing.SupportsIndex) -> None:
        """
        Forget the dead ids whose clock is at most this.
        """
    def insert(self, keys: typing.Any, versions: typing.Any, frequencies: typing.Any, seen: typing.Any, admitted: typing.Any, values: typing.Any) -> None:
        """
        Insert whole rows, as `EmbeddingSnapshot.read` returns them.
        
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
        """
    def insert_blocks(self, payloads: collections.abc.Sequence, lines: typing.Any, first_bucket: typing.SupportsIndex, end_bucket: typing.SupportsIndex, *, after: typing.SupportsInt | typing.SupportsIndex | None = None, threads: typing.Any = 1) -> int | None:
        """
        Insert the entries of stored blocks.
        
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
        """
    def lookup(self, ids: typing.Any, out: typing.Any = None, *, insert: bool, threads: typing.Any = 1) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return the embedding of each id.
        
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
        """
    def remove(self, ids: typing.Any) -> int:
        """
        remove(ids: int64[n]) -> int
        
        Remove ids, with or without a row, record them as dead, and return their number. Ids that are not in
        the table are ignored. ValueError for an id in a bucket outside the table.
        """
    def reserve(self, ids: typing.SupportsIndex) -> None:
        """
        Reserve space in the index for this many ids in all.
        """
    def row_values(self, ids: typing.Any, *, threads: typing.Any = 1) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        row_values(ids: int64[n], *, threads=1)
        
        Return whole rows, float32[n, (1 + slots) * dim]: the embedding, then the slots. For ids without a
        row, the values of a new row. ValueError for an id in a bucket outside the table.
        """
    def set_clock(self, clock: typing.SupportsIndex) -> None:
        """
        Set the clock, 0 to 2**62, for a restore.
        """
    def snapshot(self) -> EmbeddingSnapshot:
        """
        Return an EmbeddingSnapshot of the current state of the table.
        
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
        """
    @property
    def admit_after(self) -> int:
        """
        The number of lookups after which an id gets a row.
        """
    @property
    def bytes(self) -> int:
        """
        Bytes of memory, without those that only snapshots hold.
        """
    @property
    def clock(self) -> int:
        """
        The number of updates so far.
        """
    @property
    def counted(self) -> int:
        """
        The number of ids without a row that were looked up.
        """
    @property
    def dim(self) -> int:
        """
        The number of numbers of an embedding.
        """
    @property
    def dtype(self) -> str:
        """
        The dtype of rows and slots, "float32" or "bfloat16".
        """
    @property
    def end_bucket(self) -> int:
        """
        The bucket after the last one of this table.
        """
    @property
    def first_bucket(self) -> int:
        """
        The first bucket of this table.
        """
    @property
    def history(self) -> int:
        """
        The number of changes that counts and dead of a snapshot do not show: insert, set_clock, advance, clear, and forget_dead of any id.
        """
    @property
    def initializer(self) -> str:
        """
        The distribution of initial values: 'normal', 'uniform' or 'zeros'.
        """
    @property
    def scale(self) -> float:
        """
        The scale of initial values.
        """
    @property
    def seed(self) -> int:
        """
        The seed of the initial values.
        """
    @property
    def slot_value(self) -> float:
        """
        The initial value of slots.
        """
    @property
    def slots(self) -> int:
        """
        The number of vectors of `dim` numbers after each embedding.
        """
class EmbeddingSnapshot:
    """
    An immutable snapshot of an embedding table.
    
    Made by `EmbeddingCore.snapshot`. Several threads may read it while the table changes. A context
    manager; after `close` every call is a ValueError.
    """
    def __enter__(self) -> typing.Any:
        ...
    def __exit__(self, kind: typing.Any, error: typing.Any, trace: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        """
        The number of ids, with or without a row.
        """
    def __reduce__(self) -> tuple:
        ...
    def blocks(self, first_bucket: typing.SupportsIndex, end_bucket: typing.SupportsIndex, since: typing.SupportsIndex = -1, *, dim: typing.SupportsIndex, slots: typing.SupportsIndex, most: typing.SupportsIndex, borders: collections.abc.Sequence, threads: typing.Any = 1) -> list[tuple[memoryview, int, int, int, int, int, int, int]]:
        """
        Return the same ids as blocks, the format of stores.
        
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
        """
    def close(self) -> None:
        """
        Release the memory; a second call does nothing.
        """
    def counts(self, since: typing.SupportsIndex = -1) -> numpy.typing.NDArray[numpy.int64]:
        """
        counts(since=-1) -> int64[1024]
        
        Return the number of ids in each bucket whose version or seen is above `since`; by default, of all
        ids. O(ids).
        """
    def dead(self, since: typing.SupportsIndex = -1) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
        """
        dead(since=-1) -> (keys, clocks), int64[k] each
        
        Return the ids that were removed and not inserted again, and the clock of the step after their
        removal (the clock of the table + 1), where it is above `since`; sorted by (bucket, id).
        """
    def read(self, first_bucket: typing.SupportsIndex, end_bucket: typing.SupportsIndex, since: typing.SupportsIndex = -1) -> dict:
        """
        Return the ids of a range of buckets that changed after a clock.
        
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
        """
    @property
    def clock(self) -> int:
        """
        The clock of the table when the snapshot was taken.
        """
    @property
    def history(self) -> int:
        """
        The history of the table when the snapshot was taken.
        """
    @property
    def rows(self) -> int:
        """
        The number of ids with a row.
        """
    @property
    def width(self) -> int:
        """
        The number of numbers of a row, (1 + slots) * dim.
        """
class TokenShard:
    """
    The tokens of the documents of one file, read in place.
    
    Made by `from_stream`, `from_arrays` or `from_spans`.
    
    Documents are numbered from 0 in the order of the file. Tokens are integers of 8 to 64 bits, which
    stay in their arrays or in a mapped file. Immutable and thread-safe; methods copy only the values
    they return, and release the GIL in loops.
    
    Filters: leading and trailing tokens that are in `strip` are removed; then a document with fewer
    than `min_length` tokens is filtered: it keeps its number, and has length -1 and no tokens.
    
    Notes
    -----
    O(arrays) memory for lists; 16 bytes per document if each document is an array.
    
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
        Make a shard of the documents of one array.
        
        Document j has the values offsets[j] to offsets[j + 1].
        
        Parameters
        ----------
        values : ndarray
            Any integer dtype, shape (m,). Not copied unless it is strided: do not change it.
        offsets : ndarray
            int64, shape (n + 1,), in [0, m], never decreasing.
        strip : ndarray, optional
            int64, shape (k,): tokens to remove from the start and the end of every document.
        min_length : int
            Documents with fewer tokens, after stripping, are filtered.
        name : str
            The name in error messages.
        
        Raises
        ------
        TypeError
            Values that are not integers; offsets or strip with a dtype other than int64.
        ValueError
            No offsets, offsets that decrease or exceed the values (an O(n) check), a negative min_length.
        """
    @staticmethod
    def from_spans(data: typing.Any, starts: typing.Any, lengths: typing.Any, *, dtype: str, strip: typing.Any = None, min_length: typing.Any = 0, file: typing.Any = -1, name: str = '') -> TokenShard:
        """
        Make a shard of documents at any places of one memory.
        
        Document j has lengths[j] tokens from the byte starts[j] on, in the byte order of the machine.
        
        Parameters
        ----------
        data : ndarray
            uint8, shape (m,): the memory, such as a mapped file. Not copied: do not change it.
        starts, lengths : ndarray
            int64, shape (n,). Documents may overlap, and need no alignment.
        dtype : str
            The dtype of the tokens, such as 'uint16'.
        strip, min_length, name
            As in `from_arrays`.
        file : int
            Descriptor of the file that `data` maps from its first to its last byte (it is duplicated), or
            -1. A read of a file that was truncated while mapped is an OSError.
        
        Raises
        ------
        TypeError
            Data with a dtype other than uint8, starts or lengths with one other than int64, a `dtype` that
            is not an integer.
        ValueError
            A document that is not inside the data, starts and lengths of different shapes, a negative
            min_length.
        OSError
            A descriptor that cannot be duplicated.
        
        Notes
        -----
        O(n) time, 16 bytes of memory per document.
        
        Examples
        --------
        >>> import numpy as np
        >>> from windeck._core import TokenShard
        >>> data = np.array([5, 6, 0, 7], dtype=np.uint16).view(np.uint8)
        >>> shard = TokenShard.from_spans(data, np.array([0, 6]), np.array([2, 1]), dtype="uint16")
        >>> [shard.document(number).tolist() for number in range(len(shard))]
        [[5, 6], [7]]
        """
    @staticmethod
    def from_stream(stream: typing.Any, *, strip: typing.Any = None, min_length: typing.Any = 0, region: typing.Any = None, owner: typing.Any = None, name: str = '') -> TokenShard:
        """
        Make a shard of the documents of an Arrow column.
        
        Parameters
        ----------
        stream : object with __arrow_c_stream__
            A column over the Arrow C data interface: a pyarrow ChunkedArray, a table of one column. Each
            row of a list, large_list or fixed_size_list of integers is a document, a null row an empty
            document. In a column of integers each array is a document; pass a ChunkedArray then, since a
            pyarrow table drops empty chunks.
        strip, min_length, name
            As in `from_arrays`.
        region : (int, int, int), optional
            Address and size in bytes of the mapped file that holds the arrays, and its descriptor (which
            is duplicated) or -1. Of arrays in it only the addresses are kept. A read of a file that was
            truncated while mapped is an OSError.
        owner : object, optional
            The object that keeps `region` mapped. The shard holds a reference to it while any array is in
            the region.
        
        Raises
        ------
        TypeError
            A column of another type, dictionary-encoded columns included.
        ValueError
            Null tokens, more than one column, offsets that decrease or exceed the values, a negative
            min_length, an array that is partly outside `region`, a stream that fails.
        OSError
            A file that was truncated, a descriptor that cannot be duplicated.
        
        Notes
        -----
        O(documents). The lengths of buffers outside `region` are not checked; `validate()` of pyarrow
        checks them.
        
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
        The number of documents, including filtered ones.
        """
    def __reduce__(self) -> tuple:
        ...
    def __repr__(self) -> str:
        ...
    def document(self, document: typing.SupportsIndex) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return a copy of the tokens of a document after filters, empty if it is filtered. IndexError outside [0, len); OSError for a file that was truncated or written to.
        """
    def lengths(self, out: typing.Any = None) -> numpy.ndarray[typing.Any, numpy.dtype[typing.Any]]:
        """
        Return the number of tokens of every document after filters, int64[n]; -1 for filtered documents. OSError for a file that was truncated.
        """
    def part(self, key: typing.Any, first: typing.Any, last: typing.Any) -> TokenShard:
        """
        Return the same documents, with those filtered whose hash under `key` is outside of [first, last]. The hash of document j is the j-th key of cpp/include/windeck/base/hash.hpp. The memory is shared.
        """
    def totals(self) -> tuple[int, int, int, int]:
        """
        Return (documents, tokens, kept_documents, kept_tokens), before and after filters. O(arrays), or O(n) with filters. OSError for a file that was truncated.
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
        The name in error messages.
        """
class WindowIndex:
    """
    WindowIndex(first, count, stride, *, series=None, keep=None)
    
    An index of windows in window runs: candidate j of window run r starts at row first[r] + j * stride.
    
    Parameters
    ----------
    first : int64[R]
        The start row of the first candidate of each window run; may be before its series.
    count : int64[R]
        The number of candidates in each window run, 0 or more.
    stride : int
        The rows from one candidate to the next, 1 or more.
    series : int64[R], optional
        The series of each window run; by default window run r is series r.
    keep : uint8[ceil(sum(count) / 8)], optional
        Bitmap over all candidates in order, least significant bit first: 1 keeps the candidate.
    
    Raises
    ------
    TypeError
        An array with another dtype.
    ValueError
        A stride below 1, a negative count or series, lengths that differ, a window in two window runs.
    OverflowError
        Rows or a number of windows beyond 2**63 - 1.
    
    Notes
    -----
    O(R) memory, and 1.25 bits per candidate with `keep`. Immutable and thread-safe.
    
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
        Return the window that starts at each row of each series, int64[n]; -1 for none. The inverse of `locate`.
        """
    def locate(self, indices: typing.Any) -> tuple:
        """
        Return the series and the start row of each window, int64[n] each. IndexError for an index outside [0, len).
        """
    def slice(self, start: typing.Any, stop: typing.Any) -> tuple:
        """
        Return the series and the start rows of the windows [start, stop), int64 each.
        """
    @property
    def size(self) -> int:
        """
        The number of windows.
        """
def add_block_sums(shard: typing.Any, *, size: typing.Any, seed: typing.Any, first: typing.Any, block_size: typing.Any, frame: typing.Any, sums: numpy.ndarray[typing.Any, numpy.dtype[typing.Any]], threads: typing.Any = 1) -> None:
    """
    Add the framed length of each document of a shard to the sum of its block: of document first + j, the place in Permutation(size, seed=seed) // block_size. `frame` is the number of tokens that a frame adds. Several threads may add to the same sums.
    """
def bucket_of(ids: typing.Any) -> numpy.typing.NDArray[numpy.int64]:
    """
    bucket_of(ids: int64[n]) -> int64[n]
    
    Return the bucket of each id, 0 to 1023: the upper ten bits of a published hash.
    
    Examples
    --------
    >>> from windeck._core import bucket_of
    >>> bucket_of([0, 1, -1]).tolist()
    [0, 346, 723]
    """
def checked_bulk(values: typing.Any, size: typing.SupportsIndex, what: str, out: typing.Any) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    Return (values, output) as int64 arrays; all values must be in [0, size).
    """
def checked_one(value: typing.SupportsIndex, size: typing.SupportsIndex, what: str, *, from_end: bool = False) -> int:
    """
    Return `value` as an int in [0, size); with `from_end`, negative ones count from the end.
    """
def checked_range(start: typing.SupportsIndex, stop: typing.SupportsIndex, size: typing.SupportsIndex, out: typing.Any) -> tuple[int, int, numpy.typing.NDArray[numpy.int64]]:
    """
    Return the checked (start, stop, output) of order.slice.
    """
def crc32c(buffer: typing.Any, crc: typing.Any = 0) -> int:
    """
    Return the CRC32C (Castagnoli) checksum of bytes.
    
    Parameters
    ----------
    buffer : bytes, memoryview, uint8 array or any contiguous buffer
        The bytes of its memory, for items of any type.
    crc : int
        The checksum of the bytes before these.
    
    Returns
    -------
    int
        In [0, 2**32). crc32c(b, crc32c(a)) == crc32c(a + b).
    
    Raises
    ------
    TypeError
        An object without a buffer.
    ValueError
        A buffer that is not contiguous, or a crc outside [0, 2**32).
    
    Notes
    -----
    O(n). Releases the GIL for 16 KiB or more.
    
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
    Return the CRC32C of bytes a + b from the checksums of a and of b.
    
    Parameters
    ----------
    first, second : int
        The checksums of a and of b, in [0, 2**32).
    second_size : int
        The number of bytes of b, in [0, 2**63).
    
    Returns
    -------
    int
        crc32c(a + b).
    
    Raises
    ------
    TypeError, ValueError
        An argument that is not an integer, or is outside its range.
    
    Notes
    -----
    O(log n).
    
    Examples
    --------
    >>> from windeck._core import crc32c, crc32c_joined
    >>> crc32c_joined(crc32c(b"12345"), crc32c(b"6789"), 4) == crc32c(b"123456789")
    True
    """
def cu_seqlens(position_ids: typing.Any, batches: typing.Any = 1) -> list:
    """
    Return the bounds of the pieces of each of `batches` flattened batches, which position_ids are of end to end, as a list of int32[m]: 0, the positions after the first where the ids are 0, and the number of ids. Within a piece they count up from 0. Aligned to 64 bytes. O(pieces) time.
    """
def default_threads() -> int:
    """
    Return the default number of threads: WINDECK_NUM_THREADS, or that of the processors.
    """
def empty_rows(layout: typing.Any, count: typing.SupportsIndex) -> dict:
    """
    Return uninitialised arrays of `count` rows in memory of the pool, each at a multiple of 64 bytes. `layout` has the dtype and the shape of a row by key.
    """
def fit_pieces(fits: collections.abc.Sequence, fit_of: typing.Any, sequences: typing.Any) -> tuple:
    """
    Return the pieces of rows as (row_offsets, document_run_of, starts, lengths), where row r is sequence sequences[r] of fit fit_of[r].
    """
def hash_words(*args: typing.SupportsIndex) -> int:
    """
    Hash 64-bit words to one, as in cpp/include/windeck/base/hash.hpp: keys of different words are independent.
    """
def pack(document_runs: collections.abc.Sequence, row_offsets: typing.Any, document_run_of: typing.Any, starts: typing.Any, lengths: typing.Any, *, sequence_length: typing.Any, dtype: typing.Any = 'int64', pad: typing.Any = None, bos: typing.Any = None, eos: typing.Any = None, out: typing.Any = None, threads: typing.Any = 1) -> dict:
    """
    Return a batch of rows made of pieces of document runs.
    
    Parameters
    ----------
    document_runs : sequence of DocumentRun
        The document runs that pieces refer to.
    row_offsets : int64[k + 1]
        Row r has the pieces row_offsets[r] to row_offsets[r + 1].
    document_run_of, starts, lengths : int64[p]
        Piece j has the `lengths[j]` tokens of document run document_run_of[j] from starts[j] on.
    sequence_length : int
        L: a row has L + 1 tokens and L position_ids.
    dtype : str
        "int64" or "int32".
    pad : int, optional
        The token that fills shorter rows. Without it, all rows must be full.
    out : dict of ndarray, optional
        Arrays to write into, with exactly the dtypes and shapes of the batch. By default new ones in
        one slab of the pool.
    bos, eos : int, optional
        The first and the last token of each row, before and after those of its pieces: L + 1 less one
        for each of them. Their position_ids and targets_mask are those of a token more of the first
        and of the last document.
    threads : int, optional
        The number of threads; None for default_threads().
    
    Returns
    -------
    dict of ndarray
        "tokens" (k, L + 1); "position_ids" (k, L), which count from 0 at the start of each row, piece
        and document; with `pad` also "targets_mask" (k, L), bool.
    
    Raises
    ------
    TypeError, ValueError, KeyError
        Arrays that are not valid, pieces outside their document runs, rows of a wrong length; nothing is
        written. ValueError also for a token that the dtype cannot hold, with its document; the contents
        of `out` are then unspecified.
    OSError
        A file that became shorter while it was mapped.
    
    Notes
    -----
    Releases the GIL while it writes the batch.
    """
def pack_blocks(keys: typing.Any, versions: typing.Any, frequencies: typing.Any, seen: typing.Any, states: typing.Any, values: typing.Any, *, dim: typing.SupportsIndex, slots: typing.SupportsIndex, most: typing.SupportsIndex, borders: collections.abc.Sequence) -> list[tuple[memoryview, int, int, int, int, int, int, int]]:
    """
    Return sorted entries as blocks.
    
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
    """
def permute_keyed(sizes: typing.Any, keys: typing.Any, epochs: typing.Any, positions: typing.Any, *, seed: typing.SupportsIndex) -> numpy.typing.NDArray[numpy.int64]:
    """
    Return Permutation(sizes[j], seed=hash_words(seed, keys[j]), epoch=epochs[j])[positions[j]] for each j.
    """
def pool_stats() -> dict:
    """
    Return the statistics of the memory pool of batches: slabs allocated and taken so far, and slabs and bytes in use (live) and free.
    """
def round_keys(order: Permutation) -> tuple[int, list[int]]:
    """
    Return the bits k of the domain of an order, and the keys of its rounds: the factor and the addend of each, and the last addend (see cpp/include/windeck/orders/permutation.hpp).
    """
def simd() -> str:
    """
    Return the instruction set in use: 'baseline', 'avx2' or 'avx512' (see WINDECK_SIMD).
    """
def trim_pool() -> None:
    """
    Return the free memory of the pool to the system.
    """
ORDER_VERSION: int = 1
