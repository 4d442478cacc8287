"""An embedding table sharded over the ranks of a process group by hash buckets of ids."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from windeck._core import bucket_of
from windeck.embeddings.optimizers import checked_scale, overflows
from windeck.embeddings.table import EmbeddingTable

__all__ = ["ShardedEmbeddingTable"]

_BUCKETS = 1024


class ShardedEmbeddingTable(EmbeddingTable):
    """An `EmbeddingTable` whose rows are sharded over the ranks of a group.

    Rank r of W has the buckets [r * 1024 // W, (r + 1) * 1024 // W); the bucket of an id is a hash
    of it. A lookup sends ids to the ranks that own them, which send rows back; `step` sends
    gradients.

    Parameters
    ----------
    dim, options
        As for `EmbeddingTable`.
    group
        A group whose backend sends tensors in CPU memory, such as gloo; None: the default group.

    Raises
    ------
    ValueError
        If torch.distributed is not initialized, or the group has more than 1,024 ranks.

    Notes
    -----
    Lookups and `step` are collective: all ranks call them in the same order and the same number of
    times. A rank without data looks up no ids. Gradients are summed, not averaged, in the order of
    the ranks. Take a loss that is a sum over samples, or a sum divided by the size of the global
    batch, and give each rank a contiguous part of the batch: then the rows are bit for bit those of
    one rank that has the whole batch. Counts of ids, rows and evictions are those of this rank's
    buckets.

    Examples
    --------
    >>> import tempfile, torch, torch.distributed as dist, windeck as wd
    >>> method = f"file://{tempfile.mkdtemp()}/meeting"
    >>> dist.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    >>> table = wd.ShardedEmbeddingTable(4, optimizer="adam")
    >>> table(torch.tensor([5, 6])).sum().backward()
    >>> table.step()
    2
    >>> dist.destroy_process_group()
    """

    def __init__(self, dim: int, *, group: dist.ProcessGroup | None = None, **options: Any) -> None:
        if not dist.is_available() or not dist.is_initialized():
            raise ValueError(
                "torch.distributed is not initialized: call init_process_group before making a "
                "ShardedEmbeddingTable"
            )
        ranks = dist.get_world_size(group)
        if ranks > _BUCKETS:
            raise ValueError(f"`group` must have at most {_BUCKETS:,} ranks, got {ranks:,}")
        borders = np.array([rank * _BUCKETS // ranks for rank in range(ranks + 1)])
        rank = dist.get_rank(group)
        own = int(borders[rank]), int(borders[rank + 1])
        super().__init__(dim, _buckets=own, **options)
        self._group, self._borders, self._ranks = group, borders, ranks

    def _empty_copy(self) -> EmbeddingTable:
        return type(self).from_config(self.config, group=self._group, threads=self._threads)

    def look_up(self, ids: torch.Tensor, insert: bool) -> torch.Tensor:
        """Return the rows, (n, dim), of int64 ids (n,) of any rank. Collective.

        Raises
        ------
        ValueError
            On all ranks, if some of them count ids in this lookup and others do not.
        """
        order, sent = self._sort_by_owner(ids)
        told = self._exchange_counts(torch.stack([sent, torch.full_like(sent, insert)], dim=1))
        received = told[:, 0]
        if bool((told[:, 1] != insert).any()):
            raise ValueError(
                "all ranks must count the ids of a lookup of a sharded table or none, got "
                f"{told[:, 1].tolist()} (1: counted) by rank: use the same train() or eval() and "
                "`count=` on each"
            )
        requested = self._exchange(ids[order], sent, received)
        answers = self._exchange(super().look_up(requested, insert), received, sent)
        rows = torch.empty_like(answers)
        rows[order] = answers
        return rows

    def step(self, *, grad_scale: float | None = None) -> int:
        """Update the rows of all ranks as `EmbeddingTable.step` does. Collective.

        Parameters
        ----------
        grad_scale
            As for `EmbeddingTable.step`, the same on all ranks. If a gradient of any rank is not
            finite, all ranks discard theirs.

        Returns
        -------
        int
            The number of rows changed on this rank.

        Raises
        ------
        ValueError
            On all ranks, if the numbers of their backward passes differ; or if `grad_scale` is not
            a finite number above 0. The gradients are kept.
        """
        grad_scale = checked_scale(grad_scale)
        pending = self._take_pending()
        overflow = overflows([gradients for _, gradients in pending], grad_scale)
        told = [torch.zeros(2, dtype=torch.int64) for _ in range(self._ranks)]
        dist.all_gather(told, torch.tensor([len(pending), overflow]), group=self._group)
        counts = [int(passes) for passes, _ in told]
        if len(set(counts)) > 1:
            with self._lock:
                self._pending[:0] = pending
            raise ValueError(
                "all ranks must have the same number of backward passes through lookups of a "
                f"sharded table, got {counts}: let a rank without data look up no ids, and discard "
                "the gradients by zero_grad() on all ranks to go on"
            )
        if not pending or any(bool(overflow) for _, overflow in told):
            return 0
        return self._apply_rows(*self._exchange_gradients(pending), grad_scale)

    def _any_rank(self, condition: bool) -> bool:
        """Return whether a condition is true on any rank of the group. Collective."""
        found = torch.tensor([condition], dtype=torch.int64)
        dist.all_reduce(found, dist.ReduceOp.MAX, group=self._group)
        return bool(found)

    def _exchange_gradients(
        self, pending: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return ids and gradients of this rank's buckets, by pass, then rank, then position."""
        routes = [self._sort_by_owner(ids) for ids, _ in pending]
        # Numbers of ids, shape (rank, pass): each rank gets the ids of one pass after another.
        sent = torch.stack([counts for _, counts in routes], dim=1)
        received = self._exchange_counts(sent)
        starts = [counts.cumsum(0) - counts for _, counts in routes]
        parts = [
            (p, order[int(start[rank]) : int(start[rank] + counts[rank])])
            for rank in range(self._ranks)
            for p, ((order, counts), start) in enumerate(zip(routes, starts, strict=True))
        ]
        by_pass = [r * len(pending) + p for p in range(len(pending)) for r in range(self._ranks)]
        found = []
        for column in range(2):  # ids, then gradients
            outgoing = torch.cat([pending[p][column][positions] for p, positions in parts])
            incoming = self._exchange(outgoing, sent.sum(1), received.sum(1))
            by_rank = torch.split(incoming, received.reshape(-1).tolist())  # by rank, then pass
            found.append(torch.cat([by_rank[i] for i in by_pass]))
        return found[0], found[1]

    def _sort_by_owner(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the order that sorts ids by their ranks, and the number of ids of each rank."""
        owners = np.searchsorted(self._borders, bucket_of(ids.numpy()), side="right") - 1
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=self._ranks)
        return torch.from_numpy(order), torch.from_numpy(counts.astype(np.int64))

    def _exchange_counts(self, sent: torch.Tensor) -> torch.Tensor:
        """Send row r of `sent` to rank r; return the rows received, in the order of ranks."""
        received = torch.empty_like(sent)
        dist.all_to_all_single(received, sent.contiguous(), group=self._group)
        return received

    def _exchange(
        self, data: torch.Tensor, sent: torch.Tensor, received: torch.Tensor
    ) -> torch.Tensor:
        """Send ``sent[r]`` rows to each rank r, and return ``received[r]`` rows from each."""
        if data.dtype == torch.bfloat16:  # not every backend sends it, so its bits are sent
            return self._exchange(data.view(torch.uint8), sent, received).view(torch.bfloat16)
        into = data.new_empty((int(received.sum()), *data.shape[1:]))
        dist.all_to_all_single(
            into, data.contiguous(), received.tolist(), sent.tolist(), group=self._group
        )
        return into
