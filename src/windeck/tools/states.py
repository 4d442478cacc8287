"""The file a demo's training is resumed from: all that a new process needs, whole or not at all."""

import json
import os
from pathlib import Path
from typing import Any

import torch
from torch import nn

from windeck.loader import Loader

__all__ = ["load", "read", "save"]


def save(
    path: Path, step: int, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader
) -> None:
    """Puts a training's state into one file.

    The loader's part is a line of JSON: a position, and what it is a position in.
    """
    unfinished = path.with_suffix(".unfinished")
    content = {
        "step": step,
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "loader": json.dumps(loader.state_dict()),
    }
    with open(unfinished, "wb") as file:
        torch.save(content, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(unfinished, path)


def read(path: Path) -> dict[str, Any]:
    """What `save` wrote; tensors and plain values only, no code is run."""
    content: dict[str, Any] = torch.load(path, weights_only=True)
    return content


def load(path: Path, model: nn.Module, optimizer: torch.optim.Optimizer, loader: Loader) -> int:
    """Puts a saved state into place; returns the number of steps it had taken."""
    content = read(path)
    model.load_state_dict(content["model"])
    optimizer.load_state_dict(content["optimizer"])
    loader.load_state_dict(json.loads(content["loader"]))
    return int(content["step"])
