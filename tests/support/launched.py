"""Ranks started as by a trainer's own launcher, with variables of the environment."""

from __future__ import annotations

import gc
import os
import socket
import sys
from collections.abc import Callable
from multiprocessing.connection import wait
from typing import Any

import torch

from support.forked import context

FRAMEWORKS = ["lightning", "accelerate", "transformers.trainer"]


def launch(ranks: int, work: Callable[..., Any], *args: Any) -> list[int]:
    """Run `work(*args)` on each rank, and return the exit codes; end all when one dies."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    # Imported once, by the server that the ranks are forked from.
    server = context(*filter(sys.modules.get, FRAMEWORKS))
    processes = [
        server.Process(target=_member, args=(rank, ranks, port, work, args))
        for rank in range(ranks)
    ]
    for process in processes:
        process.start()
    alive: dict[Any, Any] = {process.sentinel: process for process in processes}
    while alive:
        ended = [alive.pop(sentinel) for sentinel in wait(list(alive), timeout=240)]
        for process in ended:
            process.join()
        if not ended or any(process.exitcode for process in ended):
            for process in alive.values():
                if process.is_alive():  # `kill` alone may signal a later process of its number
                    process.kill()
                process.join()
            break
    return [process.exitcode or 0 for process in processes]


def _member(rank: int, ranks: int, port: int, work: Callable[..., Any], args: Any) -> None:
    gc.freeze()  # what the server has imported is not looked through again
    torch.set_num_threads(1)
    if ranks > 1:
        os.environ |= {
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": str(ranks),
            "LOCAL_WORLD_SIZE": str(ranks),
            "TORCHELASTIC_RUN_ID": "tests",
            "GROUP_RANK": "0",
            "ACCELERATE_USE_CPU": "true",
        }
    work(*args)
