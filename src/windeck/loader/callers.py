"""Checks of callers that would shard samples again, batch batches, or read the rest of an epoch.

accelerate and Lightning wrap samplers and datasets without calling a method of theirs. The frames
of the callers show it.
"""

from __future__ import annotations

import sys
from types import FrameType

from torch.utils.data import DataLoader, IterableDataset, Sampler

from windeck._util.warning import warn

__all__ = ["check_not_collated", "check_sharded_once", "warn_of_the_rest"]


def check_sharded_once(name: str, ranks: tuple[int, int], cure: str) -> None:
    """Raise if a sampler or DataLoader that shards what it reads is reading the share of a rank.

    It looks for such a wrapper among the callers, once a loop.
    """
    frame = sys._getframe() if ranks[1] > 1 else None
    while frame is not None:
        reader = frame.f_locals.get("self")
        if isinstance(reader, (DataLoader, IterableDataset, Sampler)):
            shards = [
                getattr(reader, "num_processes", 1),
                getattr(reader, "num_replicas", 1),
                getattr(getattr(reader, "state", None), "num_processes", 1),
            ]
            if shards != [1, 1, 1]:
                raise ValueError(
                    f"{name} serves rank {ranks[0]} of {ranks[1]}, and {type(reader).__name__} "
                    f"would shard its samples again, so that most are never served; {cure}"
                )
        frame = frame.f_back


def check_not_collated() -> None:
    """Raise if the DataLoader that reads an `IterDataset` would put its batches into batches."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        reader = frame.f_locals.get("self")
        if type(reader).__name__.endswith("DatasetFetcher"):
            if getattr(reader, "auto_collation", False):
                raise ValueError(
                    "an IterDataset yields whole batches, and the DataLoader would put them into "
                    "batches: pass batch_size=None to the DataLoader, and batch_size= to the "
                    "IterDataset"
                )
            return
        frame = frame.f_back


def warn_of_the_rest(position: int) -> None:
    """Warn if the caller is a validation, test or prediction of Lightning.

    For a `Loader` in the middle of an epoch, as the sanity check and `limit_val_batches` leave it.
    """
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        if name.startswith(("lightning.pytorch.loops.", "pytorch_lightning.loops.")) and (
            name.endswith((".evaluation_loop", ".prediction_loop"))
        ):
            warn(
                f"this loop of Lightning will have the rest of an epoch, from position {position} "
                "on, expected a whole one: its last loop, or the sanity check, ended there; pass "
                "restart=True to a Loader for validation, test or prediction",
            )
            return
        frame = frame.f_back
