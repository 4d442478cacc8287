"""Tests of the targets of a load: names of numbers, memory, autograd, early errors."""

from __future__ import annotations

import copy
from collections import Counter, OrderedDict, defaultdict
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.optim.optimizer import register_optimizer_step_post_hook
from torch.utils._pytree import tree_map

from windeck import checkpoint
from windeck.checkpoint.stores import Store


class Counted(torch.nn.Linear):
    """A module with a number in its state."""

    count = 0

    def get_extra_state(self) -> dict[str, int]:
        return {"count": self.count}

    def set_extra_state(self, state: dict[str, int]) -> None:
        self.count = state["count"]


@pytest.mark.parametrize(
    ("saved", "target", "lost"),
    [
        ({"epoch": 1}, {"epochs": 2}, "model/epochs"),
        ({}, {"epoch": None}, "model/epoch"),
        ({"a": {"b": 1}}, {"a": {"b": 1, "c": "x"}}, "model/a/c"),
        ({"a": 1}, {"a": {"b": 1}}, "model/a/b"),
        ({"a": {}}, {"b": [1, 2]}, "model/b"),
        (torch.nn.Linear(2, 2), Counted(2, 2), "model/_extra_state"),
    ],
    ids=repr,
)
def test_names_of_numbers_are_compared_too(
    saved: Any, target: Any, lost: str, store: Store
) -> None:
    target = copy.deepcopy(target)
    checkpoint.save(store, step=0, model=saved)
    words = rf"the names in model are not .*: only in the target \[{lost}\]; only in the "
    with pytest.raises(KeyError, match=words):
        checkpoint.load(store, model=target)
    checkpoint.load(store, model=target, strict=False)


def test_a_dict_takes_numbers_and_a_module_what_it_has(store: Store) -> None:
    model, found = Counted(2, 2), Counted(2, 2)
    model.count = 5
    checkpoint.save(store, step=0, model=model, extra=None, loader={"at": {"x": 3}, "l": [1]})
    into: dict[str, Any] = {"l": [1, 2, 3]}
    checkpoint.load(store, model=found, loader=into)
    assert found.count == 5
    assert into == {"at": {"x": 3}, "l": [1]}
    plain = torch.nn.Linear(2, 2)
    with pytest.raises(KeyError, match=r"only in the checkpoint \[model/_extra_state\]"):
        checkpoint.load(store, model=plain)
    checkpoint.load(store, model=plain, strict=False)
    assert torch.equal(plain.weight, model.weight)


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(("saved", "target"), [("7", 7), (7, "7")])
def test_a_key_is_text_on_both_sides_or_a_number(
    saved: int | str, target: int | str, strict: bool, store: Store
) -> None:
    """Their places have one name; without a look at the keys, the target would get both."""
    checkpoint.save(store, step=0, model={"a": {saved: torch.ones(2)}})
    into = {"a": {target: torch.zeros(2)}}
    words = rf"model/a has the key {saved!r} in <.*>, expected {target!r}"
    with pytest.raises(KeyError, match=words):
        checkpoint.load(store, model=into, strict=strict)
    assert list(into["a"]) == [target]
    assert into["a"][target].tolist() == [0, 0]


@pytest.mark.parametrize("steps", [0, 1])
def test_groups_of_parameters_are_compared_before_anything_is_written(
    steps: int, store: Store
) -> None:
    """torch would say it when it is given the state, and the model was written to by then."""
    model, other = torch.nn.Linear(2, 3), torch.nn.Linear(2, 3)
    two: Any = [{"params": [model.weight]}, {"params": [model.bias], "lr": 0.5}]
    adam = torch.optim.Adam(two)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()
        adam.step()
    checkpoint.save(store, step=0, model=model, optimizer=adam)
    before = copy.deepcopy(other.state_dict())
    cases: list[tuple[Any, str]] = [
        ([other.weight], r"\[1\]"),
        ([other.weight, other.bias], r"\[2\]"),
        ([{"params": [other.weight, other.bias]}, {"params": []}], r"\[2, 0\]"),
    ]
    for groups, sizes in cases:
        words = rf"optimizer has groups of {sizes} parameters, expected \[1, 1\] as in <"
        with pytest.raises(ValueError, match=words):
            checkpoint.load(store, model=other, optimizer=torch.optim.Adam(groups))
        for name, value in before.items():
            assert torch.equal(other.state_dict()[name], value)
    two = [{"params": [other.weight]}, {"params": [other.bias]}]
    fits = torch.optim.Adam(two)
    checkpoint.load(store, model=other, optimizer=fits)
    assert [group["lr"] for group in fits.param_groups] == [1e-3, 0.5]


def test_an_optimizer_of_another_class_is_refused(memory: Store) -> None:
    """Its steps would fail, or the weights of another training would follow."""
    model = torch.nn.Linear(3, 2)
    made = {
        "Adam": torch.optim.Adam, "SGD": torch.optim.SGD, "RMSprop": torch.optim.RMSprop,
        "AdamW": torch.optim.AdamW,
    }  # fmt: skip
    for name, kind in made.items():
        optimizer = kind(model.parameters(), lr=0.1)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        checkpoint.save(memory, step=1, model=model, optimizer=optimizer, namespace=name)
        before = copy.deepcopy(model.state_dict())
        for other in made.values():
            target = other(model.parameters(), lr=0.1)
            if kind is other or {kind, other} == {made["Adam"], made["AdamW"]}:
                checkpoint.load(memory, model=model, optimizer=target, namespace=name)
                target.step()
                model.load_state_dict(before)
                continue
            words = rf"optimizer is of another class than in <.*: only this {other.__name__} has"
            with pytest.raises(ValueError, match=words):
                checkpoint.load(memory, model=model, optimizer=target, namespace=name)
            assert target.state == {}
    # Other versions of torch have options more or less; schedulers and users add some.
    older = made["Adam"](model.parameters(), lr=0.1)
    del older.param_groups[0]["amsgrad"]
    older.param_groups[0]["lr_scale"] = 0.5
    torch.optim.lr_scheduler.StepLR(older, 2)
    checkpoint.save(memory, step=2, optimizer=older)
    later = made["Adam"](model.parameters(), lr=0.5)
    later.param_groups[0]["layer"] = "head"
    checkpoint.load(memory, optimizer=later)


KINDS_OF_OPTIMIZERS = [
    "ASGD", "Adadelta", "Adafactor", "Adagrad", "Adam", "AdamW", "Adamax", "NAdam", "RAdam",
    "RMSprop", "Rprop", "SGD",
]  # fmt: skip


@pytest.mark.parametrize("saved", KINDS_OF_OPTIMIZERS)
def test_an_optimizer_that_was_loaded_can_step(saved: str, memory: Store) -> None:
    """It is refused before anything is written, or has all values that its steps need."""

    def make(kind: str, model: torch.nn.Module) -> torch.optim.Optimizer:
        options = {"momentum": 0.9} if kind == "SGD" else {}
        made: torch.optim.Optimizer = getattr(torch.optim, kind)(model.parameters(), **options)
        return made

    def step(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()

    model = torch.nn.Linear(3, 2)
    optimizer = make(saved, model)
    step(model, optimizer)
    checkpoint.save(memory, step=1, model=model, optimizer=optimizer)
    refused = dict[str, str]()
    for kind in KINDS_OF_OPTIMIZERS:
        other = torch.nn.Linear(3, 2)
        before, target = copy.deepcopy(other.state_dict()), make(kind, other)
        values = {*target.state}  # Adagrad makes them at once
        try:
            checkpoint.load(memory, model=other, optimizer=target)
        except ValueError as error:
            refused[kind] = str(error)
        else:
            step(other, target)
            continue
        assert "optimizer is of another class than in <checkpoint" in refused[kind]
        assert all(torch.equal(before[name], w) for name, w in other.state_dict().items())
        assert {*target.state} == values
    assert saved not in refused
    family = {"Adam", "AdamW", "NAdam", "RAdam"}  # of equal values, and options that are a subset
    assert refused.keys() >= {*KINDS_OF_OPTIMIZERS} - (family if saved in family else {saved})


def test_values_of_an_optimizer_fit_its_parameters(memory: Store) -> None:
    """Parameters that are registered in another order have the values of others."""
    big, small = torch.nn.Parameter(torch.ones(5, 7)), torch.nn.Parameter(torch.ones(3))
    adam = torch.optim.Adam([big, small])
    (big.sum() + small.sum()).backward()  # type: ignore[no-untyped-call]
    adam.step()
    checkpoint.save(memory, step=1, model={"b": big.detach()}, optimizer=adam)
    target, model = torch.optim.Adam([small, big]), {"b": torch.zeros(5, 7)}
    words = r"optimizer/state/0/exp_avg has shape \(5, 7\) in <.*>, expected \(3,\) for the param"
    with pytest.raises(ValueError, match=words):
        checkpoint.load(memory, model=model, optimizer=target)
    assert not model["b"].any()
    assert target.state == {}


class Tallied:
    """An object with subclasses of dict in its state."""

    def __init__(self) -> None:
        self.state: dict[str, Any] = {
            "seen": Counter(),
            "steps": [OrderedDict(a=0), {"b": defaultdict(list)}],
            "plain": {},
        }

    def state_dict(self) -> dict[str, Any]:
        return self.state

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.state = state


def test_an_object_gets_the_subclasses_of_dict_that_it_has(store: Store) -> None:
    saved, loaded = Tallied(), Tallied()
    saved.state["seen"].update("aab")
    saved.state["steps"][1]["b"][7].append(torch.ones(2))
    saved.state["plain"] = Counter("c")
    checkpoint.save(store, step=0, optimizer=saved, loader={"a": Counter("d")})
    loader: dict[str, Any] = {"a": {"d": 0}}
    former = loaded.state["seen"]
    checkpoint.load(store, optimizer=loaded, loader=loader)
    assert not former
    assert loaded.state["seen"].most_common() == [("a", 2), ("b", 1)]
    first, second = loaded.state["steps"]
    assert type(first) is OrderedDict
    assert second["b"][7][0].tolist() == [1, 1]
    assert second["b"]["new"] == []
    assert [type(found) for found in (loaded.state["plain"], loader["a"])] == [dict, dict]


@pytest.mark.parametrize("steps", [0, 1, 4])
def test_an_lbfgs_gets_the_history_that_was_saved(steps: int, store: Store) -> None:
    """Also one with a longer history, or a shorter one."""

    def history(optimizer: torch.optim.LBFGS) -> int:
        return len(optimizer.state_dict()["state"].get(0, {}).get("old_dirs", ()))

    def make(steps: int) -> tuple[torch.nn.Linear, torch.optim.LBFGS]:
        torch.manual_seed(0)
        model = torch.nn.Linear(4, 3)
        optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
        train(model, optimizer, steps)
        return model, optimizer

    def train(model: torch.nn.Linear, optimizer: torch.optim.LBFGS, steps: int) -> None:
        def loss() -> float:
            optimizer.zero_grad()
            found = (model(torch.eye(4)) - 1).abs().pow(3).sum()
            found.backward()
            return float(found.detach())

        for _ in range(steps):
            optimizer.step(loss)  # type: ignore[no-untyped-call]

    model, optimizer = make(2)
    checkpoint.save(store, step=0, model=model, optimizer=optimizer)
    other, loaded = make(steps)
    assert (history(loaded) > history(optimizer)) == (steps > 2)
    checkpoint.load(store, model=other, optimizer=loaded)
    train(model, optimizer, 2)
    train(other, loaded, 2)
    assert torch.equal(model.weight, other.weight)


class Derived(torch.optim.Adam):
    """A subclass that changes nothing."""


@pytest.mark.parametrize("kind", [torch.optim.ASGD, torch.optim.Muon, Derived, torch.optim.RMSprop])
def test_values_of_other_shapes_are_refused(kind: Any, memory: Store) -> None:
    """Also of optimizers that need the values of their parameters for a step."""

    def make(*shape: int) -> tuple[torch.Tensor, Any]:
        weight = torch.nn.Parameter(torch.ones(shape))
        return weight, kind([weight], lr=0.1)

    weight, optimizer = make(4, 3)
    weight.square().sum().backward()  # type: ignore[no-untyped-call]
    optimizer.step()
    checkpoint.save(memory, step=1, optimizer=optimizer)
    with pytest.raises(
        ValueError, match=r"has shape \(4, 3\) in <.*>, expected \(3, 4\) for the p"
    ):
        checkpoint.load(memory, optimizer=make(3, 4)[1])
    checkpoint.load(memory, optimizer=make(4, 3)[1])


def test_without_strict_an_optimizer_of_another_class_needs_its_values(memory: Store) -> None:
    """It is enough that a step finds what it needs; nothing is written otherwise."""
    weight = torch.nn.Parameter(torch.ones(3))
    weight.grad = torch.ones(3)
    saved = torch.optim.NAdam([weight], lr=0.1)
    saved.step()
    checkpoint.save(memory, step=1, model={"w": weight}, optimizer=saved)
    adam = torch.optim.Adam([weight], lr=0.1)
    with pytest.raises(ValueError, match=r"only this Adam has the options \['amsgrad'"):
        checkpoint.load(memory, optimizer=adam)
    checkpoint.load(memory, optimizer=adam, strict=False)
    assert torch.equal(adam.state[weight]["exp_avg"], saved.state[weight]["exp_avg"])
    adam.step()
    weight.data.fill_(5)
    for name, lost in {
        "SGD": "the option 'momentum'", "Rprop": "the option 'etas'",
        "Adamax": "optimizer/state/0/exp_inf", "ASGD": "the option 'lambd'",
    }.items():  # fmt: skip
        target = getattr(torch.optim, name)([weight], lr=0.1)
        with pytest.raises(ValueError, match=f"is of another class .*: this {name} needs {lost}"):
            checkpoint.load(memory, model={"w": weight}, optimizer=target, strict=False)
        assert (weight.tolist(), target.state) == ([5, 5, 5], {})


def test_an_optimizer_without_the_options_that_steps_need(memory: Store) -> None:
    weight = torch.nn.Parameter(torch.ones(3))
    sparse: Any = torch.optim.SparseAdam([weight], lr=0.1)
    weight.grad = torch.ones(3).to_sparse()
    sparse.step()
    checkpoint.save(memory, step=1, optimizer=sparse)
    with pytest.raises(ValueError, match="needs the option 'weight_decay', only"):
        checkpoint.load(memory, optimizer=torch.optim.Adam([weight]))


def test_an_optimizer_that_is_not_of_torch_was_saved(memory: Store) -> None:
    """An option that has the name of one of torch may have another type."""
    transformers = pytest.importorskip("transformers")
    linear = torch.nn.Linear(3, 2)
    saved = transformers.Adafactor(linear.parameters())
    linear(torch.ones(3)).sum().backward()
    saved.step()
    checkpoint.save(memory, step=1, optimizer=saved)
    for kind in ("AdamW", "RMSprop", "NAdam"):
        target = getattr(torch.optim, kind)(linear.parameters())
        with pytest.raises(ValueError, match=f"is of another class than in <.*: this {kind} needs"):
            checkpoint.load(memory, optimizer=target)
    checkpoint.load(memory, optimizer=transformers.Adafactor(linear.parameters()))


def test_what_users_do_with_optimizers_is_left_alone(memory: Store) -> None:
    """Values of their own, hooks for all optimizers, and parameters that have no shape yet."""
    weight = torch.nn.Parameter(torch.ones(3))
    sgd = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    sgd.state[weight]["mean"] = torch.ones(3)
    checkpoint.save(memory, step=1, optimizer=sgd)
    target = torch.optim.SGD([weight], lr=0.1, momentum=0.9)
    checkpoint.load(memory, optimizer=target)
    assert target.state[weight]["mean"].tolist() == [1.0] * 3

    linear = torch.nn.Linear(3, 2)
    adam = torch.optim.Adam(linear.parameters())
    linear(torch.ones(3)).sum().backward()
    adam.step()
    checkpoint.save(memory, step=2, optimizer=adam)
    calls = []
    hook = register_optimizer_step_post_hook(lambda *_: calls.append(1))
    try:
        lazy = torch.nn.LazyLinear(2)
        checkpoint.load(memory, optimizer=torch.optim.Adam(lazy.parameters()))
        checkpoint.load(memory, optimizer=torch.optim.Adam(linear.parameters()))
    finally:
        hook.remove()
    assert calls == []

    converted = torch.optim.SGD(linear.parameters(), lr=0.1)
    converted.register_load_state_dict_pre_hook(lambda *_: converted.state_dict())
    checkpoint.load(memory, optimizer=converted)


def test_without_strict_an_object_gets_the_saved_state(memory: Store) -> None:
    sgd = torch.optim.SGD([torch.nn.Parameter(torch.ones(3))], lr=0.1)
    saved = torch.optim.lr_scheduler.MultiStepLR(sgd, [10, 20])
    checkpoint.save(memory, step=1, loader=saved)
    other = torch.optim.lr_scheduler.MultiStepLR(sgd, [30])
    checkpoint.load(memory, loader=other, strict=False)
    assert other.milestones == saved.milestones


class Grouped(torch.optim.SGD):
    """An optimizer that can load parameter groups that differ from its own."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.loaded = state_dict


def test_an_optimizer_that_loads_by_itself_is_asked(store: Store) -> None:
    model = torch.nn.Linear(2, 3)
    checkpoint.save(store, step=0, optimizer=torch.optim.SGD(model.parameters(), lr=0.5))
    target = Grouped([model.weight], lr=0.1)
    checkpoint.load(store, optimizer=target)
    assert target.loaded["param_groups"][0]["params"] == [0, 1]


def test_targets_that_share_memory_are_refused_before_anything_is_written(store: Store) -> None:
    checkpoint.save(store, step=0, model={"a": torch.ones(3), "w": torch.arange(3.0).expand(4, 3)})
    first = torch.zeros(3)
    words = r"model/w has elements that share memory, as expand\(\) makes them"
    with pytest.raises(ValueError, match=words):
        checkpoint.load(store, model={"a": first, "w": torch.zeros(3).expand(4, 3)})
    assert first.tolist() == [0, 0, 0]
    target = {"a": first, "w": torch.zeros(1, 4, 3).squeeze(0)}
    checkpoint.load(store, model=target)
    assert target["w"].tolist() == [[0, 1, 2]] * 4


@pytest.mark.parametrize("shape", [(), (3,), (200, 300)])
def test_autograd_is_told_that_targets_changed(shape: tuple[int, ...], store: Store) -> None:
    checkpoint.save(store, step=0, model={"w": torch.full(shape, 2.0)})
    leaf = torch.ones(shape, requires_grad=True)
    weight = leaf * 1
    loss = (weight * weight).sum()
    checkpoint.load(store, model={"w": weight.detach()})
    assert bool((weight == 2).all())
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        loss.backward()  # type: ignore[no-untyped-call]
    with torch.inference_mode():
        plain = torch.zeros(shape)
    checkpoint.load(store, model={"w": plain})
    assert bool((plain == 2).all())


def test_numbers_that_cannot_be_kept_are_named_before_anything_is_written(store: Store) -> None:
    most = 2**14_000 - 1
    checkpoint.save(store, step=0, extra={"x": [most, -most]})
    with checkpoint.open(store) as found:
        assert found.tree("extra") == {"x": [most, -most]}
    there = list(store.keys())
    words = r"extra/x/1 is an integer of 14,001 bits, expected up to 14,000"
    with pytest.raises(ValueError, match=words):
        checkpoint.save(store, step=1, model={"w": torch.ones(3)}, extra={"x": [1, most + 1]})
    assert list(store.keys()) == there


@pytest.mark.parametrize("odd", [True, 1.0, b"1"])
def test_generations_are_integers_or_tags(odd: Any, store: Store) -> None:
    checkpoint.save(store, step=0, extra={})
    kind = type(odd).__name__
    words = rf"generation is of type {kind}, expected int(, the str of a tag,)? or None"
    calls: list[Callable[[], object]] = [
        lambda: checkpoint.load(store, generation=odd),
        lambda: checkpoint.open(store, generation=odd),
        lambda: checkpoint.verify(store, generation=odd),
        lambda: checkpoint.diff(store, odd, None),
    ]
    for call in calls:
        with pytest.raises(TypeError, match=words):
            call()


def test_tied_targets_take_one_value(store: Store) -> None:
    """Two different saved tensors for one target would leave a mixture of both."""
    one, two = torch.zeros(1000), torch.arange(1000.0)
    checkpoint.save(store, step=0, model={"a": two, "b": two.clone()}, extra={"c": one})
    checkpoint.save(store, step=1, model={"a": one, "b": two})
    tied = torch.full((1000,), 5.0)
    words = r"model/a and model/b are one tensor here, expected two, since they .* of model/a$"
    for target in ({"a": tied, "b": tied}, {"a": tied.view(1000), "b": tied}):
        with pytest.raises(ValueError, match=words):
            checkpoint.load(store, model=target)
    assert tied.tolist() == [5.0] * 1000
    checkpoint.load(store, model={"a": tied, "b": tied}, strict=False)
    assert torch.equal(tied, one)
    checkpoint.load(store, model={"a": tied, "b": tied}, generation=1)
    assert torch.equal(tied, two)


def test_targets_that_overlap_are_as_when_they_were_saved(store: Store) -> None:
    whole = torch.arange(10.0)
    checkpoint.save(store, step=0, model={"all": whole, "first": whole[:4], "last": whole[6:]})
    other = torch.zeros(10)
    checkpoint.load(store, model={"all": other, "first": other[:4], "last": other[6:]})
    assert torch.equal(other, whole)


@pytest.mark.parametrize(
    ("saved", "target", "expected"),
    [
        ([8, 9], [0, 1, 2], [8, 9, 2]),
        ([7, 8, 9], [0, 1], [7, 8]),
        ([7, 8], {"0": 0, "k": 1}, {"0": 7, "k": 1}),
        ({"0": 7}, [0, 1], [7, 1]),
        ({"x": {"0": 7, "n": "text"}}, {"x": [0, 1]}, {"x": [7, 1]}),
        ({"x": "text"}, {"x": 1}, {"x": 1}),
        ({"x": [7, 8]}, {"x": 1}, {"x": 1}),
        ({"x": ["text", 8]}, {"x": [0]}, {"x": [0]}),
    ],
    ids=repr,
)
def test_without_strict_what_only_a_target_has_stays(
    saved: Any, target: Any, expected: Any, store: Store
) -> None:
    """Integers stand for tensors; a tensor is never replaced by a value of another kind."""

    def tensors(value: Any) -> Any:
        return tree_map(lambda x: torch.full((2,), x) if type(x) is int else x, value)

    into = {"m": tensors(target)}
    first = into["m"]
    checkpoint.save(store, step=0, model={"m": tensors(saved)})
    checkpoint.load(store, model=into, strict=False)
    found = tree_map(lambda x: int(x[0]) if isinstance(x, torch.Tensor) else x, into["m"])
    assert found == expected
    assert type(into["m"]) is type(first)


def test_without_strict_an_optimizer_keeps_other_values(memory: Store) -> None:
    def trained(*params: torch.Tensor) -> torch.optim.Optimizer:
        adam = torch.optim.Adam(params)
        for param in params:
            param.grad = None
            param.sum().backward()  # type: ignore[no-untyped-call]
        adam.step()
        return adam

    a, b = (torch.nn.Parameter(torch.ones(2)) for _ in range(2))
    saved, target = trained(a, b), trained(a, b)
    del saved.state[b]
    saved.state[a]["exp_avg"].fill_(7)
    checkpoint.save(memory, step=0, optimizer=saved)
    checkpoint.load(memory, optimizer=target, strict=False)
    assert target.state[a]["exp_avg"].tolist() == [7, 7]
    assert target.state[b]["exp_avg"].tolist() == pytest.approx([0.1, 0.1])
