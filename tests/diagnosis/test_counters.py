"""Counters of processes and rates of the machine, as far as they can be known exactly."""

from __future__ import annotations

import http.server
import os
import subprocess
import sys
import tempfile
import threading
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader, Dataset

import windeck as wd
from support import planted
from support.internals import plant
from windeck.diagnosis import Diagnosis, LoopTimes

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

#: Batches of a loop, and those that are taken before the first loop.
BATCHES, TAKEN = 10, 4

#: Computes whenever it reads a line, and prints the processor time that it has used.
CHILD = """
import time
while True:
    print(time.process_time(), flush=True)
    input()
    end = time.process_time() + 0.2
    while time.process_time() < end:
        pass
"""


class Acting:
    """A loader that calls a function before a batch of a given number.

    The loop of batches alone has the numbers 4 to 13, the loop with the step those from 14 on.
    """

    def __init__(self, actions: Mapping[int, Callable[[], object]]) -> None:
        self.actions = actions

    def __iter__(self) -> Iterator[Any]:
        for number in count():
            self.actions.get(number, int)()
            yield np.zeros((2, 2))


def take(batch: Any) -> None:
    """Do nothing with a batch."""


def diagnosed(loader: Any, step: Any = None, **options: Any) -> Diagnosis:
    limits = {"seconds": 60.0, "batches": BATCHES, "disk": False}
    return wd.doctor(loader, step, **{**limits, **options})


def alone(actions: Callable[[], object] = int, **options: Any) -> LoopTimes:
    """Return the loop of batches alone, in which a function is called."""
    return diagnosed(Acting({TAKEN + 2: actions}), **options).measured.loader


def test_a_process_counts_its_own_time() -> None:
    loop = alone(lambda: planted.spin(3_000_000))
    assert loop.process.cpu_seconds > 0
    assert loop.process.system_seconds <= loop.process.cpu_seconds
    loader = DataLoader(planted.Spinning(100_000), batch_size=2)
    (samples, _) = diagnosed(loader, batches=2, seconds=1.0).measured.stages
    assert samples.cpu_seconds > 0


class Child:
    """A process that computes on request, and the processor time that it says it used."""

    def __init__(self, ends: ExitStack) -> None:
        self.ends, self.seconds = ends, 0.0

    def start(self) -> Child:
        command = ["sh", "-c", f"{sys.executable} -c '{CHILD}' 2>&1; true"]
        self.process = self.ends.enter_context(
            subprocess.Popen(command, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        )
        return self.read()

    def read(self) -> Child:
        assert self.process.stdout is not None
        self.seconds = float(self.process.stdout.readline())
        return self

    def spin(self) -> Child:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return self.read()

    def end(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@linux
def test_children_are_counted_while_they_live_and_after() -> None:
    """The time of a process below a child is its own while it runs, and not lost at its end.

    A child lasts, one ends in the loop of batches alone, one after it, and one is new in the loop
    with the step. The sums are those that the children say.
    """
    with ExitStack() as ends:
        lasting, short, ending, new = (Child(ends) for _ in range(4))
        seen = []

        def begin() -> None:
            seen.append(lasting.start().spin().seconds + ending.start().spin().seconds)

        def first() -> None:
            used = lasting.spin().seconds + ending.spin().seconds
            short.start().spin().end()
            seen.append(used - seen[0] + short.seconds)

        def second() -> None:
            before = lasting.seconds + ending.seconds
            used = lasting.spin().seconds + ending.spin().seconds
            ending.end()
            seen.append(used - before + new.start().spin().seconds)

        actions = {0: begin, TAKEN + 2: first, TAKEN + BATCHES + 2: second}
        found = diagnosed(Acting(actions), take).measured
        for child in (lasting, new):
            child.end()
    assert found.both is not None
    for loop, expected in ((found.loader, seen[1]), (found.both, seen[2])):
        # Servers that other tests share are children too; interpreters take some time to end.
        assert len(loop.workers) >= 3
        assert sum(one.minor_faults for one in loop.workers) > 0
        used = sum(one.cpu_seconds for one in loop.workers)
        assert expected - 0.1 < used < expected + 0.3


@pytest.fixture
def without_proc(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: nothing of the system can be read but the use of this process."""

    listed = os.listdir

    def without(path: Any = ".") -> list[str]:
        if str(path).startswith("/proc"):
            raise FileNotFoundError
        return listed(path)

    plant(monkeypatch, "processes._read", lambda path: None)
    plant(monkeypatch, "processes._pids", list)
    monkeypatch.setattr(os, "listdir", without)


@pytest.mark.usefixtures("without_proc")
def test_without_proc_only_the_own_process_is_known() -> None:
    """No children and no files, and None for what the system does not say."""
    found = diagnosed(Acting({TAKEN: lambda: planted.spin(3_000_000)}), take).measured
    assert found.subject.mapped == ()
    assert found.loader.process.cpu_seconds > 0
    for loop in (found.loader, found.both, found.step):
        assert loop is not None
        assert loop.workers == ()
        assert (loop.process.queued_seconds, loop.process.read_bytes) == (None, None)
        assert (loop.received_bytes, loop.queued_seconds, loop.others_seconds) == (None,) * 3


@linux
def test_open_and_mapped_files_are_found(disk_path: Path) -> None:
    """Largest first; small and deleted files, and libraries, are not data."""
    sizes = {"large.bin": 3 << 20, "data.arrow": 2 << 20, "small.bin": 100, "x.so.1": 2 << 20}
    files = []
    for name, size in sizes.items():
        (disk_path / name).write_bytes(bytes(size))
        files.append((disk_path / name).open("rb"))
    (disk_path / "gone.bin").write_bytes(bytes(2 << 20))
    files.append((disk_path / "gone.bin").open("rb"))
    (disk_path / "gone.bin").unlink()
    pages = planted.Pages(disk_path / "rows.bin", 256)
    mapped = diagnosed(Acting({})).measured.subject.mapped
    for file in files:
        file.close()
    own = [(name, size) for name, size in mapped if name in {*sizes, "gone.bin", "rows.bin"}]
    assert own == [("large.bin", 3 << 20), ("data.arrow", 2 << 20), ("rows.bin", 1 << 20)]
    assert [size for _, size in mapped] == sorted((size for _, size in mapped), reverse=True)
    del pages


class Holding(Dataset[int]):
    """A dataset that opens a file for its first item, in a worker."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.file: Any = None

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> int:
        self.file = self.file or self.path.open("rb")
        return index


@linux
def test_files_of_workers_are_found(disk_path: Path) -> None:
    path = disk_path / "of-a-worker.bin"
    path.write_bytes(bytes(1 << 20))
    loader = DataLoader(Holding(path), 2, num_workers=1)
    mapped = diagnosed(loader, batches=2, stages=False).measured.subject.mapped
    assert ("of-a-worker.bin", 1 << 20) in mapped


@linux
def test_loopback_is_not_the_network(server: str) -> None:
    def download() -> None:
        for _ in range(64):
            with urllib.request.urlopen(f"{server}/data") as answer:
                answer.read()

    received = alone(download).received_bytes
    assert received is not None
    assert received < 64 << 20


@pytest.mark.usefixtures("without_proc")
def test_a_disk_is_measured_and_the_temporary_file_removed(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file one is written; with one, it is read and stays as it is."""
    monkeypatch.setattr(tempfile, "tempdir", str(disk_path))
    plant(monkeypatch, "machine._TEMPORARY", 1 << 20)
    found = diagnosed(Acting({}), disk=True, seconds=0.1).measured
    machine = found.machine
    assert machine.disk is not None
    assert machine.disk.file == "a temporary file"
    assert min(machine.disk.sequential, machine.disk.random, machine.cores) > 0
    assert machine.memcpy is not None
    assert machine.memcpy > 0
    assert any("no file of the data is known" in note for note in found.notes)
    assert not [path for path in disk_path.iterdir() if path.is_file()]
    file = disk_path / "rows.bin"
    file.write_bytes(bytes(range(256)) * 100)
    disk = diagnosed(Acting({}), disk=True, seconds=0.1, files=[str(file)]).measured.machine.disk
    assert disk is not None
    assert disk.file == "rows.bin"
    assert file.read_bytes() == bytes(range(256)) * 100


def test_a_disk_that_cannot_be_measured_is_a_note(disk_path: Path) -> None:
    small, gone = disk_path / "small", disk_path / "gone"
    small.write_bytes(b"x")
    gone.write_bytes(bytes(4096))
    for file, words, action in (
        (small, "has 1 bytes, expected at least 4096", int),
        (gone, "gone", gone.unlink),
    ):
        found = diagnosed(
            Acting({TAKEN: action}), disk=True, seconds=0.1, files=[str(file)]
        ).measured
        assert found.machine.disk is None
        assert any("the disk was not measured" in note and words in note for note in found.notes)


def test_a_page_cache_that_cannot_be_dropped_is_a_note(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    file = disk_path / "rows.bin"
    file.write_bytes(bytes(1 << 20))  # in the page cache now
    found = diagnosed(Acting({}), disk=True, seconds=0.1, files=[str(file)]).measured
    assert found.machine.disk is not None
    assert not found.machine.disk.uncached
    assert any("could not be dropped from the page cache" in note for note in found.notes)


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        if self.path == "/data":
            self.wfile.write(bytes(1 << 20))

    def log_message(self, *arguments: object) -> None:
        """Print nothing."""


@pytest.fixture
def server() -> Iterator[str]:
    """A server on this machine, whose rate is no measure of a network."""
    with http.server.HTTPServer(("127.0.0.1", 0), _Handler) as running:
        thread = threading.Thread(target=running.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_download_is_measured(server: str) -> None:
    found = diagnosed(Acting({}), network=f"{server}/data", seconds=1.0)
    assert (found.measured.machine.network or 0) > 0
    with pytest.raises(ValueError, match="sent no bytes"):
        diagnosed(Acting({}), network=f"{server}/nothing", seconds=1.0)
    with pytest.raises(OSError, match="refused"):
        diagnosed(Acting({}), network="http://127.0.0.1:1/", seconds=1.0)


def core_seconds() -> float:
    """Return the seconds that the machine's cores were used: all of /proc/stat but idle time."""
    words = Path("/proc/stat").read_text(encoding="utf-8").split("\n")[0].split()[1:9]
    _, _, _, idle, waiting, *_ = ticks = list(map(int, words))
    return (sum(ticks) - idle - waiting) / os.sysconf("SC_CLK_TCK")


@linux
def test_what_other_programs_use_is_counted() -> None:
    """Seconds of all cores without those of this process; its time in the queue is known."""
    seen = []

    def spin() -> None:
        seen.append(core_seconds())
        planted.spin(10_000_000)
        seen.append(core_seconds())

    loop = alone(spin)
    ticks = 4 * (os.cpu_count() or 1) / os.sysconf("SC_CLK_TCK")
    assert loop.others_seconds is not None
    # The loop itself takes little beyond the two readings.
    used = loop.others_seconds + sum(one.cpu_seconds for one in (loop.process, *loop.workers))
    assert seen[1] - seen[0] - ticks < used
    assert loop.others_seconds < (os.cpu_count() or 1) * loop.seconds + ticks
    if Path("/proc/thread-self/schedstat").exists():
        assert loop.queued_seconds is not None
        assert loop.queued_seconds >= 0
