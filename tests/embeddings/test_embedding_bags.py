"""Bags of embeddings equal torch.nn.EmbeddingBag: results, gradients, updated rows."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import windeck as wd

DIM, IDS = 4, 30


def torch_bag(table: wd.EmbeddingTable, mode: Any) -> torch.nn.EmbeddingBag:
    """Return an EmbeddingBag with the rows of the ids [0, IDS)."""
    rows = table.eval()(torch.arange(IDS)).detach()
    table.train()
    return torch.nn.EmbeddingBag(
        IDS, DIM, mode=mode, include_last_offset=True, _weight=rows.clone()
    )


def lists(seed: int, bags: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (bags,), generator=generator)
    ids = torch.randint(0, IDS, (int(lengths.sum()),), generator=generator)
    return ids, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("bags", [1, 7, 100])
def test_bags_equal_those_of_torch(mode: str, weighted: bool, bags: int) -> None:
    if weighted and mode != "sum":
        pytest.skip("torch has weights for sums only")
    table = wd.EmbeddingTable(DIM, optimizer="sgd", lr=0.5, scale=1.0, seed=3)
    table(torch.arange(IDS))  # Rows of all ids.
    model = torch_bag(table, mode)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5)
    ids, offsets = lists(bags, bags)
    weights = [torch.rand(len(ids)).requires_grad_() for _ in range(2)]
    weights[1].data.copy_(weights[0].data)
    found = table.bag(ids, offsets, mode=mode, weights=weights[0] if weighted else None)
    wanted = model(ids, offsets, per_sample_weights=weights[1] if weighted else None)
    assert torch.equal(found, wanted)
    slope = torch.rand(wanted.shape)
    (found * slope).sum().backward()  # type: ignore[no-untyped-call]
    (wanted * slope).sum().backward()
    if weighted:
        torch.testing.assert_close(weights[0].grad, weights[1].grad)
    table.step()
    optimizer.step()
    torch.testing.assert_close(table.eval()(torch.arange(IDS)), model.weight)


def test_empty_bags_are_zero_and_still_take_part_in_a_step() -> None:
    table = wd.EmbeddingTable(DIM)
    none = torch.empty(0, dtype=torch.int64)
    found = table.bag(none, torch.zeros(4, dtype=torch.int64))
    assert found.tolist() == [[0.0] * DIM] * 3
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert len(table._pending) == 1  # A sharded table needs a pass on every rank.
    assert table.bag(none, torch.zeros(1, dtype=torch.int64), mode="mean").shape == (0, DIM)
    assert not table.bag(torch.tensor([5]), torch.tensor([0, 0, 1]))[0].any()


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 4], [0, 2, 1, 3], [-1, 3], [3]])
def test_offsets_that_leave_out_ids_are_an_error(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="must ascend from 0 to the number of ids, 3"):
        wd.EmbeddingTable(DIM).bag(torch.tensor([1, 2, 3]), torch.tensor(offsets))


def test_wrong_arguments_are_named() -> None:
    table, ids, offsets = wd.EmbeddingTable(DIM), torch.tensor([1, 2]), torch.tensor([0, 2])
    with pytest.raises(ValueError, match="`mode` must be 'sum', 'mean' or 'max', got 'avg'"):
        table.bag(ids, offsets, mode="avg")
    with pytest.raises(TypeError, match=r"`offsets` must be a tensor of torch.int64, got .*int16"):
        table.bag(ids, offsets.short())
    with pytest.raises(TypeError, match=r"`ids` must be a tensor of torch.int64"):
        table.bag(ids.short(), offsets)
    with pytest.raises(ValueError, match=r"`ids` must have shape \(n,\)"):
        table.bag(ids.view(1, 2), offsets)
    for given in ({"weights": torch.ones(3)}, {"weights": torch.ones(2), "mode": "mean"}):
        with pytest.raises(ValueError, match="`weights` must have the shape of `ids`"):
            table.bag(ids, offsets, **given)


def test_bags_compile() -> None:
    table = wd.EmbeddingTable(DIM, seed=1)
    ids, offsets = lists(1, 6)
    compiled = torch.compile(
        lambda ids, offsets: table.bag(ids, offsets, mode="mean"), backend="aot_eager",
        fullgraph=True,
    )  # fmt: skip
    assert torch.equal(compiled(ids, offsets), table.bag(ids, offsets, mode="mean"))


def test_a_refused_call_makes_no_rows() -> None:
    table = wd.EmbeddingTable(2)
    with pytest.raises(ValueError, match="offsets"):
        table.bag(torch.tensor([7, 8, 9]), torch.tensor([0, 2]))
    with pytest.raises(TypeError, match="`ids` must be a tensor"):
        table.bag([7, 8, 9], torch.tensor([0, 3]))  # type: ignore[arg-type]
    assert table.rows == 0
