"""Where a document is: its number in the corpus <-> (dataset, shard, document). Arithmetic only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from windeck._core import Cumulative
from windeck.documents.discovery import Listing
from windeck.documents.protocol import Int64s

__all__ = ["Places"]

#: Documents that are looked up at a time.
_PORTION = 1 << 15


class Places:
    """Numbers of documents and shards, in O(S) memory.

    Parameters
    ----------
    listing
        Datasets and part numbers of the S shards.
    documents
        int64 of shape (S,): documents in each.
    """

    def __init__(self, listing: Listing, documents: Int64s) -> None:
        self._listing, self._documents = listing, documents
        self._sums = Cumulative(documents)
        self._dataset_of = {name: place for place, name in enumerate(listing.dataset_ids)}
        # Part numbers are replaced by their ranks, so that a dataset and a part make one key of
        # 64 bits however large the numbers are. Shards are in the order of their keys.
        self._parts = np.unique(listing.part)
        self._keys, _ = self._key(listing.dataset, listing.part)

    @property
    def total(self) -> int:
        """Documents in all shards."""
        return int(self._sums.total)

    def locate(self, numbers: Int64s) -> tuple[Int64s, Int64s]:
        """(shard, document in it) of documents by number; IndexError for one out of range."""
        shard, within = self._sums.find(numbers)
        return shard, within

    def names(self, numbers: Int64s) -> Int64s:
        """Datasets, part numbers and documents in them: int64 of shape (3, k).

        One block of memory, filled in portions that stay in a processor's cache: half of the time
        would go into new pages otherwise.
        """
        found = np.empty((3, len(numbers)), dtype=np.int64)
        for first in range(0, len(numbers), _PORTION):
            dataset, part, within = found[:, first : first + _PORTION]
            shard, within[:] = self._sums.find(numbers[first : first + _PORTION])
            # Numbers of shards are in range, and "clip" spares looking at them beforehand.
            self._listing.part.take(shard, out=part, mode="clip")
            if len(self._dataset_of) == 1:
                dataset[:] = 0
            else:
                self._listing.dataset.take(shard, out=dataset, mode="clip")
        return found

    def dataset(self, names: Any) -> Int64s:
        """Numbers of datasets given by name or by number.

        Raises
        ------
        KeyError
            There is none of that name.
        IndexError
            There is none of that number.
        TypeError
            It is neither.
        """
        array = np.asarray(names)
        if array.dtype.kind in "iu":
            bad = (array < 0) | (array >= len(self._dataset_of))
            if bad.any():
                raise IndexError(
                    f"dataset {array[bad].flat[0]} is out of range; there are "
                    f"{len(self._dataset_of)}, numbered from 0"
                )
            return array.astype(np.int64)
        if array.dtype.kind not in "UO" and array.size:
            raise TypeError(f"dataset has dtype {array.dtype}, expected names, or numbers of them")
        unique, inverse = np.unique(array.astype(str), return_inverse=True)
        found = np.array([self._dataset(str(name)) for name in unique], dtype=np.int64)
        shaped: Int64s = found[inverse].reshape(array.shape)
        return shaped

    def _dataset(self, name: str) -> int:
        if name not in self._dataset_of:
            raise KeyError(f"there is no dataset {name!r}; expected {_some(self._dataset_of)}")
        return self._dataset_of[name]

    def shards(self, dataset: Int64s, part: Int64s) -> Int64s:
        """Numbers of shards given by dataset and part number.

        Raises
        ------
        KeyError
            There is no such shard.
        """
        keys, known = self._key(dataset, part)
        found = np.minimum(np.searchsorted(self._keys, keys), len(self._keys) - 1)
        known &= self._keys[found] == keys
        if not known.all():
            place = int(np.flatnonzero(~known)[0])
            raise KeyError(self._no_shard(int(dataset[place]), int(part[place])))
        return found

    def _key(self, dataset: Int64s, part: Int64s) -> tuple[Int64s, NDArray[np.bool_]]:
        """Keys, and whether the part number is one of any dataset."""
        rank = np.minimum(np.searchsorted(self._parts, part), len(self._parts) - 1)
        return dataset * len(self._parts) + rank, self._parts[rank] == part

    def _no_shard(self, dataset: int, part: int) -> str:
        mine = self._listing.part[self._listing.dataset == dataset]
        name = self._listing.dataset_ids[dataset]
        return (
            f"dataset {name!r} has no shard {part}; it has {len(mine):,}, from {mine[0]} to "
            f"{mine[-1]}"
        )

    def index(self, shard: Int64s, document: Int64s) -> Int64s:
        """Numbers of documents: the inverse of `locate`.

        Raises
        ------
        IndexError
            A shard has fewer documents.
        """
        bad = (document < 0) | (document >= self._documents[shard])
        if bad.any():
            place = int(np.flatnonzero(bad)[0])
            at = int(shard[place])
            raise IndexError(
                f"'{self._listing.paths[at]}' has {int(self._documents[at]):,} documents, and "
                f"number {int(document[place])} is not among them"
            )
        numbers: Int64s = self._sums.before(shard) + document
        return numbers


def _some(names: Sequence[str] | dict[str, int]) -> str:
    listed = list(names)
    more = f" or {len(listed) - 8:,} others" if len(listed) > 8 else ""
    return ", ".join(map(repr, listed[:8])) + more
