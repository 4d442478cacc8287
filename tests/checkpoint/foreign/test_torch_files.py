"""Tests of files of torch.save: their contents as checkpoints, and files that are refused."""

from __future__ import annotations

import collections
import os
import pickle
import zipfile
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

from support.tensor_bits import DTYPES, filled, raw, usable
from windeck import checkpoint
from windeck.checkpoint.foreign import open_file
from windeck.checkpoint.stores import Store


def imported(memory: Store, content: Any, file: Path, **options: Any) -> checkpoint.Checkpoint:
    """Save with torch.save, import, and open; the view of the file has the same contents."""
    torch.save(content, file, **options)
    checkpoint.import_(file, memory)
    found = checkpoint.open(memory)
    with checkpoint.open(open_file(file)) as view:
        assert view.trees == found.trees
        assert view.names() == found.names()
        for name in view.names():
            assert raw(view.tensor(name)) == raw(found.tensor(name)), name
    return found


@pytest.mark.parametrize("new", [True, False])
def test_every_dtype_and_strides(memory: Store, tmp_path: Path, new: bool) -> None:
    known = [dtype for dtype in DTYPES if usable(dtype) and (new or dtype.itemsize > 1)]
    if not new:  # the format before torch 1.6
        known = [torch.float32, torch.bfloat16, torch.int64, torch.float64]
    model = {str(dtype): filled((5, 3), dtype) for dtype in known}
    whole = torch.arange(60.0).reshape(5, 4, 3)
    model |= {"turned": whole.transpose(0, 2), "part": whole[1:3, 1], "scalar": torch.tensor(2.5)}
    model |= {"none": torch.empty(0, 4), "turns": torch.randn(3, dtype=torch.complex64).conj()}
    found = imported(memory, model, tmp_path / "m.pt", _use_new_zipfile_serialization=new)
    assert found.names() == [f"model/{name}" for name in model]
    for name, tensor in model.items():
        info = found.info(f"model/{name}")
        assert (info.dtype, info.shape) == (tensor.dtype, tuple(tensor.shape))
        assert raw(found.tensor(f"model/{name}")) == raw(tensor), name


def test_a_checkpoint_of_a_training_script(memory: Store, tmp_path: Path) -> None:
    model = torch.nn.Linear(4, 3)
    adam = torch.optim.Adam(model.parameters(), lr=0.25)
    for _ in range(3):
        model(torch.randn(4)).sum().backward()
        adam.step()
    content = {
        "epoch": 3, "model_state_dict": model.state_dict(), "loss": float("nan"), "global_step": 70,
        "optimizer_state_dict": adam.state_dict(), "args": {"shape": torch.Size([2, 3]),
        "dtype": torch.bfloat16, "device": torch.device("cpu"), "names": ["a", ("b", None)]},
    }  # fmt: skip
    file = tmp_path / "last.pth"
    imported(memory, content, file)
    other = torch.nn.Linear(4, 3)
    fresh = torch.optim.Adam(other.parameters())
    loaded = checkpoint.load(memory, model=other, optimizer=fresh)
    assert loaded.step == 70
    assert torch.equal(other.weight, model.weight)
    for key, state in adam.state_dict()["state"].items():
        assert all(torch.equal(fresh.state_dict()["state"][key][n], v) for n, v in state.items())
    assert fresh.param_groups[0]["lr"] == 0.25
    loss = loaded.extra.pop("loss")
    assert loss != loss
    told = {
        "shape": (2, 3),
        "dtype": "torch.bfloat16",
        "device": "cpu",
        "names": ["a", ("b", None)],
    }
    assert loaded.extra == {"epoch": 3, "global_step": 70, "args": told}


def test_a_checkpoint_of_lightning(memory: Store, tmp_path: Path) -> None:
    state = collections.OrderedDict(w=torch.ones(2))
    optimizers = [{"state": {0: {"step": 4}}, "param_groups": [{"lr": 0.5, "params": [0]}]}]
    content = {"epoch": 1, "global_step": 5, "state_dict": state, "optimizer_states": optimizers}
    found = imported(memory, content, tmp_path / "l.ckpt")
    assert found.step == 5
    assert list(found.tree("model")) == ["w"]
    assert found.tree("optimizer") == optimizers[0]
    assert found.tree("extra") == {"epoch": 1, "global_step": 5}


def test_roots_that_are_not_split(memory: Store, tmp_path: Path) -> None:
    model = {"net": torch.ones(2), "layer": {"w": torch.zeros(1)}}  # `net` is no dict
    found = imported(memory, model, tmp_path / "m.pt")
    assert list(found.trees) == ["model"]
    assert found.names() == ["model/net", "model/layer/w"]
    assert imported(memory, torch.ones(3), tmp_path / "one.pt").names() == ["model"]
    several = [{"a": torch.ones(1)}, (torch.ones(2), 5)]
    assert imported(memory, several, tmp_path / "list.pt").names() == ["model/0/a", "model/1/0"]
    checkpoint.import_(tmp_path / "m.pt", memory, root="optimizer", step=8)
    with checkpoint.open(memory) as found:
        assert (found.step, found.names()) == (8, ["optimizer/net", "optimizer/layer/w"])


def test_the_same_memory_is_stored_once(memory: Store, tmp_path: Path) -> None:
    table, whole = torch.nn.Parameter(torch.randn(50, 4)), torch.arange(10)
    model = {"in.weight": table, "out.weight": table, "a": whole[:4], "b": whole[2:]}
    found = imported(memory, model, tmp_path / "tied.pt")
    assert list(found.entries) == ["model/in.weight", "model/a", "model/b"]
    targets = {name: torch.zeros_like(tensor) for name, tensor in model.items()}
    checkpoint.load(memory, model=targets)
    assert all(torch.equal(targets[name], model[name]) for name in model)


class Evil:
    """Runs code when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


@pytest.mark.parametrize("new", [True, False])
def test_code_in_files_is_not_run(memory: Store, tmp_path: Path, new: bool) -> None:
    file, mark = tmp_path / "evil.pt", tmp_path / "mark"
    content = {"w": torch.ones(2), "evil": Evil(mark)}
    torch.save(content, file, _use_new_zipfile_serialization=new)
    words = r"evil.pt holds posix\.system, which torch makes by running code, expected tensors"
    with pytest.raises(ValueError, match=words):
        checkpoint.import_(file, memory)
    (tmp_path / "plain.pt").write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(ValueError, match=r"cannot be read as a file of torch.save: "):
        checkpoint.import_(tmp_path / "plain.pt", memory)
    assert not mark.exists()
    assert checkpoint.log(memory) == []


@pytest.mark.parametrize("new", [True, False])
def test_a_whole_module_is_named(memory: Store, tmp_path: Path, new: bool) -> None:
    module = torch.nn.Linear(2, 2)
    torch.save(module, tmp_path / "m.pt", _use_new_zipfile_serialization=new)
    words = r"m.pt holds .*Linear, .* expected tensors and plain values, such as of torch.save\(mod"
    with pytest.raises(ValueError, match=words):
        checkpoint.import_(tmp_path / "m.pt", memory)


@pytest.mark.parametrize("dtype", [torch.uint16, torch.float8_e4m3fn])
def test_dtypes_that_torch_does_not_read(dtype: torch.dtype, memory: Store, tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    torch.save({"w": torch.ones(2).to(dtype)}, file, _use_new_zipfile_serialization=False)
    with pytest.raises(ValueError, match=r"m.pt has a dtype, such as float8, that torch does not"):
        checkpoint.import_(file, memory)


def test_wrong_files(memory: Store, tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    for content in (b"", b"hello", b"PK\x03\x04 is no archive", bytes(1000)):
        file.write_bytes(content)
        with pytest.raises(ValueError, match=r"m.pt cannot be read as a file of torch.save: \w.*"):
            checkpoint.import_(file, memory)
    with zipfile.ZipFile(file, "w") as archive:
        archive.writestr("notes.txt", "no checkpoint")
    with pytest.raises(ValueError, match=r"m.pt cannot be read as a file of torch.save: \w.*"):
        checkpoint.import_(file, memory)
    with pytest.raises(FileNotFoundError, match=r"there is no file or folder .*none.pt, expected"):
        checkpoint.import_(tmp_path / "none.pt", memory)
    torch.save({"w": torch.ones(1000)}, file)
    whole = file.read_bytes()
    for length in range(0, len(whole), 97):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"m.pt cannot be read as a file of torch.save: \w.*"):
            checkpoint.import_(file, memory)
    assert checkpoint.log(memory) == []


def test_an_archive_that_was_compressed(memory: Store, tmp_path: Path) -> None:
    model = {"w": torch.arange(1000.0)}
    torch.save(model, tmp_path / "stored.pt")
    with (
        zipfile.ZipFile(tmp_path / "stored.pt") as stored,
        zipfile.ZipFile(tmp_path / "m.pt", "w", zipfile.ZIP_DEFLATED) as packed,
    ):
        for member in stored.namelist():
            packed.writestr(member, stored.read(member))
    checkpoint.import_(tmp_path / "m.pt", memory)
    with checkpoint.open(memory) as found:
        assert torch.equal(found.tensor("model/w"), model["w"])


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (torch.ones(2).to_sparse(), "model/x is a sparse tensor, expected a dense one"),
        ({1, 2}, "model/x is of type set, expected a tensor, dict"),
        ({(1, 2): 3}, "model/x has a key of type tuple, expected str or int"),
        (b"bytes", "model/x is of type bytes, expected a tensor"),
    ],
)
def test_values_that_cannot_be_saved(value: Any, words: str, memory: Store, tmp_path: Path) -> None:
    torch.save({"x": value, "w": torch.ones(1)}, tmp_path / "m.pt")
    with pytest.raises(TypeError, match=words):
        checkpoint.import_(tmp_path / "m.pt", memory)
    assert checkpoint.log(memory) == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_nested_tensors_cannot_be_saved(memory: Store, tmp_path: Path) -> None:
    torch.save({"x": torch.nested.nested_tensor([torch.ones(2)])}, tmp_path / "m.pt")
    with pytest.raises(TypeError, match="model/x is a nested tensor, expected a dense one"):
        checkpoint.import_(tmp_path / "m.pt", memory)


def test_values_that_contain_themselves(memory: Store, tmp_path: Path) -> None:
    ring: list[Any] = []
    ring.append(ring)
    torch.save({"x": ring}, tmp_path / "m.pt")
    with pytest.raises(ValueError, match="is nested deeper than 100 levels"):
        checkpoint.import_(tmp_path / "m.pt", memory)


@pytest.mark.parametrize("new", [True, False])
@pytest.mark.parametrize("kind", [list, tuple, dict])
def test_lists_in_many_places(kind: Any, new: bool, memory: Store, tmp_path: Path) -> None:
    def nested(levels: int, *, width: int = 2) -> Any:
        value: Any = [1]
        for _ in range(levels):
            items = [value] * width
            value = dict(enumerate(items)) if kind is dict else kind(items)
        return value

    file = tmp_path / "m.pt"
    for content in ({"x": nested(40)}, nested(90), {"model": {"w": [nested(3, width=500)]}}):
        torch.save(content, file, _use_new_zipfile_serialization=new)
        with pytest.raises(ValueError, match=r"the file lists [0-9,]+ values, and stores [0-9,]+:"):
            checkpoint.import_(file, memory)
        with pytest.raises(ValueError, match="the file lists"):
            open_file(file)
    ring: list[Any] = []
    ring += [ring, ring]
    torch.save({"x": ring}, file, _use_new_zipfile_serialization=new)
    with pytest.raises(ValueError, match="the file lists"):
        checkpoint.import_(file, memory)
    assert checkpoint.log(memory) == []
    value = nested(10)  # of as few, all are listed
    torch.save({"x": value}, file, _use_new_zipfile_serialization=new)
    checkpoint.import_(file, memory)
    with checkpoint.open(memory) as found:
        assert found.tree("model") == {"x": value}


def test_expanded_tensors(memory: Store, tmp_path: Path) -> None:
    file, huge = tmp_path / "m.pt", torch.zeros(1).expand(1 << 40)
    for content in ({"w": torch.ones(3), "x": huge}, [torch.zeros(1).expand(1 << 28)] * 3 + [huge]):
        torch.save(content, file)
        with pytest.raises(ValueError, match=r"m.pt has tensors of 4,39.* the largest model/.* of"):
            checkpoint.import_(file, memory)
        with pytest.raises(ValueError, match=r"m.pt has tensors of"):
            open_file(file)
    part = tmp_path / "a-1.bin"
    torch.save({"x": huge}, part)
    (tmp_path / "m.bin.index.json").write_text('{"weight_map": {"x": "a-1.bin"}}')
    with pytest.raises(
        ValueError, match=r"m.bin.index.json has tensors of 4,398,046,511,104 bytes"
    ):
        checkpoint.import_(tmp_path / "m.bin.index.json", memory)
    assert checkpoint.log(memory) == []
    # Buffers of models, and the same memory in many places.
    mask = torch.ones(1, dtype=torch.bool).expand(2048, 2048)
    found = imported(memory, {"mask": mask, "ids": torch.arange(512).expand(1, -1)}, file)
    assert torch.equal(found.tensor("model/mask"), mask)
    torch.save({str(i): torch.zeros(1).expand(1 << 26) for i in range(4)}, file)
    with checkpoint.open(open_file(file)) as view:
        assert view.info("model/3").shape == (1 << 26,)


def test_parts_with_an_index(memory: Store, tmp_path: Path) -> None:
    parts = {"a-1.bin": {"x": torch.ones(2), "y": torch.zeros(3)}, "a-2.bin": {"z": torch.ones(1)}}
    for name, state in parts.items():
        torch.save(state, tmp_path / name)
    index = tmp_path / "pytorch_model.bin.index.json"
    index.write_text('{"weight_map": {"x": "a-1.bin", "y": "a-1.bin", "z": "a-2.bin"}}')
    checkpoint.import_(tmp_path, memory)
    with checkpoint.open(memory) as found:
        assert found.names() == ["model/x", "model/y", "model/z"]
    index.write_text('{"weight_map": {"x": "a-1.bin", "z": "a-2.bin"}}')
    with pytest.raises(ValueError, match=r"a-1.bin has other names than .* says, expected the sam"):
        checkpoint.import_(tmp_path, memory)
    index.write_text('{"weight_map": {"x": "../a-1.bin"}}')
    with pytest.raises(ValueError, match=r"refers to the file '../a-1.bin', expected one beside"):
        checkpoint.import_(tmp_path, memory)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("version", ["2.1.0", "2.5.1+cu121", "2.6.0", "2.9.1", "1.13.1", "unknown"])
def test_a_torch_whose_reader_may_run_code(
    version: str, memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Wherever a file of others would be opened by torch."""
    torch.save({"w": torch.ones(2)}, tmp_path / "a.pt")
    index = tmp_path / "a.bin.index.json"
    index.write_text('{"weight_map": {"w": "a.pt"}}')
    dcp_save({"w": torch.ones(2), "n": 3}, checkpoint_id=tmp_path / "dcp")
    monkeypatch.setattr(torch, "__version__", version)
    for path in (tmp_path / "a.pt", index, tmp_path / "dcp"):
        with pytest.raises(RuntimeError, match=r"expected torch 2\.10 or later"):
            checkpoint.import_(path, memory)
        with pytest.raises(RuntimeError, match=r"expected torch 2\.10 or later"):
            open_file(path)
    assert checkpoint.log(memory) == []
    for later in ("2.10.0", "2.13.0+cpu", "3.0"):
        monkeypatch.setattr(torch, "__version__", later)
        checkpoint.import_(tmp_path / "a.pt", memory)
