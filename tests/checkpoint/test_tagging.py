"""Tags of generations equal those of a simple model, and no concurrent writer loses one."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from support.checkpoint_parts import make_foreign
from support.failing import Between
from support.gangs import gang
from support.store_servers import EMBEDDED, KINDS, need
from support.threads import at_once
from windeck import checkpoint
from windeck.checkpoint.format import keys, manifests, values
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]
NAMES = ("best", "last", "a/b")
SOME = ("memory", *EMBEDDED, "redis")


def save(store: Any, step: int, **options: Any) -> int:
    model = {"w": torch.arange(60.0)}
    model["w"][step % 60] = -step
    number: int = checkpoint.save(store, step=step, model=model, chunk_bytes=80, **options)
    return number


def tags(store: Any) -> dict[str, int]:
    return {tag: commit.generation for commit in checkpoint.log(store) for tag in commit.tags}


def check(store: Any, steps: dict[int, int]) -> None:
    """Check that the generations kept are these, and that all of them load."""
    assert {commit.generation: commit.step for commit in checkpoint.log(store)} == steps
    for generation, step in steps.items():
        target = {"w": torch.zeros(60)}
        assert checkpoint.load(store, model=target, generation=generation).step == step
        wanted = torch.arange(60.0)
        wanted[step % 60] = -step
        assert torch.equal(target["w"], wanted)
    report = checkpoint.verify(store, deep=True)
    assert report.ok, report.damages


@pytest.mark.parametrize("kind", SOME)
def test_tagged_generations_are_kept(kind: str, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        for step in range(1, 7):
            tag = "best" if step in (2, 4) else None
            save(store, step, incremental=True, keep=1, tag=tag)
        assert tags(store) == {"best": 4}
        check(store, {6: 6, 4: 4})  # generation 2 lost its tag to 4
        assert checkpoint.tag(store, "last") == 6
        assert checkpoint.tag(store, "release", generation="best") == 4
        assert tags(store) == {"best": 4, "last": 6, "release": 4}
        assert checkpoint.untag(store, "best") == 4
        assert checkpoint.gc(store, keep=1) == []
        assert checkpoint.untag(store, "release") == 4
        assert checkpoint.gc(store, keep=1, dry_run=True) == [4]
        assert checkpoint.tag(store, "again", generation=4) == 4
        assert checkpoint.gc(store, keep=1) == []
        assert checkpoint.untag(store, "again") == 4
        assert checkpoint.gc(store, keep=1)[-1:] == [4]
        check(store, {6: 6})
        assert tags(store) == {"last": 6}


@pytest.mark.parametrize("kind", KINDS)
def test_tags_at_urls(kind: str, fresh: Fresh) -> None:
    """Another process, which neither saved nor loaded, may tag what a trainer saved."""
    need(kind)
    url = fresh(kind)
    with open_store(url) as kept:
        if kind != "memory":
            kept.close()  # an embedded store has one opener
        for step in (1, 2, 3):
            save(url, step, keep=1, tag="first" if step == 1 else None)
        assert checkpoint.tag(url, "best") == 3
        assert checkpoint.load(url, model={"w": torch.zeros(60)}, generation="first").step == 1
        with checkpoint.open(url, generation="best") as found:
            assert found.step == 3
        assert checkpoint.untag(url, "first") == 1
        assert checkpoint.gc(url, keep=1) == [1]
        assert tags(url) == {"best": 3}


OPERATIONS = st.lists(
    st.one_of(
        st.tuples(st.just("save"), st.sampled_from((None, *NAMES)), st.booleans()),
        st.tuples(st.just("tag"), st.sampled_from(NAMES), st.integers(0, 5)),
        st.tuples(st.just("untag"), st.sampled_from(NAMES), st.just(0)),
        st.tuples(st.just("gc"), st.integers(1, 3), st.sampled_from((None, 2, 3))),
        st.tuples(st.just("copy"), st.none(), st.booleans()),
    ),
    max_size=14,
)  # fmt: skip


@settings(max_examples=60, deadline=None)
@given(OPERATIONS)
def test_any_operations_give_the_tags_of_a_model(operations: list[tuple[Any, Any, Any]]) -> None:
    """The model: steps by generation, newest first, and a dict of tags."""
    steps: dict[int, int] = {}
    tagged: dict[str, int] = {}
    store, step = open_store("memory://"), 0
    for kind, one, two in operations:
        if kind == "save":
            step += 1
            number = save(store, step, incremental=two, tag=one)
            steps = {number: step, **steps}
            tagged |= {} if one is None else {one: number}
        elif kind == "tag" and steps:
            number = [*steps][two % len(steps)]
            assert checkpoint.tag(store, one, generation=number) == number
            tagged[one] = number
        elif kind == "untag" and one in tagged:
            assert checkpoint.untag(store, one) == tagged.pop(one)
        elif kind == "gc":
            checkpoint.gc(store, keep=one, keep_every=two)
            kept = {*[*steps][:one], *tagged.values()}
            kept |= {number for number, at in steps.items() if two is not None and at % two == 0}
            steps = {number: at for number, at in steps.items() if number in kept}
        elif kind == "copy" and steps:
            chosen = [*steps][::2] if two else [*steps]
            other = open_store("memory://")
            checkpoint.copy(store, other, generations=chosen)
            store = other
            steps = {number: steps[number] for number in chosen}
            tagged = {tag: number for tag, number in tagged.items() if number in steps}
        assert tags(store) == tagged
        if steps:
            check(store, steps)


class Beside:
    """A store that calls a function before HEAD is written for the first time."""

    def __init__(self, store: Store, act: Callable[[], object]) -> None:
        self._store, self._acts, self.writes = store, [act], 0

    def compare_and_set(self, key: bytes, old: bytes | None, new: bytes) -> bool:
        if key.endswith(b"/HEAD"):
            self.writes += 1
            while self._acts:
                self._acts.pop()()
        return self._store.compare_and_set(key, old, new)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


@pytest.mark.parametrize("kind", SOME)
def test_changes_of_tags_meanwhile_are_kept(kind: str, fresh: Fresh) -> None:
    """Another process changes tags before HEAD is written: its changes are kept, and ours done."""
    with open_store(fresh(kind)) as store:
        for step in (1, 2, 3, 4):
            save(store, step)

        def other() -> None:
            checkpoint.tag(store, "theirs", generation=2)
            checkpoint.tag(store, "moved", generation=4)
            checkpoint.untag(store, "old")

        def calls(act: Callable[[Any], object]) -> dict[str, int]:
            for name in tags(store):
                checkpoint.untag(store, name)
            checkpoint.tag(store, "old", generation=1)
            checkpoint.tag(store, "moved", generation=3)
            beside = Beside(store, other)
            act(beside)
            assert beside.writes == 2
            return tags(store)

        theirs = {"theirs": 2, "moved": 4}
        assert calls(lambda at: checkpoint.tag(at, "mine", generation=3)) == theirs | {"mine": 3}
        assert calls(lambda at: checkpoint.tag(at, "moved", generation=2)) == theirs | {"moved": 2}
        assert calls(lambda at: checkpoint.untag(at, "moved")) == {"theirs": 2}
        assert calls(lambda at: save(at, 5)) == theirs
        assert calls(lambda at: save(at, 6, tag="mine")) == theirs | {"mine": 6}
        assert calls(lambda at: save(at, 7, tag="moved")) == theirs | {"moved": 7}
        check(store, {number: number for number in range(1, 8)})
        assert calls(lambda at: checkpoint.gc(at, keep=1)) == theirs
        # 1 and 3 had tags when gc read HEAD, 2 and 4 when it wrote it.
        assert [commit.generation for commit in checkpoint.log(store)] == [7, 4, 2]
        assert checkpoint.verify(store, deep=True).ok


def test_gc_keeps_a_generation_that_is_tagged_before_it_writes_head() -> None:
    with open_store("memory://") as store:
        for step in (1, 2, 3):
            save(store, step)
        between: Any = Between(
            store, ("compare_and_set",), 0, lambda: checkpoint.tag(store, "best", generation=1)
        )
        assert checkpoint.gc(between, keep=1) == [2]
        check(store, {3: 3, 1: 1})


def test_a_generation_that_gc_removes_meanwhile_gets_no_tag() -> None:
    with open_store("memory://") as store:
        for step in (1, 2):
            save(store, step)
        between: Any = Between(
            store, ("compare_and_set",), 0, lambda: checkpoint.gc(store, keep=1)
        )  # fmt: skip
        with pytest.raises(FileNotFoundError, match="there is no generation 1 in windeck"):
            checkpoint.tag(between, "best", generation=1)
        assert tags(store) == {}


def test_gc_beside_a_save_is_an_error_as_before() -> None:
    with open_store("memory://") as store:
        for step in (1, 2):
            save(store, step)
        between: Any = Between(store, ("compare_and_set",), 0, lambda: save(store, 3))
        with pytest.raises(RuntimeError, match="windeck was saved to meanwhile"):
            checkpoint.gc(between, keep=1)
        check(store, {1: 1, 2: 2, 3: 3})


@pytest.mark.parametrize("kind", ["memory", "redis"])
def test_many_writers_at_once_lose_no_tag(kind: str, fresh: Fresh) -> None:
    """Each thread has a connection of its own to Redis, as a process has."""
    url = fresh(kind)
    with open_store(url) as store:
        for step in (1, 2, 3):
            save(store, step)

        def work(number: int) -> None:
            with open_store(url) as own:
                for turn in range(8):
                    checkpoint.tag(own, f"t{number}-{turn}", generation=1 + turn % 3)
                    if turn % 4 == 3:
                        checkpoint.untag(own, f"t{number}-{turn}")

        at_once(4, work)
        wanted = {f"t{n}-{turn}": 1 + turn % 3 for n in range(4) for turn in range(8)
                  if turn % 4 != 3}  # fmt: skip
        assert tags(store) == wanted
        check(store, {1: 1, 2: 2, 3: 3})


@pytest.mark.parametrize("left", range(4))
@pytest.mark.parametrize("tag", [None, "best"])
def test_a_write_that_fails_leaves_the_former_tags(tag: str | None, left: int) -> None:
    with open_store("memory://") as store:
        save(store, 1, tag="best")
        save(store, 2)

        def fail() -> None:
            raise OSError(5, "the disk says no")

        between: Any = Between(store, ("compare_and_set", "put_many", "bulk_load"), left, fail)
        with pytest.raises(OSError, match="the disk says no"):
            save(between, 3, tag=tag)
        assert tags(store) == {"best": 1}
        check(store, {2: 2, 1: 1})


def test_what_is_stored(memory: Store) -> None:
    """Tags are a field beside the commits."""
    fields = "generation", "save", "step", "time", "manifest_bytes", "manifest_crc", "bases"

    def content() -> dict[str, Any]:
        value = memory.get(b"windeck/HEAD")
        assert value is not None
        return dict(json.loads(value[values.HEADER_BYTES :]))

    save(memory, 1)
    plain = memory.get(b"windeck/HEAD")
    assert {*content()} == {"kept", "removed", "tags"}
    assert content()["tags"] == {}
    checkpoint.tag(memory, "best")
    checkpoint.tag(memory, "a/b")
    found = content()
    assert found["tags"] == {"a/b": 1, "best": 1}
    assert [tuple(entry) for entry in found["kept"]] == [fields]
    assert checkpoint.untag(memory, "best") == checkpoint.untag(memory, "a/b") == 1
    assert memory.get(b"windeck/HEAD") == plain


@pytest.mark.parametrize(
    ("found", "words"),
    [
        ({"best": 2}, r"the tag best is of generation '2', expected one of \[1\]"),
        ({"best": True}, "the tag best is of generation 'True'"),
        ({"best": "1"}, "the tag best is of generation '1'"),
        ({"be\nst": 1}, "expected a tag of 1 to 100 ASCII letters"),
        ({"7": 1}, "expected a tag of 1 to 100 ASCII letters"),
        (["best"], "has no attribute 'items'"),
    ],
)
def test_tags_that_cannot_be(found: Any, words: str, memory: Store) -> None:
    save(memory, 1)
    kept = [{**commit._asdict(), "tags": ["x"]} for commit in checkpoint.log(memory)]
    nothing: dict[str, int] = {}
    for tags_found in (nothing, found):
        payload = manifests.encode_json({"kept": kept, "removed": 0, "tags": tags_found})
        head = values.encode(values.Label(values.Kind.HEAD), payload)
        memory.put_many([(keys.head("windeck"), head)])
        if not tags_found:
            assert tags(memory) == {}  # an entry has none
    with pytest.raises(CorruptStoreError, match=f"HEAD cannot be read as a HEAD: .*{words}"):
        checkpoint.log(memory)


def test_wrong_arguments_are_one_sentence(memory: Store, fresh: Fresh) -> None:
    with pytest.raises(FileNotFoundError, match="there is no checkpoint at memory://"):
        checkpoint.tag(memory, "best")
    with pytest.raises(FileNotFoundError, match="there is no database at"):
        checkpoint.tag(fresh("rocksdb"), "best")
    plan = checkpoint.begin(memory, step=1, writers=1)
    checkpoint.save_shard(memory, plan, writer=0, extra={})
    before = dict(memory.scan())
    for name in ("", "5", "a b", "x" * 101, "ä", "a\n"):
        calls: list[Callable[[str], object]] = [
            lambda name: checkpoint.tag(memory, name),
            lambda name: checkpoint.untag(memory, name),
            lambda name: checkpoint.merge(memory, plan, tag=name),
            lambda name: save(memory, 2, tag=name),
        ]
        for call in calls:
            with pytest.raises(ValueError, match="expected a tag of 1 to 100 ASCII letters, dig"):
                call(name)
    with pytest.raises(TypeError, match="expected a tag of type str, got int"):
        checkpoint.tag(memory, 5)  # type: ignore[arg-type]
    assert dict(memory.scan()) == before
    assert checkpoint.merge(memory, plan, tag="best") == 1
    assert tags(memory) == {"best": 1}
    with pytest.raises(FileNotFoundError, match=r"no tag 'last' in windeck, .* its tags: best"):
        checkpoint.untag(memory, "last")
    with pytest.raises(FileNotFoundError, match="no tag '1' in windeck, expected one of its tags"):
        checkpoint.open(memory, generation="1")
    with pytest.raises(FileNotFoundError, match="there is no generation 7 in windeck"):
        checkpoint.tag(memory, "last", generation=7)
    with pytest.raises(TypeError, match="generation is of type float, expected int, the str of a"):
        checkpoint.tag(memory, "last", generation=1.0)  # type: ignore[arg-type]
    checkpoint.untag(memory, "best")
    with pytest.raises(FileNotFoundError, match="expected one of its tags: none"):
        checkpoint.load(memory, generation="best")


def test_a_process_that_only_tags_may_not_save(memory: Store) -> None:
    save(memory, 1)
    make_foreign(memory)
    checkpoint.tag(memory, "best")
    checkpoint.untag(memory, "best")
    with pytest.raises(RuntimeError, match="was saved by another run"):
        save(memory, 2)


def together(rank: int, ranks: int, url: str, names: list[str | None]) -> str:
    import torch.distributed as dist

    group: Any = dist.group.WORLD
    options: dict[str, Any] = {"group": group, "tag": names[rank]}
    try:
        checkpoint.save(url, step=1, model={"w": torch.ones(3)}, **options)
    except ValueError as error:
        return str(error)
    found = checkpoint.load(url, model={"w": torch.zeros(3)}, group=group, generation=names[0])
    return str(found.step)


def test_tags_of_ranks(fresh: Fresh) -> None:
    url = fresh("redis")
    for other in (None, "last"):
        words = f"`tag` must be the same on all ranks, got 'best' on rank 0 and {other!r} on rank 1"
        found = gang(2, together, url, ["best", other])
        assert [text.removeprefix("rank 1: ") for text in found] == [words] * 2
    assert gang(2, together, url, ["best", "best"]) == ["1", "1"]
    assert [*tags(url)] == ["best"]
