"""Reading of MDS shards, as the streaming library of MosaicML writes them."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, NamedTuple, NoReturn, TypeAlias

import numpy as np

from windeck._core import TokenShard
from windeck._util.text import parse_json, unknown_column
from windeck.documents.checking import FileSummary
from windeck.documents.protocol import Int64s
from windeck.documents.token_files import (
    DOCUMENT_BYTES,
    INTEGERS,
    map_documents,
    read_exactly,
)
from windeck.io import filesystem
from windeck.io.filesystem import RangeReader
from windeck.io.record_batches import name_in_errors

__all__ = ["INDEX", "SUFFIXES", "MDSReader", "find_shards"]

#: Suffixes of shards, compressed ones too; of these only zstd is read.
SUFFIXES = tuple(f".mds{codec}" for codec in ("", ".zstd", ".br", ".bz2", ".gz", ".snappy"))
#: Name of the file that lists the shards of a folder.
INDEX = "index.json"
#: Codes of integer dtypes in arrays without a dtype in their encoding.
_DTYPES = {
    bits + is_signed: f"{'' if is_signed else 'u'}int{bits}"
    for bits in (8, 16, 32, 64)
    for is_signed in (0, 1)
}
#: Bytes before the values of an array: its dtype, the size of its shape, one number of the shape.
_MAX_ARRAY_HEAD = 10
#: Bytes of samples that are read at a time, and samples.
_PORTION_BYTES, _PORTION_SAMPLES = 1 << 22, 1 << 16
#: Offsets in a shard are uint32.
_MAX_BYTES = 2**32

#: Function (start, count) that returns these bytes of a shard.
_Read: TypeAlias = Callable[[int, int], bytes]


class _SampleColumns(NamedTuple):
    """Names, encodings and sizes of the columns of a shard; 0 for a column of variable size."""

    names: tuple[str, ...]
    encodings: tuple[str, ...]
    sizes: tuple[int, ...]


class _IndexEntry(NamedTuple):
    """An entry of an index file. `zip_name` is empty for a shard that is not compressed."""

    raw_name: str
    raw_bytes: int
    zip_name: str
    zip_bytes: int
    compression: str
    samples: int
    columns: _SampleColumns


def find_shards(home: str, walked: Sequence[str]) -> list[str]:
    """Return the MDS shards among the files below a folder, as index files list them.

    Parameters
    ----------
    home
        The folder.
    walked
        The files below it, relative to it. Of a shard that has been decompressed the raw file is
        returned.

    Raises
    ------
    FileNotFoundError
        If an index lists a shard that does not exist.
    ValueError
        If an index file is damaged.
    """
    known, found = set(walked), {}
    for path in sorted(walked, key=lambda one: (one.count("/"), one)):
        if path.rsplit("/", 1)[-1] != INDEX:
            continue
        folder = path[: -len(INDEX)]
        for entry in _load_index(filesystem.join(home, path)).values():
            names = [f"{folder}{name}" for name in (entry.raw_name, entry.zip_name) if name]
            there = [name for name in names if name in known]
            if not there:
                raise FileNotFoundError(
                    f"'{home}/{path}' lists {' and '.join(map(repr, names))}, which does not exist"
                )
            found[there[0]] = entry
    return list(found)


def _load_index(path: str) -> dict[str, _IndexEntry]:
    """Return the MDS shards of an index file by their names; none of another file."""
    with RangeReader(path) as file:
        version = (file.size, file.modified)
    # A path alone does not say on which file system it is.
    return _parse_index(path, getattr(path, "mount", None), version)


@lru_cache(maxsize=16)
def _parse_index(path: str, mount: object, version: tuple[int, int]) -> dict[str, _IndexEntry]:
    """Parse an index file of this size and time. The result is shared: do not change it."""
    found = parse_json(filesystem.read_bytes(path), repr(path))
    if not isinstance(found, dict) or not isinstance(found.get("shards"), list):
        return {}
    if found.get("version") != 2:
        raise ValueError(f"{path!r} has version {found.get('version')!r}, expected 2")
    shared: dict[_SampleColumns, _SampleColumns] = {}
    entries: dict[str, _IndexEntry] = {}
    for place, shard in enumerate(found["shards"]):
        try:
            entry = _parse_entry(shard)
        except (KeyError, TypeError, ValueError) as error:
            text = f"no {error}" if isinstance(error, KeyError) else str(error)
            raise ValueError(f"shard {place} in {path!r} cannot be read: {text}") from error
        entry = entry._replace(columns=shared.setdefault(entry.columns, entry.columns))
        for name in filter(None, (entry.raw_name, entry.zip_name)):
            if name in entries:
                raise ValueError(f"shard {place} in {path!r} has the name {name!r} of another one")
            entries[name] = entry
    return entries


def _parse_entry(shard: Any) -> _IndexEntry:
    if not isinstance(shard, dict):
        raise TypeError(f"it is {shard!r}, expected an object")
    if (shard["format"], shard["version"]) != ("mds", 2):
        raise ValueError(
            f"it has format {shard['format']!r} and version {shard['version']!r}, expected "
            "'mds' and 2"
        )
    raw, packed = shard["raw_data"], shard.get("zip_data")
    compression = shard.get("compression") or ""
    if bool(packed) != bool(compression) or not isinstance(compression, str):
        raise ValueError(f"its compression is {compression!r}, and its zip_data {packed!r}")
    return _IndexEntry(
        _checked_name(raw["basename"]),
        _checked_count(raw["bytes"]),
        _checked_name(packed["basename"]) if packed else "",
        _checked_count(packed["bytes"], 2**63) if packed else 0,
        compression,
        _checked_count(shard["samples"]),
        _parse_columns(shard),
    )


def _checked_name(name: Any) -> str:
    """Return a name of a file below the folder of its index."""
    parts = name.split("/") if isinstance(name, str) else [""]
    if "" in parts or "." in parts or ".." in parts or "\\" in name or "\0" in name:
        raise ValueError(f"its name is {name!r}, expected that of a file below its folder")
    return str(name)


def _checked_count(number: Any, end: int = _MAX_BYTES) -> int:
    if isinstance(number, bool) or not isinstance(number, int) or not 0 <= number < end:
        raise ValueError(f"it has the number {number!r}, expected an integer in [0, {end})")
    return number


def _parse_columns(config: Mapping[str, Any]) -> _SampleColumns:
    fields = [config["column_names"], config["column_encodings"], config["column_sizes"]]
    if not all(isinstance(one, list) and len(one) == len(fields[0]) for one in fields):
        raise ValueError("its columns are not lists of one length")
    names, encodings, sizes = fields
    if not all(isinstance(one, str) for one in (*names, *encodings)):
        raise ValueError("its columns have names or encodings that are not text")
    return _SampleColumns(
        tuple(names),
        tuple(encodings),
        tuple(0 if size is None else _checked_count(size) for size in sizes),
    )


def _find_entry(path: str) -> tuple[_IndexEntry, bool]:
    """Return the entry of a shard, in the index of its folder or of one above.

    The second value is True for the compressed file of the shard.

    Raises
    ------
    ValueError
        If no index lists it.
    """
    folder = path
    while (above := filesystem.parent(folder)) != folder:
        folder = above
        name = path[len(folder) :].lstrip("/")
        try:
            entry = _load_index(filesystem.join(folder, INDEX)).get(name)
        except FileNotFoundError:
            continue
        if entry is not None:
            return entry, name == entry.zip_name
    raise ValueError(f"no {INDEX} in a folder of {path!r} lists it; expected one that does")


@dataclass(frozen=True)
class MDSReader:
    """Reader of MDS shards with a column of tokens, not compressed or compressed by zstd.

    Attributes
    ----------
    column
        The column that holds the documents: ``ndarray`` of one dimension, or ``bytes``.
    dtype
        The dtype of a column of bytes. Of arrays it is stored.
    """

    column: str
    dtype: str | None = None

    def check(self, path: str) -> FileSummary:
        entry, is_packed = self._entry(path)
        expected = entry.zip_bytes if is_packed else entry.raw_bytes
        with RangeReader(path) as file:
            if file.size != expected:
                raise ValueError(
                    f"{path!r} has {file.size:,} bytes, expected {expected:,} from its {INDEX}"
                )
            size, modified = file.size, file.modified
        encoding = self._encoding(path, entry.columns)
        # Of arrays that state their dtype one by one, the widest is assumed.
        width = np.dtype(encoding.dtype or "int64").itemsize
        return FileSummary(
            size,
            modified,
            entry.samples,
            width,
            is_packed or filesystem.is_remote(path),
            DOCUMENT_BYTES,
        )

    def count(self, path: str) -> tuple[int, int] | None:
        entry, is_packed = self._entry(path)
        encoding = self._encoding(path, entry.columns)
        if encoding.length is not None:
            return entry.samples, entry.samples * encoding.length
        if is_packed or len(entry.columns.names) > 1 or not encoding.dtype:
            return None
        with RangeReader(path) as file:
            shard = _Shard(path, entry, lambda start, count: read_exactly(file, path, start, count))
        tokens = shard.count_tokens(encoding)
        return None if tokens is None else (entry.samples, tokens)

    def open(self, path: str, filters: Mapping[str, Any]) -> TokenShard:
        path = filesystem.load(path)
        entry, is_packed = self._entry(path)
        encoding = self._encoding(path, entry.columns)
        if is_packed:
            content = _decompress(path, entry)
            data = np.frombuffer(content, np.uint8)
            shard = _Shard(path, entry, lambda start, count: data[start : start + count].tobytes())
            starts, lengths, dtype = shard.find_documents(encoding)
            return TokenShard.from_spans(data, starts, lengths, dtype=dtype, **filters)
        with RangeReader(path) as file:
            if file.size != entry.raw_bytes:
                raise ValueError(
                    f"{path!r} has {file.size:,} bytes, expected {entry.raw_bytes:,} from its "
                    f"{INDEX}"
                )
            shard = _Shard(path, entry, lambda start, count: read_exactly(file, path, start, count))
            starts, lengths, dtype = shard.find_documents(encoding)
        return map_documents(path, starts, lengths, dtype, filters)

    def _entry(self, path: str) -> tuple[_IndexEntry, bool]:
        """Return the entry of a file, and whether the file is compressed."""
        entry, is_packed = _find_entry(path)
        if is_packed and entry.compression.split(":")[0] != "zstd":
            raise ValueError(
                f"{path!r} is compressed by {entry.compression!r}; expected no compression or zstd"
            )
        return entry, is_packed

    def _encoding(self, path: str, columns: _SampleColumns) -> _Encoding:
        """Return the encoding of the column of tokens.

        Raises
        ------
        KeyError
            If there is no such column.
        ValueError, TypeError
            If it occurs twice, or its encoding is not one of tokens or has another dtype.
        """
        if columns.names.count(self.column) != 1:
            if self.column in columns.names:
                raise ValueError(f"{path!r} has several columns named {self.column!r}")
            raise unknown_column(self.column, list(columns.names), repr(path), option="column")
        place = columns.names.index(self.column)
        text = columns.encodings[place]
        where = f"column {self.column!r} of {path!r} is {text!r}"
        if text == "bytes":
            if self.dtype is None:
                raise ValueError(f'{where}; expected `dtype`, such as "uint16", for its tokens')
            return _Encoding(place, self.dtype, is_array=False)
        kind, _, rest = text.partition(":")
        dtype, _, shape = rest.partition(":")
        if kind != "ndarray" or (dtype and dtype not in INTEGERS) or (shape and not dtype):
            raise TypeError(f"{where}; expected 'ndarray' of integers, or 'bytes'")
        if shape and not (shape.isascii() and shape.isdigit() and 0 < int(shape[:16]) < 10**15):
            raise TypeError(f"{where}; expected arrays of one dimension")
        if dtype and self.dtype not in (None, dtype):
            raise ValueError(f"{where}, but `dtype` is {self.dtype!r}")
        return _Encoding(
            place, dtype, expected=self.dtype or "", length=int(shape) if shape else None
        )


class _Encoding(NamedTuple):
    """The encoding of the column at `place`.

    `dtype` is empty if every array states its own (`expected` is then the dtype that the user
    gave, or empty), and `length` is None if every array states its length.
    """

    place: int
    dtype: str
    expected: str = ""
    length: int | None = None
    is_array: bool = True


def _decompress(path: str, entry: _IndexEntry) -> Any:
    """Return the contents of a compressed shard, of exactly the size in the index.

    They are in memory once. Not more is decompressed, however many bytes the file would give.
    """
    limit = filesystem.decompressed_limit(path)
    if entry.raw_bytes > limit:
        raise ValueError(
            f"{path!r} has {filesystem.size(path):,} bytes and {entry.raw_bytes:,} when it is "
            f"decompressed, as its {INDEX} states; expected no more than {limit:,}: decompress it "
            "first"
        )
    content = np.empty(entry.raw_bytes, np.uint8).data
    with name_in_errors(path, "zstd"), filesystem.open_stream(path, "zstd") as source:
        size = 0
        while count := source.readinto(content[size : size + _PORTION_BYTES]):
            size += count
        more = source.read(1)
    if size != entry.raw_bytes or more:
        raise ValueError(
            f"{path!r} has {'more than ' if more else ''}{size:,} bytes when it is decompressed, "
            f"expected {entry.raw_bytes:,} from its {INDEX}"
        )
    return content


class _Shard:
    """The samples of a shard: the places of the tokens of one column."""

    def __init__(self, path: str, entry: _IndexEntry, read: _Read) -> None:
        self._path, self._entry, self._read = path, entry, read
        self._offsets = self._read_offsets()
        self._check_config()

    def _fail(self, problem: str) -> NoReturn:
        raise ValueError(f"{self._path!r} cannot be read as MDS: {problem}")

    def _read_offsets(self) -> Int64s:
        """Return the first byte of every sample, and the end of the last, after checks."""
        samples, size = self._entry.samples, self._entry.raw_bytes
        first = 4 * (samples + 2)
        if first > size:
            self._fail(f"it has {size:,} bytes, which is too few for {samples:,} samples")
        numbers = np.frombuffer(self._read(0, first), "<u4").astype(np.int64)
        if numbers[0] != samples:
            self._fail(f"it has {numbers[0]:,} samples, expected {samples:,} from its {INDEX}")
        offsets = numbers[1:]
        if offsets[0] < first or offsets[-1] != size or (offsets[1:] < offsets[:-1]).any():
            self._fail(
                f"its samples start at the bytes {offsets[0]:,} to {offsets[-1]:,}, expected "
                f"numbers from {first:,} to {size:,} that never decrease"
            )
        return offsets

    def _check_config(self) -> None:
        """Compare the columns that the shard states with those in the index."""
        first = 4 * len(self._offsets) + 4
        text = self._read(first, int(self._offsets[0]) - first)
        try:
            columns = _parse_columns(json.loads(text))
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            self._fail(f"its description of columns is {text[:60]!r} ({error})")
        if columns != self._entry.columns:
            self._fail(f"it has the columns {columns}, expected {self._entry.columns}")

    def count_tokens(self, encoding: _Encoding) -> int | None:
        """Return the number of tokens of samples of one column, by the sizes of samples.

        Arrays are assumed to have the shortest heads that their lengths allow, as they are written.
        None if a sample is too short for its head: it cannot be read, and opening says why.
        """
        width = np.dtype(encoding.dtype).itemsize
        sizes = np.diff(self._offsets) - 4
        if not encoding.is_array:
            return int((sizes // width).sum()) if (sizes >= 0).all() else None
        # A head of one byte for the kind of the shape, and 1, 2, 4 or 8 for the length.
        heads = [(1 + wide, 2 ** (8 * wide)) for wide in (1, 2, 4)]
        lengths = (sizes - 9) // width
        for head, end in reversed(heads):
            lengths = np.where((sizes - head) // width < end, (sizes - head) // width, lengths)
        return int(lengths.sum()) if (lengths >= 0).all() else None

    def find_documents(self, encoding: _Encoding) -> tuple[Int64s, Int64s, str]:
        """Return the first byte and the number of tokens of every document, and their dtype."""
        found = [np.zeros((2, 0), np.int64)]
        # Without a document, the dtype is of no importance.
        dtype = encoding.dtype or encoding.expected
        for window in self._windows():
            starts, sizes = self._column_spans(window, encoding.place)
            if encoding.is_array:
                if not encoding.dtype:
                    dtype = self._array_dtype(window, starts, sizes, dtype)
                    starts, sizes = starts + 1, sizes - 1
                starts, sizes = self._array_values(window, starts, sizes, encoding.length, dtype)
            width = np.dtype(dtype).itemsize
            self._require(
                window, sizes % width == 0, f"bytes that are no multiple of {width}, for {dtype}"
            )
            found.append(np.stack([starts + window.start, sizes // width]))
        starts, lengths = np.ascontiguousarray(np.concatenate(found, axis=1))
        return starts, lengths, dtype or "int32"

    def _windows(self) -> Iterator[_Window]:
        """Yield all samples, some at a time, with their bytes."""
        offsets, first, count = self._offsets, 0, len(self._offsets) - 1
        while first < count:
            end = np.searchsorted(offsets, offsets[first] + _PORTION_BYTES, side="right") - 1
            last = min(max(int(end), first + 1), first + _PORTION_SAMPLES, count)
            start, size = int(offsets[first]), int(offsets[last] - offsets[first])
            # Zeros after the end, so that numbers can be loaded before their places are checked.
            data = np.zeros(size + _MAX_ARRAY_HEAD, np.uint8)
            data[:size] = np.frombuffer(self._read(start, size), np.uint8)
            yield _Window(first, start, data, offsets[first : last + 1] - start)
            first = last

    def _require(self, window: _Window, sound: Any, problem: str) -> None:
        """Raise an error for the first sample that is not sound."""
        if not sound.all():
            self._fail(f"sample {window.first + int(np.argmin(sound))} has {problem}")

    def _column_spans(self, window: _Window, place: int) -> tuple[Int64s, Int64s]:
        """Return the first byte and the size of a column in every sample of a window.

        A sample has the sizes of its columns of variable size, as uint32, and then its columns.
        """
        starts, sizes = window.offsets[:-1], np.diff(window.offsets)
        fixed = self._entry.columns.sizes
        head = 4 * fixed.count(0)
        self._require(window, sizes >= head, "fewer bytes than the sizes of its columns")
        columns, variable = [], 0
        for size in fixed:
            columns.append(
                np.full(len(starts), size) if size else window.load(starts + 4 * variable, 4)
            )
            variable += not size
        before = head + sum(columns[:place], np.zeros_like(starts))
        total = before + sum(columns[place:], np.zeros_like(starts))
        self._require(window, total == sizes, "columns that do not fill its bytes")
        return starts + before, columns[place]

    def _array_dtype(self, window: _Window, starts: Int64s, sizes: Int64s, known: str) -> str:
        """Return the dtype that the arrays of a window state; `known`: of other windows, or ""."""
        self._require(window, sizes >= 1, "an array without a dtype")
        codes = window.load(starts, 1)
        dtype = known or _DTYPES.get(int(codes[0]), "")
        right = np.array([_DTYPES.get(code) == dtype for code in range(256)])
        self._require(window, right[codes], f"an array of another dtype than {dtype or 'integers'}")
        return dtype

    def _array_values(
        self, window: _Window, starts: Int64s, sizes: Int64s, length: int | None, dtype: str
    ) -> tuple[Int64s, Int64s]:
        """Return the first byte and the size of the values of arrays of one dimension."""
        if length is None:
            self._require(window, sizes >= 1, "an array without a shape")
            kinds = window.load(starts, 1)
            self._require(window, kinds >> 2 == 1, "an array that has not one dimension")
            widths = np.left_shift(1, kinds & 3)
            self._require(window, sizes > widths, "an array without a shape")
            wide = window.load(starts + 1, 8)
            lengths = np.where(widths == 8, wide, wide & (np.left_shift(1, 8 * (widths & 7)) - 1))
            starts, sizes = starts + 1 + widths, sizes - 1 - widths
        else:
            lengths = np.full(len(starts), length)
        # Divided, not multiplied: a product of numbers from a file may overflow.
        width = np.dtype(dtype).itemsize
        self._require(
            window,
            (sizes // width == lengths) & (sizes % width == 0),
            f"an array of {dtype} whose values do not fill its bytes",
        )
        return starts, sizes


class _Window(NamedTuple):
    """Some samples of a shard.

    Attributes
    ----------
    first
        Number of the first sample.
    start
        Its first byte in the shard.
    data
        uint8: the bytes of the samples, and some zeros.
    offsets
        int64: first bytes of the samples in `data`, and the end of the last.
    """

    first: int
    start: int
    data: np.ndarray[Any, Any]
    offsets: Int64s

    def load(self, places: Int64s, width: int) -> Int64s:
        """Return the unsigned little-endian integers of some bytes at places of any alignment."""
        found = self.data[places[:, None] + np.arange(width)]
        numbers: Int64s = found.view(f"<u{width}")[:, 0].astype(np.int64)
        return numbers
