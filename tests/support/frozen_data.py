"""Data computed with integers, equal on every platform and with every version of a library.

`CASES` names one pipeline for each combination of source, stream and order, over this data.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import torch

import windeck as wd

_FOLDER = os.environ.get("WINDECK_TEST_FROZEN")
FROZEN = Path(_FOLDER) if _FOLDER else Path(__file__).parents[1] / "golden" / "frozen"
CORPUS = FROZEN / "corpus"

#: Names below `CORPUS`, with the number of documents of each.
SHARDS = {"c4/x.part3": 40, "c4/x.part10": 25, "wiki/en/y.part0": 33}
#: When the files of a corpus were changed last, for the copy of it: count files hold this.
CHANGED = 1_700_000_000


def document(shard: str, number: int) -> list[int]:
    """Return the tokens of a document: 0 to 46 tokens from 1 to 997."""
    start = sum(shard.encode()) + 31 * number
    return [1 + (start * start + 7 * place) % 997 for place in range(start * 5 % 47)]


def corpus(folder: Path) -> Path:
    """Return a copy of the corpus, whose files have the modification times of their count."""
    root = folder / "corpus"
    if not root.exists():
        shutil.copytree(CORPUS, root)
        for path in root.rglob("*.arrow"):
            os.utime(path, (CHANGED, CHANGED))
    return root


def series() -> wd.Table:
    """Return three series of two float32 and one int16 column, with time stamps, gaps and NaN."""
    rows = np.arange(700)
    load = ((rows * rows * 3 + 5 * rows) % 1021).astype(np.float32) / 8
    load[rows % 61 == 7] = np.nan
    wind = ((rows * 17) % 257).astype(np.float32) / 4 - 20
    hour = (rows % 24).astype(np.int16)
    stamps = rows * 3600
    stamps[450:] += 86_400  # a gap within the third series
    columns = {"load": load, "wind": wind, "hour": hour}
    columns["time"] = stamps.astype("datetime64[s]")
    return wd.Table.from_columns(
        columns,
        offsets=[0, 300, 400, 700],
        series_names=["north", "south", "west"],
        timestamp_column="time",
    )


def matrix() -> wd.Table:
    """Return two series of four float64 columns, stored row by row."""
    values = (np.arange(1200) * 7 % 499).astype(np.float64).reshape(300, 4) / 16
    return wd.Table.from_rows(values, ["a", "b", "c", "d"], offsets=[0, 120, 300])


def nullable() -> wd.Table:
    """Return a series of Arrow columns, integers and floats, with nulls."""
    rows = range(200)
    numbers = [None if row % 13 == 4 else row * 11 % 127 for row in rows]
    floats = [None if row % 17 == 2 else row * 3 % 64 / 4 for row in rows]
    table = {"n": pa.array(numbers, pa.int32()), "f": pa.array(floats, pa.float64())}
    return wd.Table.from_arrow(pa.table(table))


def windows(**options: Any) -> wd.Windows:
    given: dict[str, Any] = {"context_length": 12, "prediction_length": 4}
    given |= {"known_covariates": "hour"} | options
    return wd.Windows(series(), **given)


def scaler(name: str) -> wd.Scaler:
    """Return a scaler of the files, which was fitted when they were made."""
    texts: dict[str, dict[str, Any]] = read_json("scalers.json")
    return wd.Scaler.from_json(json.dumps(texts[name]))


#: The options that scalers were fitted with, over `series`.
SCALERS: dict[str, dict[str, Any]] = {
    "standard": {"kind": "standard"},
    "minmax": {"kind": "minmax"},
    "robust": {"kind": "robust", "per_series": True},
    "mean_abs": {"kind": "mean_abs", "sample": 100, "seed": 5},
}


def documents(folder: Path, **options: Any) -> wd.Documents:
    return wd.Documents(corpus(folder), **options)


def packed(folder: Path, **options: Any) -> wd.PackedSequences:
    given: dict[str, Any] = {"sequence_length": 24, "eos": 0} | options
    return wd.PackedSequences(documents(folder), **given)


def two_windows(**options: Any) -> wd.Mixture:
    weights: dict[str, Any] = {"long": 0.7, "strided": 0.25, "later": 0.05}
    parts: dict[str, Any] = {
        "long": windows(),
        "strided": windows(stride=5),
        "later": wd.Stream(windows(stride=7), order=wd.Sequential),
    }
    return wd.Mixture({name: (parts[name], weights[name]) for name in parts}, **options)


def two_packed(folder: Path) -> wd.Mixture:
    parts: dict[str, tuple[Any, Any]] = {
        "frames": (packed(folder), 2),
        "bos": (packed(folder, bos=999), 1),
    }
    return wd.Mixture(parts, seed=3)


#: Weights of `two_windows` that are added while a run goes on.
LATER = (400, {"long": 0.1, "strided": 0.1, "later": 0.8})

blocks = partial(wd.BlockPermutation, block_size=16, blocks_in_buffer=3)
offsets = partial(wd.BlockPermutation, block_offsets=np.array([0, 10, 25, 60, 61, 85]))
lanes = partial(wd.Lanes, lanes=6)


def reversed_order(size: int, *, seed: int, epoch: int) -> Any:
    """Return an order as a user may define it."""
    return np.arange(size)[::-1] if seed == epoch == -1 else wd.Sequential(size)


reversed_order.__module__ = "frozen_data"  # as the saved states have it


def in_blocks() -> wd.Stream:
    return wd.Stream(windows(stride=2), order=blocks, seed=2)


def grown() -> wd.Stream:
    small, large = windows().subset(series="south"), windows().subset(series=["south", "west"])
    return wd.Stream(small, order=blocks, seed=9, grown=[(130, large)])


Loads = Callable[[Path], wd.Loader]

#: A loader for each combination.
CASES: dict[str, Loads] = {
    "windows, sequential": lambda _: wd.Loader(windows(), batch_size=7),
    "windows, shuffled": lambda _: wd.Loader(windows(), batch_size=7, shuffle=True, seed=11),
    "windows, rank 1 of 3": lambda _: wd.Loader(
        windows(), batch_size=7, shuffle=True, rank=1, world_size=3, drop_last=True, epochs=2
    ),
    "windows, changed ranks": lambda _: wd.Loader(
        windows(), batch_size=5, shuffle=True, seed=11, rank=1, world_size=2
    ),
    "windows, blocks": lambda _: wd.Loader(windows(), batch_size=7, order=blocks, seed=5),
    "windows, lanes": lambda _: wd.Loader(windows(), batch_size=6, order=lanes, seed=5),
    "windows, given blocks": lambda _: wd.Loader(
        windows().subset(series="south"), batch_size=8, order=offsets, seed=4
    ),
    "windows, own order": lambda _: wd.Loader(windows(), batch_size=9, order=reversed_order),
    "windows, training part": lambda _: wd.Loader(
        windows().split(0.1, 0.2).train, batch_size=7, shuffle=True, seed=2
    ),
    "windows, validation part": lambda _: wd.Loader(
        windows().split(0.34, 0.33, by="series", seed=6).validation, batch_size=7
    ),
    "windows, scaled": lambda _: wd.Loader(
        windows(scaler=scaler("standard"), layout="bct", dtype="float64", pad=True, fill=-1.0),
        batch_size=7,
        shuffle=True,
    ),
    "windows, scaled by series": lambda _: wd.Loader(
        windows(scaler=scaler("robust"), layout="columns"), batch_size=7, shuffle=True
    ),
    "windows, filtered": lambda _: wd.Loader(
        windows(max_missing=0.04, max_gap="1h", stride=2, dilation=2, gap=1),
        batch_size=7,
        shuffle=True,
        seed=3,
    ),
    "windows, roles": lambda _: wd.Loader(
        windows(
            target_columns="load",
            known_covariates="hour",
            past_covariates="wind",
            dtype={"hour": "float32"},
        ),
        batch_size=7,
        shuffle=True,
    ),
    "windows, bfloat16": lambda _: wd.Loader(
        windows(dtype="bfloat16", target_columns=["load", "wind"]), batch_size=7, shuffle=True
    ),
    "windows, rows storage": lambda _: wd.Loader(
        wd.Windows(matrix(), context_length=9, prediction_length=3), batch_size=7, shuffle=True
    ),
    "windows, nulls": lambda _: wd.Loader(
        wd.Windows(nullable(), context_length=9, layout="columns"), batch_size=7, shuffle=True
    ),
    "windows, grown": lambda _: wd.Loader(grown(), batch_size=7),
    "packed, shards": lambda folder: wd.Loader(packed(folder), batch_size=3, seed=8),
    "packed, global": lambda folder: wd.Loader(
        packed(folder, order="global", bos=998, dtype="int32"), batch_size=3, seed=8
    ),
    "packed, padded": lambda folder: wd.Loader(
        packed(folder, padded=True, pad=5), batch_size=3, seed=8
    ),
    "packed, shuffled again": lambda folder: wd.Loader(packed(folder), batch_size=3, order=lanes),
    "packed, filtered": lambda folder: wd.Loader(
        wd.PackedSequences(
            documents(folder, files="dataset=c4", min_length=5, strip_tokens=[1, 2]),
            sequence_length=16,
        ),
        batch_size=3,
        shuffle=True,
    ),
    "mixture of windows": lambda _: wd.Loader(two_windows(seed=21), batch_size=7),
    "mixture, weights changed": lambda _: wd.Loader(
        two_windows(seed=21, schedule=[LATER]), batch_size=5, rank=1, world_size=2
    ),
    "mixture of packed": lambda folder: wd.Loader(two_packed(folder), batch_size=4),
    "mixture of a mixture": lambda _: wd.Loader(
        wd.Mixture({"both": (two_windows(seed=1), 1), "blocks": (in_blocks(), 3)}), batch_size=5
    ),
}


#: Cases whose run began with another batch size, world size or schedule.
BEGUN: dict[str, Loads] = {
    "windows, changed ranks": CASES["windows, shuffled"],
    "mixture, weights changed": CASES["mixture of windows"],
}


def state_of(name: str, folder: Path) -> dict[str, Any]:
    """Return the state of a case after some steps, with excluded ranges for cases of `BEGUN`."""
    loader = CASES[name](folder)
    if name in BEGUN:
        first = BEGUN[name](folder)
        digests(first, 55 if "mixture" in name else 5)
        first.exclude(first.position + 20, first.position + 43)
        loader.load_state_dict(first.state_dict())
    digests(loader, 30 if "grown" in name else 6)
    return loader.state_dict()


def continued(name: str, state: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Return what a loader reports and serves after it loads a state."""
    loader = CASES[name](folder)
    loader.load_state_dict(state)
    steps = (0, loader.step - 1, loader.step, loader.step + 3)
    told = {str(step): loader.samples(step, rank=0).tolist() for step in steps}
    return {"samples": told, "batches": digests(loader, 4), "position": loader.position}


def digest(batch: Mapping[str, Any]) -> str:
    """Return a digest of the names, dtypes, shapes and bytes of a batch."""
    found = hashlib.sha256()
    for name in sorted(batch):
        value = batch[name]
        if isinstance(value, torch.Tensor):
            dtype = str(value.dtype)
            bits = value.view(torch.int16) if value.dtype == torch.bfloat16 else value
            value = bits.contiguous().numpy()
        else:
            value = np.asarray(value)
            dtype = str(value.dtype)
        found.update(f"{name} {dtype} {value.shape} ".encode())
        found.update(np.ascontiguousarray(value).tobytes())
    return found.hexdigest()[:32]


def digests(batches: Iterable[Mapping[str, Any]], count: int) -> list[str]:
    """Return digests of the first batches of a loop, or of several loops over a loader."""
    found: list[str] = []
    while len(found) < count:
        before = len(found)
        for batch in batches:
            found.append(digest(batch))
            if len(found) == count:
                break
        if len(found) == before:
            break
    return found


def read_json(name: str) -> Any:
    return json.loads((FROZEN / name).read_text(encoding="utf-8"))
