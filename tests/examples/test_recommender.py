"""The example of a recommender: killed ranks, other numbers of ranks, and the same bits after."""

from __future__ import annotations

import random
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.loaded_examples import example
from windeck import checkpoint
from windeck.checkpoint.stores import open_store

pytest.importorskip("rocksdict", reason="pip install windeck[rocksdb]")


@pytest.fixture(scope="module")
def recommender() -> ModuleType:
    return example("recommender")


@pytest.fixture(scope="module")
def trainee() -> ModuleType:
    return example("recommender_trainee")


@pytest.mark.usefixtures("forked")
def test_killed_and_resumed_on_other_ranks_it_goes_on_bit_for_bit(
    recommender: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["--steps=14", "--save-every=2", "--seed=1", f"--out={tmp_path / 'out'}"]
    recommender.main([*words, "--lives", "3", "2"])
    told = capsys.readouterr().out
    assert "3 ranks, rank" in told
    assert "2 ranks, to the end" in told
    assert "are equal bit for bit" in told
    # It did go on from a commit of the three, and the comparison sees what is another run's.
    options = recommender.arguments(words)
    killed, reference = (Run(recommender, tmp_path / "out" / name, options) for name in NAMES)
    assert len(killed.losses()) >= 14
    state = reference.state()
    assert len(state["user.keys"]) > 100
    for change in ("user.values", "user.frequencies", next(iter(state))):
        other = {name: np.array(value) for name, value in state.items()}
        other[change] = other[change].copy()
        other[change].reshape(-1)[0] += 1
        with pytest.raises(AssertionError, match=rf"{change} has other bits"):
            recommender.compare(killed, Fixed(reference, other), True)


NAMES = ("killed", "reference")


def Run(recommender: ModuleType, folder: Path, options: Any) -> Any:
    """A run that was there already."""
    run = object.__new__(recommender.Run)
    run.folder, run.options, run.log = folder, options, folder / "losses.jsonl"
    run.store, run.lives = f"rocksdb://{folder / 'store'}", 0
    return run


class Fixed:
    """A run with another state."""

    def __init__(self, run: Any, state: dict[str, Any]) -> None:
        self.losses = run.losses
        self.state = lambda: state


@pytest.mark.slow
@pytest.mark.parametrize("exact", ["--exact", "--no-exact"])
def test_many_lives(
    recommender: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str], exact: str
) -> None:
    seed = random.randrange(2**32)
    words = ["--steps=60", "--save-every=7", f"--seed={seed}", f"--out={tmp_path / 'out'}", exact]
    recommender.main([*words, "--lives", "2", "3", "1", "4"])
    assert capsys.readouterr().out.splitlines()[-1].startswith("4 ranks, to the end: ")


def test_a_life_that_was_killed_before_its_first_save_was_done(
    recommender: ModuleType, tmp_path: Path
) -> None:
    run = recommender.Run(tmp_path / "run", recommender.arguments([]))
    assert run.step_in_force() is None
    open_store(run.store).close()
    assert run.step_in_force() is None
    checkpoint.save(run.store, step=7, model={})
    assert run.step_in_force() == 7


def test_clicks_are_a_function_of_their_number(trainee: ModuleType) -> None:
    clicks = trainee.Clicks(1000)
    rng = np.random.default_rng(0)
    indices = rng.permutation(1000)
    whole, some = clicks.gather(np.arange(1000)), clicks.gather(indices[:100])
    for key, values in some.items():
        assert np.array_equal(values, whole[key][indices[:100]])
    assert set(whole["clicked"].tolist()) == {0.0, 1.0}
    assert (whole["user"] < 0).any()
    # There is something to learn: who agrees with an item clicks more.
    numbers = np.arange(1000)
    users = (trainee.unit(numbers, 1) ** 3 * trainee.USERS).astype(np.int64)
    items = (trainee.unit(numbers, 2) ** 2 * trainee.ITEMS).astype(np.int64)
    liking = (trainee.tastes(users, 3) * trainee.tastes(items, 4)).sum(1)
    clicked = whole["clicked"].astype(bool)
    assert liking[clicked].mean() > liking[~clicked].mean() + 0.3


def test_clicks_in_files_are_those_of_the_function(trainee: ModuleType, tmp_path: Path) -> None:
    trainee.write_clicks(tmp_path / "clicks", 100)
    table = wd.JaggedTable.read(tmp_path / "clicks")
    numbers = np.arange(100)
    batch, clicks = table.gather(numbers), trainee.Clicks(100)
    for key, values in clicks.gather(numbers).items():
        assert np.array_equal(batch[key], values)
    histories = [seen or [] for seen in clicks.histories(numbers)]
    assert batch["history"].tolist() == [item for seen in histories for item in seen]
    assert np.diff(batch["history_offsets"]).tolist() == [len(seen) for seen in histories]
    assert {len(seen) for seen in histories} == set(range(trainee.LONGEST + 1))
    assert set(batch["history"].tolist()) & set(batch["item"].tolist())


def test_a_folder_with_something_in_it_is_left_alone(
    recommender: ModuleType, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine").touch()
    with pytest.raises(SystemExit) as caught:
        recommender.main(["--steps=1", f"--out={tmp_path / 'out'}"])
    assert caught.value.code == (
        f"{tmp_path / 'out'} is not empty, expected a new folder or an empty one"
    )
    assert [path.name for path in (tmp_path / "out").iterdir()] == ["mine"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["--steps", "0"], "--steps: expected a whole number from 1 on, found '0'"),
        (["--save-every", "x"], "--save-every: expected a whole number from 1 on, found 'x'"),
        (["--lives", "2", "0"], "--lives: expected a divisor of 12, found '0'"),
        (["--lives", "5"], "--lives: expected a divisor of 12, found '5'"),
    ],
)
def test_what_makes_no_sense_is_refused(
    recommender: ModuleType, capsys: pytest.CaptureFixture[str], words: list[str], said: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        recommender.arguments(words)
    assert caught.value.code == 2
    assert said in capsys.readouterr().err


def test_all_numbers_of_ranks_are_known(recommender: ModuleType, trainee: ModuleType) -> None:
    divisors = [n for n in range(1, trainee.SLICES + 1) if trainee.SLICES % n == 0]
    assert [*recommender.RANKS] == divisors


def test_help_says_what_it_is_about(
    recommender: ModuleType, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        recommender.arguments(["--help"])
    assert str(recommender.__doc__) in capsys.readouterr().out


@pytest.mark.usefixtures("forked")
def test_a_rank_that_fails_is_told(recommender: ModuleType, tmp_path: Path) -> None:
    options = recommender.arguments(["--steps=2"])
    run = recommender.Run(tmp_path / "five", options)
    with pytest.raises(RuntimeError, match="there are 5 ranks, expected a divisor of 12"):
        run.finish(5)
