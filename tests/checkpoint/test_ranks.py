"""Tests of sharded saves by real processes of torch.distributed, compared with whole tensors."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.store_servers import DURABLE

pytestmark = pytest.mark.usefixtures("forked")

HERE = Path(__file__).parents[1]
Fresh = Callable[[str], str]


def ranks(case: str, url: str, folder: Path) -> Any:
    """Run a case ``module:function`` in a child process, and return its result."""
    command = [sys.executable, str(HERE / "support" / "sharded_ranks.py"), case, url]
    folder = folder / "ranks"
    folder.mkdir()
    done = subprocess.run(
        [*command, str(folder)],
        capture_output=True,
        text=True,
        check=False,
        timeout=500,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(HERE), *sys.path])},
    )
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-8000:]
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("kind", DURABLE)
def test_every_layout_on_any_number_of_ranks(kind: str, fresh: Fresh, tmp_path: Path) -> None:
    writers = ranks("sharded_cases:layouts", fresh(kind), tmp_path)
    assert writers["model/even"] == [0, 1, 2, 3]
    assert writers["model/few"] == [0, 1]  # the others have no elements
    assert writers["model/pair"] == [1, 3]
    assert writers["model/none"] == []
    # Replicas are written once, by several ranks in all.
    replicated = [writers[f"model/{name}"] for name in ("copies", "scalar", "plain")]
    assert all(len(found) == 1 for found in replicated)
    assert len(writers["model/hybrid"]) == 2
    assert len(writers["model/woven"]) == 6
    assert len({writer for found in replicated for writer in found}) > 1


@pytest.mark.parametrize("kind", ["rocksdb"])
def test_fsdp_goes_on_with_any_number_of_ranks(kind: str, fresh: Fresh, tmp_path: Path) -> None:
    saved, *others = ranks("sharded_cases:fsdp", fresh(kind), tmp_path)
    assert len(saved[0]) == 6
    assert len(saved[1]) == 18
    for found in others:
        assert found[:2] == saved[:2]  # bit for bit, whole tensors of model and optimizer
        assert found[2].keys() == saved[2].keys()
        for name, values in saved[2].items():  # trained on: other sums, other rounding
            assert found[2][name] == pytest.approx(values, rel=1e-5, abs=1e-6), name


@pytest.mark.parametrize(
    ("kind", "case"),
    [
        ("rocksdb", "killed"),
        ("leveldb", "killed"),
        ("redis", "killed"),
        pytest.param("rocksdb", "killed_in_background", marks=pytest.mark.slow),
        ("redis", "killed_in_background"),
    ],
)
def test_a_rank_that_is_killed_at_every_stage(
    kind: str, case: str, fresh: Fresh, tmp_path: Path
) -> None:
    seen, (data, kept, parts) = ranks(f"sharded_failures:{case}", fresh(kind), tmp_path)
    for victim in (0, 1):
        own = [entry[1:] for entry in seen if entry[0] == victim]
        assert [code for code, *_ in own[:-1]] == [-9] * (len(own) - 1)
        assert len(own) > 5
        # HEAD names the former or the new generation, complete, and no rank hangs.
        assert all(fine for _, _, fine, _ in own)
        new = [committed for _, committed, _, _ in own]
        assert new == sorted(new)
        assert new[-1]
        # After the commit, which only rank 0 makes, the other may have been told or not.
        assert all(error or committed for _, committed, _, error in own)
        assert not any(new[:-1]) or victim == 0
    assert data == kept
    assert parts == []


@pytest.mark.parametrize("kind", DURABLE)
def test_what_fails_on_one_fails_on_all(kind: str, fresh: Fresh, tmp_path: Path) -> None:
    said, remains, force, generations, last = ranks(
        "sharded_failures:failing", fresh(kind), tmp_path
    )
    one, two = said
    expected: list[Any] = [
        ("TypeError", "rank 1: extra/x is of type object, expected a tensor, dict"),
        ("ValueError", "rank 0: extra/lr is 0.0 with writer 0 and 0.5 with writer 1, expected the"),
        ("ValueError", "extra/rng is not the same on ranks 0 and 1, expected equal bytes: save d"),
        ("ValueError", "rank 0: model/w has 15 of 24 elements with writers [0, 1], expected all"),
        ("ValueError", "rank 0: model/w has elements [0:5, 0:3] with writer 0 and [2:7, 0:3] with"),
        ("ValueError", "`step` must be the same on all ranks, got 5 on rank 0 and 6 on rank 1"),
        ("ValueError", "rank 1: rank 1 was given memory://, which no other process can open, exp"),
        ("ValueError", "rank 0: no store has URLs that begin with nothing://: expected one of"),
        ("OSError", "[Errno 28] rank 0: no space left for the test"),
        ("OSError", "[Errno 28] rank 1: no space left for the test"),
        ("ValueError", "rank 1: model/b has shape (4,), expected (3,) as saved"),
    ]
    for (kind_found, text, _), (name, begin) in zip(one, expected, strict=False):
        assert kind_found == name, text
        assert text.startswith(begin)
    assert one[: len(expected)] == two[: len(expected)]
    # No target was written, and loaders are where they were.
    assert one[len(expected)] == two[len(expected)] == [0, 3]
    missing = one[len(expected) + 1]
    assert missing == two[len(expected) + 1]
    assert missing[0] == "KeyError"
    assert "only in the checkpoint [model/b]; strict=False loads the others" in missing[1]
    # Each has what the other has not: all of the checkpoint is somewhere.
    assert one[len(expected) + 2 :] == [1, [3]]
    assert two[len(expected) + 2 :] == [1, [3000]]
    assert remains == [[1], []]  # of what failed nothing is left
    assert force == 1
    assert generations[0] == generations[1]
    assert last[0] == 6
    assert last[1] in ([0] * 4, [1] * 4)


def test_parameter_servers_save_and_workers_join_nothing(fresh: Fresh, tmp_path: Path) -> None:
    (one, two, *workers), (alone, outside) = ranks(
        "sharded_cases:servers", fresh("rocksdb"), tmp_path
    )
    assert one == two == ["server", [1, 2], True, True, True]
    assert workers == [["worker", True]] * 2
    assert alone == 3
    assert outside.startswith("this process is not in the group, expected a call by its members")


@pytest.mark.parametrize("kind", DURABLE)
def test_memory_beyond_what_a_rank_has_is_bounded(kind: str, fresh: Fresh, tmp_path: Path) -> None:
    for *resident, saved, loaded in ranks("sharded_memory:beyond", fresh(kind), tmp_path):
        assert max(saved, loaded) < 64
        if kind != "leveldb":  # maps the files it reads from, which counts as resident
            assert max(resident) < 64
