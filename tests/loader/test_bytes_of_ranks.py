"""Bytes that 8 ranks really read of files, beside those of `Loader.explain_io` and of the data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import windeck as wd
from support.corpora import write_corpus
from support.counted_files import Counted, CountedFileSystem
from support.internals import plant

RANKS, BATCH = 8, 16
#: Rows of 16 bytes in record batches, rows of row groups, and bytes of a group of blocks.
SIZES = {
    "uncompressed": (400_000, 5000, 400_000),
    "zstd": (800_000, 45_000, 800_000),
    "parquet": (2_000_000, 110_000, 2_000_000),
    "prepared": (2_000_000, 110_000, 2_000_000),
}
#: Of Parquet the first pages of a row group are read, which are many bytes of a small one.
KINDS = [
    "uncompressed",
    "zstd",
    pytest.param("parquet", marks=pytest.mark.slow),
    pytest.param("prepared", marks=pytest.mark.slow),
]


def write(folder: Path, kind: str) -> Path:
    """Write two files of series of 20,000 or 100,000 rows."""
    rows, part_rows, _ = SIZES[kind]
    folder.mkdir()
    for number in range(2):
        draw = np.random.default_rng(number)
        values: dict[str, Any] = {name: draw.standard_normal(rows) for name in ("x0", "x1")}
        series = np.repeat(np.arange(number * 20, number * 20 + 20), rows // 20)
        table, path = pa.table({"id": series} | values), folder / f"part{number}"
        if kind in ("parquet", "prepared"):
            options: dict[str, Any] = {"row_group_size": part_rows, "data_page_size": 1 << 16}
            parquet.write_table(table, f"{path}.parquet", use_dictionary=["id"], **options)
        else:
            feather.write_feather(table, f"{path}.arrow", compression=kind, chunksize=part_rows)
    return folder


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    home = tmp_path_factory.mktemp("files")

    def of_kind(kind: str) -> Path:
        if kind == "prepared" and not (home / kind).exists():
            wd.prepare(
                write(home / "raw", kind), home / kind, id_columns="id", row_group_bytes=2_600_000
            )
        return home / kind if (home / kind).exists() else write(home / kind, kind)

    return of_kind


def windows_of(folder: Path, group_bytes: int, stride: int = 16, **options: Any) -> wd.Windows:
    options |= {"id_columns": "id", "in_memory": False, "group_bytes": group_bytes}
    table = wd.Table.read(folder, columns=["x0", "x1"], **options)
    return wd.Windows(table, context_length=24, prediction_length=8, stride=stride)


def bytes_of_ranks(
    loader_of: Callable[[int], wd.Loader],
    counted: Any,
    resident_bytes: int | None,
    ranks: Iterable[int] = range(RANKS),
) -> tuple[int, int]:
    """Return the bytes that ranks read in an epoch, and those told beforehand."""
    found = told = 0
    for rank in ranks:
        loader = loader_of(rank)
        plan = loader.explain_io(ranks=[rank], resident_bytes=resident_bytes)
        told += plan.bytes_read[rank]
        before = counted.bytes
        assert sum(1 for _ in loader) == plan.steps
        found += counted.bytes - before
    return found, told


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("lanes", [None, 4, 8])
def test_tables(
    files: Callable[[str], Path], kind: str, lanes: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Small, as the record batches are.
    plant(monkeypatch, "blocks.GAP_BYTES", 1 << 8)
    folder, group_bytes = files(kind), SIZES[kind][-1]
    first = windows_of(folder, group_bytes)
    counted = Counted(monkeypatch)
    order: Any = first.default_order
    if lanes is not None:
        order = partial(wd.Lanes, lanes=lanes, unit=RANKS * BATCH // lanes, order=order)

    def loader_of(rank: int) -> wd.Loader:
        windows = windows_of(folder, group_bytes)
        options: dict[str, Any] = {"order": order, "batch_size": BATCH, "drop_last": True}
        return wd.Loader(windows, **options, rank=rank, world_size=RANKS)

    # Two groups.
    in_group = first.default_order.keywords["blocks_in_buffer"]  # type: ignore[attr-defined]
    resident = 2 * in_group * int(first.block_bytes.max())
    # Without lanes all ranks read all.
    ranks = (5,) if lanes is None else range(RANKS)
    found, told = bytes_of_ranks(loader_of, counted, resident, ranks)
    assert found == pytest.approx(told, rel=0.05)


@pytest.mark.parametrize(("lanes", "world", "batch"), [(None, 3, 20), (8, 8, 20), (8, 3, 16)])
def test_tables_in_other_steps_than_those_of_the_lanes(
    files: Callable[[str], Path],
    lanes: int | None,
    world: int,
    batch: int,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    plant(monkeypatch, "blocks.GAP_BYTES", 1 << 8)
    folder, budget = files("uncompressed"), None
    order: Any = windows_of(folder, 400_000).default_order
    if lanes is not None:
        budget = 1 << 26  # All lanes; without lanes groups of the next epoch would be read too.
        order = partial(wd.Lanes, lanes=lanes, unit=16, order=order)
    counted = Counted(monkeypatch)

    def loader_of(rank: int) -> wd.Loader:
        windows = windows_of(folder, 400_000, memory_budget=budget)
        return wd.Loader(windows, order=order, batch_size=batch, rank=rank, world_size=world)

    found, told = bytes_of_ranks(loader_of, counted, None, (world - 1,))
    assert found == pytest.approx(told, rel=0.05)


def corpus(folder: Path, parts: int, seed: int) -> Path:
    """Write shards of 20 documents of 50 to 400 tokens."""
    draw = np.random.default_rng(seed)
    shards = {
        f"c4/x.part{part}": [
            draw.integers(1, 60_000, size=size).tolist() for size in draw.integers(50, 400, 20)
        ]
        for part in range(parts)
    }
    return write_corpus(folder, shards)


@pytest.mark.parametrize("lanes", [None, 4, 8])
@pytest.mark.parametrize("options", [{}, {"order": "mixed", "mixed_shards": 4}], ids=str)
def test_documents(tmp_path: Path, options: dict[str, Any], lanes: int | None) -> None:
    folder, counted = corpus(tmp_path, 60, 0), CountedFileSystem()
    more: dict[str, Any] = {}
    if lanes is not None:
        unit = RANKS * 4 // lanes
        more["order"] = partial(wd.Lanes, lanes=lanes, unit=unit, order=wd.Sequential)

    def loader_of(rank: int) -> wd.Loader:
        documents = wd.Documents(str(folder), filesystem=counted)
        packed = wd.PackedSequences(documents, sequence_length=128, **options)
        return wd.Loader(packed, batch_size=4, rank=rank, world_size=RANKS, **more)

    found, told = bytes_of_ranks(loader_of, counted, None)
    assert found == pytest.approx(told, rel=0.05)


@pytest.mark.parametrize("options", [{}, {"order": "mixed", "mixed_shards": 4}], ids=str)
@pytest.mark.parametrize(("world", "batch"), [(8, 5), (3, 4), (5, 7)])
def test_documents_in_other_steps_than_those_of_the_lanes(
    tmp_path: Path, options: dict[str, Any], world: int, batch: int
) -> None:
    folder, counted = corpus(tmp_path, 30, 0), CountedFileSystem()
    order: Any = partial(wd.Lanes, lanes=8, unit=4, order=wd.Sequential)

    def loader_of(rank: int) -> wd.Loader:
        documents = wd.Documents(str(folder), filesystem=counted)
        packed = wd.PackedSequences(documents, sequence_length=128, **options)
        return wd.Loader(packed, order=order, batch_size=batch, rank=rank, world_size=world)

    found, told = bytes_of_ranks(loader_of, counted, None, range(world))
    assert found == pytest.approx(told, rel=0.05)


@pytest.mark.parametrize("lanes", [pytest.param(None, marks=pytest.mark.slow), 8])
def test_mixtures_of_documents(tmp_path: Path, lanes: int | None) -> None:
    counted = CountedFileSystem()
    # Nearly an epoch of both: remote shards are opened ahead up to its end.
    folders = [corpus(tmp_path / str(part), 60, part) for part in range(2)]

    length = min(len(wd.PackedSequences(wd.Documents(one), sequence_length=128)) for one in folders)
    steps = 2 * length // (RANKS * 4)

    def loader_of(rank: int) -> wd.Loader:
        parts: dict[str, Any] = {}
        for folder, share in zip(folders, (0.5, 0.5), strict=True):
            documents = wd.Documents(str(folder), filesystem=counted)
            packed: Any = wd.PackedSequences(documents, sequence_length=128)
            if lanes is not None:
                unit = int(share * RANKS * 4) // lanes
                packed = wd.Stream(
                    packed, order=partial(wd.Lanes, lanes=lanes, unit=unit, order=wd.Sequential)
                )
            parts[folder.name] = (packed, share)
        options: dict[str, Any] = {"batch_size": 4, "steps_per_epoch": steps}
        return wd.Loader(wd.Mixture(parts), **options, rank=rank, world_size=RANKS)

    found, told = bytes_of_ranks(loader_of, counted, None)
    assert found == pytest.approx(told, rel=0.05)


#: Lanes, unit, ranks and batch size: of one step, of another step, and ranks that share lanes.
MIXED_LANES = [(8, 4, 8, 4), (16, 2, 8, 4), (8, 4, 8, 5), (8, 4, 3, 7)]


@pytest.mark.parametrize(("lanes", "unit", "world", "batch"), MIXED_LANES)
def test_mixtures_of_documents_in_lanes(
    tmp_path: Path, lanes: int, unit: int, world: int, batch: int
) -> None:
    counted = CountedFileSystem()
    folders = [corpus(tmp_path / str(part), 40, part) for part in range(2)]

    def loader_of(rank: int) -> wd.Loader:
        parts: dict[str, Any] = {}
        for folder, share in zip(folders, (0.7, 0.3), strict=True):
            documents = wd.Documents(str(folder), filesystem=counted)
            parts[folder.name] = (wd.PackedSequences(documents, sequence_length=128), share)
        options: dict[str, Any] = {"batch_size": batch, "steps_per_epoch": 32}
        mixture = wd.Mixture(parts, lanes=lanes, unit=unit)
        return wd.Loader(mixture, **options, rank=rank, world_size=world)

    found, told = bytes_of_ranks(loader_of, counted, None, range(world))
    assert found == pytest.approx(told, rel=0.05)
    alone = wd.Loader(loader_of(0).stream, batch_size=world * batch).explain_io(steps=32)
    # Of 40 files for 8 lanes many are read by two ranks.
    assert (found < 1.5 * alone.bytes_read[0]) == (world * batch == lanes * unit)


@pytest.mark.parametrize(
    ("lanes", "unit", "world", "batch"),
    [
        pytest.param(*case, marks=[pytest.mark.slow] * (case not in MIXED_LANES[1:3]))
        for case in MIXED_LANES
    ],
)
def test_mixtures_of_tables_in_lanes(
    files: Callable[[str], Path],
    monkeypatch: pytest.MonkeyPatch,
    lanes: int,
    unit: int,
    world: int,
    batch: int,
) -> None:
    plant(monkeypatch, "blocks.GAP_BYTES", 1 << 8)
    plant(monkeypatch, "streamed.SKIPPED_ROWS", 1 << 5)
    folder, counted = files("uncompressed"), Counted(monkeypatch)

    def mixture(in_memory: bool = False) -> wd.Mixture:
        parts: dict[str, Any] = {}
        for seed, share in enumerate((0.505, 0.495)):
            order: Any = partial(wd.Lanes, lanes=lanes, order=first.default_order)
            if in_memory:
                table = wd.Table.read(folder, columns=["x0", "x1"], id_columns="id")
                windows = wd.Windows(table, context_length=24, prediction_length=8, stride=16)
            else:
                windows = windows_of(folder, 400_000, memory_budget=1 << 26)
            parts[f"part{seed}"] = (wd.Stream(windows, order=order, seed=seed), share)
        return wd.Mixture(parts, lanes=lanes, unit=16 * unit)

    first = windows_of(folder, 400_000)
    # Nearly an epoch of both: groups that are read ahead are needed.
    steps = 196 * len(first) // 100 // (16 * world * batch)

    def loader_of(rank: int, data: Any = None) -> wd.Loader:
        options: dict[str, Any] = {"batch_size": 16 * batch, "steps_per_epoch": steps}
        return wd.Loader(data or mixture(), **options, rank=rank, world_size=world)

    found, told = bytes_of_ranks(loader_of, counted, None, (world - 1,))
    assert found == pytest.approx(told, rel=0.05)
    every = zip(loader_of(1), loader_of(1, mixture(in_memory=True)), strict=True)
    for batch_found, expected in islice(every, 20):
        assert all((batch_found[key] == expected[key]).all() for key in expected)


@pytest.mark.slow
def test_mixtures_of_tables(files: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "blocks.GAP_BYTES", 1 << 8)
    plant(monkeypatch, "streamed.SKIPPED_ROWS", 1 << 5)
    folder, counted = files("uncompressed"), Counted(monkeypatch)

    def loader_of(rank: int) -> wd.Loader:
        parts: dict[str, Any] = {}
        for seed in range(2):
            windows = windows_of(folder, 50_000, stride=8)
            order: Any = partial(wd.Lanes, lanes=RANKS, unit=32, order=windows.default_order)
            parts[f"part{seed}"] = (wd.Stream(windows, order=order, seed=seed), 0.5)
        options: dict[str, Any] = {"batch_size": 64, "steps_per_epoch": 384}
        return wd.Loader(wd.Mixture(parts), **options, rank=rank, world_size=RANKS)

    found, told = bytes_of_ranks(loader_of, counted, None)
    assert found == pytest.approx(told, rel=0.05)


def test_rows_behind_blocks_are_no_data(tmp_path: Path) -> None:
    """A series ends where the third of four record batches does."""
    series = np.repeat([0, 1], [300, 100])
    table = pa.table({"id": series, "x": np.arange(400.0)})
    for kind in ("uncompressed", "zstd"):
        path = tmp_path / f"{kind}.arrow"
        feather.write_feather(table, path, compression=kind, chunksize=100)
        read = wd.Table.read(path, id_columns="id", in_memory=False, group_bytes=25_600)
        windows = wd.Windows(read, context_length=7, prediction_length=3)
        sizes = windows.block_bytes
        behind = [72, 72, 0, 0] if kind == "uncompressed" else [sizes[1], sizes[2], 0, 0]
        assert windows.bytes_behind_blocks.tolist() == behind
        plan = wd.Loader(windows, batch_size=8).explain_io()
        assert plan.data_bytes == sizes.sum()
        assert plan.bytes_read[0] == sizes.sum() + sum(behind)
