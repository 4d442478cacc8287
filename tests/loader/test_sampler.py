"""OrderSampler over map-style datasets, instead of torch's samplers."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.utils.data import DataLoader
from torch.utils.data.distributed import DistributedSampler

from models.oracle import Numbers, Turn, turned
from windeck import BlockPermutation, Loader, Permutation
from windeck.loader import OrderSampler

# Python 3.12 and later warn of forks while torch's threads run.
pytestmark = pytest.mark.filterwarnings("ignore:This process:DeprecationWarning")


class Letters:
    """A map-style dataset with a length and items only."""

    def __len__(self) -> int:
        return 26

    def __getitem__(self, index: int) -> str:
        return "abcdefghijklmnopqrstuvwxyz"[index]


def letters(sampler: OrderSampler, workers: int = 0, batch_size: int = 4) -> DataLoader[Any]:
    return DataLoader(
        Letters(),  # type: ignore[arg-type]
        batch_size=batch_size,
        sampler=sampler,
        num_workers=workers,
        collate_fn="".join,
        multiprocessing_context="fork" if workers else None,
    )


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [0, 1, 3])
def test_a_strangers_dataset_is_shuffled_and_resumed(workers: int) -> None:
    whole = OrderSampler(Letters(), seed=3)
    epochs = ["".join(letters(whole)) for _ in range(3)]
    assert all(sorted(epoch) == sorted("abcdefghijklmnopqrstuvwxyz") for epoch in epochs)
    assert len(set(epochs)) == 3
    for steps in range(1, 7):
        sampler = OrderSampler(Letters(), seed=3)
        seen = "".join(itertools.islice(letters(sampler, workers), steps))
        state = json.loads(json.dumps(sampler.state_dict(consumed=4 * steps)))
        resumed = OrderSampler(Letters(), seed=3)
        resumed.load_state_dict(state)
        loader = letters(resumed, batch_size=3)
        assert len(loader) == -(-(26 - 4 * steps) // 3)
        assert seen + "".join(loader) == epochs[0]
        assert len(loader) == 9
        assert "".join(loader) == epochs[1]


def test_without_workers_the_state_is_what_was_asked_for() -> None:
    sampler = OrderSampler(26, seed=3)
    for number, _ in enumerate(letters(sampler), 1):
        assert sampler.state_dict()["position"] == min(26, 4 * number)
        assert sampler.state_dict() == sampler.state_dict(consumed=min(26, 4 * number))


@settings(deadline=None)
@given(
    st.integers(1, 40),
    st.integers(1, 5),
    st.integers(1, 5),
    st.integers(0, 45),
    st.booleans(),
)
def test_ranks_partition_the_stream_and_go_on_as_others(
    size: int, before: int, after: int, taken: int, drop_last: bool
) -> None:
    if drop_last and max(before, after) > size:
        before = after = 1
    taken = min(taken, size // before)
    seen: list[list[int]] = []
    positions = set()
    for rank in range(before):
        sampler = OrderSampler(
            size, order=Turn, seed=1, rank=rank, world_size=before, drop_last=drop_last
        )
        loop = iter(sampler)
        seen.append([next(loop) for _ in range(taken)])
        state = sampler.state_dict()
        positions.add(state["position"])
    assert positions == {taken * before}
    # Interleaved in the order of ranks they are the stream.
    turns = [sample for turn in zip(*seen, strict=True) for sample in turn]
    assert turns == [turned(size, p, 1) for p in range(taken * before)]
    rest: list[int] = []
    for rank in range(after):
        sampler = OrderSampler(
            size, order=Turn, seed=1, rank=rank, world_size=after, drop_last=drop_last
        )
        sampler.load_state_dict(state)
        epoch = sampler.epoch
        expected = len(sampler)
        mine = list(sampler)
        assert len(mine) == expected
        rest += mine
        assert sampler.position == (epoch + 1) * size
    start = taken * before
    end = (start // size + 1) * size
    if drop_last:
        end -= (end - start) % after
    assert sorted(rest) == sorted(turned(size, p, 1) for p in range(start, end))


def dealt(n: int, start: int, rank: int, ranks: int, batch: int, drop_last: bool) -> list[int]:
    """Positions of a rank from `start` to the end of the epoch, written out from the rule."""
    end = (start // n + 1) * n
    found: list[int] = []
    while end - start >= ranks * batch:
        found += range(start + rank * batch, start + (rank + 1) * batch)
        start += ranks * batch
    rest = 0 if drop_last else end - start
    return found + list(range(start + rank * rest // ranks, start + (rank + 1) * rest // ranks))


@pytest.mark.parametrize("drop_last", [False, True])
@pytest.mark.parametrize("batch", range(1, 6))
@pytest.mark.parametrize("ranks", range(1, 7))
def test_each_rank_gets_what_a_loader_deals(ranks: int, batch: int, drop_last: bool) -> None:
    """Two epochs of every size; resumed at three steps with other ranks and batch sizes."""
    for size in range(1, 41):
        if drop_last and ranks * batch > size:
            continue

        def made(rank: int, of: int, in_step: int, size: int = size) -> OrderSampler:
            return OrderSampler(
                size,
                order=Turn,
                rank=rank,
                world_size=of,
                batch_size=in_step,
                drop_last=drop_last,
            )

        for rank in range(ranks):
            loader = Loader(
                Numbers(size),
                batch_size=batch,
                order=Turn,
                rank=rank,
                world_size=ranks,
                drop_last=drop_last,
                prefetch=0,
            )
            served = [n for _ in range(2) for b in loader for n in b["sample"].tolist()]
            sampler = made(rank, ranks, batch)
            assert [*sampler, *sampler] == served
            assert served == [
                turned(size, p)
                for start in (0, size)
                for p in dealt(size, start, rank, ranks, batch, drop_last)
            ]
        most = size // (ranks * batch)
        for steps in sorted({1, (most + 1) // 2, most} - {0}) if most else ():
            loops = [made(rank, ranks, batch) for rank in range(ranks)]
            seen = [list(itertools.islice(iter(loop), steps * batch)) for loop in loops]
            (position,) = {loop.state_dict()["position"] for loop in loops}
            assert position == steps * ranks * batch
            assert {
                loop.state_dict(consumed=steps * batch)["position"]
                for loop in loops
                if len(loop) > steps * batch
            } <= {position}
            of, in_step = steps % 6 + 1, (steps + batch) % 5 + 1
            if drop_last and of * in_step > size:
                continue
            for rank in range(of):
                resumed = made(rank, of, in_step)
                resumed.load_state_dict(loops[0].state_dict())
                # An epoch that is used up is followed by the next one.
                expected = dealt(size, position, rank, of, in_step, drop_last)
                assert len(resumed) == len(expected)
                mine = list(resumed)
                assert mine == [turned(size, p) for p in expected]
                seen.append(mine)
            if position < size and not drop_last:
                assert sorted(itertools.chain(*seen)) == list(range(size))


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_data_loader_has_the_batches_of_a_loader(workers: int) -> None:
    for size, ranks, batch in ((10, 4, 1), (23, 2, 4), (24, 3, 4), (26, 3, 4), (29, 3, 4)):
        counts = []
        for rank in range(ranks):
            sampler = OrderSampler(size, order=Turn, rank=rank, world_size=ranks, batch_size=batch)
            batches: DataLoader[int] = DataLoader(
                list(range(size)),  # type: ignore[arg-type]
                batch_size=batch,
                sampler=sampler,
                num_workers=workers,
                collate_fn=list,
                multiprocessing_context="fork" if workers else None,
            )
            loader = Loader(
                Numbers(size),
                batch_size=batch,
                order=Turn,
                rank=rank,
                world_size=ranks,
            )
            served = [b["sample"].tolist() for b in loader]
            found = list(batches)
            assert found == [samples for samples in served if samples]
            counts.append(len(found))
        # Ranks without a sample of the remainder make one batch less.
        assert len(set(counts)) == (1 if size % (ranks * batch) in (0, *range(ranks, size)) else 2)


def test_a_state_in_the_middle_of_a_step_is_refused() -> None:
    sampler = OrderSampler(22, rank=1, world_size=2, batch_size=4)
    loop = iter(sampler)
    for taken in range(1, 12):
        next(loop)
        if taken % 4 == 0 or taken == 11:
            position = {4: 8, 8: 16, 11: 22}[taken]
            assert sampler.state_dict()["position"] == position
            assert sampler.state_dict(consumed=taken)["position"] == position
            continue
        message = (
            rf"^{taken} samples of this rank end in the middle of a step: a state is saved after "
            r"whole batches of `batch_size` = 4, or after all 11 samples of the loop; give the "
            r"sampler the batch size of its DataLoader$"
        )
        for options in ({}, {"consumed": taken}):
            with pytest.raises(ValueError, match=message):
                sampler.state_dict(**options)


def test_loops_are_epochs_also_when_one_is_given_up() -> None:
    sampler = OrderSampler(5, order=Turn)
    epochs = [[turned(5, p) for p in range(5 * e, 5 * e + 5)] for e in range(6)]
    assert list(sampler) == epochs[0]
    assert next(iter(sampler)) == epochs[1][0]
    assert list(sampler) == epochs[2]
    assert len(sampler) == 5
    sampler.set_epoch(5)
    assert list(sampler) == epochs[5]
    sampler.set_epoch(1)
    assert sampler.epoch == 1
    assert list(sampler) == epochs[1]
    sampler.set_epoch(1)
    assert list(sampler) == epochs[1], "asked for again"


@pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning")
@pytest.mark.parametrize("workers", [0, 2])
def test_an_iterator_without_samples_taken_is_not_a_loop(workers: int) -> None:
    sampler = OrderSampler(5, order=Turn)
    iter(sampler)
    # DataLoader with workers makes two iterators for each of its own.
    loader: DataLoader[int] = DataLoader(
        list(range(5)),  # type: ignore[arg-type]
        batch_size=None,
        sampler=sampler,
        num_workers=workers,
        multiprocessing_context="fork" if workers else None,
    )
    for epoch in range(3):
        assert list(loader) == [turned(5, p) for p in range(5 * epoch, 5 * epoch + 5)]


def test_set_epoch_leaves_a_resumed_epoch_where_it_is() -> None:
    sampler = OrderSampler(5, order=Turn)
    sampler.set_epoch(2)
    loop = iter(sampler)
    next(loop), next(loop)
    resumed = OrderSampler(5, order=Turn)
    resumed.load_state_dict(sampler.state_dict())
    resumed.set_epoch(2)
    assert list(resumed) == [turned(5, p) for p in (12, 13, 14)]
    resumed.set_epoch(3)
    assert list(resumed) == [turned(5, p) for p in range(15, 20)]


def test_a_finished_epoch_resumes_with_the_next() -> None:
    sampler = OrderSampler(5, order=Turn)
    list(sampler)
    resumed = OrderSampler(5, order=Turn)
    resumed.load_state_dict(sampler.state_dict())
    assert list(resumed) == [turned(5, p) for p in range(5, 10)]
    assert sampler.state_dict(consumed=5) == sampler.state_dict()


def test_a_trillion_samples_need_no_list() -> None:
    sampler = OrderSampler(10**12, seed=1, rank=1, world_size=3)
    order = Permutation(10**12, seed=1, epoch=0)
    assert list(itertools.islice(sampler, 3)) == [order[1], order[4], order[7]]
    assert len(sampler) == -(-(10**12 - 1) // 3)


def test_orders_with_options() -> None:
    factory = partial(BlockPermutation, block_size=4)
    assert list(OrderSampler(10, order=factory)) == factory(10, seed=0, epoch=0)[0:10].tolist()
    with pytest.raises(ValueError, match=r"has order = 'BlockPermutation\(block_size=4\)', here"):
        OrderSampler(10).load_state_dict(OrderSampler(10, order=factory).state_dict())


@pytest.mark.parametrize(
    ("arguments", "error", "message"),
    [
        ({"size": 0}, ValueError, r"^`size` must be at least 1, got 0$"),
        ({"size": []}, ValueError, r"^`size` must be at least 1, got 0$"),
        ({"size": 2.5}, TypeError, r"^`size` must be an integer, got float 2.5$"),
        ({"size": 5, "seed": -1}, ValueError, r"^`seed` must be at least 0, got -1$"),
        ({"size": 5, "order": Permutation(5)}, TypeError, r"^`order` must be a factory .* class"),
        (
            {"size": 5, "rank": 3, "world_size": 3},
            ValueError,
            r"^`rank` must be below `world_size` = 3, got 3$",
        ),
        (
            {"size": 2, "rank": 0, "world_size": 3, "drop_last": True},
            ValueError,
            r"^`drop_last` would drop every sample: 3 ranks with a batch size of 1 take 3 samples "
            "per step, but an epoch has 2$",
        ),
        ({"size": 5, "batch_size": 0}, ValueError, r"^`batch_size` must be at least 1, got 0$"),
    ],
)
def test_bad_samplers(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        OrderSampler(**arguments)


def test_bad_states_change_nothing() -> None:
    sampler = OrderSampler(5, seed=1)
    next(iter(sampler))
    before = sampler.state_dict()
    with pytest.raises(ValueError, match=r"has samples = 6, here it is 5$"):
        sampler.load_state_dict(OrderSampler(6, seed=1).state_dict())
    with pytest.raises(ValueError, match=r"^the state has order_version 99, expected 1: its pos"):
        sampler.load_state_dict({**before, "order_version": 99})
    with pytest.raises(ValueError, match=r"^`consumed` must be at most 5, got 6$"):
        sampler.state_dict(consumed=6)
    assert sampler.state_dict() == before


def test_another_epoch_than_that_of_a_loaded_state_is_refused() -> None:
    sampler = OrderSampler(5, order=Turn)
    list(sampler), next(iter(sampler))
    resumed = OrderSampler(5, order=Turn)
    resumed.load_state_dict(sampler.state_dict())
    with pytest.raises(ValueError, match=r"^the loaded state is in epoch 1, but the trainer begin"):
        resumed.set_epoch(0)
    assert list(resumed) == [turned(5, p) for p in range(6, 10)]
    resumed.set_epoch(0)
    assert list(resumed) == [turned(5, p) for p in range(5)]


@pytest.mark.parametrize("is_nested", [False, True])
def test_a_share_is_not_shared_again(is_nested: bool) -> None:
    class Wrapper(DistributedSampler[int]):
        """As Lightning wraps a sampler."""

        def __iter__(self) -> Iterator[int]:
            return itertools.islice(list(self.dataset), self.rank, None, self.num_replicas)  # type: ignore[call-overload]

    sampler = OrderSampler(10, rank=1, world_size=2)
    whole = OrderSampler(10, rank=0, world_size=1)
    assert len(list(Wrapper(whole, 2, 1))) == 5  # type: ignore[arg-type]
    assert len(list(Wrapper(sampler, 1, 0))) == 5  # type: ignore[arg-type]
    again = Wrapper(sampler, 2, 1)  # type: ignore[arg-type]
    batches = DataLoader(range(10), 2, sampler=again) if is_nested else again  # type: ignore[arg-type, var-annotated]
    with pytest.raises(ValueError, match=r"^OrderSampler serves rank 1 of 2, and Wrapper would "):
        list(batches)


def test_a_sampler_shows_its_options_and_position() -> None:
    sampler = OrderSampler(10, seed=3, rank=0, world_size=1, batch_size=2)
    for _ in itertools.islice(sampler, 4):
        pass
    text = "order=Permutation, seed=3, batch_size=2, drop_last=False, position=4"
    assert repr(sampler) == f"OrderSampler(10, {text})"
