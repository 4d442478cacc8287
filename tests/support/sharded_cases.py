"""Cases of the tests of sharded saves, run by the ranks of `sharded_ranks`."""

from __future__ import annotations

import os
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from support.sharded_ranks import Gang, bits, distributed, local
from windeck import checkpoint
from windeck._core import EmbeddingCore, bucket_of
from windeck.checkpoint import Partition

S, R = Shard, Replicate()
WHO = [0, 1, 2, 3]
#: name -> shape, dtype, ranks, placements
LAYOUTS: dict[str, tuple[tuple[int, ...], torch.dtype, Any, list[Placement]]] = {
    "even": ((8, 6), torch.float32, WHO, [S(0)]),
    "uneven": ((10, 3), torch.float64, WHO, [S(0)]),
    "few": ((2, 5), torch.int64, WHO, [S(0)]),
    "columns": ((3, 9), torch.bfloat16, WHO, [S(1)]),
    "copies": ((50,), torch.complex64, WHO, [R]),
    "scalar": ((), torch.float32, WHO, [R]),
    "none": ((0, 4), torch.float32, WHO, [S(0)]),
    "small": ((9,), torch.float8_e4m3fn, WHO, [S(0)]),
    "bits": ((3, 3), torch.bool, WHO, [S(1)]),
    "large": ((1500, 400), torch.float32, WHO, [S(0)]),
    "wide": ((90, 2000), torch.float32, WHO, [S(1)]),
    "hybrid": ((6, 4), torch.float32, [[0, 1], [2, 3]], [R, S(0)]),
    "grid": ((5, 7), torch.float16, [[0, 1], [2, 3]], [S(0), S(1)]),
    "twice": ((9, 2), torch.float32, [[0, 1], [2, 3]], [S(0), S(0)]),
    "reversed": (
        (16, 3),
        torch.float32,
        [[0, 1], [2, 3]],
        [_StridedShard(0, split_factor=2), S(0)],
    ),
    "woven": ((13, 3), torch.float32, [[0, 1], [2, 3]], [_StridedShard(0, split_factor=3), R]),
    "pair": ((7, 2), torch.float32, [1, 3], [S(0)]),
}
#: The same into three ranks.
OTHERS: dict[str, tuple[Any, list[Placement]]] = {
    name: ([0, 1, 2], [S(0)] if shape else [R]) for name, (shape, *_) in LAYOUTS.items()
}
OTHERS |= {
    "grid": ([[0], [1], [2]], [S(1), R]),
    "even": ([0, 2], [S(1)]),
    "copies": ([0, 1, 2], [R]),
}
OTHERS |= {
    "large": ([0, 1, 2], [S(1)]),
    "wide": ([0, 1, 2], [S(1)]),
    "twice": ([0, 1, 2], [_StridedShard(0, split_factor=2)]),
}


def truth() -> dict[str, torch.Tensor]:
    """Return the whole tensors, the same in every process."""
    made = torch.Generator().manual_seed(7)
    found = {}
    for name, (shape, dtype, *_) in LAYOUTS.items():
        values = torch.randint(-120, 120, shape, generator=made)
        found[name] = (values > 0) if dtype is torch.bool else (values / 2).to(dtype)
    found["plain"] = torch.randn(33, 7, generator=made)
    found["rows"] = torch.randn(11, 3, generator=made)
    return found


def group() -> Any:
    return dist.group.WORLD


def rows(whole: torch.Tensor, rank: int, count: int) -> Partition:
    first, end = len(whole) * rank // count, len(whole) * (rank + 1) // count
    return Partition(whole[first:end].clone(), offset=(first, 0), shape=whole.shape)


def model_of(rank: int, count: int, layouts: dict[str, Any], *, empty: bool) -> dict[str, Any]:
    wholes = truth()
    meshes: dict[str, DeviceMesh] = {}
    found: dict[str, Any] = {}
    for name, (ranks, placements) in layouts.items():
        mesh = meshes.setdefault(str(ranks), DeviceMesh("cpu", ranks))
        found[name] = distributed(wholes[name], mesh, placements, empty=empty)
    found["plain"] = wholes["plain"] * 0 if empty else wholes["plain"]
    found["rows"] = rows(wholes["rows"] * 0 if empty else wholes["rows"], rank, count)
    found["tied"] = found["large"]
    return found


def check(rank: int, count: int, model: dict[str, Any], layouts: dict[str, Any]) -> None:
    """Assert that the local tensors equal the model of the mesh."""
    wholes = truth()
    for name, (_, placements) in layouts.items():
        mesh, here = model[name].device_mesh, model[name].to_local()
        place = mesh.get_coordinate()
        if place is None:
            assert not here.numel(), name
            continue
        assert bits(here) == bits(local(wholes[name], mesh.shape, place, placements)), name
    assert bits(model["plain"]) == bits(wholes["plain"])
    assert bits(model["rows"].tensor) == bits(rows(wholes["rows"], rank, count).tensor)


SAVED = {name: (ranks, placements) for name, (_, _, ranks, placements) in LAYOUTS.items()}


def refused(tensor: Any, kind: type[Exception], message: str) -> None:
    """Assert that saving a tensor without the other ranks raises an error."""
    with pytest.raises(kind, match=message):
        checkpoint.save("memory://", step=1, model={"w": tensor})


def layouts(gang: Gang, url: str) -> Any:
    """Save with four ranks and load with one and three; save with one and load with four."""

    def save(rank: int) -> int:
        model = model_of(rank, 4, SAVED, empty=False)
        refused(
            model["even"], ValueError, r"^model/w is a DTensor of shape \(8, 6\) with \[\d:\d, 0:6"
        )
        partial = DTensor.from_local(torch.ones(3), DeviceMesh("cpu", WHO), [Partial()])
        refused(partial, TypeError, r"^model/w is a DTensor with .*, expected shards and replicas$")
        extra = {"of": {str(rank): rank}, "all": [1, 2.5, None]}
        saved: int = checkpoint.save(
            url,
            step=1,
            model=model,
            loader={"position": 7},
            extra=extra,
            group=group(),
            takeover=True,
        )
        return saved

    assert gang.values(4, save) == [1] * 4

    def whole() -> Any:
        wholes = truth()
        targets = {name: torch.zeros_like(value) for name, value in wholes.items()}
        targets["tied"] = torch.zeros_like(wholes["large"])
        loader = {"position": 0}
        found = checkpoint.load(url, model=targets, loader=loader)
        for name, value in {**wholes, "tied": wholes["large"]}.items():
            assert bits(targets[name]) == bits(value), name
        assert found.extra == {"of": {str(n): n for n in range(4)}, "all": [1, 2.5, None]}
        assert loader == {"position": 7}
        with checkpoint.open(url) as saved:
            assert "model/tied" not in saved.entries
            assert torch.equal(saved.row("model/uneven", 9), wholes["uneven"][9])
            entries = saved.entries.values()
            return {entry.name: sorted(part.writer for part in entry.parts) for entry in entries}

    writers = gang.alone(whole)

    def load(rank: int) -> None:
        model = model_of(rank, 3, OTHERS, empty=True)
        checkpoint.load(url, model=model, group=group())
        check(rank, 3, model, OTHERS)

    gang.values(3, load)

    def again() -> int:
        saved: int = checkpoint.save(
            url, step=2, model={**truth(), "tied": truth()["large"]}, takeover=True
        )
        return saved

    assert gang.alone(again) == 2

    def spread(rank: int) -> None:
        model = model_of(rank, 4, SAVED, empty=True)
        if url.startswith("leveldb"):
            checkpoint.load(url, model=model, group=group())
        else:  # by itself
            checkpoint.load(url, model=model)
        check(rank, 4, model, SAVED)

    gang.values(4, spread)
    return writers


def network(seed: int) -> torch.nn.Sequential:
    torch.manual_seed(seed)
    return torch.nn.Sequential(
        torch.nn.Linear(10, 33), torch.nn.ReLU(), torch.nn.LayerNorm(33), torch.nn.Linear(33, 3)
    )


def sharded(seed: int, *ranks: int) -> tuple[torch.nn.Sequential, torch.optim.Optimizer]:
    """Return a model and an optimizer under FSDP2, on a mesh of these sizes."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    names = ("replicate", "shard")[-len(ranks) :]
    mesh, model = init_device_mesh("cpu", ranks, mesh_dim_names=names), network(seed)
    for layer in (model[0], model[3]):
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, torch.optim.AdamW(model.parameters(), lr=0.01)


def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer, steps: range) -> None:
    """Train on the same samples on every rank, so that the number of ranks does not matter."""
    for step in steps:
        data = torch.randn(6, 10, generator=torch.Generator().manual_seed(step))
        model(data).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()


def full(state: Any) -> dict[str, list[Any]]:
    """Return all tensors of a state by their places, as whole tensors."""
    found: dict[str, list[Any]] = {}

    def visit(place: str, value: Any) -> None:
        if isinstance(value, dict):
            for key, item in value.items():
                visit(f"{place}/{key}", item)
        elif isinstance(value, torch.Tensor):
            whole = value.full_tensor() if hasattr(value, "full_tensor") else value
            found[place] = whole.detach().reshape(-1).tolist()

    visit("", state)
    return found


def fsdp(gang: Gang, url: str) -> Any:
    """Train with four ranks; continue with three, four on a grid, and one without FSDP."""

    def save(rank: int) -> Any:
        model, optimizer = sharded(1, 4)
        train(model, optimizer, range(3))
        checkpoint.save(url, step=3, model=model, optimizer=optimizer, group=group(), takeover=True)
        held = full(model.state_dict()), full(optimizer.state_dict())
        train(model, optimizer, range(3, 5))
        return [*held, full(model.state_dict())]

    saved, *_ = gang.values(4, save)

    def load(*ranks: int) -> Callable[[int], Any]:
        def action(rank: int) -> Any:
            model, optimizer = sharded(2, *ranks)
            found = checkpoint.load(url, model=model, optimizer=optimizer, group=group())
            assert found.step == 3
            held = full(model.state_dict()), full(optimizer.state_dict())
            train(model, optimizer, range(3, 5))
            return [*held, full(model.state_dict())]

        return action

    def alone() -> Any:
        model = network(3)
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
        checkpoint.load(url, model=model, optimizer=optimizer)
        held = full(model.state_dict()), full(optimizer.state_dict())
        train(model, optimizer, range(3, 5))
        return [*held, full(model.state_dict())]

    return [saved, gang.values(3, load(3))[2], gang.values(4, load(2, 2))[1], gang.alone(alone)]


def buckets(first: int, end: int) -> SimpleNamespace:
    """Return a table of some buckets, with the attributes that a checkpoint uses."""
    core = EmbeddingCore(4, first_bucket=first, end_bucket=end, seed=3)
    return SimpleNamespace(core=core, config={"dim": 4, "optimizer": "sgd"})


def servers(gang: Gang, url: str) -> Any:
    """Save by two parameter servers, beside two workers that do not take part."""

    def action(rank: int) -> Any:
        whole = torch.arange(30.0).reshape(10, 3)
        own = dist.new_group([0, 1], use_local_synchronization=True) if rank < 2 else None
        if rank >= 2:
            return ["worker", len(os.listdir(gang.folder)) > 0]
        model = {"rows": rows(whole, rank, 2)}
        table = buckets(512 * rank, 512 * rank + 512)
        ids = torch.arange(-500, 500).numpy()
        ids = ids[bucket_of(ids) // 512 == rank]
        values = torch.empty(len(ids), 4).numpy()
        table.core.lookup(ids, values, insert=True)
        table.core.apply(ids, values, kind="sgd", lr=0.5)
        table.core.lookup(ids, values, insert=False)
        saved = [
            checkpoint.save(
                url,
                step=step,
                model=model,
                embeddings={"t": table},
                group=own,
                incremental=True,
                takeover=True,
            )
            for step in (3, 4)
        ]
        target = {"rows": rows(torch.zeros(10, 3), 1 - rank, 2)}
        third = buckets(512 * rank, 512 * rank + 512)
        checkpoint.load(url, model=target, embeddings={"t": third}, group=own)
        same = torch.equal(target["rows"].tensor, rows(whole, 1 - rank, 2).tensor)
        found = values * 0
        third.core.lookup(ids, found, insert=False)
        return ["server", saved, same, len(ids) == len(third.core), (found == values).all().item()]

    def outsider(rank: int) -> Any:
        own = dist.new_group([0])
        if rank == 0:
            return checkpoint.save(url, step=5, extra={"a": 1}, group=own, takeover=True)
        try:
            checkpoint.save(url, step=5, extra={"a": 1}, group=own, takeover=True)
        except ValueError as error:
            return str(error)
        return None

    return [gang.values(4, action), gang.values(2, outsider)]
