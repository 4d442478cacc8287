"""Pinned memory, devices and profiler spans; without a GPU on substitutes where possible."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from torch.profiler import ProfilerActivity, profile

from models.oracle import Numbers
from support.host_gpu import host_gpu
from windeck import IterDataset, Loader, Sequential, Stream, Table, Windows
from windeck.sources import Fingerprint

# First rows of columns that vary are what batches have all the same.
pytestmark = pytest.mark.filterwarnings("ignore:static covariates vary:UserWarning")

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="torch finds no CUDA device")


def sleep(cycles: int) -> None:
    """Keep the GPU busy."""
    torch.cuda._sleep(cycles)  # type: ignore[no-untyped-call]


class Mixed(Numbers):
    """A source of several dtypes, one of them bits of bfloat16, that counts calls with `out`."""

    torch_dtypes = {"bits": "bfloat16"}  # noqa: RUF012
    outs = 0

    def gather(
        self, indices: NDArray[np.int64], out: dict[str, NDArray[np.generic]] | None = None
    ) -> dict[str, NDArray[np.generic]]:
        bits = (indices.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        batch = {
            **super().gather(indices),
            "bits": np.stack([bits, bits], axis=1),
            "even": indices % 2 == 0,
        }
        if out is None:
            return batch
        self.outs += 1
        for key, array in batch.items():
            assert out[key].dtype == array.dtype
            out[key][:] = array
        return out


def same(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(
        one[key].dtype == other[key].dtype and torch.equal(one[key].cpu(), other[key].cpu())
        for key in one
    )


def pinned(data: Any, **options: Any) -> list[dict[str, torch.Tensor]]:
    """Return the batches of a loop, in memory that takes the place of pinned memory."""
    with pytest.MonkeyPatch.context() as patch:
        gpu = host_gpu(patch)
        batches = list(Loader(data, pin_memory=True, prefetch=0, **options))
    known = [tensor.untyped_storage().data_ptr() for tensor in gpu.pinned]
    assert all(t.untyped_storage().data_ptr() in known for b in batches for t in b.values())
    return batches


def test_pinned_batches_are_written_in_place() -> None:
    source = Mixed(10)
    found = pinned(source, batch_size=4, shuffle=True, seed=1)
    assert source.outs == 3
    plain = Loader(source, batch_size=4, shuffle=True, seed=1, prefetch=0)
    assert all(same(one, other) for one, other in zip(found, plain, strict=True))


class Deaf:
    """A stream that makes new arrays, whatever it is given."""

    epoch_length = 10
    fingerprint: Fingerprint = {"deaf": 1}  # noqa: RUF012

    def gather(self, positions: NDArray[np.int64], out: Any = None) -> dict[str, NDArray[Any]]:
        return Numbers(10).gather(positions)


def test_a_stream_that_ignores_out_is_told_of() -> None:
    with pytest.raises(TypeError, match=r"^the source returned a new array for 'sample' inst"):
        pinned(Deaf(), batch_size=2)


def test_windows_are_pinned_in_every_layout() -> None:
    table = Table.from_columns(
        {"a": np.arange(90.0), "kind": np.ones(90, np.int64)}, offsets=[0, 90]
    )
    for layout in ("btc", "bct", "columns"):
        windows = Windows(
            table,
            context_length=5,
            prediction_length=2,
            static_covariates=["kind"],
            layout=layout,
            dtype="bfloat16",
        )
        expected = list(Loader(windows, batch_size=7))
        found = pinned(windows, batch_size=7)
        assert all(same(one, other) for one, other in zip(found, expected, strict=True))
        assert torch.bfloat16 in {tensor.dtype for tensor in found[0].values()}


def test_batches_without_rows_of_a_size_are_pinned_afterwards() -> None:
    class Ragged(Numbers):
        def gather(self, indices: NDArray[np.int64], out: object = None) -> dict[str, NDArray[Any]]:
            assert out is None
            return {"ends": np.concatenate([[0], np.cumsum(indices)])}

    found = pinned(Ragged(4), batch_size=2)
    assert [batch["ends"].tolist() for batch in found] == [[0, 0, 1], [0, 2, 5]]


def test_pinning_without_a_gpu_is_told_and_left() -> None:
    if torch.cuda.is_available():
        pytest.skip("torch sees a CUDA device")
    with pytest.warns(UserWarning, match="torch finds no CUDA device: batches are not pinned"):
        loader = Loader(Numbers(10), batch_size=5, pin_memory=True)
    assert len(list(loader)) == 2


def test_a_device_of_the_host_costs_nothing_and_others_are_moved_to() -> None:
    on_cpu = list(Loader(Mixed(10), batch_size=4, device="cpu"))
    assert all(same(a, b) for a, b in zip(on_cpu, Loader(Mixed(10), batch_size=4), strict=True))
    # "meta" is the only other device of torch that exists on every machine.
    for batch in Loader(Mixed(10), batch_size=4, device=torch.device("meta")):
        assert {tensor.device.type for tensor in batch.values()} == {"meta"}


def test_torchs_default_device_does_not_matter() -> None:
    expected = next(iter(Loader(Mixed(10), batch_size=4)))
    with torch.device("meta"):
        for prefetch in (0, 1):
            assert same(next(iter(Loader(Mixed(10), batch_size=4, prefetch=prefetch))), expected)
        assert same(pinned(Mixed(10), batch_size=4)[0], expected)
        batch = next(iter(IterDataset(Stream(Mixed(10), order=Sequential), batch_size=4)))
        assert batch.pop("position") == 4
        assert same(batch, expected)


def spans(loader: Loader, trace: Path, *, everywhere: bool) -> set[str]:
    from torch._C._profiler import _ExperimentalConfig

    config = _ExperimentalConfig(profile_all_threads=everywhere)
    with profile(activities=[ProfilerActivity.CPU], experimental_config=config) as profiler:
        assert len(list(loader)) == 3
    profiler.export_chrome_trace(str(trace))
    events = json.loads(trace.read_text())["traceEvents"]
    return {event["name"] for event in events if "windeck" in event.get("name", "")}


def test_stages_are_spans_in_the_profiler(tmp_path: Path) -> None:
    here = Loader(Numbers(10), batch_size=4, prefetch=0, device="meta")
    stages = {"windeck.wait", "windeck.gather", "windeck.to_device"}
    assert spans(here, tmp_path / "here.json", everywhere=False) == stages
    ahead = Loader(Numbers(10), batch_size=4, prefetch=2, device="meta")
    # The first batch is made by the loop itself.
    assert spans(ahead, tmp_path / "ahead.json", everywhere=False) == stages
    assert spans(ahead, tmp_path / "all.json", everywhere=True) == stages


@needs_gpu
def test_pinned_memory_is_pinned() -> None:
    expected = list(Loader(Mixed(1000), batch_size=64))
    for batch, plain in zip(
        Loader(Mixed(1000), batch_size=64, pin_memory=True), expected, strict=True
    ):
        assert all(tensor.is_pinned() for tensor in batch.values())
        assert same(batch, plain)


@needs_gpu
def test_batches_are_on_the_device_and_right_while_kernels_run() -> None:
    size = 200_000
    loader = Loader(Numbers(size), batch_size=20_000, device="cuda", prefetch=3, epochs=3)
    kept = []
    for _ in range(3):
        for batch in loader:
            assert batch["row"].device.type == "cuda"
            sleep(20_000_000)  # The step still runs when the batch is deleted.
            kept.append((batch["row"].double().sum(), batch["sample"].sum()))
    for number, (rows, samples) in enumerate(kept):
        first = (number % 10) * 20_000
        expected = sum(range(first, first + 20_000))
        assert samples.item() == expected
        assert rows.item() == sum(
            float(np.float32(4 * i + j)) for i in range(first, first + 20_000) for j in range(4)
        )


@needs_gpu
def test_copies_overlap_with_the_step() -> None:
    # The step sleeps on the default stream: a copy that waited for it would end after it.
    loader = iter(Loader(Numbers(400_000), batch_size=50_000, device="cuda", prefetch=2))
    next(loader)
    sleep(500_000_000)
    after: Any = torch.cuda.Event()  # type: ignore[no-untyped-call]
    after.record()
    other: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    with torch.cuda.stream(other):
        first = next(loader)["sample"][:1].clone()
        other.synchronize()
    assert not after.query(), "the copy was done while the step still ran"
    assert first.item() == 50_000
    torch.cuda.synchronize()
