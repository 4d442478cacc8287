"""The page on files of other frameworks does what it says."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from support.pages import Page
from support.store_servers import need
from windeck import checkpoint

PAGE = Page("docs/importing.md")
RNG = np.random.default_rng(3)
#: What DeepRec saves of a variable `user` in two partitions, and some of TensorFlow.
KEYS = np.array([5, -7, 2**40, 11, 12])
ROWS = RNG.standard_normal((5, 4)).astype(np.float32)
VARIABLES: dict[str, Any] = {
    "global_step": np.int64(7),
    "dense/kernel": np.arange(6.0, dtype=np.float32).reshape(2, 3),
    "_CHECKPOINTABLE_OBJECT_GRAPH": b"graph",
    **{
        f"user/part_{part}-{name}": array[some]
        for part, some in enumerate((slice(0, 2), slice(2, 5)))
        for name, array in {
            "keys": KEYS, "values": ROWS, "freqs": np.arange(1, 6), "versions": np.arange(-1, 4),
            "keys_filtered": KEYS + 1,
        }.items()
    },
}  # fmt: skip


class Reader:
    """Has the methods of TensorFlow's reader of checkpoints that the script calls."""

    def __init__(self, prefix: str) -> None:
        assert prefix == "model.ckpt-7"

    def get_variable_to_dtype_map(self) -> dict[str, Any]:
        kinds = {name: getattr(np.asarray(v).dtype, "kind", "S") for name, v in VARIABLES.items()}
        return {
            name: SimpleNamespace(
                is_floating=kind == "f", is_integer=kind in "iu", is_complex=kind == "c",
                is_bool=kind == "b",
            )
            for name, kind in sorted(kinds.items(), reverse=True)
        }  # fmt: skip

    def get_tensor(self, name: str) -> Any:
        return VARIABLES[name]


def test_code_on_the_page_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    need("rocksdb")
    pytest.importorskip("safetensors")
    monkeypatch.chdir(tmp_path)
    assert len(PAGE.blocks) == 6
    names = PAGE.run(only=slice(3))
    assert names["found"].step == 700
    assert names["found"].extra == {"epoch": 3, "global_step": 700}
    assert (names["table"].rows, names["user"].rows) == (3, 100)
    assert checkpoint.open("memory://moved").names() == ["model/over.weight"]
    assert checkpoint.open("memory://moved").tables["user"].rows == 100
    # The script, with the part of TensorFlow that it calls.
    train = SimpleNamespace(load_checkpoint=Reader)
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(train=train))
    monkeypatch.setattr(sys, "argv", ["tf_to_npz.py", "model.ckpt-7", "model.npz"])
    PAGE.run(only=slice(3, 4))
    with np.load("model.npz") as found:
        assert found["global_step"].shape == ()
        assert found["dense/kernel"].tolist() == VARIABLES["dense/kernel"].tolist()
        assert found["user-keys"].tolist() == KEYS.tolist()
        assert not any("GRAPH" in name for name in found.files)
    PAGE.run(names, only=slice(4, 5))
    assert np.array_equal(names["user"].core.lookup(KEYS, insert=False), ROWS)
    checkpoint.import_("model.npz", "memory://tensorflow")
    assert checkpoint.open("memory://tensorflow").tensor("model/global_step").item() == 7
    PAGE.run(names, only=slice(5, 6))
    assert checkpoint.open("memory://pretrained").names() == ["model/weight", "model/bias"]


def test_links_lead_somewhere() -> None:
    PAGE.check_links()
