"""Time of a save and a load of a gigabyte, against torch.save, safetensors and DCP.

A model of 1 GB in float32, shaped like a transformer's. Saves end with what makes them durable and
go to a path where nothing was; loads go into a model that is there. Model, targets and files are
touched before anything is timed: loads find their file in the page cache. On tmpfs (/dev/shm) no
disk is waited for, so processor time shows too, that of all threads; on disk the wall time counts.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from measure import Costs, Row, compare_costs

from windeck import checkpoint
from windeck._util import parallel

GIGABYTE = 10**9
WIDTH, LAYERS = 2048, 60
ROUNDS = {"tmpfs": 7, "disk": 5}
NEEDED = {"torch.save": 1.2, "safetensors": 0.9, "torch.load": 0.2}
#: By profiles of our side: what the time goes into.
BOUNDS = {
    "save": {"tmpfs": "the kernel, filling fresh pages", "disk": "the disk"},
    "load": {"tmpfs": "copies by the engine, with the interpreter's lock", "disk": "the same"},
}


def make_model() -> dict[str, torch.Tensor]:
    """60 matrices with a bias each, a gigabyte in all."""
    rows = GIGABYTE // 4 // LAYERS // WIDTH
    made = {}
    for layer in range(LAYERS):
        made[f"layers.{layer}.weight"] = torch.randn(rows, WIDTH)
        made[f"layers.{layer}.bias"] = torch.randn(WIDTH)
    return made


@dataclass(frozen=True)
class Place:
    """A folder, and the three files or databases in it."""

    name: str
    folder: Path

    @property
    def torch(self) -> Path:
        return self.folder / "model.pt"

    @property
    def safetensors(self) -> Path:
        return self.folder / "model.safetensors"

    @property
    def database(self) -> Path:
        return self.folder / "database"

    @property
    def url(self) -> str:
        return f"rocksdb://{self.database}"

    def clear(self) -> None:
        """Remove all; what that leaves for the file system to do is done, not left to be timed."""
        for path in self.folder.iterdir():
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        os.sync()


def durable(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    os.fsync(handle)
    os.close(handle)


def torch_save(model: dict[str, torch.Tensor], place: Place) -> None:
    torch.save(model, place.torch)
    durable(place.torch)


def safetensors_save(model: dict[str, torch.Tensor], place: Place) -> None:
    safetensors.torch.save_file(model, place.safetensors)
    durable(place.safetensors)


def torch_load(target: dict[str, torch.Tensor], place: Place) -> None:
    for name, value in torch.load(place.torch, mmap=True).items():
        target[name].copy_(value)


def safetensors_load(target: dict[str, torch.Tensor], place: Place) -> None:
    for name, value in safetensors.torch.load_file(place.safetensors).items():
        target[name].copy_(value)


def dcp_load(target: dict[str, torch.Tensor], place: Place) -> None:
    dcp.load(target, checkpoint_id=place.folder / "dcp")


def check(model: dict[str, torch.Tensor], load: Callable[[dict[str, torch.Tensor]], None]) -> None:
    target = {name: torch.full_like(value, torch.nan) for name, value in model.items()}
    load(target)
    assert all(torch.equal(target[name], value) for name, value in model.items())


def both(
    question: str, ours: str, rival: str, costs: Costs, place: Place, needed: float
) -> list[Row]:
    """Wall time; and processor time, where it is all there is to be had."""
    disk = place.name == "disk"
    bound = BOUNDS[question[:4]][place.name]
    found = [Row(f"{question} ({place.name})", ours, rival, costs.wall, needed, bound)]
    if not disk:
        name = f"{question} ({place.name}, processor time)"
        found.append(Row(name, ours, rival, costs.cpu, None, bound))
    return found


def at(place: Place, model: dict[str, torch.Tensor]) -> Iterator[Row]:
    rounds = ROUNDS[place.name]
    rivals = {"torch.save": torch_save, "safetensors": safetensors_save}

    def ours() -> None:
        checkpoint.save(place.url, step=1, model=model)

    ours()
    check(model, lambda target: checkpoint.load(place.url, model=target))
    for name, rival in rivals.items():
        costs = compare_costs(
            ours,
            lambda rival=rival: rival(model, place),
            before=place.clear,
            rounds=rounds,
            twice=True,
        )
        text = f"save 1 GB of float32 against {name}"
        yield from both(text, "RocksDB, synced", f"{name} + fsync", costs, place, NEEDED[name])
    yield from loads(place, model)


def loads(place: Place, model: dict[str, torch.Tensor]) -> Iterator[Row]:
    """Against a copy by one thread, and by as many as we read with."""
    place.clear()
    checkpoint.save(place.url, step=1, model=model)
    torch_save(model, place)
    safetensors_save(model, place)
    dcp.save(model, checkpoint_id=place.folder / "dcp")
    target = {name: torch.zeros_like(value) for name, value in model.items()}
    rivals = {
        "torch.load(mmap=True)": torch_load,
        "safetensors": safetensors_load,
        "torch.distributed.checkpoint": dcp_load,
    }
    before = torch.get_num_threads()
    for name, load in rivals.items():
        check(model, lambda target, load=load: load(target, place))
        for threads in (1, parallel.THREADS):
            torch.set_num_threads(threads)
            costs = compare_costs(
                lambda: checkpoint.load(place.url, model=target),
                lambda load=load: load(target, place),
                rounds=ROUNDS[place.name],
            )
            rival = f"{name}, copied by {threads}"
            text, ours = "load 1 GB of float32 in place", "RocksDB, every byte checked"
            yield from both(text, ours, rival, costs, place, NEEDED["torch.load"])
    torch.set_num_threads(before)


def rows() -> Iterator[Row]:
    model = make_model()
    for name, parent in (("tmpfs", "/dev/shm"), ("disk", os.environ.get("WINDECK_BENCH_DISK"))):
        with tempfile.TemporaryDirectory(dir=parent) as folder:
            yield from at(Place(name, Path(folder)), model)
