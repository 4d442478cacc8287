"""A model of sharding by torch.chunk, and processes that act as ranks.

Run as a program by the tests: ``python sharded_ranks.py CASE URL FOLDER``. It imports torch once
and forks the ranks of each case.
"""

from __future__ import annotations

import json
import os
import sys
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard


def chunked(tensor: torch.Tensor, count: int, dim: int) -> list[torch.Tensor]:
    """Return torch.chunk with empty chunks for those that it omits."""
    found = list(torch.chunk(tensor, count, dim)) if tensor.shape[dim] else []
    return found + [tensor.narrow(dim, 0, 0)] * (count - len(found))


def local(
    whole: torch.Tensor, shape: Sequence[int], place: Sequence[int], placements: Sequence[Placement]
) -> torch.Tensor:
    """Return the part of a tensor that a place of a mesh has."""
    for count, here, placement in zip(shape, place, placements, strict=True):
        if isinstance(placement, _StridedShard):
            stretches = torch.chunk(whole, int(placement.split_factor), placement.dim)
            pieces = [chunked(stretch, count, placement.dim)[here] for stretch in stretches]
            whole = torch.cat(pieces, placement.dim)
        elif isinstance(placement, Shard):
            whole = chunked(whole, count, placement.dim)[here]
    return whole


def distributed(
    whole: torch.Tensor, mesh: DeviceMesh, placements: Sequence[Placement], *, empty: bool = False
) -> DTensor:
    """Return a DTensor with the values of the model, or zeros if `empty`."""
    place = mesh.get_coordinate()
    if place is None:
        here = whole.new_empty(0)
    else:
        here = local(whole, mesh.shape, place, placements).clone(
            memory_format=torch.contiguous_format
        )
    if empty:
        here = torch.zeros_like(here)
    return DTensor.from_local(
        here, mesh, placements, run_check=False, shape=whole.shape, stride=whole.stride()
    )


def bits(tensor: torch.Tensor) -> bytes:
    return tensor.detach().contiguous().view(-1).view(torch.uint8).numpy().tobytes()


def child(action: Callable[[], Any], out: Path) -> int:
    """Fork a process that runs a function and writes its result or its error to a file."""
    pid = os.fork()
    if pid:
        return pid
    try:
        try:
            said = {"value": action()}
        except Exception as error:
            traceback.print_exc()
            code = getattr(error, "errno", None)
            said = {"error": [type(error).__name__, str(error), code]}
        out.write_text(json.dumps(said))
    finally:
        os._exit(0)


class Gang:
    """Ranks of torch.distributed worlds that run one after the other."""

    def __init__(self, folder: Path) -> None:
        self.folder, self._worlds = folder, 0

    def run(self, world: int, action: Callable[[int], Any]) -> list[Any]:
        """Return the outcome of each rank.

        An outcome is ``{"value": ...}``, ``{"error": [type, message, errno]}``, or the signal that
        ended the rank, as a negative number.
        """
        self._worlds += 1
        here = self.folder / f"world{self._worlds}"
        here.mkdir()

        def rank(number: int) -> Any:
            torch.set_num_threads(1)
            dist.init_process_group(
                "gloo", init_method=f"file://{here}/meeting", rank=number, world_size=world,
                timeout=timedelta(seconds=60),
            )  # fmt: skip
            dist.barrier()  # one that ended before all had met would be taken for one that crashed
            try:
                return action(number)
            finally:
                # Not destroyed: others may have been killed, and this process ends anyway.
                sys.stdout.flush()

        pids = [child(lambda n=n: rank(n), here / f"{n}.json") for n in range(world)]  # type: ignore[misc]
        codes = [os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) for pid in pids]
        return [
            code or json.loads((here / f"{n}.json").read_text()) for n, code in enumerate(codes)
        ]

    def values(self, world: int, action: Callable[[int], Any]) -> list[Any]:
        """Return the result of each rank; none may fail."""
        found = self.run(world, action)
        assert all(isinstance(said, dict) and "value" in said for said in found), found
        return [said["value"] for said in found]

    def alone(self, action: Callable[[], Any]) -> Any:
        """Return the result of a process outside of any world."""
        out = self.folder / "alone.json"
        os.waitpid(child(action, out), 0)
        said = json.loads(out.read_text())
        assert "value" in said, said
        return said["value"]


def main() -> None:
    from importlib import import_module

    case, url, folder = sys.argv[1:]
    module, _, name = case.partition(":")
    torch.set_num_threads(1)
    found = getattr(import_module(f"support.{module}"), name)(Gang(Path(folder)), url)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
