"""Checkpoints of accelerate: all of a run in one commit, in place of `save_state`."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from weakref import WeakKeyDictionary

from windeck._util.imports import needs_torch
from windeck._util.options import explain_options

with needs_torch("windeck.checkpoint.accelerate"):
    from windeck.checkpoint.inspecting import Checkpoint
    from windeck.checkpoint.inspecting import open as open_checkpoint
    from windeck.checkpoint.loading import Loaded, compare_optimizer, load
    from windeck.checkpoint.maintenance import log
    from windeck.checkpoint.saving import save
    from windeck.checkpoint.training_state import (
        compare_count,
        compare_scheduler,
        emptied,
        find_tables,
        load_state,
        random_states,
        saved_extra,
        set_random_states,
        world_group,
    )
    from windeck.checkpoint.write.local_tensors import is_distributed
    from windeck.loader.loader import Loader, iterated_loaders

__all__ = ["AccelerateCheckpoint", "require_registered_loaders"]


@explain_options
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
        As `accelerator.prepare` returned them; lists of several optimizers and schedulers.
    loader
        The `Loader`, which is not prepared. Or an object that holds several, with a `state_dict`
        of their states.
    options
        Options of `windeck.checkpoint.save`, such as ``keep=3`` or ``incremental=True``.

    Raises
    ------
    ValueError
        For several optimizers of a model that is sharded by FSDP2.
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
        self._optimizers = [getattr(own, "optimizer", own) for own in _listed(optimizer)]
        self._schedulers, self._loader = _listed(scheduler), loader
        self._iterated = _IteratedLoaders("loader= of AccelerateCheckpoint")
        several = self._optimizers if len(self._optimizers) > 1 else []
        groups = [group for own in several for group in own.param_groups]
        if any(is_distributed(param) for group in groups for param in group["params"]):
            raise ValueError(
                f"`optimizer` has {len(several)} optimizers of parameters that are sharded by "
                "FSDP2, expected one"
            )

    def save(self, step: int) -> int:
        """Save on all ranks, after an optimizer step; return the generation.

        Raises
        ------
        RuntimeError
            For a table with gradients that wait for `step`, and between the batches whose gradients
            `accelerator.accumulate` adds up: a checkpoint would lose them. For a `Loader` without
            `restart` that was iterated since this object was made and is not its `loader`: a
            checkpoint would lose its position.
        """
        self._iterated.check([self._loader])
        if not self._accelerator.sync_gradients:
            raise RuntimeError(
                f"step {step} is between batches whose gradients are accumulated, expected a save "
                "after the optimizer's step: call it where accelerator.sync_gradients is True"
            )
        states = [own.state_dict() for own in self._schedulers]
        plain = {"optimizers": len(self._optimizers), "scheduler": states}
        if self._accelerator.scaler is not None:
            plain["scaler"] = self._accelerator.scaler.state_dict()
        generation: int = save(
            self.url,
            step=step,
            model=self._model,
            optimizer=self._optimizer_target(),
            embeddings=find_tables(self._model) or None,
            loader=self._loader,
            extra={"random": random_states(), "accelerate": plain},
            group=world_group(),
            **self._options,
        )
        return generation

    def load(self) -> Loaded | None:
        """Load the checkpoint in force on all ranks; return None if there is none.

        The rows of tables are replaced. Without an optimizer, the model is loaded alone.

        Raises
        ------
        KeyError, TypeError, ValueError
            For a model, optimizers, schedulers, tables or a loader that differ from those saved.
            Nothing was written to then.
        RuntimeError
            For a `Loader` that was iterated, as for `save`.
        """
        self._iterated.check([self._loader])
        try:
            if not log(self.url):
                return None
        except FileNotFoundError:
            return None
        several = self._optimizers if len(self._optimizers) > 1 else []
        with open_checkpoint(self.url) as found:
            saved = saved_extra(found, "accelerate", "AccelerateCheckpoint")["accelerate"]
            if self._optimizers:
                self._compare_counts(found, saved)
            states = found.tree("optimizer") if several else {}
        schedulers = [*zip(self._schedulers, saved["scheduler"], strict=False)]
        for number, own in enumerate(several):
            compare_optimizer(f"optimizer {number}", own, states[str(number)], repr(found))
        for number, (own, state) in enumerate(schedulers):
            compare_scheduler(number, own, state, repr(found))
        tables = find_tables(self._model)
        with emptied(tables):
            loaded = load(
                self.url,
                model=self._model,
                optimizer=None if several else self._optimizer_target(),
                embeddings=tables or None,
                loader=self._loader,
                generation=found.generation,
                group=world_group(),
            )
        for number, own in enumerate(several):
            load_state(own, states[str(number)])
        for own, state in schedulers:
            load_state(own, state)
        if self._accelerator.scaler is not None and "scaler" in saved:  # else, other precision
            load_state(self._accelerator.scaler, saved["scaler"])
        set_random_states(loaded.extra["random"])
        return loaded

    def _optimizer_target(self) -> Any:
        """Return the optimizer, several as a dict of their states, or None."""
        if len(self._optimizers) > 1:
            return {str(i): own.state_dict() for i, own in enumerate(self._optimizers)}
        return self._optimizers[0] if self._optimizers else None

    def _compare_counts(self, found: Checkpoint, saved: dict[str, Any]) -> None:
        for kind, here, there in (
            ("optimizer", len(self._optimizers), saved["optimizers"]),
            ("scheduler", len(self._schedulers), len(saved["scheduler"])),
        ):
            compare_count(f"`{kind}` of AccelerateCheckpoint", kind, here, there, repr(found))


def require_registered_loaders(accelerator: Any) -> None:
    """Let `save_state` and `load_state` raise for a `Loader` that they would not save and load.

    ``accelerator.prepare(loader)`` returns a `Loader` as it is, and `save_state` saves the position
    of one that is registered: ``accelerator.register_for_checkpointing(loader)``. After this call
    both raise a RuntimeError for one without `restart` that was iterated since and is not
    registered, nor held by a registered object.

    Parameters
    ----------
    accelerator
        The `accelerate.Accelerator`.
    """
    iterated = _IteratedLoaders("an argument of accelerator.register_for_checkpointing()")

    def check(*_: Any) -> None:
        iterated.check(accelerator._custom_objects)

    accelerator.register_save_state_pre_hook(check)
    accelerator.register_load_state_pre_hook(check)


class _IteratedLoaders:
    """Loaders that are iterated after this object is made, compared with those that are saved."""

    def __init__(self, place: str) -> None:
        self._place = place
        self._steps = WeakKeyDictionary({one: one.step for one in iterated_loaders()})

    def check(self, saved: Iterable[Any]) -> None:
        """Raise a RuntimeError for a loader with other batches handed out that is not saved."""
        known = {id(loader) for target in saved for loader in _held(target)}
        for loader in iterated_loaders():
            if id(loader) not in known and loader.step != self._steps.get(loader, 0):
                raise RuntimeError(
                    f"{loader!r} is iterated and not saved, so a resumed run would begin at its "
                    f"first batch; expected it as {self._place}, or with restart=True, as for "
                    "validation"
                )


def _held(target: Any) -> Iterator[Loader]:
    """Yield the loaders that an object is, or that its attributes and their items are."""
    for value in (target, *getattr(target, "__dict__", {}).values()):
        items = value.values() if isinstance(value, Mapping) else value
        inside = items if isinstance(value, (Mapping, list, tuple)) else ()
        yield from (one for one in (value, *inside) if isinstance(one, Loader))


def _listed(value: Any) -> list[Any]:
    if isinstance(value, (list, tuple)):
        return list(value)
    return [] if value is None else [value]
