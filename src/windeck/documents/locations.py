"""Conversion between the number of a document and (dataset, part number, document in the shard)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from windeck._core import Cumulative
from windeck.documents.discovery import ShardList
from windeck.documents.protocol import Int64s

__all__ = ["DocumentLocator"]

#: Documents that are looked up at a time.
_PORTION = 1 << 15


class DocumentLocator:
    """Converts between numbers of documents and their locations. O(S) memory.

    Parameters
    ----------
    shards
        Datasets and part numbers of the S shards.
    documents
        int64 of shape (S,): documents in each shard.
    """

    def __init__(self, shards: ShardList, documents: Int64s) -> None:
        self._shards, self._documents = shards, documents
        self._sums = Cumulative(documents)
        self._dataset_numbers = {name: number for number, name in enumerate(shards.dataset_ids)}
        # Part numbers are replaced by their ranks, so that a dataset and a part fit into one key
        # of 64 bits however large the numbers are. Shards are in the order of their keys.
        self._parts = np.unique(shards.part)
        self._keys, _ = self._key(shards.dataset, shards.part)

    @property
    def total(self) -> int:
        """Number of documents in all shards."""
        return int(self._sums.total)

    def find_shards(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """Return (shard, document in the shard) of documents; IndexError if out of range."""
        shard, within = self._sums.find(numbers)
        return shard, within

    def locate(self, numbers: Int64s) -> Int64s:
        """Return datasets, part numbers and documents in the shards: int64 of shape (3, k).

        The result is one array, filled in portions that fit into the processor's cache.
        Temporaries of full length would double the time, because of their page faults.
        """
        found = np.empty((3, len(numbers)), dtype=np.int64)
        for first in range(0, len(numbers), _PORTION):
            dataset, part, within = found[:, first : first + _PORTION]
            shard, within[:] = self._sums.find(numbers[first : first + _PORTION])
            # Shard numbers are in range; mode="clip" skips the check that `take` makes otherwise.
            self._shards.part.take(shard, out=part, mode="clip")
            if len(self._dataset_numbers) == 1:
                dataset[:] = 0
            else:
                self._shards.dataset.take(shard, out=dataset, mode="clip")
        return found

    def dataset_numbers(self, names: Any) -> Int64s:
        """Return the numbers of datasets that are given by name or by number.

        Raises
        ------
        KeyError
            If there is no dataset of that name.
        IndexError
            If there is no dataset of that number.
        TypeError
            If it is neither a name nor a number.
        """
        array = np.asarray(names)
        if array.dtype.kind in "iu":
            bad = (array < 0) | (array >= len(self._dataset_numbers))
            if bad.any():
                raise IndexError(
                    f"dataset {array[bad].flat[0]} is out of range for "
                    f"{len(self._dataset_numbers)} datasets"
                )
            return array.astype(np.int64)
        if array.dtype.kind not in "UO" and array.size:
            raise TypeError(f"`dataset_id` must be names or integers, got dtype {array.dtype}")
        unique, inverse = np.unique(array.astype(str), return_inverse=True)
        found = np.array([self._dataset_number(str(name)) for name in unique], dtype=np.int64)
        shaped: Int64s = found[inverse].reshape(array.shape)
        return shaped

    def _dataset_number(self, name: str) -> int:
        if name not in self._dataset_numbers:
            names = list(self._dataset_numbers)
            more = f" or {len(names) - 8:,} others" if len(names) > 8 else ""
            raise KeyError(
                f"there is no dataset {name!r}; expected {', '.join(map(repr, names[:8]))}{more}"
            )
        return self._dataset_numbers[name]

    def shard_numbers(self, dataset: Int64s, part: Int64s) -> Int64s:
        """Return the numbers of shards that are given by dataset and part number.

        Raises
        ------
        KeyError
            If there is no such shard.
        """
        keys, known = self._key(dataset, part)
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known &= self._keys[found] == keys
        if not known.all():
            place = int(np.flatnonzero(~known)[0])
            mine = self._shards.part[self._shards.dataset == dataset[place]]
            raise KeyError(
                f"dataset {self._shards.dataset_ids[dataset[place]]!r} has no shard {part[place]}; "
                f"it has {len(mine):,}, from {mine[0]} to {mine[-1]}"
            )
        return found

    def _key(self, dataset: Int64s, part: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Return keys, and whether any dataset has the part number."""
        rank = np.minimum(np.searchsorted(self._parts, part), len(self._parts) - 1)
        return dataset * len(self._parts) + rank, self._parts[rank] == part

    def index(self, shard: Int64s, document: Int64s) -> Int64s:
        """Return the numbers of documents: the inverse of `find_shards`.

        Raises
        ------
        IndexError
            If a shard has fewer documents.
        """
        bad = (document < 0) | (document >= self._documents[shard])
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            at = int(shard[place])
            raise IndexError(
                f"document {int(document[place])} is out of range for the "
                f"{int(self._documents[at]):,} documents of '{self._shards.paths[at]}'"
            )
        numbers: Int64s = self._sums.before(shard) + document
        return numbers
