"""Execution of numbered tasks: in threads of this process, or on the workers of Ray."""

from __future__ import annotations

import os
from collections.abc import Callable
from itertools import islice
from typing import Any

from windeck._util.parallel import run_in_threads

__all__ = ["ENGINES", "run_tasks"]

#: Seconds to wait for tasks of Ray that were cancelled.
_PATIENCE = 60

#: Runs ``work(shared, number)`` for each number, and calls `done` with each one finished.
Runner = Callable[[Callable[[Any, int], None], Any, int, int | None, Callable[[int], None]], None]


def _run_locally(
    work: Callable[[Any, int], None],
    shared: Any,
    count: int,
    workers: int | None,
    done: Callable[[int], None],
) -> None:
    def task(number: int) -> None:
        work(shared, number)
        done(number)

    run_in_threads(task, count, workers, portion=1)


def _run_on_ray(
    work: Callable[[Any, int], None],
    shared: Any,
    count: int,
    workers: int | None,
    done: Callable[[int], None],
) -> None:
    """Run tasks on a cluster of Ray, at most `workers` at a time.

    The cluster is the one this process is connected to, else that of RAY_ADDRESS, else a new one of
    this machine. All its nodes must see the sources and the destination under the same paths.
    """
    try:
        import ray
    except ImportError as error:
        raise ImportError("engine='ray' needs Ray: pip install 'windeck[ray]'") from error
    started = not ray.is_initialized()
    if started:
        ray.init(log_to_driver=False, configure_logging=False)
    running: dict[Any, int] = {}
    try:
        remote, data = ray.remote(work), ray.put(shared)
        numbers = iter(range(count))
        workers = workers or max(1, int(ray.cluster_resources().get("CPU", 1)))
        while True:
            for number in islice(numbers, workers - len(running)):
                running[remote.remote(data, number)] = number
            if not running:
                return
            ready, _ = ray.wait(list(running))
            number = running.pop(ready[0])
            try:
                ray.get(ready[0])
            except ray.exceptions.RayTaskError as error:
                raise (error.cause or error) from error
            done(number)
    finally:
        # Nothing may write to the destination once its lock is released.
        for task in running:
            ray.cancel(task, force=False)
        if running:
            ray.wait(list(running), num_returns=len(running), timeout=_PATIENCE)
        if started:
            ray.shutdown()


ENGINES: dict[str, Runner] = {"local": _run_locally, "ray": _run_on_ray}


def run_tasks(
    engine: str,
    work: Callable[[Any, int], None],
    shared: Any,
    count: int,
    workers: int | None,
    done: Callable[[int], None],
) -> None:
    """Run ``work(shared, number)`` for each number below `count`.

    Of several errors one is raised, after the tasks that run have ended or been cancelled.
    """
    if count:
        ENGINES[engine](work, shared, count, workers, done)


def all_cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1
