"""Time of streaming Parquet beside Hugging Face `datasets`, and of a resume within an epoch.

The rival is the quickest formulation found that uses public functions of `datasets` alone: record
batches of one series become windows by NumPy, shuffle buffer and batches are of Arrow, and tensors
are views of them. Batches in the format "torch" are measured too, and examples one by one with a
DataLoader. The shuffle buffer has as many bytes of windows as our `memory_budget`; the 5 s that
`datasets` sleeps after a pass over Parquet are switched off.
"""

from __future__ import annotations

import copy
import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import bench_remote
import numpy as np
import pyarrow as pa
from measure import Row, ratio_of
from pyarrow import dataset, parquet

import windeck as wd

FILES, SERIES, STEPS, GROUP = 6, 1000, 4000, 64
CONTEXT, PREDICTION, BATCH = 168, 24, 256
WINDOW = CONTEXT + PREDICTION
BUFFER = 40_000
BUDGET = BUFFER * WINDOW * 4
ROUNDS, BATCHES, SLOW_BATCHES, SHARES = 7, 4000, 100, (0.1, 0.5, 0.9)


def write(folder: Path, files: int = FILES, series: int = SERIES, steps: int = STEPS) -> list[str]:
    """Write series of random float32, in row groups of 64 series."""
    draw, paths = np.random.default_rng(0), []
    for number in range(files):
        names = np.repeat(np.arange(number * series, (number + 1) * series), steps)
        values = draw.standard_normal(series * steps, dtype=np.float32)
        paths.append(str(folder / f"part{number}.parquet"))
        parquet.write_table(
            pa.table({"id": names, "load": values}),
            paths[-1],
            row_group_size=steps * GROUP,
            use_dictionary=["id"],
        )
    return paths


def cut(table: pa.Table, stride: int) -> pa.Table:
    """Make the windows of a series."""
    views = np.lib.stride_tricks.sliding_window_view(table["load"].to_numpy(), WINDOW)
    values = pa.array(views[::stride].reshape(-1))
    return pa.table({"window": pa.FixedSizeListArray.from_arrays(values, WINDOW)})


def streamed(paths: Sequence[str], stride: int, buffer: int = BUFFER, steps: int = STEPS) -> Any:
    """Return the rival's dataset of windows, in batches of Arrow."""
    import datasets

    # Row groups are fetched ahead, which the documentation of `datasets` recommends.
    ahead = pa.CacheOptions(prefetch_limit=1, range_size_limit=128 << 20)
    rows = datasets.load_dataset(
        "parquet",
        data_files=list(paths),
        streaming=True,
        split="train",
        columns=["load"],
        batch_size=steps,
        fragment_scan_options=dataset.ParquetFragmentScanOptions(cache_options=ahead),
    )
    column = datasets.List(datasets.Value("float32"), length=WINDOW)
    windows = rows.with_format("arrow").map(
        partial(cut, stride=stride),
        batched=True,
        batch_size=steps,
        remove_columns=["load"],
        features=datasets.Features({"window": column}),
    )
    return windows.shuffle(seed=1, buffer_size=buffer)


def by_hand(data: Any) -> Iterator[Any]:
    """Batches of Arrow, as tensors."""
    import torch

    for table in data.iter(batch_size=BATCH):
        yield torch.from_numpy(
            table["window"].combine_chunks().flatten().to_numpy().reshape(-1, WINDOW)
        )


def formatted(data: Any) -> Iterator[Any]:
    """Batches in the format of torch."""
    for batch in data.with_format("torch").iter(batch_size=BATCH):
        yield batch["window"]


def collated(data: Any) -> Iterator[Any]:
    """Examples, made batches by a DataLoader."""
    from torch.utils.data import DataLoader

    for batch in DataLoader(data.with_format("torch"), batch_size=BATCH, num_workers=2):
        yield batch["window"]


RIVALS = {
    "datasets, DataLoader(num_workers=2)": (collated, SLOW_BATCHES),
    'datasets, with_format("torch").iter(batch_size=256)': (formatted, BATCHES),
    "datasets, Arrow batches as tensors": (by_hand, BATCHES),
}
QUICKEST = list(RIVALS)[-1]


def loader(
    paths: Sequence[str], stride: int, cache: str | None = None, **options: Any
) -> wd.Loader:
    """Return ours over the same files, with as many bytes."""
    table = wd.Table.read(
        paths, columns="load", id_columns="id", in_memory=False,
        **{"memory_budget": BUDGET, "group_bytes": BUDGET // 6, "cache_dir": cache} | options,
    )  # fmt: skip
    keys = ("past_target", "future_target")  # the rival has neither masks nor numbers
    windows = wd.Windows(
        table, context_length=CONTEXT, prediction_length=PREDICTION, stride=stride, keys=keys
    )
    return wd.Loader(windows, batch_size=BATCH, shuffle=True)


def check(folder: Path) -> None:
    """Assert that both serve the same windows in an epoch."""
    paths = write(folder, files=2, series=20, steps=400)
    mine = loader(paths, 1, memory_budget=None, group_bytes=1 << 16)
    parts = [np.concatenate([batch[key][..., 0] for key in batch], axis=1) for batch in mine]
    expected = np.concatenate(parts)
    for made, _ in RIVALS.values():
        found = np.concatenate([one.numpy() for one in made(streamed(paths, 1, 500, 400))])
        assert found.shape == expected.shape
        assert np.array_equal(*(one[np.lexsort(one.T)] for one in (found, expected)))


def pace(batches: Iterable[Any], count: int) -> float:
    """Seconds for each window, of `count` batches after the first one."""
    ahead = iter(batches)
    next(ahead)
    start = time.perf_counter()
    windows = sum(len(batch) for batch in itertools.islice(ahead, count))
    return (time.perf_counter() - start) / windows


def values(batches: Iterable[Any]) -> Iterator[Any]:
    """Values of ours, epoch after epoch."""
    while True:
        yield from (batch["past_target"] for batch in batches)


def speed(
    paths: Sequence[str], mine: wd.Loader, stride: int, name: str = QUICKEST, rounds: int = ROUNDS
) -> Row:
    """Windows/s of local files, in the middle of an epoch."""
    made, count = RIVALS[name]
    pairs = [
        (pace(values(mine), BATCHES), pace(made(streamed(paths, stride)), count))
        for _ in range(rounds)
    ]
    return row_of("local files", stride, name, pairs)


def epochs(place: str, paths: Sequence[str], mine: wd.Loader, stride: int) -> Iterator[Row]:
    """Windows/s of whole epochs; of a slow rival, of batches after its buffer is filled."""

    def epoch(batches: Callable[[], Iterable[Any]]) -> float:
        start = time.perf_counter()
        windows = sum(map(len, batches()))
        assert windows == mine.stream.epoch_length
        return (time.perf_counter() - start) / windows

    pairs: dict[str, list[tuple[float, float]]] = {name: [] for name in RIVALS}
    for _ in range(3):
        ours = epoch(lambda: (batch["past_target"] for batch in mine))
        for name, (made, count) in RIVALS.items():
            if count == BATCHES:
                theirs = epoch(lambda made=made: made(streamed(paths, stride)))
            else:
                theirs = pace(made(streamed(paths, stride)), count)
            pairs[name].append((ours, theirs))
    for name, found in pairs.items():
        yield row_of(place, stride, name, found)


def row_of(place: str, stride: int, name: str, pairs: list[tuple[float, float]]) -> Row:
    ratio = ratio_of(pairs)
    return Row(
        question=f"{place}: windows of {CONTEXT} + {PREDICTION}, stride {stride}, of Parquet",
        ours=f"Loader(shuffle=True): {1 / ratio.ours_seconds:,.0f} windows/s",
        rival=f"{name}: {1 / ratio.rival_seconds:,.0f}",
        ratio=ratio,
        needed=5,
    )


def states(paths: Sequence[str], steps: int) -> dict[float, Any]:
    """States of the rival at some shares of an epoch."""
    data, found, done = streamed(paths, 1), {}, 0
    batches = by_hand(data)
    for share in SHARES:
        for _ in range(int(share * steps) - done):
            next(batches)
        done = int(share * steps)
        found[share] = copy.deepcopy(data.state_dict())
    return found


def resume(
    place: str, paths: Sequence[str], mine: Callable[[], wd.Loader], kept: dict[float, Any]
) -> Iterator[Row]:
    """Time to the first batch after `load_state_dict`, and from opening the files on."""

    def one(open_data: Callable[[], Any], state: Any, first: Callable[[Any], Any]) -> Any:
        start = time.perf_counter()
        data = open_data()
        opened = time.perf_counter()
        data.load_state_dict(state)
        assert len(first(data)) == BATCH
        return time.perf_counter() - opened, time.perf_counter() - start

    steps, ours_at = len(mine()), {share: [] for share in SHARES}
    state, size = mine().state_dict(), BATCH
    for share in SHARES:
        at = {**state, "position": int(share * steps) * size}
        pairs = []
        for _ in range(ROUNDS):
            ours = one(mine, at, lambda data: next(values(data)))
            rival = one(lambda: streamed(paths, 1), kept[share], lambda data: next(by_hand(data)))
            pairs.append(tuple(zip(ours, rival, strict=True)))
            ours_at[share].append(ours[0])
        for kind, what in enumerate(("first batch after load_state_dict", "files opened first")):
            ratio = ratio_of([pair[kind] for pair in pairs])
            yield Row(
                question=f"{place}: resume at {share:.0%} of an epoch, {what}",
                ours=f"Loader: {ratio.ours_seconds * 1e3:.3g} ms",
                rival=f"datasets: {ratio.rival_seconds * 1e3:.3g} ms",
                ratio=ratio,
                needed=None if kind else 10,
            )
    yield Row(
        question=f"{place}: resume, first batch after load_state_dict",
        ours=f"at {SHARES[-1]:.0%}",
        rival=f"ours at {SHARES[0]:.0%}",
        ratio=ratio_of(list(zip(ours_at[SHARES[-1]], ours_at[SHARES[0]], strict=True))),
        needed=0.5,
    )


def rows() -> Iterator[Row]:
    with tempfile.TemporaryDirectory() as folder:
        os.environ["HF_HOME"] = f"{folder}/home"
        import datasets

        datasets.disable_progress_bars()
        datasets.logging.set_verbosity_error()
        datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0
        small, home = Path(folder) / "small", Path(folder) / "data"
        small.mkdir()
        home.mkdir()
        check(small)
        paths = write(home)
        mine = loader(paths, 1)
        for name, (_, count) in RIVALS.items():
            rounds = ROUNDS if count == BATCHES else 3
            yield speed(paths, mine, 1, name, rounds)
        yield speed(paths, loader(paths, 24), 24)
        kept = states(paths, len(mine))
        yield from resume("local files", paths, lambda: loader(paths, 1, f"{folder}/cache"), kept)
        with bench_remote.store() as port:
            yield from remote(port, paths, kept, f"{folder}/cache")


def remote(port: int, paths: Sequence[str], kept: dict[float, Any], cache: str) -> Iterator[Row]:
    """The same from an object store; `datasets` reads it by HTTP, without s3fs."""
    direct = bench_remote.client(port)
    direct.create_dir("datasets")
    for path in paths:
        with direct.open_output_stream(f"datasets/{Path(path).name}") as out:
            out.write(Path(path).read_bytes())
    line = bench_remote.Line(port)
    # The rival closes connections in the middle of answers.
    line.loop.call_soon_threadsafe(line.loop.set_exception_handler, lambda *_: None)
    urls = [f"http://127.0.0.1:{line.port}/datasets/{Path(path).name}" for path in paths]
    mine = [f"s3://datasets/{Path(path).name}" for path in paths]
    options = {
        "key": "a", "secret": "b", "endpoint_url": f"http://127.0.0.1:{line.port}",
        "region": "us-east-1",
    }  # fmt: skip
    place = "S3, 50 ms away, 20 MB/s"
    for stride, files in ((24, FILES), (1, 2)):
        near = loader(mine[:files], stride, storage_options=options)
        yield from epochs(place, urls[:files], near, stride)
    yield from resume(place, urls, lambda: loader(mine, 1, storage_options=options), kept)
