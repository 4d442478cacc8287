"""Embedding tables under torch.compile give the results of the same code without it."""

from __future__ import annotations

import shutil
import warnings
from collections.abc import Callable
from typing import Any

import pytest
import torch

import windeck as wd

if not hasattr(torch.library, "opcheck"):
    pytest.skip("torch.library.opcheck is not in this torch", allow_module_level=True)


class Towers(torch.nn.Module):
    """One table used three times, twice with the same ids, and another."""

    def __init__(self) -> None:
        super().__init__()
        self.user = wd.EmbeddingTable(4, optimizer="adagrad", lr=0.25, scale=1.0, seed=1)
        self.item = wd.EmbeddingTable(4, optimizer="adam", lr=0.25, scale=1.0, seed=2)
        torch.manual_seed(7)
        self.layer = torch.nn.Linear(4, 1)

    def forward(self, users: torch.Tensor, items: torch.Tensor) -> torch.Tensor:
        again = self.user(users).sin() * self.user(users)
        left = again + self.user(items)
        found: torch.Tensor = self.layer(left * self.item(items)).square().sum()
        return found


def trained(wrap: Callable[[Any], Any], sizes: list[int]) -> tuple[Towers, list[float]]:
    model = Towers()
    called, losses = wrap(model), []
    optimizer = torch.optim.SGD(model.layer.parameters(), lr=0.01)
    tables = wd.TableOptimizer(model)
    generator = torch.Generator().manual_seed(5)
    for size in sizes:
        users, items = (torch.randint(-9, 9, (size,), generator=generator) for _ in range(2))
        loss = called(users, items)
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
        tables.step()
        optimizer.zero_grad()
    return model, losses


def compare(backend: str, sizes: list[int]) -> None:
    torch._dynamo.reset()
    wanted, wanted_losses = trained(lambda model: model, sizes)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of what torch itself has deprecated
        model, losses = trained(
            lambda model: torch.compile(model, fullgraph=True, backend=backend), sizes
        )
    torch.testing.assert_close(torch.tensor(losses), torch.tensor(wanted_losses))
    ids = torch.arange(-9, 9)
    for name in ("user", "item"):
        ours, theirs = getattr(model, name), getattr(wanted, name)
        assert ours.core.clock == theirs.core.clock == len(sizes)
        was, now = theirs.core.facts(ids.numpy()), ours.core.facts(ids.numpy())
        assert all((was[key] == now[key]).all() for key in was)  # each lookup was counted
        torch.testing.assert_close(ours.eval()(ids), theirs.eval()(ids))
    torch.testing.assert_close(model.layer.weight, wanted.layer.weight)


def test_compiled_training_is_the_same() -> None:
    compare("aot_eager", [6, 6, 9, 13, 6])


@pytest.mark.slow
def test_training_in_generated_code_is_the_same() -> None:
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed, which torch's compiler needs: apt-get install g++")
    compare("inductor", [6, 6, 9])


def test_evaluation_compiles_and_changes_nothing() -> None:
    torch._dynamo.reset()
    table = wd.EmbeddingTable(3, scale=1.0)
    table(torch.arange(5))
    compiled = torch.compile(table.eval(), fullgraph=True, backend="aot_eager")
    with torch.no_grad():
        assert torch.equal(compiled(torch.arange(9)), table(torch.arange(9)))
    assert table.rows == 5


def test_lookups_that_do_not_count_compile() -> None:
    torch._dynamo.reset()
    table = wd.EmbeddingTable(3, scale=1.0)
    ids = torch.arange(9)

    def pair(ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return table(ids, count=False), table(ids[:5])

    one, other = torch.compile(pair, fullgraph=True, backend="aot_eager")(ids)
    assert torch.equal(one[:5], other)
    assert torch.equal(one, table.eval()(ids))
    assert table.core.facts(ids.numpy())["frequencies"].tolist() == [1] * 5 + [0] * 4


def number_of(table: wd.EmbeddingTable) -> int:
    """Return the number by which a compiled graph calls a table."""
    numbers: list[int] = []

    def note(graph: torch.fx.GraphModule, inputs: list[torch.Tensor]) -> Callable[..., Any]:
        lookups = (torch.ops.windeck.embedding_lookup, torch.ops.windeck.embedding_lookup.default)
        numbers.extend(node.args[3] for node in graph.graph.nodes if node.target in lookups)
        return graph.forward

    torch._dynamo.reset()
    torch.compile(table, fullgraph=True, backend=note)(torch.arange(3))
    (number,) = numbers
    return number


@pytest.mark.parametrize("insert", [True, False])
@pytest.mark.parametrize("shape", [(4,), (0,), (2, 3)])
def test_the_operator_is_what_torch_asks_of_one(insert: bool, shape: tuple[int, ...]) -> None:
    number = number_of(table := wd.EmbeddingTable(3))
    ids = torch.arange(torch.Size(shape).numel()).view(shape)
    lookup = torch.ops.windeck.embedding_lookup.default
    args = (ids, torch.zeros((), requires_grad=True), torch.empty(0), number, table.dim, insert)
    torch.library.opcheck(lookup, args)
    gradients = torch.ones(*shape, 3)
    collect = torch.ops.windeck.embedding_collect.default
    torch.library.opcheck(collect, (ids, gradients, torch.empty(0), number))
