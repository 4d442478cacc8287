"""Tests of imports of safetensors files: those of other writers, damaged and forged ones."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from support.safetensors_files import same, save_file
from support.tensor_bits import filled
from windeck import checkpoint
from windeck.checkpoint.safetensors import export, import_
from windeck.checkpoint.stores import Store


def test_files_of_others_become_the_model(memory: Store, tmp_path: Path) -> None:
    model = {"a.weight": filled((9, 9), torch.float16), "b": torch.arange(5)}
    save_file(model, tmp_path / "m.safetensors", metadata={"step": "77", "who": "them"})
    import_(tmp_path / "m.safetensors", memory)
    targets = {name: torch.zeros_like(value) for name, value in model.items()}
    assert checkpoint.load(memory, model=targets).step == 77
    assert same(targets, model)
    import_(tmp_path, memory, root="optimizer", step=3)
    with checkpoint.open(memory) as found:
        assert found.names() == ["optimizer/b", "optimizer/a.weight"]  # as the data lie


def test_metadata_that_equal_the_name_of_a_tensor(memory: Store, tmp_path: Path) -> None:
    model = {"weight": torch.ones(3), "a.weight": torch.zeros(2)}
    text = {"trigger_param": "weight", "a.best": "a.weight", "weight": "a.weight", "who": "us"}
    save_file(model, tmp_path / "m.safetensors", metadata={**text, "b.weight": "a.weight"})
    import_(tmp_path / "m.safetensors", memory)
    with checkpoint.open(memory) as found:
        assert sorted(found.names()) == ["model/a.weight", "model/b.weight", "model/weight"]
        assert torch.equal(found.tensor("model/b.weight"), model["a.weight"])
        assert torch.equal(found.tensor("model/weight"), model["weight"])


def test_other_names_of_tied_weights_that_were_exported(memory: Store, tmp_path: Path) -> None:
    shared = torch.ones(3)
    checkpoint.save(memory, step=1, model={"first": shared, "second": shared})
    export(memory, tmp_path / "m.safetensors", root="model")
    import_(tmp_path / "m.safetensors", memory, root="model")
    with checkpoint.open(memory) as found:
        assert found.names() == ["model/first", "model/second"]


def test_arguments_that_cannot_be(memory: Store, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        import_(tmp_path / "none.safetensors", memory)
    with pytest.raises(FileNotFoundError, match=r"has no file that ends in .safetensors, ex"):
        import_(tmp_path, memory)
    for name in ("a", "b"):
        save_file({"x": torch.ones(1)}, tmp_path / f"{name}.safetensors")
    with pytest.raises(ValueError, match=r"has a.safetensors, b.safetensors, expected o"):
        import_(tmp_path, memory)
    with pytest.raises(ValueError, match="`step` must be at least 0, got -1"):
        import_(tmp_path / "a.safetensors", memory, step=-1)


def test_a_file_that_ends_while_it_is_read(memory: Store, tmp_path: Path) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.arange(100.0)})
    (file,) = export(memory, tmp_path / "m.safetensors")
    before = {key: value for key, value in memory.scan() if not key.endswith(b"NEXT")}

    class Cut:
        def bulk_load(self, items: Any) -> int:
            os.truncate(file, file.stat().st_size - 1)
            return memory.bulk_load(items)

        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

    words = f"{file} ended in w, expected 16 bytes at [0-9]+: it was changed during the import"
    with pytest.raises(ValueError, match=words):
        import_(file, Cut(), chunk_bytes=64)
    assert checkpoint.log(memory)[0].generation == 1
    assert before.items() <= dict(memory.scan()).items()


def test_damaged_files_change_nothing(memory: Store, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    checkpoint.save(memory, step=1, model={"w": torch.arange(3), "b": torch.ones(2)})
    export(memory, file)
    whole, before = file.read_bytes(), checkpoint.log(memory)
    head = 8 + int.from_bytes(whole[:8], "little")
    outcomes = []
    for length in range(len(whole)):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"m.safetensors is not a file safetensors can"):
            import_(file, memory)
    for place in range(head):  # a flipped bit in the header: refused, or another name or text
        for bit in (0, 3, 6):
            wrong = bytearray(whole)
            wrong[place] ^= 1 << bit
            file.write_bytes(wrong)
            try:
                import_(file, memory, namespace=f"n{place}-{bit}")
                outcomes.append(True)
            except ValueError:
                outcomes.append(False)
    assert outcomes.count(False) > len(outcomes) / 2
    assert checkpoint.log(memory) == before


@pytest.mark.parametrize(
    ("described", "words"),
    [
        ("{", "metadata under windeck cannot be read: Expecting"),
        ("[" * 5000, "the metadata under windeck cannot be read: maximum recursion"),
        ("3", "metadata under windeck cannot be read: 'int' object is not subscriptable"),
        ('{"format":2}', "metadata under windeck cannot be read: it has format 2, expected 1"),
        ('{"format":1,"step":-4,"trees":{"model":{"tensor":"x"}}}', "read: `step` must be at le"),
        ('{"format":1,"step":1,"trees":{"model":{"tensor":"y"}}}', "model is the tensor y, which"),
        ('{"format":1,"step":1,"trees":{"model":{"what":1}}}', "expected a tree of state, found"),
        ('{"format":1,"step":1,"trees":{"model":null}}', "metadata under windeck leave out x"),
    ],
)  # fmt: skip
def test_metadata_that_lie(described: str, words: str, memory: Store, tmp_path: Path) -> None:
    file = tmp_path / "m.safetensors"
    save_file({"x": torch.ones(1)}, file, metadata={"windeck": described})
    with pytest.raises(ValueError, match=words):
        import_(file, memory)
    assert checkpoint.log(memory) == []
    import_(file, memory, root="model")  # nothing of it is asked for then
    assert [commit.step for commit in checkpoint.log(memory)] == [0]


@pytest.mark.parametrize(
    ("index", "words"),
    [
        ("{", r"index.json cannot be read as JSON"),
        ('{"weight_map": {}}', "index.json has an empty weight_map, expected names and files of"),
        ("[]", "has no weight_map of names and files, expected an index of parts"),
        ('{"weight_map": {"x": 3}}', "has no weight_map of names and files"),
        ('{"weight_map": {"x": "../a.safetensors"}}', "refers to the file '../a.safetensors'"),
        ('{"weight_map": {"x": "a.safetensors", "z": "a.safetensors"}}', "tensors no file has: z"),
        ('{"weight_map": {"z": "a.safetensors"}}', "a.safetensors has a tensor x, .* in None"),
    ],
)  # fmt: skip
def test_indexes_that_lie(index: str, words: str, memory: Store, tmp_path: Path) -> None:
    save_file({"x": torch.ones(1)}, tmp_path / "a.safetensors")
    (tmp_path / "m.safetensors.index.json").write_text(index)
    with pytest.raises(ValueError, match=words):
        import_(tmp_path, memory)
    assert checkpoint.log(memory) == []
