"""Stores in object stores and folders: files that never change, read by ranges.

::

    <URL>/segments/<group>-<hash>           values, see `windeck.checkpoint.stores.segments`
    <URL>/lists/<number>-<random number>    the segments in force, and small values

The list of the highest number is in force. It is written last, so a reader sees all of a copy or
nothing of it. Files are only added, and removed when no list names them. A store is what its list
was when it was opened. `checkpoint.copy` and `gc` write it, one process at a time; others read.
"""

from __future__ import annotations

import heapq
import io
import re
import secrets
from bisect import bisect_right
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from itertools import accumulate, islice
from typing import Any, NoReturn
from urllib.parse import quote, urlsplit

from windeck._core import crc32c
from windeck._util import retry
from windeck._util.lru_cache import LRUCache
from windeck._util.parallel import run_in_threads
from windeck._util.schemes import scheme_of
from windeck._util.threads import Pool, Task
from windeck.checkpoint.stores.protocol import (
    CorruptStoreError,
    Facts,
    Items,
    check_key,
    check_keys,
    is_empty_range,
    iter_ascending,
    key_range,
    portions_by_size,
)
from windeck.checkpoint.stores.segments import (
    SegmentFile,
    ValuePlace,
    encode_list,
    encode_segment,
    parse_index,
    parse_list,
)
from windeck.checkpoint.stores.store_url import StoreURL
from windeck.io.filesystem import absolute, join, read_bytes, remove
from windeck.io.objects import ObjectReader, list_objects, write_object
from windeck.io.ranges import CONCURRENT_REQUESTS, GAP_BYTES
from windeck.io.remote import RemotePath

__all__ = ["FACTS", "SEGMENT_BYTES", "ObjectStore", "open_objects"]

#: Bytes of a segment, but for its index and for values that are larger.
SEGMENT_BYTES = 64 << 20
#: Segments that are uploaded at the same time: each is in memory, and has several connections.
_UPLOADS = 2
#: Bytes of one read for which parallel requests are worthwhile.
_READ_BYTES = 32 << 20
#: The same for a local folder, where many bytes at a time only take memory.
_LOCAL_READ_BYTES = 4 << 20
#: Bytes of the indices that are kept, and of one entry of them in memory, by bytes in the file.
_INDEX_BYTES, _INDEX_FACTOR = 256 << 20, 5
_SCANNED_KEYS = 64
_LIST = re.compile(r"([0-9a-f]{16})-[0-9a-f]{16}")

FACTS = Facts(
    backend="objects",
    atomic_batches=True,
    snapshots=False,
    shared=True,
    shared_readers=True,
    ordered=True,
    read_bytes=_READ_BYTES,
)


def open_objects(
    url: str, *, filesystem: Any = None, storage_options: Mapping[str, Any] | None = None
) -> ObjectStore:
    """Open the store in a folder of a file system; see `windeck.checkpoint.stores.open_store`."""
    if filesystem is None:
        parsed = StoreURL.parse(url.partition("?")[0])  # a secret key with a slash would be shown
        if not parsed.host and scheme_of(url).client != "disk":
            raise ValueError(
                f"{parsed} has no bucket or host, expected {parsed.scheme}://bucket/folder"
            )
    if scheme_of(url).client == "disk" and urlsplit(url).netloc:
        raise ValueError(f"expected an absolute path, as in file:///path, got {url[:200]!r}")
    return ObjectStore(absolute(url, filesystem=filesystem, storage_options=storage_options))


class ObjectStore:
    """A store in segments, which `checkpoint.copy` fills. Thread-safe.

    Parameters
    ----------
    folder
        A path of `windeck.io.filesystem.absolute`, local or remote.

    Attributes
    ----------
    segments
        The segments in force, in order of their names.
    """

    def __init__(self, folder: str) -> None:
        self._folder, self._closed = folder, False
        self.url = str(folder) if isinstance(folder, RemotePath) else f"file://{quote(folder)}"
        is_remote = isinstance(folder, RemotePath)
        self.facts = FACTS if is_remote else FACTS._replace(read_bytes=_LOCAL_READ_BYTES)
        self._readers = LRUCache(1000)
        self._indices = LRUCache(
            1 << 20, keep_after_fork=True, total_size=_INDEX_BYTES,
            size_of=lambda segment: (segment.size - segment.values_size) * _INDEX_FACTOR,
        )  # fmt: skip
        self._read_list()

    def __repr__(self) -> str:
        return f"<store {self.url}>"

    # The list in force

    def _read_list(self) -> None:
        """Read the list in force; wait for another one that is withdrawn or removed meanwhile."""
        for _ in retry.REQUESTS.attempts():
            names = self._newest_lists()
            with suppress(FileNotFoundError):
                if len(names) < 2:
                    content = read_bytes(join(self._folder, names[0])) if names else b""
                    self._use_first_list(names[0] if names else "", content)
                    return
        if len(names) == 1:
            raise CorruptStoreError(f"{self._path(names[0])} is missing, expected it as listed")
        raise CorruptStoreError(
            f"{' and '.join(map(self._path, names))} were written at the same time, expected one "
            "list: remove the one of the copy that failed"
        )

    def _use_first_list(self, name: str, content: bytes) -> None:
        """Use the list in force; name the one before it in the error of one that is damaged.

        That may have other generations and namespaces, so it is not used without being asked for.
        """
        try:
            self._use_list(name, content)
        except CorruptStoreError as error:
            former = max((one for one in self._lists() if one < name), default=None)
            remedy = (
                f"remove it to go on from {former}, and copy again"
                if former
                else "copy to a new folder"
            )
            raise CorruptStoreError(f"{error.strerror}; {remedy}") from error

    def _use_list(self, name: str, content: bytes) -> None:
        segments, values = parse_list(self._path(name), content) if name else ([], {})
        self._number, self._values = self._number_of(name) or 0, values
        self.segments: list[SegmentFile] = segments
        self._ranges = sorted((*pair, segment) for segment in segments for pair in segment.ranges)
        self._firsts = [first for first, _, _ in self._ranges]
        # The largest key up to each range: finds those with a key, if ranges overlap, too.
        self._reach = list(accumulate((last for _, last, _ in self._ranges), max))

    def _newest_lists(self) -> list[str]:
        """Return the names of the lists of the highest number: one, but for copies that collide."""
        names = self._lists()
        newest = max(map(self._number_of, names), default=0)
        if not names and (found := self._segment_files()):
            raise CorruptStoreError(
                f"there is no list of segments in {self._path('lists')}, expected one since there "
                f"is {self._path('segments/' + next(iter(found)))}: copy to a new folder"
            )
        return [name for name in names if self._number_of(name) == newest]

    def _lists(self) -> list[str]:
        names = list_objects(join(self._folder, "lists"))
        return [f"lists/{name}" for name in names if _LIST.fullmatch(name)]

    @staticmethod
    def _number_of(name: str) -> int:
        return int(name[6:22] or "0", 16)

    def _segment_files(self) -> dict[str, int]:
        return list_objects(join(self._folder, "segments"))

    def _path(self, name: str) -> str:
        """Return the path of a file for messages."""
        return f"{self.url}/{name}"

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError(f"the store {self.url} is closed")

    # Reading

    def get(self, key: bytes) -> bytes | None:
        return self.get_many([check_key(key)])[0]

    def get_many(self, keys: Sequence[bytes]) -> list[bytes | None]:
        self._check_open()
        checked = check_keys(keys)
        values = [self._values.get(key) for key in checked]
        lost = [(i, key) for i, key in enumerate(checked) if values[i] is None]
        for segment, some in self._by_segment(lost).items():
            read = self._read(segment, [place for _, place in some])
            for (i, _), value in zip(some, read, strict=True):
                values[i] = value
        return values

    def _by_segment(
        self, wanted: Sequence[tuple[int, bytes]]
    ) -> dict[SegmentFile, list[tuple[int, ValuePlace]]]:
        """Return the numbers and the places of the keys that are found, by segment."""
        found: dict[SegmentFile, list[tuple[int, ValuePlace]]] = {}
        for i, (segment, place) in self._places(wanted):
            found.setdefault(segment, []).append((i, place))
        return found

    def keys(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[bytes]:
        self._check_open()
        first, end = key_range(prefix, start, stop)
        if is_empty_range((first, end)):
            return iter(())

        def inside(key: bytes) -> bool:
            return key >= first and (end is None or key < end)

        return filter(inside, heapq.merge(sorted(self._values), self._segment_keys(first, end)))

    def scan(
        self, prefix: bytes = b"", *, start: bytes | None = None, stop: bytes | None = None
    ) -> Iterator[tuple[bytes, bytes]]:
        keys = self.keys(prefix, start=start, stop=stop)
        while some := list(islice(keys, _SCANNED_KEYS)):
            for key, value in zip(some, self.get_many(some), strict=True):
                assert value is not None  # a key of an index
                yield key, value

    def _segment_keys(self, first: bytes, end: bytes | None) -> Iterator[bytes]:
        """Iterate over the keys of the ranges that may have any in [first, end)."""
        some: list[tuple[bytes, bytes, SegmentFile]] = []
        reach = b""
        for one in self._ranges:
            if one[1] < first or (end is not None and one[0] >= end):
                continue
            if some and one[0] > reach:  # ranges that overlap are merged
                yield from self._merged_keys(some)
                some = []
            some.append(one)
            reach = max(reach, one[1])
        yield from self._merged_keys(some)

    def _merged_keys(self, ranges: Sequence[tuple[bytes, bytes, SegmentFile]]) -> list[bytes]:
        return sorted(
            {
                key
                for first, last, segment in ranges
                for key in self.index(segment)
                if first <= key <= last
            }
        )

    def find(self, key: bytes) -> SegmentFile | None:
        """Return the segment that has a key, or None."""
        return next((found[0] for _, found in self._places([(0, key)])), None)

    def index(self, segment: SegmentFile) -> dict[bytes, ValuePlace]:
        """Return the places of the values of a segment by key."""
        found: dict[bytes, ValuePlace] = self._indices.get(
            segment, lambda: self._read_index(segment)
        )
        return found

    def _read_index(self, segment: SegmentFile) -> dict[bytes, ValuePlace]:
        place = ValuePlace(
            segment.values_size, segment.size - segment.values_size, segment.index_crc
        )
        (data,) = self._read(segment, [place])
        return parse_index(self._segment_path(segment), segment, data)

    def _places(
        self, wanted: Sequence[tuple[int, bytes]]
    ) -> Iterator[tuple[int, tuple[SegmentFile, ValuePlace]]]:
        """Find keys, each with a number; yield number, segment and place of each existing key.

        The indices that are needed are read in parallel.
        """
        candidates = [(i, key, self._candidates(key)) for i, key in wanted]
        needed = list(dict.fromkeys(one for _, _, some in candidates for one in some))
        run_in_threads(lambda n: self.index(needed[n]), len(needed), CONCURRENT_REQUESTS, portion=1)
        for i, key, some in candidates:
            for segment in some:
                place = self.index(segment).get(key)
                if place is not None:
                    yield i, (segment, place)
                    break

    def _candidates(self, key: bytes) -> list[SegmentFile]:
        """Return the segments that have a key in one of their ranges."""
        found = []
        at = bisect_right(self._firsts, key) - 1
        while at >= 0 and self._reach[at] >= key:
            if self._ranges[at][1] >= key:
                found.append(self._ranges[at][2])
            at -= 1
        return found

    def _read(self, segment: SegmentFile, places: Sequence[ValuePlace]) -> list[bytes]:
        """Read values of a segment, and compare their checksums."""
        with self._reported(segment):  # compares the size, which bounds those of the values
            self._readers.get(segment, lambda: self._open_segment(segment))
        found = [bytearray(place.size) for place in places]
        jobs = [(place, memoryview(out)) for place, out in zip(places, found, strict=True)]
        for careful in (False, True):  # wrong bytes may be a wrong answer, or damage
            self._fill(segment, jobs, careful=careful)
            wrong = [
                (place, crc)
                for place, out in zip(places, found, strict=True)
                if (crc := crc32c(out)) != place.crc
            ]
            if not wrong:
                jobs.clear()
                found.reverse()  # from here on, memory is released as it is copied
                return [bytes(found.pop()) for _ in places]
        (offset, size, expected), crc = wrong[0]
        raise CorruptStoreError(
            f"{self._segment_path(segment)} is damaged: found {size:,} bytes at {offset:,} with "
            f"CRC32C {crc:08x}, expected {expected:08x} as listed"
        )

    def _fill(
        self,
        segment: SegmentFile,
        jobs: Sequence[tuple[ValuePlace, memoryview]],
        *,
        careful: bool,
    ) -> None:
        """Read values of a segment into buffers, near ones by one request."""
        spans: list[tuple[int, list[memoryview]]] = []
        end = -1 - GAP_BYTES
        for place, buffer in sorted(jobs, key=lambda job: job[0].offset):
            gap = place.offset - end
            if 0 <= gap <= GAP_BYTES:
                spans[-1][1].append(memoryview(bytearray(gap)))
            else:
                spans.append((place.offset, []))
            spans[-1][1].append(buffer)
            end = place.offset + place.size
        with self._reported(segment):
            reader = self._readers.get(segment, lambda: self._open_segment(segment))
            reader.read(spans, careful=careful)

    def _open_segment(self, segment: SegmentFile) -> ObjectReader:
        reader = ObjectReader(join(self._folder, "segments", segment.name))
        if reader.size != segment.size:
            raise CorruptStoreError(
                f"{self._segment_path(segment)} is damaged: found {reader.size:,} bytes, expected "
                f"{segment.size:,} as listed"
            )
        return reader

    @contextmanager
    def _reported(self, segment: SegmentFile) -> Iterator[None]:
        """Report a segment that is missing or changed as damage: neither means "no checkpoint"."""
        try:
            yield
        except FileNotFoundError as error:
            raise CorruptStoreError(
                f"{self._segment_path(segment)} is missing, expected it as listed; if gc "
                "removed it meanwhile, open the store again"
            ) from error
        except ValueError as error:
            raise CorruptStoreError(f"{self._segment_path(segment)} is damaged: {error}") from error

    def _segment_path(self, segment: SegmentFile) -> str:
        return self._path(f"segments/{segment.name}")

    # Writing, by `checkpoint.copy` and `gc` only

    @property
    def small_values(self) -> dict[bytes, bytes]:
        """The small values in the list."""
        return dict(self._values)

    def begin_copy(self) -> None:
        """Write an empty list into an empty folder: without any list, segments are damage."""
        if not self._number:
            self.commit([], {})

    def write_segments(
        self,
        group: str,
        items: Items,
        there: Mapping[str, int],
        prefix_of: Callable[[bytes], bytes] = lambda key: b"",
    ) -> list[SegmentFile]:
        """Write the pairs of a group as segments, which are durable when this returns.

        Parameters
        ----------
        group
            The first part of their names: letters, digits and hyphens.
        items
            Pairs in ascending order of keys; read once, in the memory of some segments.
        there
            Names and bytes of segments that need not be written.
        prefix_of
            As for `windeck.checkpoint.stores.segments.encode_segment`.
        """
        self._check_open()
        done: list[SegmentFile] = []
        waiting: deque[Task[None]] = deque()
        with Pool(_UPLOADS) as pool:
            for pairs in portions_by_size(iter_ascending(items), SEGMENT_BYTES):
                segment, contents = encode_segment(group, pairs, prefix_of)
                pairs.clear()  # release their memory
                done.append(segment)
                if there.get(segment.name) == segment.size:
                    continue
                while len(waiting) >= _UPLOADS:
                    waiting.popleft().result()
                path = join(self._folder, "segments", segment.name)
                waiting.append(pool.submit(partial(write_object, path, contents)))
                del contents
            for upload in waiting:
                upload.result()
        return done

    def segment_files(self) -> dict[str, int]:
        """Return names and bytes of all files of segments, whether they are listed or not."""
        self._check_open()
        return self._segment_files()

    def check_files(
        self, segments: Iterable[SegmentFile], files: Mapping[str, int], hint: str
    ) -> None:
        """Raise a CorruptStoreError for a segment that is not there, or has another size."""
        for segment in segments:
            found = files.get(segment.name)
            if found not in (segment.size, -1):  # a web server may list no sizes
                raise CorruptStoreError(
                    f"{self._segment_path(segment)} "
                    + ("is missing" if found is None else f"has {found:,} bytes")
                    + f", expected {segment.size:,} bytes; {hint}"
                )

    def commit(self, segments: Iterable[SegmentFile], values: Mapping[bytes, bytes]) -> None:
        """Put a list of segments and small values in force.

        Raises
        ------
        RuntimeError
            When another process did so since the store was opened; then nothing has changed.
        CorruptStoreError
            When a segment is missing or has another size.
        """
        self._check_open()
        listed = list(segments)
        self.check_files(listed, self._segment_files(), "nothing was listed: do it again")
        number, content = self._number + 1, encode_list(listed, values)
        name = f"lists/{number:016x}-{secrets.token_hex(8)}"
        write_object(join(self._folder, name), [content])
        names = self._lists()
        if any(self._number_of(other) >= number and other != name for other in names):
            remove(join(self._folder, name))
            raise RuntimeError(
                f"{self.url} was written to by another process meanwhile, expected one copy or gc "
                "at a time; nothing has changed, do it again"
            )
        self._use_list(name, content)
        for old in names:
            if self._number_of(old) < number - 1:  # a reader may have found the one before
                with suppress(OSError):  # the next one tries again
                    remove(join(self._folder, old))

    def remove_segments(self, names: Iterable[str]) -> None:
        """Remove files of segments that are not listed."""
        paths = [join(self._folder, "segments", name) for name in names]
        run_in_threads(lambda n: remove(paths[n]), len(paths), CONCURRENT_REQUESTS, portion=1)

    # What a store in a database has

    def _refuse(self, *_: object, **__: object) -> NoReturn:
        raise io.UnsupportedOperation(
            f"{self.url} has files that do not change, expected a database for this: save and tag "
            f"there, such as in rocksdb:///path, and copy it here by checkpoint.copy"
        )

    put_many = bulk_load = delete_many = delete_range = compare_and_set = snapshot = _refuse

    def sync(self) -> None:
        self._check_open()  # all that is listed is durable

    def close(self) -> None:
        self._closed = True

    def __enter__(self) -> ObjectStore:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
