"""Fetching chunks of tensors from a store into where they belong."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence

import torch

from windeck.checkpoint.format.entries import Entry
from windeck.checkpoint.format.values import HEADER_BYTES, decode, header
from windeck.checkpoint.readers.runs import Job, Run, grouped, runs
from windeck.checkpoint.stores import DirectView, Store
from windeck.checkpoint.writers.ahead import in_order

__all__ = ["Job", "read_many"]


def read_many(
    store: Store,
    namespace: str,
    entries: Mapping[str, Entry],
    jobs: Iterable[Job],
) -> Iterator[tuple[str, int]]:
    """Read tensors in place; see `windeck.checkpoint.Checkpoint.read_many`."""
    reader = _Reader(store, namespace)
    straight = reader.straight is not None
    groups = grouped(runs(entries, jobs, straight=straight), straight=straight)
    if not straight:  # other ways hold the interpreter's lock: no use for threads
        for group in groups:
            yield from reader.read(group)
    else:
        for done, error in in_order(groups, reader.attempt):
            yield from done
            if error is not None:
                raise error


class _Reader:
    """Reads groups of chunks: large ones, where the store can, to where their elements belong."""

    def __init__(self, store: Store, namespace: str) -> None:
        self._store, self._namespace = store, namespace
        self.straight = store if isinstance(store, DirectView) else None
        self._own = threading.local()

    def read(self, group: tuple[bool, list[Run]]) -> Iterator[tuple[str, int]]:
        large, some = group
        if large and self.straight is not None:
            return self._read_straight(self.straight, some)
        return self._read_by_key(some)

    def attempt(
        self, group: tuple[bool, list[Run]]
    ) -> tuple[list[tuple[str, int]], Exception | None]:
        """What of a group was read before an error, and the error."""
        done: list[tuple[str, int]] = []
        try:
            done.extend(self.read(group))  # what came before an error stays
        except Exception as error:
            return done, error
        return done, None

    def _read_by_key(self, some: Sequence[Run]) -> Iterator[tuple[str, int]]:
        chunks = [(run, number) for run in some for number in range(run.first, run.stop)]
        wanted = [run.wanted(self._namespace, number) for run, number in chunks]
        values = self._store.get_many([key for key, _ in wanted])
        for i, ((run, number), (key, label)) in enumerate(zip(chunks, wanted, strict=True)):
            value, values[i] = values[i], None  # let go of as soon as it is used
            size = run.bytes_of(number)
            run.use(number, decode(key, value, label, length=size))
            yield run.name, size

    def _read_straight(self, store: DirectView, some: Sequence[Run]) -> Iterator[tuple[str, int]]:
        """Those with a place at once, then the others, which share this thread's memory."""
        placed, others = list[tuple[Run, int, memoryview]](), list[tuple[Run, int]]()
        for run in some:
            for number in range(run.first, run.stop):
                memory = run.memory(number)
                if memory is None:
                    others.append((run, number))
                else:
                    placed.append((run, number, memory))
        yield from self._read_into(store, placed, cached=False)
        for run, number in others:
            scratch = self._scratch(run, run.bytes_of(number))
            yield from self._read_into(store, [(run, number, scratch)], cached=True)

    def _read_into(
        self, store: DirectView, chunks: Sequence[tuple[Run, int, memoryview]], *, cached: bool
    ) -> Iterator[tuple[str, int]]:
        """Chunks, read to memory: their place, or with `cached` such as they are put from there."""
        named = [run.wanted(self._namespace, number) for run, number, _ in chunks]
        heads = [bytearray(HEADER_BYTES) for _ in chunks]
        wanted = [
            (key, memoryview(head), body)
            for (key, _), head, (_, _, body) in zip(named, heads, chunks, strict=True)
        ]
        answers = zip(store.get_many_into(wanted, cached=cached), heads, strict=True)
        for (run, number, body), (key, label), (crc, head) in zip(
            chunks, named, answers, strict=True
        ):
            size = len(body)
            if crc is None or head != header(label, size, crc):
                run.use(number, decode(key, store.get(key), label, length=size))
            elif cached:
                run.use(number, body)
            yield run.name, size

    def _scratch(self, run: Run, size: int) -> memoryview:
        """Memory of this thread; what a device copies from it, it copies from pinned memory."""
        held: torch.Tensor | None = getattr(self._own, "held", None)
        if held is None or held.numel() < size:
            pinned = any(target.is_cuda for target in run.targets)
            held = self._own.held = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        memory: memoryview = held[:size].numpy().data
        return memory
