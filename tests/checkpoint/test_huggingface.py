"""The layout of save_pretrained, against transformers itself, in both directions."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from support.internals import plant
from windeck import checkpoint
from windeck.checkpoint.safetensors import export
from windeck.checkpoint.stores import Store

pytest.importorskip("safetensors")


def small(kind: str, seed: int) -> Any:
    transformers = pytest.importorskip("transformers")
    torch.manual_seed(seed)
    sizes = {"vocab_size": 40, "bos_token_id": 0, "eos_token_id": 1}
    if kind == "gpt2":  # with tied weights
        config = transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, n_positions=16, **sizes)
        return transformers.GPT2LMHeadModel(config)
    options = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2}
    options |= {"num_attention_heads": 2, "num_key_value_heads": 2, "tie_word_embeddings": False}
    config = transformers.LlamaConfig(**sizes, **options)
    return transformers.LlamaForCausalLM(config).to(torch.bfloat16)


def same(a: Any, b: Any) -> bool:
    one, two = a.state_dict(), b.state_dict()
    return one.keys() == two.keys() and all(
        one[name].dtype == two[name].dtype and torch.equal(one[name], two[name]) for name in one
    )


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("shard_bytes", [1500, 1 << 30])
def test_transformers_loads_what_is_exported(
    kind: str, shard_bytes: int, memory: Store, tmp_path: Path
) -> None:
    model = small(kind, 1)
    checkpoint.save(memory, step=5, model=model)
    files = export(memory, tmp_path / "out", layout="huggingface", shard_bytes=shard_bytes)
    model.config.save_pretrained(tmp_path / "out")
    found, told = type(model).from_pretrained(
        tmp_path / "out", output_loading_info=True, dtype=model.dtype
    )
    assert same(found, model)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    names = [file.name for file in files]
    if shard_bytes > 1500:
        assert names == ["model.safetensors"]
        return
    count = len(names) - 1
    assert count > 2
    parts = [f"model-{i:05d}-of-{count:05d}.safetensors" for i in range(1, count + 1)]
    assert names == [*parts, "model.safetensors.index.json"]
    # As many tensors, with the same names, as save_pretrained writes.
    model.save_pretrained(tmp_path / "theirs", max_shard_size=shard_bytes)
    ours, theirs = (
        json.loads((tmp_path / name / "model.safetensors.index.json").read_text())
        for name in ("out", "theirs")
    )
    assert ours["weight_map"].keys() == theirs["weight_map"].keys()
    assert ours["metadata"]["total_size"] == theirs["metadata"]["total_size"]


@pytest.mark.parametrize("kind", ["gpt2", "llama"])
@pytest.mark.parametrize("size", ["4KB", "1GB"])
def test_what_transformers_writes_is_imported(
    kind: str, size: str, memory: Store, tmp_path: Path
) -> None:
    model, other = small(kind, 1), small(kind, 2)
    model.save_pretrained(tmp_path / "out", max_shard_size=size)
    checkpoint.import_(tmp_path / "out", memory, step=3)
    tied = kind == "gpt2"  # the file has one name of two
    assert not same(other, model)
    assert checkpoint.load(memory, model=other, strict=not tied).step == 3
    assert same(other, model)
    # And out again.
    export(memory, tmp_path / "again", layout="huggingface")
    model.config.save_pretrained(tmp_path / "again")
    assert same(type(model).from_pretrained(tmp_path / "again", dtype=model.dtype), model)


def test_a_folder_with_a_model_is_not_changed(memory: Store, tmp_path: Path) -> None:
    checkpoint.save(memory, step=1, model={"a": torch.ones(9), "b": torch.ones(9)})
    folder = tmp_path / "out"
    export(memory, folder, layout="huggingface")
    before = (folder / "model.safetensors").read_bytes()
    for shard_bytes in (40, 1 << 20):
        with pytest.raises(
            FileExistsError, match=r"out has model.safetensors already, expected no"
        ):
            export(memory, folder, layout="huggingface", shard_bytes=shard_bytes)
    assert [file.name for file in folder.iterdir()] == ["model.safetensors"]
    assert (folder / "model.safetensors").read_bytes() == before
    (folder / "model.safetensors").unlink()
    # Parts without an index are what a killed export left.
    (folder / "model-00001-of-00007.safetensors").write_bytes(b"part")
    files = export(memory, folder, layout="huggingface", shard_bytes=40)
    assert sorted(file.name for file in folder.iterdir()) == sorted(file.name for file in files)
    with pytest.raises(FileExistsError, match=r"has model.safetensors.index.json already"):
        export(memory, folder, layout="huggingface")
    with pytest.raises(ValueError, match="`layout` must be 'file' or 'huggingface', got 'hf'"):
        export(memory, folder, layout="hf")


def test_the_index_is_written_last(
    memory: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    checkpoint.save(memory, step=1, model={"a": torch.ones(9), "b": torch.ones(9)})

    def fail(*_: Any) -> None:
        assert len(list((tmp_path / "out").iterdir())) == 2
        raise OSError("no space left for the test")

    plant(monkeypatch, "exporting.write_json", fail)
    with pytest.raises(OSError, match="no space left"):
        export(memory, tmp_path / "out", layout="huggingface", shard_bytes=40)
    assert not list((tmp_path / "out").glob("*.json"))
