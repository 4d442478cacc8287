"""Checkpoints of accelerate: all of a run in one commit, in place of `save_state`."""

from __future__ import annotations

from typing import Any

from windeck.checkpoint.loading import Loaded, load
from windeck.checkpoint.maintenance import log
from windeck.checkpoint.saving import save
from windeck.checkpoint.training_state import (
    find_tables,
    random_states,
    set_random_states,
    world_group,
)

__all__ = ["AccelerateCheckpoint"]


class AccelerateCheckpoint:
    """Saves all of a run with accelerate in one commit, and restores it.

    A checkpoint holds model, optimizer, scheduler, the embedding tables in the model, the loader,
    the gradient scaler, and the random generators of each rank.

    Parameters
    ----------
    accelerator
        The `accelerate.Accelerator`.
    url
        A store, as for `windeck.checkpoint.save`.
    model, optimizer, scheduler
        As `accelerator.prepare` returned them.
    loader
        The `Loader`, which is not prepared.
    options
        Options of `windeck.checkpoint.save`, such as ``keep=3`` or ``incremental=True``.
    """

    def __init__(
        self,
        accelerator: Any,
        url: str,
        *,
        model: Any,
        optimizer: Any = None,
        scheduler: Any = None,
        loader: Any = None,
        **options: Any,
    ) -> None:
        self.url, self._accelerator, self._options = url, accelerator, options
        self._model = accelerator.unwrap_model(model)
        self._optimizer = getattr(optimizer, "optimizer", optimizer)
        self._scheduler, self._loader = scheduler, loader

    def save(self, step: int) -> int:
        """Save on all ranks, after an optimizer step; return the generation.

        Raises
        ------
        RuntimeError
            For a table with gradients that wait for `step`.
        """
        plain = {name: part.state_dict() for name, part in self._plain().items()}
        return save(
            self.url,
            step=step,
            model=self._model,
            optimizer=self._optimizer,
            embeddings=find_tables(self._model) or None,
            loader=self._loader,
            extra={"random": random_states(), "accelerate": plain},
            group=world_group(),
            **self._options,
        )

    def load(self) -> Loaded | None:
        """Load the checkpoint in force on all ranks; return None if there is none."""
        try:
            if not log(self.url):
                return None
        except FileNotFoundError:
            return None
        found = load(
            self.url,
            model=self._model,
            optimizer=self._optimizer,
            embeddings=find_tables(self._model) or None,
            loader=self._loader,
            group=world_group(),
        )
        for name, part in self._plain().items():
            part.load_state_dict(found.extra["accelerate"][name])
        set_random_states(found.extra["random"])
        return found

    def _plain(self) -> dict[str, Any]:
        parts = {"scheduler": self._scheduler, "scaler": self._accelerator.scaler}
        return {name: part for name, part in parts.items() if part is not None}
