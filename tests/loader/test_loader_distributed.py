"""The loader under torch.distributed: ranks read when needed, and its checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful

from models.oracle import Numbers
from windeck import Loader, Stream
from windeck.loader import IterDataset, OrderSampler


@pytest.fixture
def group(tmp_path: Path) -> Iterator[None]:
    method = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    yield
    dist.destroy_process_group()


def test_ranks_are_looked_at_when_they_are_needed(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(Numbers(10), batch_size=2)
    dataset = IterDataset(Stream(Numbers(10)), batch_size=2)
    sampler = OrderSampler(10)
    fixed = Loader(Numbers(10), batch_size=2, rank=0, world_size=1)
    assert (loader.rank, loader.world_size) == (0, 1)
    monkeypatch.setattr(dist, "get_rank", lambda: 1)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    assert (loader.rank, loader.world_size) == (1, 3)
    assert loader.peek()["sample"].tolist() == [2, 3]
    assert (len(loader), len(dataset), len(sampler)) == (2, 2, 3)
    assert (fixed.rank, fixed.world_size) == (0, 1)


def test_a_world_that_does_not_fit_is_told_of_when_it_is_there(
    group: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = Loader(Numbers(10), batch_size=4, drop_last=True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 3)
    with pytest.raises(ValueError, match=r"^`drop_last` would drop every sample: 3 ranks "):
        next(iter(loader))


def test_torchs_distributed_checkpoints_hold_loaders(group: None, tmp_path: Path) -> None:
    loader = Loader(Numbers(10), batch_size=2, shuffle=True)
    sampler = OrderSampler(10)
    assert isinstance(loader, Stateful)
    assert isinstance(sampler, Stateful)
    assert isinstance(IterDataset(Stream(Numbers(10)), batch_size=2), Stateful)
    next(iter(loader))
    loader.exclude(6, 8)
    next(iter(sampler))
    save({"loader": loader, "sampler": sampler}, checkpoint_id=tmp_path / "saved")
    fresh, other = Loader(Numbers(10), batch_size=4, shuffle=True), OrderSampler(10)
    load({"loader": fresh, "sampler": other}, checkpoint_id=tmp_path / "saved")
    legs = [[0, 0, 2, 1, 0, 10], [1, 2, 4, 1, 0, 10]]
    assert fresh.state_dict() == {**loader.state_dict(), "legs": legs}
    assert other.position == 1
    rest = torch.cat([batch["sample"] for batch in loader])
    assert torch.equal(rest, torch.cat([batch["sample"] for batch in fresh]))
