"""`StoreWriter`, the storage writer of torch.distributed.checkpoint."""

from __future__ import annotations

import math
import os
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import (
    SavePlan,
    SavePlanner,
    TensorWriteData,
    WriteItem,
    WriteItemType,
)
from torch.distributed.checkpoint.storage import StorageWriter, WriteResult
from torch.futures import Future

from windeck._util.options import explain_options
from windeck.checkpoint.dcp.states import build_manifest, check_root
from windeck.checkpoint.format import keys, state_json
from windeck.checkpoint.format.chunks import check_plain
from windeck.checkpoint.format.keys import PartName, has_parts
from windeck.checkpoint.format.manifests import check_manifest
from windeck.checkpoint.stores import Store, write_part
from windeck.checkpoint.stores.protocol import Items, ParallelItems
from windeck.checkpoint.stores.urls import is_url, opened
from windeck.checkpoint.write.commits import CHUNK_BYTES, check_numbers
from windeck.checkpoint.write.local_state import encode_chunks
from windeck.checkpoint.write.plans import Plan, begin, discard, finish
from windeck.columns.dtypes import dtype_name

__all__ = ["StoreWriter"]


@dataclass(frozen=True)
class _RankPlan:
    """A save's plan, the rank's number, and whether the rank may open the store."""

    plan: Plan
    writer: int
    shared: bool

    @property
    def part(self) -> str:
        """The name of the part that the rank writes beside an embedded database."""
        plan = self.plan
        numbers = plan.generation, plan.save, self.writer
        return PartName.of(plan.namespace, *numbers, "0" * 8, "t").text


@explain_options
class StoreWriter(StorageWriter):
    """Writes the states of `dcp.save` and `dcp.async_save` into a store, in one commit.

    Parameters
    ----------
    store
        The URL of a store; `checkpoint_id=` of `dcp.save` replaces it. Or an open store on rank 0;
        other ranks, and `dcp.async_save` in a process, need the URL.
    step
        The step that `log` shows beside the generation; None: the number of the generation.
    namespace, chunk_bytes, takeover, lower_step
        As for `checkpoint.save`.
    root
        Prefix of all names. None: if a value of the state is a dict, as in
        ``{"model": ..., "optimizer": ...}``, each of its keys is a root; otherwise ``model``. A
        TypeError unless it is text, a ValueError for ``dcp``, which is reserved.

    Attributes
    ----------
    generation
        The generation written last, on every rank; None before.

    Notes
    -----
    Rank 0 opens the store to reserve a generation, and commits by compare-and-set of HEAD when all
    ranks are done. Ranks write their own data: into the store if it is shared, otherwise as parts
    beside it, which rank 0 ingests. If any rank fails, all raise torch's `CheckpointException` with
    the reason, and the former checkpoint stays in force.

    Examples
    --------
    >>> import warnings, torch
    >>> import torch.distributed.checkpoint as dcp
    >>> from windeck import checkpoint
    >>> from windeck.checkpoint.dcp import StoreReader, StoreWriter
    >>> warnings.simplefilter("ignore")  # torch warns of a single process
    >>> state = {"model": {"w": torch.arange(3.0)}, "step": 7}
    >>> _ = dcp.save(state, storage_writer=StoreWriter("memory://dcp-example", step=7))
    >>> fresh = {"model": {"w": torch.zeros(3)}, "step": 0}
    >>> dcp.load(fresh, storage_reader=StoreReader("memory://dcp-example"))
    >>> fresh
    {'model': {'w': tensor([0., 1., 2.])}, 'step': 7}
    >>> checkpoint.open("memory://dcp-example").names()
    ['model/w']
    """

    def __init__(
        self,
        store: Store | str,
        *,
        step: int | None = None,
        namespace: str = "windeck",
        root: str | None = None,
        chunk_bytes: int = CHUNK_BYTES,
        takeover: bool = False,
        lower_step: bool = False,
    ) -> None:
        super().__init__()
        self._store, self._root = store, check_root(root)
        self._namespace = keys.check_namespace(namespace)
        check_numbers({"step": 0 if step is None else step, "chunk_bytes": chunk_bytes})
        self.step, self._chunk_bytes = step, chunk_bytes
        self._takeover, self._lower_step = takeover, lower_step
        self.generation: int | None = None
        self._rank_plans: list[_RankPlan] = []

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Start another save; `checkpoint_id` is the URL of its store."""
        if checkpoint_id is not None:
            self._store = str(checkpoint_id)
        self._rank_plans = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Raise a ValueError for a save without collectives, which could not be committed."""
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "use_collectives=False leaves each rank with a checkpoint of its own, expected "
                "True: a save is one commit of all ranks"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """Return the plan unchanged."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Reserve a generation, and add it to the plans of all ranks."""
        left_out = [rank for rank, plan in enumerate(plans) if not getattr(plan, "usable", True)]
        if left_out:
            raise ValueError(
                f"the plans of ranks {left_out} were left out by a planner with "
                "enable_plan_caching=True, expected whole plans: each save has its own keys"
            )
        with opened(self._store) as place:
            plan = begin(
                place,
                step=self.step or 0,
                writers=len(plans),
                namespace=self._namespace,
                chunk_bytes=self._chunk_bytes,
                takeover=self._takeover,
                lower_step=self._lower_step or self.step is None,
            )
            shared = place.facts.shared
        if self.step is None:
            plan = replace(plan, step=plan.generation, digest="")
        self._rank_plans = [_RankPlan(plan, rank, shared) for rank in range(len(plans))]
        pairs = zip(plans, self._rank_plans, strict=True)
        return [replace(given, storage_data=own) for given, own in pairs]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write the data of this rank; they are durable when the future is done."""
        rank_plan: _RankPlan = plan.storage_data
        results = [
            WriteResult(item.index, 0, _encode_value(item, planner))
            for item in plan.items
            if item.type == WriteItemType.BYTE_IO
        ]
        items = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        # A part for each tensor, so that several threads can write.
        encode = partial(self._encode_tensor, planner, rank_plan, results)
        pairs = [
            (_size_of(item), partial(encode, number, item)) for number, item in enumerate(items)
        ]
        found = ParallelItems(pairs)
        if rank_plan.shared or rank_plan.plan.writers == 1:
            with opened(self._store) as place:
                place.bulk_load(found)
                place.sync()  # nothing would tell `finish` that they were lost
        else:
            url = self._store if isinstance(self._store, str) else self._store.url
            write_part(url, rank_plan.part, found)
        self.generation = rank_plan.plan.generation
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _encode_tensor(
        self,
        planner: SavePlanner,
        rank_plan: _RankPlan,
        results: list[WriteResult],
        number: int,
        item: WriteItem,
    ) -> Items:
        """Yield the chunks of a tensor; add its entry for the manifest to `results`."""
        tensor, data = _resolve_tensor(item, planner)
        plan = rank_plan.plan
        size = plan.chunk_bytes_of(data.size, tensor.dtype.itemsize)
        box = zip(data.chunk.offsets, data.chunk.sizes, strict=True)
        entry = {
            "dtype": dtype_name(tensor.dtype),
            "shape": list(data.size),
            "chunk_bytes": size,
            "box": [[first, first + count] for first, count in box],
            "writer": rank_plan.writer,
            "item": number,
        }
        results.append(WriteResult(item.index, tensor.nbytes, entry))
        yield from encode_chunks(
            plan.namespace, plan.generation, plan.save, number, tensor, size,
            writer=rank_plan.writer,
        )  # fmt: skip

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Check that all ranks wrote everything, and commit."""
        if not self._rank_plans:
            raise RuntimeError(
                "finish was called before a save began, expected prepare_global_plan first"
            )
        rank_plans, self._rank_plans = self._rank_plans, []
        plan = rank_plans[0].plan
        with opened(self._store) as place:
            if not rank_plans[0].shared and plan.writers > 1:
                if not has_parts(place):
                    raise TypeError(
                        f"{place.url} can neither be shared by ranks nor ingest parts, expected a "
                        "store that can, or one rank"
                    )
                place.ingest_parts([rank_plan.part for rank_plan in rank_plans])
            try:
                manifest = build_manifest(metadata, results, self._root, plan.chunk_bytes)
                check_manifest(manifest, plan.generation, plan.save)
            except (TypeError, ValueError):
                discard(place, plan)
                raise
            finish(place, plan, manifest)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Return whether an id is the URL of a store."""
        return is_url(checkpoint_id)


def _encode_value(item: WriteItem, planner: SavePlanner) -> Any:
    """Return a value other than a tensor as JSON, before the planner pickles it."""
    name = item.index.fqn
    if not hasattr(planner, "lookup_object"):
        raise TypeError(
            f"{name} is not a tensor, and {type(planner).__name__} has no lookup_object to get it, "
            "expected a planner that derives from DefaultSavePlanner"
        )
    return state_json.encode(planner.lookup_object(item.index), name, _refuse_tensor)


def _refuse_tensor(name: str, tensor: Any) -> str:
    raise TypeError(
        f"{name} is a tensor inside a value that dcp does not flatten, expected it in a dict or a "
        "list, and a planner with flatten_state_dict=True"
    )


def _resolve_tensor(item: WriteItem, planner: SavePlanner) -> tuple[torch.Tensor, TensorWriteData]:
    name, found, data = item.index.fqn, planner.resolve_data(item), item.tensor_data
    if not isinstance(found, torch.Tensor) or data is None:
        raise TypeError(f"{name} is a {type(found).__name__} to its planner, expected a tensor")
    tensor, expected = found.detach(), tuple(data.chunk.sizes)
    check_plain(name, tensor)
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {expected} as planned")
    return tensor, data


def _size_of(item: WriteItem) -> int:
    """Return the approximate bytes of a tensor."""
    data = item.tensor_data
    return 0 if data is None else math.prod(data.chunk.sizes) * data.properties.dtype.itemsize
