"""A training dataset for the torch models of Darts."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from torch import Tensor
from torch.utils.data import IterableDataset, get_worker_info

from windeck.adapters.adapted import AdaptedLoader, check_no_codes, loader_of
from windeck.loader import collate
from windeck.sources import Source, Stream

__all__ = ["TrainingDataset", "dataloader_kwargs"]

#: The array of a batch of windows for each field of Darts.
FIELDS = {
    "past_target": "past_target",
    "past_covariates": "past_covariates",
    "historic_future_covariates": "past_known",
    "future_covariates": "future_known",
    "static_covariates": "static",
    "future_target": "future_target",
}


class TrainingDataset(AdaptedLoader[Any], IterableDataset[Any]):
    """A dataset of whole batches for `fit_from_dataset` of Darts' torch models, with its order.

    ``model.fit_from_dataset(dataset, validation, dataloader_kwargs=dataloader_kwargs())``. The
    batch size is that of the dataset; that of the model has no effect. Needs Darts 0.48 or later.

    Parameters
    ----------
    data
        Windows with ``fill=float("nan")``, as Darts has missing values, and columns of one dtype;
        or another source or stream of such batches.
    batch_size, **options
        As for `windeck.Loader`; ``restart=True`` for validation.

    Examples
    --------
    >>> import numpy as np, windeck as wd
    >>> table = wd.Table.from_columns({"load": np.arange(100.0)})
    >>> windows = wd.Windows(table, context_length=8, prediction_length=2, fill=float("nan"))
    >>> dataset = TrainingDataset(windows, batch_size=16, shuffle=True, seed=7)
    >>> next(iter(dataset)).future_target.shape
    torch.Size([16, 2, 1])
    """

    def __init__(self, data: Source | Stream, *, batch_size: int, **options: Any) -> None:
        from darts.utils.data import TorchTrainingDataset

        super().__init__(loader_of(data, batch_size, options), to_batch)
        TorchTrainingDataset.register(type(self))  # `fit_from_dataset` asks for this type.

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise ValueError("`num_workers` must be 0: the dataset makes batches in a thread")
        return super().__iter__()

    def __getitem__(self, index: int) -> Any:
        """Return the sample at a position of the order; Darts reads shapes and dtypes of one."""
        from darts.utils.data import TorchTrainingSample

        batch = self.loader.stream.gather(np.array([index]))
        return TorchTrainingSample(**{name: array[0] for name, array in _fields(batch).items()})


def dataloader_kwargs() -> dict[str, Any]:
    """Return the ``dataloader_kwargs`` with which Darts takes the batches of a `TrainingDataset`.

    Examples
    --------
    >>> dataloader_kwargs()["batch_size"] is None  # batches are complete
    True
    """
    return {"batch_size": None, "shuffle": False, "collate_fn": collate}


def to_batch(batch: dict[str, Tensor]) -> Any:
    """Return the `TorchTrainingBatch` of a batch of windows, without a copy."""
    from darts.utils.data import TorchTrainingBatch

    return TorchTrainingBatch(**_fields(batch))


def _fields(batch: Any) -> dict[str, Any]:
    """Return the fields that a batch has; static covariates of Darts have an axis of components."""
    check_no_codes(batch)
    found = {name: batch[key] for name, key in FIELDS.items() if key in batch}
    if "static_covariates" in found:
        found["static_covariates"] = found["static_covariates"][:, None]
    return found
