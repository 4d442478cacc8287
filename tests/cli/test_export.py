"""`windeck view URL export`: files that other libraries read."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from pyarrow import csv, parquet

from support.view_cases import Fresh, Table, model, refused, run, run_json, saved, saved_table, url
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

__all__ = ["url"]

NUMPY = [name for name, tensor in model().items() if tensor.dtype is not torch.bfloat16]


@pytest.mark.parametrize("name", NUMPY)
def test_a_tensor_as_npy(fresh: Fresh, tmp_path: Path, name: str) -> None:
    url = saved(fresh("rocksdb"), 10)
    file = tmp_path / "one.npy"
    found = run_json(url, "export", str(file), f"model/{name}")
    assert found["files"] == [{"file": str(file), "bytes": file.stat().st_size}]
    made, expected = np.load(file), model(10)[name].numpy()
    assert (made.dtype, made.shape) == (expected.dtype, expected.shape)
    assert made.tobytes() == expected.tobytes()
    assert [path.name for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []


def test_a_tensor_in_parts_as_npy(fresh: Fresh, tmp_path: Path) -> None:
    store = open_store(fresh("memory"))
    whole = torch.arange(7 * 5).reshape(7, 5)
    plan = checkpoint.begin(store, step=1, writers=3, chunk_bytes=32)
    boxes = [((0, 4), (0, 5)), ((4, 7), (0, 2)), ((4, 7), (2, 5))]
    for writer, ((a, b), (c, d)) in enumerate(boxes):
        part = checkpoint.Partition(whole[a:b, c:d].clone(), offset=(a, c), shape=(7, 5))
        checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
    checkpoint.merge(store, plan)
    url = fresh("rocksdb")
    checkpoint.copy(store, url)
    run(url, "export", str(tmp_path / "w.npy"), "model/w")
    assert np.load(tmp_path / "w.npy").tolist() == whole.tolist()
    assert (
        run_json(url, "show", "model/w", "--slice", "3:6,1:4")["values"] == whole[3:6, 1:4].tolist()
    )
    (found,) = run_json(url, "find", "model/w", "--eq", "33")["tensors"]
    assert found["matches"] == [{"index": [6, 3], "value": 33}]


@pytest.mark.parametrize("root", ["model", "extra"])
def test_a_state_as_safetensors(fresh: Fresh, tmp_path: Path, root: str) -> None:
    safetensors = pytest.importorskip("safetensors.torch")
    url, file = fresh("rocksdb"), tmp_path / "state.safetensors"
    state = {"half": model()["half"], "w": model()["layers.0.w"], "ids": model()["ids"]}
    checkpoint.save(url, step=1, model=state, extra={"t": torch.ones(2)})
    found = run_json(url, "export", str(file), *([root] if root == "extra" else []))
    assert found["files"] == [{"file": str(file), "bytes": file.stat().st_size}]
    made = safetensors.load_file(file)
    expected = state if root == "model" else {"t": torch.ones(2)}
    assert {name: tensor.tolist() for name, tensor in made.items()} == {
        name: tensor.tolist() for name, tensor in expected.items()
    }
    assert all(made[name].dtype == tensor.dtype for name, tensor in expected.items())
    assert run(url, "export", str(file), root)[0] == 2
    assert run(url, "export", str(file), root, "--force")[0] == 0


def test_a_state_in_the_layout_of_hugging_face(fresh: Fresh, tmp_path: Path) -> None:
    pytest.importorskip("safetensors")
    url, folder = fresh("rocksdb"), tmp_path / "out"
    checkpoint.save(url, step=1, model={"w": torch.ones(3)})
    command = ("export", str(folder), "--layout", "huggingface")
    (file,) = run_json(url, *command)["files"]
    assert file["file"] == str(folder / "model.safetensors")
    told = refused(url, *command, code=2)
    assert told == f"{folder} has model.safetensors already, expected no model"


def test_the_size_of_files(fresh: Fresh, tmp_path: Path) -> None:
    """Three tensors of 4,000 bytes: two and one in files of 8 kB, one in each of 4 kB."""
    safetensors = pytest.importorskip("safetensors.torch")
    url = fresh("rocksdb")
    state = {name: torch.full((1000,), float(i)) for i, name in enumerate("abc")}
    checkpoint.save(url, step=1, model=state)
    for size, parts in (("8kB", 2), ("4000 B", 3), ("1 GB", 1)):
        folder = tmp_path / size
        command = ("export", str(folder), "--layout", "huggingface", "--shard-size", size)
        files = [Path(found["file"]) for found in run_json(url, *command)["files"]]
        assert [file.suffix for file in files] == [".safetensors"] * parts + [".json"] * (parts > 1)
        found = {k: v for file in files[:parts] for k, v in safetensors.load_file(file).items()}
        assert {k: v.tolist() for k, v in found.items()} == {
            k: v.tolist() for k, v in state.items()
        }
    file = str(tmp_path / "all.safetensors")
    assert len(run_json(url, "export", file, "--shard-size", "4kB")["files"]) == 4
    told = refused(url, "export", file, "--shard-size", "large", code=2)
    assert told == "`--shard-size` must be bytes as text such as \"64MB\", got 'large'"
    told = refused(url, "export", file, "--shard-size", "0B", code=2)
    assert told == "--shard-size must be at least 1, got 0"
    table = str(tmp_path / "all.csv")
    told = refused(url, "export", table, "t", "--shard-size", "4kB", code=2)
    assert told == f"--shard-size is of .safetensors files, {table} ends in '.csv'"


def test_what_safetensors_has_not(fresh: Fresh, tmp_path: Path) -> None:
    url, file = fresh("rocksdb"), tmp_path / "state.safetensors"
    checkpoint.save(url, step=1, model={"z": torch.zeros(2, dtype=torch.complex128)})
    assert "complex128" in refused(url, "export", str(file), code=2)
    told = refused(url, "export", str(file), "optimizer", code=2)
    assert told == "there is no state 'optimizer', expected one of model"
    assert list(tmp_path.glob("*.safetensors")) == []


def test_what_npy_has_not(fresh: Fresh, tmp_path: Path) -> None:
    pytest.importorskip("ml_dtypes")  # gives NumPy a bfloat16, which .npy cannot hold either
    url, file = saved(fresh("rocksdb")), tmp_path / "one.npy"
    told = refused(url, "export", str(file), "model/half", code=2)
    assert told == "model/half has dtype bfloat16, which .npy does not have: expected .safetensors"
    told = refused(url, "export", str(file), code=2)
    assert told == "a .npy file holds one tensor, expected its name"
    assert refused(url, "export", str(file), "model/hal", code=2).startswith(
        "generation 1 has no tensor 'model/hal': did you mean model/half"
    )
    assert list(tmp_path.glob("*.npy")) == []


def test_files_are_replaced_when_asked_for_and_whole_or_not_there(
    fresh: Fresh, tmp_path: Path
) -> None:
    url, file = saved(fresh("rocksdb")), tmp_path / "one.npy"
    file.write_text("mine")
    told = refused(url, "export", str(file), "model/ids", code=2)
    assert told == f"{file} exists already, expected a new file, or --force"
    assert file.read_text() == "mine"
    with open_store(url) as store:
        key = b"~windeck~%016x/t/%08x/%08x/%08x" % (1, 0, 0, 2)
        store.delete_many([key])
    told = refused(url, "export", str(file), "model/layers.0.w", "--force", code=1)
    assert told == f"{key.decode()} is missing, expected a chunk"
    assert file.read_text() == "mine"
    assert [path for path in tmp_path.iterdir() if path.suffix == ".tmp"] == []
    assert run(url, "export", str(file), "model/ids", "--force")[0] == 0
    assert np.load(file).tolist() == model(10)["ids"].tolist()


def test_where_a_file_cannot_be(fresh: Fresh, tmp_path: Path) -> None:
    url = saved(fresh("rocksdb"))
    told = refused(url, "export", str(tmp_path / "no" / "x.npy"), "model/ids", code=2)
    assert told == f"there is no folder {tmp_path / 'no'} to write x.npy into"
    told = refused(url, "export", str(tmp_path / "x.pt"), code=2)
    assert told == (
        f"{tmp_path / 'x.pt'} ends in '.pt', expected one of .safetensors, .npy, .parquet, .csv"
    )
    for suffix in (".SAFETENSORS", ".Npy"):
        told = refused(url, "export", str(tmp_path / f"x{suffix}"), code=2)
        assert f"x{suffix} ends in {suffix!r}, expected one of" in told
    told = refused(url, "export", str(tmp_path / "x"), code=2)
    assert told.endswith("x has no suffix, expected one of .safetensors, .npy, .parquet, .csv")


def expected_rows() -> dict[int, dict[str, Any]]:
    place = np.cumsum(Table.ADMITTED) - 1
    rows = {}
    for i, key in enumerate(Table.IDS.tolist()):
        values = Table.VALUES[place[i]].tolist() if Table.ADMITTED[i] else None
        rows[key] = {
            "id": key,
            "version": int(Table.VERSIONS[i]),
            "frequency": int(Table.FREQUENCIES[i]),
            "seen": int(Table.SEEN[i]),
            "admitted": bool(Table.ADMITTED[i]),
            "embedding": None if values is None else values[:3],
            "slot0": None if values is None else values[3:],
        }
    return rows


def same(a: Any, b: Any) -> bool:
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(map(same, a, b))
    return a == b or (isinstance(a, float) and isinstance(b, float) and math.isnan(a + b))


@pytest.mark.parametrize("name", ["user", "embeddings/user"])
def test_a_table_as_parquet(fresh: Fresh, tmp_path: Path, name: str) -> None:
    url, file = saved_table(fresh("rocksdb")), tmp_path / "user.parquet"
    assert run(url, "export", str(file), name, "--generation", "1")[0] == 0
    made = {row["id"]: row for row in parquet.read_table(file).to_pylist()}
    expected = expected_rows()
    assert made.keys() == expected.keys()
    for key, row in expected.items():
        assert made[key].keys() == row.keys()
        assert all(same(made[key][column], value) for column, value in row.items())


def test_a_table_as_csv(fresh: Fresh, tmp_path: Path) -> None:
    url, file = saved_table(fresh("rocksdb")), tmp_path / "user.csv"
    assert run(url, "export", str(file), "user", "--generation", "1")[0] == 0
    options = csv.ConvertOptions(null_values=[""])  # else nan would be one
    made = {row["id"]: row for row in csv.read_csv(file, convert_options=options).to_pylist()}
    for key, row in expected_rows().items():
        for column in ("version", "frequency", "seen", "admitted"):
            assert made[key][column] == row[column]
        for part, cell in (("embedding", "embedding{}"), ("slot0", "slot0_{}")):
            values = [made[key][cell.format(i)] for i in range(3)]
            assert same(values, row[part] or [None] * 3)


def test_a_table_that_is_not_there(fresh: Fresh, tmp_path: Path) -> None:
    url, file = saved_table(fresh("rocksdb")), str(tmp_path / "x.parquet")
    told = refused(url, "export", file, code=2)
    assert told == "expected the name of an embedding table: it has embeddings/user"
    assert "no table 'usr'" in refused(url, "export", file, "usr", code=2)
    told = refused(saved(fresh("leveldb")), "export", file, code=2)
    assert told == "expected the name of an embedding table: it has none"
