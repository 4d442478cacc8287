"""The training loop: what it writes down, and that resuming it changes nothing at all."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from windeck.tools import job, proof, states, synthetic, training


@pytest.fixture(scope="module")
def task(tmp_path_factory: pytest.TempPathFactory) -> job.Job:
    path = synthetic.write_load_curve(
        tmp_path_factory.mktemp("data") / "load.parquet", sites=2, days=20
    )
    lengths = {"context_length": 24, "prediction_length": 6}
    options = {**lengths, "batch_size": 64, "steps": 16, "save_every": 3}
    return job.Job(str(path), ("timestamp",), ("site",), "load", **options)


@pytest.fixture(scope="module")
def deal(task: job.Job) -> job.Deal:
    return job.prepare(task)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_stopped_anywhere_and_resumed_it_is_the_same_run(
    task: job.Job, deal: job.Deal, tmp_path: Path, prefetch: int
) -> None:
    whole = training.train(task, deal, log=tmp_path / "whole")
    expected = proof.expected_samples(deal.train, batch_size=64, seed=0, steps=16)
    assert job.steps_per_epoch(task, deal) < 16
    assert np.array_equal(training.read_log(tmp_path / "whole"), expected)
    for stop in (3, 8, 15):
        log, state = tmp_path / f"log-{stop}", tmp_path / "state.pt"

        class Stop(Exception):
            """Stands for a kill: nothing is done on the way out."""

        def report(step: int, loss: float, stop: int = stop) -> None:
            if step == stop:
                raise Stop

        with pytest.raises(Stop):
            training.train(task, deal, log=log, state=state, prefetch=prefetch, report=report)
        saved = states.read(state)["step"]
        assert saved == stop // 3 * 3
        later = tmp_path / f"later-{stop}"
        resumed = training.train(task, deal, log=later, state=state, resume=True, prefetch=prefetch)
        assert resumed.first_step == saved
        together = np.concatenate([training.read_log(log), training.read_log(later)])
        kept = (together[:, 0] <= saved) | (np.arange(len(together)) >= len(training.read_log(log)))
        assert np.array_equal(together[kept], expected)
        for name, tensor in whole.model.state_dict().items():
            assert torch.equal(tensor, resumed.model.state_dict()[name])


def test_a_log_cut_short_by_a_kill_is_read(tmp_path: Path) -> None:
    log = tmp_path / "log"
    assert training.last_step(log) == 0
    rows = np.arange(12, dtype=np.int64).reshape(4, 3)
    log.write_bytes(rows.tobytes() + b"\1\2\3")
    assert np.array_equal(training.read_log(log), rows)
    assert training.last_step(log) == 9


def test_saving_leaves_no_half_written_state(
    task: job.Job, deal: job.Deal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    state = tmp_path / "state.pt"
    short = replace(task, steps=3)
    training.train(short, deal, log=tmp_path / "log", state=state)
    before = state.read_bytes()

    def fail(content: object, file: object) -> None:
        file.write(b"half")  # type: ignore[attr-defined]
        raise OSError("the disk is full")

    monkeypatch.setattr(torch, "save", fail)
    with pytest.raises(OSError, match="the disk is full"):
        training.train(short, deal, log=tmp_path / "log", state=state)
    assert state.read_bytes() == before
