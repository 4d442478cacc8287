"""`StoreReader`, the storage reader of torch.distributed.checkpoint."""

from __future__ import annotations

import io
import os
from dataclasses import replace
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.distributed.checkpoint.storage import StorageReader
from torch.futures import Future

from windeck._util.options import explain_options
from windeck.checkpoint.dcp.states import FlatState, flatten_checkpoint
from windeck.checkpoint.format import keys
from windeck.checkpoint.format.boxes import Box
from windeck.checkpoint.format.chunks import check_plain
from windeck.checkpoint.inspecting import Checkpoint
from windeck.checkpoint.read.fetching import Job
from windeck.checkpoint.stores import CorruptStoreError, Store
from windeck.checkpoint.stores.urls import is_url, retry_while_open

__all__ = ["StoreReader"]


@explain_options
class StoreReader(StorageReader):
    """Reads a checkpoint from a store for `dcp.load`; each rank reads only what it needs.

    Parameters
    ----------
    store
        The URL of a store, or an open one; `checkpoint_id=` of `dcp.load` replaces it.
    generation
        A generation from `log`; None: the one in force.
    namespace
        As for `checkpoint.save`.
    root
        The root whose content is loaded: ``model`` for ``model.state_dict()``. None: the state as
        it was given to `dcp.save`; for a checkpoint of `checkpoint.save`, a dict of its roots,
        ``{"model": ..., "optimizer": ...}``.
    cast
        Cast to the targets' dtypes instead of raising an error if they differ.
    wait
        Seconds to wait for other ranks if one process at a time can open the store (LevelDB).

    Raises
    ------
    CheckpointException
        Of torch, a BaseException, with what was found and expected. If it reports damage, targets
        may have been written to, and are invalid.

    Examples
    --------
    >>> import warnings, torch
    >>> import torch.distributed.checkpoint as dcp
    >>> from windeck import checkpoint
    >>> from windeck.checkpoint.dcp import StoreReader, StoreWriter
    >>> warnings.simplefilter("ignore")  # torch warns of a single process
    >>> with checkpoint.stores.open_store("memory://") as store:
    ...     generation = checkpoint.save(store, step=3, model={"w": torch.arange(3.0)})
    ...     state = {"w": torch.zeros(3)}
    ...     dcp.load(state, storage_reader=StoreReader(store, root="model"))
    >>> state
    {'w': tensor([0., 1., 2.])}
    """

    def __init__(
        self,
        store: Store | str,
        *,
        generation: int | None = None,
        namespace: str = "windeck",
        root: str | None = None,
        cast: bool = False,
        wait: float = 60.0,
    ) -> None:
        super().__init__()
        self._store, self._generation, self._root = store, generation, root
        self._namespace = keys.check_namespace(namespace)
        self._cast, self._wait = cast, wait
        self._flat = FlatState()

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start another load; `checkpoint_id` is the URL of its store."""
        if checkpoint_id is not None:
            self._store = str(checkpoint_id)

    def read_metadata(self, *args: Any) -> Metadata:
        """Return the content of the checkpoint by dcp's names."""
        with self._opened(self._generation) as found:
            self._flat = flatten_checkpoint(found, self._root)
        return self._flat.metadata()

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *_: Any) -> None:
        """Do nothing: `read_metadata` prepares all."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Add the generation to the plan."""
        return replace(plan, storage_data=self._flat.generation)

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Raise an error if the ranks found different generations, or nothing is to be loaded.

        Raises
        ------
        ValueError
            For different generations in force.
        KeyError
            When a planner that allows a partial load finds no name of the state in the checkpoint.
        """
        found = sorted({plan.storage_data for plan in plans})
        if len(found) > 1:
            raise ValueError(
                f"the ranks found the generations {found} in force, expected one: "
                "choose one with generation="
            )
        saved = sorted(self._flat.metadata().state_dict_metadata)
        if saved and not any(plan.items for plan in plans):
            raise KeyError(
                f"no name of the state is in generation {found[0]}, which has "
                f"{', '.join(saved[:20])}: expected the names that were saved"
            )
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Read the tensors of the plan in place."""
        tensors = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        targets = [planner.resolve_tensor(item).detach() for item in tensors]
        jobs = [self._read_job(*pair) for pair in zip(tensors, targets, strict=True)]
        with self._opened(self._flat.generation) as found, torch.no_grad():
            try:
                for _ in found.read_many(jobs):
                    pass
            except CorruptStoreError as error:
                text = f"{error.strerror or error}; the targets are invalid"
                raise CorruptStoreError(text) from error
            for item, target in zip(tensors, targets, strict=True):
                planner.commit_tensor(item, target)
            for item in plan.items:
                if item.type == LoadItemType.BYTE_IO:
                    # A planner expects the format of torch.save; the value is stored as JSON.
                    data = io.BytesIO()
                    torch.save(self._flat.value(item.storage_index.fqn, found), data)
                    data.seek(0)
                    planner.load_bytes(item, data)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _read_job(self, item: ReadItem, target: torch.Tensor) -> Job:
        name = item.storage_index.fqn
        saved, info = self._flat.tensors[name]
        check_plain(name, target)
        if target.dtype != info.dtype and not self._cast:
            raise TypeError(
                f"{name} has dtype {target.dtype}, expected {info.dtype} as saved; cast=True casts"
            )
        if info.dtype.is_complex and not target.dtype.is_complex:
            raise TypeError(f"{name} is {info.dtype}, expected a complex target for it")
        box: Box = tuple(
            (first, first + size)
            for first, size in zip(item.storage_offsets, item.lengths, strict=True)
        )
        return saved, [target], box

    def _opened(self, generation: int | None) -> Checkpoint:
        return retry_while_open(
            lambda: Checkpoint(self._store, self._namespace, generation), seconds=self._wait
        )

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether an id is the URL of a store."""
        return is_url(checkpoint_id)
