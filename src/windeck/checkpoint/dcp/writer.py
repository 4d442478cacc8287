"""The side of torch.distributed.checkpoint that saves."""

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

from windeck.checkpoint.dcp.states import check_root, manifest_of
from windeck.checkpoint.format import keys, trees
from windeck.checkpoint.format.chunks import check_plain
from windeck.checkpoint.format.manifests import check_manifest
from windeck.checkpoint.format.part_names import PartName, has_parts
from windeck.checkpoint.stores import Store, write_part
from windeck.checkpoint.stores.lanes import Lanes
from windeck.checkpoint.stores.opening import is_url, opened
from windeck.checkpoint.stores.protocol import Items
from windeck.checkpoint.write.plans import CHUNK_BYTES, Plan, begin, check_numbers, discard, finish
from windeck.checkpoint.write.shards import chunk_pairs
from windeck.columns.dtypes import dtype_name

__all__ = ["StoreWriter"]


@dataclass(frozen=True)
class _Ticket:
    """What a rank has to know of a save: the plan, its number, whether it may open the store."""

    plan: Plan
    writer: int
    shared: bool

    @property
    def part(self) -> str:
        """The name of what the rank writes beside an embedded database."""
        plan = self.plan
        numbers = plan.generation, plan.save, self.writer
        return PartName.of(plan.namespace, *numbers, "0" * 8, "t").text


class StoreWriter(StorageWriter):
    """Writes what `dcp.save` and `dcp.async_save` hand it into a store, in one commit.

    Parameters
    ----------
    store
        The URL of a store; `checkpoint_id=` of `dcp.save` replaces it. Or an open store: with
        several ranks the others give the URL, and `dcp.async_save` in a process takes a URL only.
    step
        What `log` shows beside the generation; None: the number of the generation.
    namespace, chunk_bytes
        As for `checkpoint.save`.
    root
        What all names begin with. None: where a value of the state is a dict, as in
        ``{"model": ..., "optimizer": ...}``, each of its keys is a root; else ``model``. TypeError
        for what is no text, ValueError for ``dcp``, which is reserved.

    Attributes
    ----------
    generation
        What was written last, on every rank; None before.

    Notes
    -----
    Rank 0 opens the store, to take a number and to commit, and sets HEAD by compare-and-set when
    all ranks are done. The ranks write what they own: into the store itself where it is shared,
    else as parts beside it, which rank 0 takes in. If any rank fails, all raise torch's
    `CheckpointException` with the reason, and the checkpoint that was in force still is.

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
    ) -> None:
        super().__init__()
        self._store, self._root = store, check_root(root)
        self._namespace = keys.check_namespace(namespace)
        check_numbers({"step": 0 if step is None else step, "chunk_bytes": chunk_bytes})
        self.step, self._chunk_bytes = step, chunk_bytes
        self.generation: int | None = None
        self._begun: list[_Ticket] = []

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Another save begins; `checkpoint_id` is the URL of its store."""
        if checkpoint_id is not None:
            self._store = str(checkpoint_id)
        self._begun = []

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """ValueError for a save that nobody would put together."""
        if not kwargs.get("use_collectives", True):
            raise ValueError(
                "use_collectives=False leaves each rank with a checkpoint of its own, expected "
                "True: a save is one commit of all ranks"
            )

    def prepare_local_plan(self, plan: SavePlan) -> SavePlan:
        """The plan as it is."""
        return plan

    def prepare_global_plan(self, plans: list[SavePlan]) -> list[SavePlan]:
        """Take a number, and tell all ranks."""
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
            )
            shared = place.facts.shared
        if self.step is None:
            plan = replace(plan, step=plan.generation, digest="")
        self._begun = [_Ticket(plan, rank, shared) for rank in range(len(plans))]
        return [replace(p, storage_data=t) for p, t in zip(plans, self._begun, strict=True)]

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Future[list[WriteResult]]:
        """Write what this rank owns; durable when the future is done."""
        ticket: _Ticket = plan.storage_data
        results = [
            WriteResult(item.index, 0, _plain(item, planner))
            for item in plan.items
            if item.type == WriteItemType.BYTE_IO
        ]
        items = [item for item in plan.items if item.type != WriteItemType.BYTE_IO]
        # A part for each tensor: several may be written at the same time.
        found = Lanes([
            (_size(item), partial(self._pairs, number, item, planner, ticket, results))
            for number, item in enumerate(items)
        ])  # fmt: skip
        if ticket.shared or ticket.plan.writers == 1:
            with opened(self._store) as place:
                place.bulk_load(found)
                place.sync()
        else:
            url = self._store if isinstance(self._store, str) else self._store.url
            write_part(url, ticket.part, found)
        self.generation = ticket.plan.generation
        done: Future[list[WriteResult]] = Future()
        done.set_result(results)
        return done

    def _pairs(
        self,
        number: int,
        item: WriteItem,
        planner: SavePlanner,
        ticket: _Ticket,
        results: list[WriteResult],
    ) -> Items:
        """A tensor when its turn comes; what the manifest has to say of it goes to `results`."""
        tensor, data = _tensor(item, planner)
        plan = ticket.plan
        size = plan.chunk_bytes_of(data.size, tensor.dtype.itemsize)
        box = zip(data.chunk.offsets, data.chunk.sizes, strict=True)
        said = {
            "dtype": dtype_name(tensor.dtype),
            "shape": list(data.size),
            "chunk_bytes": size,
            "box": [[first, first + count] for first, count in box],
            "writer": ticket.writer,
            "item": number,
        }
        results.append(WriteResult(item.index, tensor.nbytes, said))
        yield from chunk_pairs(
            plan.namespace, plan.generation, plan.save, number, tensor, size,
            writer=ticket.writer,
        )  # fmt: skip

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        """Check that it is all there, and commit."""
        if not self._begun:
            raise RuntimeError("finish was called on a writer that began no save, expected one")
        tickets, self._begun = self._begun, []
        plan = tickets[0].plan
        with opened(self._store) as place:
            if not tickets[0].shared and plan.writers > 1:
                if not has_parts(place):
                    raise TypeError(
                        f"{place.url} is neither shared by ranks nor takes parts in, expected a "
                        "store that does, or one rank"
                    )
                place.ingest_parts([ticket.part for ticket in tickets])
            try:
                manifest = manifest_of(metadata, results, self._root, plan.chunk_bytes)
                check_manifest(manifest, plan.generation, plan.save)
            except (TypeError, ValueError):
                discard(place, plan)
                raise
            finish(place, plan, manifest)

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Whether it is the URL of a store."""
        return is_url(checkpoint_id)


def _plain(item: WriteItem, planner: SavePlanner) -> Any:
    """A value that is no tensor, as JSON: asked for before the planner pickles it."""
    name = item.index.fqn
    if not hasattr(planner, "lookup_object"):
        raise TypeError(
            f"{name} is no tensor, and {type(planner).__name__} has no lookup_object to ask for "
            "it, expected a planner that derives from DefaultSavePlanner"
        )
    return trees.encode(planner.lookup_object(item.index), name, _refused)


def _refused(name: str, tensor: Any) -> str:
    raise TypeError(
        f"{name} is a tensor inside a value that dcp hands over whole, expected it in a dict or a "
        "list, and a planner with flatten_state_dict=True"
    )


def _tensor(item: WriteItem, planner: SavePlanner) -> tuple[torch.Tensor, TensorWriteData]:
    name, found, data = item.index.fqn, planner.resolve_data(item), item.tensor_data
    if not isinstance(found, torch.Tensor) or data is None:
        raise TypeError(f"{name} is a {type(found).__name__} to its planner, expected a tensor")
    tensor, expected = found.detach(), tuple(data.chunk.sizes)
    check_plain(name, tensor)
    if tuple(tensor.shape) != expected:
        raise ValueError(f"{name} has shape {tuple(tensor.shape)}, expected {expected} as planned")
    return tensor, data


def _size(item: WriteItem) -> int:
    """About how many bytes."""
    data = item.tensor_data
    return 0 if data is None else math.prod(data.chunk.sizes) * data.properties.dtype.itemsize
