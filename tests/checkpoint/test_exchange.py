"""Tests of the exchange between ranks: values arrive, errors arrive with type and rank."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest
import torch.distributed as dist

from support.gangs import gang
from support.internals import RankGroup
from windeck.checkpoint.stores import CorruptStoreError


class OddError(OSError):
    """An error of a type that another process may not know."""


class StrangeError(Exception):
    """An error of an unknown type without `errno`."""


class LooseError(ValueError):
    """An error of an unknown type whose `errno` is not a number."""

    errno = "none"


@pytest.fixture
def ranks(tmp_path: Path) -> Iterator[RankGroup]:
    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meeting", rank=0, world_size=1)
    yield RankGroup(dist.group.WORLD)
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
    ],
)
def test_errors_are_told_as_what_they_were(
    ranks: RankGroup, error: Exception, kind: type[Exception], code: int | None, text: str
) -> None:
    def fail() -> None:
        raise error

    with pytest.raises(kind) as caught:
        ranks.run_on_all(fail)
    told = caught.value
    assert type(told) is kind
    assert getattr(told, "errno", None) == code
    assert told.args == ((text,) if code is None else (code, text))
    assert told.__cause__ is error  # here, where it was


def test_values_of_any_length_come_back(ranks: RankGroup) -> None:
    for value in (None, 0, "", "é" * 100_000, [1, {"a": [2.5, None]}]):
        assert ranks.run_on_all(lambda value=value: value) == [value]  # type: ignore[misc]
        assert ranks.run_on_first(lambda value=value: value) == value  # type: ignore[misc]
        assert ranks.run_in_turn(lambda value=value: value) == [value]  # type: ignore[misc]


def test_who_is_no_member_is_refused(ranks: RankGroup) -> None:
    with pytest.raises(ValueError, match=r"^this process is not in the group, expected a call by"):
        RankGroup(dist.GroupMember.NON_GROUP_MEMBER)


def talk(rank: int, ranks: int) -> list[object] | None:
    """Exchange values and errors in a group of the last two of three ranks."""
    group = dist.new_group([1, 2])
    if rank == 0:
        return None
    told = RankGroup(group)
    said: list[object] = [told.rank, told.count]

    def fail() -> None:
        raise FileNotFoundError(errno.ENOENT, f"nothing on {rank}")

    text = "é" * 100_000 if rank == 1 else ""
    assert told.run_on_all(lambda: [rank, text]) == [[1, "é" * 100_000], [2, ""]]
    assert told.run_on_first(lambda: [rank, text]) == [1, "é" * 100_000]
    assert told.run_in_turn(lambda: rank) == [1, 2]
    one_fails = partial(told.run_on_all, lambda: fail() if rank == 2 else None)
    for ask in (partial(told.run_on_first, fail), partial(told.run_on_all, fail), one_fails):
        with pytest.raises(FileNotFoundError) as caught:
            ask()
        said += [str(caught.value), caught.value.__cause__ is not None]
    return said


def test_ranks_of_a_group_that_is_not_all() -> None:
    nobody, first, second = gang(3, talk)
    assert nobody is None
    words = [f"[Errno 2] rank {rank}: nothing on {1 + rank}" for rank in (0, 0, 1)]
    # The cause is told where it was.
    assert first == [0, 2, words[0], True, words[1], True, words[2], False]
    assert second == [1, 2, words[0], False, words[1], True, words[2], True]
