"""Tests of saving and loading: values return bit for bit."""

from __future__ import annotations

import copy
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from models.table_model import ModelCore, ModelTable
from support.programs import assert_little_memory
from support.store_servers import DURABLE, KINDS
from support.stored_keys import data_generations, data_keys
from support.tensor_bits import DTYPES, filled, raw, usable
from windeck import checkpoint
from windeck.checkpoint.stores import Store, open_store

Fresh = Callable[[str], str]


@pytest.mark.parametrize("kind", KINDS)
def test_everything_of_a_step_comes_back(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    torch.manual_seed(1)
    model, other = (torch.nn.Sequential(torch.nn.Linear(33, 41), torch.nn.BatchNorm1d(41))
                    for _ in range(2))  # fmt: skip
    adam = torch.optim.Adam(model.parameters(), lr=0.25, betas=(0.8, 0.99))
    model(torch.randn(5, 33)).square().sum().backward()
    adam.step()
    extra = {"rng": torch.get_rng_state(), 7: (1, 2.5, None, "ü\ud800", float("-inf"), 10**30)}
    number = checkpoint.save(
        url, step=3, model=model, optimizer=adam, loader={"position": 12}, extra=extra,
        chunk_bytes=1000,
    )  # fmt: skip
    new = torch.optim.Adam(other.parameters())
    loader = {"position": 0}
    loaded = checkpoint.load(url, model=other, optimizer=new, loader=loader)
    assert (loaded.generation, loaded.step, loader) == (number, 3, {"position": 12})
    for (name, was), now in zip(
        model.state_dict().items(), other.state_dict().values(), strict=True
    ):
        assert raw(was) == raw(now), name
    was, now = adam.state_dict(), new.state_dict()
    assert was["param_groups"] == now["param_groups"]
    assert type(now["param_groups"][0]["betas"]) is tuple
    for i, state in was["state"].items():
        assert {k: raw(v) for k, v in state.items()} == {
            k: raw(v) for k, v in now["state"][i].items()
        }
    assert raw(loaded.extra.pop("rng")) == raw(extra.pop("rng"))  # type: ignore[arg-type]
    assert loaded.extra == extra


@pytest.mark.parametrize("dtype", [d for d in DTYPES if usable(d)], ids=str)
def test_every_dtype_bit_for_bit(dtype: torch.dtype, memory: Store) -> None:
    shapes = [(), (0,), (3, 0, 2), (1,), (5, 7), (2, 3, 4, 5)]
    model = {f"w{i}": filled(shape, dtype, i) for i, shape in enumerate(shapes)}
    checkpoint.save(memory, step=0, model=model, chunk_bytes=16)
    targets = {f"w{i}": filled(shape, dtype, 9) for i, shape in enumerate(shapes)}
    checkpoint.load(memory, model=targets)
    assert {k: raw(v) for k, v in targets.items()} == {k: raw(v) for k, v in model.items()}
    with checkpoint.open(memory) as found:
        for name, value in model.items():
            assert raw(found.tensor(f"model/{name}")) == raw(value)
            assert found.info(f"model/{name}").dtype == dtype


def test_the_dtypes_that_matter_are_among_them() -> None:
    names = "float32 float64 float16 bfloat16 float8_e4m3fn float8_e5m2 bool complex64 complex128"
    names += " int8 uint8 int16 int32 int64 uint16 uint32 uint64"
    assert all(usable(getattr(torch, name)) for name in names.split())


class Special(torch.Tensor):
    """A subclass whose data may have any meaning."""


def layouts() -> dict[str, torch.Tensor]:
    base = filled((6, 8, 10), torch.float32)
    return {
        "transposed": base.transpose(0, 2),
        "stepped": base[::2, 1::3, ::4],
        "expanded": base[:1].expand(5, 8, 10),
        "channels": filled((2, 3, 4, 5), torch.float32).to(memory_format=torch.channels_last),
        "conjugate": torch.arange(6).view(2, 3).to(torch.complex64).mul(1 + 2j).conj().t(),
        "negative": torch.ones(9, dtype=torch.complex64).mul(3j).conj().imag,
        "conjugate row": filled((6,), torch.complex64).conj(),
        "negative row": torch._neg_view(filled((9,), torch.float32)),
        "scalar": base[1, 2, 3],
        "lonely": base.as_strided((1,), (3,), 5),
    }


@pytest.mark.parametrize("chunk_bytes", [16, 100, 1 << 20])
def test_strides_do_not_matter_on_either_side(memory: Store, chunk_bytes: int) -> None:
    model = layouts()
    checkpoint.save(memory, step=0, model=model, chunk_bytes=chunk_bytes)
    plain = {name: torch.zeros(v.shape, dtype=v.dtype) for name, v in model.items()}
    checkpoint.load(memory, model=plain)
    assert {k: raw(v) for k, v in plain.items()} == {k: raw(v) for k, v in model.items()}
    strided = {
        name: torch.zeros(v.shape[::-1], dtype=v.dtype).permute(tuple(range(v.ndim))[::-1])
        for name, v in model.items()
    }
    checkpoint.load(memory, model=strided)
    assert {k: raw(v) for k, v in strided.items()} == {k: raw(v) for k, v in model.items()}
    lazy = {name: torch._neg_view(torch.zeros_like(v)) for name, v in plain.items()}
    lazy |= {k: torch.zeros_like(v).conj() for k, v in plain.items() if v.is_complex()}
    checkpoint.load(memory, model=lazy)
    assert {k: raw(v) for k, v in lazy.items()} == {k: raw(v) for k, v in model.items()}


@pytest.mark.parametrize("kind", ["memory", "rocksdb"])
@pytest.mark.parametrize("background", [False, True])
def test_storages_can_be_resized_afterwards(kind: str, background: Any, fresh: Fresh) -> None:
    """FSDP frees parameters by resizing their storages to 0 bytes."""
    weights = {"w": torch.arange(100_000.0), "v": torch.ones(4, 5).t()}
    with open_store(fresh(kind)) as store:
        checkpoint.save(store, step=1, model=weights, background=background)
        checkpoint.wait()
        targets = {name: torch.zeros(tensor.shape) for name, tensor in weights.items()}
        checkpoint.load(store, model=targets)
    assert all(torch.equal(targets[name], weights[name]) for name in weights)
    if np.lib.NumpyVersion(np.__version__) >= "2.1.0":
        for tensor in (*weights.values(), *targets.values()):
            tensor.untyped_storage().resize_(0)


def test_the_same_memory_is_stored_once(memory: Store) -> None:
    weight = torch.nn.Parameter(torch.arange(100.0))
    model = {"embed": weight, "head": weight, "part": weight[:50], "empty": torch.empty(0)}
    checkpoint.save(memory, step=0, model=model)
    assert len(data_keys(memory, "t")) == 2
    with checkpoint.open(memory) as found:
        assert found.names() == ["model/embed", "model/head", "model/part", "model/empty"]
        assert torch.equal(found.slice("model/head", slice(3, 5)), torch.tensor([3.0, 4.0]))
    targets = {k: torch.zeros(v.shape) for k, v in model.items()}  # not tied
    checkpoint.load(memory, model=targets)
    assert all(torch.equal(targets[k], v) for k, v in model.items())


@pytest.mark.parametrize("chunk_bytes", [16, 64, 1 << 20])
def test_slices_and_rows_read_what_they_need(memory: Store, chunk_bytes: int) -> None:
    value = torch.arange(6 * 5 * 4).view(6, 5, 4)
    checkpoint.save(memory, step=0, model={"w": value}, chunk_bytes=chunk_bytes)
    places: list[Any] = [(), 0, -1, slice(2, 4), (slice(1, 3), 2), (1, 2, 3), (5, slice(0, 0))]
    places += [(slice(None), slice(None), 1), (slice(-2, None), slice(1, 9), slice(0, 2))]
    places += [slice(4, 2), (1, slice(9, -9)), (slice(7, 9), 0)]  # of none
    places += [..., (..., 1), (2, ...), (1, ..., slice(1, 3)), (1, 2, ..., 3), (1, ..., 2, 3)]
    with checkpoint.open(memory) as found:
        for where in places:
            assert torch.equal(found.slice("model/w", where), value[where]), where
        assert torch.equal(found.row("model/w", 3), value[3])
        rest = [k for k in data_keys(memory, "t") if int(k[-8:], 16) * chunk_bytes >= 5 * 4 * 8]
        memory.delete_many(rest)
        assert torch.equal(found.row("model/w", 0), value[0])
        with pytest.raises(
            IndexError, match=r"model/w has no index 6 in dimension 0, expected -6 to 5"
        ):
            found.row("model/w", 6)
        with pytest.raises(IndexError, match="got an index of 4 dimensions"):
            found.slice("model/w", (0, 0, 0, 0))
        with pytest.raises(ValueError, match="has step 2, expected 1"):
            found.slice("model/w", slice(0, 4, 2))
        for odd in (1.0, None, True, [0], (..., ...), "0"):
            words = r"an index of model/w is of type \w+, expected integers, slices and one \.\.\."
            with pytest.raises(TypeError, match=words):
                found.slice("model/w", odd)
        with pytest.raises(KeyError, match=r"no tensor 'model/v' in .*>: did you mean mo"):
            found.tensor("model/v")
        with pytest.raises(KeyError, match=r"no tensor 'x' in .*>: expected one of names\(\)"):
            found.row("x", 0)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("extra/near", r"it is not a tensor, expected tree\('extra'\)"),
        ("extra/a/0", r"it is not a tensor, expected tree\('extra'\)"),
        ("extra/a", r"it is not a tensor, expected tree\('extra'\)"),
        ("model", r"it is not a tensor, expected tree\('model'\)"),
        ("user", r"it is an embedding table, expected table\('user'\)"),
        ("embeddings/user", r"it is an embedding table, expected table\('user'\)"),
        ("extra/nearer", r"did you mean extra/nears\?"),
        ("embeddings/x", r"expected one of names\(\)"),
    ],
)
def test_what_is_no_tensor_is_called_what_it_is(name: str, hint: str, memory: Store) -> None:
    extra = {"near": 0.5, "nears": torch.ones(1), "a": {0: None}}
    tables = {"user": ModelTable(ModelCore(2))}
    checkpoint.save(memory, step=0, model={"w": torch.ones(2)}, embeddings=tables, extra=extra)
    with (
        checkpoint.open(memory) as found,
        pytest.raises(KeyError, match=rf"there is no tensor '{name}' in <.*>: {hint}"),
    ):
        found.tensor(name)


def test_names_shapes_and_dtypes_are_compared_before_anything_is_written(memory: Store) -> None:
    checkpoint.save(memory, step=0, model={"a": torch.ones(2), "b": torch.ones(3)})

    def load(words: str, error: type[Exception], target: Any, **options: Any) -> None:
        was = copy.deepcopy(target)
        with pytest.raises(error, match=words):
            checkpoint.load(memory, model=target, **options)
        assert all(torch.equal(was[name], target[name]) for name in was)

    a, b = torch.zeros(2), torch.zeros(3)
    both = r"only in the target \[model/c\]; only in the checkpoint \[model/b\]"
    load(both, KeyError, {"a": a, "c": b})
    load(
        r"model/b has shape \(1, 3\), expected \(3,\) as saved", ValueError, {"a": a, "b": b[None]}
    )
    words = "model/b has dtype torch.float64, expected torch.float32 as saved; cast=True casts"
    load(words, TypeError, {"a": a, "b": b.double()})
    load(words, TypeError, {"a": a, "b": b.double()}, strict=False)
    with pytest.raises(TypeError, match="model/b is a Special, expected a plain"):
        checkpoint.load(memory, model={"a": a, "b": b.as_subclass(Special)})
    with pytest.raises(TypeError, match="model/b is a meta tensor, expected a dense one with"):
        checkpoint.load(memory, model={"a": a, "b": torch.zeros(3, device="meta")})
    assert a.tolist() == [0, 0]
    target = {"b": b.double(), "c": a}
    checkpoint.load(memory, model=target, strict=False, cast=True)
    assert target["b"].tolist() == [1, 1, 1]
    assert target["c"].tolist() == [0, 0]
    with pytest.raises(KeyError, match="optimizer was not saved in <checkpoint windeck, gener"):
        checkpoint.load(memory, optimizer={})
    with pytest.raises(TypeError, match=r"`model` must be a dict or an object with .*, got list"):
        checkpoint.load(memory, model=[a])


def test_numpy_scalars(memory: Store) -> None:
    """They come back as Python scalars with the same value."""
    values = [np.float16(0.1), np.float32(0.1), np.float64(0.1), np.bool_(True), np.str_("x")]
    values += [np.int8(-5), np.uint64(2**64 - 1), np.float32("inf"), np.int32(7), np.intp(-1)]
    state = {"w": torch.ones(1), "lr": np.float64(0.5), np.int64(3): [np.int16(4)]}
    checkpoint.save(memory, step=1, model=state, extra=values)
    target: dict[Any, Any] = {"w": torch.zeros(1), "lr": 0.0, 3: [0]}
    found = checkpoint.load(memory, model=target).extra
    assert found == values
    assert {type(value) for value in found} == {float, bool, str, int}
    assert (target["lr"], target[3]) == (0.5, [4])
    checkpoint.save(memory, step=2, extra=np.float32(0.1))
    assert checkpoint.load(memory).extra == float(np.float32(0.1))
    checkpoint.save(memory, step=np.int32(3), extra={})
    assert type(checkpoint.load(memory).step) is int
    assert checkpoint.begin(memory, step=np.int64(4), writers=1).step == 4
    with pytest.raises(TypeError, match="`step` must be an int, got bool"):
        checkpoint.save(memory, step=True, extra={})


@pytest.mark.parametrize(
    ("given", "error", "words"),
    [
        ({"model": "w"}, TypeError, "`model` must be a dict or an object with state_dict, got str"),
        ({"optimizer": [{}]}, TypeError, "`optimizer` must be a dict or an object .*, got list"),
        ({"extra": {"x": {1, 2}}}, TypeError, "extra/x is of type set, expected a"),
        ({"extra": {"x": np.complex64(1)}}, TypeError, "extra/x is of type numpy.complex64"),
        ({"extra": {"x": np.longdouble(1)}}, TypeError, "extra/x is of type numpy.longdouble"),
        ({"extra": {"x": np.zeros(1)}}, TypeError, "extra/x is of type numpy.ndarray"),
        ({"extra": {(1, 2): 3}}, TypeError, "extra has a key of type tuple, expected str or"),
        ({"loader": {"x": [b""]}}, TypeError, "loader/x/0 is of type bytes"),
        ({"model": {"a/b": torch.ones(1), "a": {"b": torch.ones(2)}}}, ValueError, "two tensors"),
        ({"model": {"s": torch.ones(2).to_sparse()}}, TypeError, "model/s is a sparse tensor"),
        ({"model": {"m": torch.ones(2, device="meta")}}, TypeError, "model/m is a meta tensor"),
        ({"model": {"s": torch.ones(2).as_subclass(Special)}}, TypeError, "s is a Special, exp"),
        ({"step": -1}, ValueError, "`step` must be at least 0, got -1"),
        ({"step": 1.0}, TypeError, "`step` must be an int, got float"),
        ({"chunk_bytes": 1}, ValueError, "`chunk_bytes` must be at least 16, got 1"),
        ({"namespace": "{x}"}, ValueError, "expected a namespace"),
    ],
)
def test_what_cannot_be_saved(
    memory: Store, given: dict[str, Any], error: type[Exception], words: str
) -> None:
    with pytest.raises(error, match=words):
        checkpoint.save(memory, **{"step": 1, **given})
    assert list(memory.keys()) == []


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested tensors")
def test_tensors_without_memory_of_their_own(memory: Store) -> None:
    given = {
        "nested": torch.nested.nested_tensor([torch.ones(2), torch.ones(3)]),
        "symbolic zero": torch._efficientzerotensor((2,)),
    }
    checkpoint.save(memory, step=1, model={"w": torch.ones(2)})
    for kind, tensor in given.items():
        words = f"model/w is a {kind} tensor, expected a dense one with data"
        with pytest.raises(TypeError, match=words):
            checkpoint.save(memory, step=2, model={"w": tensor})
        with pytest.raises(TypeError, match=words):
            checkpoint.load(memory, model={"w": tensor})


def test_too_deep_is_an_error(memory: Store) -> None:
    ring: list[Any] = []
    ring.append(ring)
    with pytest.raises(ValueError, match=r"nested deeper than 100 levels"):
        checkpoint.save(memory, step=0, extra=ring)


def test_a_loader_that_refuses_does_so_before_targets_are_written(memory: Store) -> None:
    class Refusing:
        def state_dict(self) -> dict[str, Any]:
            return {"position": 1}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            raise ValueError(f"other data than at {state['position']}")

    checkpoint.save(memory, step=0, model={"w": torch.ones(2)}, loader=Refusing())
    target = {"w": torch.zeros(2)}
    with pytest.raises(ValueError, match="other data than at 1"):
        checkpoint.load(memory, model=target, loader=Refusing())
    assert target["w"].tolist() == [0, 0]


def test_small_tensors_are_asked_for_together() -> None:
    asked: list[int] = []

    class Watched:
        def __init__(self, store: Store) -> None:
            self._store = store

        def __getattr__(self, name: str) -> Any:
            return getattr(self._store, name)

        def get_many(self, names: list[bytes]) -> list[bytes | None]:
            asked.append(len(names))
            return self._store.get_many(names)

    with open_store("memory://") as store:
        model = {f"{i}": torch.full((i % 3,), i) for i in range(3500)}
        model["large"] = torch.arange(300_001)
        checkpoint.save(store, step=0, model=model)
        targets = {name: torch.zeros_like(value) for name, value in model.items()}
        checkpoint.load(Watched(store), model=targets)  # type: ignore[arg-type]
    assert all(torch.equal(targets[name], value) for name, value in model.items())
    assert asked == [1012, 1012, 309, 1, 1, 1]  # a third has no elements, the last one 2.3 MiB


def test_a_folder_may_be_named_like_an_option(fresh: Fresh) -> None:
    """A read opens such a folder beside its writer, and creates none."""
    url = f"{fresh('rocksdb')}/readonly=1/x"
    with pytest.raises(FileNotFoundError, match="there is no database"):
        checkpoint.load(url)
    with open_store(url) as store:
        checkpoint.save(store, step=1, model={"w": torch.ones(2)})
        assert checkpoint.open(url).tensor("model/w").tolist() == [1, 1]


@pytest.mark.parametrize("kind", KINDS)
def test_generations_are_kept_read_and_collected(kind: str, fresh: Fresh) -> None:
    url = fresh(kind)
    with open_store(url) as store:
        with pytest.raises(FileNotFoundError, match=r"no checkpoint at .*: expected the key"):
            checkpoint.load(store, model={})
        assert checkpoint.log(store) == []
        assert checkpoint.gc(store, keep=1) == []
        for step in range(5):
            checkpoint.save(store, step=step, model={"w": torch.full((9,), step)}, chunk_bytes=16)
        checkpoint.save(store, step=1, extra=1, namespace="other")
        assert [c.step for c in checkpoint.log(store)] == [4, 3, 2, 1, 0]
        target = {"w": torch.zeros(9, dtype=torch.int64)}
        for number in range(5, 0, -1):
            checkpoint.load(store, model=target, generation=number)
            assert target["w"].tolist() == [number - 1] * 9
        # Leftovers of a killed save: those below HEAD go, others may be of a running save.
        store.put_many([(b"~windeck~%016x/t/00000000/00000000/00000000" % 9, b"going on")])
        store.delete_many([b"windeck/m/%016x" % 2])
        assert checkpoint.gc(store, keep=2) == [1, 2, 3]
        assert [c.step for c in checkpoint.log(store)] == [4, 3]
        left = data_generations(store)
        assert left == {4, 5, 9}
        with pytest.raises(FileNotFoundError, match="no generation 1 in windeck, expected one of"):
            checkpoint.load(store, model=target, generation=1)
        assert checkpoint.open(store, namespace="other").tree("extra") == 1
        with pytest.raises(ValueError, match="`keep` must be an integer of at least 1, got 0"):
            checkpoint.gc(store, keep=0)


class Interrupted:
    """A store that calls a function before HEAD is first set to a commit."""

    def __init__(self, store: Store, action: Callable[[], Any]) -> None:
        self._store, self._action = store, action

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    def compare_and_set(self, key: bytes, expected: bytes | None, value: bytes) -> bool:
        if key.endswith(b"/HEAD") and expected is not None:
            action, self._action = self._action, lambda: None
            action()
        return self._store.compare_and_set(key, expected, value)


@pytest.mark.parametrize("kind", KINDS)
def test_of_two_writers_at_once_one_wins(kind: str, fresh: Fresh) -> None:
    with open_store(fresh(kind)) as store:
        ones, twos = {"w": torch.ones(50)}, {"w": torch.full((50,), 2.0)}
        for first in (True, False):
            other = Interrupted(store, lambda: checkpoint.save(store, step=8, model=ones))
            words = r"step 9 was not committed to windeck, generation \d+ of step 8 was meanwhile"
            with pytest.raises(RuntimeError, match=words):
                checkpoint.save(other, step=9, model=twos)
            target = {"w": torch.zeros(50)}
            assert checkpoint.load(store, model=target).step == 8
            assert torch.equal(target["w"], ones["w"])
            assert len(checkpoint.log(store)) == (1 if first else 2)
            assert len(data_keys(store, "t")) == len(checkpoint.log(store))
        # A HEAD that only forgot old generations is no conflict.
        other = Interrupted(store, lambda: checkpoint.gc(store, keep=1))
        checkpoint.save(other, step=10, model=twos)
        assert [c.step for c in checkpoint.log(store)] == [10, 8]


MEMORY = """
import resource, sys, torch
from windeck import checkpoint
peak = lambda: resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
with checkpoint.stores.open_store(sys.argv[1]) as store:
    checkpoint.save(store, step=0, model={"w": torch.ones(3_000_000)}, namespace="warm")
    model = {"a": torch.ones(4000, 5000), "b": torch.ones(5000, 4000).t()}
    before = peak()
    checkpoint.save(store, step=1, model=model)
    saved = peak() - before
    checkpoint.load(store, model=model)
    print(saved, peak() - before - saved)
"""


@pytest.mark.parametrize("kind", DURABLE)
def test_memory_beyond_the_model_is_bounded(kind: str, fresh: Fresh) -> None:
    # 160 MB of model, so a copy of half of it would show.
    assert_little_memory(MEMORY, fresh(kind))


LEFT_OPEN = """
import sys
import torch
from windeck import checkpoint

checkpoint.save(sys.argv[1], step=1, model={"w": torch.ones(300_000)})
saved = checkpoint.open(sys.argv[1])
print(float(saved.tensor("model/w").sum()))
"""


@pytest.mark.usefixtures("finalized")
@pytest.mark.parametrize("kind", KINDS)
def test_a_program_may_end_with_an_open_checkpoint(kind: str, fresh: Fresh) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LEFT_OPEN, fresh(kind)], capture_output=True, text=True, check=True
    )
    assert (done.stdout, done.stderr) == ("300000.0\n", "")


def test_torch_is_imported_on_first_use() -> None:
    code = "import sys, windeck.checkpoint as c; assert 'torch' not in sys.modules; c.save"
    code += "; assert 'torch' in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path.cwd())
    with pytest.raises(AttributeError, match="has no attribute 'sav'"):
        checkpoint.sav  # noqa: B018
