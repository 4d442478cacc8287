"""The loader under torch.distributed: ranks read when needed, and its checkpoints."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save
from torch.distributed.checkpoint.stateful import Stateful

from models.oracle import Numbers
from windeck import Loader, Mixture, Stream
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


def test_torchs_distributed_checkpoints_hold_states_as_text(group: None, tmp_path: Path) -> None:
    """They load what the state of a new loader has, and its fingerprint has no later entries."""

    def new_loader() -> Loader:
        parts = {"a": (Numbers(100), 1), "b": (Numbers(50), 0)}
        return Loader(Mixture(parts, schedule=[(20, {"a": 1, "b": 1})]), batch_size=4)

    loader, fresh = new_loader(), new_loader()
    for _ in zip(range(10), loader, strict=False):
        pass
    text = json.dumps(loader.state_dict())
    save({"loader": loader, "text": text}, checkpoint_id=tmp_path / "saved")
    with pytest.raises(ValueError, match="the schedule has an entry at position 20"):
        load({"loader": fresh}, checkpoint_id=tmp_path / "saved")
    assert fresh.position == 0
    loaded = {"text": ""}
    load(loaded, checkpoint_id=tmp_path / "saved")
    fresh.load_state_dict(json.loads(loaded["text"]))
    assert fresh.state_dict() == loader.state_dict()


def test_the_fields_of_a_state_are_those_of_a_new_loader(group: None) -> None:
    """Torch's distributed checkpoints would leave out the others, without an error."""
    loader, fresh = (Loader(Numbers(10), batch_size=2, shuffle=True) for _ in range(2))
    next(iter(loader))
    loader.exclude(6, 8)
    sampler, dataset = OrderSampler(10), IterDataset(Stream(Numbers(10)), batch_size=2)
    next(iter(sampler))
    next(iter(dataset))
    assert loader.state_dict().keys() == fresh.state_dict().keys()
    assert loader.state_dict()["fingerprint"].keys() == fresh.state_dict()["fingerprint"].keys()
    assert sampler.state_dict().keys() == OrderSampler(10).state_dict().keys()
    other = IterDataset(Stream(Numbers(10)), batch_size=2)
    assert dataset.state_dict().keys() == other.state_dict().keys()


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
