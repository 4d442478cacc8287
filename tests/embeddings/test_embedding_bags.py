"""Bags of embeddings equal torch.nn.EmbeddingBag: results, gradients, updated rows."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.gangs import gang

DIM, IDS = 4, 30


def torch_bag(table: wd.EmbeddingTable, mode: Any) -> torch.nn.EmbeddingBag:
    """Return an EmbeddingBag with the rows of the ids [0, IDS)."""
    rows = table.eval()(torch.arange(IDS)).detach()
    table.train()
    return torch.nn.EmbeddingBag(
        IDS, table.dim, mode=mode, include_last_offset=True, _weight=rows.clone()
    )


def lists(seed: int, bags: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, 5, (bags,), generator=generator)
    ids = torch.randint(0, IDS, (int(lengths.sum()),), generator=generator)
    return ids, torch.cat([torch.zeros(1, dtype=torch.int64), lengths.cumsum(0)])


def assert_same(
    table: wd.EmbeddingTable,
    mode: str,
    given: tuple[torch.Tensor, torch.Tensor],
    padding: int | None,
    weighted: bool = False,
) -> None:
    """Assert that results, gradients of rows and updated rows are those of torch, to the bit.

    Gradients of weights are dot products. The order in which torch adds their terms depends on the
    alignment of a row in memory for some dims, such as 7, 15, 17 and 33. torch sums the gradients
    of an id in order with ``sparse=True`` only, which "max" does not have.
    """
    model = torch_bag(table, mode)
    model.padding_idx, model.sparse = padding, mode != "max"
    ids, offsets = given
    weights = [torch.rand(len(ids)).requires_grad_() for _ in range(2)]
    weights[1].data.copy_(weights[0].data)
    own = weights if weighted else [None, None]
    found = table.bag(ids, offsets, mode=mode, weights=own[0], padding_idx=padding)
    wanted = model(ids, offsets, per_sample_weights=own[1])
    assert torch.equal(found, wanted)
    slope = torch.rand(wanted.shape)
    (found * slope).sum().backward()  # type: ignore[no-untyped-call]
    (wanted * slope).sum().backward()
    if weighted and len(ids):
        torch.testing.assert_close(weights[0].grad, weights[1].grad)
    table.step()
    gradient = model.weight.grad
    assert gradient is not None
    summed = gradient.to_dense()
    assert torch.equal(table.eval()(torch.arange(IDS)), model.weight.detach() - 0.5 * summed)


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
@pytest.mark.parametrize("padding", [None, 0, 7])
@pytest.mark.parametrize("bags", [1, 7, 100, 1000])
def test_bags_equal_those_of_torch(mode: str, padding: int | None, bags: int) -> None:
    table = wd.EmbeddingTable(DIM, optimizer="sgd", lr=0.5, scale=1.0, seed=3)
    table(torch.arange(IDS))  # Rows of all ids.
    kind = "sum" if mode == "weighted" else mode
    assert_same(table, kind, lists(bags, bags), padding, mode == "weighted")


@pytest.mark.parametrize("mode", ["sum", "mean", "max", "weighted"])
@pytest.mark.parametrize("dim", [1, 2, 3, 7, 8, 15, 16, 17, 32, 33, 64, 100])
def test_bags_of_any_dim_equal_those_of_torch(mode: str, dim: int) -> None:
    table = wd.EmbeddingTable(dim, optimizer="sgd", lr=0.5, scale=1.0, seed=3)
    table(torch.arange(IDS))
    kind = "sum" if mode == "weighted" else mode
    assert_same(table, kind, lists(dim, 50), None, mode == "weighted")


@pytest.mark.parametrize("mode", ["sum", "mean", "max"])
def test_bags_of_padding_alone_are_zero(mode: str) -> None:
    table = wd.EmbeddingTable(DIM, optimizer="sgd", lr=0.5, scale=1.0, seed=3)
    table(torch.arange(IDS))
    assert_same(table, mode, (torch.tensor([5, 5, 5]), torch.tensor([0, 0, 2, 3])), 5)
    fresh = wd.EmbeddingTable(DIM)
    ids, offsets = torch.tensor([-1, 8, -1]), torch.tensor([0, 1, 3])
    assert not fresh.bag(ids, offsets, mode=mode, padding_idx=-1)[0].any()
    assert fresh.rows == 1, "padding is not looked up"
    assert fresh.core.facts(np.array([-1, 8]))["frequencies"].tolist() == [0, 1]


def test_forms_of_ids_and_offsets() -> None:
    """Offsets without the last one, and lists of one length, are those of EmbeddingBag."""
    table = wd.EmbeddingTable(DIM, scale=1.0, seed=3)
    table(torch.arange(IDS))
    rows = table(torch.arange(IDS), count=False).detach()
    ids, offsets = lists(5, 9)
    model = torch.nn.EmbeddingBag(IDS, DIM, mode="sum", _weight=rows)
    found = table.bag(ids, offsets[:-1], include_last_offset=False)
    assert torch.equal(found, model(ids, offsets[:-1]))
    square, weights = torch.arange(12).view(3, 4) % IDS, torch.rand(3, 4)
    assert torch.equal(table.bag(square), model(square))
    assert torch.equal(table.bag(square, weights=weights), model(square, None, weights))
    assert table.bag(square[:0]).shape == (0, DIM)
    with pytest.raises(TypeError, match=r"`offsets` must be a tensor of .*, got NoneType"):
        table.bag(ids)
    with pytest.raises(TypeError, match="`padding_idx` must be an int, got a float"):
        table.bag(square, padding_idx=1.0)  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="must ascend from 0 to the number of ids, 2"):
        table.bag(ids[:2], torch.tensor([1]), include_last_offset=False)


def sharded_bags(rank: int, ranks: int) -> list[Any]:
    """Return bags, gradients of weights and updated rows; rank 0 has all bags."""
    table = wd.ShardedEmbeddingTable(DIM, optimizer="sgd", lr=0.5, scale=1.0, seed=3)
    table(torch.arange(IDS))
    out = []
    for mode in ("sum", "mean", "max"):
        ids, offsets = lists(4 + rank, 6 if rank == 0 else 0)  # the other ranks have none
        weights = torch.linspace(0, 1, len(ids)).requires_grad_() if mode == "sum" else None
        found = table.bag(ids, offsets, mode=mode, weights=weights, padding_idx=3)
        found.square().sum().backward()  # type: ignore[no-untyped-call]
        table.step()
        gradient = None if weights is None else weights.grad
        out += [found.tolist(), None if gradient is None else gradient.tolist()]
    return [*out, table.eval()(torch.arange(IDS)).tolist()]


def test_bags_of_a_sharded_table_are_those_of_one() -> None:
    [alone] = gang(1, sharded_bags)
    assert gang(2, sharded_bags)[0] == alone
    table = wd.EmbeddingTable(DIM, optimizer="sgd", lr=0.5, scale=1.0, seed=3)
    ids, offsets = lists(4, 6)
    weights = torch.linspace(0, 1, len(ids))
    assert table.bag(ids, offsets, weights=weights, padding_idx=3).tolist() == alone[0]


def test_empty_bags_are_zero_and_still_take_part_in_a_step() -> None:
    table = wd.EmbeddingTable(DIM)
    none = torch.empty(0, dtype=torch.int64)
    found = table.bag(none, torch.zeros(4, dtype=torch.int64))
    assert found.tolist() == [[0.0] * DIM] * 3
    found.sum().backward()  # type: ignore[no-untyped-call]
    assert table.pending == 1  # A sharded table needs a pass on every rank.
    assert table.bag(none, torch.zeros(1, dtype=torch.int64), mode="mean").shape == (0, DIM)
    assert not table.bag(torch.tensor([5]), torch.tensor([0, 0, 1]))[0].any()


@pytest.mark.parametrize("offsets", [[0, 2], [1, 3], [0, 4], [0, 2, 1, 3], [-1, 3], [3]])
def test_offsets_that_leave_out_ids_are_an_error(offsets: list[int]) -> None:
    with pytest.raises(ValueError, match="must ascend from 0 to the number of ids, 3"):
        wd.EmbeddingTable(DIM).bag(torch.tensor([1, 2, 3]), torch.tensor(offsets))


def test_offsets_of_torch_are_an_error_that_says_how_to_pass_them() -> None:
    ids, table = torch.tensor([1, 2, 3]), wd.EmbeddingTable(DIM)
    message = r"got 2 offsets from 0 to 1; those of torch.* need include_last_offset=False$"
    with pytest.raises(ValueError, match=message):
        table.bag(ids, torch.tensor([0, 1]))
    with pytest.raises(ValueError, match=r"got 2 offsets from 0 to 4$"):
        table.bag(ids, torch.tensor([0, 4]))


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
    wrong: list[tuple[Any, str]] = [(torch.ones(2).double(), "torch.float64"), ([1.0, 1.0], "list")]
    for weights, found in wrong:
        with pytest.raises(TypeError, match=f"`weights` must be .* torch.float32, got {found}"):
            table.bag(ids, offsets, weights=weights)
    assert table.rows == 0


def test_bags_compile() -> None:
    table = wd.EmbeddingTable(DIM, seed=1)
    ids, offsets = lists(1, 6)
    compiled = torch.compile(
        lambda ids, offsets: table.bag(ids, offsets, mode="mean"), backend="aot_eager",
        fullgraph=True,
    )  # fmt: skip
    assert torch.equal(compiled(ids, offsets), table.bag(ids, offsets, mode="mean"))
    for wrong in ([0, 3, 5], [1, 6], [0, 5, 2, 6], [0, 10**6, 6]):
        with pytest.raises(ValueError, match="`offsets` must ascend from 0 to the number of ids"):
            compiled(torch.arange(6), torch.tensor(wrong))


def test_a_refused_call_makes_no_rows() -> None:
    table = wd.EmbeddingTable(2)
    with pytest.raises(ValueError, match="offsets"):
        table.bag(torch.tensor([7, 8, 9]), torch.tensor([0, 2]))
    with pytest.raises(TypeError, match="`ids` must be a tensor"):
        table.bag([7, 8, 9], torch.tensor([0, 3]))  # type: ignore[arg-type]
    assert table.rows == 0
