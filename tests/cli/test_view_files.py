"""`windeck view PATH`: files and folders of other formats are shown as checkpoints are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.view_cases import Fresh, Table, model, refused, run, run_json, saved_table
from windeck import checkpoint


@pytest.fixture(params=["m.pt", "m.bin", "run", "m.safetensors", "m.npz"])
def file(request: Any, tmp_path: Path) -> str:
    """A model in a file or folder of each kind."""
    state = {name: tensor for name, tensor in model().items() if tensor.is_contiguous()}
    path = tmp_path / request.param
    if path.suffix in (".pt", ".bin"):
        torch.save({"model_state_dict": state, "step": 7}, path)
    elif path.suffix == ".safetensors":
        library = pytest.importorskip("safetensors.torch")
        clones = {name: tensor.clone() for name, tensor in state.items()}
        library.save_file(clones, path, metadata={"step": "7"})
    elif path.suffix == ".npz":
        state.pop("half")  # bfloat16, which NumPy does not have
        arrays: dict[str, Any] = {name: tensor.numpy() for name, tensor in state.items()}
        np.savez(path, **arrays)
    else:
        from torch.distributed.checkpoint.state_dict_saver import save

        save({"model": state, "step": 7}, checkpoint_id=path, no_dist=True)
    return str(path)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_commands_on_files(file: str, tmp_path: Path, fresh: Fresh) -> None:
    found = run_json(file, "ls")
    names = {tensor["name"] for tensor in found["tensors"]}
    assert {"model/layers.0.w", "model/layers.1.tied", "model/ids"} <= names
    assert found["url"] == file
    assert found["step"] == (0 if file.endswith(".npz") else 7)
    assert run(file)[1].startswith("windeck  generation 1  step ")
    shown = run_json(file, "show", "model/layers.0.w", "--slice", "1:3,2")
    assert shown["values"] == model()["layers.0.w"][1:3, 2].tolist()
    (nan,) = [one for one in run_json(file, "find", "--nan")["tensors"] if "0.b" in one["name"]]
    assert nan["matches"] == [{"index": [2], "value": "nan"}]
    assert run_json(file, "row", "model/ids", "0")["rows"] == [{"id": 0, "values": -(2**63)}]
    assert run_json(file, "verify", "--deep")["ok"]
    assert [one["generation"] for one in run_json(file, "log")["generations"]] == [1]
    assert run_json(file, "html", str(tmp_path / "page.html"))["files"][0]["bytes"] > 1000
    run_json(file, "export", str(tmp_path / "w.npy"), "model/layers.0.w")
    assert np.array_equal(np.load(tmp_path / "w.npy"), model()["layers.0.w"].numpy())
    url = fresh("rocksdb")
    assert run_json(file, "copy", url)["generations"] == [1]
    target = {"layers.0.w": torch.zeros(12, 5)}
    checkpoint.load(url, model=target, strict=False)
    assert torch.equal(target["layers.0.w"], model()["layers.0.w"])
    words = f"{file} is a file or folder, expected the URL of a store to write to"
    assert refused(file, "gc", "--keep", "1", code=2) == words


def test_tied_weights_and_other_values(tmp_path: Path) -> None:
    w = torch.arange(6.0).reshape(2, 3)
    torch.save({"model": {"a": w, "b": w}, "epoch": 3}, tmp_path / "m.pt")
    _, text, _ = run(str(tmp_path / "m.pt"))
    assert "= model/a" in text
    assert "extra/epoch" in text
    assert run(str(tmp_path / "m.pt"), "show", "extra/epoch")[1] == "3\n"


@pytest.mark.parametrize("kind", ["parquet", "arrow"])
def test_tables(kind: str, fresh: Fresh, tmp_path: Path) -> None:
    url, file = saved_table(fresh("rocksdb")), tmp_path / "user.parquet"
    assert run(url, "export", str(file), "user")[0] == 0
    if kind == "arrow":
        from pyarrow import feather, parquet

        table = parquet.read_table(file)
        file = tmp_path / "user.arrow"
        feather.write_feather(table, file, "uncompressed")
    (found,) = run_json(str(file), "ls")["tables"]
    (expected,) = run_json(url, "ls")["tables"]
    keys = ("name", "dim", "slots", "rows", "counted")
    assert [found[key] for key in keys] == [expected[key] for key in keys]
    ids = [str(key) for key in Table(without=7, add=1).core.snapshot().read(0, 1024)["keys"][:3]]
    rows = run_json(str(file), "row", "user", *ids)["rows"]
    assert rows == run_json(url, "row", "user", *ids)["rows"]


def test_tables_without_fixed_lists(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    file = tmp_path / "user.parquet"
    rows = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    parquet.write_table(pa.table({"id": [5, -1], "embedding": rows}), file)
    assert run_json(str(file), "row", "user", "5")["rows"][0]["values"] == [1, 2]
    parquet.write_table(pa.table({"id": [5, -1]}), file)
    words = "has no column embedding, expected a table of ids and embeddings"
    assert refused(str(file), code=3).endswith(words)


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_values_that_cannot_be_saved_are_one_sentence(tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    sparse = torch.ones(2).to_sparse()
    for value, words in (
        ({1, 2}, "model/x is of type set, expected a tensor, dict, "),
        (b"x", "model/x is of type bytes, expected a tensor, dict, "),
        (sparse, "model/x is a sparse tensor, expected a dense one"),
        ({0.5: 1}, "model/x has a key of type float, expected str or int"),
        (1j, "model/x is of type complex, expected a tensor, dict, "),
    ):
        torch.save({"x": value}, tmp_path / "m.pt")
        assert words in refused(str(tmp_path / "m.pt"), code=3)
    save({"x": {1, 2}}, checkpoint_id=tmp_path / "run", no_dist=True)
    assert "model/x is of type set, expected" in refused(str(tmp_path / "run"), "verify", code=3)


def test_tables_of_other_types_are_one_sentence(tmp_path: Path) -> None:
    import pyarrow as pa
    from pyarrow import parquet

    rows = pa.array([[1.0, 2.0], [3.0, 4.0]], pa.list_(pa.float32()))
    for ids, embeddings, words in (
        ([1, 2], rows.cast(pa.list_(pa.float64())), "embedding has lists of double, expected floa"),
        (["a", "b"], rows, "id is object, expected integers"),
    ):
        table = pa.table({"id": ids, "embedding": embeddings})
        parquet.write_table(table, tmp_path / "user.parquet")
        assert words in refused(str(tmp_path / "user.parquet"), code=3)


def test_wrong_paths(fresh: Fresh, tmp_path: Path) -> None:
    (tmp_path / "m.pt").write_text("hello")
    told = refused(str(tmp_path / "m.pt"), code=3)
    words = "m.pt cannot be read as a file of torch.save: it is damaged, or of another kind"
    assert told.endswith(words)
    (tmp_path / "m.pt").unlink()
    assert "has no .metadata of torch.distributed.ch" in refused(str(tmp_path), code=3)
    told = refused(str(tmp_path / "none.pt"), code=2)
    assert told.startswith(
        f"there is no file or folder {tmp_path}/none.pt, expected one, or the URL"
    )
    told = refused("redis:secret@host/0.5", code=2)
    assert "got a text that has no ://" in told
    assert "secret" not in told
    url = fresh("rocksdb")
    checkpoint.save(url, step=1, model={"w": torch.ones(1)})
    path = url.removeprefix("rocksdb://").partition("?")[0]
    assert refused(path, code=3).startswith(f"{path} is a database, expected its URL: rocksdb://")


def test_a_shard_of_a_table_in_memory(tmp_path: Path) -> None:
    """A table that is shown needs no options: its optimizer is told by its slots."""
    table = wd.EmbeddingTable(2, optimizer="adam", lr=0.1, name="user")
    table(torch.tensor([1, 2])).sum().backward()
    table.step()
    url = f"rocksdb://{tmp_path}/run"
    checkpoint.save(url, step=1, embeddings={"user": table})
    assert run(url, "export", str(tmp_path / "user.parquet"), "user")[0] == 0
    (found,) = run_json(str(tmp_path / "user.parquet"), "ls")["tables"]
    assert found["config"]["optimizer"] == "adam"
