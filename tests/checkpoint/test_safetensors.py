"""Tests of export to safetensors and import, compared with the safetensors library."""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch

from support.internals import plant
from support.programs import printed
from support.safetensors_files import (
    load_file,
    load_model,
    safe_open,
    same,
    save_file,
    save_model,
    texts,
)
from support.store_servers import KINDS
from support.tensor_bits import DTYPES, filled, usable
from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.safetensors import export, import_
from windeck.checkpoint.stores import CorruptStoreError, Store

Fresh = Callable[[str], str]
UNKNOWN = re.compile(r"torch\.(complex128|complex32|bits.*|u?int[1-7])")


def known() -> list[torch.dtype]:
    return [dtype for dtype in DTYPES if usable(dtype) and not UNKNOWN.fullmatch(str(dtype))]


@pytest.mark.parametrize("kind", KINDS)
def test_the_library_reads_what_is_exported(kind: str, fresh: Fresh, tmp_path: Path) -> None:
    url = fresh(kind)
    model = {"w": filled((33, 7), torch.float32), "b": filled((5,), torch.bfloat16)}
    checkpoint.save(url, step=12, model=model, extra={"rng": torch.ones(3)}, chunk_bytes=64)
    assert export(url, tmp_path / "m.safetensors") == [tmp_path / "m.safetensors"]
    assert same(load_file(tmp_path / "m.safetensors"), model)
    found = texts(tmp_path / "m.safetensors")
    assert (found["format"], found["step"]) == ("pt", "12")
    assert sorted(path.name for path in tmp_path.glob("*m.safetensors*")) == ["m.safetensors"]


def test_every_dtype_both_know_goes_out_and_in(memory: Store, tmp_path: Path) -> None:
    kinds = known()
    model = {f"{dtype}-{i}": filled(shape, dtype, i) for dtype in kinds
             for i, shape in enumerate([(4, 3), (0, 2), (70,)])}  # fmt: skip
    model |= {f"{d}-": filled((), d) for d in kinds if "float4" not in str(d)}
    checkpoint.save(memory, step=1, model=model, chunk_bytes=16)
    (file,) = export(memory, tmp_path / "m.safetensors")
    with safe_open(file, framework="numpy") as found:
        assert set(found.keys()) == set(model)
    # This version of the library writes float4 and float8_e8m0 and cannot read them with torch.
    odd = ("torch.float4", "torch.float8_e8m0")
    with safe_open(file, framework="pt") as found:
        read = {name: found.get_tensor(name) for name in model if not name.startswith(odd)}
    assert len(read) > 60
    assert same(read, {name: model[name] for name in read})
    import_(file, memory, chunk_bytes=100)
    targets = {name: torch.empty(v.shape, dtype=v.dtype) for name, v in model.items()}
    checkpoint.load(memory, model=targets)
    assert same(targets, model)


def test_dtypes_it_does_not_know_are_named(memory: Store, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = {"a": torch.ones(2), "b": torch.ones(2, dtype=torch.complex128),
                 "c": torch.empty(1, dtype=torch.complex32)}  # fmt: skip
    checkpoint.save(memory, step=1, model=model)
    words = "^safetensors has no dtype for b of torch.complex128, c of torch.complex32, expected on"
    with pytest.raises(TypeError, match=words):
        export(memory, tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_all_of_a_checkpoint_comes_back(memory: Store, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(3, 2), torch.nn.Linear(2, 3))
    adam = torch.optim.Adam(model.parameters(), betas=(0.5, 0.75))
    model(torch.ones(1, 3)).sum().backward()
    adam.step()
    shared = torch.arange(4)
    extra = {"note": [1, (2.5, None)], 7: shared, "same": shared, "inf": float("inf"), "none": {}}
    checkpoint.save(
        memory, step=9, model=model, optimizer=adam, loader={"position": 3}, extra=extra
    )
    (file,) = export(memory, tmp_path / "all.safetensors", root=None)
    assert "optimizer/state/0/exp_avg" in load_file(file)
    number = import_(file, memory, namespace="other")
    with checkpoint.open(memory) as was, checkpoint.open(memory, namespace="other") as now:
        assert (now.generation, now.step) == (number, 9)
        assert now.names() == was.names()
        assert now.trees == was.trees
        assert all(torch.equal(now.tensor(name), was.tensor(name)) for name in was.names())
        back = now.tree("extra")
    assert back.keys() == extra.keys()
    assert back["note"] == [1, (2.5, None)]


class Tied(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = torch.nn.Linear(4, 4, bias=False)
        self.last = torch.nn.Linear(4, 4, bias=False)
        self.last.weight = self.first.weight


def test_tied_weights_are_written_once(memory: Store, tmp_path: Path) -> None:
    model, other = Tied(), Tied()
    checkpoint.save(memory, step=1, model=model)
    (file,) = export(memory, tmp_path / "m.safetensors")
    assert list(load_file(file)) == ["first.weight"]
    assert texts(file)["last.weight"] == "first.weight"
    load_model(other, file)
    assert torch.equal(other.last.weight, model.first.weight)
    save_model(model, str(tmp_path / "theirs.safetensors"))
    import_(tmp_path / "theirs.safetensors", memory, step=5)
    third = Tied()
    assert checkpoint.load(memory, model=third).step == 5
    assert torch.equal(third.first.weight, model.first.weight)


def test_large_ones_go_into_parts_with_an_index(memory: Store, tmp_path: Path) -> None:
    model = {f"layer{i}": filled((10, 10), torch.float32, i) for i in range(5)}
    model["large"] = filled((50, 10), torch.float32)
    checkpoint.save(memory, step=4, model=model)
    files = export(memory, tmp_path / "m.safetensors", shard_bytes=900)
    assert [file.name for file in files] == [
        "m-00001-of-00004.safetensors", "m-00002-of-00004.safetensors",
        "m-00003-of-00004.safetensors", "m-00004-of-00004.safetensors",
        "m.safetensors.index.json",
    ]  # fmt: skip
    index = json.loads(files[-1].read_text())
    assert index["metadata"]["total_size"] == 1000 * 4
    assert index["metadata"]["step"] == "4"
    read: dict[str, torch.Tensor] = {}
    for file in files[:-1]:
        part = load_file(file)
        assert all(index["weight_map"][name] == file.name for name in part)
        read |= part
    assert same(read, model)
    for path in (files[-1], tmp_path):
        import_(path, memory)
        targets = {name: torch.zeros_like(value) for name, value in model.items()}
        assert checkpoint.load(memory, model=targets).step == 4
        assert same(targets, model)


def test_tensors_in_parts_are_put_together(memory: Store, tmp_path: Path) -> None:
    whole = filled((9, 8), torch.int64)
    plan = checkpoint.begin(memory, step=2, writers=2, chunk_bytes=16)
    for writer in range(2):
        part = whole[:, 4 * writer : 4 * writer + 4].contiguous()
        given = Partition(part, offset=(0, 4 * writer), shape=(9, 8))
        checkpoint.save_shard(memory, plan, writer=writer, model={"w": given})
    checkpoint.merge(memory, plan)
    (file,) = export(memory, tmp_path / "m.safetensors")
    assert same(load_file(file), {"w": whole})


def test_nothing_is_no_error(memory: Store, tmp_path: Path) -> None:
    checkpoint.save(memory, step=1, model={}, extra=torch.ones(2))
    (file,) = export(memory, tmp_path / "m.safetensors")
    assert load_file(file) == {}
    import_(file, memory)
    with checkpoint.open(memory) as found:
        assert (found.names(), found.trees) == ([], {"model": {"dict": []}})
    checkpoint.save(memory, step=1, extra=torch.ones(2))
    (file,) = export(memory, tmp_path / "m.safetensors", root="extra")
    assert list(load_file(file)) == ["extra"]
    import_(file, memory)
    with checkpoint.open(memory) as found:
        assert found.tree("extra").tolist() == [1.0, 1.0]


def test_arguments_that_cannot_be(memory: Store, tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"the path ends in '.bin', expected .safetensors"):
        export(memory, tmp_path / "m.bin")
    words = r"there is no folder .*/none, expected one to write m.safetensors into"
    with pytest.raises(FileNotFoundError, match=words):
        export(memory, tmp_path / "none" / "m.safetensors")
    with pytest.raises(ValueError, match="`shard_bytes` must be at least 1, got 0"):
        export(memory, tmp_path / "m.safetensors", shard_bytes=0)
    with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
        export(memory, tmp_path / "m.safetensors")
    checkpoint.save(memory, step=1, model={"__metadata__": torch.ones(1)})
    with pytest.raises(KeyError, match=r"optimizer was not saved in .*, which has model"):
        export(memory, tmp_path / "m.safetensors", root="optimizer")
    with pytest.raises(ValueError, match="a tensor has the name __metadata__, expected one"):
        export(memory, tmp_path / "m.safetensors")


def header_of(file: Path) -> tuple[int, dict[str, Any]]:
    """Return the bytes before the data of a file, and its header."""
    content = file.read_bytes()
    size = int.from_bytes(content[:8], "little")
    found: dict[str, Any] = json.loads(content[8 : 8 + size])
    return 8 + size, found


def test_headers_are_those_of_the_library(memory: Store, tmp_path: Path) -> None:
    """Data begin at a multiple of 8, with no more between than that takes."""
    for length in range(1, 17):
        model = {"n": torch.arange(2), "w" * length: torch.ones(3)}
        checkpoint.save(memory, step=1, model=model)
        (file,) = export(memory, tmp_path / "ours.safetensors")
        save_file(model, tmp_path / "theirs.safetensors", metadata=texts(file))
        ours, theirs = header_of(file), header_of(tmp_path / "theirs.safetensors")
        assert ours == theirs
        assert ours[0] % 8 == 0
        assert file.stat().st_size == ours[0] + 16 + 12


def test_headers_that_are_too_long(
    memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.ones(1)})
    (file,) = export(memory, tmp_path / "m.safetensors")
    size = int.from_bytes(file.read_bytes()[:8], "little")
    plant(monkeypatch, "files._LARGEST_HEADER", size)
    export(memory, file)
    import_(file, memory, namespace="other")
    plant(monkeypatch, "files._LARGEST_HEADER", size - 1)
    with pytest.raises(
        ValueError, match=f"the header has {size} bytes, expected at most {size - 1}"
    ):
        export(memory, file)
    with pytest.raises(ValueError, match=f"a header of {size} bytes, expected at most {size - 1}"):
        import_(file, memory)


def test_an_index_that_cannot_have_its_name_leaves_nothing(memory: Store, tmp_path: Path) -> None:
    checkpoint.save(memory, step=1, model={"a": torch.ones(9), "b": torch.ones(9)})
    index = tmp_path / "m.safetensors.index.json"
    index.mkdir()
    with pytest.raises(IsADirectoryError):
        export(memory, tmp_path / "m.safetensors", shard_bytes=40)
    assert [path for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_damaged_checkpoints_give_no_file(memory: Store, tmp_path: Path) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.arange(100)}, chunk_bytes=64)
    key = b"~windeck~%016x/t/%08x/%08x/%08x" % (1, 0, 0, 7)
    value = bytearray(memory.get(key) or b"")
    value[70] ^= 4
    memory.put_many([(key, bytes(value))])
    with pytest.raises(CorruptStoreError, match=f"{key.decode()} is damaged"):
        export(memory, tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


def test_without_the_library_the_error_says_how_to_get_it(
    memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(memory, step=1, model={"w": torch.ones(1)})
    monkeypatch.setitem(sys.modules, "safetensors", None)
    with pytest.raises(ImportError, match=r"pip install 'windeck\[safetensors\]'"):
        export(memory, tmp_path / "m.safetensors")
    assert list(tmp_path.iterdir()) == []


FULL = """
import resource, sys, torch
from windeck import checkpoint
from windeck.checkpoint.safetensors import export
store = checkpoint.stores.open_store("memory://")
checkpoint.save(store, step=1, model={"w": torch.ones(1_000_000)})
resource.setrlimit(resource.RLIMIT_FSIZE, (1_000_000, 1_000_000))
try:
    export(store, sys.argv[1])
except OSError as error:
    print(error.errno)
"""


@pytest.mark.usefixtures("forked")
def test_a_full_disk_is_an_error_and_leaves_no_file(tmp_path: Path) -> None:
    assert printed(FULL, str(tmp_path / "m.safetensors")) == "27\n"  # EFBIG
    assert list(tmp_path.iterdir()) == []


MEMORY = """
import resource, subprocess, sys, torch
from windeck import checkpoint
from windeck.checkpoint.safetensors import export, import_
url, folder = sys.argv[1:]
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
def run(rows, name):
    parts = [torch.ones(rows, 1000), torch.ones(1000, rows).t(), torch.ones(7, dtype=torch.int8)]
    return {f"{name}{i}": part for i, part in enumerate(parts)}
checkpoint.save(url, step=1, model=run(20, "w"), namespace="warm")
export(url, f"{folder}/warm.safetensors", namespace="warm")
import_(f"{folder}/warm.safetensors", url, namespace="warm")
# Saved by another process, so that this one's peak is not that of the model.
code = "import sys,torch; from windeck import checkpoint; checkpoint.save(sys.argv[1], step=2,"
code += " model={'a': torch.ones(20000, 1000), 'b': torch.ones(1000, 20000).t()})"
subprocess.run([sys.executable, "-c", code, url], check=True)
before = peak()
files = export(url, f"{folder}/m.safetensors")
exported = peak() - before
import_(files[0], url)
print(exported, peak() - before - exported, files[0].stat().st_size)
"""


def test_memory_is_bounded(fresh: Fresh, tmp_path: Path) -> None:
    told = printed(MEMORY, fresh("rocksdb"), str(tmp_path))
    exported, imported, size = map(float, told.split())
    assert size > 160e6
    assert exported < 64
    assert imported < 64


def test_codes_of_dtypes_are_those_of_the_library(memory: Store, tmp_path: Path) -> None:
    model = {str(dtype): filled((2,), dtype) for dtype in known()}
    checkpoint.save(memory, step=1, model=model)
    (file,) = export(memory, tmp_path / "m.safetensors")
    header = header_of(file)[1]
    codes = {header[str(dtype)]["dtype"]: dtype for dtype in known()}
    assert len(codes) == len(known())
    theirs: Any = import_module("safetensors.torch")._TYPES
    assert {name: dtype for name, dtype in theirs.items() if name in codes} == {
        code: dtype for code, dtype in codes.items() if code in theirs
    }
    assert len(codes.keys() & theirs.keys()) > 12
