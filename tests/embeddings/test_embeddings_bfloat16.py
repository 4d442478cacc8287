"""Rows of bfloat16: values, states and updates are those of torch.optim for bfloat16 parameters."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd

DIM, SIZE = 5, 40
IDS = torch.arange(SIZE) * 977 - 9000
BF16 = torch.bfloat16

#: torch's fused kernels compute in float32 and round each result once, as the table does. SGD is
#: one operation, so it rounds once unfused; its fused kernel for bfloat16 is wrong in torch 2.13.
OPTIMIZERS: dict[str, tuple[dict[str, Any], Any]] = {
    "sgd": ({}, lambda p: torch.optim.SGD(p, lr=0.25)),
    "adagrad": (
        {"initial_accumulator_value": 0.5},
        lambda p: torch.optim.Adagrad(p, lr=0.25, initial_accumulator_value=0.5, fused=True),
    ),
    "adam": ({"betas": (0.8, 0.9)}, lambda p: torch.optim.Adam(
        p, lr=0.25, betas=(0.8, 0.9), fused=True)),
}  # fmt: skip


def make(kind: str, **options: Any) -> wd.EmbeddingTable:
    more = OPTIMIZERS[kind][0]
    return wd.EmbeddingTable(DIM, optimizer=kind, lr=0.25, seed=4, scale=0.5, dtype=BF16,
                             **more, **options)  # fmt: skip


def ordered(values: torch.Tensor) -> torch.Tensor:
    """Return the places of bfloat16 numbers among all of them, ascending."""
    bits = values.contiguous().view(torch.int16).long()
    return torch.where(bits < 0, -(bits & 0x7FFF), bits)


def assert_close(found: torch.Tensor, wanted: torch.Tensor) -> None:
    """Compare bfloat16 numbers: nearly all are equal, and none differs by more than one step.

    The table and torch compute in float32 in another order of operations, so that a number near
    the middle of two may be rounded to the other.
    """
    assert found.dtype == wanted.dtype == BF16
    apart = (ordered(found) - ordered(wanted)).abs()
    assert int(apart.max()) <= 1
    assert float((apart > 0).double().mean()) <= 0.02


@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_training_is_that_of_torch(kind: str) -> None:
    table = make(kind)
    model = torch.nn.Embedding(SIZE, DIM, dtype=BF16)
    model.weight.data.copy_(table.eval()(IDS))
    optimizer = OPTIMIZERS[kind][1](model.parameters())
    table.train()
    generator = torch.Generator().manual_seed(3)
    for _ in range(6):
        places = torch.randperm(SIZE, generator=generator)  # all: torch's Adam is not lazy
        slope = torch.randn(SIZE, DIM, generator=generator).to(BF16)
        model.weight.data.copy_(table(IDS, count=False).detach())  # so that no difference grows
        out, wanted = table(IDS[places]), model(places)
        assert out.dtype == BF16
        assert torch.equal(out, wanted)
        for rows in (out, wanted):
            (rows * slope).sum().backward()
        assert table.step() == SIZE
        optimizer.step()
        optimizer.zero_grad()
        assert_close(table(IDS, count=False).detach(), model.weight.detach())
        values = table.core.row_values(IDS.numpy())
        saved = torch.from_numpy(values.view(np.int16)).view(BF16).view(SIZE, -1, DIM)
        states = optimizer.state[model.weight]
        for slot, name in enumerate(("exp_avg", "exp_avg_sq") if kind == "adam" else ("sum",)):
            if kind != "sgd":
                assert_close(saved[:, 1 + slot], states[name])
                states[name].copy_(saved[:, 1 + slot])


def test_gradients_of_an_id_are_summed_in_float32() -> None:
    table = wd.EmbeddingTable(1, optimizer="sgd", lr=1.0, initializer="zeros", dtype="bfloat16")
    ids = torch.full((300,), 7)
    table(ids).sum().backward()
    table.step()
    assert table(ids[:1]).item() == -300.0  # a sum in bfloat16 stays at 256


def test_initial_values_are_those_of_float32_rounded() -> None:
    for initializer in ("normal", "uniform", "zeros"):
        options: dict[str, Any] = {"initializer": initializer}
        narrow = wd.EmbeddingTable(131, seed=3, scale=1.0, dtype=BF16, **options)
        wide = wd.EmbeddingTable(131, seed=3, scale=1.0, **options)
        wanted = wide.eval()(IDS).to(BF16)
        assert torch.equal(narrow.eval()(IDS), wanted)
        assert torch.equal(narrow.train()(IDS), wanted)  # of new rows
        assert torch.equal(narrow(IDS), wanted)  # of rows
    values = narrow.core.row_values(np.array([5]))
    assert (str(values.dtype), values.shape) == ("uint16", (1, 262))


def test_a_row_takes_half_the_memory() -> None:
    tables = [wd.EmbeddingTable(64, dtype=dtype) for dtype in ("float32", "bfloat16")]
    for table in tables:
        table(torch.arange(50_000))
    wide, narrow = (table.core.bytes - 50_000 * 75 for table in tables)
    assert narrow < 0.6 * wide


def test_what_tables_do_with_rows_of_bfloat16() -> None:
    table = make("adam", name="user")
    table(IDS).sum().backward()
    table.step()
    assert table.config["dtype"] == "bfloat16"
    assert wd.EmbeddingTable.from_config(table.config).dtype == BF16
    assert wd.EmbeddingTable(2).config["dtype"] == "float32"
    again = copy.deepcopy(table)
    assert torch.equal(again.eval()(IDS), table.eval()(IDS))
    assert np.array_equal(again.core.row_values(IDS.numpy()), table.core.row_values(IDS.numpy()))
    norms = table(IDS).detach().float().norm(dim=1)
    border = float(norms.median()) + 1e-6
    gone = table.evict(l2_below=border)
    assert sorted(gone.tolist()) == sorted(IDS[norms < border].tolist())
    assert 0 < len(gone) < SIZE


def test_bags_of_bfloat16_equal_those_of_torch() -> None:
    table = make("sgd", name="user")
    table(IDS)
    model = torch.nn.EmbeddingBag(SIZE, DIM, mode="sum", dtype=BF16, include_last_offset=True)
    model.weight.data.copy_(table(IDS, count=False).detach())
    places, offsets = torch.tensor([3, 5, 9, 3]), torch.tensor([0, 2, 2, 4])
    found, wanted = table.bag(IDS[places], offsets), model(places, offsets)
    assert torch.equal(found, wanted)
    assert found.dtype == BF16


@pytest.mark.parametrize("dtype", ["float16", torch.float64, "bf16", None])
def test_other_dtypes_are_refused(dtype: Any) -> None:
    with pytest.raises(ValueError, match=r"dtype is '.*', expected 'float32' or 'bfloat16'"):
        wd.EmbeddingTable(2, dtype=dtype)


def test_lookups_of_bfloat16_compile() -> None:
    table = make("sgd")
    table(IDS)
    compiled = torch.compile(lambda ids: table(ids) * 2, backend="aot_eager", fullgraph=True)
    assert torch.equal(compiled(IDS), table(IDS) * 2)
    compiled(IDS).sum().backward()
    assert table.step() == SIZE
