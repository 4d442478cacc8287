"""Planted bottlenecks, each of which the doctor has to name.

The loops are real, so they take time; nothing is compared with seconds, and the margins are wide.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.data import DataLoader, default_collate

import windeck as wd
from support import planted
from support.internals import plant
from windeck.diagnosis import Diagnosis

pytestmark = [
    # The workers of torch's DataLoader are forked, which newer Pythons advise against.
    pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
]

Array = Any


def diagnosed(loader: Any, step: Any = None, **options: Any) -> Diagnosis:
    return wd.doctor(loader, step, **{"seconds": 0.6, "disk": False, **options})


def diagnosed_as(kind: str, *arguments: Any, **options: Any) -> Diagnosis:
    """Return a diagnosis with a finding of a kind; other programs may hide competition."""
    for _ in range(4):
        found = diagnosed(*arguments, **options)
        if kind in {finding.kind for finding in found.findings}:
            return found
    measured = found.measured
    loops = [loop for loop in (measured.loader, measured.both, measured.step) if loop is not None]
    others = sum(loop.others_seconds or 0.0 for loop in loops)
    if others > 0.5 * measured.machine.cores * sum(loop.seconds for loop in loops):
        pytest.skip("other programs use most of the cores, as the report says")
    pytest.fail(f"expected a finding of the kind {kind!r}, got {found.verdict}")


def quick(batch: Any) -> None:
    """Take a batch and do next to nothing."""
    planted.spin(200)


def test_a_dataset_that_sleeps() -> None:
    """The share of waiting is nearly all, and the cause is sleep; so without a step."""
    loader = DataLoader(planted.Asleep(0.003), batch_size=4, shuffle=True)
    found = diagnosed(loader, quick)
    assert [finding.kind for finding in found.findings] == ["sleep"]
    assert found.findings[0].share > 0.8
    assert "neither computing nor reading a disk" in found.verdict
    assert diagnosed(loader).findings[0].kind == "sleep"


@pytest.mark.skipif(not hasattr(os, "posix_fadvise"), reason="no way to drop the page cache")
def test_random_reads_of_a_map_that_is_not_cached(disk_path: Path) -> None:
    """Major page faults take the time; the file is named, and that it fits into memory."""
    pages = planted.Pages(disk_path / "rows.bin", 1 << 15)
    loader = DataLoader(pages, batch_size=32, shuffle=True)
    found = wd.doctor(loader, quick, seconds=1.0, batches=50)
    use = found.measured.loader.usage
    if not use.major_faults or not use.read_bytes:
        pytest.skip("this file system has no disk to read from")
    assert [finding.kind for finding in found.findings] == ["map"]
    assert "random reads of a memory map; load rows.bin, 134 MB, into memory" in found.verdict
    assert found.measured.subject.mapped == (("rows.bin", 1 << 27),)
    disk = found.measured.machine.disk
    assert disk is not None
    assert disk.file == "rows.bin"
    assert "major page faults" in found.findings[0].sentence


def test_a_slow_step() -> None:
    """The step is the limit, and a faster loader would not help."""
    loader = wd.Loader(planted.SpinningSource(10), batch_size=8)
    found = diagnosed(loader, lambda batch: time.sleep(0.01))
    assert [finding.kind for finding in found.findings] == ["step"]
    assert "the step is the limit, and a faster loader would not help" in found.verdict


@pytest.mark.parametrize("turns", [0, 300_000], ids=["sleeping", "computing"])
def test_a_slow_collate(turns: int) -> None:
    """The collate function is named, whether it sleeps or computes."""

    def collate(items: list[torch.Tensor]) -> Any:
        planted.spin(turns)
        time.sleep(0 if turns else 0.02)
        return default_collate(items)

    loader = DataLoader(planted.Spinning(100), batch_size=8, shuffle=True, collate_fn=collate)
    found = diagnosed(loader, quick)
    assert [finding.kind for finding in found.findings] == ["collate"]
    assert "most of it in the collate function" in found.verdict
    stages = {stage.name: stage.seconds for stage in found.measured.stages}
    assert stages["collate"] > 3 * stages["samples"]


def test_one_worker_too_few() -> None:
    """The number of workers that would keep up is said; they sleep, so cores do not limit it."""
    loader = DataLoader(planted.Asleep(0.008), batch_size=4, shuffle=True, num_workers=1)
    found = diagnosed(loader, lambda batch: time.sleep(0.022), seconds=1.2)
    assert [finding.kind for finding in found.findings] == ["workers"]
    assert "too few workers; num_workers=" in found.verdict
    assert "would keep up, instead of 1" in found.verdict
    assert len(found.measured.loader.workers) >= 1


def test_far_too_few_workers_are_not_the_cause() -> None:
    """If no number of workers would suffice, the finding names the cause of their waiting."""
    loader = DataLoader(planted.Asleep(0.02), batch_size=4, shuffle=True, num_workers=1)
    assert [finding.kind for finding in diagnosed(loader, quick).findings] == ["sleep"]


def test_a_loader_that_competes_in_its_thread() -> None:
    """Python in the loader's thread takes the interpreter's lock from a step of Python."""
    loader = wd.Loader(planted.SpinningSource(300_000), batch_size=8)
    found = diagnosed_as("cores", loader, lambda batch: planted.spin(400_000), seconds=1.0)
    assert "competition for the cores" in found.verdict


def test_a_loader_that_competes_with_processes() -> None:
    """More workers that compute than cores make the step slower."""
    workers = 4 * (os.cpu_count() or 1)
    loader = DataLoader(planted.Spinning(3_000_000), batch_size=1, num_workers=workers)
    found = diagnosed_as("cores", loader, lambda batch: planted.spin(1_500_000), seconds=1.5)
    assert "competition for the cores" in found.verdict
    assert found.measured.subject.workers == workers


@pytest.fixture
def busy_programs() -> Iterator[None]:
    """Run programs that use all cores and are no children of this process."""
    program = f"{sys.executable} -c 'while True: pass' > /dev/null & echo $!"
    with ExitStack() as ends:
        for _ in range(os.cpu_count() or 1):
            shell = subprocess.run(["sh", "-c", program], stdout=subprocess.PIPE, check=True)
            process = os.pidfd_open(int(shell.stdout))
            ends.callback(os.close, process)
            ends.callback(signal.pidfd_send_signal, process, signal.SIGKILL)
        yield


@pytest.mark.skipif(sys.platform != "linux", reason="/proc is Linux's")
@pytest.mark.usefixtures("busy_programs")
def test_a_loader_that_does_not_compete_where_other_programs_do() -> None:
    """A loader that takes little from the step is not blamed, and the report names the others."""
    model = torch.nn.Linear(2048, 64)
    rows = torch.ones(64, 2048)

    def step(batch: Any) -> None:
        model(rows).square().mean().backward()

    for _ in range(4):
        found = diagnosed(wd.Loader(planted.SpinningSource(200), batch_size=8), step)
        assert {one.kind for one in found.findings} <= {"step", "others"}, found.verdict
        assert found.findings[0].share >= 0.1 or found.findings[0].kind == "step"
        assert "other programs used" in found.measured.notes[-1]


def test_batches_made_between_steps() -> None:
    """A loader that could keep up, but makes each batch on request, is to work ahead."""
    loader = DataLoader(planted.Asleep(0.002), batch_size=4, shuffle=True)
    found = diagnosed(loader, lambda batch: time.sleep(0.03))
    assert [finding.kind for finding in found.findings] == ["overlap"]
    assert "num_workers=1 or more of a DataLoader" in found.verdict


class Queue:
    """A GPU that is not here: work is queued, takes its time, and can be waited for."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.end = 0.0
        plant(monkeypatch, "loops.uses_gpu", lambda: True)
        plant(monkeypatch, "diagnosing.uses_gpu", lambda: True)
        plant(monkeypatch, "loops.synchronize", self.wait)

    def step(self, batch: Any) -> None:
        self.end = max(self.end, time.perf_counter()) + 0.01

    def wait(self) -> None:
        time.sleep(max(self.end - time.perf_counter(), 0.0))


@pytest.mark.parametrize(("item", "kind"), [(0.0005, "step"), (0.01, "sleep")])
def test_requests_that_overlap_with_queued_work(
    monkeypatch: pytest.MonkeyPatch, item: float, kind: str
) -> None:
    """Requests while a GPU works are no loss: only what the loop takes beyond the step is."""
    loader = DataLoader(planted.Asleep(item), batch_size=4, shuffle=True)
    found = diagnosed(loader, Queue(monkeypatch).step, batches=40)
    assert [finding.kind for finding in found.findings] == [kind]
    both = found.measured.both
    assert both is not None
    if kind == "step":
        assert both.waited > 10 * both.stepped  # as the host sees it
    assert any("a GPU is used" in note for note in found.measured.notes)
