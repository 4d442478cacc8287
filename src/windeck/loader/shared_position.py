"""The position of a dataset that a process and the workers of its DataLoaders share.

DataLoader calls nothing of a dataset in the main process: ``__iter__`` runs in the workers only. So
the workers of a loop themselves move the position to the end of its epoch, once for each loop.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait
from multiprocessing.context import get_spawning_popen
from typing import Any

from torch.utils.data import get_worker_info

__all__ = ["SharedPosition"]

#: Seconds after which a record that another process took is given up.
TIMEOUT = 60.0
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
    #: How often the process set the position, and the position before.
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

    The records are kept in a pipe, which contains one message: a process takes it out, changes
    it and puts it back, so only one process has it at a time. Forked and spawned workers inherit
    the pipe. Any other copy, by `pickle` or `copy`, has a pipe and a position of its own.

    Parameters
    ----------
    position
        Position of the first loop.
    """

    def __init__(self, position: int | None) -> None:
        self._reader, self._writer = multiprocessing.Pipe(duplex=False)
        os.set_blocking(self._reader.fileno(), False)
        self._creator = _main_process()
        self._loops = 0  # Begun in this worker.
        self._sets = 0  # When this worker was started.
        self._put({self._creator: _Record(position)})

    @property
    def following(self) -> int | None:
        """The position at which the next loop begins; None if it is unknown."""
        with self._record() as record:
            return record.following

    def move(self, position: int) -> None:
        """Begin the next loop at a position; called in the process, or before a worker's loop."""
        with self._record() as record:
            record.before, record.following = record.following, position
            record.is_open = False
            if get_worker_info() is None:
                record.sets += 1
                self._sets = record.sets

    def loops(self) -> tuple[int, bool]:
        """Return the number of loops, and whether one has begun since the last `move`."""
        with self._record() as record:
            return record.loops, record.is_open

    def resume(self, following: int | None) -> None:
        """Begin the next loop at a position, after a loop that was loaded from a state."""
        with self._record() as record:
            record.following, record.is_open = following, True

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
        worker = get_worker_info()
        with self._record() as record:
            if worker is None:
                return record.begin(end)
            self._loops += 1
            # DataLoader creates its workers one after the other, which numbers them. The seed is
            # the same for all workers of an iterator; iterators may have equal seeds.
            number: int = multiprocessing.current_process()._identity[-1]
            loop = worker.seed - worker.id, self._loops, number - worker.id
            if loop not in record.partial:
                for other in list(record.partial):
                    if other[:2] == loop[:2]:
                        del record.partial[other]
                        raise RuntimeError(
                            "the workers cannot tell which loop they belong to, because other "
                            "processes were started at the same time or a worker has died: set "
                            "`position` of the dataset, and begin the loop again"
                        )
                is_late = self._loops == 1 and record.sets != self._sets
                begun = record.begin_late() if is_late else record.begin(end)
                record.partial[loop] = (*begun, worker.num_workers)
            start, loops, missing = record.partial.pop(loop)
            if missing > 1:
                record.partial[loop] = start, loops, missing - 1
                _keep_last(record.partial, MOST_LOOPS)
            return start, loops

    @contextmanager
    def _record(self) -> Iterator[_Record]:
        """Take out the record of the process whose loops these are, and put it back."""
        records = self._take()
        try:
            main = _main_process()
            if main not in records:  # Forked, as a rank: it goes on from here by itself.
                records[main] = replace(records[self._creator], partial={}, sets=self._sets)
            yield records[main]
        finally:
            creator = records.pop(self._creator)
            _keep_last(records, MOST_PROCESSES)
            self._put({self._creator: creator, **records})

    def _take(self) -> dict[Process, _Record]:
        limit = time.monotonic() + TIMEOUT
        while (message := self._read()) is None:
            if not wait([self._reader], limit - time.monotonic()):
                raise RuntimeError(
                    "the position of the dataset is lost, because a process was killed while it "
                    "changed it: create the dataset again, with `position=`"
                )
        records: dict[Process, _Record] = pickle.loads(message)
        return records

    def _read(self) -> bytes | None:
        """Return the message; None if another process has it, or was faster."""
        try:
            return os.read(self._reader.fileno(), 1 << 16)
        except BlockingIOError:
            return None

    def _put(self, records: dict[Process, _Record]) -> None:
        os.write(self._writer.fileno(), pickle.dumps(records))

    def __getstate__(self) -> dict[str, Any]:
        if get_spawning_popen() is not None:  # Sent to a process that this one starts.
            return self.__dict__
        return {"following": self.following}

    def __setstate__(self, state: dict[str, Any]) -> None:
        if "following" in state:
            self.__init__(state["following"])  # type: ignore[misc]
        else:
            self.__dict__.update(state)


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
