"""Cases of sharded saves in which ranks are killed or fail, run by `sharded_ranks`."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist

from support.failing import Position
from support.internals import original, replace
from support.sharded_cases import group, rows
from support.sharded_ranks import Gang
from support.store_servers import EMBEDDED
from support.stored_keys import data_generations, parsed
from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.stores import Store, open_store


class Doomed:
    """Store that ends its process, or fails, before its n-th write."""

    def __init__(self, store: Any, left: int, kill: bool = True) -> None:
        self.store, self.left, self.kill = store, left, kill

    def tick(self) -> None:
        if self.left == 0 and self.kill:
            os.kill(os.getpid(), signal.SIGKILL)
        if self.left == 0:
            raise OSError(28, "no space left for the test")
        self.left -= 1

    def watched(self, items: Any) -> Iterator[tuple[bytes, bytes]]:
        for pair in items:
            self.tick()
            yield pair

    def bulk_load(self, items: Any) -> Any:
        return self.store.bulk_load(self.watched(items))

    def write_part(self, url: str, name: str, items: Any) -> Any:
        written = self.store(url, name, self.watched(items))
        self.tick()
        return written

    def __getattr__(self, name: str) -> Any:
        found = getattr(self.store, name)
        if name not in ("put_many", "compare_and_set", "sync", "order_writes", "ingest_parts"):
            return found

        def call(*given: Any) -> Any:
            self.tick()
            return found(*given)

        return call


def doomed_save(
    url: str, step: int, rank: int, victim: int, left: int, kill: bool, background: bool = False
) -> Any:
    """Save by all ranks, of which one is killed or fails at some stage."""
    whole = torch.full((60, 50), float(step))
    model: dict[str, Any] = {"w": rows(whole, rank, dist.get_world_size())}
    model["b"] = torch.full((3,), float(step))
    store: Store | str = url
    if rank == victim:
        if rank and url.split(":")[0] in EMBEDDED:
            writing = original("sharded_saving.write_part")
            replace("sharded_saving.write_part", Doomed(writing, left, kill).write_part)
        else:
            store = Doomed(open_store(url), left, kill)
    try:
        given: Any = {"step": step, "model": model, "group": group(), "chunk_bytes": 4096}
        if not background:
            return checkpoint.save(store, takeover=True, **given)
        going = checkpoint.save(store, takeover=True, background=True, **given)
        model["b"].zero_()
        whole.zero_()
        return going.wait()
    finally:
        if not isinstance(store, str):
            store.close()


def in_force(url: str) -> int:
    """Return the step of the current checkpoint, after loading all of it."""
    target = {"w": torch.zeros(60, 50), "b": torch.zeros(3)}
    found = checkpoint.load(url, model=target).step
    assert all(value.eq(found).all() for value in target.values())
    return found


def killed(gang: Gang, url: str, *, background: bool = False) -> Any:
    """Kill a rank at each stage of a save; report whether the next save works."""
    gang.alone(
        lambda: checkpoint.save(url, step=1, model={"w": torch.ones(60, 50), "b": torch.ones(3)})
    )
    step, seen = 1, []
    for victim in (0, 1):
        for left in range(100):
            before, step = gang.alone(lambda: in_force(url)), step + 1
            said = gang.run(
                2,
                lambda r: doomed_save(url, step, r, victim, left, True, background),  # noqa: B023
            )
            now = gang.alone(lambda: in_force(url))
            other = said[1 - victim]
            seen.append(
                [victim, said[victim], now == step, now in (before, step), "error" in other]
            )
            if said[victim] != -9:
                assert "value" in said[0], said
                assert "value" in said[1], said
                break
    return [seen, gang.alone(lambda: leftovers(url))]


def killed_in_background(gang: Gang, url: str) -> Any:
    return killed(gang, url, background=True)


def leftovers(url: str) -> list[Any]:
    """Run gc; return the generations that have data, those kept, and the parts."""
    with open_store(url) as store:
        checkpoint.gc(store, keep=1)
        data = data_generations(store)
        parts = store.parts(unfinished=True) if hasattr(store, "parts") else []
        return [sorted(data), [found.generation for found in checkpoint.log(store)], parts]


def failing(gang: Gang, url: str) -> Any:
    """Let one rank fail; report whether all ranks raise the same error."""

    def first() -> int:
        model = {"w": torch.ones(60, 50), "b": torch.ones(3)}
        return checkpoint.save(url, step=1, model=model, loader=Position(7))

    gang.alone(first)

    def several(rank: int) -> list[Any]:
        found: list[Any] = []

        def attempt(action: Callable[[], Any]) -> None:
            try:
                found.append(action())
            except Exception as error:
                found.append([type(error).__name__, str(error), getattr(error, "errno", None)])

        def save(**given: Any) -> Callable[[], Any]:
            return lambda: checkpoint.save(
                given.pop("store", url), step=5, group=group(), takeover=True, **given
            )

        attempt(save(extra={"x": object() if rank == 1 else 0}))
        attempt(save(extra={"lr": rank / 2}))
        attempt(save(extra={"rng": torch.full((4,), rank)}))
        attempt(save(model={"w": rows(torch.ones(8, 3), rank, 3)}))  # no rank has the last third
        attempt(save(model={"w": Partition(torch.ones(5, 3), offset=(2 * rank, 0), shape=(7, 3))}))
        attempt(lambda: checkpoint.save(url, step=5 + rank, group=group(), takeover=True))
        attempt(save(store="memory://" if rank else url))
        attempt(save(store="nothing://x" if rank == 0 else url))
        for victim in (0, 1):
            writing = original("sharded_saving.write_part")
            attempt(lambda: doomed_save(url, 5, rank, victim, 4, False))  # noqa: B023
            replace("sharded_saving.write_part", writing)
        # And loads.
        target = {"w": torch.zeros(60, 50), "b": torch.zeros(3 + rank)}
        feed = Position(3)  # of rank 0 it is given its state before rank 1 is heard of
        attempt(lambda: checkpoint.load(url, model=target, loader=feed, group=group()))
        found.append([int(target["w"].count_nonzero()), feed.at])
        target = {"w": torch.zeros(60, 50)}
        attempt(lambda: checkpoint.load(url, model=target, group=group()))
        halves: dict[str, Any] = {"w": torch.zeros(60, 50)} if rank else {"b": torch.zeros(3)}
        attempt(lambda: checkpoint.load(url, model=halves, group=group()).step)
        found.append([int(value.sum()) for value in halves.values()])
        return found

    said = gang.values(2, several)

    def left() -> list[Any]:
        """Return the generations that have data or shards, and the parts, without gc."""
        with open_store(url) as store:
            found = map(parsed, store.keys(b""))
            generations = {generation for letter, generation in found if letter in ("t", "s")}
            parts = store.parts(unfinished=True) if hasattr(store, "parts") else []
            return [sorted(generations), parts]

    remains = gang.alone(left)

    def unverified(rank: int) -> int:
        extra = {"rng": torch.full((4,), rank)}
        return checkpoint.save(
            url, step=6, extra=extra, group=group(), verify_replicated=False, takeover=True
        )

    def look() -> Any:
        with checkpoint.open(url) as found:
            return [found.step, found.tensor("extra/rng").tolist()]

    force = gang.alone(lambda: in_force(url))
    generations = gang.values(2, unverified)
    return [said, remains, force, generations, gang.alone(look)]
