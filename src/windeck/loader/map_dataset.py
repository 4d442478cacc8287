"""A map-style dataset of a source, of which a DataLoader fetches whole batches.

torch's sampler selects the samples of a batch, and windeck gathers the batch in one native call.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NoReturn, TypeAlias

import numpy as np
import torch
from numpy.typing import NDArray
from torch.utils.data import Dataset

from windeck._util.options import explain_options
from windeck._util.validation import LIMIT, check_integer
from windeck.loader.batch import Tensors, as_tensors, gather_batches
from windeck.sources import Source
from windeck.sources.members import source_members

__all__ = ["MapDataset", "collate"]

Indexing: TypeAlias = "int | Sequence[int] | NDArray[np.integer[Any]] | torch.Tensor"


class _WholeBatch(dict[str, torch.Tensor]):
    """A batch that is complete. A ``collate_fn`` that takes it for a list of samples raises."""

    def __missing__(self, key: object) -> NoReturn:
        if key == 0:
            raise TypeError(
                "the batch of a MapDataset is complete, and has no samples to collate: pass "
                "collate_fn=windeck.collate to the DataLoader"
            )
        raise KeyError(key)


def collate(batch: Any) -> Any:
    """Return the batch as it is: the ``collate_fn`` for `MapDataset`.

    torch's DataLoader calls ``collate_fn`` also on the result of ``__getitems__``, which is
    already a complete batch.
    """
    return dict(batch) if isinstance(batch, _WholeBatch) else batch


@explain_options
class MapDataset(Dataset[Tensors]):
    """A map-style dataset of a source that gathers whole batches.

    Parameters
    ----------
    source
        A `windeck.sources.Source`.

    Examples
    --------
    >>> class Squares:
    ...     fingerprint = {"squares": 5}
    ...     def __len__(self):
    ...         return 5
    ...     def gather(self, indices, out=None):
    ...         return {"x": indices**2}
    >>> from torch.utils.data import DataLoader
    >>> loader = DataLoader(MapDataset(Squares()), batch_size=2, collate_fn=collate)
    >>> [batch["x"].tolist() for batch in loader]
    [[0, 1], [4, 9], [16]]
    """

    def __init__(self, source: Source) -> None:
        self.source = source

    @property
    def source(self) -> Source:
        """The source; another one that is set takes its place."""
        return self._members.source

    @source.setter
    def source(self, source: Source) -> None:
        self._members = source_members(source)

    def __len__(self) -> int:
        return len(self.source)

    def __getitem__(self, index: Indexing) -> Tensors:
        """Return one sample, without the batch's axis; or a batch, for a sequence of indices.

        Arrays of the whole batch are those of a batch of one.
        """
        if isinstance(index, (Sequence, np.ndarray, torch.Tensor)) and np.ndim(index):
            return dict(self.__getitems__(np.asarray(index).tolist()))
        number = check_integer("index", index, least=-LIMIT)
        if not -len(self) <= number < len(self):
            raise IndexError(f"sample {number} is out of range for {len(self)} samples")
        methods = self._members.methods
        rows = methods.gather_rows(np.array([number % len(self)]))
        of_all = methods.whole_arrays(rows)
        batch = methods.presented(as_tensors({**rows, **of_all}, methods.torch_dtypes))
        return {key: tensor if key in of_all else tensor[0] for key, tensor in batch.items()}

    def __getitems__(self, indices: Sequence[int]) -> Tensors:
        """Return a batch, in one call of the source; torch's DataLoader calls this method."""
        methods = self._members.methods
        return _WholeBatch(gather_batches(methods, np.asarray(indices, dtype=np.int64))[0])
