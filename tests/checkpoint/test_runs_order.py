"""Saves of several runs to one namespace, steps that go back, and a HEAD that was removed."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from support.store_servers import KINDS
from windeck import checkpoint
from windeck.checkpoint.format import keys
from windeck.checkpoint.stores import CorruptStoreError, Store, open_store

Fresh = Callable[[str], str]
#: A trainer: saves the steps of its arguments, after a load if the first is "load".
TRAINER = """if True:
    import sys, torch
    from windeck import checkpoint
    url, takeover, *steps = sys.argv[1:]
    model = {"w": torch.zeros(3)}
    if steps[:1] == ["load"]:
        model["step"] = steps.pop(0) and checkpoint.load(url, model=model, strict=False).step
    for step in map(int, steps):
        checkpoint.save(url, step=step, model={"w": torch.full((3,), float(step))},
                        takeover=bool(int(takeover)))
    sys.stdin.readline()
"""


def run(url: str, takeover: int, *steps: object) -> str:
    """Run another trainer; return the last line of what it says of an error."""
    command = [sys.executable, "-c", TRAINER, url, str(takeover), *map(str, steps)]
    done = subprocess.run(command, capture_output=True, text=True, input="", timeout=120)
    return done.stderr.strip().splitlines()[-1] if done.returncode else ""


def steps(url: str) -> list[int]:
    return [commit.step for commit in checkpoint.log(url)]


@pytest.mark.usefixtures("forked")
def test_a_second_run_is_refused(tmp_path: Path) -> None:
    """Unless it loads the checkpoint, or takes over: then the first one is refused."""
    url = f"rocksdb://{tmp_path}/x"
    model = {"w": torch.ones(3)}
    assert run(url, 0, 1, 2) == ""
    told = run(url, 0, 3)
    assert "generation 2 (step 2, " in told
    assert "was saved by another run" in told
    assert "takeover=True" in told
    with pytest.raises(RuntimeError, match="was saved by another run"):
        checkpoint.save(url, step=3, model=model)
    with pytest.raises(RuntimeError, match="was saved by another run"):
        checkpoint.begin(url, step=3, writers=1)
    assert steps(url) == [2, 1]
    assert run(url, 0, "load", 3) == ""
    checkpoint.load(url, model=model)
    checkpoint.save(url, step=4, model=model)
    assert run(url, 1, 5, 6) == ""
    with pytest.raises(RuntimeError, match=r"generation 6 \(step 6, .* saved by another run"):
        checkpoint.save(url, step=7, model=model)
    assert steps(url) == [6, 5, 4, 3, 2, 1]
    checkpoint.save(url, step=7, model=model, takeover=True)
    checkpoint.save(url, step=8, model=model)
    assert steps(url)[:2] == [8, 7]


@pytest.mark.parametrize("kind", KINDS)
def test_a_lower_step_is_refused(kind: str, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        for step in (5, 6, 6):
            checkpoint.save(store, step=step, extra={})
        before = dict(store.scan())
        with pytest.raises(ValueError, match=r"`step` must be at least 6, .* force, got 5: pass"):
            checkpoint.save(store, step=5, extra={})
        with pytest.raises(ValueError, match="lower_step=True"):
            checkpoint.begin(store, step=5, writers=2)
        assert dict(store.scan()) == before
        assert checkpoint.load(store, generation=1).step == 5
        checkpoint.save(store, step=5, extra={}, lower_step=True)
        assert [commit.step for commit in checkpoint.log(store)] == [5, 6, 6, 5]
        with pytest.raises(TypeError, match="`takeover` must be a bool, got int"):
            checkpoint.save(store, step=7, extra={}, takeover=1)  # type: ignore[call-overload]


def removed_head(store: Store) -> None:
    for step in (1, 2):
        checkpoint.save(store, step=step, model={"w": torch.ones(3)})
    store.delete_many([keys.head("windeck")])


@pytest.mark.parametrize("kind", KINDS)
def test_a_removed_head_is_damage(kind: str, fresh: Fresh) -> None:
    """It is not taken for an empty store, in which training would begin anew."""
    model = {"w": torch.zeros(3)}
    with open_store(fresh(kind)) as store:
        with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
            checkpoint.load(store, model=model)
        removed_head(store)
        before = dict(store.scan())
        for call in (
            lambda: checkpoint.load(store, model=model),
            lambda: checkpoint.open(store),
            lambda: checkpoint.log(store),
            lambda: checkpoint.gc(store, keep=1),
            lambda: checkpoint.save(store, step=3, model=model),
            lambda: checkpoint.begin(store, step=3, writers=1),
        ):
            with pytest.raises(CorruptStoreError, match="windeck/HEAD is missing") as found:
                call()
            assert not isinstance(found.value, FileNotFoundError)
            assert "/m/0000000000000001" in str(found.value)
        assert dict(store.scan()) == before
        (damage,) = checkpoint.verify(store).damages
        assert "windeck/HEAD is missing" in damage.problem
        # Also if only the number of the next generation is left.
        store.delete_many([keys.manifest("windeck", generation) for generation in (1, 2)])
        with pytest.raises(CorruptStoreError, match=r"HEAD is missing.* is windeck/NEXT: res"):
            checkpoint.load(store, model=model)
        # Other namespaces are not concerned, though their names begin alike.
        checkpoint.save(store, step=1, model=model, namespace="windeck/m")
        assert checkpoint.load(store, model=model, namespace="windeck/m").step == 1


@pytest.mark.parametrize("at", range(1, 8))
def test_a_first_save_that_was_killed_is_no_damage(at: int) -> None:
    """After each write of it, there is a checkpoint or none."""
    left = [at]

    class Killed(BaseException):
        pass

    class Dying:
        def __getattr__(self, name: str) -> object:
            method = getattr(store, name)
            if name not in ("put_many", "bulk_load", "compare_and_set"):
                return method

            def write(*given: object) -> object:
                left[0] -= 1
                if left[0] < 0:
                    raise Killed
                return method(*given)

            return write

    with open_store("memory://") as store:
        try:
            checkpoint.save(Dying(), step=1, model={"w": torch.ones(3)})  # type: ignore[call-overload]
        except Killed:
            with pytest.raises(FileNotFoundError, match="there is no checkpoint"):
                checkpoint.load(store, model={"w": torch.ones(3)})
            assert checkpoint.log(store) == []
        else:
            assert at >= 5
        checkpoint.save(store, step=2, model={"w": torch.ones(3)})
        assert checkpoint.log(store)[0].step == 2
