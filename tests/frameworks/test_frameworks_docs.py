"""The recipes for plain torch and torchdata in docs/frameworks.md, killed and resumed."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.recipes import PAGE, names

pytestmark = [
    pytest.mark.filterwarnings("ignore:This DataLoader will create:UserWarning"),
    pytest.mark.filterwarnings("ignore:This process:DeprecationWarning"),
    pytest.mark.filterwarnings("ignore:'set_vital' is deprecated:UserWarning"),  # torchdata 0.11
]

#: Windows of 24 rows, 100 of them: 7 steps of 16 in an epoch, the last one of 4.
WINDOWS = wd.Windows(
    wd.Table.from_columns({"load": np.arange(123, dtype=np.float32)}),
    context_length=18,
    prediction_length=6,
)
ORDER = [
    int(sample)
    for epoch in (0, 1)
    for sample in wd.Permutation(100, seed=7, epoch=epoch).take(np.arange(100))
]


class Killed(Exception):
    pass


class Trained:
    """The samples trained on, batch by batch; raises in place of a kill."""

    def __init__(self, kill_at: int = 10**9) -> None:
        self.batches: list[list[int]] = []
        self.kill_at = kill_at

    def step(self, batch: Any) -> None:
        if len(self.batches) == self.kill_at:
            raise Killed
        self.batches.append([int(first) for first in batch["past_target"][:, 0, 0]])


def test_links_lead_somewhere() -> None:
    PAGE.check_links()


@pytest.mark.parametrize(
    ("recipe", "options"),
    [
        ("train_with_a_loader", {}),
        ("train_with_a_dataloader", {"workers": 0}),
        ("train_with_a_dataloader", {"workers": 2}),
        ("train_with_torchdata", {"workers": 0}),
        ("train_with_torchdata", {"workers": 2}),
    ],
)
def test_recipes_are_killed_and_resumed(
    recipe: str, options: dict[str, int], tmp_path: Path
) -> None:
    if recipe == "train_with_torchdata":
        pytest.importorskip("torchdata")
    train = partial(names("Plain torch", "torchdata")[recipe], WINDOWS, every=3, **options)
    whole = Trained()
    train(whole.step, tmp_path / "whole")
    assert [sample for batch in whole.batches for sample in batch] == ORDER
    saved = tmp_path / "saved"
    trained: list[list[int]] = []
    for kill_at in (4, 3, 5, 10**9):
        run = Trained(kill_at)
        try:
            train(run.step, saved)
        except Killed:
            del run.batches[kill_at - kill_at % 3 :]  # Lost with the weights since the state.
        trained += run.batches
    assert [sample for batch in trained for sample in batch] == ORDER


def test_a_loader_and_a_dataloader_resume_each_other(tmp_path: Path) -> None:
    page = names("Plain torch")
    first, second, saved = Trained(8), Trained(), tmp_path / "saved"
    with pytest.raises(Killed):
        page["train_with_a_loader"](WINDOWS, first.step, saved, every=4)
    page["train_with_a_dataloader"](WINDOWS, second.step, saved, workers=0)
    assert [sample for batch in first.batches + second.batches for sample in batch] == ORDER
