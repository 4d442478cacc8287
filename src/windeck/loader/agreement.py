"""Comparison of what ranks are about to read, before the first batch.

Ranks of one run that differ in data, batch size or position serve samples twice or not at all,
without an error.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from windeck._util.collectives import gather_bytes

__all__ = ["check_agreement"]


def check_agreement(mine: Mapping[str, Any]) -> None:
    """Compare fields of all ranks of the default process group; a collective call.

    Parameters
    ----------
    mine
        Fields of this rank, fit for JSON.

    Raises
    ------
    ValueError
        On every rank, if a field differs between ranks. It names the first such field, the ranks
        and their values.
    """
    found = [json.loads(data) for data in gather_bytes(json.dumps(mine, allow_nan=False).encode())]
    names = [name for fields in found for name in fields]
    for name in dict.fromkeys(names):
        ranks: dict[str, list[int]] = {}
        for rank, fields in enumerate(found):
            ranks.setdefault(_shown(fields, name), []).append(rank)
        if len(ranks) > 1:
            fewest_first = sorted(ranks.items(), key=lambda item: len(item[1]))
            told = ", ".join(f"{value} on {_listed(of)}" for value, of in fewest_first[:4])
            raise ValueError(
                f"ranks of one run must agree on {name}, got {told}; expected the same data, "
                "options and state on all ranks (Loader(..., compare_ranks=False) does not compare)"
            )


def _shown(fields: Mapping[str, Any], name: str) -> str:
    return repr(fields[name]) if name in fields else "none"


def _listed(ranks: list[int]) -> str:
    """Return the text of some ranks.

    Examples
    --------
    >>> _listed([3]), _listed([0, 1, 2]), _listed([*range(9), 11])
    ('rank 3', 'ranks 0, 1, 2', 'ranks 0, 1, 2, 3, 4, 5, 6 and 3 more')
    """
    shown, more = ", ".join(map(str, ranks[:7])), len(ranks) - 7
    return f"rank{'s' * (len(ranks) > 1)} {shown}{f' and {more} more' if more > 0 else ''}"
