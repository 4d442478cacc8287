"""Tests of the exchange between ranks: values arrive, errors arrive with type and rank."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from support.gangs import gang
from windeck import checkpoint
from windeck.checkpoint.stores import CorruptStoreError

Fresh = Callable[[str], str]


class OddError(OSError):
    """An error of a type that another process may not know."""


class StrangeError(Exception):
    """An error of an unknown type without `errno`."""


class LooseError(ValueError):
    """An error of an unknown type whose `errno` is not a number."""

    errno = "none"


class Raising:
    """A model whose state raises an error."""

    def __init__(self, error: Exception) -> None:
        self.error = error

    def state_dict(self) -> Any:
        raise self.error


@pytest.fixture
def group(tmp_path: Path) -> Iterator[Any]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield dist.group.WORLD
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("error", "kind", "code", "text"),
    [
        (ValueError("no"), ValueError, None, "rank 0: no"),
        (KeyError("no 'w'"), KeyError, None, "rank 0: no 'w'"),
        (KeyError(), KeyError, None, "rank 0: "),
        (CorruptStoreError("damage"), CorruptStoreError, errno.EBADMSG, "rank 0: damage"),
        (OSError(errno.ENOSPC, "full"), OSError, errno.ENOSPC, "rank 0: full"),
        (OSError("no number"), OSError, None, "rank 0: no number"),
        (FileNotFoundError(2, "gone"), FileNotFoundError, 2, "rank 0: gone"),
        (PermissionError("never"), PermissionError, None, "rank 0: never"),
        (OddError(errno.EIO, "odd"), OSError, errno.EIO, "rank 0: OddError: odd"),
        (StrangeError("strange"), RuntimeError, None, "rank 0: StrangeError: strange"),
        (LooseError("loose"), RuntimeError, None, "rank 0: LooseError: loose"),
        (ZeroDivisionError("0"), RuntimeError, None, "rank 0: ZeroDivisionError: 0"),
        (
            json.JSONDecodeError("bad", "", 0),
            RuntimeError,
            None,
            "rank 0: JSONDecodeError: bad: line 1 column 1 (char 0)",
        ),
    ],
)
def test_errors_are_told_as_what_they_were(
    group: Any, error: Exception, kind: type[Exception], code: int | None, text: str
) -> None:
    with pytest.raises(kind) as caught:
        checkpoint.save("memory://", step=1, model=Raising(error), group=group)
    told = caught.value
    assert type(told) is kind
    assert getattr(told, "errno", None) == code
    assert told.args == ((text,) if code is None else (code, text))
    assert told.__cause__ is error  # here, where it was


def test_who_is_no_member_is_refused(group: Any) -> None:
    none = dist.GroupMember.NON_GROUP_MEMBER
    for call in (
        partial(checkpoint.save, "memory://", step=1),
        partial(checkpoint.load, "memory://"),
    ):
        with pytest.raises(ValueError, match=r"^this process is not in the group, expected a call"):
            call(model={}, group=none)


def talk(rank: int, ranks: int, urls: list[str]) -> list[object] | None:
    """Exchange values and errors in a group of the last two of three ranks."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    said = list[object]()

    def fail(known: bool) -> Any:
        return Raising(FileNotFoundError(errno.ENOENT, f"nothing on {rank}")) if known else {}

    # The names of a rank are as long as those of the other are short.
    texts = {1: "\u00e9" * 100_000, 2: ""}
    names = [f"{number}{texts[number]}" for number in (1, 2)]
    own = {names[rank - 1]: torch.full((2,), float(rank))}
    for url in urls:
        checkpoint.save(url, step=1, model=own, extra={"a": [2.5, None]}, group=group)
        # One rank after the other where only one process can open the store.
        target = {name: torch.zeros(2) for name in own}
        loaded = checkpoint.load(url, model=target, group=group)
        assert (loaded.generation, loaded.step, loaded.extra) == (1, 1, {"a": [2.5, None]})
        assert all(bool((tensor == rank).all()) for tensor in target.values())
        with pytest.raises(ValueError, match=r"^rank 0: `step` must be at least 1") as caught:
            checkpoint.save(url, step=0, model=own, group=group)
        said.append(caught.value.__cause__ is not None)
        for is_known in (rank == 1, True, rank == 2):
            with pytest.raises(FileNotFoundError) as failed:
                checkpoint.save(url, step=2, model=fail(is_known), group=group)
            said += [str(failed.value), failed.value.__cause__ is not None]
        with pytest.raises(FileNotFoundError, match="rank 0: there is no checkpoint") as absent:
            checkpoint.load(url, model={}, group=group, namespace="none")
        said.append(absent.value.__cause__ is not None)
    return said


def test_ranks_of_a_group_that_is_not_all(fresh: Fresh) -> None:
    urls = [fresh("redis"), fresh("rocksdb")]
    nobody, first, second = gang(3, talk, urls)
    assert nobody is None
    words = [f"[Errno 2] rank {rank}: nothing on {1 + rank}" for rank in (0, 0, 1)]
    # The cause is told where it was.
    assert first == [True, words[0], True, words[1], True, words[2], False, True] * 2
    assert second == [False, words[0], False, words[1], True, words[2], True, False] * 2
    for url in urls:
        with checkpoint.open(url) as found:
            assert sorted(map(len, found.names())) == [len("model/2"), len("model/1") + 100_000]
            assert {part.writer for entry in found.entries.values() for part in entry.parts} == {
                0, 1
            }  # fmt: skip
