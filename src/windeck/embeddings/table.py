"""The embedding table, a torch module whose rows are created when ids are looked up."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from windeck._core import EmbeddingCore, default_threads
from windeck._util.html import html_table
from windeck._util.options import explain_options
from windeck.embeddings.ops import checked_offsets, embedding_lookup, register_table
from windeck.embeddings.optimizers import (
    OptimizerConfig,
    checked_scale,
    nonnegative_number,
    overflows,
)

__all__ = ["EmbeddingTable"]

#: Number of buckets, of 1,024, that a copy of a table reads at a time.
_COPIED_BUCKETS = 16


@explain_options
class EmbeddingTable(torch.nn.Module):
    """Embeddings of any int64 ids, in place of `torch.nn.Embedding` and an optimizer for it.

    Rows are not parameters: `core` holds them in native memory, each with its optimizer state. A
    row is created when its id is first looked up in training mode.

    Parameters
    ----------
    dim
        Number of elements of an embedding.
    optimizer
        ``sgd``, ``adagrad`` or ``adam`` (lazy, as `torch.optim.SparseAdam`: only rows that have a
        gradient change).
    lr, eps, betas, weight_decay, initial_accumulator_value
        As in torch's SGD, Adagrad and Adam; `eps` None: 1e-10 for Adagrad, 1e-8 for Adam. Weight
        decay applies to rows that have a gradient. ``table.lr`` may be set at any time.
    initializer, scale, seed
        ``normal`` (of standard deviation `scale`), ``uniform`` (within `scale` of 0) or ``zeros``.
        An initial value depends on the seed and the id alone.
    admit_after
        Number of lookups after which an id gets a row. Before that a lookup gives the initial
        value, and gradients of the id are discarded.
    dtype
        ``torch.float32`` or ``torch.bfloat16``, or its name: of rows, of the optimizer's state (as
        in torch.optim), and of lookups and their gradients. Updates compute in float32 and round
        each result once.
    threads
        Number of threads of a lookup or a step; None: the number of processors. It does not change
        results.
    name
        A name for messages.

    Attributes
    ----------
    core : EmbeddingCore
        The native table of rows.
    lr : float
        The learning rate of the next `step`.
    config : dict
        The options as JSON values; `from_config` makes an empty table with the same options.

    Raises
    ------
    TypeError, ValueError
        If an argument has the wrong type or is out of range.

    Notes
    -----
    A lookup counts ids and creates rows after ``table.train()``, not after ``table.eval()`` or with
    ``count=False``; as with `BatchNorm`, `torch.no_grad` makes no difference. Rows are saved by
    ``checkpoint.save(..., embeddings={"user": table})``; `state_dict` does not contain them.

    Examples
    --------
    >>> import torch, windeck as wd
    >>> table = wd.EmbeddingTable(2, optimizer="sgd", lr=0.5, initializer="zeros")
    >>> rows = table(torch.tensor([[7, -1], [7, 2**62]]))
    >>> rows.shape, table.rows
    (torch.Size([2, 2, 2]), 3)
    >>> rows.sum().backward()
    >>> table.step()
    3
    >>> table(torch.tensor([7, -1]))[:, 0]
    tensor([-1.0000, -0.5000], grad_fn=<SelectBackward0>)
    """

    def __init__(
        self,
        dim: int,
        *,
        optimizer: str = "adagrad",
        lr: float = 0.01,
        eps: float | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        initial_accumulator_value: float = 0.0,
        initializer: str = "normal",
        scale: float = 0.01,
        seed: int = 0,
        admit_after: int = 1,
        dtype: torch.dtype | str = torch.float32,
        threads: int | None = None,
        name: str | None = None,
        _buckets: tuple[int, int] = (0, 1024),
    ) -> None:
        super().__init__()
        self._optimizer = OptimizerConfig(
            optimizer, lr, eps, betas, weight_decay, initial_accumulator_value
        )
        self.core = EmbeddingCore(
            dim,
            slots=self._optimizer.slots,
            initializer=initializer,
            scale=scale,
            slot_value=self._optimizer.initial_accumulator_value,
            seed=seed,
            admit_after=admit_after,
            first_bucket=_buckets[0],
            end_bucket=_buckets[1],
            dtype=str(dtype).removeprefix("torch."),
        )
        self.dim, self.name, self._lr = self.core.dim, name, self._optimizer.lr
        self._threads = default_threads() if threads is None else threads
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._lock = threading.RLock()  # a signal handler may find it taken
        self._anchor = torch.zeros((), requires_grad=True)
        self._number = register_table(self)

    @property
    def lr(self) -> float:
        """The learning rate of the next `step`."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = nonnegative_number("lr", value)

    @property
    def dtype(self) -> torch.dtype:
        """The dtype of rows, of the optimizer's state and of lookups."""
        return torch.bfloat16 if self.core.dtype == "bfloat16" else torch.float32

    @property
    def pending(self) -> int:
        """Number of backward passes since the last `step`, whose gradients wait for the next."""
        return len(self._pending)

    @property
    def rows(self) -> int:
        """Number of ids that have a row, on this rank."""
        return len(self.core)

    def __len__(self) -> int:
        """Return the number of ids that have a row, on this rank: `rows`."""
        return self.rows

    def __bool__(self) -> bool:
        """Return True, also without rows, as for modules of other kinds."""
        return True

    @property
    def config(self) -> dict[str, Any]:
        """The options of the table, with its present learning rate, as JSON values."""
        core = self.core
        return {
            "dim": core.dim,
            **self._optimizer.to_json(),
            "lr": self._lr,
            "initializer": core.initializer,
            "scale": core.scale,
            "seed": core.seed,
            "admit_after": core.admit_after,
            "dtype": core.dtype,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **changed: Any) -> EmbeddingTable:
        """Return an empty table with these options, some of them replaced by `changed`.

        Raises
        ------
        TypeError, ValueError
            If an option does not exist, has the wrong type or is out of range.

        Examples
        --------
        >>> import windeck as wd
        >>> table = wd.EmbeddingTable(8, optimizer="adam", seed=3)
        >>> wd.EmbeddingTable.from_config(table.config, lr=0.5).lr
        0.5
        """
        return cls(**{**config, **changed})

    def forward(self, ids: torch.Tensor, *, count: bool = True) -> torch.Tensor:
        """Look up the embeddings of ids.

        Parameters
        ----------
        ids : int64 or int32 tensor, any shape, any device
            Any numbers; repeated ones are allowed.
        count
            If False, look up as after ``eval()``: no id is counted and no row is created. In
            evaluation mode it has no effect.

        Returns
        -------
        tensor of the table's dtype, shape (*ids.shape, dim)
            On the device of `ids`. Gradients are kept until `step`.

        Raises
        ------
        TypeError
            If `ids` is not a tensor of int64 or int32, or `count` is not a bool.

        Examples
        --------
        >>> import torch, windeck as wd
        >>> table = wd.EmbeddingTable(2)
        >>> table(torch.tensor([7, 8]), count=False).shape, table.rows
        (torch.Size([2, 2]), 0)
        """
        if not isinstance(ids, torch.Tensor):
            raise TypeError(f"`ids` must be a tensor of torch.int64, got a {type(ids).__name__}")
        if ids.dtype not in (torch.int64, torch.int32):
            raise TypeError(f"`ids` must be a tensor of torch.int64, got {ids.dtype}")
        if type(count) is not bool:
            raise TypeError(f"`count` must be a bool, got a {type(count).__name__}")
        token = torch.empty(0, dtype=self.dtype)
        number, dim, insert = self._number, self.dim, self.training and count
        return embedding_lookup(ids.to(torch.int64), self._anchor, token, number, dim, insert)

    def bag(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        *,
        mode: str = "sum",
        weights: torch.Tensor | None = None,
        include_last_offset: bool = True,
        padding_idx: int | None = None,
        count: bool = True,
    ) -> torch.Tensor:
        """Look up lists of ids, and reduce the embeddings of each list to one.

        As `torch.nn.EmbeddingBag`: results and gradients of rows equal to the bit, gradients of
        weights up to roundings. Takes the lists of a `JaggedTable`:
        ``table.bag(batch["seen"], batch["seen_offsets"])``.

        Parameters
        ----------
        ids : int64 or int32 tensor, shape (n,), or (bags, length) without `offsets`
            The ids of all lists, end to end.
        offsets : int64 or int32 tensor, shape (bags + 1,)
            Bag b has ``ids[offsets[b]:offsets[b + 1]]``, from 0 to n.
        mode
            ``"sum"``, ``"mean"`` or ``"max"``.
        weights : tensor of the table's dtype, shape of `ids`, optional
            Factors of the embeddings, for ``"sum"``. They may require gradients.
        include_last_offset
            If False, `offsets` has shape (bags,): the last offset, n, is left out.
        padding_idx
            An id that is not looked up: it counts for no list, nor for a mean.
        count
            As for a lookup: if False, no id is counted and no row is created.

        Returns
        -------
        tensor of the table's dtype, shape (bags, dim)
            0 for an empty list. The embeddings of all n ids are in memory as well.

        Raises
        ------
        TypeError
            If `ids` or `offsets` is not a tensor of int64 or int32, `weights` is not one of the
            table's dtype, `count` is not a bool, or `padding_idx` is not an int.
        ValueError
            If the offsets do not ascend from 0 to n, or shapes or the mode are wrong.

        Examples
        --------
        >>> import torch, windeck as wd
        >>> table = wd.EmbeddingTable(2, initializer="zeros")
        >>> table.bag(torch.tensor([7, 8, 9]), torch.tensor([0, 2, 2, 3])).shape
        torch.Size([3, 2])
        """
        if mode not in ("sum", "mean", "max"):
            raise ValueError(f"`mode` must be 'sum', 'mean' or 'max', got {mode!r}")
        if not isinstance(ids, torch.Tensor):
            raise TypeError(f"`ids` must be a tensor of torch.int64, got {type(ids).__name__}")
        if padding_idx is not None and type(padding_idx) is not int:
            raise TypeError(f"`padding_idx` must be an int, got a {type(padding_idx).__name__}")
        if offsets is None and ids.dim() == 2:
            offsets = torch.arange(len(ids) + 1, device=ids.device) * ids.shape[1]
            weights = (
                weights if weights is None or weights.shape != ids.shape else weights.flatten()
            )
            ids, include_last_offset = ids.flatten(), True
        if not isinstance(offsets, torch.Tensor) or offsets.dtype not in (torch.int64, torch.int32):
            found = getattr(offsets, "dtype", type(offsets).__name__)
            raise TypeError(f"`offsets` must be a tensor of torch.int64, got {found}")
        if not include_last_offset:
            offsets = torch.cat([offsets, offsets.new_full((1,), len(ids) if ids.dim() else 0)])
        if ids.dim() != 1 or offsets.dim() != 1 or not len(offsets):
            raise ValueError(
                "`ids` must have shape (n,) and `offsets` (bags + 1,), got "
                f"{tuple(ids.shape)} and {tuple(offsets.shape)}"
            )
        if weights is not None and getattr(weights, "dtype", None) != self.dtype:
            found = getattr(weights, "dtype", type(weights).__name__)
            raise TypeError(f"`weights` must be a tensor of {self.dtype}, got {found}")
        if weights is not None and (mode != "sum" or weights.shape != ids.shape):
            raise ValueError(
                f"`weights` must have the shape of `ids`, {tuple(ids.shape)}, and mode='sum', got "
                f"{tuple(weights.shape)} and {mode!r}"
            )
        offsets = checked_offsets(offsets, ids)
        kept = None if padding_idx is None else ids != padding_idx
        looked_up = ids if kept is None else ids[kept]
        rows: torch.Tensor = self(looked_up, count=count)  # after all checks: it makes rows
        if not len(ids):
            # A pass without ids all the same: ranks of a sharded table need as many of them.
            nothing = rows.sum() if weights is None else (rows.sum(1) * weights).sum()
            return nothing + rows.new_zeros(len(offsets) - 1, self.dim)
        places = torch.arange(len(ids), device=ids.device)
        if kept is not None:  # padding is one more row, which torch leaves out
            places = torch.where(kept, kept.cumsum(0) - 1, len(rows))
            rows = torch.cat([rows, rows.new_zeros(1, self.dim)])
        bags: torch.Tensor = torch.nn.functional.embedding_bag(
            places,
            rows,
            offsets,
            mode=mode,
            per_sample_weights=weights,
            include_last_offset=True,
            padding_idx=None if kept is None else len(rows) - 1,
        )
        return bags

    def step(self, *, grad_scale: float | None = None) -> int:
        """Update the rows with the gradients of all backward passes since the last step.

        Gradients of the same id are summed, in the order of the passes and of the ids in them; then
        its row is updated once. Without a backward pass nothing happens.

        Parameters
        ----------
        grad_scale
            The factor of the loss, such as ``scaler.get_scale()`` of a `torch.amp.GradScaler`.
            Gradients are divided by it. If one is not finite, all are discarded and no row changes.
            The scaler learns of that by ``scaler.step(TableOptimizer([table]))`` only.

        Returns
        -------
        int
            The number of rows changed.

        Raises
        ------
        TypeError, ValueError
            If `grad_scale` is not a finite number above 0. The gradients are kept.

        Examples
        --------
        >>> import torch, windeck as wd
        >>> table = wd.EmbeddingTable(1, optimizer="sgd", lr=0.5, initializer="zeros")
        >>> (table(torch.tensor([7])).sum() * 1024).backward()
        >>> table.step(grad_scale=1024.0)
        1
        >>> table(torch.tensor([7]), count=False).item()
        -0.5
        """
        grad_scale = checked_scale(grad_scale)
        pending = self._take_pending()
        gradients = [gradients for _, gradients in pending]
        if not pending or overflows(gradients, grad_scale):
            return 0
        ids = torch.cat([ids for ids, _ in pending])
        return self._apply_rows(ids, torch.cat(gradients), grad_scale)

    def _apply_rows(
        self, ids: torch.Tensor, gradients: torch.Tensor, grad_scale: float | None
    ) -> int:
        gradients = gradients.float()
        if grad_scale is not None:
            gradients.mul_(1.0 / grad_scale)  # as GradScaler does
        options = self._optimizer.apply_options(self._lr)
        return self.core.apply(ids.numpy(), gradients.numpy(), threads=self._threads, **options)

    def _any_rank(self, condition: bool) -> bool:
        """Return whether a condition is true on any rank that shares the table."""
        return condition

    def _pending_gradients(self) -> list[torch.Tensor]:
        """Return the gradients that wait for `step`."""
        with self._lock:
            return [gradients for _, gradients in self._pending]

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Discard the gradients collected since the last `step`."""
        self._take_pending()
        super().zero_grad(set_to_none)

    def requires_grad_(self, requires_grad: bool = True) -> EmbeddingTable:
        """Set whether lookups require gradients; if not, `step` does not change rows."""
        self._anchor.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)

    def evict(
        self,
        *,
        seen_before: int | None = None,
        l2_below: float | None = None,
        frequency_below: int | None = None,
    ) -> torch.Tensor:
        """Remove the ids that meet all of the given conditions. O(rows).

        Parameters
        ----------
        seen_before
            The last step in which it was looked up is below this. The first step is 1, and
            ``table.core.clock`` counts those that are done.
        l2_below
            The Euclidean norm of the embedding is below this.
        frequency_below
            The number of lookups is below this.

        Returns
        -------
        int64 tensor, shape (k,)
            The ids removed on this rank.

        Raises
        ------
        ValueError
            If no condition is given.
        """
        removed = self.core.evict(
            seen_before=seen_before, l2_below=l2_below, frequency_below=frequency_below
        )
        return torch.from_numpy(removed)

    def look_up(self, ids: torch.Tensor, insert: bool) -> torch.Tensor:
        """Return the rows, (n, dim), of int64 ids (n,) on the CPU, without gradients."""
        # An array of the core uses pages of its pool again; torch.empty may get fresh ones.
        rows = self.core.lookup(ids.numpy(), insert=insert, threads=self._threads)
        if self.core.dtype == "bfloat16":
            return torch.from_numpy(rows.view(np.int16)).view(torch.bfloat16)
        return torch.from_numpy(rows)

    def collect(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Keep gradients, (n, dim), of ids (n,) until `step`; called by backward passes."""
        with self._lock:
            self._pending.append((ids, gradients))

    def _take_pending(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """Return the ids and gradients collected, and forget them."""
        # The gradient of the anchor, a 0, is kept: other threads may be adding to it now.
        with self._lock:
            pending, self._pending = self._pending, []
        return pending

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddingTable:
        """Return a table with a copy of the rows, without gradients that wait for `step`."""
        made = memo[id(self)] = self._empty_copy()
        with self.core.snapshot() as snapshot:
            for bucket in range(self.core.first_bucket, self.core.end_bucket, _COPIED_BUCKETS):
                end = min(bucket + _COPIED_BUCKETS, self.core.end_bucket)
                made.core.insert(**snapshot.read(bucket, end))
            made.core.set_clock(snapshot.clock)
        made._anchor.requires_grad_(self._anchor.requires_grad)
        return made.train(self.training)

    def _empty_copy(self) -> EmbeddingTable:
        return type(self).from_config(self.config, threads=self._threads)

    def __reduce_ex__(self, protocol: Any) -> Any:
        raise TypeError(
            "an EmbeddingTable cannot be pickled: save its rows by "
            "checkpoint.save(..., embeddings={...}) and its options by table.config"
        )

    def _repr_html_(self) -> str:
        rows = [(name, repr(value)) for name, value in self.config.items()]
        caption = f"{type(self).__name__}: {self.rows:,} rows of {self.dim:,} on this rank"
        notes = f"{self.pending:,} backward passes wait for a step" if self.pending else ""
        return html_table(caption, ("option", "value"), rows, notes)

    def extra_repr(self) -> str:
        """Return the text inside `repr`."""
        named = "" if self.name is None else f", name={self.name!r}"
        return f"{self.dim}, optimizer={self._optimizer.optimizer!r}, rows={self.rows:,}{named}"
