"""A table of embeddings as a torch module: rows appear as ids are looked up."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

import torch

from windeck._core import EmbeddingCore, default_threads
from windeck.embeddings.ops import embedding_lookup, register
from windeck.embeddings.optimizers import Rule, checked_number

__all__ = ["EmbeddingTable"]

#: Of 1,024: how many are copied at a time.
_COPIED_BUCKETS = 16


class EmbeddingTable(torch.nn.Module):
    """Embeddings of any int64 ids, in place of `torch.nn.Embedding` and an optimizer for it.

    Rows are no parameters: they are in `core`, native code, with what the optimizer keeps behind
    each. A row appears when its id is first looked up in training mode.

    Parameters
    ----------
    dim
        Floats of an embedding.
    optimizer
        ``sgd``, ``adagrad`` or ``adam`` (lazy, as `torch.optim.SparseAdam`: only rows that have a
        gradient change).
    lr, eps, betas, weight_decay, initial_accumulator_value
        As in torch's SGD, Adagrad and Adam; `eps` None: 1e-10 for Adagrad, 1e-8 for Adam. Weight
        decay is for rows that have a gradient. ``table.lr`` may be set at any time.
    initializer, scale, seed
        ``normal`` (of standard deviation `scale`), ``uniform`` (within `scale` of 0) or ``zeros``.
        An initial value depends on the seed and the id alone.
    admit_after
        An id gets a row when it has been looked up so many times; before, it has its initial value,
        and its gradients are left out.
    threads
        Threads for a lookup or a step; None: as many as there are processors. Results are the same.
    name
        For messages.

    Attributes
    ----------
    core : EmbeddingCore
        The rows.
    lr : float
        The learning rate of the next `step`.
    config : dict
        Plain JSON that `from_config` makes an equal, empty table of.

    Raises
    ------
    TypeError, ValueError
        For arguments that cannot be.

    Notes
    -----
    ``table.train()`` and ``table.eval()`` decide whether a lookup counts ids and makes rows, as
    they decide for `BatchNorm` whether it counts; `torch.no_grad` does not. Saved by
    ``checkpoint.save(..., embeddings={"user": table})``; `state_dict` has nothing of it.

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
        threads: int | None = None,
        name: str | None = None,
        _buckets: tuple[int, int] = (0, 1024),
    ) -> None:
        super().__init__()
        self._rule = Rule(optimizer, lr, eps, betas, weight_decay, initial_accumulator_value)
        self.core = EmbeddingCore(
            dim,
            slots=self._rule.slots,
            initializer=initializer,
            scale=scale,
            slot_value=self._rule.initial_accumulator_value,
            seed=seed,
            admit_after=admit_after,
            first_bucket=_buckets[0],
            end_bucket=_buckets[1],
        )
        self.dim, self.name, self._lr = self.core.dim, name, self._rule.lr
        self._threads = default_threads() if threads is None else threads
        self._pending: list[tuple[torch.Tensor, torch.Tensor]] = []
        self._lock = threading.Lock()
        self._anchor = torch.zeros((), requires_grad=True)
        self._number = register(self)

    @property
    def lr(self) -> float:
        """The learning rate of the next `step`."""
        return self._lr

    @lr.setter
    def lr(self, value: float) -> None:
        self._lr = checked_number("lr", value)

    @property
    def rows(self) -> int:
        """How many ids have a row, here."""
        return len(self.core)

    @property
    def config(self) -> dict[str, Any]:
        """What the table was made with, and its learning rate: plain JSON."""
        core = self.core
        return {
            "dim": core.dim,
            **self._rule.config(),
            "lr": self._lr,
            "initializer": core.initializer,
            "scale": core.scale,
            "seed": core.seed,
            "admit_after": core.admit_after,
            "name": self.name,
        }

    @classmethod
    def from_config(cls, config: Mapping[str, Any], **changed: Any) -> EmbeddingTable:
        """An empty table with this `config`, and some of it changed.

        Raises
        ------
        TypeError, ValueError
            For a config that no table has.

        Examples
        --------
        >>> import windeck as wd
        >>> table = wd.EmbeddingTable(8, optimizer="adam", seed=3)
        >>> wd.EmbeddingTable.from_config(table.config, lr=0.5).lr
        0.5
        """
        return cls(**{**config, **changed})

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """The embeddings of ids.

        Parameters
        ----------
        ids : int64, any shape
            Any numbers, repeated ones too, on any device.

        Returns
        -------
        float32, the shape of `ids` and `dim`
            On the device of `ids`. Gradients are kept until `step`.

        Raises
        ------
        TypeError
            For what is no int64 tensor.
        """
        if not isinstance(ids, torch.Tensor):
            raise TypeError(f"ids are a {type(ids).__name__}, expected a tensor of torch.int64")
        if ids.dtype != torch.int64:
            raise TypeError(f"ids are of {ids.dtype}, expected torch.int64")
        token = torch.empty(0)
        number, dim, insert = self._number, self.dim, self.training
        return embedding_lookup(ids, self._anchor, token, number, dim, insert)

    def step(self) -> int:
        """Update the rows with the gradients of all backward passes since the last step.

        Gradients of the same id are summed, in the order of the passes and of the ids in them; then
        its row is updated once. Without any pass nothing happens.

        Returns
        -------
        int
            The number of rows changed.
        """
        pending = self._taken()
        if not pending:
            return 0
        ids = torch.cat([ids for ids, _ in pending])
        return self._apply_rows(ids, torch.cat([gradients for _, gradients in pending]))

    def _apply_rows(self, ids: torch.Tensor, gradients: torch.Tensor) -> int:
        options = self._rule.options(self._lr)
        changed: int = self.core.apply(
            ids.numpy(), gradients.numpy(), threads=self._threads, **options
        )
        return changed

    def zero_grad(self, set_to_none: bool = True) -> None:
        """Forget the gradients that were not stepped with."""
        self._taken()
        super().zero_grad(set_to_none)

    def requires_grad_(self, requires_grad: bool = True) -> EmbeddingTable:
        """Whether lookups ask for gradients; without, rows stay as they are."""
        self._anchor.requires_grad_(requires_grad)
        return super().requires_grad_(requires_grad)

    def evict(
        self,
        *,
        seen_before: int | None = None,
        l2_below: float | None = None,
        frequency_below: int | None = None,
    ) -> torch.Tensor:
        """Remove the ids for which all conditions given hold.

        Parameters
        ----------
        seen_before
            A number of steps (``table.core.clock`` counts them): not looked up since.
        l2_below
            The Euclidean norm of the embedding is below this.
        frequency_below
            Looked up fewer times.

        Returns
        -------
        int64[k]
            The ids removed, of this rank.
        """
        given = {"seen_before": seen_before, "l2_below": l2_below}
        given["frequency_below"] = frequency_below
        gone = self.core.evict(**{name: v for name, v in given.items() if v is not None})
        return torch.from_numpy(gone)

    def look_up(self, ids: torch.Tensor, insert: bool) -> torch.Tensor:
        """Rows, float32 (n, dim), of int64 ids (n,) on the CPU, without gradients."""
        # An array of the core's own: its pages are used again, those of torch.empty may not be.
        rows = self.core.lookup(ids.numpy(), insert=insert, threads=self._threads)
        return torch.from_numpy(rows)

    def collect(self, ids: torch.Tensor, gradients: torch.Tensor) -> None:
        """Keep gradients, float32 (n, dim), of rows until `step`; a backward pass calls this."""
        with self._lock:
            self._pending.append((ids, gradients))

    def _taken(self) -> list[tuple[torch.Tensor, torch.Tensor]]:
        """What was collected, which is the caller's now."""
        with self._lock:
            pending, self._pending = self._pending, []
        self._anchor.grad = None
        return pending

    def __deepcopy__(self, memo: dict[int, Any]) -> EmbeddingTable:
        """The same rows in a table of its own, without gradients that were not stepped with."""
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
            "an EmbeddingTable is not pickled, expected checkpoint.save(..., embeddings={...}) to "
            "keep its rows and table.config to make it again"
        )

    def extra_repr(self) -> str:
        """What `repr` shows."""
        named = "" if self.name is None else f", name={self.name!r}"
        return f"{self.dim}, optimizer={self._rule.optimizer!r}, rows={self.rows:,}{named}"
