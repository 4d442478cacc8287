"""`engine="ray"` writes the same bytes on two worker processes of a local Ray."""

from __future__ import annotations

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windeck as wd
from support.forked import RunInChild, ray_in_child
from support.prepare_cases import SMALL, contents, unsorted_rows, write_file, write_files

ray = pytest.importorskip("ray")

OPTIONS: dict[str, Any] = {
    "id_columns": "site",
    "timestamp_column": "time",
    "file_bytes": SMALL,
    "scaler": "standard",
}


@pytest.fixture(scope="module")
def run_on_ray() -> Iterator[RunInChild]:
    with ray_in_child(num_cpus=2) as run:
        yield run


def test_two_workers_write_the_same_bytes(run_on_ray: RunInChild, tmp_path: Path) -> None:
    run_on_ray(_two_workers_write_the_same_bytes, tmp_path)


def _two_workers_write_the_same_bytes(tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 6)
    wd.prepare(tmp_path / "in", tmp_path / "here", **OPTIONS)
    calls: list[tuple[int, int]] = []
    result = wd.prepare(
        tmp_path / "in",
        tmp_path / "there",
        **OPTIONS,
        engine="ray",
        progress=lambda *call: calls.append(call),
    )
    assert contents(tmp_path / "there") == contents(tmp_path / "here")
    assert len(result.files) > 2
    assert len(calls) > len(result.files)
    assert ray.is_initialized()  # it was not ours to end


def test_work_is_done_by_several_other_processes(run_on_ray: RunInChild, tmp_path: Path) -> None:
    run_on_ray(_work_is_done_by_several_other_processes, tmp_path)


def _work_is_done_by_several_other_processes(tmp_path: Path) -> None:
    write_files(tmp_path / "in", unsorted_rows(), 6)
    workers = set[str]()
    # Small tasks may all find the same worker free, and Ray notes tasks after a second or so.
    for number in range(60):
        if len(workers) == 2:
            break
        wd.prepare(tmp_path / "in", tmp_path / f"out{number}", **OPTIONS, engine="ray")
        time.sleep(0.5)
        events = [event for event in ray.timeline() if event["name"].startswith("windeck.")]
        assert all(event["tid"].startswith("worker:") for event in events)
        workers |= {event["tid"] for event in events}
    assert len(workers) == 2


def test_errors_are_those_of_the_local_engine(run_on_ray: RunInChild, tmp_path: Path) -> None:
    run_on_ray(_errors_are_those_of_the_local_engine, tmp_path)


def _errors_are_those_of_the_local_engine(tmp_path: Path) -> None:
    rows = unsorted_rows()
    write_files(tmp_path / "in", rows, 3)
    write_file(tmp_path / "in" / "9.parquet", rows.slice(3, 1))
    with pytest.raises(ValueError, match="has several rows with time"):
        wd.prepare(tmp_path / "in", tmp_path / "out", **OPTIONS, engine="ray")
    wd.prepare(tmp_path / "in", tmp_path / "out2", **OPTIONS, engine="ray", duplicates="first")
    wd.prepare(tmp_path / "in", tmp_path / "out3", **OPTIONS, duplicates="first")
    assert contents(tmp_path / "out2") == contents(tmp_path / "out3")
