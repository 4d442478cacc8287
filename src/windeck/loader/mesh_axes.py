"""Detection of device meshes whose ranks share batches.

Ranks of a context-, sequence-, tensor- or pipeline-parallel axis need the same batch. The rank of
the process would give each of them another one.
"""

from __future__ import annotations

import re
from typing import Any

import torch.distributed as dist

__all__ = ["check_mesh_axes"]

#: Axes whose ranks share a batch; `DeviceMesh` names the group of an axis "mesh_<axis>".
_SHARING = re.compile(
    r"mesh_(cp|sp|tp|pp|(context|sequence|tensor|pipeline|model)([_-]?parallel)?)", re.IGNORECASE
)
#: The data-parallel axis. With one rank, all ranks share a batch.
_DATA = re.compile(r"mesh_(dp|data([_-]?parallel)?)", re.IGNORECASE)


def check_mesh_axes() -> None:
    """Raise an error if a `DeviceMesh` has ranks that share batches; O(process groups).

    Groups that were made without a mesh, or with other names, are not recognised.

    Raises
    ------
    ValueError
        For an axis such as "cp" or "tp" of several ranks, and for an axis "dp" of one rank if
        there are several processes.
    """
    for name, size in _axes():
        if _SHARING.fullmatch(name) and size > 1:
            found = f"the device mesh has {size} ranks on the axis {name[5:]!r}"
        elif _DATA.fullmatch(name) and size == 1 < dist.get_world_size():
            found = f"the device mesh has one rank on the axis {name[5:]!r}"
        else:
            continue
        raise ValueError(
            f"{found}, so several ranks need the same batch, but the rank of the process gives "
            "each of them another; expected `rank` and `world_size` of the data-parallel axis, "
            'such as rank=mesh["dp"].get_local_rank(), world_size=mesh["dp"].size()'
        )


def _axes() -> list[tuple[str, int]]:
    """Return name and size of the process groups of this rank."""
    # torch lists groups here alone; without the list nothing is detected.
    known: Any = getattr(getattr(dist, "distributed_c10d", None), "_world", None)
    groups = list(getattr(known, "pg_names", ()))
    return [(getattr(group, "group_desc", None) or "", group.size()) for group in groups]
