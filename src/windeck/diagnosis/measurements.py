"""The numbers of a diagnosis, as values that survive JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from windeck._util.validation import check_format

__all__ = ["FORMAT", "Disk", "LoopTimes", "Machine", "Measurements", "Stage", "Subject", "Usage"]

#: Format of the JSON document.
FORMAT = 1


@dataclass(frozen=True)
class Usage:
    """Counters of one process, or of several together, over a period.

    Attributes
    ----------
    cpu_seconds
        Seconds on a core, of all threads, in user and system mode.
    system_seconds
        Those in system mode: page faults, system calls.
    queued_seconds
        Seconds in which threads were ready and had no core; None where the system does not say.
    major_faults, minor_faults
        Page faults that read from a disk, and others.
    switches
        Voluntary context switches: how often a thread went to sleep.
    read_bytes
        Bytes fetched from disks, page faults included; None where the system does not say.
    """

    cpu_seconds: float = 0.0
    system_seconds: float = 0.0
    queued_seconds: float | None = 0.0
    major_faults: int = 0
    minor_faults: int = 0
    switches: int = 0
    read_bytes: int | None = 0

    def plus(self, other: Usage, sign: int = 1) -> Usage:
        """Return the sum with another, or with `sign` -1 the difference; never below 0."""
        values: dict[str, Any] = {}
        for name in (one.name for one in fields(self)):
            mine, others = getattr(self, name), getattr(other, name)
            unknown = mine is None or others is None
            values[name] = None if unknown else max(mine + sign * others, 0)
        return Usage(**values)


@dataclass(frozen=True)
class LoopTimes:
    """One loop: over batches alone, over batches with the step, or of the step alone.

    Attributes
    ----------
    batches, seconds
        Batches of the loop, and its seconds from the first request to the end of all work.
    waited, stepped
        Seconds in requests for batches, and in calls of the step.
    wait_median, step_median
        Medians of both over batches.
    process, workers
        Use of this process, and of each of its children.
    received_bytes
        Bytes that the machine received from networks, loopback left out; None if unknown.
    queued_seconds
        Seconds in which the thread of the loop was ready and had no core; None if unknown.
    others_seconds
        Seconds on a core that other programs used, and the host of a virtual machine; None if
        unknown.
    timeline
        Seconds since the beginning of the loop at which the first batches were requested and
        received, and their step was done.
    """

    batches: int
    seconds: float
    waited: float = 0.0
    stepped: float = 0.0
    wait_median: float = 0.0
    step_median: float = 0.0
    process: Usage = Usage()
    workers: tuple[Usage, ...] = ()
    received_bytes: int | None = None
    queued_seconds: float | None = None
    others_seconds: float | None = None
    timeline: tuple[tuple[float, float, float], ...] = ()

    @property
    def seconds_per_batch(self) -> float:
        """Seconds of the loop for each batch."""
        return self.seconds / self.batches

    @property
    def usage(self) -> Usage:
        """Use of this process and its children together."""
        total = self.process
        for worker in self.workers:
            total = total.plus(worker)
        return total


@dataclass(frozen=True)
class Stage:
    """One part of the work for a batch, done alone in one thread: seconds and use for a batch."""

    name: str
    seconds: float
    cpu_seconds: float
    major_faults: float = 0.0
    read_bytes: float | None = None


@dataclass(frozen=True)
class Disk:
    """Rates of reading one file.

    Attributes
    ----------
    sequential
        Bytes per second in reads of a mebibyte.
    random
        Reads of 4,096 bytes per second, at random places.
    uncached
        Whether the bytes came from the disk and not out of the page cache.
    """

    file: str
    sequential: float
    random: float
    uncached: bool


@dataclass(frozen=True)
class Machine:
    """The machine: what it has, and what it did when measured.

    Attributes
    ----------
    cores
        Cores that this process may use.
    memory_bytes, memory_free
        Memory of the machine, and of it what programs can still get.
    memcpy
        Bytes per second copied in memory by one thread.
    network
        Bytes per second received from the address that was given.
    """

    name: str = ""
    cores: int = 1
    memory_bytes: int | None = None
    memory_free: int | None = None
    memcpy: float | None = None
    disk: Disk | None = None
    network: float | None = None

    @property
    def uncached_disk(self) -> Disk | None:
        """The rates of the disk, if they are not those of the page cache."""
        return self.disk if self.disk is not None and self.disk.uncached else None


@dataclass(frozen=True)
class Subject:
    """The loader that was measured.

    Attributes
    ----------
    kind
        Its type.
    unit
        Word for its samples, in plural.
    samples, nbytes
        Samples and bytes of a batch: means of the first ones.
    workers
        Processes that make batches; 0 if this process makes them.
    ahead
        Batches that are made ahead, as far as the loader says; 0 if each is made on request.
    mapped
        Names and bytes of the data's files: those given, or those mapped or held open.
    columns, column_bytes
        Columns that windows read out of a mapped table, and their bytes; 0 for other loaders.
    restartable
        Whether each loop could begin anew.
    consumed
        Batches taken from it.
    """

    kind: str
    unit: str = "samples"
    samples: float = 1.0
    nbytes: float = 0.0
    workers: int = 0
    ahead: int = 0
    mapped: tuple[tuple[str, int], ...] = ()
    columns: int = 0
    column_bytes: int = 0
    restartable: bool = True
    consumed: int = 0


@dataclass(frozen=True)
class Measurements:
    """Everything that was measured.

    Attributes
    ----------
    first_batch_seconds
        Seconds from ``iter(loader)`` to the first batch.
    loader, both, step
        The loops: of batches alone; of batches with the step; of the step with one batch again
        and again. The last two are None without a step.
    stages
        Parts of the work for a batch, where they are known.
    asynchronous
        Whether the step queues work on a GPU, so that its seconds on the host are not its own.
    notes
        Sentences on what could not be measured, and what was left changed.
    """

    subject: Subject
    machine: Machine
    first_batch_seconds: float
    loader: LoopTimes
    both: LoopTimes | None = None
    step: LoopTimes | None = None
    stages: tuple[Stage, ...] = ()
    asynchronous: bool = False
    notes: tuple[str, ...] = field(default=())

    def to_document(self) -> dict[str, Any]:
        """Return the numbers as dicts, lists and numbers."""
        return {"format": FORMAT, **asdict(self)}

    @classmethod
    def from_document(cls, document: Any) -> Measurements:
        """Return the measurements that `to_document` returned, also after JSON.

        Raises
        ------
        ValueError
            For anything else.
        """
        found = document.get("format") if isinstance(document, Mapping) else None
        check_format("the report", found, FORMAT)
        try:
            return _measurements(document)
        except (
            AttributeError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
        ) as error:  # fmt: skip
            raise ValueError(f"the report is damaged: {type(error).__name__} {error}") from error


def _measurements(document: Mapping[str, Any]) -> Measurements:
    machine, subject = dict(document["machine"]), dict(document["subject"])
    disk = machine.pop("disk")
    subject["mapped"] = tuple((str(name), int(size)) for name, size in subject["mapped"])
    loops = {name: _loop(document[name]) for name in ("loader", "both", "step")}
    loader = loops.pop("loader")
    if loader is None:
        raise ValueError("it has no loop of the loader")
    return Measurements(
        subject=_of(Subject, subject),
        machine=_of(Machine, {**machine, "disk": None if disk is None else _of(Disk, disk)}),
        first_batch_seconds=float(document["first_batch_seconds"]),
        loader=loader,
        both=loops["both"],
        step=loops["step"],
        stages=tuple(_of(Stage, stage) for stage in document["stages"]),
        asynchronous=bool(document["asynchronous"]),
        notes=tuple(map(str, document["notes"])),
    )


def _loop(document: Mapping[str, Any] | None) -> LoopTimes | None:
    if document is None:
        return None
    values = dict(document)
    values["process"] = _of(Usage, values["process"])
    values["workers"] = tuple(_of(Usage, worker) for worker in values["workers"])
    spans = [tuple(map(float, span)) for span in values["timeline"]]
    if any(len(span) != 3 for span in spans):
        raise ValueError("a batch of the timeline has not three times")
    values["timeline"] = tuple(spans)
    loop: LoopTimes = _of(LoopTimes, values)
    if not (loop.batches >= 1 and loop.seconds > 0):
        raise ValueError("a loop has no batches or no seconds")
    return loop


#: Types of the fields of a document, as the annotations above are written.
_KINDS: dict[str, tuple[type, ...]] = {
    "str": (str,),
    "int": (int,),
    "bool": (bool,),
    "float": (int, float),
    "int | None": (int, type(None)),
    "float | None": (int, float, type(None)),
}


def _of(kind: Any, values: Mapping[str, Any]) -> Any:
    """Return a value of a class, with its numbers and text checked."""
    for one in fields(kind):
        expected = _KINDS.get(str(one.type))
        if expected and one.name in values and not isinstance(values[one.name], expected):
            raise TypeError(f"{one.name} is {values[one.name]!r}, expected {one.type}")
    return kind(**values)
