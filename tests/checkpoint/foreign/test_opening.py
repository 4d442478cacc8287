"""Tests of the kinds of files and folders, and of their contents as stores for reading."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from support.stored_keys import data_keys
from windeck import checkpoint
from windeck.checkpoint.foreign import open_file
from windeck.checkpoint.safetensors import import_
from windeck.checkpoint.stores import Store


def test_safetensors_too(tmp_path: Path) -> None:
    library = pytest.importorskip("safetensors.torch")
    library.save_file({"w": torch.arange(3.0)}, tmp_path / "model.safetensors")
    for path in (tmp_path, tmp_path / "model.safetensors"):
        with checkpoint.open(open_file(path)) as found:
            assert found.tensor("model/w").tolist() == [0, 1, 2]


@pytest.mark.parametrize("suffix", ["safetensors", "bin"])
def test_a_whole_file_comes_before_an_index_of_older_parts(suffix: str, tmp_path: Path) -> None:
    """As in transformers, which writes the one and may leave the other."""
    save: Any = torch.save
    if suffix == "safetensors":
        save = pytest.importorskip("safetensors.torch").save_file
    index = {"weight_map": {"w": f"model-00001-of-00001.{suffix}"}}
    (tmp_path / f"model.{suffix}.index.json").write_text(json.dumps(index))
    save({"w": torch.zeros(3)}, tmp_path / f"model-00001-of-00001.{suffix}")
    for wanted in (0, 1):
        with checkpoint.open(open_file(tmp_path)) as found:
            assert found.tensor("model/w").tolist() == [wanted] * 3
        save({"w": torch.ones(3)}, tmp_path / f"model.{suffix}")
    if suffix == "safetensors":
        import_(tmp_path, "memory://whole")
        assert checkpoint.open("memory://whole").tensor("model/w").tolist() == [1, 1, 1]


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", ["m.pt", "run", "m.npz"])
def test_the_step_may_be_a_tensor(kind: str, memory: Store, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save as dcp_save

    def step_of(value: torch.Tensor) -> int:
        content = {"model": {"w": torch.ones(2)}, "global_step": value}
        path = tmp_path / str(len(checkpoint.log(memory))) / kind
        path.parent.mkdir()
        if kind == "m.pt":
            torch.save(content, path)
        elif kind == "run":
            dcp_save(content, checkpoint_id=path, no_dist=True)
        else:
            np.savez(path, w=np.ones(2), global_step=value.numpy())
        checkpoint.import_(path, memory)
        return checkpoint.log(memory)[0].step

    assert step_of(torch.tensor(70)) == 70
    assert step_of(torch.tensor([300], dtype=torch.int16)) == 300
    assert step_of(torch.tensor(200, dtype=torch.uint8)) == 200
    for other in (torch.tensor(-1), torch.tensor(7.0), torch.tensor(True), torch.tensor([7, 8])):
        assert step_of(other) == 0


def test_a_file_is_a_checkpoint_of_many_chunks(memory: Store, tmp_path: Path) -> None:
    file = tmp_path / "m.pt"
    model = {"w": torch.arange(700_000.0), "b": torch.ones(3)}
    torch.save(model, file)
    store = open_file(file)
    (commit,) = checkpoint.log(store)
    assert (commit.generation, commit.time) == (1, os.stat(file).st_mtime)
    assert len(data_keys(store, "t")) == 4
    report = checkpoint.verify(store, deep=True)
    assert (report.ok, report.unreferenced) == (True, 0)
    checkpoint.copy(store, memory)
    target = {"w": torch.zeros(700_000), "b": torch.zeros(3)}
    checkpoint.load(memory, model=target)
    assert all(torch.equal(target[name], tensor) for name, tensor in model.items())
    assert checkpoint.save(memory, step=1, model=model) == 2
    for key in (b"~windeck~none", b"~windeck~%016x/t/%08x/%08x/%08x" % (1, 0, 9, 0), b"x"):
        assert store.get(key) is None
    for number in ((1, 0, 0, 3), (1, 1, 0, 0), (2, 0, 0, 0)):
        assert store.get(b"~windeck~%016x/t/%08x/%08x/%08x" % number) is None


def test_files_are_only_read(tmp_path: Path) -> None:
    torch.save({"w": torch.ones(2)}, tmp_path / "m.pt")
    before = (tmp_path / "m.pt").read_bytes()
    store = open_file(tmp_path / "m.pt")
    words = "m.pt is a file of another format, which is only read"
    with pytest.raises(PermissionError, match=words):
        checkpoint.save(store, step=1, model={}, takeover=True)
    with pytest.raises(PermissionError, match=words):
        store.delete_many([b"windeck/HEAD"])
    assert (tmp_path / "m.pt").read_bytes() == before


@pytest.mark.parametrize(
    ("files", "path"),
    [
        (["model.ckpt-7.index", "model.ckpt-7.data-00000-of-00001"], "model.ckpt-7"),
        (["model.ckpt-7.index"], "model.ckpt-7.index"),
        (["model.ckpt-7.data-00000-of-00001"], "model.ckpt-7.data-00000-of-00001"),
        (["checkpoint", "model.ckpt-7.index"], ""),
        (["saved_model.pb"], ""),
    ],
)
def test_tensorflow_is_named(files: list[str], path: str, memory: Store, tmp_path: Path) -> None:
    for name in files:
        (tmp_path / name).write_bytes(b"x")
    words = "is a checkpoint of TensorFlow, expected an .npz file of its variables, which numpy"
    with pytest.raises(ValueError, match=words):
        checkpoint.import_(tmp_path / path, memory)


def test_other_files(memory: Store, tmp_path: Path) -> None:
    (tmp_path / "m.h5").write_bytes(b"x")
    with pytest.raises(
        ValueError, match=r"m.h5 ends in '.h5', expected a DCP folder, or a file th"
    ):
        checkpoint.import_(tmp_path / "m.h5", memory)
    (tmp_path / "m.parquet").write_bytes(b"x")
    with pytest.raises(ValueError, match=r"holds an embedding table, expected import_table for it"):
        checkpoint.import_(tmp_path / "m.parquet", memory)
    with pytest.raises(FileNotFoundError, match="there is no file or folder"):
        checkpoint.import_(tmp_path / "none", memory)
    for name in ("a.pt", "b.pt"):
        torch.save({}, tmp_path / name)
    with pytest.raises(ValueError, match=r"has a.pt, b.pt, expected one: give its path"):
        checkpoint.import_(tmp_path, memory)


def test_leaving_out_tensors(memory: Store, tmp_path: Path) -> None:
    tied = torch.ones(2)
    content = {"state_dict": {"a.w": tied, "b.w": tied, "c": torch.zeros(1)}, "optimizer": {"x": 1}}
    torch.save(content, tmp_path / "m.pt")
    checkpoint.import_(tmp_path / "m.pt", memory, without="model/a.*")
    with checkpoint.open(memory) as found:
        assert found.names() == ["model/b.w", "model/c"]
        assert found.tensor("model/b.w").tolist() == [1, 1]
        assert found.tree("optimizer") == {"x": 1}
    with pytest.raises(ValueError, match="no tensor matches 'd', expected a glob of names"):
        checkpoint.import_(tmp_path / "m.pt", memory, without="d")


def anonymous_bytes() -> int:
    """Return the memory of this process but for mapped files."""
    text = Path("/proc/self/status").read_text()
    return 1024 * int(
        next(line for line in text.splitlines() if line.startswith("RssAnon")).split()[1]
    )


@pytest.mark.filterwarnings("ignore:torch.distributed is disabled")
@pytest.mark.parametrize("kind", ["pt", "dcp"])
def test_memory_is_bounded(kind: str, memory: Store, tmp_path: Path) -> None:
    from torch.distributed.checkpoint.state_dict_saver import save

    path = tmp_path / f"m.{kind}"
    model = {f"w{i}": torch.full((2 << 20,), float(i)) for i in range(16)}  # 8 MiB each
    if kind == "pt":
        torch.save(model, path)
    else:
        save(model, checkpoint_id=path, no_dist=True)
    del model
    before, most = anonymous_bytes(), 0

    class Sink:
        """Counts values instead of storing them."""

        def bulk_load(self, items: Any) -> int:
            nonlocal most
            count = 0
            for _ in items:
                most = max(most, anonymous_bytes() - before)
                count += 1
            assert count == 128
            return count

        def __getattr__(self, name: str) -> Any:
            return getattr(memory, name)

    sink: Any = Sink()
    checkpoint.import_(path, sink)
    # A few shards of 8 MiB; the allocator keeps some that were freed.
    assert most < (8 << 20 if kind == "pt" else 48 << 20)


def test_a_failed_import_leaves_the_former_checkpoint(memory: Store, tmp_path: Path) -> None:
    checkpoint.save(memory, step=3, model={"w": torch.ones(2)})
    np.savez(tmp_path / "a.npz", x=np.arange(1000))
    wrong = bytearray((tmp_path / "a.npz").read_bytes())
    wrong[500] ^= 1
    (tmp_path / "a.npz").write_bytes(wrong)
    with pytest.raises(ValueError, match="Bad CRC-32"):
        checkpoint.import_(tmp_path / "a.npz", memory)
    assert [commit.step for commit in checkpoint.log(memory)] == [3]
    assert checkpoint.load(memory, model={"w": torch.zeros(2)}).step == 3
