"""Many writers, one checkpoint: the whole tensor in plain torch says what has to come back."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest
import torch

from store_servers import KINDS
from windeck import checkpoint
from windeck.checkpoint import Partition, keys
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]
W = torch.arange(7 * 5, dtype=torch.float32).reshape(7, 5) / 3
ROWS = [(0, 3), (3, 4), (4, 7)]


@pytest.fixture(params=KINDS)
def store(request: pytest.FixtureRequest, fresh: Fresh) -> Iterator[Store]:
    with open_store(fresh(request.param)) as store:
        yield store


@pytest.fixture
def memory() -> Iterator[Store]:
    with open_store("memory://") as store:
        yield store


def rows(whole: torch.Tensor, first: int, end: int) -> Partition:
    offset = (first, *[0] * (whole.dim() - 1))
    return Partition(whole[first:end], offset=offset, shape=whole.shape)


def share(writer: int, **extra: Any) -> dict[str, Any]:
    """What a writer of three has of the model."""
    only = {f"only{writer}": torch.full((2,), writer)}
    return {"model": {"w": rows(W, *ROWS[writer]), **only}, "extra": {"seed": 5, **extra}}


def write(
    store: Store | str, plan: checkpoint.Plan, writers: Sequence[int] = (0, 1, 2), **extra: Any
) -> None:
    for writer in writers:
        checkpoint.save_shard(store, plan, writer=writer, **share(writer, **extra))


def force(store: Store) -> list[tuple[int, int]]:
    """What is in force, after it was loaded and found to be whole."""
    target = {"w": torch.zeros(7, 5), **{f"only{w}": torch.full((2,), -1) for w in range(3)}}
    found = checkpoint.load(store, model=target)
    assert torch.equal(target["w"], W)
    assert all(target[f"only{w}"].eq(w).all() for w in range(3))
    return [(commit.generation, commit.step) for commit in checkpoint.log(store)][: found.step]


def fails(store: Store, plan: checkpoint.Plan, message: str, kind: type[Exception]) -> None:
    """A merge is refused with this message, and HEAD stays as it is."""
    before = store.get(keys.head("windeck"))
    with pytest.raises(kind, match=re.escape(message)):
        checkpoint.merge(store, plan)
    assert store.get(keys.head("windeck")) == before


def test_three_writers_make_one_checkpoint(store: Store) -> None:
    plan = checkpoint.begin(store, step=10, writers=3, chunk_bytes=16)
    assert plan == checkpoint.Plan(**json.loads(json.dumps(dataclasses.asdict(plan))))
    write(store, plan, (2, 0, 1), place="everywhere")
    assert checkpoint.log(store) == []
    assert checkpoint.merge(store, plan) == plan.generation == 1
    assert force(store) == [(1, 10)]
    with checkpoint.open(store) as found:
        assert found.names() == ["model/w", "model/only0", "model/only1", "model/only2"]
        assert found.tree("extra") == {"seed": 5, "place": "everywhere"}
        assert torch.equal(found.slice("model/w", (slice(2, 6), 3)), W[2:6, 3])
    # Into any other cut.
    targets = [torch.zeros(7, 2), torch.zeros(2, 3), torch.zeros(7, 0)]
    offsets = [(0, 1), (5, 2), (0, 5)]
    for tensor, offset in zip(targets, offsets, strict=True):
        part = Partition(tensor, offset=offset, shape=(7, 5))
        checkpoint.load(store, model={"w": part}, strict=False)
    assert torch.equal(targets[0], W[:, 1:3])
    assert torch.equal(targets[1], W[5:, 2:])
    # One process saves again, as ever.
    assert checkpoint.save(store, step=11, model={"w": W, **share_of_all()}) == 2
    assert force(store) == [(2, 11), (1, 10)]


def share_of_all() -> dict[str, torch.Tensor]:
    return {f"only{w}": torch.full((2,), w) for w in range(3)}


@pytest.mark.parametrize("kind", ["rocksdb", "leveldb"])
def test_shards_beside_a_database_that_is_open(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    with open_store(url) as store:
        plan = checkpoint.begin(store, step=1, writers=3)
        write(url, plan, (0, 2))  # by the URL: not opened
        write(store, plan, (1,))
        assert len(store.parts()) == 4  # type: ignore[attr-defined]
        checkpoint.merge(store, plan)
        assert store.parts() == []  # type: ignore[attr-defined]
        assert force(store) == [(1, 1)]
    plan = checkpoint.begin(url, step=2, writers=3)
    write(url, plan)
    assert checkpoint.merge(url, plan) == 2
    with open_store(url) as store:
        assert force(store) == [(2, 2), (1, 1)]


def test_missing_writers_may_still_save(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    text = "of 3 writers of generation 2 (step 2), {} did not save, or did not finish: expected all"
    fails(store, plan, text.format("0, 1, 2"), ValueError)
    write(store, plan, (1,))
    fails(store, plan, text.format("0, 2"), ValueError)
    write(store, plan, (0, 2))
    assert checkpoint.merge(store, plan) == 2
    assert force(store) == [(2, 2), (1, 1)]


@pytest.mark.parametrize("kind", ["rocksdb", "leveldb"])
def test_missing_parts_may_still_come(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    plan = checkpoint.begin(url, step=1, writers=3)
    write(url, plan, (0, 2))
    with open_store(url) as store:
        fails(store, plan, "(step 1), 1 did not save, or did not finish", ValueError)
        write(url, plan, (1,))
        checkpoint.merge(store, plan)
        assert force(store) == [(1, 1)]


def test_a_writer_that_saves_twice(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    with pytest.raises(ValueError, match=r"^writer 1 saved its shard of generation 2 already, or"):
        write(store, plan, (1,))
    assert checkpoint.merge(store, plan) == 2  # the first one counts, its data were not touched
    assert force(store) == [(2, 2), (1, 1)]


@pytest.mark.parametrize("kind", ["rocksdb", "leveldb"])
def test_a_writer_that_leaves_two_parts(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    plan = checkpoint.begin(url, step=2, writers=3)
    write(url, plan, (0, 1, 1, 2))
    text = "writer 1 saved its shard of generation 1 twice, expected each writer once"
    with open_store(url) as store:
        fails(store, plan, text, ValueError)
        again = checkpoint.begin(store, step=3, writers=3)
        write(store, again, (0, 1, 2))
        write(url, again, (1,))
        text = "writer 1 saved its shard of generation 2 twice, expected each writer once"
        fails(store, again, text, ValueError)
        # What cannot be merged any more goes with the next commit and gc.
        last = checkpoint.begin(store, step=4, writers=3)
        write(url, last)
        checkpoint.merge(store, last)
        checkpoint.gc(store, keep=1)
        assert store.parts() == []  # type: ignore[attr-defined]
        assert {int(key.split(b"/")[2], 16) for key in store.keys(b"windeck/t/")} == {3}
        assert force(store) == [(3, 4)]


@pytest.mark.parametrize("kind", ["rocksdb", "leveldb"])
def test_a_part_that_lost_its_data(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    plan = checkpoint.begin(url, step=2, writers=3)
    write(url, plan)
    with open_store(url) as store:
        gone = next(name for name in store.parts() if name.endswith("-t"))  # type: ignore[attr-defined]
        store.drop_parts([gone])  # type: ignore[attr-defined]
        fails(store, plan, f"the part {gone} is missing, expected it since writer", OSError)


def tampered(store: Store, plan: checkpoint.Plan, place: int, **changes: Any) -> None:
    """A shard that says something else, by somebody who can count checksums."""
    from windeck.checkpoint.values import Kind, Label, decode, encode

    key = keys.shard("windeck", plan.generation, place)
    label = Label(Kind.SHARD, plan.generation, plan.save, part=place)
    said = {**json.loads(bytes(decode(key, store.get(key), label))), **changes}
    store.put_many([(key, encode(label, json.dumps(said).encode()))])


def test_shards_of_another_step_and_another_plan(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    later = dataclasses.replace(plan, step=3, digest="")
    write(store, plan, (0, 1))
    write(store, later, (2,))
    text = "writer 2 saved generation 2 by another plan: found step 3, expected step 2"
    fails(store, plan, text, ValueError)
    # Made for another store, where the same numbers are dealt out.
    plan = checkpoint.begin(store, step=2, writers=3)
    other = dataclasses.replace(plan, save=7, digest="")
    write(store, other, (0,))
    write(store, plan, (1, 2))
    text = f"writer 0 saved generation 3 by another plan: found digest {other.digest}, expected"
    fails(store, plan, text, ValueError)
    # For more writers than this one has.
    plan = checkpoint.begin(store, step=2, writers=2)
    more = dataclasses.replace(plan, writers=3, digest="")
    write(store, plan, (0, 1))
    write(store, more, (2,))
    text = "writer 2 saved a shard of generation 4, expected 0 to 1 as planned"
    fails(store, plan, text, ValueError)
    # One that lies under the number of another.
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    tampered(store, plan, 1, writer=2)
    text = "writer 1 saved generation 5 by another plan: found writer 2, expected writer 1"
    fails(store, plan, text, ValueError)
    assert force(store) == [(1, 1)]


def merge_of(store: Store, *models: Any, **given: Any) -> checkpoint.Plan:
    plan = checkpoint.begin(store, step=2, writers=len(models))
    for writer, model in enumerate(models):
        checkpoint.save_shard(store, plan, writer=writer, model=model, **given)
    return plan


def test_parts_that_do_not_make_a_whole(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})

    def refused(message: str, *models: Any) -> None:
        fails(store, merge_of(store, *models), message, ValueError)

    refused(
        "model/w has 30 of 35 elements with writers [0, 1], expected all of shape (7, 5): "
        "[3:4, 0:5] is missing",
        {"w": rows(W, 0, 3)}, {"w": rows(W, 4, 7)},
    )  # fmt: skip
    refused(
        "model/w has elements [0:4, 0:5] with writer 0 and [3:7, 0:5] with writer 1, expected each "
        "element once",
        {"w": rows(W, 0, 4)}, {"w": rows(W, 3, 7)},
    )  # fmt: skip
    # A gap as large as the overlap.
    column = Partition(W[:, :1], offset=(0, 0), shape=(7, 5))
    refused("model/w has elements [0:6, 0:5] with writer 0 and [0:7, 0:1] with writer 1",
            {"w": rows(W, 0, 6)}, {"w": column})  # fmt: skip
    refused("model/w has elements [0:7, 0:5] with writer 0 and [0:7, 0:5] with writer 1",
            {"w": W}, {"w": W})  # fmt: skip
    refused("model/w has 0 of 35 elements with writers [], expected all of shape (7, 5)",
            {"w": rows(W, 0, 0)}, {"w": rows(W, 7, 7)})  # fmt: skip
    refused("model/w has dtype float32 with writer 0 and float64 with writer 1, expected one dtype",
            {"w": rows(W, 0, 3)}, {"w": rows(W.double(), 3, 7)})  # fmt: skip
    refused("model/w has shape [7, 5] with writer 0 and [3, 5] with writer 1, expected one shape",
            {"w": rows(W, 0, 3)}, {"w": W[:3]})  # fmt: skip
    refused("model/w is a tensor with writer 0 and 3 with writer 1, expected the same everywhere",
            {"w": rows(W, 0, 7)}, {"w": 3})  # fmt: skip
    assert force(store) == [(1, 1)]


def test_values_that_differ(memory: Store) -> None:
    def refused(message: str, *extras: Any) -> None:
        plan = checkpoint.begin(memory, step=2, writers=len(extras))
        for writer, extra in enumerate(extras):
            checkpoint.save_shard(memory, plan, writer=writer, extra=extra)
        fails(memory, plan, message, ValueError)

    refused("extra/lr is 0.5 with writer 0 and 0.25 with writer 2, expected the same everywhere: "
            "what differs needs a name of its own", {"lr": 0.5}, {}, {"lr": 0.25})  # fmt: skip
    refused("extra/a/0 is 1 with writer 0 and True with writer 1", {"a": [1]}, {"a": [True]})
    refused("extra/a is nan with writer 0 and inf with writer 1",
            {"a": float("nan")}, {"a": float("inf")})  # fmt: skip
    refused("extra/a is 0.0 with writer 0 and -0.0 with writer 1", {"a": 0.0}, {"a": -0.0})
    refused("extra/a is a list with writer 0 and a dict with writer 1", {"a": []}, {"a": {}})
    refused("extra/a has 1 items with writer 0 and 2 with writer 1, expected the same everywhere",
            {"a": (1,)}, {"a": (1, 2)})  # fmt: skip
    assert checkpoint.log(memory) == []


def test_values_of_all_writers_are_kept(memory: Store) -> None:
    plan = checkpoint.begin(memory, step=2, writers=3)
    extras: list[Any] = [
        {"both": float("nan"), 1: "one", "rng": {"0": torch.tensor([1, 2])}},
        {"1": "text", "both": float("nan"), "rng": {"1": torch.tensor([3])}},
        {"rng": {}, "list": [{"a": 1}, (None, 2)]},
    ]
    for writer, extra in enumerate(extras):
        checkpoint.save_shard(memory, plan, writer=writer, extra=extra, loader={"position": 12})
    checkpoint.merge(memory, plan)
    with checkpoint.open(memory) as found:
        tree = found.tree("extra")
        assert found.tree("loader") == {"position": 12}
    assert str(tree.pop("both")) == "nan"
    assert {key: value.tolist() for key, value in tree.pop("rng").items()} == {
        "0": [1, 2],
        "1": [3],
    }
    assert tree == {1: "one", "1": "text", "list": [{"a": 1}, (None, 2)]}
    assert list(tree) == [1, "1", "list"]


def test_tied_tensors_with_some_writers_only(memory: Store) -> None:
    """The memory is the same where it has elements; a writer without any cannot know."""
    tied = [rows(W, 0, 4), rows(W, 4, 7), rows(W, 7, 7)]
    models = [{"a": part, "b": part} for part in tied]
    plan = merge_of(memory, *models)
    checkpoint.merge(memory, plan)
    with checkpoint.open(memory) as found:
        assert torch.equal(found.tensor("model/a"), W)
        assert torch.equal(found.tensor("model/b"), W)
        assert len(found.entries) == 1
    # Torn: the second writer has two copies, the third has only one of the names, and as the first.
    models = [
        {"a": rows(W, 0, 4), "b": rows(W, 0, 4)},
        {"b": rows(W.clone(), 4, 7), "a": rows(W, 4, 7)},
    ]
    checkpoint.merge(memory, merge_of(memory, *models))
    with checkpoint.open(memory) as found:
        assert torch.equal(found.tensor("model/a"), W)
        assert torch.equal(found.tensor("model/b"), W)
        assert len(found.entries) == 2


def test_another_save_meanwhile_wins(store: Store) -> None:
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    fails(store, plan, "step 2 was not committed to windeck, generation 2 of step 1 was meanwhile",
          RuntimeError)  # fmt: skip
    assert not list(store.keys(b"windeck/s/"))
    assert force(store) == [(2, 1)]


def test_a_plan_is_carried_out_once(store: Store) -> None:
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    checkpoint.merge(store, plan)
    fails(store, plan, "generation 1 of windeck was committed already, expected a save that was no",
          RuntimeError)  # fmt: skip
    with pytest.raises(ValueError, match=r"^writer 2 saved its shard of generation 1 already, or "):
        write(store, plan, (2,))
    assert force(store) == [(1, 2)]


class Failing:
    """Has no room for the n-th pair of a bulk load."""

    def __init__(self, store: Store, left: int) -> None:
        self._store, self._left = store, left

    def bulk_load(self, items: Any) -> int:
        def watched() -> Iterator[tuple[bytes, bytes]]:
            for pair in items:
                self._left -= 1
                if self._left < 0:
                    raise OSError(28, "no space left for the test")
                yield pair

        return self._store.bulk_load(watched())

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


def test_a_writer_that_failed_may_try_again(store: Store) -> None:
    plan = checkpoint.begin(store, step=2, writers=3, chunk_bytes=16)
    write(store, plan, (0, 2))
    for left in range(3):
        with pytest.raises(OSError, match="no space left for the test"):
            write(Failing(store, left), plan, (1,))
        fails(store, plan, "(step 2), 1 did not save, or did not finish", ValueError)
    write(store, plan, (1,))
    checkpoint.merge(store, plan)
    assert force(store) == [(1, 2)]


def test_every_byte_of_what_writers_say(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W, **share_of_all()})
    plan = checkpoint.begin(store, step=2, writers=3)
    write(store, plan)
    head = store.get(keys.head("windeck"))
    for key, value in list(store.scan(b"windeck/s/")):
        for at in range(len(value)):
            wrong = value[:at] + bytes([value[at] ^ 0x10]) + value[at + 1 :]
            store.put_many([(key, wrong)])
            with pytest.raises((checkpoint.stores.CorruptStoreError, ValueError)):
                checkpoint.merge(store, plan)
        for size in range(0, len(value), 7):
            store.put_many([(key, value[:size])])
            with pytest.raises(checkpoint.stores.CorruptStoreError, match=f"{key.decode()} is da"):
                checkpoint.merge(store, plan)
        store.put_many([(key, value)])
    assert store.get(keys.head("windeck")) == head
    assert checkpoint.merge(store, plan) == 2
    assert force(store) == [(2, 2), (1, 1)]


W_ENTRY = {"name": "model/w", "dtype": "float32", "shape": [7, 5], "chunk_bytes": 16384}


def test_shards_that_are_none(memory: Store) -> None:
    wrong: list[dict[str, Any]] = [
        {"tensors": 3}, {"tensors": [{}]}, {"trees": []}, {"trees": {"model": {"dict": 1}}},
        {"tensors": [{**W_ENTRY, "parts": [1]}]},
    ]  # fmt: skip
    for changes in wrong:
        plan = merge_of(memory, {"w": rows(W, 0, 3)}, {"w": rows(W, 3, 7)})
        tampered(memory, plan, 1, **changes)
        with pytest.raises(
            checkpoint.stores.CorruptStoreError, match=r"windeck/s/.* (is no shards|cannot be r)"
        ):
            checkpoint.merge(memory, plan)
    for sides in ([[3, 9], [0, 5]], [[5, 3], [0, 5]], [[3, 7]], [[-1, 7], [0, 5]]):
        plan = merge_of(memory, {"w": rows(W, 0, 3)}, {"w": rows(W, 3, 7)})
        tampered(memory, plan, 1, tensors=[{**W_ENTRY, "parts": [{"box": sides, "item": 0}]}])
        with pytest.raises(ValueError, match=r"^model/w has elements .* with writer"):
            checkpoint.merge(memory, plan)
    assert checkpoint.log(memory) == []


def test_a_plan_that_is_none() -> None:
    plan = checkpoint.begin("memory://", step=3, writers=2)
    with pytest.raises(ValueError, match=r"^the digest of a plan is '[0-9a-f]{32}', expected '"):
        dataclasses.replace(plan, step=4)
    wrong: list[tuple[str, Any, type[Exception], str]] = [
        ("writers", 0, ValueError, "writers is 0, expected 1 to 16777216"),
        ("writers", 2.0, TypeError, "writers is of type float, expected int"),
        ("step", -1, ValueError, "step is -1, expected 0 to 9223372036854775807"),
        ("chunk_bytes", 8, ValueError, "chunk_bytes is 8, expected 16 to 67108864"),
        ("namespace", "a b", ValueError, "expected a namespace of 1 to 200 letters, digits"),
    ]
    for name, value, kind, text in wrong:
        changed: dict[str, Any] = {"step": 3, "writers": 2, name: value}
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.begin("memory://", **changed)
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.Plan(**{**dataclasses.asdict(plan), name: value, "digest": ""})
    for writer, kind, text in (
        (2, ValueError, "writer is 2, expected 0 to 1 as planned"),
        (-1, ValueError, "writer is -1, expected 0 to 1 as planned"),
        (True, TypeError, "writer is of type bool, expected int"),
    ):
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.save_shard("memory://", plan, writer=writer)


def test_parts_that_are_none() -> None:
    for offset, shape in (((0,), (7, 5)), ((5, 0), (7, 5)), ((-1, 0), (7, 5)), ((0, 0), (2, 5))):
        with pytest.raises(
            ValueError, match=r"^a part of shape \(3, 5\) at offset .* does not lie "
        ):
            Partition(W[:3], offset=offset, shape=shape)
    with pytest.raises(
        ValueError,
        match=r"^model/w is a Partition of shape \(7, 5\) with \[1:4, 0:5"
        r"\] of it in this process, expected all: save it with group=, or save_shard",
    ):
        checkpoint.save("memory://", step=1, model={"w": rows(W, 1, 4)})
    with pytest.raises(ValueError, match=r"^model/w is a Partition .* with no elements of it in "):
        checkpoint.save("memory://", step=1, model={"w": rows(W, 4, 4)})
    with pytest.raises(TypeError, match=r"^model/w is a sparse tensor, expected a dense one with"):
        checkpoint.save(
            "memory://", step=1,
            model={"w": Partition(W.to_sparse(), offset=(0, 0), shape=(7, 5))},
        )  # fmt: skip


def test_a_partition_that_is_whole_is_a_tensor(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": rows(W, 0, 7)})
    target = {"w": torch.zeros(7, 5)}
    checkpoint.load(memory, model=target)
    assert torch.equal(target["w"], W)


def test_what_a_target_has_is_compared(memory: Store) -> None:
    checkpoint.save(memory, step=1, model={"w": W})
    for target, kind, text in (
        (Partition(torch.zeros(3, 5), offset=(0, 0), shape=(8, 5)), ValueError,
         r"model/w has shape \(8, 5\), expected \(7, 5\) as saved"),
        (rows(torch.zeros(7, 5, dtype=torch.float64), 2, 4), TypeError,
         r"model/w has dtype torch.float64, expected torch.float32 as saved; cast=True casts"),
    ):  # fmt: skip
        with pytest.raises(kind, match=f"^{text}"):
            checkpoint.load(memory, model={"w": target})
        assert not target.tensor.any()
    part = rows(torch.zeros(7, 5, dtype=torch.float64), 2, 4)
    checkpoint.load(memory, model={"w": part}, cast=True)
    assert torch.equal(part.tensor, W[2:4].double())


class Position:
    """A loader that remembers all it was told."""

    def __init__(self, refuse: bool = False) -> None:
        self.position, self.refuse = 5, refuse

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        if self.refuse:
            raise ValueError("these are other data")
        self.position = state["position"]


def test_damage_gives_a_loader_its_state_back(store: Store) -> None:
    checkpoint.save(store, step=1, model={"w": W}, loader={"position": 40})
    good, loader = {"w": torch.zeros(7, 5)}, Position()
    checkpoint.load(store, model=good, loader=loader)
    assert loader.position == 40
    key = keys.chunk("windeck", 1, 0, 0, 0)
    value = store.get(key)
    assert value is not None
    store.put_many([(key, value[:-1] + bytes([value[-1] ^ 1]))])
    loader, plain = Position(), {"position": 6}
    with pytest.raises(checkpoint.stores.CorruptStoreError, match="the targets are invalid"):
        checkpoint.load(store, model=good, loader=loader)
    assert loader.position == 5
    with pytest.raises(checkpoint.stores.CorruptStoreError, match="the targets are invalid"):
        checkpoint.load(store, model=good, loader=plain)
    assert plain == {"position": 6}
    with pytest.raises(ValueError, match="these are other data"):
        checkpoint.load(store, model=good, loader=Position(refuse=True))


class Counting:
    """Counts the bytes of chunks that are read."""

    def __init__(self, store: Store) -> None:
        self._store, self.bytes = store, 0

    def get_many(self, names: Sequence[bytes]) -> list[bytes | None]:
        found = self._store.get_many(names)
        self.bytes += sum(len(value or b"") for value in found)
        return found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize(("saved", "loaded"), [(4, 3), (3, 4), (4, 1), (2, 8)])
def test_each_reads_little_more_than_its_own(memory: Store, saved: int, loaded: int) -> None:
    torch.manual_seed(0)
    whole = {"up": torch.randn(2048, 640), "down": torch.randn(640, 2048), "norm": torch.randn(640)}
    plan = checkpoint.begin(memory, step=1, writers=saved)
    for writer in range(saved):
        mine = {k: rows(v, *cut(len(v), saved, writer)) for k, v in whole.items()}
        checkpoint.save_shard(memory, plan, writer=writer, model=mine)
    checkpoint.merge(memory, plan)
    read = needed = 0
    for reader in range(loaded):
        runs = {k: cut(len(v), loaded, reader) for k, v in whole.items()}
        parts = {k: rows(torch.zeros_like(v), *runs[k]) for k, v in whole.items()}
        counting = Counting(memory)
        checkpoint.load(counting, model=parts)
        assert all(torch.equal(part.tensor, whole[k][slice(*runs[k])]) for k, part in parts.items())
        read += counting.bytes
        needed += sum(part.tensor.nbytes for part in parts.values())
    assert needed == sum(tensor.nbytes for tensor in whole.values())
    assert needed < read <= 1.05 * needed


def cut(size: int, count: int, i: int) -> tuple[int, int]:
    step = -(-size // count)
    return min(i * step, size), min((i + 1) * step, size)
