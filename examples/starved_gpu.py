"""A fast laptop against a starved cloud GPU: the same loader, diagnosed twice and compared.

    python examples/starved_gpu.py [--seconds 2] [--out out]

The story: training takes longer on the machine with the expensive GPU. The step is faster there,
and everybody looks at the model. What differs is the disk: the laptop keeps the file in its page
cache, the cloud machine reads every window over a network file system, which answers after some
milliseconds.

Both are planted here on one machine. The data and the loader are the same; the source is a mapped
file that answers at once, or after a delay; the step takes long on the laptop's small GPU, and a
tenth of that on the large one. Two reports are written as JSON, as `windeck doctor --json` would on
each machine, and one page with both side by side.
"""

import argparse
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

import windeck as wd
from windeck.diagnosis.report import comparison_html

CONTEXT, HORIZON, BATCH = 168, 24, 32

#: Seconds of a read of one window, and of a training step, on each machine.
MACHINES = {"laptop": (0.0, 0.02), "cloud": (0.002, 0.002)}


class MappedWindows(Dataset[dict[str, torch.Tensor]]):
    """Windows of a mapped file, one read each, as many projects begin."""

    def __init__(self, path: Path, delay: float) -> None:
        self.values = np.load(path, mmap_mode="r")
        self.delay = delay

    def __len__(self) -> int:
        return len(self.values) - CONTEXT - HORIZON + 1

    def __getitem__(self, start: int) -> dict[str, torch.Tensor]:
        if self.delay:
            time.sleep(self.delay)  # the answer of a distant disk
        window = torch.from_numpy(self.values[start : start + CONTEXT + HORIZON].copy())
        return {"past": window[:CONTEXT], "future": window[CONTEXT:]}


def training_step(seconds: float) -> Callable[[dict[str, torch.Tensor]], None]:
    """Return a step that takes as long as that of the machine's GPU, which is not here."""

    def step(batch: dict[str, torch.Tensor]) -> None:
        time.sleep(seconds)

    return step


def diagnose(path: Path, machine: str, seconds: float) -> Any:
    """Return the diagnosis of the loader as it is on a machine."""
    delay, takes = MACHINES[machine]
    loader = DataLoader(MappedWindows(path, delay), batch_size=BATCH, shuffle=True)
    return wd.doctor(loader, training_step(takes), seconds=seconds, files=[str(path)])


def main(arguments: list[str] | None = None) -> int:
    """Run the example."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=2.0, help="seconds of each loop")
    parser.add_argument("--rows", type=int, default=2_000_000, help="rows of the file")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder of the reports")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    path = options.out / "load.npy"
    rng = np.random.default_rng(7)
    np.save(path, rng.standard_normal(options.rows, dtype=np.float32).cumsum())
    reports = []
    for machine in MACHINES:
        report = diagnose(path, machine, options.seconds)
        (options.out / f"{machine}.json").write_text(report.to_json(), encoding="utf-8")
        reports.append((machine, report))
    page = options.out / "starved_gpu.html"
    page.write_text(comparison_html(reports), encoding="utf-8")
    (one, laptop), (two, cloud) = reports
    print(laptop.compare(cloud, names=[one, two]))
    print(f"\nSide by side: {page}, or windeck doctor --compare {options.out}/laptop.json "
          f"{options.out}/cloud.json")  # fmt: skip
    return 0


if __name__ == "__main__":
    sys.exit(main())
