"""Default ranks are refused under device meshes whose ranks share batches."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest
import torch.distributed as dist

from models.oracle import Numbers
from windeck import Loader, Stream
from windeck.loader import IterDataset, OrderSampler

fake_pg = pytest.importorskip("torch.testing._internal.distributed.fake_pg")
device_mesh = pytest.importorskip("torch.distributed.device_mesh")


@pytest.fixture
def eight_ranks() -> Iterator[None]:
    """Rank 5 of 8, in a group that sends nothing."""
    dist.init_process_group("fake", rank=5, world_size=8, store=fake_pg.FakeStore())
    yield
    dist.destroy_process_group()


def mesh(**axes: int) -> Any:
    """Make a mesh of axes by name, so many ranks each."""
    shape, names = tuple(axes.values()), tuple(axes)
    return device_mesh.init_device_mesh("cpu", shape, mesh_dim_names=names)


@pytest.mark.parametrize(
    ("axes", "found"),
    [
        ({"dp": 4, "cp": 2}, r"2 ranks on the axis 'cp'"),
        ({"tp": 2, "dp": 4}, r"2 ranks on the axis 'tp'"),
        ({"pp": 2, "dp_replicate": 2, "dp_shard": 2}, r"2 ranks on the axis 'pp'"),
        ({"data_parallel": 2, "tensor_parallel": 4}, r"4 ranks on the axis 'tensor_parallel'"),
        ({"replicate": 4, "SequenceParallel": 2}, r"2 ranks on the axis 'SequenceParallel'"),
        ({"dp": 1, "cp": 8}, r"one rank on the axis 'dp'"),
        ({"dp": 1, "cp": 2, "tp": 4}, r"(one rank|2 ranks|4 ranks) on the axis '(dp|cp|tp)'"),
    ],
)
def test_default_ranks_are_refused_where_ranks_share_batches(
    eight_ranks: None, axes: dict[str, int], found: str
) -> None:
    early = Loader(Numbers(40), batch_size=2)
    mesh(**axes)
    message = rf"^the device mesh has {found}, .*`rank` and `world_size` of the data-parallel axis"
    with pytest.raises(ValueError, match=message):
        Loader(Numbers(40), batch_size=2)
    with pytest.raises(ValueError, match=message):
        next(iter(early))
    with pytest.raises(ValueError, match=message):
        next(iter(IterDataset(Stream(Numbers(40)), batch_size=2)))
    with pytest.raises(ValueError, match=message):
        len(OrderSampler(40))
    given = Loader(Numbers(40), batch_size=2, rank=1, world_size=4)
    assert next(iter(given))["sample"].tolist() == [2, 3]


@pytest.mark.parametrize(
    "axes",
    [
        {"dp": 8},
        {"dp": 8, "cp": 1},
        {"dp_replicate": 2, "dp_shard": 4},
        {"dp": 2, "ep": 4},
        {"replicate": 1, "shard": 8},
        {"cpu": 2, "host": 4},
    ],
)
def test_default_ranks_are_those_of_the_process_where_no_batch_is_shared(
    eight_ranks: None, axes: dict[str, int]
) -> None:
    mesh(**axes)
    loader = Loader(Numbers(40), batch_size=2)
    assert (loader.rank, loader.world_size) == (5, 8)


def test_ranks_of_an_axis_share_batches_and_axes_share_out_the_data(eight_ranks: None) -> None:
    made = mesh(dp=4, cp=2)
    ranks = made["dp"].get_local_rank(), made["cp"].get_local_rank()
    assert ranks == (5 // 2, 5 % 2)
    loaders = [Loader(Numbers(40), batch_size=2, rank=rank, world_size=4) for rank in range(4)]
    steps = [[batch["sample"].tolist() for batch in loader] for loader in loaders]
    served = itertools.chain(*itertools.chain(*zip(*steps, strict=True)))
    assert list(served) == list(range(40))


def test_a_torch_without_names_of_groups_is_not_asked(
    eight_ranks: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    mesh(dp=4, cp=2)
    monkeypatch.delattr(dist.distributed_c10d, "_world")
    assert Loader(Numbers(40), batch_size=2, rank=0, world_size=1).rank == 0
