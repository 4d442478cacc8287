"""Counters of processes and rates of the machine, as far as they can be known exactly."""

from __future__ import annotations

import http.server
import multiprocessing
import os
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from support import planted
from support.internals import (
    ProcessUsage,
    children,
    data_files,
    measure_disk,
    measure_machine,
    measure_network,
    plant,
    received_bytes,
    snapshot,
    thread_usage,
)
from windeck.diagnosis import Usage

linux = pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")

#: Starts a child that computes, says so, and waits.
CHILD = "total = sum(range(10_000_000)); print(flush=True); input()"


def test_a_process_counts_its_own_time() -> None:
    before = snapshot()
    planted.spin(3_000_000)
    process, _ = before.until(snapshot())
    assert process.cpu_seconds > 0
    assert process.system_seconds <= process.cpu_seconds
    assert thread_usage().cpu_seconds > 0


@linux
def test_children_are_counted_while_they_live_and_after() -> None:
    """A child's time is its own while it runs, and not lost when it has ended."""
    before, known = snapshot(), set(children())
    with subprocess.Popen(
        [sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as child:
        assert child.stdout is not None
        child.stdout.readline()
        assert set(children()) - known == {child.pid}
        alive = snapshot()
        _, workers = before.until(alive)
        # Servers that other tests share are children too, and use a little time.
        worker = max(workers, key=lambda one: one.cpu_seconds)
        assert worker.minor_faults > 0
        child.communicate(b"\n")
    assert set(children()) == known
    _, ended = before.until(snapshot())
    assert sum(one.cpu_seconds for one in ended) >= worker.cpu_seconds - 0.02
    _, rest = alive.until(snapshot())
    assert sum(one.cpu_seconds for one in rest) < worker.cpu_seconds


def test_sums_of_children_that_come_and_go() -> None:
    """With made-up counters: one child lasts, one ends, one is new."""
    one = ProcessUsage(Usage(1.0), {1: Usage(5.0), 2: Usage(3.0)}, Usage(), 0)
    two = ProcessUsage(Usage(2.5), {1: Usage(6.0), 3: Usage(0.5)}, Usage(3.75), 0)
    process, workers = one.until(two)
    assert process == Usage(1.5)
    assert [worker.cpu_seconds for worker in workers] == [1.0, 0.5, 0.75]


def test_without_proc_only_the_own_process_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on macOS: no children, and None for what the system does not say."""

    def missing(*arguments: object) -> None:
        raise FileNotFoundError

    plant(monkeypatch, "processes._read", lambda path: None)
    plant(monkeypatch, "processes._pids", list)
    monkeypatch.setattr(os, "listdir", missing)
    found = snapshot()
    assert (found.alive, found.received, children()) == ({}, None, [])
    assert found.process.cpu_seconds > 0
    assert (found.process.queued_seconds, found.process.read_bytes) == (None, None)
    process, workers = found.until(snapshot())
    assert process.read_bytes is None
    assert workers == ()
    assert data_files(["self"]) == ()


@linux
def test_open_and_mapped_files_are_found(disk_path: Path) -> None:
    """Largest first; small and deleted files, and libraries, are not data."""
    sizes = {"large.bin": 3 << 20, "data.arrow": 2 << 20, "small.bin": 100, "x.so.1": 2 << 20}
    files = []
    for name, size in sizes.items():
        (disk_path / name).write_bytes(bytes(size))
        files.append((disk_path / name).open("rb"))
    gone = tempfile.TemporaryFile(dir=disk_path)  # noqa: SIM115
    gone.write(bytes(2 << 20))
    found = [(path, size) for path, size in data_files(["self"]) if path.startswith(str(disk_path))]
    names = [(str(disk_path / name), sizes[name]) for name in ("large.bin", "data.arrow")]
    assert found == names
    for file in (*files, gone):
        file.close()
    pages = planted.Pages(disk_path / "rows.bin", 256)
    assert str(disk_path / "rows.bin") in dict(data_files(["self"]))
    del pages


def _hold(path: str, ready: multiprocessing.synchronize.Event, end: object) -> None:
    with open(path, "rb"):
        ready.set()
        end.wait()  # type: ignore[attr-defined]


@linux
def test_files_of_workers_are_found(disk_path: Path) -> None:
    path = disk_path / "of-a-worker.bin"
    path.write_bytes(bytes(1 << 20))
    context = multiprocessing.get_context("spawn")
    ready, end = context.Event(), context.Event()
    worker = context.Process(target=_hold, args=(str(path), ready, end))
    worker.start()
    ready.wait(60)
    assert str(path) in dict(data_files([str(worker.pid)]))
    end.set()
    worker.join()


@linux
def test_loopback_is_not_the_network() -> None:
    assert received_bytes() is not None


def test_a_disk_is_measured_and_the_temporary_file_removed(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a file one is written; with one, it is read and stays as it is."""
    monkeypatch.setattr(tempfile, "tempdir", str(disk_path))
    plant(monkeypatch, "machine._TEMPORARY", 1 << 20)
    found, notes = measure_machine([], disk=True, network=None, seconds=0.1)
    assert found.disk is not None
    assert found.disk.file == "a temporary file"
    assert min(found.disk.sequential, found.disk.random, found.cores, found.memcpy or 0) > 0
    assert any("no file of the data is known" in note for note in notes)
    assert not list(disk_path.iterdir())
    file = disk_path / "rows.bin"
    file.write_bytes(bytes(range(256)) * 100)
    assert measure_disk(str(file), seconds=0.1).file == "rows.bin"
    assert file.read_bytes() == bytes(range(256)) * 100


def test_a_disk_that_cannot_be_measured_is_a_note(disk_path: Path) -> None:
    small = disk_path / "small"
    small.write_bytes(b"x")
    for file, words in ((small, "has 1 bytes, expected at least 4096"), (disk_path / "no", "no")):
        found, notes = measure_machine([str(file)], disk=True, network=None, seconds=0.1)
        assert found.disk is None
        assert any(words in note for note in notes)


def test_a_page_cache_that_cannot_be_dropped_is_a_note(
    disk_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delattr(os, "posix_fadvise", raising=False)
    file = disk_path / "rows.bin"
    file.write_bytes(bytes(1 << 20))  # in the page cache now
    found, notes = measure_machine([str(file)], disk=True, network=None, seconds=0.1)
    assert found.disk is not None
    assert not found.disk.uncached
    assert any("could not be dropped from the page cache" in note for note in notes)


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
    assert measure_network(f"{server}/data", seconds=1.0) > 0
    with pytest.raises(ValueError, match="sent no bytes"):
        measure_network(f"{server}/nothing", seconds=1.0)
    with pytest.raises(OSError, match="refused"):
        measure_network("http://127.0.0.1:1/", seconds=1.0)


@linux
def test_what_other_programs_use_is_counted() -> None:
    """Seconds of all cores, those of this process included; its time in the queue is known."""
    before = snapshot()
    planted.spin(20_000_000)
    after = snapshot()
    assert before.machine is not None
    assert after.machine is not None
    process, _ = before.until(after)
    ticks = 4 * (os.cpu_count() or 1) / os.sysconf("SC_CLK_TCK")
    assert after.machine - before.machine > process.cpu_seconds - ticks
    if Path("/proc/thread-self/schedstat").exists():
        assert before.queued is not None
        assert after.queued is not None
        assert after.queued >= before.queued
