"""Tests of copies over a checkpoint that are killed or fail at any operation of the target.

The former or the new checkpoint is there then, whole, with its tags.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from support import failing
from support.failing import READS, WRITES, Between
from support.programs import printed
from support.store_servers import DURABLE, KINDS
from support.stored_keys import parsed
from windeck import checkpoint
from windeck.checkpoint import copy, diff, verify
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]

#: Numbers of generations of source and target: some of both, or none.
CASES = {"same numbers": (0, 0), "later source": (3, 0), "later target": (0, 3)}


def begin_at(store: Store, number: int) -> None:
    """Let the numbers of generations begin after a number."""
    for _ in range(number):
        checkpoint.save(store, step=0, extra={})
    if number:
        checkpoint.gc(store, keep=1)


def fill(store: Store, first: int, *, skip: int = 0) -> dict[int, tuple[str, ...]]:
    """Save two generations, the second incrementally, and return tags by step."""
    begin_at(store, skip)
    for step in (first, first + 1):
        failing.save(store, step)
    checkpoint.tag(store, "best", generation=skip + 1)
    if skip:
        checkpoint.gc(store, keep=2)
    return tags(store)


def tags(store: Store) -> dict[int, tuple[str, ...]]:
    return {commit.step: commit.tags for commit in checkpoint.log(store)}


def check_whole(store: Store, expected: list[dict[int, tuple[str, ...]]]) -> int:
    """Assert that all of one expected checkpoint is there; return the number of that."""
    assert verify(store, deep=True).ok
    step = failing.load(store)
    found = tags(store)
    for commit in checkpoint.log(store):
        with checkpoint.open(store, generation=commit.generation) as one:
            assert bool((one.tensor("model/w") == float(commit.step)).all())
    assert found in expected
    assert step == max(found)
    return expected.index(found)


def check_made_again(source: Store, target: Store | str) -> None:
    """Assert that a copy that ended early is made whole by another one, and leaves nothing."""
    if checkpoint.log(target) != checkpoint.log(source):
        done = copy(source, target, replace=True)
        assert done.generations == [commit.generation for commit in checkpoint.log(target)]
    saves = [(commit.save, commit.tags) for commit in checkpoint.log(target)]
    assert saves == [(commit.save, commit.tags) for commit in checkpoint.log(source)]
    checkpoint.save(target, step=9, extra={})  # gc keeps what a save in progress may own
    checkpoint.gc(target, keep=1)
    report = verify(target, deep=True)
    assert (report.ok, report.unreferenced_keys) == (True, [])


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_of_any_operation(kind: str, case: str, fresh: Fresh, memory: Store) -> None:
    calls = (*READS, *WRITES, "delete_many", "delete_range", "keys")
    ours, theirs = CASES[case]
    new = fill(memory, 1, skip=ours)

    left, ended = 0, list[int]()
    while True:
        with open_store(fresh(kind)) as target:
            former = fill(target, 7, skip=theirs)
            watched = Between(target, calls, left, None)

            def full() -> None:
                watched.left = -1  # noqa: B023  # only once
                raise TimeoutError("for the test")

            watched.act = full
            try:
                done = copy(memory, watched, replace=True)
            except TimeoutError:
                ended.append(check_whole(target, [former, new]))
                check_made_again(memory, target)
                left += 1 if left < 12 else 5
                continue
            assert check_whole(target, [new]) == 0
            numbers = [commit.generation for commit in checkpoint.log(memory)]
            assert done.generations == numbers
            assert checkpoint.log(target) == checkpoint.log(memory)
            assert verify(target).unreferenced == 0
            assert not diff(memory, None, None, other=target)
            failing.save(target, 9)  # incrementally, after the copy
            assert checkpoint.log(target)[0].generation > max(numbers)
            assert checkpoint.log(target)[0].bases
            assert failing.load(target) == 9
            break
    assert ended == sorted(ended)  # the new one does not go again
    assert {*ended} == {0, 1}


SCRIPT = """
import json, os, sys
sys.path.append(sys.argv[2])
from contextlib import contextmanager
from checkpoint.test_copying_kill import check_made_again, check_whole, fill
from support.doomed import Doomed, child
from support.internals import original, replace
from windeck import checkpoint
from windeck.checkpoint.stores import open_store
import torch

torch.set_num_threads(1)
place, source, plain = sys.argv[1], open_store("memory://"), original("copying.opened")
new, former = fill(source, 1, skip=int(sys.argv[3])), {8: (), 7: ("best",)}

def doomed():
    @contextmanager
    def opened(found, **options):
        with plain(found, **options) as store:
            yield store if found is source else Doomed(store, left)
    replace("copying.opened", opened)
    checkpoint.copy(source, url, replace=True)

def begin():
    with open_store(url) as store:
        store.delete_range(b"")
        assert fill(store, 7) == former

def check():
    with open_store(url) as store:
        found = check_whole(store, [former, new])
    check_made_again(source, url)
    os._exit(10 + found)

seen, code, left = [], -9, 0
while code == -9:
    url = place if place.startswith("redis") else f"{place}-{left}"
    assert child(begin) == 0
    code = child(doomed)
    seen.append((code, child(check) - 10))
    left += 1
print(json.dumps(seen))
"""


@pytest.mark.usefixtures("forked")
@pytest.mark.parametrize(
    ("kind", "skip"),
    [
        ("rocksdb", 0),
        ("leveldb", 0),
        # Errors of any operation of these are in the test above.
        pytest.param("redis", 0, marks=pytest.mark.slow),
        pytest.param("rocksdb", 3, marks=pytest.mark.slow),
    ],
)
def test_killed_at_every_operation(kind: str, skip: int, fresh: Fresh) -> None:
    found = printed(SCRIPT, fresh(kind), str(Path(__file__).parents[1]), str(skip))
    seen = json.loads(found)
    assert [code for code, _ in seen] == [-9] * (len(seen) - 1) + [0]
    news = [new for _, new in seen]
    assert news == sorted(news)
    assert {*news} == {0, 1}


@pytest.mark.parametrize("kind", KINDS)
def test_a_damaged_source_changes_nothing(kind: str, fresh: Fresh, memory: Store) -> None:
    fill(memory, 1)
    for key, value in list(memory.scan(b"")):
        if key.endswith(b"/NEXT") or parsed(key)[0] == "s":
            continue
        memory.put_many([(key, value[:-1] + bytes([value[-1] ^ 1]))])
        with open_store(fresh(kind)) as target:
            fill(target, 7)
            was = dict(target.scan(b""))
            with pytest.raises(OSError, match=key.decode()):
                copy(memory, target, replace=True)
            now = dict(target.scan(b""))
            assert now.pop(b"windeck/NEXT")
            assert now == {k: v for k, v in was.items() if k != b"windeck/NEXT"}
            assert failing.load(target) == 8
        memory.put_many([(key, value)])


@pytest.mark.parametrize("kind", DURABLE)
def test_a_copy_to_a_url_has_the_numbers_of_the_source(
    kind: str, fresh: Fresh, memory: Store
) -> None:
    fill(memory, 1)
    url = fresh(kind)
    with open_store(url) as target:
        fill(target, 7)
    for _ in range(2):
        assert copy(memory, url, replace=True).generations == [2, 1]
        with open_store(url) as target:
            assert checkpoint.log(target) == checkpoint.log(memory)
            assert verify(target, deep=True).unreferenced == 0
            checkpoint.save(target, step=9, extra={})


def test_numbers_that_another_process_may_be_using_stay_free(memory: Store) -> None:
    fill(memory, 1, skip=2)
    with open_store("memory://") as target:
        fill(target, 7)
        # A save of generation 3 is in progress, with the number of one of the source.
        plan = checkpoint.begin(target, step=9, writers=1)
        done = copy(memory, target, replace=True)
        assert plan.generation not in done.generations
        assert done.generations == [commit.generation for commit in checkpoint.log(target)]
        assert tags(target) == tags(memory)
        checkpoint.save_shard(target, plan, writer=0, model={})
        with pytest.raises((OSError, RuntimeError)):
            checkpoint.merge(target, plan)
        assert failing.load(target) == 2
        assert verify(target, deep=True).ok
