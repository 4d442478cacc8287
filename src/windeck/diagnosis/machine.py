"""Rates of this machine: copying in memory, reading a file, receiving from a network."""

from __future__ import annotations

import os
import platform
import random
import tempfile
import time
import urllib.request
from collections.abc import Sequence

import numpy as np

from windeck._util.schemes import scheme_of
from windeck.diagnosis.measurements import Disk, Machine
from windeck.diagnosis.processes import thread_usage

__all__ = ["check_url", "measure_disk", "measure_machine", "measure_memcpy", "measure_network"]

_PAGE, _READ = 4096, 1 << 20
#: Limits of reading a file: bytes and reads. A temporary file has `_TEMPORARY` bytes.
_MOST_BYTES, _MOST_READS, _TEMPORARY = 256 << 20, 2000, 64 << 20


def measure_machine(
    files: Sequence[str], *, disk: bool, network: str | None, seconds: float
) -> tuple[Machine, list[str]]:
    """Measure the machine, and return notes on what could not be measured.

    Parameters
    ----------
    files
        Files of the data; the first is read. Without any a temporary one is written and read.
    disk
        Whether a disk is measured.
    network
        Address of something large to download, or None.
    seconds
        Limit of each measurement.
    """
    notes, found = list[str](), None
    if disk:
        path = files[0] if files else None
        try:
            found = measure_disk(path, seconds=seconds)
        except OSError as error:
            notes.append(f"the disk was not measured: {error}")
        else:
            if not found.uncached:
                notes.append(
                    f"{found.file} could not be dropped from the page cache, or its file system "
                    "does not count what it reads: the disk itself may be slower"
                )
            if path is None:
                notes.append(
                    f"no file of the data is known, so the disk is that of {tempfile.gettempdir()}"
                )
    total, free = _memory()
    machine = Machine(
        name=f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        cores=_cores(),
        memory_bytes=total,
        memory_free=free,
        memcpy=measure_memcpy(),
        disk=found,
        network=None if network is None else measure_network(network, seconds=seconds),
    )
    return machine, notes


def measure_memcpy(*, nbytes: int = 64 << 20, repeats: int = 5) -> float:
    """Return bytes copied per second by one thread: the best of some copies."""
    source = np.ones(nbytes, np.uint8)
    target = np.zeros_like(source)
    best = float("inf")
    for _ in range(repeats):
        began = time.perf_counter()
        np.copyto(target, source)
        best = min(best, time.perf_counter() - began)
    return nbytes / max(best, 1e-9)


def measure_disk(path: str | None, *, seconds: float = 0.5) -> Disk:
    """Measure sequential and random reads of a file, dropped from the page cache before each.

    Parameters
    ----------
    path
        A file; None writes a temporary one of 64 MiB and removes it.
    seconds
        Limit of both measurements.

    Raises
    ------
    OSError
        If the file cannot be read, or has less than a page.
    """
    if path is not None:
        return _measure_file(path, seconds)
    with tempfile.NamedTemporaryFile(prefix="windeck-doctor-") as file:
        for _ in range(_TEMPORARY // _READ):
            file.write(os.urandom(_READ))
        file.flush()
        os.fsync(file.fileno())
        found = _measure_file(file.name, seconds)
    return Disk("a temporary file", found.sequential, found.random, found.uncached)


def _measure_file(path: str, seconds: float) -> Disk:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        size = os.fstat(descriptor).st_size
        if size < _PAGE:
            raise OSError(f"{path} has {size} bytes, expected at least {_PAGE}")
        # In the middle, so that of a large file not only the beginning is read.
        begin = max(size // 2 - _MOST_BYTES // 2, 0) // _PAGE * _PAGE
        starts = range(begin, min(begin + _MOST_BYTES, size), _READ)
        rng = random.Random(7)
        pages = [rng.randrange(size // _PAGE) * _PAGE for _ in range(_MOST_READS)]
        before = thread_usage().read_bytes
        # At random first: a host that caches for its guests has read everything in sequence later.
        _advise(descriptor, "POSIX_FADV_DONTNEED", "POSIX_FADV_RANDOM")
        pages_read = _read(descriptor, pages, _PAGE, seconds / 2)
        _advise(descriptor, "POSIX_FADV_DONTNEED", "POSIX_FADV_SEQUENTIAL")
        adjacent_read = _read(descriptor, starts, _READ, seconds / 2)
        after = thread_usage().read_bytes
    finally:
        os.close(descriptor)
    uncached = False
    if before is not None and after is not None:
        uncached = after - before >= (adjacent_read[0] + pages_read[0]) / 2
    sequential, random_reads = (nbytes / took for nbytes, took in (adjacent_read, pages_read))
    return Disk(os.path.basename(path), sequential, random_reads / _PAGE, uncached)


def _advise(descriptor: int, *names: str) -> None:
    """Give the kernel advice on a whole file, where the system knows such advice."""
    for name in names:
        if hasattr(os, "posix_fadvise"):
            os.posix_fadvise(descriptor, 0, 0, getattr(os, name))


def _read(descriptor: int, places: Sequence[int], nbytes: int, seconds: float) -> tuple[int, float]:
    """Read at places until the time is over; return the bytes, and the seconds they took."""
    read, began = 0, time.perf_counter()
    for place in places:
        read += len(os.pread(descriptor, nbytes, place))
        if time.perf_counter() - began > seconds:
            break
    return read, max(time.perf_counter() - began, 1e-9)


def check_url(url: str) -> None:
    """Raise a ValueError for an address that is neither http nor https."""
    if scheme_of(url).client != "web":
        raise ValueError(f"`network` must be an http or https URL, got {url!r}")


def measure_network(url: str, *, seconds: float = 2.0) -> float:
    """Return bytes per second received from a URL, after the connection is made.

    Raises
    ------
    ValueError
        For an address that is neither http nor https, or sends nothing.
    OSError
        If it cannot be reached.
    """
    check_url(url)
    received = 0
    with urllib.request.urlopen(url, timeout=10) as answer:
        began = time.perf_counter()
        while time.perf_counter() - began < seconds:
            content = answer.read(_READ)
            if not content:
                break
            received += len(content)
        took = time.perf_counter() - began
    if not received:
        raise ValueError(f"{url} sent no bytes")
    return received / max(took, 1e-9)


def _cores() -> int:
    """Return the cores that this process may use: affinity, and the quota of its container."""
    count = os.cpu_count() or 1
    if hasattr(os, "sched_getaffinity"):
        count = len(os.sched_getaffinity(0))
    try:
        with open("/sys/fs/cgroup/cpu.max", encoding="utf-8") as file:
            quota, period = file.read().split()
        count = min(count, max(round(int(quota) / int(period)), 1))
    except (OSError, ValueError):  # no such file, or "max"
        pass
    return count


def _memory() -> tuple[int | None, int | None]:
    """Return the bytes of memory, and those that programs can still get; None if unknown."""
    try:
        with open("/proc/meminfo", encoding="utf-8") as file:
            lines = dict(line.split(":", 1) for line in file)
        kilobytes = [int(lines[name].split()[0]) for name in ("MemTotal", "MemAvailable")]
    except (OSError, KeyError, ValueError):
        return None, None
    return kilobytes[0] << 10, kilobytes[1] << 10
