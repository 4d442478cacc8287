"""Writers of an incremental save refer to what any writer of older ones wrote."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch

from store_servers import KINDS
from windeck import checkpoint
from windeck.checkpoint import Partition
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]
#: Elements of a chunk: tensors that several share are cut into 16 KiB at least.
CHUNK = 4096


def save(url: str, step: int, whole: torch.Tensor, cuts: Sequence[int]) -> int:
    """Each writer saves one stretch of a vector; a chunk of it is a chunk of `whole`."""
    writers = len(cuts) - 1
    with open_store(url) as store:
        plan = checkpoint.begin(store, step=step, writers=writers, incremental=True)
    for writer in reversed(range(writers)):
        piece = whole[cuts[writer] : cuts[writer + 1]]
        part = Partition(piece, offset=(cuts[writer],), shape=whole.shape)
        checkpoint.save_shard(url, plan, writer=writer, model={"w": part})
    return checkpoint.merge(url, plan)


def written(url: str, generation: int) -> int:
    with open_store(url) as store:
        return len(list(store.keys(b"windeck/t/%016x/" % generation)))


def check(url: str, whole: torch.Tensor, generation: int | None = None) -> None:
    target = {"w": torch.full_like(whole, -1)}
    checkpoint.load(url, model=target, generation=generation)
    assert torch.equal(target["w"], whole)


@pytest.mark.parametrize("kind", KINDS)
def test_writers_refer_to_older_saves(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    whole = torch.arange(10.0 * CHUNK)
    halves, thirds = [0, 4 * CHUNK, 10 * CHUNK], [0, 4 * CHUNK, 7 * CHUNK, 10 * CHUNK]
    with open_store(url):  # keeps memory:// alive, and makes the others
        pass
    holder = open_store(url) if kind == "memory" else None
    states, counts = [], []
    for step, cuts in enumerate((halves, halves, thirds, thirds)):
        whole[5 * CHUNK + step] = -1.0 - step
        states.append(whole.clone())
        counts.append(written(url, save(url, step, whole, cuts)))
    if kind == "leveldb":  # one process at a time: others cannot look at the digests
        assert counts == [10, 10, 10, 10]
    else:
        # One chunk changed. Then the second part is two others, and only the first goes on.
        assert counts == [10, 1, 6, 1]
        with open_store(url) as store:
            bases = [commit.bases for commit in checkpoint.log(store)]
        assert bases == [(1, 3), (1,), (1,), ()]
    for step, state in enumerate(states):
        check(url, state, step + 1)
    assert checkpoint.gc(url, keep=1) == [1, 2, 3]
    check(url, whole)
    left = sum(written(url, generation) for generation in range(1, 5))
    assert left == 10
    if holder is not None:
        holder.close()


def test_a_part_that_another_writer_has_now() -> None:
    whole = torch.arange(8.0 * CHUNK)
    url = "memory://handed-over"
    with open_store(url) as store:
        save(url, 0, whole, [0, 4 * CHUNK, 8 * CHUNK])
        plan = checkpoint.begin(store, step=1, writers=2, incremental=True)
        for writer, (first, end) in enumerate([(4 * CHUNK, 8 * CHUNK), (0, 4 * CHUNK)]):
            part = Partition(whole[first:end], offset=(first,), shape=whole.shape)
            checkpoint.save_shard(store, plan, writer=writer, model={"w": part})
        checkpoint.merge(store, plan)
        assert written(url, 2) == 0
        check(url, whole)
        save(url, 2, whole, [0, 4 * CHUNK, 8 * CHUNK])
        assert written(url, 3) == 0
        assert checkpoint.log(store)[0].bases == (1,)
        checkpoint.gc(store, keep=1)
        check(url, whole)


def test_a_writer_that_has_its_tensors_in_another_order(memory: Store) -> None:
    """Its digests are in its own order, whatever that of the manifest is."""
    whole = {"a": torch.arange(4.0 * CHUNK), "b": torch.arange(6.0 * CHUNK)}
    for step in range(2):
        plan = checkpoint.begin(memory, step=step, writers=2, incremental=True)
        for writer, names in enumerate(("ab", "ba")):
            halves = {name: torch.chunk(whole[name], 2)[writer] for name in names}
            model = {
                name: Partition(half, offset=(writer * len(half),), shape=whole[name].shape)
                for name, half in halves.items()
            }
            checkpoint.save_shard(memory, plan, writer=writer, model=model)
        checkpoint.merge(memory, plan)
    assert len(list(memory.keys(b"windeck/t/%016x/" % 1))) == 10
    assert list(memory.keys(b"windeck/t/%016x/" % 2)) == []
