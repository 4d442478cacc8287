"""Tests of saves and loads of tensors with work queued on their device, in a stand-in for one."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest
import torch

from support.internals import plant
from support.store_servers import EMBEDDED
from windeck import checkpoint

Fresh = Callable[[str], str]
#: Tensors of several chunks, which are not contiguous, as on a device: chunks are copied.
COUNT, SHAPE = 8, (600, 500)


class Queue:
    """Work on tensors that is done at the next wait for their device."""

    def __init__(self) -> None:
        self._work: list[Callable[[], object]] = []
        self._lock = threading.Lock()

    def add(self, work: Callable[[], object]) -> None:
        self._work.append(work)

    def wait(self, device: torch.device) -> None:
        with self._lock:
            while self._work:
                self._work.pop()()


@pytest.fixture
def queue(monkeypatch: pytest.MonkeyPatch) -> Queue:
    found = Queue()
    plant(monkeypatch, "chunks.wait_for_device", found.wait)
    plant(monkeypatch, "fetching.wait_for_device", found.wait)
    return found


def make_model() -> dict[str, torch.Tensor]:
    return {f"w{number}": torch.zeros(SHAPE).t() for number in range(COUNT)}


def values_of(model: dict[str, torch.Tensor]) -> list[list[float]]:
    """Return the different values of each tensor."""
    return [sorted(set(tensor.flatten().tolist())) for tensor in model.values()]


@pytest.mark.parametrize("kind", [*EMBEDDED, "memory"])
@pytest.mark.parametrize("background_bytes", [None, 0, "no background"])
def test_what_was_queued_before_a_save_is_saved(
    kind: str, background_bytes: int | str | None, fresh: Fresh, queue: Queue
) -> None:
    """Tensors are read in threads that write to RocksDB, and in that of a background save."""
    url, model = fresh(kind), make_model()
    for number, tensor in enumerate(model.values()):
        queue.add(partial(tensor.fill_, number + 1))
    if background_bytes == "no background":
        checkpoint.save(url, step=1, model=model)
    else:
        checkpoint.save(
            url, step=1, model=model, background=True, background_bytes=background_bytes
        ).wait()
    found = {name: torch.zeros(SHAPE[::-1]) for name in model}
    checkpoint.load(url, model=found)
    assert values_of(found) == [[number + 1] for number in range(COUNT)]


@pytest.mark.parametrize("kind", [*EMBEDDED, "memory"])
def test_what_was_queued_before_a_load_does_not_come_after_it(
    kind: str, fresh: Fresh, queue: Queue
) -> None:
    url = fresh(kind)
    checkpoint.save(
        url, step=1, model={f"w{n}": torch.full(SHAPE[::-1], float(n)) for n in range(COUNT)}
    )
    model = make_model()
    for tensor in model.values():
        queue.add(partial(tensor.fill_, -1))
    checkpoint.load(url, model=model)
    queue.wait(torch.device("cpu"))
    assert values_of(model) == [[n] for n in range(COUNT)]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_another_stream_of_a_real_device(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    model = {name: tensor.cuda() for name, tensor in make_model().items()}
    cuda: Any = torch.cuda
    with cuda.stream(cuda.Stream()):
        cuda._sleep(200_000_000)
        for number, tensor in enumerate(model.values()):
            tensor.fill_(number + 1)
        checkpoint.save(url, step=1, model=model)
        cuda._sleep(200_000_000)
        for tensor in model.values():
            tensor.fill_(-1)
        checkpoint.load(url, model=model)
    torch.cuda.synchronize()
    assert values_of(model) == [[n + 1] for n in range(COUNT)]
