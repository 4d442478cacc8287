"""
The native core of windeck: orders, windows, gather.
"""
from __future__ import annotations
import collections.abc
import numpy
import numpy.typing
import typing
__all__: list[str] = ['Column', 'Field', 'Gather', 'LCG', 'ORDER_VERSION', 'Permutation', 'WindowIndex', 'checked_bulk', 'checked_integer', 'checked_one', 'checked_range', 'default_threads', 'hash_words', 'pool_stats', 'simd', 'trim_pool']
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
    Column(values, *, validity=None, validity_offset=0, nan_is_missing=True, name='', dtype=None)
    
    A one-dimensional array of any stride, read in place and kept alive. `validity` is an Arrow bitmap.
    """
    def __init__(self, values: typing.Any, *, validity: typing.Any = None, validity_offset: typing.Any = 0, nan_is_missing: bool = True, name: str = '', dtype: typing.Any = None) -> None:
        ...
    def __len__(self) -> int:
        ...
    @property
    def dtype(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
class Field:
    """
    One array of a batch: which columns and steps, and how.
    """
    def __init__(self, name: str, columns: typing.Any, *, segments: typing.Any, dilation: typing.Any = 1, layout: str = 'btc', dtype: str = 'float32', mask: bool = False, fill: typing.Any = 0.0, scale: typing.Any = None, shift: typing.Any = None, anchor: str = 'window') -> None:
        ...
    @property
    def name(self) -> str:
        ...
class Gather:
    """
    Makes batches of windows; see gather.
    """
    def __init__(self, index: typing.Any, bounds: typing.Any, fields: typing.Any) -> None:
        ...
    def __len__(self) -> int:
        ...
    def gather(self, indices: typing.Any, *, out: typing.Any = None, threads: typing.Any = 1) -> dict:
        """
        gather(indices: int64[n], *, out=None, threads=1) -> dict of arrays
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
def checked_bulk(values: typing.Any, size: typing.SupportsIndex, what: str, out: typing.Any) -> tuple[numpy.typing.NDArray[numpy.int64], numpy.typing.NDArray[numpy.int64]]:
    """
    (values, output) as int64 arrays, all values in [0, size).
    """
def checked_integer(value: typing.SupportsIndex, what: str, low: typing.SupportsInt | typing.SupportsIndex) -> int:
    """
    An int in [low, 2^63).
    """
def checked_one(value: typing.SupportsIndex, size: typing.SupportsIndex, what: str, *, from_end: bool = False) -> int:
    """
    An int in [0, size); `from_end`: negative ones count from the end.
    """
def checked_range(start: typing.SupportsIndex, stop: typing.SupportsIndex, size: typing.SupportsIndex, out: typing.Any) -> tuple[int, int, numpy.typing.NDArray[numpy.int64]]:
    """
    (start, stop, output) of order.slice.
    """
def default_threads() -> int:
    """
    The number of threads where none is given: WINDECK_NUM_THREADS, or the processors.
    """
def hash_words(*args: typing.SupportsIndex) -> int:
    """
    Words of 64 bits hashed to one, as in cpp/include/windeck/hash.hpp: a key for a part that has nothing to do with any other part's.
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
