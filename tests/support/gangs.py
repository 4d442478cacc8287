"""Processes of a gloo group, forked from a server that has imported torch."""

from __future__ import annotations

import gc
import tempfile
import traceback
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist

from support.forked import context


def gang(ranks: int, work: Callable[..., Any], *args: Any, lost: int = 0) -> list[Any]:
    """Return the results of `work(rank, ranks, *args)` on all ranks.

    The last `lost` ranks are expected to die and return nothing. An exception on a rank is raised
    as AssertionError with its traceback.
    """
    server = context()
    with tempfile.TemporaryDirectory() as folder:
        answers: Any = server.Queue()
        packed = answers, f"file://{folder}/rendezvous", ranks, work, args
        processes = [server.Process(target=_member, args=(rank, *packed)) for rank in range(ranks)]
        for process in processes:
            process.start()
        try:
            found = dict(answers.get(timeout=240) for _ in range(ranks - lost))
        finally:
            for process in processes:
                process.join(20)
                process.kill()
    failed = [text for ok, text in found.values() if not ok]
    assert not failed, "\n".join(failed)
    return [found[rank][1] for rank in range(ranks - lost)]


def _member(
    rank: int, answers: Any, meeting: str, ranks: int, work: Callable[..., Any], args: Any
) -> None:
    gc.freeze()  # what the server has imported is not looked through again
    torch.set_num_threads(1)
    try:
        dist.init_process_group("gloo", init_method=meeting, rank=rank, world_size=ranks)
        dist.barrier()  # one that ended before all had met would be taken for one that crashed
        try:
            answer = work(rank, ranks, *args)
        finally:
            dist.destroy_process_group()
        answers.put((rank, (True, answer)))
    except BaseException:
        answers.put((rank, (False, f"rank {rank}: {traceback.format_exc()}")))
