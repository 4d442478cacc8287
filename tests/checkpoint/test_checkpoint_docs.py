"""The page on checkpoints, and the examples in the code, do what they say."""

from __future__ import annotations

import signal
from pathlib import Path

import numpy as np
import pytest

from support.pages import Page
from support.store_servers import need

PAGE = Page("docs/checkpoint.md")


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    assert len(PAGE.blocks) == 7
    names = PAGE.run(only=slice(1))
    assert names["found"].step == 20
    assert names["loader"].state_dict()["position"] == 80
    checkpoint, url = names["checkpoint"], names["url"]
    assert [commit.step for commit in checkpoint.log(url)] == [20, 10]
    with checkpoint.open(url) as saved:
        assert saved.names()[:3] == ["model/weight", "model/bias", "optimizer/state/0/step"]
        assert saved.info("model/weight").shape == (2, 8)
    weight = names["model"].weight.detach().numpy().tobytes()
    with checkpoint.stores.open_store(url) as store:
        value = store.get(b"~windeck~%016x/t/%08x/%08x/%08x" % (2, 0, 0, 0))
        assert value is not None
    assert np.frombuffer(value[64:], np.float32).tobytes() == weight
    PAGE.run(names, only=slice(1, 2))
    assert names["step"] == 0  # where there is no checkpoint
    PAGE.run(names, only=slice(2, 3))
    assert [commit.step for commit in checkpoint.log(url)] == [20]
    assert names["model"].weight.detach().numpy().tobytes() != weight  # that of step 10 now
    PAGE.run(names, only=slice(3, 4))
    kept = [(commit.step, commit.tags) for commit in checkpoint.log(url)]
    assert kept == [(50, ()), (30, ("release",))]
    PAGE.run(names, only=slice(4, 5))
    assert [commit.step for commit in checkpoint.log(url)] == [80, 70, 60, 50, 30]
    optimizer = names["optimizer"]
    step = optimizer.step

    def preempted() -> None:
        step()
        signal.raise_signal(signal.SIGTERM)

    optimizer.step = preempted
    PAGE.run(names, only=slice(5, 6))
    optimizer.step = step
    assert [commit.step for commit in checkpoint.log(url)] == [90, 80, 70, 60, 50, 30]
    assert signal.getsignal(signal.SIGTERM) == signal.SIG_DFL
    assert names["saving"].wait() == 8
    PAGE.run(names, only=slice(6, 7))
    assert names["report"].values > 0


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
