"""Tests of DCP folders that torch wrote on one rank and on several, compared with whole tensors."""

from __future__ import annotations

import os
import pickle
import shutil
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.distributed._shard.metadata import ShardMetadata
from torch.distributed._shard.sharded_tensor import init_from_local_shards
from torch.distributed._shard.sharded_tensor.shard import Shard as TensorShard
from torch.distributed.checkpoint import metadata as theirs
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

import windeck as wd
from support.gangs import gang
from support.tensor_bits import DTYPES, filled, raw, usable
from windeck import checkpoint
from windeck.checkpoint.foreign import open_file
from windeck.checkpoint.stores import Store

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
METADATA = ".metadata"


def saved(state: Any, folder: Path) -> Path:
    dcp_save(state, checkpoint_id=folder)
    return folder


def check(folder: Path, memory: Store, expected: dict[str, torch.Tensor]) -> None:
    """Compare the tensors of a folder, viewed and imported, with whole ones."""
    checkpoint.import_(folder, memory, chunk_bytes=64)
    for store in (memory, open_file(folder)):
        with checkpoint.open(store) as found:
            for name, tensor in expected.items():
                info = found.info(name)
                assert (info.dtype, info.shape) == (tensor.dtype, tuple(tensor.shape)), name
                assert raw(found.tensor(name)) == raw(tensor), name
            assert len(found.entries) == len(expected)
        report = checkpoint.verify(store, deep=True)
        assert report.ok, report.damages


def dcp_saves(dtype: torch.dtype) -> bool:
    try:
        element_size: Any = torch._utils._element_size  # which DCP calls
        return bool(element_size(dtype))
    except TypeError:
        return False


def test_every_dtype(memory: Store, tmp_path: Path) -> None:
    known = [dtype for dtype in DTYPES if usable(dtype) and dcp_saves(dtype)]
    assert len(known) > 15
    model = {str(dtype): filled((5, 3), dtype) for dtype in known}
    model |= {"turned": torch.arange(24.0).reshape(4, 6).t(), "scalar": torch.tensor(2)}
    model |= {"none": torch.empty(0, 4), "part": torch.arange(10)[3:6]}
    folder = saved(model, tmp_path / "run")
    check(folder, memory, {f"model/{name}": tensor for name, tensor in model.items()})


def test_lists_with_empty_dicts(memory: Store, tmp_path: Path) -> None:
    """DCP does not store these, so positions are above the number of objects."""
    weights = torch.arange(3.0)
    folder = saved({"model": {"layers": [{}, {}, {}, {"w": weights}]}}, tmp_path / "run")
    checkpoint.import_(folder, memory)
    with checkpoint.open(memory) as found:
        assert found.names() == ["model/layers/3/w"]
        assert torch.equal(found.tensor("model/layers/3/w"), weights)


def test_a_training_state(memory: Store, tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    adam = torch.optim.Adam(model.parameters(), lr=0.25)
    model(torch.randn(4)).sum().backward()
    adam.step()
    state = {
        "model": model.state_dict(), "optimizer": adam.state_dict(), "step": 8,
        "extra": {"loss": 0.5, "names": ["a", {"b": torch.ones(2)}], "pair": (1, torch.zeros(1))},
    }  # fmt: skip
    folder = saved(state, tmp_path / "run")
    checkpoint.import_(folder, memory)
    other = torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Linear(3, 2))
    fresh = torch.optim.Adam(other.parameters())
    loaded = checkpoint.load(memory, model=other, optimizer=fresh)
    assert loaded.step == 8
    assert all(
        torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True)
    )
    for key, values in adam.state_dict()["state"].items():
        assert all(torch.equal(fresh.state_dict()["state"][key][n], v) for n, v in values.items())
    assert fresh.param_groups[0]["lr"] == 0.25
    extra = loaded.extra["extra"]
    assert (extra["loss"], extra["names"][0], extra["pair"][0]) == (0.5, "a", 1)
    assert torch.equal(extra["names"][1]["b"], torch.ones(2))
    assert torch.equal(extra["pair"][1], torch.zeros(1))


WHOLE = {
    "rows": torch.arange(77.0).reshape(11, 7),
    "columns": torch.arange(77, dtype=torch.int32).reshape(7, 11),
    "copies": torch.randn(5, generator=torch.Generator().manual_seed(1)),
    "few": torch.arange(2.0),
    "both": torch.arange(63.0).reshape(7, 9).to(torch.bfloat16),
}


def save_dtensors(rank: int, ranks: int, folder: str) -> None:
    mesh, grid = init_device_mesh("cpu", (ranks,)), init_device_mesh("cpu", (2, ranks // 2))
    places: dict[str, Sequence[Any]] = {
        "rows": [Shard(0)], "columns": [Shard(1)], "copies": [Replicate()], "few": [Shard(0)],
    }  # fmt: skip
    state: dict[str, Any] = {
        name: distribute_tensor(WHOLE[name], mesh, place) for name, place in places.items()
    }
    state["both"] = distribute_tensor(WHOLE["both"], grid, [Shard(0), Shard(1)])
    dcp_save({"model": state, "step": 4}, checkpoint_id=folder)


def test_dtensors_of_four_ranks(memory: Store, tmp_path: Path) -> None:
    gang(4, save_dtensors, str(tmp_path / "run"))
    check(tmp_path / "run", memory, {f"model/{name}": t for name, t in WHOLE.items()})
    assert checkpoint.log(memory)[0].step == 4


#: As TorchRec's state dicts name tables, and how it shards them.
PREFIX = "sparse.embedding_bags."
TABLES = {
    "row_wise": torch.arange(40.0).reshape(10, 4),
    "column_wise": torch.arange(36.0).reshape(6, 6),
    "table_wise": torch.arange(15.0).reshape(5, 3),
    "grid": torch.arange(48.0).reshape(8, 6),
}


def boxes_of(table: str, ranks: int) -> list[tuple[int, list[int], list[int]]]:
    """Return rank, offsets and sizes of each shard."""
    rows, columns = TABLES[table].shape
    if table == "table_wise":
        return [(1, [0, 0], [rows, columns])]
    if table == "column_wise":
        step = columns // ranks
        return [(rank, [0, rank * step], [rows, step]) for rank in range(ranks)]
    if table == "row_wise":  # TorchRec gives each rank ceil(rows / ranks)
        step = -(-rows // ranks)
        sizes = [max(0, min(step, rows - rank * step)) for rank in range(ranks)]
        return [(rank, [min(rank * step, rows), 0], [n, columns]) for rank, n in enumerate(sizes)]
    return [(number % ranks, [4 * (number // 2), 3 * (number % 2)], [4, 3]) for number in range(4)]


def save_tables(rank: int, ranks: int, folder: str) -> None:
    state: dict[str, Any] = {"over.weight": torch.ones(3)}
    for name, whole in TABLES.items():
        own = []
        for owner, (r, c), (h, w) in boxes_of(name, ranks):
            if owner == rank:
                place = ShardMetadata([r, c], [h, w], f"rank:{rank}/cpu")
                own.append(TensorShard(whole[r : r + h, c : c + w].clone(), place))
        state[f"{PREFIX}{name}.weight"] = init_from_local_shards(own, *whole.shape)
    dcp_save({"model": state}, checkpoint_id=folder)


def test_tables_sharded_as_torchrec_shards_them(memory: Store, tmp_path: Path) -> None:
    folder = tmp_path / "run"
    gang(3, save_tables, str(folder))
    expected = {f"model/{PREFIX}{name}.weight": whole for name, whole in TABLES.items()}
    check(folder, memory, expected | {"model/over.weight": torch.ones(3)})
    for name, whole in TABLES.items():
        table = wd.EmbeddingTable(whole.shape[1], optimizer="adagrad", lr=0.1, seed=3)
        rows = f"model/{PREFIX}{name}.weight"
        assert checkpoint.import_table(folder, table, rows=rows) == len(whole)
        found = table.core.lookup(np.arange(len(whole)), insert=False)
        assert np.array_equal(found, whole.numpy()), name
    # All of it in one commit: the table with ids, and the other tensors.
    checkpoint.import_(folder, memory, without="*.row_wise.weight", embeddings={"user": table})
    with checkpoint.open(memory) as saved_checkpoint:
        assert f"model/{PREFIX}row_wise.weight" not in saved_checkpoint.names()
        assert len(saved_checkpoint.names()) == 4
        row = saved_checkpoint.table("user").rows(np.array([2]))
        assert row.values[0, :6].tolist() == TABLES["grid"][2].tolist()


@pytest.mark.parametrize("shape", [(10,), (10, 1)])
def test_the_state_of_row_wise_adagrad_is_no_slot(shape: tuple[int, ...], tmp_path: Path) -> None:
    """TorchRec stores one number for each row; without `slots` the table is imported."""
    rows, state = "model/sparse.embedding_bags.user.weight", "optimizer/state/user.momentum1"
    weight = {rows.partition("/")[2]: torch.ones(10, 4)}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a single process
        dcp_save(
            {"model": weight, "optimizer": {"state": {"user.momentum1": torch.ones(shape)}}},
            checkpoint_id=tmp_path / "run",
        )
    table = wd.EmbeddingTable(4, optimizer="adagrad", lr=0.1)
    expected = rf"{state} has shape \({shape[0]}.*expected \(10, 4\): it is .* row-wise Adagrad"
    with pytest.raises(ValueError, match=expected):
        checkpoint.import_table(tmp_path / "run", table, rows=rows, slots=[state])
    assert table.rows == 0
    assert checkpoint.import_table(tmp_path / "run", table, rows=rows) == 10


def test_a_shard_at_a_time_is_in_memory(
    memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "run"
    gang(3, save_tables, str(folder))
    loads: list[int] = []
    load = torch.load

    def counted(file: Any, **options: Any) -> Any:
        loads.append(1)
        assert options["weights_only"] is True
        return load(file, **options)

    monkeypatch.setattr(torch, "load", counted)
    store = open_file(folder)
    assert loads == []  # only metadata
    name = f"model/{PREFIX}column_wise.weight"
    with checkpoint.open(store) as found:
        found.slice(name, (slice(None), slice(0, 2)))
        assert len(loads) == 1
        for row in range(6):  # from three shards in turn, each of which is loaded once
            found.row(name, row)
        assert len(loads) == 3


def edited(folder: Path, change: Any) -> None:
    """Change torch's metadata in place."""
    content = pickle.loads((folder / METADATA).read_bytes())
    change(content)
    (folder / METADATA).write_bytes(pickle.dumps(content))


def _info(content: Any) -> Any:
    return next(v for k, v in content.storage_data.items() if k.fqn == "w")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda c: setattr(_info(c), "relative_path", "../run/__0_0.distcp"), "one in the fo"),
        (lambda c: setattr(_info(c), "relative_path", "none"), "w is in none, which is missing"),
        (lambda c: setattr(_info(c), "offset", -1), "w is at -1, .* expected a place in __0"),
        (lambda c: setattr(_info(c), "length", 1 << 40), "w ends at .* in __0_0.distcp, which has"),
        (lambda c: setattr(_info(c), "length", None), "w is at .*, None, expected a place"),
        (lambda c: setattr(_info(c), "transform_descriptors", ["zstd"]), r"stored with \['zstd'\]"),
        (lambda c: c.state_dict_metadata.update(x=c.state_dict_metadata["w"]), "x in .* be read"),
        (lambda c: c.state_dict_metadata["w"].chunks.clear(), "w in .* cannot be read: .*w"),
        (lambda c: c.state_dict_metadata["w"].chunks.append(
            c.state_dict_metadata["w"].chunks[0]), ""),
        (lambda c: setattr(c.state_dict_metadata["w"], "size", torch.Size([9, 9])), "w in .* be r"),
        (lambda c: setattr(c.state_dict_metadata["w"], "size", torch.Size([6])), "w in .* be read"),
        (lambda c: c.planner_data.update(w=("w", 1 << 40)), "w has the path .*, expected keys"),
        (lambda c: c.planner_data.update(w=("n",)), "two names have one path, expected one of"),
        (lambda c: c.planner_data.update(w=("n", "w")), "w has the path .* inside another value"),
        (lambda c: setattr(c, "state_dict_metadata", None), "state_dict_metadata is a NoneType"),
        (lambda c: setattr(c, "storage_data", {}), "w in .* cannot be read|where n is"),
    ],
)  # fmt: skip
def test_metadata_that_lie(change: Any, words: str, memory: Store, tmp_path: Path) -> None:
    folder = saved({"w": torch.arange(6).reshape(3, 2), "n": 5}, tmp_path / "run")
    edited(folder, change)
    if words:
        with pytest.raises(ValueError, match=words):
            checkpoint.import_(folder, memory)
        assert checkpoint.log(memory) == []
    else:
        checkpoint.import_(folder, memory)


def test_shards_beyond_the_files(memory: Store, tmp_path: Path) -> None:
    folder = saved({"w": torch.arange(6), "n": 5}, tmp_path / "run")

    def grow(content: Any) -> None:
        tensor = content.state_dict_metadata["w"]
        tensor.size = tensor.chunks[0].sizes = torch.Size([1 << 40])

    edited(folder, grow)
    with pytest.raises(
        ValueError, match=r"run has tensors of 8,796,093,022,208 bytes, the largest"
    ):
        checkpoint.import_(folder, memory)
    assert checkpoint.log(memory) == []


@pytest.mark.parametrize("kind", [list, tuple])
@pytest.mark.parametrize(
    "change",
    [
        lambda c, x: setattr(_info(c), "relative_path", x),
        lambda c, x: setattr(_info(c), "offset", x),
        lambda c, x: setattr(_info(c), "length", x),
        lambda c, x: setattr(_info(c), "transform_descriptors", x),
        lambda c, x: object.__setattr__(next(iter(c.storage_data)), "fqn", x),
        lambda c, x: object.__setattr__(next(iter(c.storage_data)), "offset", x),
        lambda c, x: setattr(c.state_dict_metadata["w"].chunks[0], "offsets", x),
        lambda c, x: setattr(c.state_dict_metadata["w"].chunks[0], "sizes", x),
        lambda c, x: setattr(c.state_dict_metadata["w"], "size", x),
        lambda c, x: setattr(c.state_dict_metadata["w"], "chunks", x),
        lambda c, x: setattr(c.state_dict_metadata["w"].properties, "dtype", x),
        lambda c, x: c.planner_data.update(w=x),
        lambda c, x: c.planner_data.update(w=(x,)),
        lambda c, x: setattr(c, "state_dict_metadata", x),
        lambda c, x: setattr(c, "storage_data", x),
    ],
)
def test_lists_that_hold_each_other(change: Any, kind: Any, memory: Store, tmp_path: Path) -> None:
    """Nothing formats or hashes them: that would take 2^50 steps."""
    folder = saved({"w": torch.arange(6).reshape(3, 2), "n": 5}, tmp_path / "run")
    value: Any = kind([0])
    for _ in range(50):
        value = kind([value, value])
    edited(folder, lambda content: change(content, value))
    with pytest.raises(ValueError, match=r"w|metadata") as caught:
        checkpoint.import_(folder, memory)
    assert len(str(caught.value)) < 500


def test_shards_that_are_other_than_the_metadata_say(memory: Store, tmp_path: Path) -> None:
    folder = saved({"w": torch.arange(6).reshape(3, 2), "n": 5}, tmp_path / "run")

    def double(content: Any) -> None:
        tensor = content.state_dict_metadata["w"]
        tensor.properties.dtype = torch.float64

    edited(folder, double)
    words = r"a shard of w in .*distcp is int64 of shape \(3, 2\), expected float64 of shape \(3, 2"
    with pytest.raises(ValueError, match=words):
        checkpoint.import_(folder, memory)
    with pytest.raises(OSError, match=words), checkpoint.open(open_file(folder)) as found:
        found.tensor("model/w")
    assert checkpoint.log(memory) == []


class Evil:
    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self.mark}",)


def test_code_in_files_is_not_run(memory: Store, tmp_path: Path) -> None:
    mark = tmp_path / "mark"
    folder = saved({"w": torch.ones(2), "scheduler": Evil(mark)}, tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"scheduler in .* with weights_only=True: it holds posix\.system$"
    ):
        checkpoint.import_(folder, memory)
    with checkpoint.open(open_file(folder)) as found:  # the rest can be viewed
        assert found.tree("model")["scheduler"].startswith("(not read: scheduler in ")
    (folder / METADATA).write_bytes(pickle.dumps(Evil(mark)))
    with pytest.raises(
        ValueError, match=r"metadata of torch.distributed.checkpoint: it refers to "
    ):
        checkpoint.import_(folder, memory)
    assert not mark.exists()
    assert checkpoint.log(memory) == []


def test_a_folder_that_is_cut_short(memory: Store, tmp_path: Path) -> None:
    folder = saved({"w": torch.arange(1000.0), "n": 5}, tmp_path / "run")
    (file,) = folder.glob("*.distcp")
    whole = file.read_bytes()
    for length in (0, 1, len(whole) // 2, len(whole) - 1):
        file.write_bytes(whole[:length])
        with pytest.raises(ValueError, match=r"cannot be read as metadata .* which has [0-9,]+ by"):
            checkpoint.import_(folder, memory)
    file.write_bytes(bytes(len(whole)))
    with pytest.raises(ValueError, match="cannot be read with weights_only=True"):
        checkpoint.import_(folder, memory)
    shutil.rmtree(folder)
    folder.mkdir()
    with pytest.raises(
        FileNotFoundError, match=r"has no .metadata of torch.distributed.checkpoint"
    ):
        checkpoint.import_(folder, memory)


def test_metadata_that_list_more_than_they_hold(memory: Store, tmp_path: Path) -> None:
    """Shared lists of shards, and positions in lists far from each other, are few bytes."""
    size = torch.Size([4])
    chunk = theirs.ChunkStorageMetadata(torch.Size([0]), size)
    shared = [chunk] * 3000
    properties = theirs.TensorProperties(torch.float32)
    tensors: Any = {
        f"t{i}": theirs.TensorStorageMetadata(properties, size, shared) for i in range(400)
    }
    values: Any = {f"v{i}": theirs.BytesStorageMetadata() for i in range(2000)}
    far = {name: (name, 1900) for name in values}
    deep = {name: (name, *[0] * 150) for name in values}
    for contents, paths, words in (
        (tensors, None, r"lists 1,200,000 shards in .* bytes, expected fewer"),
        (values, far, r"lists of 3,802,000 positions for 2,000 values, expected up to 10"),
        (values, deep, r"v0 has a path of 151 keys, expected 100"),
    ):
        found = theirs.Metadata(contents, planner_data=paths, storage_data={})
        (tmp_path / ".metadata").write_bytes(pickle.dumps(found))
        with pytest.raises(ValueError, match=words):
            checkpoint.import_(tmp_path, memory)
