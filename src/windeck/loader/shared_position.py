"""The position of a dataset that a process and the workers of its DataLoaders share.

DataLoader calls nothing of a dataset in the main process: ``__iter__`` runs in the workers only. So
the workers of a loop themselves move the position to the end of its epoch, once for each loop.
"""

from __future__ import annotations

import fcntl
import io
import json
import multiprocessing
import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from multiprocessing.context import get_spawning_popen
from multiprocessing.reduction import DupFd
from typing import Any, TypeVar

from torch.utils.data import get_worker_info

from windeck._util.threads import unheld
from windeck.io.shared_memory import SharedMemory

__all__ = ["SharedPosition"]

R = TypeVar("R")
#: Processes, each with its own workers, whose records are kept; and loops that have begun in part.
MOST_PROCESSES, MOST_LOOPS = 128, 16

#: A process: its pid and its number among its parent's children, since pids are reused.
Process = tuple[int | None, tuple[int, ...]]
#: A loop of workers: seed of the DataLoader's iterator, number of the loop in it, first worker.
Loop = tuple[int, int, int]


@dataclass
class _Record:
    """The loops of one process and of its workers."""

    #: Position at which the next loop begins; None if it is unknown.
    following: int | None
    #: Number of loops that have begun, and whether one has since the position was last set.
    loops: int = 0
    is_open: bool = False
    #: Number of the last time that the process set the position, and the position before.
    sets: int = 0
    before: int | None = None
    #: Loops which some of the workers have begun: start, number, and workers still missing.
    partial: dict[Loop, tuple[int | None, int, int]] = field(default_factory=dict)

    def begin(self, end: Callable[[int], int | None]) -> tuple[int | None, int]:
        start = self.following
        self.following = None if start is None else end(start)
        self.is_open = True
        self.loops += 1
        return start, self.loops

    def begin_late(self) -> tuple[int | None, int]:
        """Begin a loop whose workers were started before the position was last set."""
        self.loops += 1
        return self.before, self.loops


class SharedPosition:
    """The position at which the next loop over a dataset begins.

    A loop begins when ``__iter__`` of the dataset is called: in the process itself, or in each
    worker of a DataLoader. The first worker that begins a loop moves the position to the end of
    the loop's epoch, the others find the loop's start. So all workers agree however late they
    start, also if the position has been set since.

    The records are in a `SharedMemory` that all these processes have: forked and spawned workers
    inherit it. A process that dies or is interrupted at any instruction leaves either the old
    records or the new ones. A process that changes them locks the file of the memory, which the
    system unlocks when it dies. Reading takes no lock. Any other copy, by `pickle` or `copy`, has a
    position of its own.

    Parameters
    ----------
    position
        Position of the first loop.
    """

    def __init__(self, position: int | None) -> None:
        self._creator = _main_process()
        self._loops = 0  # Begun in this worker.
        # When this worker was started; two numbers if the last setting may have been interrupted.
        self._sets = 0, 0
        self._share(SharedMemory())
        self._memory.write(0, _encode({self._creator: _Record(position)}))

    def _share(self, memory: SharedMemory) -> None:
        self._memory = memory
        self._lock, self._pid = threading.RLock(), os.getpid()

    @property
    def following(self) -> int | None:
        """The position at which the next loop begins; None if it is unknown."""
        return self._record().following

    def move(self, position: int) -> None:
        """Begin the next loop at a position; called in the process, or before a worker's loop."""

        def change(record: _Record) -> None:
            record.before, record.following = record.following, position
            record.is_open = False
            if get_worker_info() is None:
                self._sets = record.sets, max(record.sets, *self._sets) + 1
                record.sets = self._sets[1]

        self._change(change)

    def loops(self) -> tuple[int, bool]:
        """Return the number of loops, and whether one has begun since the last `move`."""
        record = self._record()
        return record.loops, record.is_open

    def resume(self, following: int | None) -> None:
        """Begin the next loop at a position, after a loop that was loaded from a state."""

        def change(record: _Record) -> None:
            record.following, record.is_open = following, True

        self._change(change)

    def begin(self, end: Callable[[int], int | None]) -> tuple[int | None, int]:
        """Begin a loop in this process; return its start and its number.

        Parameters
        ----------
        end
            Returns the position after the loop that begins at a position; None if it is unknown.

        Raises
        ------
        RuntimeError
            If other workers have begun a loop which may be this one.
        """
        begun = self._change(lambda record: self._begin(record, end))
        if begun is None:
            raise RuntimeError(
                "the workers cannot tell which loop they belong to, because other processes were "
                "started at the same time or a worker has died: set `position` of the dataset, and "
                "begin the loop again"
            )
        return begun

    def _begin(
        self, record: _Record, end: Callable[[int], int | None]
    ) -> tuple[int | None, int] | None:
        """Begin a loop; return None if it may be one that other workers have begun."""
        worker = get_worker_info()
        if worker is None:
            return record.begin(end)
        self._loops += 1
        # DataLoader creates its workers one after the other, which numbers them. The seed is the
        # same for all workers of an iterator; iterators may have equal seeds.
        number: int = multiprocessing.current_process()._identity[-1]
        loop = worker.seed - worker.id, self._loops, number - worker.id
        if loop not in record.partial:
            for other in list(record.partial):
                if other[:2] == loop[:2]:
                    del record.partial[other]
                    return None
            is_late = self._loops == 1 and record.sets not in self._sets
            begun = record.begin_late() if is_late else record.begin(end)
            record.partial[loop] = (*begun, worker.num_workers)
        start, loops, missing = record.partial.pop(loop)
        if missing > 1:
            record.partial[loop] = start, loops, missing - 1
            _keep_last(record.partial, MOST_LOOPS)
        return start, loops

    def _record(self) -> _Record:
        """Return the record of the process whose loops these are."""
        return self._record_in(_decode(self._memory.read()[1]))

    def _record_in(self, records: dict[Process, _Record]) -> _Record:
        main = _main_process()
        if main not in records:  # Forked, as a rank: it goes on from here by itself.
            records[main] = replace(records[self._creator], partial={}, sets=self._sets[1])
        return records[main]

    def _change(self, change: Callable[[_Record], R]) -> R:
        """Change the record of the process whose loops these are; return what `change` does."""
        if self._pid != os.getpid():  # Forked: threads that held the lock do not exist here.
            self._lock, self._pid = threading.RLock(), os.getpid()
        # A descriptor of its own: the file is unlocked when it is closed, come what may.
        with unheld(self._lock, "a change of the position"), io.FileIO(os.dup(self._memory.file)):
            fcntl.lockf(self._memory.file, fcntl.LOCK_EX)
            number, data = self._memory.read()
            records = _decode(data)
            found = change(self._record_in(records))
            creator = records.pop(self._creator)
            _keep_last(records, MOST_PROCESSES)
            self._memory.write(number + 1, _encode({self._creator: creator, **records}))
        return found

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is None:
            return {"following": self.following}
        # Sent to a process that this one starts.
        kept = {name: self.__dict__[name] for name in ("_creator", "_loops", "_sets")}
        return {"file": DupFd(self._memory.file), **kept}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "following" in state:
            self.__init__(state["following"])  # type: ignore[misc]
        else:
            self._share(SharedMemory(state.pop("file").detach()))
            self.__dict__.update(state)


def _encode(records: dict[Process, _Record]) -> bytes:
    rows = [
        (process, {**vars(record), "partial": list(record.partial.items())})
        for process, record in records.items()
    ]
    return json.dumps(rows).encode()


def _decode(data: bytes) -> dict[Process, _Record]:
    records = {}
    for (pid, identity), values in json.loads(data):
        partial = {tuple(loop): tuple(begun) for loop, begun in values.pop("partial")}
        records[pid, tuple(identity)] = _Record(**values, partial=partial)
    return records


def _main_process() -> Process:
    """Return this process or, in a worker of a DataLoader, the process that started it."""
    identity: tuple[int, ...] = multiprocessing.current_process()._identity
    parent = multiprocessing.parent_process()
    if get_worker_info() is None or parent is None:
        return os.getpid(), identity
    return parent.pid, identity[:-1]


def _keep_last(entries: dict[Any, Any], count: int) -> None:
    for key in list(entries)[:-count]:
        del entries[key]
