"""Reproducible checkpoints, and the stores of them in `tests/golden/frozen`.

Every random number and every time of a save is replaced, so that a save can be compared with a
stored one byte for byte: `steady` does that.
"""

from __future__ import annotations

import base64
import itertools
import json
import secrets
import shutil
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest import mock

import torch
from torch.distributed.checkpoint.state_dict_loader import load as dcp_load
from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

import windeck as wd
from support.frozen_data import FROZEN, digests, windows
from windeck import checkpoint
from windeck.checkpoint.dcp import StoreReader, StoreWriter
from windeck.checkpoint.safetensors import export
from windeck.checkpoint.stores import MappingStore, Store, open_store

#: Bytes of a chunk: small, so that tensors have several.
CHUNK = 256
#: Of the two saves of `save_steps`.
STEPS = (10, 20)
BATCHES = {10: 3, 20: 8}
IDS = torch.arange(40) * 7919 - 100_000


def weight(step: int) -> torch.Tensor:
    """Return a tensor in which a save at step 20 changes the first rows only."""
    values = torch.arange(40 * 9, dtype=torch.float32).reshape(40, 9) / 4
    values[:5] += step
    return values


def model(step: int) -> dict[str, Any]:
    """Return tensors of many dtypes: an empty one, a scalar, and one under two names."""
    shared = torch.arange(6, dtype=torch.float64) / 8
    return {
        "weight": weight(step),
        "half": torch.arange(70).to(torch.bfloat16),
        "bytes": torch.arange(300).to(torch.uint8),
        "counts": torch.arange(50) * 10**12 + step,
        "flags": torch.arange(17) % 3 == 0,
        "scalar": torch.tensor(step / 16),
        "empty": torch.zeros(0, 4),
        "first": shared,
        "again": shared,
        "turned": torch.arange(12.0).reshape(3, 4).T,
        "complex": torch.complex(torch.arange(4.0), -torch.arange(4.0)),
    }


def optimizer(step: int) -> dict[str, Any]:
    """Return a state like that of torch's Adam."""
    moments = {"exp_avg": weight(step) / 2, "exp_avg_sq": weight(0) * 2}
    return {
        "state": {0: {"step": torch.tensor(float(step)), **moments}},
        "param_groups": [{"lr": 0.125, "betas": (0.5, 0.75), "eps": 1e-8, "params": [0]}],
    }


def extra(step: int) -> dict[str, Any]:
    rng = torch.arange(16, dtype=torch.uint8)
    return {"step": step, "note": "größer", "list": [1, 2.5, None, True, "x"], "rng": rng}


def tables() -> dict[str, wd.EmbeddingTable]:
    """Return empty tables."""
    return {
        "user": wd.EmbeddingTable(3, optimizer="sgd", lr=0.5, initializer="zeros", threads=1),
        "item": wd.EmbeddingTable(2, optimizer="adagrad", lr=1.0, seed=7, threads=1),
    }


def train(table: wd.EmbeddingTable, ids: torch.Tensor, *, lr: float = 1.0) -> None:
    """Take one step whose gradient is 1 for every element."""
    table(ids).sum().backward()
    table.step()


def trained(step: int, every: dict[str, wd.EmbeddingTable]) -> None:
    """Train the steps after the previous one, up to `step`."""
    for table in every.values():
        train(table, IDS if step == 10 else IDS[::4])


def user_row(number: int, step: int) -> float:
    """Return the value of each element of the row of ``IDS[number]`` in the table of users.

    Each training adds -0.5.
    """
    return -0.5 * (1 + (step == 20 and number % 4 == 0))


def loader() -> wd.Loader:
    return wd.Loader(windows(), batch_size=7, shuffle=True, seed=11)


def save_steps(store: Store | str, *, embeddings: bool = True) -> None:
    """Make a complete save, and an incremental one after it."""
    every, batches = tables(), loader()
    for step in STEPS:
        trained(step, every)
        digests(batches, BATCHES[step] - batches.step)
        checkpoint.save(
            store,
            step=step,
            model=model(step),
            optimizer=optimizer(step),
            embeddings=every,
            loader=batches,
            extra=extra(step),
            chunk_bytes=CHUNK,
            incremental=True,
        )


def save_sharded(store: Store | str) -> None:
    """Save with two writers, each of which has some rows of one tensor."""
    plan = checkpoint.begin(store, step=30, writers=2, chunk_bytes=CHUNK, namespace="sharded")
    every = tables()
    trained(10, every)
    for writer, (first, end) in enumerate([(0, 25), (25, 40)]):
        part = checkpoint.Partition(weight(30)[first:end], offset=(first, 0), shape=(40, 9))
        only = {"half": torch.arange(70).to(torch.bfloat16)} if writer else {}
        checkpoint.save_shard(
            store,
            plan,
            writer=writer,
            model={"weight": part, **only},
            embeddings=None if writer else every,
            extra={"step": 30},
        )
    checkpoint.merge(store, plan)


def save_by_dcp(store: Store) -> None:
    state = {"model": plain_model(40), "optimizer": optimizer(40), "step": 40}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns of a single process
        writer = StoreWriter(store, step=40, namespace="dcp", chunk_bytes=CHUNK)
        dcp_save(state, storage_writer=writer)


def load_by_dcp(store: Store) -> dict[str, Any]:
    state = emptied({"model": plain_model(40), "optimizer": optimizer(40), "step": 0})
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp_load(state, storage_reader=StoreReader(store, namespace="dcp"))
    found: dict[str, Any] = state
    return found


def plain_model(step: int) -> dict[str, torch.Tensor]:
    names = ("weight", "half", "counts", "flags")
    return {name: tensor for name, tensor in model(step).items() if name in names}


def export_rows(store: Store | str) -> None:
    """Export tables for serving."""
    every = tables()
    trained(10, every)
    for name, table in every.items():
        checkpoint.export(store, table, name, slots=True, namespace="serving")


def emptied(state: Any) -> Any:
    """Return the state with zeros in its tensors."""
    if isinstance(state, torch.Tensor):
        return torch.zeros_like(state)
    if isinstance(state, dict):
        return {key: emptied(value) for key, value in state.items()}
    if isinstance(state, (list, tuple)):
        return type(state)(map(emptied, state))
    return state


def same(a: Any, b: Any) -> bool:
    """Return True if two states are equal in types, dtypes, shapes and values."""
    if isinstance(a, torch.Tensor):
        alike = isinstance(b, torch.Tensor) and (a.dtype, a.shape) == (b.dtype, b.shape)
        return alike and torch.equal(a, b)
    if isinstance(a, dict):
        return isinstance(b, dict) and a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (list, tuple)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and bool(a == b)


@contextmanager
def steady() -> Iterator[None]:
    """Replace random numbers by a counter, and time by a constant."""
    saves, names = itertools.count(10**15), itertools.count()
    random = secrets.randbits

    def save(bits: int) -> int:
        # NumPy asks for 128 when its generators are imported, which may be now.
        return next(saves) if bits == 63 else random(bits)

    def token(size: int) -> str:
        return f"{next(names):0{2 * size}x}"

    with (
        mock.patch.object(secrets, "randbits", save),
        mock.patch.object(secrets, "token_hex", token),
        mock.patch.object(time, "time", return_value=1.7e9),
    ):
        yield


def in_memory() -> dict[str, str]:
    """Return all that the functions above write, keys in hexadecimal and values in base 64."""
    kept: dict[bytes, bytes] = {}
    store = MappingStore(kept)
    with steady():
        save_steps(store)
        save_sharded(store)
        save_by_dcp(store)
        export_rows(store)
    return {key.hex(): base64.b64encode(value).decode() for key, value in sorted(kept.items())}


def read_memory() -> MappingStore:
    """Return the stored pairs as a store in memory."""
    text = json.loads((FROZEN / "memory.json").read_text(encoding="utf-8"))
    return MappingStore({bytes.fromhex(k): base64.b64decode(v) for k, v in text.items()})


def make() -> None:
    """Write the stores and the exported files."""
    (FROZEN / "memory.json").write_text(json.dumps(in_memory(), indent=0) + "\n", encoding="utf-8")
    for kind in ("rocksdb", "leveldb"):
        # The name of the folder it is made in is in some of its files.
        folder = Path("/tmp/frozen") / kind
        shutil.rmtree(folder, ignore_errors=True)
        with steady(), open_store(f"{kind}://{folder}") as store:
            save_steps(store)
            store.sync()
        kept = FROZEN / kind
        shutil.rmtree(kept, ignore_errors=True)
        kept.mkdir()
        for path in sorted(folder.iterdir()):
            if path.is_file() and not path.name.startswith(("LOG", "LOCK", "OPTIONS")):
                shutil.copy(path, kept)
        shutil.rmtree(folder.parent)
    (FROZEN / "exported").mkdir(exist_ok=True)
    export(read_memory(), FROZEN / "exported" / "model.safetensors", generation=2)
