"""Random changes of files during an epoch: right batches, then an error that names the file."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import windeck as wd
from support.streamed_tables import READ, arrow_table, assert_same, write_files

OPTIONS: dict[str, Any] = {"context_length": 6, "prediction_length": 2, "target_columns": ["load"]}


def truncate(path: Path, chance: random.Random) -> None:
    os.truncate(path, chance.randrange(path.stat().st_size))


def delete(path: Path, chance: random.Random) -> None:
    path.unlink()


def replace(path: Path, chance: random.Random) -> None:
    """Put another file in place, such as a second run of the writer does."""
    other = path.with_name("other")
    other.write_bytes(path.read_bytes()[::-1])
    os.replace(other, path)


def overwrite(path: Path, chance: random.Random) -> None:
    with path.open("r+b") as file:
        file.seek(chance.randrange(path.stat().st_size))
        file.write(b"damage")


FAULTS = [truncate, delete, replace, overwrite]


def check(folder: Path, seed: int) -> None:
    """Run one plan: three epochs, in the first of which one file changes at one step."""
    chance = random.Random(seed)
    folder.mkdir()
    lengths = [chance.randrange(20, 90) for _ in range(4)]
    cuts = sorted(chance.sample(range(1, sum(lengths)), 3))
    kind = chance.choice(["parquet", "uncompressed", "lz4"])
    paths = write_files(arrow_table(lengths, seed), folder, cuts, chance.randrange(5, 40), kind)
    memory = wd.Windows(wd.Table.read(paths, **READ), **OPTIONS)
    table = wd.Table.read(
        paths, in_memory=False, group_bytes=chance.choice([50, 400]), **READ
    ).with_missing_counts()
    windows = wd.Windows(table, **OPTIONS)
    order = windows.default_order
    expected = batches(wd.Loader(memory, batch_size=4, order=order, seed=seed, epochs=3))
    found = batches(wd.Loader(windows, batch_size=4, shuffle=True, seed=seed, epochs=3))
    changed = chance.choice(paths)
    for _ in range(chance.randrange(len(memory) // 4)):
        assert_same(next(found), next(expected))
    chance.choice(FAULTS)(changed, chance)
    # Groups that were read before may be served; no batch is wrong.
    with pytest.raises((ValueError, FileNotFoundError), match=changed.name):
        serve(found, expected)


def batches(loader: wd.Loader) -> Iterator[Any]:
    """Yield the batches of three epochs."""
    for _ in range(3):
        yield from loader


def serve(found: Any, expected: Any) -> None:
    for batch in found:
        assert_same(batch, next(expected))
    pytest.fail("the fault was not noticed")


@pytest.mark.parametrize("seed", range(25))
def test_plans(tmp_path: Path, seed: int) -> None:
    check(tmp_path / "plan", seed)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(100, 300))
def test_many_plans(tmp_path: Path, seed: int) -> None:
    check(tmp_path / "plan", seed)
