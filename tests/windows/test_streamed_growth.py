"""Streamed tables that grow: each epoch is that of a table in memory, in the source's own order."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pyarrow import parquet

import windeck as wd
from support.internals import original, plant
from support.streamed_tables import arrow_table, assert_same, read_both, write_files
from windeck.table import StreamedTable

OPTIONS: dict[str, Any] = {
    "context_length": 6,
    "prediction_length": 2,
    "target_columns": ["load"],
    "known_covariates": ["hour"],
    "static_covariates": ["area"],
}

Pair = tuple[wd.Windows, wd.Windows]


def windows_of(paths: Sequence[Path], **options: Any) -> Pair:
    """Return windows in memory and streamed."""
    memory, streamed = read_both(paths, **options)
    return wd.Windows(memory, **OPTIONS), wd.Windows(streamed, **OPTIONS)


def grown_files(folder: Path, kind: str, seed: int, part_rows: int = 9) -> list[Path]:
    """Write files of which the first two, and the first three, are smaller tables."""
    lengths = [40, 23, 31, 54, 17]
    cuts = np.cumsum(lengths)[:-1].tolist()
    return write_files(arrow_table(lengths, seed), folder, [20, *cuts[1:-1]], part_rows, kind)


def model(pairs: Sequence[Pair], positions: Sequence[int], seed: int) -> Iterator[dict[str, Any]]:
    """Yield the sample at each position of three epochs of each table, one by one, in memory."""
    epoch = 0
    before: list[tuple[wd.Windows, int]] = []
    while len(before) < 10 * sum(len(memory) for memory, _ in pairs):
        begun = [number for number, at in enumerate(positions) if at <= len(before)]
        memory, streamed = pairs[begun[-1]]
        order = streamed.default_order(len(memory), seed=seed, epoch=epoch)
        before += [(memory, int(sample)) for sample in order.take(np.arange(len(memory)))]
        epoch += 1
    for memory, sample in before:
        yield memory.gather([sample])


def stream_of(pairs: Sequence[Pair], positions: Sequence[int], seed: int) -> wd.Stream:
    sources = [streamed for _, streamed in pairs]
    grown = list(zip(positions[1:], sources[1:], strict=True))
    return wd.Stream(sources[0], seed=seed, grown=grown)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
def test_batches_are_those_of_tables_in_memory(data: st.DataObject) -> None:
    """At any batch size, also over borders of epochs, and resumed at any step and world size."""
    kind = data.draw(st.sampled_from(["parquet", "uncompressed", "lz4"]))
    seed = data.draw(st.integers(0, 9))
    group_bytes = data.draw(st.sampled_from([1, 900, 4096]))
    with tempfile.TemporaryDirectory() as folder:
        paths = grown_files(Path(folder), kind, seed)
        pairs = [windows_of(paths[:files], group_bytes=group_bytes) for files in (2, 3, 4)]
        later = data.draw(st.lists(st.integers(1, 400), min_size=2, max_size=2, unique=True))
        positions = [0, *sorted(later)]
        stream = stream_of(pairs, positions, seed)
        expected = list(model(pairs, positions, seed))
        size = data.draw(st.integers(1, 40))
        for start in range(0, 8 * size, size):
            rows = expected[start : start + size]
            whole = {key: np.concatenate([row[key] for row in rows]) for key in rows[0]}
            assert_same(stream.gather(range(start, start + size)), whole)
        # Another process, with another number of ranks.
        again = stream_of(pickle.loads(pickle.dumps(pairs)), positions, seed)
        world, own = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 9))
        loader = wd.Loader(stream, batch_size=size)
        for _ in range(data.draw(st.integers(1, 4))):
            next(iter(loader))
        state = json.loads(json.dumps(loader.state_dict()))
        start = state["position"]
        ranks = [
            wd.Loader(again, batch_size=own, rank=rank, world_size=world) for rank in range(world)
        ]
        found: list[Any] = []
        for loader in ranks:
            loader.load_state_dict(state)
            found.append(next(iter(loader)))
        count = sum(len(batch["start"]) for batch in found)
        rows = expected[start : start + count]
        for key in rows[0]:
            joined = np.concatenate([np.asarray(batch[key]) for batch in found])
            assert joined.tobytes() == np.concatenate([row[key] for row in rows]).tobytes()


def test_the_fingerprint_names_orders_that_differ(tmp_path: Path) -> None:
    paths = grown_files(tmp_path, "parquet", 0)
    (memory, small), (more, large) = windows_of(paths[:2]), windows_of(paths)
    plain, grown = wd.Stream(small, seed=3), wd.Stream(small, seed=3, grown=[(5, large)])
    length = len(small)
    assert grown.fingerprint_at(length) == plain.fingerprint
    assert grown.fingerprint["order"] == plain.fingerprint["order"]
    name = wd.Stream(large).fingerprint["order"]
    assert name != plain.fingerprint["order"]
    added = {key: value for key, value in grown.fingerprint.items() if key.startswith("grown.")}
    assert added.pop("grown.1.samples") == len(large)
    assert added.pop("grown.1.order") == name
    assert added == {f"grown.1.source.{key}": value for key, value in large.fingerprint.items()}
    # Orders that do not depend on the source have no field of their own, as before.
    for stream in (
        wd.Stream(memory, grown=[(5, more)]),
        wd.Stream(small, order=wd.Permutation, grown=[(5, large)]),
    ):
        assert not any(field.endswith(".order") for field in stream.fingerprint)


def test_states_of_other_tables_are_refused(tmp_path: Path) -> None:
    paths = grown_files(tmp_path, "parquet", 0)
    small, large, other = (windows_of(some)[1] for some in (paths[:2], paths, paths[:3]))
    loader = wd.Loader(wd.Stream(small), batch_size=4)
    next(iter(loader))
    before = loader.state_dict()
    grown = wd.Loader(wd.Stream(small, grown=[(4, large)]), batch_size=4)
    grown.load_state_dict(before)  # The epochs of the larger table are to come.
    batches = iter(grown)
    while grown.state_dict()["position"] <= len(small):
        next(batches)
    after = grown.state_dict()
    wd.Loader(wd.Stream(small, grown=[(4, large)]), batch_size=9).load_state_dict(after)
    with pytest.raises(ValueError, match=r"the state does not belong to this data"):
        wd.Loader(wd.Stream(small, grown=[(4, other)]), batch_size=4).load_state_dict(after)
    with pytest.raises(ValueError, match=r"saved with a source in `grown` from epoch 1 on"):
        wd.Loader(wd.Stream(small), batch_size=4).load_state_dict(after)


@pytest.fixture
def loaded(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Any, int]]:
    """The reader of each group that is read, and the number of windows in it."""
    found = []
    load = original("streamed.BlockedWindows.load")

    def counted(self: Any, blocks: tuple[int, ...], *queued: Any) -> Any:
        found.append((self, int(np.diff(self.block_offsets)[list(blocks)].sum())))
        return load(self, blocks, *queued)

    plant(monkeypatch, "streamed.BlockedWindows.load", counted)
    return found


def held_groups(windows: wd.Windows, loaded: list[tuple[Any, int]]) -> list[tuple[int, ...]]:
    """Return the groups of windows that are in memory."""
    assert isinstance(windows.table, StreamedTable)
    readers = {id(one): one for one, _ in loaded if one.block_offsets[-1] == len(windows)}
    return [group for one in readers.values() for group in windows.table.groups.held(one)]


def test_each_window_is_read_once_an_epoch_also_at_the_border(
    tmp_path: Path, loaded: list[tuple[Any, int]]
) -> None:
    paths = grown_files(tmp_path, "parquet", 0)
    small, large = (windows_of(some, group_bytes=200)[1] for some in (paths[:2], paths))
    stream = wd.Stream(small, grown=[(len(small) + 1, large)])
    end = 2 * len(small) + len(large)
    for position in range(end - 1):
        stream.gather([position])
        of_small = held_groups(small, loaded)
        assert len(of_small) <= 2
        # What is not served any more does not stay in memory.
        assert not (of_small and position >= 2 * len(small))
    # The next epoch's first group may have been read ahead.
    sizes = {len(small): 0, len(large): 0}
    for reader, windows in loaded:
        sizes[int(reader.block_offsets[-1])] += windows
    assert sizes[len(small)] == 2 * len(small)
    assert len(large) <= sizes[len(large)] < 2 * len(large)
    # Back again, as after a resume.
    assert (
        stream.gather([0])["start"].tolist() == small.gather(stream.samples([0]))["start"].tolist()
    )
    assert held_groups(small, loaded)
    assert not held_groups(large, loaded)


def test_explain_io_counts_both_tables(tmp_path: Path) -> None:
    paths = grown_files(tmp_path, "parquet", 0)
    small, large = windows_of(paths[:2])[1], windows_of(paths)[1]
    stream = wd.Stream(small, grown=[(1, large)])
    assert stream.blocks_of([0])[1].max() < len(small.block_bytes)
    assert stream.blocks_of([len(small)])[1].min() >= len(small.block_bytes)
    assert len(stream.block_bytes) == len(small.block_bytes) + len(large.block_bytes)


def table_of(folder: Path, files: dict[str, dict[str, Any]], **options: Any) -> wd.Windows:
    """Write files and return windows of all files of the folder."""
    folder.mkdir(exist_ok=True)
    for name, columns in files.items():
        parquet.write_table(pa.table(columns), folder / f"{name}.parquet")
    keys = options.pop("keys", None)
    given = {"id_columns": "id", "timestamp_column": "time", "categories": ["kind"]}
    table = wd.Table.read(folder, in_memory=False, **{**given, **options})
    return wd.Windows(
        table, context_length=1, target_columns="x", past_covariates="kind", keys=keys
    )


def columns(name: str, kinds: str = "ab") -> dict[str, Any]:
    count = len(kinds)
    return {"id": [name] * count, "time": range(count), "kind": list(kinds), "x": [0.5] * count}


class TestOldFiles:
    def test_more_files_are_accepted(self, tmp_path: Path) -> None:
        small = table_of(tmp_path / "a", {"1": columns("n"), "2": columns("o", "ba")})
        large = table_of(tmp_path / "a", {"3": columns("p", "bca")})
        stream = wd.Stream(small, grown=[(0, small), (1, large)])
        assert stream.gather(range(4, 11))["series_id"].max() == 2
        small.check_growth(large)
        small.check_growth(small)
        # A copy elsewhere, also with other times of change.
        shutil.copytree(tmp_path / "a", tmp_path / "b")
        os.utime(tmp_path / "b" / "1.parquet", ns=(0, 0))
        small.check_growth(table_of(tmp_path / "b", {}))
        memory = wd.Windows(
            wd.Table.from_columns({"x": np.zeros(3)}), context_length=1, target_columns="x"
        )
        for one, other in ((small, memory), (memory, small)):  # Series have names in one alone.
            with pytest.raises(ValueError, match="series have other numbers in the larger one"):
                one.check_growth(other)
        small.check_growth(object())


ORDERS = {"a": ["n", "o"], "larger": ["n", "o", "p"], "before": ["m", "n", "o"], "fewer": ["n"]}
SOURCES: dict[str, Any] = {
    "windows": lambda windows: windows,
    "balanced": lambda windows: windows.balanced(),
    "device": lambda windows: windows.to("cpu"),
    "balanced on a device": lambda windows: windows.to("cpu").balanced(),
}


@pytest.mark.parametrize("source", SOURCES)
def test_series_keep_their_numbers_in_memory_too(source: str) -> None:
    """A batch of the larger table has the same number for a series as one of the smaller."""

    def made(order: str, keys: Any = None) -> Any:
        names = ORDERS[order]
        data = {"x": np.arange(3.0 * len(names)), "id": np.repeat(names, 3)}
        table = wd.Table.from_columns(data, id_columns="id")
        windows = wd.Windows(table, context_length=2, target_columns="x", keys=keys)
        return SOURCES[source](windows)

    wd.Stream(made("a"), grown=[(9, made("larger"))])
    for order in ("before", "fewer"):
        with pytest.raises(ValueError, match="series have other numbers in the larger one"):
            wd.Stream(made("a"), grown=[(9, made(order))])
        wd.Stream(made("a", "past_target"), grown=[(9, made(order, "past_target"))])


def test_categories_keep_their_codes_in_memory_too() -> None:
    def made(kinds: str) -> wd.Windows:
        data = pa.table({"x": np.zeros(len(kinds)), "kind": list(kinds)})
        table = wd.Table.from_arrow(data, categories="kind")
        return wd.Windows(table, context_length=1, target_columns="x", past_covariates="kind")

    wd.Stream(made("ab"), grown=[(9, made("abc"))])
    with pytest.raises(ValueError, match="categories of 'kind' have other codes in the larger one"):
        wd.Stream(made("ab"), grown=[(9, made("bac"))])


class TestChangedFiles:
    def test_a_file_that_changed(self, tmp_path: Path) -> None:
        small = table_of(tmp_path / "a", {"1": columns("n"), "2": columns("o")})
        large = table_of(tmp_path / "a", {"2": columns("o", "bab"), "3": columns("p")})
        with pytest.raises(ValueError, match=r"cannot grow: '.*2.parquet' changed since the small"):
            wd.Stream(small, grown=[(1, large)])

    def test_a_file_that_was_written_again(self, tmp_path: Path) -> None:
        small = table_of(tmp_path / "a", {"1": columns("n")})
        os.utime(tmp_path / "a" / "1.parquet", ns=(0, 5_000))
        large = table_of(tmp_path / "a", {"2": columns("o")})
        with pytest.raises(ValueError, match=r"cannot grow: '.*1.parquet' changed since the small"):
            wd.Stream(small, grown=[(1, large)])

    def test_a_file_that_is_missing(self, tmp_path: Path) -> None:
        small = table_of(tmp_path / "a", {"1": columns("n"), "2": columns("o")})
        (tmp_path / "a" / "1.parquet").unlink()
        large = table_of(tmp_path / "a", {"3": columns("p"), "4": columns("q")})
        with pytest.raises(ValueError, match=r"has neither '.*1.parquet' nor a file of its size"):
            wd.Stream(small, grown=[(1, large)])
        other = table_of(tmp_path / "b", {"1": columns("n", "abc"), "2": columns("o")})
        with pytest.raises(ValueError, match=r"has neither '.*1.parquet' nor a file of its size"):
            wd.Stream(small, grown=[(1, other)])

    def test_series_of_other_numbers(self, tmp_path: Path) -> None:
        small = table_of(tmp_path / "a", {"2": columns("o")})
        large = table_of(tmp_path / "a", {"1": columns("n")})
        with pytest.raises(ValueError, match=r"cannot grow: series have other numbers"):
            wd.Stream(small, grown=[(1, large)])
        keys = ["past_target", "start"]
        small, large = (
            wd.Windows(one.table, context_length=1, target_columns="x", keys=keys)
            for one in (small, large)
        )
        assert wd.Stream(small, grown=[(1, large)]).gather([2, 5])["start"].shape == (2,)

    def test_categories_of_other_codes(self, tmp_path: Path) -> None:
        keys = ["past_target", "past_covariates"]
        small = table_of(tmp_path / "a", {"2": columns("o", "ab")}, keys=keys)
        large = table_of(tmp_path / "a", {"1": columns("n", "ba")}, keys=keys)
        with pytest.raises(ValueError, match=r"cannot grow: categories of 'kind' have other codes"):
            wd.Stream(small, grown=[(1, large)])
        named = [
            table_of(tmp_path / name, {}, keys=keys, categories={"kind": ["b", "a"]})
            for name in ("a", "a")
        ]
        wd.Stream(named[0], grown=[(1, named[1])])
