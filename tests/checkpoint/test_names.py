"""Tests of loads of which no name, or only some names, are those of the checkpoint."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from models.table_model import ModelCore, ModelTable
from windeck import checkpoint
from windeck.checkpoint.stores import Store

#: What wrappers put into names: of `torch.compile`, of DDP, of Lightning modules, of FSDP, ...
PIECES = ["_orig_mod.", "module.", "model.", "module._orig_mod.", "ema_model.module.", "a/"]


def state(prefix: str = "", infix: str = "") -> dict[str, Any]:
    return {
        f"{prefix}{layer}.{infix}{name}": torch.full((3,), float(number))
        for number, (layer, name) in enumerate(
            (layer, name) for layer in ("encoder", "decoder.0") for name in ("weight", "bias")
        )
    }


class Wrapped:
    """An object with state, which is neither a module nor an optimizer."""

    def __init__(self, held: dict[str, Any]) -> None:
        self.held = held

    def state_dict(self) -> dict[str, Any]:
        return self.held

    def load_state_dict(self, found: dict[str, Any]) -> None:
        self.held = found


class Plain(torch.nn.Module):
    """A module with parameters of given names."""

    def __init__(self, held: dict[str, Any]) -> None:
        super().__init__()
        for name, value in held.items():
            *way, last = name.split(".")
            at: Any = self
            for part in way:
                if part not in at._modules:
                    at.add_module(part, torch.nn.Module())
                at = at._modules[part]
            at.register_parameter(last, torch.nn.Parameter(torch.zeros_like(value)))


@pytest.mark.parametrize("make", [dict, Wrapped, Plain], ids=["dict", "object", "module"])
@pytest.mark.parametrize("place", ["prefix", "infix"])
@pytest.mark.parametrize("piece", PIECES)
@pytest.mark.parametrize("side", ["target", "checkpoint"])
def test_names_that_differ_by_a_piece(
    side: str, piece: str, place: str, make: Any, memory: Store
) -> None:
    root = "loader" if piece == "a/" else "model"
    if make is Plain and "/" in piece:
        pytest.skip("a module has no such names")
    plain, wrapped = state(), state(**{place: piece})
    target, saved = (wrapped, plain) if side == "target" else (plain, wrapped)
    target = {name: torch.zeros_like(value) for name, value in target.items()}
    options: dict[str, Any] = {root: {**saved}}
    checkpoint.save(memory, step=1, **options)
    given = make(target)
    for strict in (False, True):
        with pytest.raises(KeyError) as caught:
            checkpoint.load(memory, **{root: given}, strict=strict)
        text = str(caught.value)
        assert f"only the {side} has {piece!r}" in text
        assert "strict=False" not in text
    # The hint works as it is.
    if make is not Wrapped and place == "prefix":
        lines = text.strip('"').split(f"{root}={{")[1:]
        call = eval("{" + lines[0], {root: Plain(target) if make is dict else given})
        loaded = checkpoint.load(memory, **{root: call})
        assert all(torch.equal(call[name], value) for name, value in saved.items())
        assert (loaded.missing, loaded.unexpected) == ([], [])


@pytest.mark.parametrize("root", ["model", "loader"])
@pytest.mark.parametrize(
    ("saved", "target"),
    [
        ({"a": torch.ones(2)}, {"b": torch.zeros(2)}),
        ({"a": torch.ones(2), "step": 3}, {"b": torch.zeros(2), "step": 0}),  # a number is too few
        ({"a": torch.ones(2)}, {"b": 0}),
        ({"a": 1}, {"b": torch.zeros(2)}),
        ({"a": [torch.ones(2)]}, {"b": [torch.zeros(2)]}),
        ({}, {"b": torch.zeros(2)}),
        ({"a": torch.ones(2)}, {}),
        ({"x": {"a": torch.ones(2)}}, {"y": {"a": torch.zeros(2)}}),
        ({"x": {"a": torch.ones(2)}}, {"x": {"_orig_mod.a": torch.zeros(2)}}),
    ],
)
def test_nothing_in_common(
    saved: dict[str, Any], target: dict[str, Any], root: str, memory: Store
) -> None:
    kept: dict[str, Any] = {root: saved}
    into: dict[str, Any] = {root: target}
    checkpoint.save(memory, step=1, **kept)
    for strict in (True, False):
        with pytest.raises(KeyError, match=f"the names in {root} are not those of") as caught:
            checkpoint.load(memory, **into, strict=strict)
        assert "strict=False" not in str(caught.value)
    assert all(not value.any() for value in target.values() if isinstance(value, torch.Tensor))


def test_tables_without_a_common_name(memory: Store) -> None:
    checkpoint.save(memory, step=1, embeddings={"user": ModelTable(ModelCore(3, 1))})
    for name in ("item", "module.user"):
        for strict in (True, False):
            with pytest.raises(
                KeyError, match=r"the tables are not|embeddings=.* was not saved"
            ) as caught:
                checkpoint.load(
                    memory, embeddings={name: ModelTable(ModelCore(3, 1))}, strict=strict
                )
            assert ("'module.' in its names" in str(caught.value)) == (name != "item")
    both = {name: ModelTable(ModelCore(3, 1)) for name in ("user", "item")}
    found = checkpoint.load(memory, embeddings=both, strict=False)
    assert (found.missing, found.unexpected) == (["embeddings/item"], [])


def test_what_was_not_loaded_is_listed(memory: Store) -> None:
    tables = {name: ModelTable(ModelCore(3, 1)) for name in ("both", "saved")}
    checkpoint.save(
        memory, step=1, model={"w": torch.ones(2), "only": torch.ones(1), "n": 1},
        loader={"at": 1, "more": 2}, embeddings=tables, extra={"x": 1},
    )  # fmt: skip
    model = {"w": torch.zeros(2), "new": torch.zeros(1)}
    loader = {"at": 0, "left": 5}
    tables = {name: ModelTable(ModelCore(3, 1)) for name in ("both", "new")}
    found = checkpoint.load(memory, model=model, loader=loader, embeddings=tables, strict=False)
    assert found.missing == ["model/new", "loader/left", "embeddings/new"]
    assert found.unexpected == ["model/only", "embeddings/saved"]
    assert (found.step, found.extra, loader["more"]) == (1, {"x": 1}, 2)
    again = {"w": torch.zeros(2), "only": torch.zeros(1), "n": 0}
    found = checkpoint.load(memory, model=again)
    assert (found.missing, found.unexpected) == ([], [])


@pytest.mark.filterwarnings("ignore:`torch.jit:DeprecationWarning")
def test_a_compiled_module(memory: Store) -> None:
    model = torch.nn.Linear(3, 2)
    checkpoint.save(memory, step=1, model=model)
    compiled: Any = torch.compile(torch.nn.Linear(3, 2))
    with pytest.raises(KeyError, match=r"'_orig_mod.'.*load into the object inside"):
        checkpoint.load(memory, model=compiled, strict=False)
    checkpoint.load(memory, model=compiled._orig_mod)
    assert torch.equal(compiled.weight, model.weight)
