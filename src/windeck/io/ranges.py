"""Ranges of bytes of remote files: parallel requests, and a file object on ranges read ahead."""

from __future__ import annotations

import os
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import TypeAlias

from windeck._util.parallel import run_in_threads
from windeck._util.threads import Pool, Task
from windeck.io.clients import Client, Version, WrongAnswer
from windeck.io.remote import RemotePath

__all__ = ["RemoteFile", "RemoteReader", "merge_ranges"]

#: Bytes of a request. A larger range is read by several requests.
REQUEST_BYTES = 8 << 20
#: Requests in flight for one reader.
CONCURRENT_REQUESTS = 8
#: Unused bytes between two ranges that are read by one request: they take less than a request.
GAP_BYTES = 1 << 17
#: Bytes read at a time where a file is read from one place on.
AHEAD_BYTES = 1 << 20
#: Bytes that two requests of a client share if it does not check ranges.
OVERLAP_BYTES = 1 << 12
#: Reads after which it is checked at once that the object is still the same.
_CHECKED_BYTES = 1 << 17


class RemoteReader:
    """Ranges of bytes of one version of an object. Thread-safe."""

    def __init__(self, path: RemotePath) -> None:
        self.path, self._is_dirty, self._pid = path, False, os.getpid()
        if path.contents is not None:
            self.version = Version(path.contents.size, 0)
            return
        self._object = path.attempt("open", lambda client, key: client.open(key))
        self.version = self._object.version

    def check_unchanged(self) -> None:
        """Raise a ValueError if the object is another one now than when it was opened."""
        if self.path.contents is not None:
            return
        now: Version | None = None
        with suppress(FileNotFoundError):
            now = self.path.attempt("stat", lambda client, key: client.version(key))
        self._is_dirty = False
        if now != self.version:
            raise ValueError(self._describe(now))

    def _describe(self, now: Version | None) -> str:
        found = "it is deleted" if now is None else f"{now} now"
        return f"{self.path!r} has changed since it was opened: {self.version} then, {found}"

    def _change(self) -> str | None:
        """Return the change of the object after a failed request, None if none is found."""
        try:
            now = self.path.mount.client.version(self.path.key)
        except Exception:
            return None
        return None if now == self.version else self._describe(now)

    def read(self, start: int, count: int) -> bytes:
        """Return exactly the bytes [start, start + count); check for changes if they are many."""
        if self.path.contents is not None:
            contents: bytes = self.path.contents.slice(start, count).to_pybytes()
            return contents
        return self.read_many([(start, count)])[0]

    def read_many(self, ranges: Sequence[tuple[int, int]]) -> list[bytes]:
        """Return the bytes of several ranges (start, count), as `read`."""
        if self.path.contents is not None:
            return [self.read(*one) for one in ranges]
        outs = [bytearray(count) for _, count in ranges]
        starts = [start for start, _ in ranges]
        self.read_ranges(
            [(start, memoryview(out)) for start, out in zip(starts, outs, strict=True)]
        )
        if sum(map(len, outs)) > _CHECKED_BYTES:
            self.check_unchanged()
        return list(map(bytes, outs))

    def read_ranges(self, ranges: Sequence[tuple[int, memoryview]]) -> None:
        """Fill buffers with the bytes at their places, by parallel requests.

        Raises
        ------
        ConnectionError, FileNotFoundError, PermissionError, OSError
            See `RemotePath.attempt`.
        ValueError
            The object has changed since it was opened.
        """
        self._is_dirty = True
        with self._reported_changes():
            # Requests are repeated one by one; all of them where two answers differ.
            self.path.attempt(
                "read", lambda client, _: self._read_once(client, ranges), WrongAnswer
            )

    def read_spans(self, spans: Sequence[tuple[int, Sequence[memoryview]]]) -> None:
        """Fill buffers, each span of them with contiguous bytes, by parallel requests.

        The caller has to compare checksums: answers of a client that does not check ranges are not
        compared with each other. Errors are those of `read_ranges`.
        """
        requests = [request for start, buffers in spans for request in _cut_span(start, buffers)]

        def read(number: int) -> None:
            start, buffers = requests[number]
            found = memoryview(self._request(start, sum(map(len, buffers))))
            for buffer in buffers:
                buffer[:] = found[: len(buffer)]
                found = found[len(buffer) :]

        with self._reported_changes():
            run_in_threads(read, len(requests), CONCURRENT_REQUESTS, portion=1)

    @contextmanager
    def _reported_changes(self) -> Iterator[None]:
        """Raise a ValueError for an error of a request if the object has changed."""
        try:
            yield
        except PermissionError:
            raise
        except OSError:
            # A range that is no more is not said to be so by all servers.
            if (change := self._change()) is not None:
                raise ValueError(change) from None
            raise

    def _read_once(self, client: Client, ranges: Sequence[tuple[int, memoryview]]) -> None:
        """Read ranges, and compare bytes that two requests have in common.

        Some clients neither compare the range of an answer with the one asked for nor its length
        (pyarrow's of S3 fills the rest with arbitrary bytes). Each of their requests therefore
        overlaps with the next one, and the last one with a request for its end.
        """
        overlap = 0 if client.checks_ranges else OVERLAP_BYTES
        requests: list[tuple[int, memoryview, memoryview]] = []
        for start, out in ranges:
            for place in range(0, len(out), REQUEST_BYTES):
                body = out[place : place + REQUEST_BYTES]
                end = place + len(body)
                requests.append((start + place, body, out[end : end + overlap]))
            if overlap and len(out):
                # Not the same range again: a server may cut the answers to both.
                tail = out[-min(overlap, -(-len(out) // 2)) :]
                requests.append((start + len(out) - len(tail), memoryview(bytearray()), tail))

        def read(number: int) -> bytes:
            place, body, _ = requests[number]
            count = len(body) + len(requests[number][2])
            found = self._request(place, count)
            body[:] = found[: len(body)]
            return found[len(body) :]

        common = run_in_threads(read, len(requests), CONCURRENT_REQUESTS, portion=1)
        for (place, _, expected), found in zip(requests, common, strict=True):
            if found != expected:
                raise WrongAnswer(
                    f"two answers differ in the {len(found):,} bytes that they share near {place:,}"
                )

    def _request(self, start: int, count: int) -> bytes:
        """Return a range by one request, repeated if it fails."""

        def once(client: Client, key: str) -> bytes:
            if self._pid != os.getpid():  # after a fork
                self._object, self._pid = client.open(key), os.getpid()
            found = self._object.read(start, count)
            if len(found) != count:
                raise WrongAnswer(
                    f"the server sent {len(found):,} bytes at {start:,}, expected {count:,}"
                )
            return found

        return self.path.attempt("read", once)

    def close(self) -> None:
        """Check for changes since the last check, if something has been read."""
        if self._is_dirty:
            self.check_unchanged()


def _cut_span(start: int, buffers: Sequence[memoryview]) -> Iterator[tuple[int, list[memoryview]]]:
    """Cut a span of buffers into requests of up to `REQUEST_BYTES`."""
    taken: list[memoryview] = []
    held = 0
    for buffer in buffers:
        while len(buffer):
            portion = buffer[: REQUEST_BYTES - held]
            taken.append(portion)
            held, buffer = held + len(portion), buffer[len(portion) :]
            if held == REQUEST_BYTES:
                yield start, taken
                start, taken, held = start + held, [], 0
    if taken:
        yield start, taken


Span: TypeAlias = tuple[int, memoryview]
Range: TypeAlias = tuple[int, int]


class RemoteFile:
    """A file object on ranges of an object, for `pyarrow.PythonFile`: one thread at a time.

    `fetch_ahead` takes the ranges that will be read: another thread fetches them. A read of any
    other place fetches `AHEAD_BYTES`. What is fetched is checked for changes, unless a reader is
    given: its owner checks.
    """

    def __init__(self, path: RemotePath, reader: RemoteReader | None = None) -> None:
        self._reader, self._checks = reader or RemoteReader(path), reader is None
        self._size, self._place, self.closed = self._reader.version.size, 0, False
        self._units: deque[Sequence[Range]] = deque()
        self._coming: tuple[list[Range], Task[list[Span]]] | None = None
        self._pool: Pool | None = None
        # Ranges of the unit that is read and of the one before it, and those of no unit.
        self._now: list[Span] = []
        self._before: list[Span] = []
        self._other: list[Span] = []

    def fetch_ahead(self, units: Iterable[Sequence[Range]]) -> None:
        """Name the ranges [start, stop) that will be read, in units that are read one by one.

        While one unit is read, the next one is fetched. Two units are kept for reading, so that
        reads may go back by one unit.
        """
        inside = [[(max(a, 0), min(b, self._size)) for a, b in unit] for unit in units]
        self._units = deque(merge_ranges(unit, GAP_BYTES) for unit in inside)
        self._pool = Pool(1)
        self._start_next()

    def _start_next(self) -> None:
        self._coming = None
        if self._units and self._pool is not None:
            unit = list(self._units.popleft())
            self._coming = unit, self._pool.submit(partial(self._fetch, unit))

    def _fetch(self, ranges: Sequence[Range]) -> list[Span]:
        spans = [(start, memoryview(bytearray(stop - start))) for start, stop in ranges]
        self._reader.read_ranges(spans)
        if self._checks:
            self._reader.check_unchanged()
        return spans

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes, fewer at the end."""
        count = self._size - self._place if count is None or count < 0 else count
        stop = min(self._place + count, self._size)
        portions = []
        while self._place < stop:
            start, buffer = self._span(self._place, stop)
            portion = buffer[self._place - start : stop - start]
            self._place += len(portion)
            portions.append(portion)
        return b"".join(portions)

    def _span(self, place: int, stop: int) -> Span:
        """Return a fetched range that holds a place."""
        for spans in (self._now, self._before, self._other):
            if (found := _find(spans, place)) is not None:
                return found
        if self._coming is not None and any(a <= place < b for a, b in self._coming[0]):
            self._before, self._now = self._now, self._coming[1].result()
            self._start_next()
        else:
            ahead = min(max(stop, place + AHEAD_BYTES), self._size)
            self._other = self._fetch([(place, ahead)])
        return self._span(place, stop)

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Move to a place, and return it."""
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._place, os.SEEK_END: self._size}[whence]
        self._place = base + offset
        return self._place

    def tell(self) -> int:
        """Return the place."""
        return self._place

    def readable(self) -> bool:
        """Return True."""
        return True

    def seekable(self) -> bool:
        """Return True."""
        return True

    def writable(self) -> bool:
        """Return False."""
        return False

    def close(self) -> None:
        """Drop what has been fetched, and end requests."""
        self.closed, self._units = True, deque()
        self._now, self._before, self._other = [], [], []
        if self._pool is not None:
            self._pool.close()


def _find(spans: Sequence[Span], place: int) -> Span | None:
    """Return the span that holds a place, of spans in ascending order."""
    found = bisect_right(spans, place, key=lambda span: span[0]) - 1
    if found >= 0 and place < spans[found][0] + len(spans[found][1]):
        return spans[found]
    return None


def merge_ranges(
    ranges: Iterable[tuple[int, int]], gap: int, most: int = 0, share: float = 0
) -> list[tuple[int, int]]:
    """Return ranges [start, stop) in ascending order, merged where few bytes lie between.

    Parameters
    ----------
    gap
        Bytes between two ranges up to which they are merged in any case.
    most, share
        They are merged up to `most` bytes too, if these are no more than this share of the bytes of
        both ranges. Twice this share of all bytes is added at most.

    Examples
    --------
    >>> merge_ranges([(40, 50), (0, 10), (12, 20)], 4)
    [(0, 20), (40, 50)]
    >>> merge_ranges([(0, 100), (150, 250), (290, 300)], 4, 50, 0.25)
    [(0, 250), (290, 300)]
    """
    merged: list[tuple[int, int]] = []
    before = 0
    for start, stop in sorted(ranges):
        if start >= stop:
            continue
        allowed = max(gap, min(most, share * (before + stop - start)))
        if merged and start - merged[-1][1] <= allowed:
            merged[-1] = (merged[-1][0], max(stop, merged[-1][1]))
        else:
            merged.append((start, stop))
        before = stop - start
    return merged
