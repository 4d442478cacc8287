"""Windows of streamed tables give the batches of tables in memory."""

from __future__ import annotations

import functools
import pickle
import tempfile
import threading
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import windeck as wd
from support.internals import original, plant
from support.streamed_tables import (
    Case,
    arrow_table,
    assert_same,
    cases,
    read_both,
    write_files,
)
from windeck.table import Blocks

OPTIONS: dict[str, Any] = {
    "context_length": 8,
    "prediction_length": 4,
    "target_columns": ["load"],
    "known_covariates": ["wind"],
    "static_covariates": ["area"],
}


def both_windows(case: Case, folder: Path) -> tuple[wd.Windows, wd.Windows] | None:
    """Return windows in memory and streamed, None if there are none."""
    memory, streamed = case.tables(folder)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        made = [_windows_or_error(table, case.windows) for table in (memory, streamed)]
    if isinstance(made[0], str):
        assert made[0] == made[1]
        return None
    return made[0], made[1]


def _windows_or_error(table: wd.Table, options: dict[str, Any]) -> Any:
    try:
        return wd.Windows(table, **options)
    except ValueError as error:
        return str(error)


def order_options(windows: wd.Windows) -> dict[str, Any]:
    """Return the options of the order of windows of a streamed table."""
    order = windows.default_order
    assert isinstance(order, functools.partial)
    return order.keywords


@pytest.fixture
def files(tmp_path: Path) -> list[Path]:
    return write_files(arrow_table([70, 15, 130, 40]), tmp_path, [60, 61, 170], 16, "parquet")


@settings(max_examples=40, deadline=None)
@given(case=cases(), data=st.data())
def test_gather_is_that_of_a_table_in_memory(case: Case, data: st.DataObject) -> None:
    with tempfile.TemporaryDirectory() as folder:
        pair = both_windows(case, Path(folder))
        if pair is None:
            return
        memory, streamed = pair
        assert len(streamed) == len(memory)
        assert streamed.window_starts().tolist() == memory.window_starts().tolist()
        drawn = st.lists(st.integers(0, len(memory) - 1), max_size=40)
        for indices in (np.arange(len(memory)), data.draw(drawn), data.draw(drawn)):
            expected = memory.gather(indices)
            assert_same(streamed.gather(indices), expected)
            out = {key: np.empty_like(array) for key, array in expected.items()}
            streamed.gather(indices, out=out, threads=2)
            assert_same(out, expected)


@settings(max_examples=25, deadline=None)
@given(case=cases(), data=st.data())
def test_epochs_are_those_of_a_table_in_memory(case: Case, data: st.DataObject) -> None:
    """Whole epochs, resumed at any position by any number of ranks."""
    with tempfile.TemporaryDirectory() as folder:
        pair = both_windows(case, Path(folder))
        if pair is None:
            return
        memory, streamed = pair
        shuffle = data.draw(st.booleans())
        seed = data.draw(st.integers(0, 9)) if shuffle else None
        order = streamed.default_order if shuffle else None
        batch = data.draw(st.integers(1, min(9, len(memory))))
        expected = wd.Loader(memory, batch_size=batch, order=order, seed=seed, epochs=2)
        found = wd.Loader(streamed, batch_size=batch, shuffle=shuffle, seed=seed, epochs=2)
        starts: list[int] = []
        states = []
        for _ in range(2):
            for one, other in zip(found, expected, strict=True):
                assert_same(one, other)
                starts += one["start"].tolist()
                states.append(found.state_dict())
        every = sorted(memory.window_starts().tolist() * 2)
        assert sorted(starts) == every
        state = data.draw(st.sampled_from(states))
        # Another process with other ranks: the same positions.
        position, world = state["position"], data.draw(st.integers(1, 3))
        again = pickle.loads(pickle.dumps(streamed))
        for rank in range(world):
            pair_of_loaders = []
            for source, own in ((again, None), (memory, order)):
                loader = wd.Loader(
                    source,
                    batch_size=1 if len(memory) < 2 * world else 2,
                    shuffle=shuffle and own is None,
                    order=own,
                    seed=seed,
                    rank=rank,
                    world_size=world,
                    epochs=2,
                )
                if own is None and source is again:
                    loader.load_state_dict(state)
                else:
                    loader.load_state_dict(loader.state_dict() | {"position": position})
                pair_of_loaders.append(loader)
            if position < 2 * len(memory):
                for one, other in zip(*pair_of_loaders, strict=True):
                    assert_same(one, other)


def test_every_window_is_served_once_in_each_new_grouping(files: list[Path]) -> None:
    memory, streamed = read_both(files, group_bytes=600)
    windows = wd.Windows(streamed, **OPTIONS)
    loader = wd.Loader(windows, batch_size=5, shuffle=True)
    epochs = [np.concatenate([b["start"] for b in loader]).tolist() for _ in range(3)]
    for epoch in epochs:
        assert sorted(epoch) == wd.Windows(memory, **OPTIONS).window_starts().tolist()
    assert len({tuple(epoch) for epoch in epochs}) == 3
    # Each group is read once an epoch, and the next one ahead.
    groups = -(
        -order_options(windows)["block_offsets"][1:].size
        // order_options(windows)["blocks_in_buffer"]
    )
    assert groups > 2
    assert streamed.groups.reads <= 3 * groups + 1


@pytest.mark.parametrize("budget", [None, 10_000])
def test_the_next_groups_of_the_order_are_read_ahead(
    files: list[Path], budget: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    windows = wd.Windows(read_both(files, group_bytes=600, memory_budget=budget)[1], **OPTIONS)
    calls: list[tuple[Blocks, list[Blocks]]] = []
    get = original("group_cache.GroupCache.get")

    def noted(cache: Any, reader: Any, blocks: Blocks, following: Any, needed: Any) -> Any:
        if not calls or calls[-1][0] != blocks:
            calls.append((blocks, list(following)))
        return get(cache, reader, blocks, following, needed)

    plant(monkeypatch, "group_cache.GroupCache.get", noted)
    loader = wd.Loader(windows, batch_size=5, shuffle=True)
    for _ in range(3):
        assert sum(len(batch["start"]) for batch in loader) == len(windows)
    used = [blocks for blocks, _ in calls]
    ahead = [following for _, following in calls]
    most = max(map(len, ahead))
    assert (most == 1) == (budget is None)
    for place, following in enumerate(ahead):
        known = used[place + 1 : place + 1 + len(following)]
        assert following[: len(known)] == known
    # Only the end of the epoch after this one is not looked beyond.
    assert all(len(following) == most for following in ahead[: len(ahead) // 3])


def test_splits_subsets_scalers_and_derived_windows(files: list[Path]) -> None:
    memory, streamed = read_both(files)
    expected, found = wd.Windows(memory, **OPTIONS), wd.Windows(streamed, **OPTIONS)
    scaler = wd.Scaler.fit(expected, per_series=True, unseen="global", sample=50)
    assert wd.Scaler.fit(found, per_series=True, unseen="global", sample=50) == scaler
    middle = memory.timestamps[100]  # type: ignore[index]

    def derived(w: wd.Windows) -> list[wd.Windows]:
        return [
            *w.split(validation=0.2, test=0.2),
            *w.split(by="series", validation=0.3, test=0),
            w.split(validation=middle, test=0)[1],
            w.subset(series=["s0", "s2"]),
            w.subset(rows=(20, 150)),
            w.subset(time=(middle, None)),
            w.subset(indices=np.arange(0, len(w), 7)),
            w.with_scaler(scaler),
            w.joined(),
            w.latest(),
            w.with_scaler(scaler).split(validation=0.2, test=0)[0],
        ]

    pairs = list(zip(derived(found), derived(expected), strict=True))
    assert any(len(one) == 0 for one, _ in pairs)
    for one, other in pairs:
        assert len(one) == len(other)
        assert_same(one.gather(np.arange(len(one))), other.gather(np.arange(len(other))))
        assert str(replace(other.explain(), device_bytes=None)) == "\n".join(
            line
            for line in str(one.explain()).splitlines()
            if line not in one.explain().reading and line.strip() not in one.explain().reading
        )
    balanced = [found.balanced(epoch_length=30)]
    balanced += [expected.balanced(epoch_length=30, blocks=balanced[0].blocks)]
    assert_same(*(b.at_epoch(2, seed=1).gather(np.arange(30)) for b in balanced))
    predictions = np.zeros((len(found.latest()), 3, 1))
    tables = [w.latest().prediction_table(predictions) for w in (found, expected)]
    assert tables[0].equals(tables[1])


def test_keys_change_neither_order_nor_state(files: list[Path]) -> None:
    _, streamed = read_both(files)
    every = wd.Windows(streamed, **OPTIONS)
    some = wd.Windows(streamed, **OPTIONS, keys=["past_target"])
    for name in ("block_offsets", "blocks_in_buffer"):
        one, other = (order_options(w)[name] for w in (every, some))
        assert np.array_equal(one, other)
    assert every.fingerprint == some.fingerprint
    assert_same(some.gather([3]), {"past_target": every.gather([3])["past_target"]})


def test_explain_names_groups_residents_and_bytes(files: list[Path]) -> None:
    _, streamed = read_both(files, group_bytes=600)
    windows = wd.Windows(streamed, **OPTIONS)
    text = str(windows.explain())
    blocks = order_options(windows)["block_offsets"].size - 1
    assert f"streamed: {blocks} blocks in " in text
    assert "resident: two groups, " in text
    stored = sum(
        file.file.stored_bytes(name)[part]
        for file in streamed.reader.files
        for name in ("load", "wind")
        for part in range(len(file.file.part_rows))
    )
    assert f"of {stored / 1000:.3g} kB that these columns have" in text


def test_a_budget_below_two_groups_is_refused_with_the_least(files: list[Path]) -> None:
    _, streamed = read_both(files, memory_budget=1000)
    with pytest.raises(MemoryError, match=r"need memory_budget=\d+ .* at least") as caught:
        wd.Windows(streamed, **OPTIONS)
    least = int(str(caught.value).split("memory_budget=")[1].split()[0])
    for budget, works in ((least, True), (least - 1, False)):
        memory, streamed = read_both(files, memory_budget=budget)
        if works:
            windows = wd.Windows(streamed, **OPTIONS)
            expected = wd.Windows(memory, **OPTIONS)
            assert_same(windows.gather([0, 99]), expected.gather([0, 99]))
        else:
            with pytest.raises(MemoryError):
                wd.Windows(streamed, **OPTIONS)


def test_the_order_does_not_depend_on_the_budget(files: list[Path]) -> None:
    orders = []
    for budget in (None, 10**5, 10**9):
        options = {} if budget is None else {"memory_budget": budget}
        _, streamed = read_both(files, **options)
        orders.append(wd.Loader(wd.Windows(streamed, **OPTIONS), batch_size=2, shuffle=True))
    assert len({tuple(sorted(one.stream.fingerprint.items())) for one in orders}) == 1
    assert len({tuple(one.samples(0).tolist()) for one in orders}) == 1


def test_an_order_of_other_blocks_is_served_too(files: list[Path]) -> None:
    memory, streamed = read_both(files, group_bytes=300)
    windows, expected = wd.Windows(streamed, **OPTIONS), wd.Windows(memory, **OPTIONS)
    larger = functools.partial(
        wd.BlockPermutation,
        block_offsets=order_options(windows)["block_offsets"],
        blocks_in_buffer=5,
    )
    for order in (wd.Permutation, larger, functools.partial(wd.BlockPermutation, block_size=7)):
        loaders = [wd.Loader(w, batch_size=6, order=order) for w in (windows, expected)]
        for one, other in zip(*loaders, strict=True):
            assert_same(one, other)


def test_threads_share_windows(files: list[Path]) -> None:
    memory, streamed = read_both(files, group_bytes=300)
    windows, expected = wd.Windows(streamed, **OPTIONS), wd.Windows(memory, **OPTIONS)
    errors: list[BaseException] = []

    def check(seed: int) -> None:
        random = np.random.default_rng(seed)
        try:
            for _ in range(20):
                indices = random.integers(0, len(windows), 9)
                assert_same(windows.gather(indices), expected.gather(indices))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=check, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


def test_devices_are_refused(files: list[Path]) -> None:
    _, streamed = read_both(files)
    windows = wd.Windows(streamed, **OPTIONS)
    for call in (lambda: windows.to("cpu"), windows.device_bytes):
        with pytest.raises(TypeError, match="is not supported for windows of a streamed table"):
            call()


def test_an_error_in_the_background_is_raised_and_can_be_retried(
    files: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    memory, streamed = read_both(files, group_bytes=300)
    loader = wd.Loader(wd.Windows(streamed, **OPTIONS), batch_size=4, prefetch=0)
    load, failing = original("streamed.BlockedWindows.load"), True

    def fail(*args: Any) -> Any:
        if failing and threading.get_ident() != threading.main_thread().ident:
            raise OSError("the disk is gone")
        return load(*args)

    plant(monkeypatch, "streamed.BlockedWindows.load", fail)
    seen: list[int] = []

    def take() -> None:
        for batch in loader:
            seen.extend(batch["start"].tolist())

    with pytest.raises(OSError, match="the disk is gone"):
        take()
    failing = False
    take()
    assert seen == wd.Windows(memory, **OPTIONS).window_starts().tolist()


def test_keys_without_columns_read_no_rows(files: list[Path]) -> None:
    table = wd.Table.read(files, columns="load", in_memory=False)
    windows = wd.Windows(table, context_length=4, keys=["series_id", "start"])
    found = windows.gather([0, 9])
    assert {key: array.tolist() for key, array in found.items()} == {
        "series_id": [0, 0],
        "start": [0, 9],
    }
    assert sum(len(batch["start"]) for batch in wd.Loader(windows, batch_size=16)) == len(windows)
