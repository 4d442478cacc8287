"""The page on checkpoints, and the examples in the code, do what they say."""

from __future__ import annotations

import doctest
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from store_servers import need

PAGE = Path(__file__).resolve().parents[1] / "docs" / "checkpoint.md"
MODULES = ["boxes", "chunks", "entries", "grouping", "history", "keys", "opened", "part_names"]
MODULES += ["partition", "pieces", "plans", "reading", "references", "saving", "trees"]
MODULES += ["comparing", "copying", "intervals", "numbers", "searching", "verifying", "where"]


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    monkeypatch.chdir(tmp_path)
    first, second, third = re.findall(r"```python\n(.*?)```", PAGE.read_text("utf-8"), re.DOTALL)
    names: dict[str, Any] = {}
    exec(compile(first, str(PAGE), "exec"), names)
    assert names["found"].step == 20
    assert names["loader"].state_dict()["position"] == 80
    checkpoint, url = names["checkpoint"], names["url"]
    assert [commit.step for commit in checkpoint.log(url)] == [20, 10]
    with checkpoint.open(url) as saved:
        assert saved.names()[:3] == ["model/weight", "model/bias", "optimizer/state/0/step"]
        assert saved.info("model/weight").shape == (2, 8)
    weight = names["model"].weight.detach().numpy().tobytes()
    with checkpoint.stores.open_store(url) as store:
        value = store.get(b"windeck/t/%016x/%08x/%08x/%08x" % (2, 0, 0, 0))
        assert value is not None
    assert np.frombuffer(value[64:], np.float32).tobytes() == weight
    exec(compile(second, str(PAGE), "exec"), names)
    assert [commit.step for commit in checkpoint.log(url)] == [20]
    assert names["model"].weight.detach().numpy().tobytes() != weight  # that of step 10 now
    exec(compile(third, str(PAGE), "exec"), names)
    assert names["report"].values > 0


def test_links_lead_somewhere() -> None:
    links = re.findall(r"\]\(([^)#:]+)\)", PAGE.read_text(encoding="utf-8"))
    assert links
    assert all((PAGE.parent / link).exists() for link in links)


@pytest.mark.parametrize("module", MODULES)
def test_examples_in_the_code(module: str) -> None:
    found = doctest.testmod(import_module(f"windeck.checkpoint.{module}"))
    assert found.attempted > 0
    assert not found.failed
