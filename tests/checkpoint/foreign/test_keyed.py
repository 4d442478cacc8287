"""Tests of tables of ids and rows in files, against arrays and dicts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pytest
import torch

import windeck as wd
from support.internals import plant
from windeck import checkpoint
from windeck._core import bucket_of
from windeck.checkpoint.stores import Store

RNG = np.random.default_rng(2)
IDS = np.unique(RNG.integers(-(2**62), 2**62, 5000))[:4000]
RNG.shuffle(IDS)
ROWS = RNG.standard_normal((4000, 6)).astype(np.float32)
SLOTS = RNG.random((4000, 6)).astype(np.float32)
FREQUENCIES = RNG.integers(1, 99, 4000)
VERSIONS = RNG.integers(-1, 1000, 4000)


def empty(**options: Any) -> wd.EmbeddingTable:
    given: dict[str, Any] = {"optimizer": "adagrad", "lr": 0.1, "initial_accumulator_value": 0.25}
    return wd.EmbeddingTable(6, **{**given, **options})


def contents(table: wd.EmbeddingTable, store: Store) -> checkpoint.TableRows:
    """Return the rows of all ids, of a table that was saved."""
    checkpoint.save(store, step=1, embeddings={"user": table})
    return checkpoint.open(store).table("user").rows(IDS)


@pytest.fixture(params=["npz", "safetensors", "pt", "dcp", "parquet", "arrow"])
def file(request: Any, tmp_path: Path) -> tuple[Path, dict[str, Any]]:
    """The table in a file of each kind, and the names of its parts."""
    arrays: dict[str, Any] = {
        "keys": IDS,
        "values": ROWS,
        "slot": SLOTS,
        "freqs": FREQUENCIES,
        "versions": VERSIONS,
    }
    path = tmp_path / f"user.{request.param}"
    tensors = {name: torch.from_numpy(array) for name, array in arrays.items()}
    if request.param == "npz":
        np.savez(path, **arrays)
    elif request.param == "safetensors":
        pytest.importorskip("safetensors.torch").save_file(tensors, path)
    elif request.param == "pt":
        torch.save(tensors, path)
    elif request.param == "dcp":
        from torch.distributed.checkpoint.state_dict_saver import save

        save(tensors, checkpoint_id=path, no_dist=True)
    else:
        lists = {
            name: pa.FixedSizeListArray.from_arrays(pa.array(array.reshape(-1)), 6)
            for name, array in arrays.items()
            if array.ndim == 2
        }
        table = pa.table({**arrays, **lists})
        if request.param == "parquet":
            pyarrow.parquet.write_table(table, path, row_group_size=700)
        else:
            pyarrow.feather.write_feather(table, path, "uncompressed", chunksize=900)
    prefix = "" if request.param in ("parquet", "arrow") else "model/"
    names = {"ids": "keys", "rows": "values", "frequencies": "freqs", "versions": "versions"}
    return path, {role: prefix + name for role, name in names.items()} | {
        "slots": [f"{prefix}slot"]
    }


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
def test_all_kinds_of_files(
    file: tuple[Path, dict[str, Any]], memory: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, names = file
    plant(monkeypatch, "keyed._READ_BYTES", 24 * 999)
    table = empty()
    assert checkpoint.import_table(path, table, **names) == 4000
    found = contents(table, memory)
    assert found.admitted.all()
    assert np.array_equal(found.values, np.concatenate([ROWS, SLOTS], 1))
    assert np.array_equal(found.frequencies, FREQUENCIES)
    assert np.array_equal(found.versions, np.maximum(VERSIONS, 0))
    assert np.array_equal(found.seen, np.maximum(VERSIONS, 0))
    assert table.core.clock == VERSIONS.max()
    short = {"ids": names["ids"], "rows": names["rows"]}
    table = empty()
    assert checkpoint.import_table(path, table, **short) == 4000
    found = contents(table, memory)
    assert np.array_equal(found.values[:, :6], ROWS)
    assert (found.values[:, 6:] == 0.25).all()  # the initial value of Adagrad's accumulator
    assert (found.frequencies == 1).all()
    assert (found.versions == 0).all()
    other = empty()
    checkpoint.load(memory, embeddings={"user": other})
    assert np.array_equal(other.core.lookup(IDS, insert=False), ROWS)


def test_adam_goes_on_from_its_moments(tmp_path: Path) -> None:
    """A table that is exported and imported takes the same next step as the original."""
    table = empty(optimizer="adam", initial_accumulator_value=0.0)
    ids = torch.arange(20)
    for _ in range(30):
        (table(ids) * torch.arange(6.0)).sum().backward()
        table.step()
    parts = table.core.snapshot().read(0, 1024)
    moments = np.split(parts["values"], 3, axis=1)
    arrays: dict[str, Any] = dict(zip(("rows", "one", "two"), moments, strict=True))
    np.savez(tmp_path / "t.npz", ids=parts["keys"], **arrays)
    other = empty(optimizer="adam", initial_accumulator_value=0.0)
    names: Any = {"ids": "model/ids", "rows": "model/rows", "slots": ["model/one", "model/two"]}
    with pytest.raises(ValueError, match="`clock` must be the number of steps that made the slots"):
        checkpoint.import_table(tmp_path / "t.npz", other, **names)
    with pytest.raises(ValueError, match="`clock` must be at least 0, got -1"):
        checkpoint.import_table(tmp_path / "t.npz", other, clock=-1, **names)
    checkpoint.import_table(tmp_path / "t.npz", other, clock=30, **names)
    for one in (table, other):
        (one(ids) * torch.arange(6.0)).sum().backward()
        one.step()
    assert torch.equal(table(ids), other(ids))


def test_rows_of_an_embedding_have_numbers(tmp_path: Path) -> None:
    embedding = torch.nn.Embedding(50, 6)
    torch.save({"state_dict": {"e.weight": embedding.weight.to(torch.bfloat16)}}, tmp_path / "m.pt")
    table = empty(optimizer="sgd", initial_accumulator_value=0.0)
    assert checkpoint.import_table(tmp_path / "m.pt", table, rows="model/e.weight") == 50
    found = table.core.lookup(np.arange(50), insert=False)
    assert np.array_equal(found, embedding.weight.detach().to(torch.bfloat16).float().numpy())


def test_shards_take_their_own_ids(tmp_path: Path) -> None:
    np.savez(tmp_path / "u.npz", ids=IDS, rows=ROWS)
    count = 0
    for first, end in ((0, 300), (300, 1024)):
        table = empty(_buckets=(first, end))
        count += checkpoint.import_table(
            tmp_path / "u.npz", table, ids="model/ids", rows="model/rows"
        )
        buckets = bucket_of(IDS)
        own = (buckets >= first) & (buckets < end)
        assert table.rows == own.sum()
        assert np.array_equal(table.core.lookup(IDS[own], insert=False), ROWS[own])
    assert count == 4000


@pytest.mark.parametrize("source", [torch.float32, torch.float16, torch.bfloat16])
def test_tables_of_bfloat16_round_rows(source: torch.dtype, tmp_path: Path) -> None:
    rows, slots = (torch.from_numpy(array).to(source) for array in (ROWS, SLOTS))
    torch.save({"rows": rows, "slots": slots}, tmp_path / "user.pt")
    table = empty(dtype=torch.bfloat16)
    names: Any = {"rows": "model/rows", "slots": ["model/slots"]}
    assert checkpoint.import_table(tmp_path / "user.pt", table, **names) == 4000
    ids = torch.arange(4000)
    assert torch.equal(table.eval()(ids), rows.to(torch.bfloat16))
    wide = empty()
    checkpoint.import_table(tmp_path / "user.pt", wide, **names)
    with table.core.snapshot() as one, wide.core.snapshot() as two:
        bits, numbers = one.read(0, 1024)["values"], two.read(0, 1024)["values"]
    wanted = torch.from_numpy(numbers).to(torch.bfloat16).view(torch.int16).numpy()
    assert np.array_equal(bits.view(np.int16), wanted)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_files_of_the_export_command(dtype: str, memory: Store, tmp_path: Path) -> None:
    from support.programs import command

    table = empty(admit_after=2, dtype=dtype)
    for _ in range(2):
        table(torch.from_numpy(IDS[:100])).sum().backward()
        table.step()
    table(torch.from_numpy(IDS[100:150]))  # counted only
    url = f"rocksdb://{tmp_path}/run"
    pytest.importorskip("rocksdict")
    checkpoint.save(url, step=1, embeddings={"user": table})
    code, _, told = command("view", url, "export", str(tmp_path / "user.parquet"), "user")
    assert (code, told) == (0, "")
    other = empty(admit_after=2, dtype=dtype)
    names: Any = {"frequencies": "frequency", "versions": "version", "seen": "seen"}
    count = checkpoint.import_table(tmp_path / "user.parquet", other, slots=["slot0"], **names)
    assert count == 150
    checkpoint.save(memory, step=1, embeddings={"user": other})
    one, two = (checkpoint.open(place).table("user").rows(IDS[:200]) for place in (url, memory))
    for field in ("found", "admitted", "versions", "frequencies", "seen", "values"):
        assert np.array_equal(getattr(one, field), getattr(two, field)), field


@pytest.mark.parametrize(
    ("arrays", "options", "kind", "words"),
    [
        ({}, {"rows": "model/none"}, KeyError, "there is no tensor 'model/none'"),
        ({}, {"rows": None}, TypeError, "`rows` must be the name of a tensor of .*, got None"),
        ({}, {"slots": ["a", "b"]}, ValueError, "`slots` has 2 names, expected none, or 1"),
        ({"rows": ROWS[:, :5]}, {}, ValueError, r"model/rows has shape \(4000, 5\), expected \(40"),
        ({"rows": ROWS[:, 0]}, {}, ValueError, r"model/rows has shape \(4000,\), expected \(4000"),
        ({"rows": ROWS.astype("f8")}, {}, TypeError, "model/rows is torch.float64, expected float"),
        ({"ids": IDS[:9]}, {}, ValueError, r"model/ids has shape \(9,\), expected \(4000,\)"),
        ({"ids": IDS.astype("f8")}, {}, TypeError, "model/ids is torch.float64, expected integers"),
        ({"ids": np.full(4000, 2**63, "u8")}, {}, ValueError, "ids has .*, expected integers be"),
        ({"ids": np.append(IDS[:-1], IDS[0])}, {}, ValueError, "is|twice"),
        ({"ids": np.full(4000, 2**62)}, {"versions": "model/ids", "ids": None}, ValueError, ""),
        ({"ids": np.full(4000, 2**62 + 1)}, {"versions": "model/ids", "ids": None}, ValueError,
         "versions has 4611686018427387905, expected at most"),
    ],
)  # fmt: skip
def test_arrays_that_do_not_fit(
    arrays: Any, options: Any, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    np.savez(tmp_path / "u.npz", **{"ids": IDS, "rows": ROWS, **arrays})
    table = empty()
    names = {"ids": "model/ids", "rows": "model/rows", **options}
    if not words:
        assert checkpoint.import_table(tmp_path / "u.npz", table, **names) == 4000
        return
    with pytest.raises(kind, match=words):
        checkpoint.import_table(tmp_path / "u.npz", table, **names)
    assert len(table.core) == table.core.counted == 0


LISTS = pa.FixedSizeListArray.from_arrays(pa.array(ROWS[:3].reshape(-1)), 6)


@pytest.mark.parametrize(
    ("columns", "kind", "words"),
    [
        ({"id": [1, 2, 3]}, KeyError, "has no column embedding, expected one of"),
        ({"id": [1, 2, None], "embedding": LISTS}, ValueError, "id of .* has missing values"),
        ({"id": [1.0, 2, 3], "embedding": LISTS}, TypeError, "id is float64, expected integers"),
        ({"id": [1, 2, 2], "embedding": LISTS}, ValueError, "2"),
        ({"id": [1], "embedding": [[1.0]]}, TypeError, "embedding has lists of double, expected"),
        ({"id": [1], "embedding": pa.array([[1.0]], pa.list_(pa.float32()))}, ValueError,
         r"embedding has lists of \[1\] numbers, expected 6"),
        ({"id": [1], "embedding": pa.array([[1.0] * 5 + [None]], pa.list_(pa.float32()))},
         ValueError, "embedding has lists with missing numbers, expected numbers"),
        ({"id": [1], "embedding": [7]}, TypeError, "embedding is int64, expected lists of 6 numb"),
    ],
)  # fmt: skip
def test_columns_that_do_not_fit(
    columns: Any, kind: type[Exception], words: str, tmp_path: Path
) -> None:
    pyarrow.parquet.write_table(pa.table(columns), tmp_path / "u.parquet")
    table = empty()
    with pytest.raises(kind, match=words):
        checkpoint.import_table(tmp_path / "u.parquet", table)
    assert len(table.core) == table.core.counted == 0


def test_other_targets_and_files(tmp_path: Path) -> None:
    pyarrow.parquet.write_table(
        pa.table({"id": [1, 2, 3], "embedding": LISTS}), tmp_path / "u.parquet"
    )
    table = empty()
    assert checkpoint.import_table(tmp_path / "u.parquet", table) == 3
    with pytest.raises(ValueError, match=r"the table table has 3 rows .* expected an empty table"):
        checkpoint.import_table(tmp_path / "u.parquet", table)
    assert table.rows == 3
    target: Any = torch.nn.Embedding(3, 6)
    with pytest.raises(TypeError, match="must be a table"):
        checkpoint.import_table(tmp_path / "u.parquet", target)
    for name in ("u.parquet", "u.arrow"):
        (tmp_path / name).write_bytes(b"nothing of the kind")
        with pytest.raises(ValueError, match=f"{name} cannot be read as a table: "):
            checkpoint.import_table(tmp_path / name, empty())
