"""The verdict: a pure function of the measurements. Shares and ratios decide, never seconds alone.

A loop over batches with the step takes t seconds a batch: the step alone takes a of them, requests
for batches take w, and the step takes s beside the loader. The time lost to waiting is w, and the
time lost to competition for the cores is s - a, as far as the loader uses the processor, and other
programs do not. The loop of batches alone says where the loader's own time goes: on a core, ready
without one, in reads of a disk, or none of these.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from windeck._util.text import format_bytes, plural
from windeck.diagnosis.measurements import LoopTimes, Measurements

__all__ = ["CAUSES", "Finding", "TimeShares", "batch_rate", "findings_of", "loader_shares"]
__all__ += ["lost_shares", "needed_workers", "others_share", "sample_rate", "step_seconds"]
__all__ += ["verdict_of"]

#: Kinds of findings, and their causes as the end of a sentence on lost time.
CAUSES = {
    "step": "in the step itself",
    "cores": "in competition for the cores",
    "others": "to other programs, which use the cores",
    "overlap": "because batches are made between the steps and not beside them",
    "workers": "because there are too few workers",
    "collate": "in the collate function",
    "map": "in random reads of a memory map",
    "random": "in random reads of files",
    "disk": "in reads of a disk",
    "network": "for the network",
    "sleep": "in sleep, for a lock or for another process: neither computing nor reading a disk",
    "memory": "in copies of memory",
    "handover": "in handing batches over, outside of the dataset and the collate function",
    "compute": "in computing the samples",
}

#: Shares of the time below which a loss is not worth a finding.
_LITTLE = 0.1
#: Seconds of a random read, and bytes per second in sequence, where the disk was not measured.
_READ_SECONDS, _DISK_RATE = 1e-4, 1e9
#: Random reads in whose time one page fault surely ends.
_FAULT_READS = 20
#: Share of memcpy's rate from which a loader is limited by memory.
_MEMORY_SHARE = 0.3


@dataclass(frozen=True)
class Finding:
    """A cause of lost time.

    Attributes
    ----------
    kind
        One of `CAUSES`.
    share
        Share of the loop's time that is lost to it, in [0, 1].
    sentence
        What was measured.
    advice
        What may help.
    """

    kind: str
    share: float
    sentence: str
    advice: str


@dataclass(frozen=True)
class TimeShares:
    """Shares of the time of a loader's processes, together at most about 1.

    On a core, ready without a core, in reads of a disk (an estimate), and the rest. `system` is the
    part of the share on a core that is spent in the kernel.
    """

    busy: float
    system: float
    queued: float
    disk: float
    asleep: float


def batch_rate(loop: LoopTimes) -> float:
    """Return the batches of a loop per second."""
    return loop.batches / loop.seconds


def sample_rate(measured: Measurements, loop: LoopTimes) -> float:
    """Return the samples of a loop per second; of the loop `step`, those of steps alone."""
    if loop is measured.step:
        return measured.subject.samples / step_seconds(measured)
    return measured.subject.samples * batch_rate(loop)


def step_seconds(measured: Measurements) -> float:
    """Return the seconds of the step alone; of a step on a GPU until all its work is done."""
    loop = measured.step
    assert loop is not None
    if measured.asynchronous:
        return loop.seconds_per_batch
    return max(loop.stepped / loop.batches, 1e-9)


def lost_shares(measured: Measurements) -> tuple[float, float]:
    """Return the shares of the loop with the step that are lost to waiting and to competition."""
    both, alone = measured.both, measured.step
    if both is None or alone is None:
        return 1.0, 0.0
    total = both.seconds_per_batch
    if measured.asynchronous:  # the host's requests overlap with work on the GPU
        return _share(total - step_seconds(measured), total), 0.0
    slower, used = both.step_median - alone.step_median, _loader_seconds(measured)
    # The loader and other programs have kept the step from a core in proportion to their use.
    queued, queued_alone = ((one.queued_seconds or 0.0) / one.batches for one in (both, alone))
    by_queue = min(max(queued - queued_alone, 0.0), max(slower, 0.0))
    others = (both.others_seconds or 0.0) / both.batches
    slower -= by_queue * _share(others, others + used)
    return _share(both.waited / both.batches, total), _share(min(slower, used), total)


def _loader_seconds(measured: Measurements) -> float:
    """Return the processor time of the loader for a batch: it takes no more from the step.

    It is that of the loop with the step, less that of the step alone. The step's own threads may
    use more there, where they wait for each other: in this process it is at most that of the loop
    of batches alone.
    """
    both, alone, loader = measured.both, measured.step, measured.loader
    assert both is not None
    assert alone is not None
    workers, own = (
        max(part(both) / both.batches - part(alone) / alone.batches, 0.0)
        for part in (_worker_seconds, _process_seconds)
    )
    return workers + min(own, _process_seconds(loader) / loader.batches)


def _worker_seconds(loop: LoopTimes) -> float:
    return sum(worker.cpu_seconds for worker in loop.workers)


def _process_seconds(loop: LoopTimes) -> float:
    return loop.process.cpu_seconds


def others_share(measured: Measurements) -> float:
    """Return the share of the cores that other programs used during the loops; 0 if unknown."""
    loops = [loop for loop in (measured.loader, measured.both, measured.step) if loop is not None]
    used = sum(loop.others_seconds or 0.0 for loop in loops)
    return _share(used, measured.machine.cores * sum(loop.seconds for loop in loops))


def _share(part: float, whole: float) -> float:
    return min(max(part / whole, 0.0), 1.0) if whole > 0 else 0.0


def loader_shares(measured: Measurements) -> TimeShares:
    """Return where the time of the loader's processes goes, from the loop of batches alone."""
    loop, disk = measured.loader, measured.machine.uncached_disk
    workers = measured.subject.workers
    capacity = loop.seconds * max(workers, 1)
    use = loop.usage
    busy = _worker_seconds(loop)
    queued = sum(worker.queued_seconds or 0.0 for worker in loop.workers)
    system = sum(worker.system_seconds for worker in loop.workers)
    if not workers:
        busy, queued = busy + loop.process.cpu_seconds, queued + (loop.process.queued_seconds or 0)
        system += loop.process.system_seconds
    read = _READ_SECONDS if disk is None else 1 / max(disk.random, 1e-9)
    rate = _DISK_RATE if disk is None else disk.sequential
    reading = max(use.major_faults * read, (use.read_bytes or 0) / max(rate, 1e-9))
    busy, queued = _share(busy, capacity), _share(queued, capacity)
    left = max(1.0 - busy - queued, 0.0)
    # A page fault that reads sends a thread to sleep once: the time asleep is that of the faults
    # in proportion, unless each would take many times as long as a random read.
    by_sleeps = left * min(use.major_faults / max(use.switches, 1), 1.0)
    longest = _share(_FAULT_READS * use.major_faults * read, capacity)
    in_disk = min(max(_share(reading, capacity), min(by_sleeps, longest)), left)
    return TimeShares(busy, _share(system, capacity), queued, in_disk, left - in_disk)


def findings_of(measured: Measurements) -> tuple[Finding, ...]:
    """Return the findings, those with the largest share first; at least one."""
    waiting, slower = lost_shares(measured)
    found = []
    if measured.step is None or waiting >= _LITTLE:
        found.append(_loader_finding(measured, waiting))
    if found and found[0].kind == "cores" and measured.both and measured.step:
        lost = min(waiting + slower, 1.0)
        if _fast_enough(measured) and not measured.asynchronous:
            lost = min(lost, _share(_loader_seconds(measured), measured.both.seconds_per_batch))
        found = [_competition(measured, lost)] if lost >= _LITTLE else []
        if not found and waiting >= _LITTLE and others_share(measured) >= _LITTLE:
            found = [_others(measured, waiting)]
    elif slower >= _LITTLE:
        found.append(_competition(measured, slower))
    if not found:
        unit = measured.subject.unit
        sentence = (
            f"the loader alone gives {_count(sample_rate(measured, measured.loader))} {unit}/s, "
            "more than the step takes"
            if _fast_enough(measured)
            else "the loop loses little time to the loader"
        )
        advice = "a faster loader would not help: make the step faster, or its batch larger"
        found.append(Finding("step", max(1.0 - waiting - slower, 0.0), sentence, advice))
    return tuple(sorted(found, key=lambda finding: -finding.share))


def verdict_of(measured: Measurements) -> str:
    """Return the verdict: one sentence with rates, the share of waiting, its cause and advice."""
    first, *more = findings_of(measured)
    subject, unit = measured.subject, measured.subject.unit
    gives = f"{_count(sample_rate(measured, measured.loader))} {unit}/s"
    if measured.both is None or measured.step is None:
        nbytes = format_bytes(subject.nbytes * batch_rate(measured.loader))
        spent = f"most of its time is spent {CAUSES[first.kind]}"
        return f"the loader gives {gives}, {nbytes}/s; {spent}; {first.advice}"
    could = f"{_count(sample_rate(measured, measured.step))} {unit}/s"
    waiting, _ = lost_shares(measured)
    if first.kind == "step":
        return (
            f"the step takes {could}, the loader could give {gives}; {_percent(waiting)} of the "
            f"time is spent waiting: the step is the limit, and {first.advice}"
        )
    if first.kind in ("cores", "others"):
        takes = sample_rate(measured, measured.both)
        text = (
            f"the step could take {could}, beside the loader it takes {_count(takes)}; "
            f"{_percent(first.share)} of the time is lost {CAUSES[first.kind]}"
        )
    else:
        text = (
            f"the step could take {could}, the loader gives {gives.split(' ')[0]}; "
            f"{_percent(waiting)} of the time is spent waiting, most of it {CAUSES[first.kind]}"
        )
    text += f"; {first.advice}"
    for other in more:
        text += f"; also, {_percent(other.share)} is lost {CAUSES[other.kind]}"
    return text


def _loader_finding(measured: Measurements, share: float) -> Finding:
    """Return the finding on where the loader's time goes."""
    kind = _loader_cause(measured)
    shares, subject = loader_shares(measured), measured.subject
    who = plural(subject.workers, "worker") if subject.workers else "this process"
    sentence = (
        f"while batches are made, the time of {who} is {_percent(shares.busy)} on a core, "
        f"{_percent(shares.queued)} ready without one, {_percent(shares.disk)} in reads "
        f"of a disk, {_percent(shares.asleep)} asleep"
    )
    stages = {stage.name: stage.seconds for stage in measured.stages}
    if stages:
        parts = [f"{name} {_milliseconds(seconds)}" for name, seconds in stages.items()]
        sentence += f"; a batch alone takes {', '.join(parts)}"
    if kind in ("map", "random", "disk"):
        sentence += f"; {_reading(measured)}"
    return Finding(kind, share, sentence, _advice(measured, kind))


def _loader_cause(measured: Measurements) -> str:
    shares, subject, loop = loader_shares(measured), measured.subject, measured.loader
    stages = {stage.name: stage.seconds for stage in measured.stages}
    own = stages.get("samples", 0.0) + stages.get("collate", 0.0)
    needed, most = needed_workers(measured)
    delivered, read = subject.nbytes * loop.batches, loop.usage.read_bytes or 0
    away = shares.disk + shares.asleep
    if measured.step is not None and _fast_enough(measured):
        if not subject.workers and not subject.ahead:
            return "overlap"
        if shares.busy + shares.queued > away:
            return "cores"
    # Time ready without a core is left out: others on the machine cause it. Page faults take the
    # processor as well, in system mode.
    by_disk = shares.disk > max(0.25 * away, 0.1 * shares.busy)
    by_disk = by_disk and shares.disk + shares.system > shares.busy - shares.system
    slow_reads = away > shares.busy and shares.disk > 0.1 * away and read > 0.5 * delivered
    reads = by_disk or slow_reads
    around = 0 < own < 0.4 * loop.seconds_per_batch * max(subject.workers, 1)
    if around and not reads:
        return "handover"
    if 0 < subject.workers < needed <= most:
        return "workers"
    if subject.workers > measured.machine.cores and shares.queued > max(shares.asleep, 0.3):
        return "cores"
    if stages.get("collate", 0.0) > 0.6 * own:
        return "collate"
    if reads:
        return _kind_of_reads(measured)
    if away > shares.busy:
        received = (loop.received_bytes or 0) > 0.5 * max(delivered, 1 << 20)
        return "network" if received else "sleep"
    memcpy = measured.machine.memcpy
    copies = memcpy is not None and delivered / loop.seconds > _MEMORY_SHARE * memcpy
    return "memory" if copies else "compute"


def _fast_enough(measured: Measurements) -> bool:
    """Return whether the loader alone is surely faster than the step alone."""
    return measured.loader.seconds_per_batch < 0.9 * step_seconds(measured)


def _kind_of_reads(measured: Measurements) -> str:
    """Return ``map``, ``random`` or ``disk``: many faults, more read than delivered, or neither."""
    loop, disk = measured.loader, measured.machine.uncached_disk
    read = loop.usage.read_bytes or 0
    by_faults = loop.usage.major_faults * (1 << 20) > read / 16
    if loop.usage.major_faults > loop.batches / 4 and by_faults:
        return "map"
    slow = disk is not None and read / loop.seconds < 0.25 * disk.sequential
    amplified = read > 2 * measured.subject.nbytes * loop.batches
    return "random" if amplified or slow else "disk"


def needed_workers(measured: Measurements) -> tuple[int, int]:
    """Return the workers that would keep the step busy, and the most that help this machine.

    Workers that compute need a core each; those that wait do not, so four to a core are tried.
    """
    cores, workers = measured.machine.cores, max(measured.subject.workers, 1)
    if measured.step is None:
        return 0, cores
    needed = math.ceil(workers * measured.loader.seconds_per_batch / step_seconds(measured))
    shares = loader_shares(measured)
    waits = shares.asleep + shares.disk > shares.busy + shares.queued
    return needed, 4 * cores if waits else cores


def _competition(measured: Measurements, share: float) -> Finding:
    both, alone = measured.both, measured.step
    assert both is not None
    assert alone is not None
    used = _worker_seconds(both) + _process_seconds(both)
    sentence = (
        f"the step takes {_milliseconds(both.step_median)} beside the loader and "
        f"{_milliseconds(alone.step_median)} alone; together they use "
        f"{used / both.seconds:.1f} of {plural(measured.machine.cores, 'core')}"
    )
    less = "fewer workers" if measured.subject.workers else "less Python in the loader's thread"
    if measured.subject.workers > measured.machine.cores:
        less = f"{measured.machine.cores} workers instead of {measured.subject.workers}"
    advice = (
        f"leave the step a core: {less}, torch.set_num_threads below {measured.machine.cores}, or "
        "samples prepared once and stored"
    )
    return Finding("cores", share, sentence, advice)


def _others(measured: Measurements, share: float) -> Finding:
    cores = measured.machine.cores
    sentence = (
        f"other programs use {others_share(measured) * cores:.1f} of {plural(cores, 'core')}, and "
        "the loader's thread waits for one"
    )
    return Finding("others", share, sentence, "measure again while they do not run")


def _reading(measured: Measurements) -> str:
    loop = measured.loader
    delivered = max(measured.subject.nbytes, 1)
    read = (loop.usage.read_bytes or 0) / loop.batches
    return (
        f"a batch of {format_bytes(measured.subject.nbytes)} reads {format_bytes(read)} from the "
        f"disk, {read / delivered:.1f} times its size, in "
        f"{loop.usage.major_faults / loop.batches:.1f} major page faults"
    )


def _advice(measured: Measurements, kind: str) -> str:
    subject, machine = measured.subject, measured.machine
    needed, most = needed_workers(measured)
    if kind == "workers":
        return f"num_workers={needed} would keep up, instead of {subject.workers}"
    if kind == "overlap":
        return "make them ahead: num_workers=1 or more of a DataLoader, prefetch=2 of a Loader"
    if kind == "cores":
        return f"{machine.cores} workers instead of {subject.workers}: there are no more cores"
    if kind in ("map", "random", "disk"):
        return _reading_advice(measured)
    if kind == "collate":
        return "gather whole batches into one array instead of joining samples one by one"
    if kind == "network":
        return "keep a copy of the data on a local disk, or read ahead in larger requests"
    if kind == "memory":
        return "deliver fewer bytes: narrower dtypes, fewer columns, no second copy"
    if kind == "handover":
        return "larger batches, fewer and larger tensors in each, or threads instead of processes"
    if kind == "sleep" and not subject.workers and 1 < needed <= most:
        return f"find out what it waits for, or let {plural(needed, 'worker')} wait side by side"
    if kind == "sleep":
        return "find out what it waits for: a service, a lock, a file system over a network"
    slowest = max(measured.stages, key=lambda stage: stage.seconds, default=None)
    where = f" ({slowest.name} takes most)" if slowest and slowest.name != "samples" else ""
    if subject.kind.startswith("windeck."):
        # A source on a device has one stage, and takes no threads.
        threads = "" if [stage.name for stage in measured.stages] == ["gather"] else "threads=, "
        return f"{threads}a narrower dtype or larger batches of the Loader may help{where}"
    spare = machine.cores - max(subject.workers, 1)
    if spare > 0 and subject.kind.startswith("torch."):
        return f"up to {machine.cores} workers, or batches made by native code{where}"
    return f"make batches by native code, or prepare samples once and store them{where}"


def _reading_advice(measured: Measurements) -> str:
    subject, free = measured.subject, measured.machine.memory_free
    if subject.columns and (free is None or subject.column_bytes < 0.8 * free):
        what = "this column" if subject.columns == 1 else f"these {subject.columns} columns"
        return f"load {what}, {format_bytes(subject.column_bytes)}, into memory"
    size = sum(nbytes for _, nbytes in subject.mapped)
    if size and (free is None or size < 0.8 * free):
        names = ", ".join(name for name, _ in subject.mapped[:3])
        return f"load {names}, {format_bytes(size)}, into memory"
    if size:
        return (
            f"{format_bytes(size)} do not fit into the {format_bytes(free or 0)} of memory left: "
            "read fewer columns, or shuffle blocks instead of rows"
        )
    return "read the data into memory once, or read it in larger requests"


def _count(number: float) -> str:
    """Return a rate with three digits: ``"1,900"``, ``"0.31"``."""
    if number >= 100:
        digits = 10 ** max(math.floor(math.log10(number)) - 2, 0)
        return f"{round(number / digits) * digits:,}"
    return f"{number:.3g}"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")


def _milliseconds(seconds: float) -> str:
    return f"{seconds * 1e3:.3g} ms"
