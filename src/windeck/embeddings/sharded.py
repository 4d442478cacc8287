"""One table over the ranks of a group: each has some of the buckets, ids and rows travel."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from windeck._core import bucket_of
from windeck.embeddings.table import EmbeddingTable

__all__ = ["ShardedEmbeddingTable"]

_BUCKETS = 1024


class ShardedEmbeddingTable(EmbeddingTable):
    """An `EmbeddingTable` whose rows are spread over the ranks of a group.

    Rank r of W has the buckets [r * 1024 // W, (r + 1) * 1024 // W); the bucket of an id is a hash
    of it. A lookup sends ids to those that have them, and rows back; `step` sends gradients.

    Parameters
    ----------
    dim
        As for `EmbeddingTable`, and so are the options.
    group
        A group with gloo, or whatever sends tensors in memory of the CPU; None: the default one.

    Raises
    ------
    ValueError
        Where torch.distributed is not initialized, and for more than 1,024 ranks.

    Notes
    -----
    Lookups, `step` and whatever else moves data are collective: all ranks call them, in the same
    order and the same number of times, those without data with no ids. Gradients are summed, not
    averaged, in the order of the ranks: with a loss that is a sum over samples, or a sum divided by
    the size of the global batch, ranks that have contiguous parts of a batch change the table to
    the same bits as one rank that has all of it. Counts of ids, rows and evictions are those of
    this rank's buckets.

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
                "torch.distributed is not initialized, expected init_process_group before a "
                "ShardedEmbeddingTable is made"
            )
        ranks = dist.get_world_size(group)
        if ranks > _BUCKETS:
            raise ValueError(f"the group has {ranks:,} ranks, expected at most {_BUCKETS:,}")
        borders = np.array([rank * _BUCKETS // ranks for rank in range(ranks + 1)])
        rank = dist.get_rank(group)
        own = int(borders[rank]), int(borders[rank + 1])
        super().__init__(dim, _buckets=own, **options)
        self._group, self._borders, self._ranks = group, borders, ranks

    def _empty_copy(self) -> EmbeddingTable:
        return type(self).from_config(self.config, group=self._group, threads=self._threads)

    def look_up(self, ids: torch.Tensor, insert: bool) -> torch.Tensor:
        """Rows, float32 (n, dim), of int64 ids (n,) on the CPU, wherever they are. Collective."""
        order, sent = self._routes(ids)
        got = self._exchange_counts(sent.view(-1, 1)).view(-1)
        asked = self._exchange(ids[order], sent, got)
        answers = self._exchange(super().look_up(asked, insert), got, sent)
        rows = torch.empty_like(answers)
        rows[order] = answers
        return rows

    def step(self) -> int:
        """As `EmbeddingTable.step`, for all ranks. Collective; rows changed in this rank's buckets.

        Raises
        ------
        ValueError
            On all ranks, where they had not the same number of backward passes.
        """
        pending = self._taken()
        passes = [torch.zeros(1, dtype=torch.int64) for _ in range(self._ranks)]
        dist.all_gather(passes, torch.tensor([len(pending)]), group=self._group)
        counts = [int(count) for count in passes]
        if len(set(counts)) > 1:
            raise ValueError(
                f"the ranks went back through lookups of a sharded table {counts} times, expected "
                "the same number: a rank without data looks up no ids"
            )
        if not pending:
            return 0
        return self._apply_rows(*self._sorted_in(pending))

    def _sorted_in(
        self, pending: list[tuple[torch.Tensor, torch.Tensor]]
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Ids and gradients of this rank's buckets: by pass, then by rank, then as they stood."""
        routes = [self._routes(ids) for ids, _ in pending]
        # (to rank, pass): how many; what goes to a rank goes there pass by pass.
        sent = torch.stack([counts for _, counts in routes], dim=1)
        got = self._exchange_counts(sent)
        starts = [counts.cumsum(0) - counts for _, counts in routes]
        picked = [
            (p, order[int(start[rank]) : int(start[rank] + counts[rank])])
            for rank in range(self._ranks)
            for p, ((order, counts), start) in enumerate(zip(routes, starts, strict=True))
        ]
        splits = sent.sum(1), got.sum(1)
        ids = self._exchange(torch.cat([pending[p][0][at] for p, at in picked]), *splits)
        gradients = self._exchange(torch.cat([pending[p][1][at] for p, at in picked]), *splits)
        sizes = got.reshape(-1).tolist()  # (from rank, pass), as it came
        by_pass = [r * len(pending) + p for p in range(len(pending)) for r in range(self._ranks)]
        pieces = [torch.split(data, sizes) for data in (ids, gradients)]
        sorted_ids, sorted_gradients = (torch.cat([p[i] for i in by_pass]) for p in pieces)
        return sorted_ids, sorted_gradients

    def _routes(self, ids: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The order that puts ids by the rank that has them, and how many each has."""
        owners = np.searchsorted(self._borders, bucket_of(ids.numpy()), side="right") - 1
        order = np.argsort(owners, kind="stable")
        counts = np.bincount(owners, minlength=self._ranks)
        return torch.from_numpy(order), torch.from_numpy(counts.astype(np.int64))

    def _exchange_counts(self, sent: torch.Tensor) -> torch.Tensor:
        """Row r of what each rank says to the others, for row r of what is said to them."""
        got = torch.empty_like(sent)
        dist.all_to_all_single(got, sent.contiguous(), group=self._group)
        return got

    def _exchange(self, data: torch.Tensor, sent: torch.Tensor, got: torch.Tensor) -> torch.Tensor:
        """So many rows to each rank, and so many from each, in the order of ranks."""
        into = data.new_empty((int(got.sum()), *data.shape[1:]))
        dist.all_to_all_single(
            into, data.contiguous(), got.tolist(), sent.tolist(), group=self._group
        )
        return into
