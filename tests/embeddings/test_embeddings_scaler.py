"""Tables under a GradScaler get the rows of a loss that is not scaled, to the bit."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import windeck as wd
from support.gangs import gang

#: The scale of a step; the third and the fifth overflow.
SCALES = (1024.0, 2.0**20, 2.0**127, 0.5, 2.0**127, 8.0)
DTYPES = ("float32", "bfloat16")
#: Makes one step of a table and a layer, whose scaled gradients are there.
Step = Callable[[torch.amp.GradScaler, Any, torch.optim.Optimizer], None]


def make(kind: str = "adam", dtype: str = "float32", sharded: bool = False) -> wd.EmbeddingTable:
    made = wd.ShardedEmbeddingTable if sharded else wd.EmbeddingTable
    return made(4, optimizer=kind, lr=0.25, scale=1.0, seed=3, dtype=dtype)


def contents(table: wd.EmbeddingTable) -> dict[str, Any]:
    with table.core.snapshot() as snapshot:
        found = snapshot.read(table.core.first_bucket, table.core.end_bucket)
    return {**{name: found[name].tobytes() for name in found}, "clock": table.core.clock}


def batch(step: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(step)
    ids = torch.randint(0, 9, (12,), generator=generator)
    return ids, torch.randn(12, 4, generator=generator) * 64


def scaler_at(scale: float) -> torch.amp.GradScaler:
    return torch.amp.GradScaler("cpu", init_scale=scale)


def step_directly(scaler: torch.amp.GradScaler, tables: Any, dense: Any) -> None:
    scaler.step(dense)
    scaler.step(tables)


def step_unscaled(scaler: torch.amp.GradScaler, tables: Any, dense: Any) -> None:
    scaler.unscale_(dense)
    scaler.unscale_(tables)
    torch.nn.utils.clip_grad_norm_(dense.param_groups[0]["params"], 1e9)
    scaler.step(tables)
    scaler.step(dense)


def step_by_hand(scaler: torch.amp.GradScaler, tables: Any, dense: Any) -> None:
    """Check gradients, and step without the scaler."""
    scaler.unscale_(tables)
    tables.step()
    scaler.step(dense)


def step_dense_unscaled(scaler: torch.amp.GradScaler, tables: Any, dense: Any) -> None:
    scaler.unscale_(dense)
    scaler.step(dense)
    scaler.step(tables)


def step_by_number(scaler: torch.amp.GradScaler, tables: Any, dense: Any) -> None:
    scaler.step(dense)
    for table in tables.tables:
        table.step(grad_scale=scaler.get_scale())


def train(kind: str, dtype: str, step: Step | None) -> tuple[dict[str, Any], list[float]]:
    """Return what a table and a layer hold after steps, without those that overflow if unscaled."""
    table = make(kind, dtype)
    layer = torch.nn.Linear(4, 1)
    torch.nn.init.ones_(layer.weight)
    torch.nn.init.zeros_(layer.bias)
    tables = wd.TableOptimizer([table])
    dense = torch.optim.SGD(layer.parameters(), lr=2.0**-20)
    for number, scale in enumerate(SCALES):
        ids, weights = batch(number)
        rows = table(ids).float()
        # Two passes of one id add up.
        losses = [layer(rows * weights).sum(), layer(table(ids[:3]).float()).sum() * 64]
        if step is None:
            if scale < 2.0**100:
                sum(losses).backward()
                tables.step()
                dense.step()
        else:
            scaler = scaler_at(scale)
            scaler.scale(sum(losses)).backward()
            step(scaler, tables, dense)
            scaler.update()
            assert scaler.get_scale() == (scale / 2 if scale > 2.0**100 else scale)
        assert table.pending == 0
        dense.zero_grad()
    return contents(table), [*layer.weight.flatten().tolist(), layer.bias.item()]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["sgd", "adagrad", "adam"])
def test_a_scaled_loss_gives_the_rows_of_an_unscaled_one(kind: str, dtype: str) -> None:
    wanted = train(kind, dtype, None)
    for step in (step_directly, step_unscaled, step_by_hand, step_dense_unscaled, step_by_number):
        assert train(kind, dtype, step) == wanted, step.__name__


def test_each_optimizer_skips_its_own_steps() -> None:
    """As in torch, gradients of one optimizer that overflow do not stop another."""
    table, layer = make("sgd"), torch.nn.Parameter(torch.ones(()))
    tables: Any = wd.TableOptimizer([table])
    dense = torch.optim.SGD([layer], lr=0.5)
    ids = torch.tensor([1])
    before = table(ids).detach()
    scaler = scaler_at(2.0**10)
    scaler.scale(table(ids).sum() * 2.0**120 + layer).backward()
    assert scaler.step(tables) == 0
    scaler.step(dense)
    scaler.update()
    assert (layer.item(), scaler.get_scale()) == (0.5, 2.0**9)
    assert torch.equal(table(ids), before)
    assert table.pending == table.core.clock == 0


def test_a_scale_is_forgotten_with_the_gradients() -> None:
    scaled, plain = make("sgd"), make("sgd")
    tables: Any = wd.TableOptimizer([scaled])
    scaler = scaler_at(1024.0)
    scaler.scale(scaled(torch.tensor([1])).sum()).backward()
    scaler.unscale_(tables)
    tables.zero_grad()
    for table in (scaled, plain):
        table(torch.tensor([1, 2])).sum().backward()
    assert tables.step() == plain.step() == 2
    ids = torch.arange(3)
    assert torch.equal(scaled.eval()(ids), plain.eval()(ids))


def test_a_scaler_of_a_step_without_gradients() -> None:
    tables: Any = wd.TableOptimizer([make(), make()])
    scaler = scaler_at(4.0)
    scaler.scale(torch.ones(()))
    assert scaler.step(tables) == 0
    scaler.update()
    assert scaler.get_scale() == 4.0
    scaler = torch.amp.GradScaler("cpu", enabled=False)
    tables.tables[0](torch.tensor([1, 2])).sum().backward()
    assert scaler.step(tables) == 2


def test_without_a_scaler_reading_the_groups_changes_nothing() -> None:
    """A monitor of learning rates reads them; a GradScaler may have read them before."""
    read, plain = make("sgd"), make("sgd")
    tables: Any = wd.TableOptimizer([read])
    scaler = scaler_at(1024.0)
    for number, value in enumerate((1.0, float("nan"), 2.0)):
        for table in (read, plain):
            (table(torch.tensor([number])).sum() * value).backward()
        assert len(tables.param_groups) == 1
        assert tables.step() == plain.step() == 1
    assert contents(read) == contents(plain)
    # Unscaled, but stepped with a number; the next gradients are those of a plain loss.
    scaler.scale(read(torch.tensor([5])).sum()).backward()
    scaler.unscale_(tables)
    read.step(grad_scale=1024.0)
    read(torch.tensor([5])).sum().backward()
    tables.step()
    for _ in range(2):
        plain(torch.tensor([5])).sum().backward()
        plain.step()
    assert contents(read) == contents(plain)


@pytest.mark.parametrize("by_hand", [False, True])
def test_reading_the_groups_after_unscaling_changes_nothing(by_hand: bool) -> None:
    """Gradients are clipped there, as torch's recipe says, and learning rates are logged."""
    table, scaler = make("sgd"), scaler_at(1024.0)
    before = table(torch.tensor([5]))
    tables: Any = wd.TableOptimizer([table])
    scaler.scale(before.sum()).backward()
    scaler.unscale_(tables)
    params = [param for group in tables.param_groups for param in group["params"]]
    torch.nn.utils.clip_grad_norm_(params, 1.0)
    assert (tables.step() if by_hand else scaler.step(tables)) == 1
    after = table(torch.tensor([5]), count=False)
    assert torch.equal(after, before.detach() - 0.25)


def test_a_backward_pass_after_unscaling_is_refused() -> None:
    table, scaler = make("sgd"), scaler_at(1024.0)
    tables: Any = wd.TableOptimizer([table])
    scaler.scale(table(torch.tensor([5])).sum()).backward()
    scaler.unscale_(tables)
    scaler.scale(table(torch.tensor([5])).sum()).backward()
    with pytest.raises(RuntimeError, match="gradients of backward passes after `unscale_`, expect"):
        scaler.step(tables)
    assert table.pending == 2
    assert not hasattr(tables, "grad_scale")


@pytest.mark.parametrize(
    ("scale", "error", "words"),
    [
        (0, ValueError, "`grad_scale` must be above 0, got 0"),
        (1e-320, ValueError, "`grad_scale` must be above 0, got 1e-320"),
        (float("inf"), ValueError, "`grad_scale` must be finite and at least 0, got inf"),
        (True, TypeError, r"`grad_scale` must be a number, got True \(bool\)"),
    ],
)
def test_scales_that_are_refused(scale: Any, error: type[Exception], words: str) -> None:
    table = make()
    table(torch.tensor([1])).sum().backward()
    with pytest.raises(error, match=words):
        table.step(grad_scale=scale)
    assert table.pending == 1


def sharded(rank: int, ranks: int) -> list[Any]:
    """One rank overflows: no rank steps, and all scalers agree."""
    found: list[Any] = []
    for step in (step_directly, step_unscaled, step_by_number):
        scaled, plain, local = make(sharded=True), make(sharded=True), make("sgd")
        tables = wd.TableOptimizer([local, scaled])
        layer = torch.nn.Parameter(torch.ones(()))
        dense = torch.optim.SGD([layer], lr=0.5)
        for number in range(4):
            ids, weights = batch(number)
            mine = slice(6 * rank, 6 * rank + 6)
            scaler = scaler_at(2.0**10)
            # At step 1 gradients of the shared table overflow, at step 2 those of another table.
            large = 2.0**120 if rank == 1 else 1.0
            loss = (scaled(ids[mine]) * weights[mine]).sum() * (large if number == 1 else 1.0)
            loss = loss + local(ids[:2]).sum() * (large if number == 2 else 1.0) + layer
            scaler.scale(loss).backward()
            step(scaler, tables, dense)
            scaler.update()
            skips = number == 1 or (number == 2 and step is not step_by_number)
            wanted = 2.0**9 if skips and step is not step_by_number else 2.0**10
            assert scaler.get_scale() == wanted, number
            assert scaled.pending == local.pending == 0
            dense.zero_grad()
            unscaled = (plain(ids[mine]) * weights[mine]).sum()
            if not skips:
                unscaled.backward()
                plain.step()
        found.append(contents(scaled) == contents(plain))
    return found


def test_ranks_of_a_sharded_table_skip_a_step_together() -> None:
    assert gang(2, sharded) == [[True] * 3] * 2
