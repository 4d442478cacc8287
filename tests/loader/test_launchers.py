"""A launcher has set RANK and WORLD_SIZE, and no process group is initialised."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
import torch.distributed as dist
from torch.utils.data import DataLoader

from models.oracle import Numbers
from windeck import Loader, Stream, collate
from windeck.loader import IterDataset, MapDataset, OrderSampler

MESSAGE = (
    "RANK=1 and WORLD_SIZE=4 are set, but torch.distributed has no process group and `rank` is not "
    "given, so that this process reads the samples of all ranks; call "
    "torch.distributed.init_process_group() before the loop, or pass rank=1, world_size=4"
)

MAKERS: dict[str, Callable[..., Iterable[Any]]] = {
    "Loader": lambda **ranks: Loader(Numbers(40), batch_size=2, **ranks),
    "Loader(restart=True)": lambda **ranks: Loader(
        Numbers(40), batch_size=2, restart=True, **ranks
    ),
    "OrderSampler": lambda **ranks: OrderSampler(40, **ranks),
    "IterDataset": lambda **ranks: IterDataset(Stream(Numbers(40)), batch_size=2, **ranks),
}


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "4")


@pytest.mark.parametrize("name", MAKERS)
def test_a_loop_without_the_process_group_of_a_launcher_warns(name: str, launched: None) -> None:
    made = MAKERS[name]()
    with pytest.warns(UserWarning, match=f"^{re.escape(MESSAGE)}$") as caught:
        next(iter(made))
    assert [warning.filename for warning in caught] == [__file__]


def test_the_loops_of_one_line_warn_once(launched: None) -> None:
    loader = Loader(Numbers(4), batch_size=2)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("default")
        for _ in range(3):
            list(loader)
    assert len(caught) == 1


@pytest.mark.parametrize("name", MAKERS)
def test_given_ranks_do_not_warn(name: str, launched: None) -> None:
    next(iter(MAKERS[name](rank=1, world_size=4)))
    next(iter(MAKERS[name](rank=0, world_size=1)))


@pytest.mark.parametrize("name", MAKERS)
@pytest.mark.parametrize(("rank", "size"), [("0", "1"), ("", "several"), ("", "4"), ("1", "")])
def test_other_environments_do_not_warn(
    name: str, rank: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RANK", rank)
    monkeypatch.setenv("WORLD_SIZE", size)
    next(iter(MAKERS[name]()))


@pytest.mark.parametrize("name", MAKERS)
def test_a_process_group_that_comes_after_the_loader_does_not_warn(
    name: str, launched: None, tmp_path: Path
) -> None:
    made = MAKERS[name]()
    method = f"file://{tmp_path}/store"
    dist.init_process_group("gloo", init_method=method, rank=0, world_size=1)
    try:
        next(iter(made))
    finally:
        dist.destroy_process_group()


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_workers_of_a_data_loader_do_not_warn(launched: None) -> None:
    """A warning is an error in these tests, and one of a worker is raised here."""
    options: dict[str, Any] = {"num_workers": 1, "multiprocessing_context": "fork"}
    rows = MapDataset(Numbers(40))
    next(iter(DataLoader(rows, batch_size=2, collate_fn=collate, **options)))
    batches = IterDataset(Stream(Numbers(40)), batch_size=2, rank=1, world_size=4)
    next(iter(DataLoader(batches, batch_size=None, **options)))


@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_the_first_forked_worker_of_an_iter_dataset_warns(launched: None) -> None:
    """Its parent has no process group either. The loop of a DataLoader begins in the workers."""
    batches = IterDataset(Stream(Numbers(40)), batch_size=2)
    options: dict[str, Any] = {"num_workers": 2, "multiprocessing_context": "fork"}
    with pytest.raises(UserWarning, match=re.escape(MESSAGE)) as caught:
        list(DataLoader(batches, batch_size=None, **options))
    assert "worker process 0" in str(caught.value)
