"""Which bucket an id falls into."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

__all__ = ["bucket_of"]


def bucket_of(ids: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """The bucket of each id, 0 to 1,023: the upper ten bits of its mix (see hash.hpp)."""
    z = ids.astype(np.uint64)
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z = z ^ (z >> np.uint64(31))
    found: npt.NDArray[np.int64] = (z >> np.uint64(54)).astype(np.int64)
    return found
