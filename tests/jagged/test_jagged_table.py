"""Jagged batches equal those of a model that gathers Python lists."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import feather, parquet

import windeck as wd
from support.host_gpu import host_gpu

IDS = st.integers(-(2**63), 2**63 - 1)
LISTS = st.one_of(st.none(), st.lists(IDS, max_size=4))
ROWS = st.lists(st.tuples(LISTS, LISTS, st.floats(0, 1)), min_size=1, max_size=12)


def table_of(rows: list[Any], *, layout: Any = "jagged") -> wd.JaggedTable:
    one, other, label = zip(*rows, strict=True)
    data = {
        "one": pa.array(one, pa.list_(pa.int64())),
        "other": pa.array(other, pa.large_list(pa.int64())),
        "label": pa.array(label, pa.float64()),
    }
    return wd.JaggedTable.from_arrow(pa.table(data), layout=layout)


def model(rows: list[Any], column: int, indices: list[int]) -> tuple[list[int], list[int]]:
    """Return values and offsets of some rows, by a loop."""
    values: list[int] = []
    offsets = [0]
    for index in indices:
        values += rows[index][column] or []
        offsets.append(len(values))
    return values, offsets


@settings(max_examples=60, deadline=None)
@given(rows=ROWS, data=st.data())
def test_batches_equal_the_model(rows: list[Any], data: Any) -> None:
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    batch = table_of(rows).gather(indices)
    assert [*batch] == ["label", "one", "one_offsets", "other", "other_offsets"]
    for column, key in enumerate(("one", "other")):
        values, offsets = model(rows, column, indices)
        assert batch[key].tolist() == values
        assert batch[f"{key}_offsets"].tolist() == offsets
        assert batch[key].dtype == batch[f"{key}_offsets"].dtype == np.int64
    assert batch["label"].tolist() == [rows[index][2] for index in indices]
    assert all(array.flags.writeable and array.flags.c_contiguous for array in batch.values())


@settings(max_examples=40, deadline=None)
@given(rows=ROWS, data=st.data())
def test_the_keyed_layout_is_key_by_key(rows: list[Any], data: Any) -> None:
    indices = data.draw(st.lists(st.integers(0, len(rows) - 1), max_size=9))
    batch = table_of(rows, layout="keyed").gather(indices)
    lists = [rows[index][column] or [] for column in (0, 1) for index in indices]
    assert batch["values"].tolist() == [value for one in lists for value in one]
    assert batch["lengths"].tolist() == [len(one) for one in lists]
    assert batch["offsets"].tolist() == np.cumsum([0, *map(len, lists)]).tolist()
    assert [*batch] == ["label", "values", "lengths", "offsets"]


ROW: list[dict[str, Any]] = [
    {"seen": [1, 2, 3], "share": [0.5, 0.25, 0.25], "age": 3, "clicked": True},
    {"seen": [], "share": [], "age": 4, "clicked": False},
    {"seen": None, "share": None, "age": 5, "clicked": False},
    {"seen": [-4], "share": [1.0], "age": 6, "clicked": True},
] * 5


def write(folder: Path, suffix: str) -> Path:
    """Write the rows into two files."""
    folder.mkdir()
    for part in range(2):
        data = pa.Table.from_pylist(ROW[part * 8 : 8 + part * 12])
        path = folder / f"clicks.part{part}.{suffix}"
        if suffix == "parquet":
            parquet.write_table(data, path, row_group_size=3)
        else:
            feather.write_feather(data, path, compression="uncompressed", chunksize=3)
    return folder


@pytest.mark.parametrize("suffix", ["parquet", "arrow"])
def test_files_are_read_in_order(tmp_path: Path, suffix: str) -> None:
    table = wd.JaggedTable.read(write(tmp_path / "data", suffix), weights={"seen": "share"})
    assert len(table) == 20
    assert (table.keys, table.column_names) == (("seen",), ("age", "clicked"))
    batch = table.gather(np.arange(20))
    assert batch["seen"].tolist() == [1, 2, 3, -4] * 5
    assert batch["seen_weights"].tolist() == [0.5, 0.25, 0.25, 1.0] * 5
    assert batch["seen_offsets"].tolist() == np.cumsum([0, *[3, 0, 0, 1] * 5]).tolist()
    assert batch["age"].tolist() == [row["age"] for row in ROW]
    assert batch["clicked"].dtype == np.bool_
    same = wd.JaggedTable.from_arrow(pl.DataFrame(ROW), weights={"seen": "share"})
    assert same.fingerprint == table.fingerprint


def test_columns_are_selected(tmp_path: Path) -> None:
    path = write(tmp_path / "data", "parquet")
    table = wd.JaggedTable.read(path, lists="seen", columns=["clicked"])
    assert [*table.gather([0])] == ["clicked", "seen", "seen_offsets"]
    plain = wd.JaggedTable.read(path, lists=[], columns="age", layout="keyed")
    assert {key: array.tolist() for key, array in plain.gather([3, 0]).items()} == {"age": [6, 3]}
    narrow = wd.JaggedTable.read(path, lists="share", columns=(), dtype="float32")
    assert narrow.gather([0])["share"].dtype == np.float32


def served(loader: wd.Loader) -> list[tuple[Any, ...]]:
    """Return the rows of one epoch as Python values."""
    found = []
    for batch in loader:
        offsets = batch["seen_offsets"].tolist()
        for row, age in enumerate(batch["age"].tolist()):
            found.append((age, batch["seen"][offsets[row] : offsets[row + 1]].tolist()))
    return found


def numbered(count: int, first: int = 0, lists: Any = None) -> wd.JaggedTable:
    """Return a table whose row r has the age r and r % 5 ids that begin with 10 r."""
    rows = range(first, first + count)
    seen = [[10 * r + j for j in range(r % 5)] for r in rows]
    data = {"seen": pa.array(seen, pa.list_(pa.int64())), "age": list(rows)}
    return wd.JaggedTable.from_arrow(pa.table(data))


@pytest.mark.parametrize(("sizes", "stop"), [((3, 7), 2), ((8, 2), 1), ((5, 5), 3)])
def test_a_resumed_loader_continues_with_other_ranks(sizes: tuple[int, int], stop: int) -> None:
    whole = served(wd.Loader(numbered(40), batch_size=40, shuffle=True, seed=3))
    order = wd.Permutation(40, seed=3)[:]
    assert whole == [(r, [10 * r + j for j in range(r % 5)]) for r in order.tolist()]
    first = wd.Loader(numbered(40), batch_size=sizes[0], shuffle=True, seed=3)
    batches = iter(first)
    for _ in range(stop):
        next(batches)
    state = first.state_dict()
    ranks = []
    for rank in range(2):
        loader = wd.Loader(
            numbered(40), batch_size=sizes[1], shuffle=True, seed=3, rank=rank, world_size=2
        )
        loader.load_state_dict(state)
        ranks.append(served(loader))
    assert sorted(ranks[0] + ranks[1]) == sorted(whole[stop * sizes[0] :])
    assert ranks[0][: sizes[1]] == whole[stop * sizes[0] : stop * sizes[0] + sizes[1]]


def test_mixtures_and_growing_sources_take_lists_from_the_right_table() -> None:
    parts = {"old": (numbered(30), 1), "new": (numbered(30, first=100), 2)}
    loader = wd.Loader(wd.Mixture(parts, seed=5), batch_size=12)
    seen = set()
    for _ in zip(range(8), loader, strict=False):
        pass
    for batch in (loader.peek(),):
        offsets = batch["seen_offsets"].tolist()
        for row, age in enumerate(batch["age"].tolist()):
            ids = batch["seen"][offsets[row] : offsets[row + 1]].tolist()
            assert ids == [10 * age + j for j in range(age % 5)]
            seen.add(age >= 100)
    assert seen == {False, True}
    grown = wd.Stream(numbered(6), seed=1, grown=[(6, numbered(9, first=50))])
    found = grown.gather(np.arange(15))
    bounds = found["seen_offsets"]
    for row, age in enumerate(found["age"].tolist()):
        ids = found["seen"][bounds[row] : bounds[row + 1]].tolist()
        assert ids == [10 * age + j for j in range(age % 5)]
    assert sorted(found["age"].tolist()) == [*range(6), *range(50, 59)]


def test_tables_with_other_lists_do_not_mix() -> None:
    other = wd.JaggedTable.from_arrow(pa.table({"bought": [[1]], "age": [2]}))
    with pytest.raises(ValueError, match="batches of all parts must be alike"):
        wd.Mixture({"one": (numbered(3), 1), "other": (other, 1)})


def test_pinned_batches_have_the_rows_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    plain = wd.Loader(numbered(20), batch_size=20).peek()
    host_gpu(monkeypatch)
    loader = wd.Loader(numbered(20), batch_size=6, pin_memory=True, prefetch=0)
    loader.exclude(0, 3)
    pinned = next(iter(loader))
    assert pinned["age"].tolist() == plain["age"][3:9].tolist()
    assert pinned["seen"].tolist() == [30, 31, 32, 40, 41, 42, 43, 60, 70, 71, 80, 81, 82]


def test_copies_and_pickles_serve_the_same_rows() -> None:
    table = numbered(20)
    batch = table.gather([4, 8])
    for other in (copy.copy(table), pickle.loads(pickle.dumps(table))):
        assert other.fingerprint == table.fingerprint
        found = other.gather([4, 8])
        assert all(np.array_equal(found[key], batch[key]) for key in batch)
    map_style: Any = wd.MapDataset(table)
    assert map_style[3]["seen"].tolist() == [30, 31, 32]
    assert map_style[[3, 1]]["seen_offsets"].tolist() == [0, 3, 4]


@pytest.mark.parametrize("index", [-1, 20])
def test_a_row_out_of_range_is_an_error(index: int) -> None:
    with pytest.raises(IndexError, match=f"row {index} is out of range for 20 rows"):
        numbered(20).gather([3, index])


def test_the_fingerprint_shows_changes() -> None:
    base = {"seen": [[1, 2], [3], []], "age": [1, 2, 3]}
    first = wd.JaggedTable.from_arrow(pa.table(base)).fingerprint
    narrow = pa.array(base["seen"], pa.list_(pa.uint8()))
    same = wd.JaggedTable.from_arrow(pa.table({**base, "seen": narrow}), layout="keyed")
    assert same.fingerprint == first
    assert [*first] == ["rows", "list.seen", "column.age"]
    changes: list[dict[str, Any]] = [
        {"seen": [[1, 2], [4], []]},
        {"seen": [[1], [2, 3], []]},
        {"seen": [[1, 2], [], [3]]},
        {"age": [1, 2, 4]},
        {"age": [1.0, 2.0, 3.0]},
    ]
    for change in changes:
        other = wd.JaggedTable.from_arrow(pa.table({**base, **change})).fingerprint
        assert other != first
    loader = wd.Loader(wd.JaggedTable.from_arrow(pa.table(base)), batch_size=1)
    wrong = wd.Loader(wd.JaggedTable.from_arrow(pa.table({**base, **changes[0]})), batch_size=1)
    with pytest.raises(ValueError, match=r"its fingerprint has source.list.seen"):
        wrong.load_state_dict(loader.state_dict())


def test_names_of_a_batch_do_not_collide() -> None:
    with pytest.raises(ValueError, match="two arrays 'seen_offsets'"):
        wd.JaggedTable.from_arrow(pa.table({"seen": [[1]], "seen_offsets": [1]}))
    with pytest.raises(ValueError, match="two arrays 'values'"):
        wd.JaggedTable.from_arrow(pa.table({"seen": [[1]], "values": [1]}), layout="keyed")


def test_the_keyed_layout_needs_one_dtype() -> None:
    data = pa.table({"seen": [[1]], "share": [[0.5]]})
    with pytest.raises(TypeError, match="lists of one dtype, got 'seen' int64, 'share' float64"):
        wd.JaggedTable.from_arrow(data, layout="keyed")
    more = data.append_column("liked", pa.array([[2]]))
    with pytest.raises(ValueError, match="weights of all lists or of none, got none of 'liked'"):
        wd.JaggedTable.from_arrow(more, weights={"seen": "share"}, layout="keyed")
    with pytest.raises(ValueError, match="`layout` must be 'jagged' or 'keyed', got 'flat'"):
        wd.JaggedTable.from_arrow(data, layout="flat")  # type: ignore[arg-type]
