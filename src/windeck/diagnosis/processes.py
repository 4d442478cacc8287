"""Counters of this process, its threads and its children, from /proc and getrusage."""

from __future__ import annotations

import os
import resource
import stat
import sys
from collections.abc import Iterable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import reduce

from windeck.diagnosis.measurements import Usage

__all__ = ["ProcessUsage", "children", "data_files", "received_bytes", "snapshot", "thread_usage"]

#: Smaller files are no data worth a name.
_SMALLEST_FILE = 1 << 20


@dataclass(frozen=True)
class ProcessUsage:
    """Counters at one moment: of this process, of each child alive, of children that ended.

    `queued` is of this thread, in seconds, `machine` are the seconds that all cores were used.
    """

    process: Usage
    alive: dict[int, Usage]
    ended: Usage
    received: int | None
    queued: float | None = None
    machine: float | None = None

    def until(self, later: ProcessUsage) -> tuple[Usage, tuple[Usage, ...]]:
        """Return the use of this process and of its children between two moments.

        Children that ended in between, as workers do with an epoch, are one more child.
        """
        process = later.process.plus(self.process, -1)
        lasting = [
            usage.plus(self.alive.get(pid, Usage()), -1) for pid, usage in later.alive.items()
        ]
        gone = [usage for pid, usage in self.alive.items() if pid not in later.alive]
        ended = later.ended.plus(reduce(Usage.plus, [self.ended, *gone]), -1)
        if later.ended != self.ended and any((ended.cpu_seconds, ended.minor_faults)):
            lasting.append(ended)
        return process, tuple(lasting)


def snapshot() -> ProcessUsage:
    """Return the counters of this moment. O(processes of the machine)."""
    own = _rusage(resource.RUSAGE_SELF)
    own = replace(own, queued_seconds=_queued("self"), read_bytes=_read_bytes("self"))
    alive = {pid: usage for pid in children() if (usage := _child(pid)) is not None}
    # What ended children read, and their time in queues, is not in their parent's counters.
    ended = _rusage(resource.RUSAGE_CHILDREN)
    queued = _read("/proc/thread-self/schedstat")
    return ProcessUsage(
        own,
        alive,
        ended,
        received_bytes(),
        None if queued is None else int(queued.split()[1]) / 1e9,
        _machine_seconds(),
    )


def thread_usage() -> Usage:
    """Return the counters of this thread alone where the system has them, else of the process.

    `read_bytes` is that of the thread.
    """
    used = _rusage(getattr(resource, "RUSAGE_THREAD", resource.RUSAGE_SELF))
    return replace(used, read_bytes=_read_bytes("thread-self"))


def children() -> list[int]:
    """Return the processes that descend from this one; none where there is no /proc."""
    parents = {pid: parent for pid in _pids() if (parent := _parent(pid)) is not None}
    found, own = list[int](), {os.getpid()}
    while below := [pid for pid, parent in parents.items() if parent in own]:
        found += below
        own = set(below)
    return sorted(found)


def received_bytes() -> int | None:
    """Return the bytes that the machine received from networks, or None if unknown."""
    lines = _read("/proc/net/dev")
    if lines is None:
        return None
    devices = [line.split(":", 1) for line in lines.splitlines() if ":" in line]
    return sum(int(counts.split()[0]) for name, counts in devices if name.strip() != "lo")


def _machine_seconds() -> float | None:
    """Return the seconds that all cores were used, or taken by the host of this machine."""
    lines = _read("/proc/stat")
    if lines is None:
        return None
    # user, nice, system, idle, iowait, irq, softirq, steal; those of guests are in user and nice
    ticks = [int(word) for word in lines.split("\n", 1)[0].split()[1:9]]
    return (sum(ticks) - sum(ticks[3:5])) / os.sysconf("SC_CLK_TCK")


def data_files(pids: Iterable[int | str]) -> tuple[tuple[str, int], ...]:
    """Return the data files that processes map or hold open, and their bytes, largest first.

    Libraries, devices, deleted files, what is below Python's own folders and files under 1 MiB
    are left out.
    """
    system = ("/usr/", "/lib", "/etc/", "/dev/", "/proc/", "/sys/", sys.prefix, sys.base_prefix)
    sizes = {}
    for path in {path for pid in pids for path in (*_mapped(pid), *_opened(pid))}:
        if path.startswith(system) or ".so" in os.path.basename(path):
            continue
        try:
            found = os.stat(path)
        except OSError:
            continue
        if stat.S_ISREG(found.st_mode) and found.st_size >= _SMALLEST_FILE:
            sizes[path] = found.st_size
    return tuple(sorted(sizes.items(), key=lambda item: -item[1]))


def _mapped(pid: int | str) -> Iterator[str]:
    for line in (_read(f"/proc/{pid}/maps") or "").splitlines():
        parts = line.split(None, 5)
        if len(parts) == 6 and parts[5].startswith("/"):
            yield parts[5]


def _opened(pid: int | str) -> Iterator[str]:
    try:
        numbers = os.listdir(f"/proc/{pid}/fd")
    except OSError:
        return
    for number in numbers:
        with suppress(OSError):  # closed meanwhile
            yield os.readlink(f"/proc/{pid}/fd/{number}")


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return []


def _parent(pid: int) -> int | None:
    words = _stat(pid)
    return None if words is None else int(words[1])


def _stat(pid: int | str) -> list[str] | None:
    """Return the words of /proc/PID/stat after the command's name, which may hold spaces."""
    text = _read(f"/proc/{pid}/stat")
    return None if text is None else text.rpartition(")")[2].split()


def _child(pid: int) -> Usage | None:
    words = _stat(pid)
    if words is None:
        return None
    user, system = (int(words[at]) / os.sysconf("SC_CLK_TCK") for at in (11, 12))
    return Usage(
        cpu_seconds=user + system,
        system_seconds=system,
        queued_seconds=_queued(pid),
        major_faults=int(words[9]),
        minor_faults=int(words[7]),
        switches=_switches(pid),
        read_bytes=_read_bytes(pid),
    )


def _rusage(who: int) -> Usage:
    used = resource.getrusage(who)
    return Usage(
        cpu_seconds=used.ru_utime + used.ru_stime,
        system_seconds=used.ru_stime,
        major_faults=used.ru_majflt,
        minor_faults=used.ru_minflt,
        switches=used.ru_nvcsw,
    )


def _tasks(pid: int | str, name: str) -> Iterator[str]:
    """Yield the contents of a file of each thread of a process."""
    try:
        threads = os.listdir(f"/proc/{pid}/task")
    except OSError:
        return
    for thread in threads:
        text = _read(f"/proc/{pid}/task/{thread}/{name}")
        if text is not None:
            yield text


def _queued(pid: int | str) -> float | None:
    waits = [text.split() for text in _tasks(pid, "schedstat")]
    return sum(int(words[1]) for words in waits) / 1e9 if waits else None


def _switches(pid: int | str) -> int:
    lines = [line for text in _tasks(pid, "status") for line in text.splitlines()]
    return sum(int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt"))


def _read_bytes(pid: int | str) -> int | None:
    lines = (_read(f"/proc/{pid}/io") or "").splitlines()
    return next((int(line.split()[1]) for line in lines if line.startswith("read_bytes")), None)


def _read(path: str) -> str | None:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None
