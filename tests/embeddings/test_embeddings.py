"""Embedding tables give the results of torch.nn.Embedding(sparse=True) and torch.optim."""

from __future__ import annotations

import copy
import gc
import json
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.utils.checkpoint import checkpoint as checkpointed

import windeck as wd
from support.threads import at_once
from windeck import _core

pytestmark = pytest.mark.filterwarnings("ignore:Sparse invariant checks")
SIZE, DIM = 12, 3
#: Ids of rows 0, 1, ... of the torch module: far apart, negative, and the extremes.
IDS = torch.tensor([0, 1, -1, 7, -(2**63), 2**63 - 1, 2**40, -5, 3, 99, 100, 2**53])


def sgd(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.25)


def adagrad(parameters: Any) -> Any:
    return torch.optim.Adagrad(parameters, lr=0.25, initial_accumulator_value=0.5)


def adam(parameters: Any) -> Any:
    # SparseAdam applies the bias correction to eps too, Adam and windeck do not: use a tiny eps.
    return torch.optim.SparseAdam(list(parameters), lr=0.25, betas=(0.8, 0.9), eps=1e-12)


OPTIMIZERS: dict[str, tuple[dict[str, Any], Callable[[Any], Any]]] = {
    "sgd": ({}, sgd),
    "adagrad": ({"initial_accumulator_value": 0.5}, adagrad),
    "adam": ({"betas": (0.8, 0.9), "eps": 1e-12}, adam),
}


def both(kind: str, **options: Any) -> tuple[wd.EmbeddingTable, torch.nn.Embedding, Any]:
    """Return a table, a torch module with the same initial rows, and its optimizer."""
    more, optimizer = OPTIMIZERS[kind]
    table = wd.EmbeddingTable(DIM, optimizer=kind, lr=0.25, seed=4, scale=0.5, **more, **options)
    model = torch.nn.Embedding(SIZE, DIM, sparse=True)
    with torch.no_grad():
        model.weight.copy_(table.eval()(IDS))
    return table.train(), model, optimizer(model.parameters())


def rows(table: wd.EmbeddingTable) -> torch.Tensor:
    was = table.training
    with torch.no_grad():
        found: torch.Tensor = table.eval()(IDS)
    table.train(was)
    return found


@pytest.mark.parametrize("kind", OPTIMIZERS)
@pytest.mark.parametrize("passes", [1, 3])
def test_training_is_that_of_torch(kind: str, passes: int) -> None:
    table, model, optimizer = both(kind)
    generator = torch.Generator().manual_seed(3)
    for _ in range(5):
        for _ in range(passes):  # gradients add up until the step
            shape = (2, 5)
            places = torch.randint(0, SIZE, shape, generator=generator)
            weights = torch.randn(*shape, DIM, generator=generator)
            out, wanted = table(IDS[places]), model(places)
            torch.testing.assert_close(out, wanted)
            (out.square() * weights).sum().backward()
            (wanted.square() * weights).sum().backward()
        changed = table.step()
        seen = model.weight.grad.coalesce().indices().numel()  # type: ignore[union-attr]
        assert changed == seen
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(rows(table), model.weight.detach())
    assert table.core.clock == 5
    assert table.rows == len(table.core) <= SIZE


def test_weight_decay_is_for_rows_with_gradients() -> None:
    table = wd.EmbeddingTable(2, optimizer="sgd", lr=0.5, weight_decay=0.25, scale=1.0)
    ids = torch.tensor([1, 2])
    before = table(ids).detach()
    table(ids[:1]).sum().backward()
    table.step()
    after = table(ids).detach()
    torch.testing.assert_close(after[0], before[0] - 0.5 * (1 + 0.25 * before[0]))
    assert torch.equal(after[1], before[1])


def test_one_table_twice_in_one_forward() -> None:
    table, model, optimizer = both("adagrad")
    left, right = torch.tensor([0, 3, 3]), torch.tensor([3, 3, 5])
    for _ in range(3):
        (table(IDS[left]) * table(IDS[right])).sum().backward()
        (model(left) * model(right)).sum().backward()
        assert table.step() == 3
        optimizer.step()
        optimizer.zero_grad()
        torch.testing.assert_close(rows(table), model.weight.detach())


def test_gradients_flow_through_layers_in_front_and_behind() -> None:
    table, model, optimizer = both("sgd")
    torch.manual_seed(0)
    layer = torch.nn.Linear(DIM, 1)
    places = torch.tensor([1, 1, 4])
    layer(table(IDS[places])).square().sum().backward()
    ours = layer.weight.grad.clone()  # type: ignore[union-attr]
    layer.zero_grad()
    layer(model(places)).square().sum().backward()
    torch.testing.assert_close(ours, layer.weight.grad)
    table.step()
    optimizer.step()
    torch.testing.assert_close(rows(table), model.weight.detach())


@pytest.mark.parametrize("shape", [(0,), (), (3, 0, 2), (2, 3, 1)])
def test_any_shape_of_ids(shape: tuple[int, ...]) -> None:
    table = wd.EmbeddingTable(DIM)
    out = table(torch.ones(shape, dtype=torch.int64))
    assert (out.shape, out.dtype, out.requires_grad) == ((*shape, DIM), torch.float32, True)
    out.sum().backward()
    assert table.step() == min(1, out.numel())
    assert table.core.clock == 1
    strided = torch.arange(24).view(4, 6).t()[::2]
    assert torch.equal(table(strided), table(strided.contiguous()))


def test_rows_handed_out_stay_as_they_are_and_their_memory_is_used_again() -> None:
    table = wd.EmbeddingTable(64, optimizer="sgd", seed=5)
    ids = torch.arange(4096)
    with torch.no_grad():
        expected = table(ids).clone()
        _core.trim_pool()
        live = _core.pool_stats()["live"]
        held = [table(ids), table(ids)[7:9]]  # the second one by a view alone
        assert _core.pool_stats()["live"] == live + 2
        for start in range(5000, 5010):
            table(ids + start).zero_()
        assert torch.equal(held[0], expected)
        assert torch.equal(held[1], expected[7:9])
        held.clear()
        assert _core.pool_stats()["live"] == live
        asked = _core.pool_stats()["allocations"]
        for _ in range(5):
            assert torch.equal(table(ids), expected)
        assert _core.pool_stats()["allocations"] == asked
    rows = table(ids)
    rows.sum().backward()
    del rows
    gc.collect()
    assert _core.pool_stats()["live"] == live


def test_evaluation_looks_and_changes_nothing() -> None:
    table = wd.EmbeddingTable(DIM, scale=1.0).eval()
    first = table(IDS)
    assert (table.rows, len(table), table.core.clock) == (0, 0, 0)
    assert bool(table)  # is a module, not an empty collection
    assert first.abs().sum() > 0
    assert torch.equal(table(IDS), first)
    assert torch.equal(table.train()(IDS), first)  # what rows begin with depends on the id alone
    assert table.rows == len(table) == SIZE
    with torch.no_grad():
        assert not table(IDS).requires_grad
    assert table.step() == 0
    assert table.core.facts(IDS[:1].numpy())["frequencies"].tolist() == [2]


@pytest.mark.parametrize("admit_after", [1, 3])
@pytest.mark.parametrize("bags", [False, True])
def test_lookups_that_do_not_count(bags: bool, admit_after: int) -> None:
    """They give the rows of eval(), and the table stays that of a run without them."""
    seen, unseen = IDS[:8], IDS[4:]
    offsets = torch.arange(0, 9, 2)

    def look(table: wd.EmbeddingTable, **options: Any) -> torch.Tensor:
        found = table.bag(unseen, offsets, **options) if bags else table(unseen, **options)
        assert isinstance(found, torch.Tensor)
        return found

    def contents(table: wd.EmbeddingTable) -> list[Any]:
        with table.core.snapshot() as snapshot:
            found = snapshot.read(0, 1024)
        return [table.core.clock, table.rows, *(found[key].tobytes() for key in sorted(found))]

    made = [wd.EmbeddingTable(DIM, seed=2, scale=1.0, admit_after=admit_after) for _ in range(2)]
    for _ in range(4):
        for table in made:
            if table is made[0]:
                was = contents(table)
                found = look(table, count=False)
                assert contents(table) == was
                assert torch.equal(found, look(table.eval()))
                assert torch.equal(found, look(table, count=False))
                table.train()
            table(seen).sum().backward()
            table.step()
        assert contents(made[0]) == contents(made[1])
    for table in made:
        table.core.lookup(IDS.numpy(), insert=True)
    assert contents(made[0]) == contents(made[1])


def test_gradients_of_a_lookup_that_does_not_count() -> None:
    """Rows that exist are updated, and none is created."""
    table, model, optimizer = both("adagrad")
    table(IDS[:4])
    places = torch.tensor([0, 3, 3, 9])
    table(IDS[places], count=False).square().sum().backward()
    model(places[:3]).square().sum().backward()
    table.step()
    optimizer.step()
    torch.testing.assert_close(rows(table), model.weight.detach())
    assert table.rows == 4
    assert table.core.facts(IDS[:4].numpy())["frequencies"].tolist() == [1] * 4
    for given in (0, 1, None):
        with pytest.raises(TypeError, match=r"`count` must be a bool, got a (int|NoneType)"):
            table(IDS, count=given)
        with pytest.raises(TypeError, match=r"`count` must be a bool, got a (int|NoneType)"):
            table.bag(IDS, torch.tensor([0, SIZE]), count=given)  # type: ignore[arg-type]


def test_going_back_twice_is_torchs_error_and_retained_graphs_add_up() -> None:
    table = wd.EmbeddingTable(1, optimizer="sgd", lr=1.0, initializer="zeros")
    loss = table(torch.tensor([5])).sum()
    loss.backward()
    with pytest.raises(RuntimeError, match="backward through the graph a second time"):
        loss.backward()
    table.step()
    loss = table(torch.tensor([5])).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    table.step()
    assert table(torch.tensor([5])).item() == -3.0


def test_forgetting_and_freezing() -> None:
    table = wd.EmbeddingTable(1, optimizer="sgd", lr=1.0, initializer="zeros")
    ids = torch.tensor([1])
    table(ids).sum().backward()
    table.zero_grad()
    assert table.step() == 0
    assert not table.requires_grad_(False)(ids).requires_grad
    table.requires_grad_()(ids).sum().backward()
    table.lr = 0.125
    assert table.step() == 1
    assert table(ids).item() == -0.125


def test_gradients_are_taken_as_they_are_not_as_they_become() -> None:
    table = wd.EmbeddingTable(2, optimizer="sgd", lr=1.0, initializer="zeros")
    ids, gradient = torch.tensor([4, 4]), torch.ones(2, 2)
    table(ids).backward(gradient)
    gradient.fill_(100)
    ids.fill_(9)
    table.step()
    assert table(torch.tensor([4])).tolist() == [[-2.0, -2.0]]


def test_admission_and_eviction() -> None:
    table = wd.EmbeddingTable(1, optimizer="sgd", lr=1.0, initializer="zeros", admit_after=2)
    ids = torch.tensor([1, 2, 2])
    table(ids).sum().backward()
    assert table.step() == 1  # 1 has no row yet
    assert table.eval()(ids).view(-1).tolist() == [0, -2, -2]
    table.train()(torch.tensor([1, 3])).sum().backward()
    table.step()
    assert table.eval()(torch.tensor([1, 2, 3])).view(-1).tolist() == [-1, -2, 0]
    assert table.evict(frequency_below=2).tolist() == [3]
    gone = table.evict(seen_before=2)
    assert (gone.tolist(), gone.dtype) == ([2], torch.int64)
    assert table.rows == 1
    with pytest.raises(ValueError, match="condition"):
        table.evict()


def test_configs_are_json_and_make_equal_tables() -> None:
    for kind, (options, _) in OPTIMIZERS.items():
        table = wd.EmbeddingTable(5, optimizer=kind, lr=0.5, seed=2**64 - 1, initializer="uniform",
                                  scale=0.25, admit_after=3, name="user", **options)  # fmt: skip
        table.lr = 0.125
        config = json.loads(json.dumps(table.config))
        again = wd.EmbeddingTable.from_config(config)
        assert again.config == table.config
        assert (again.lr, again.core.slots, again.name) == (0.125, table.core.slots, "user")
        assert torch.equal(again.eval()(IDS), table.eval()(IDS))
    assert repr(table) == "EmbeddingTable(5, optimizer='adam', rows=0, name='user')"


@pytest.mark.parametrize(
    ("options", "error", "words"),
    [
        ({"optimizer": "rmsprop"}, ValueError, "must be one of sgd, adagrad, adam, got 'rmsprop"),
        ({"lr": -1}, ValueError, "`lr` must be finite and at least 0, got -1"),
        ({"lr": float("nan")}, ValueError, "`lr` must be finite and at least 0, got nan"),
        ({"lr": True}, TypeError, r"`lr` must be a number, got True \(bool\)"),
        ({"eps": "x"}, TypeError, "eps"),
        ({"betas": (0.9, 1.0)}, ValueError, r"`betas` must be two numbers in .*, got \(0.9, 1.0\)"),
        ({"betas": 0.9}, ValueError, r"`betas` must be two numbers in \[0, 1\), got 0.9"),
        ({"optimizer": "sgd", "initial_accumulator_value": 1.0}, ValueError, "must be 0 with sgd"),
        ({"dim": 0}, ValueError, "dim"),
        ({"initializer": "xavier"}, ValueError, "initializer"),
        ({"weight": 1}, TypeError, "weight"),
    ],
)  # fmt: skip
def test_invalid_options(options: dict[str, Any], error: type[Exception], words: str) -> None:
    with pytest.raises(error, match=words):
        wd.EmbeddingTable.from_config({"dim": 4, **options})


def test_invalid_ids() -> None:
    table = wd.EmbeddingTable(2)
    with pytest.raises(TypeError, match=r"`ids` must be a tensor of torch.int64, got torch.int16"):
        table(torch.zeros(2, dtype=torch.int16))
    with pytest.raises(TypeError, match=r"`ids` must be a tensor of torch.int64, got a list"):
        table([1, 2])
    token, lookup = torch.empty(0), torch.ops.windeck.embedding_lookup
    with pytest.raises(RuntimeError, match="embedding table 0 no longer exists"):
        lookup(torch.zeros(2, dtype=torch.int64), token.sum(), token, 0, 2, True)


def test_copies_are_tables_of_their_own() -> None:
    table, _, _ = both("adam", admit_after=2, name="user")
    for _ in range(3):
        table(IDS[:5]).square().sum().backward()
        table.step()
    table(IDS[5:]).sum().backward()
    other = copy.deepcopy(torch.nn.Sequential(table.eval()))[0]
    assert isinstance(other, wd.EmbeddingTable)
    assert (other.training, other.config, other.rows) == (False, table.config, table.rows)
    assert torch.equal(rows(other), rows(table))
    before = rows(other)
    table.zero_grad()
    assert (other.step(), other.core.clock) == (0, 3)  # gradients are not copied
    for each in (table, other):
        each.train()(IDS).sum().backward()
        each.step()
    assert torch.equal(rows(other), rows(table))  # the clock and the counts came too
    table(IDS).sum().backward()
    table.step()
    assert not torch.equal(rows(other), rows(table))
    assert not torch.equal(rows(other), before)
    assert other(IDS).requires_grad
    assert not copy.deepcopy(table.requires_grad_(False))(IDS).requires_grad
    with pytest.raises(TypeError, match=r"cannot be pickled: save its rows by checkpoint.save\("):
        pickle.dumps(table)


def test_many_threads_lose_nothing() -> None:
    table = wd.EmbeddingTable(2, optimizer="sgd", lr=1.0, initializer="zeros", threads=2)

    def work(number: int) -> None:
        for turn in range(50):
            table(torch.arange(number, number + 40) * 7).sum().backward()
            if turn % 10 == 9:
                table.step()

    at_once(4, work)
    table.step()
    passes = [sum(number <= i < number + 40 for number in range(4)) * 50 for i in range(43)]
    found = table.eval()(torch.arange(43) * 7)[:, 0]
    assert (-found).tolist() == passes  # whole numbers, so no order of additions shows


def test_autocast_inference_mode_and_activation_checkpoints() -> None:
    table = wd.EmbeddingTable(4, optimizer="sgd", lr=1.0, initializer="zeros")
    layer, ids = torch.nn.Linear(4, 4, bias=False), torch.tensor([1, 2])
    torch.nn.init.ones_(layer.weight)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        rows = table(ids)
        assert rows.dtype == torch.float32
        out = layer(rows)
    assert out.dtype == torch.bfloat16
    out.sum().backward()
    table.step()
    assert table(ids).tolist() == [[-4.0] * 4] * 2
    with torch.inference_mode():
        assert table(ids).tolist() == [[-4.0] * 4] * 2
    out = checkpointed(lambda x: layer(table(x)), ids, use_reentrant=False)
    assert isinstance(out, torch.Tensor)
    torch.autograd.backward(out.sum())
    table.step()
    assert table(ids).tolist() == [[-8.0] * 4] * 2


def test_one_step_for_several_tables() -> None:
    class Towers(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.user = wd.EmbeddingTable(2, optimizer="sgd", lr=1.0, initializer="zeros")
            self.more = torch.nn.ModuleList([wd.EmbeddingTable(2, optimizer="adam")])
            self.layer = torch.nn.Linear(2, 1)

    model = Towers()
    assert [name for name, _ in model.named_parameters()] == ["layer.weight", "layer.bias"]
    assert list(model.state_dict()) == ["layer.weight", "layer.bias"]
    optimizer = wd.TableOptimizer(model)
    assert optimizer.tables == [model.user, model.more[0]]
    ids = torch.tensor([1, 2])
    (model.user(ids) + model.more[0](ids)).sum().backward()
    assert optimizer.step() == 4
    assert model.user(ids).tolist() == [[-1, -1], [-1, -1]]
    model.user(ids).sum().backward()
    optimizer.zero_grad()
    assert optimizer.step() == 0
    named = wd.TableOptimizer({"user": model.user})
    assert named.tables == wd.TableOptimizer([model.user]).tables == [model.user]
    assert repr(named).startswith("TableOptimizer([EmbeddingTable(2, optimizer='sgd', rows=2)")
    with pytest.raises(ValueError, match="at least one EmbeddingTable, got a Linear without any"):
        wd.TableOptimizer(torch.nn.Linear(1, 1))
    with pytest.raises(TypeError, match="must hold EmbeddingTables only, got a Linear"):
        wd.TableOptimizer([torch.nn.Linear(1, 1)])
    with pytest.raises(TypeError, match="must be tables or a module with tables, got a int"):
        wd.TableOptimizer(3)
