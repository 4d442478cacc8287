"""Mapped streams: functions of batches and samples, with the same random numbers at any W and B."""

from __future__ import annotations

import functools
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import windeck as wd
from support.host_gpu import host_gpu
from support.row_randoms import row_random
from windeck import Loader, Mixture, Stream
from windeck._core import hash_words
from windeck.loader import MappedStream


class Rows:
    """Row r has the number r and two values."""

    def __init__(self, count: int = 50) -> None:
        self.count = count
        self.fingerprint = {"rows": count}

    def __len__(self) -> int:
        return self.count

    def gather(self, indices: Any, out: Any = None) -> dict[str, Any]:
        return {"number": indices.copy(), "x": np.stack([indices, indices + 0.5], 1)}


def masked(batch: dict[str, Any], random: Any, share: float = 0.5) -> dict[str, Any]:
    """Set some values to -1, and add noise to others."""
    hidden = random.uniform(2) < share
    return {**batch, "x": np.where(hidden, -1, batch["x"] + random.normal(2)), "hidden": hidden}


def shortened(sample: dict[str, Any], generator: Any) -> Any:
    """Repeat the number of a row a random number of times."""
    return np.full(generator.integers(0, 5), sample["number"])


def jagged(samples: list[Any]) -> dict[str, Any]:
    """Put samples of different lengths end to end."""
    offsets = np.cumsum([0, *map(len, samples)])
    return {"values": np.concatenate([np.empty(0, np.int64), *samples]), "offsets": offsets}


def loader(size: int, rank: int = 0, ranks: int = 1, collate: bool = False) -> wd.Loader:
    stream = wd.Stream(Rows(), seed=4)
    if collate:
        mapped = stream.map(shortened, seed=9, collate=jagged)
    else:
        mapped = stream.map(masked, seed=9)
    return wd.Loader(mapped, batch_size=size, rank=rank, world_size=ranks)


def rows_of(batch: dict[str, torch.Tensor]) -> list[Any]:
    """Return the rows of a batch as Python values."""
    if "offsets" in batch:
        pairs = zip(batch["offsets"].tolist(), batch["offsets"].tolist()[1:], strict=False)
        return [batch["values"][start:stop].tolist() for start, stop in pairs]
    return list(zip(*(batch[key].tolist() for key in ("number", "x", "hidden")), strict=True))


@pytest.mark.parametrize("collate", [False, True])
@pytest.mark.parametrize(("size", "ranks"), [(1, 1), (7, 1), (3, 2), (4, 5), (16, 3)])
def test_rows_are_the_same_at_any_batch_and_world_size(
    size: int, ranks: int, collate: bool
) -> None:
    one = loader(50, collate=collate)
    wanted = [rows_of(batch) for _ in range(2) for batch in one]
    assert wanted[0] != wanted[1]
    # The first steps of one rank; then another batch and world size.
    first = loader(6, collate=collate)
    found = [row for _, batch in zip(range(3), first, strict=False) for row in rows_of(batch)]
    loaders = [loader(size, rank, ranks, collate) for rank in range(ranks)]
    for other in loaders:
        other.load_state_dict(first.state_dict())
    while loaders[0].epoch < 2:
        for batches in zip(*map(iter, loaders), strict=True):
            found += [row for batch in batches for row in rows_of(batch)]
    assert found == wanted[0] + wanted[1]


PROGRAM = """
import json, os, signal, sys
from pathlib import Path
sys.path[:0] = json.loads(sys.argv[1])
from test_transforms import loader, rows_of
state, log, size, kill = Path(sys.argv[2]), Path(sys.argv[3]), int(sys.argv[4]), int(sys.argv[5])
one = loader(size)
if state.exists():
    one.load_state_dict(json.loads(state.read_text()))
while one.epoch < 2:
    for batch in one:
        with log.open("a") as file:
            file.write("".join(json.dumps(row) + "\\n" for row in rows_of(batch)))
        state.write_text(json.dumps(one.state_dict()))
        if one.step == kill:
            os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("forked")
def test_a_killed_process_continues_with_the_same_numbers(tmp_path: Path) -> None:
    import json

    paths = json.dumps([str(Path(__file__).parent), str(Path(__file__).parents[1])])
    state, log = str(tmp_path / "state"), tmp_path / "log"
    for size, kill in ((8, 5), (5, -1)):
        command = [sys.executable, "-c", PROGRAM, paths, state, str(log), str(size), str(kill)]
        done = subprocess.run(command, check=False)
        assert done.returncode == (0 if kill < 0 else -9)
    whole = loader(50)
    wanted = [row for _ in range(2) for batch in whole for row in rows_of(batch)]
    found = [json.loads(line) for line in log.read_text().splitlines()]
    assert found == json.loads(json.dumps(wanted))


def doubled(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return {"twice": 2 * batch["number"]}


def test_columns_pass_by_and_functions_compose() -> None:
    stream = wd.Stream(Rows(), order=wd.Sequential)
    batch = stream.map(doubled, columns="number").gather([1, 2])
    assert [*batch] == ["number", "x", "twice"]
    assert batch["twice"].tolist() == [2, 4]
    assert [*stream.map(doubled).gather([1])] == ["twice"]
    both = stream.map(doubled, columns=["number"]).map(masked, seed=1)
    assert [*both.gather([1])] == ["number", "x", "twice", "hidden"]
    with pytest.raises(KeyError, match="no key 'y' for the function, only"):
        stream.map(doubled, columns="y").gather([1])


def test_a_mixture_is_mapped_as_a_whole() -> None:
    parts = {"one": (Rows(20), 1), "other": (Rows(30), 2)}
    mixture = wd.Mixture(parts, seed=1).map(masked, seed=2)
    batch = wd.Loader(mixture, batch_size=9).peek()
    alone = mixture.gather([4])
    assert batch["x"][4].tolist() == alone["x"][0].tolist()
    mapped = {name: (wd.Stream(rows).map(masked), w) for name, (rows, w) in parts.items()}
    with pytest.raises(ValueError, match="batches of all parts must be alike"):
        wd.Mixture(mapped)


def test_pinned_batches_are_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = wd.Stream(Rows(), seed=1).map(masked, seed=2)
    host_gpu(monkeypatch)
    shown = next(iter(wd.Loader(stream, batch_size=5, pin_memory=True, prefetch=0)))
    plain = stream.gather(np.arange(5))
    assert [*shown] == [*plain]
    assert all(np.array_equal(shown[key], plain[key]) for key in plain)


def test_whole_arrays_and_torch_datasets() -> None:
    data = {"seen": [[1, 2], [3], []], "age": [4, 5, 6]}
    import pyarrow as pa

    stream = wd.Stream(wd.JaggedTable.from_arrow(pa.table(data)), order=wd.Sequential)
    batch = stream.map(older, columns="age").gather([0, 2])
    assert batch["seen"].tolist() == [1, 2]
    assert batch["age"].tolist() == [5, 7]
    dataset = wd.IterDataset(wd.Stream(Rows(), seed=4).map(masked, seed=9), batch_size=10)
    found = [row for batch in dataset for row in rows_of(batch)]
    assert found == rows_of(loader(50).peek())


def older(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return {"age": batch["age"] + 1}


def test_queries_of_samples_are_those_of_the_stream() -> None:
    plain, mapped = wd.Loader(wd.Stream(Rows(), seed=4), batch_size=5), loader(5)
    for one in (plain, mapped):
        next(iter(one))
    assert np.array_equal(mapped.samples(3), plain.samples(3))
    assert mapped.step_of(17) == plain.step_of(17)
    assert len(mapped) == len(plain)
    with pytest.raises(AttributeError, match="'MappedStream' object has no attribute 'nothing'"):
        mapped.stream.nothing  # type: ignore[attr-defined] # noqa: B018


def test_states_depend_on_function_and_seed() -> None:
    stream = wd.Stream(Rows(), seed=4)
    state = wd.Loader(stream.map(masked, seed=1), batch_size=5).state_dict()
    same = pickle.loads(pickle.dumps(stream.map(masked, seed=1)))
    wd.Loader(same, batch_size=6).load_state_dict(state)
    assert np.array_equal(same.gather([3])["x"], stream.map(masked, seed=1).gather([3])["x"])
    more = functools.partial(masked, share=0.25)
    for other in (stream.map(masked, seed=2), stream.map(doubled, seed=1), stream,
                  stream.map(more, seed=1)):  # fmt: skip
        with pytest.raises(ValueError, match=r"fingerprint has (no )?map"):
            wd.Loader(other, batch_size=5).load_state_dict(state)


def test_wrong_arguments_are_named() -> None:
    stream = wd.Stream(Rows())
    with pytest.raises(ValueError, match="the function is a lambda"):
        stream.map(lambda batch, random: batch)
    with pytest.raises(TypeError, match="`function` must be callable, got int"):
        stream.map(3)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="`stream` must be a stream, got Rows"):
        MappedStream(Rows(), masked)  # type: ignore[arg-type]
    with pytest.raises(TypeError, match=r"test_transforms.returned_list returned a list"):
        stream.map(returned_list).gather([0])


def returned_list(batch: dict[str, Any], random: Any) -> Any:
    return [batch]


def packed_sequences(tmp_path: Path) -> wd.PackedSequences:
    import pyarrow as pa
    from pyarrow import feather

    (tmp_path / "dataset=c4").mkdir()
    lists = [list(range(1 + 7 * n % 40)) for n in range(60)]
    table = pa.table({"tokens": pa.array(lists, pa.list_(pa.uint16()))})
    path = tmp_path / "dataset=c4/x.part0.arrow"
    feather.write_feather(table, path, compression="uncompressed")
    return wd.PackedSequences(wd.Documents(tmp_path), sequence_length=16, bos=250)


def hidden_tokens(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    """Replace some input tokens, and leave the targets."""
    hidden = random.uniform(16) < 0.3
    return {**batch, "inputs": np.where(hidden, 251, batch["inputs"]), "hidden": hidden}


def test_packed_sequences_are_masked_alike_at_any_batch_and_world_size(tmp_path: Path) -> None:
    packed = packed_sequences(tmp_path)

    def served(size: int, ranks: int) -> list[Any]:
        stream = wd.Stream(packed, seed=3).map(hidden_tokens, seed=5)
        loaders = [
            wd.Loader(stream, batch_size=size, rank=rank, world_size=ranks) for rank in range(ranks)
        ]
        found: list[Any] = []
        while loaders[0].epoch < 2:
            for batches in zip(*map(iter, loaders), strict=True):
                for batch in batches:
                    assert batch["cu_seqlens"][-1] == batch["inputs"].numel()
                    found += batch["inputs"].tolist()
        return found

    assert served(7, 1) == served(4, 3)
    assert len(served(5, 2)) == 2 * len(packed)


def first_noise(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return {**batch, "first": random.uniform()}


def second_noise(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return {**batch, "second": random.uniform()}


class Numbers:
    def __init__(self, base: int = 0) -> None:
        self.base = base

    @property
    def fingerprint(self) -> dict[str, Any]:
        return {"numbers": 20, "base": self.base}

    def __len__(self) -> int:
        return 20

    def gather(self, indices: Any, out: Any = None) -> dict[str, Any]:
        return {"x": self.base + np.asarray(indices)}


def test_functions_one_after_the_other_are_all_in_the_fingerprint() -> None:
    both = Stream(Numbers()).map(first_noise, seed=5).map(second_noise)
    alone = Stream(Numbers()).map(second_noise)
    assert both.fingerprint != alone.fingerprint
    assert both.fingerprint["map2"] == alone.fingerprint["map"]
    state = Loader(both, batch_size=4).state_dict()
    with pytest.raises(ValueError, match="its fingerprint has map = "):
        Loader(alone, batch_size=4).load_state_dict(state)


def test_functions_one_after_the_other_get_other_numbers() -> None:
    batch = Stream(Numbers()).map(first_noise).map(second_noise).gather(np.arange(20))
    assert not set(batch["first"]) & set(batch["second"])


def test_an_unpickled_stream_is_not_taken_for_another_part() -> None:
    one = Stream(Numbers(100)).map(first_noise)
    other = pickle.loads(pickle.dumps(Stream(Numbers(500)).map(first_noise)))
    other_key, one_key = (set(stream.gather_rows([0])) for stream in (other, one))
    assert not other_key & one_key


def test_a_retired_part_of_a_mapped_mixture() -> None:
    schedule = [(10, {"a": 0, "b": 1})]
    full = Mixture({"a": (Numbers(), 1), "b": (Numbers(50), 1)}, schedule=schedule)
    loader = Loader(full.map(first_noise), batch_size=8)
    batches = iter(loader)
    next(batches), next(batches)
    left = Mixture({"a": (None, 1), "b": (Numbers(50), 1)}, schedule=schedule)
    resumed = Loader(left.map(first_noise), batch_size=8)
    resumed.load_state_dict(loader.state_dict())
    assert resumed.position == 16


class Unnamed:
    def __call__(self, batch: dict[str, Any], random: Any) -> dict[str, Any]:
        return batch

    def method(self, batch: dict[str, Any], random: Any) -> dict[str, Any]:
        return batch


def closure(factor: int) -> Any:
    def times(batch: dict[str, Any], random: Any) -> dict[str, Any]:
        return {"x": batch["x"] * factor}

    return times


@pytest.mark.parametrize(
    ("function", "kind"),
    [
        (closure(2), "a closure"),
        (Unnamed(), "an object without a repr"),
        (Unnamed().method, "a method of an object"),
    ],
)
def test_functions_that_a_state_cannot_tell_apart_are_refused(function: Any, kind: str) -> None:
    with pytest.raises(ValueError, match=kind):
        Stream(Numbers()).map(function)


def test_columns_are_in_the_fingerprint() -> None:
    stream = Stream(Numbers())
    some = stream.map(first_noise, columns="x").fingerprint
    assert some != stream.map(first_noise).fingerprint


def counted(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    """Add the number of ids of each row, and one id to each list."""
    lengths = np.diff(batch["seen_offsets"])
    ends = batch["seen_offsets"][1:]
    return {
        **batch,
        "seen": np.insert(batch["seen"], ends, 100),
        "seen_weights": np.insert(batch["seen_weights"], ends, 0.0),
        "seen_offsets": batch["seen_offsets"] + np.arange(len(ends) + 1),
        "count": lengths,
    }


def some_ids(sample: dict[str, Any], generator: Any) -> dict[str, Any]:
    """Keep a random part of the ids of a row."""
    kept = generator.random(len(sample["seen"])) < 0.6
    return {key: sample[key][kept] if key.startswith("seen") else sample[key] for key in sample}


def padded(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """Pad lists of ids and weights to 8, and stack numbers."""
    made: dict[str, Any] = {"age": np.array([one["age"] for one in samples], np.int64)}
    if samples and "count" in samples[0]:
        made["count"] = np.array([one["count"] for one in samples])
    for key in ("seen", "seen_weights"):
        made[key] = np.full((len(samples), 8), -1.0)
        for row, one in zip(made[key], samples, strict=True):
            row[: len(one[key])] = one[key]
    return made


def lists_of_ids(rows: int = 23) -> wd.JaggedTable:
    import pyarrow as pa

    seen = [[10 * row + k for k in range(row * 5 % 7)] for row in range(rows)]
    weights = [[k / 8 for k in row] for row in seen]
    data = {"seen": seen, "w": weights, "age": list(range(rows))}
    return wd.JaggedTable.from_arrow(pa.table(data), weights={"seen": "w"})


@pytest.mark.parametrize("first", [False, True])
def test_samples_have_the_lists_of_their_rows(first: bool) -> None:
    table = lists_of_ids()
    plain = wd.Stream(table, seed=2)
    before = plain.map(counted) if first else plain
    stream = before.map(some_ids, seed=3, collate=padded)
    positions = np.arange(60)
    found = stream.gather(positions)
    random = row_random(hash_words(3, 2) if first else 3, positions)
    for row, sample in enumerate(plain.samples(positions)):
        wanted = table.gather([sample])
        ids, weights = wanted["seen"], wanted["seen_weights"]
        if first:
            ids, weights = np.append(ids, 100), np.append(weights, 0.0)
            assert found["count"][row] == len(ids) - 1
        kept = random.generator(row).random(len(ids)) < 0.6
        assert found["age"][row] == wanted["age"][0]
        size = kept.sum()
        assert found["seen"][row].tolist() == [*ids[kept], *[-1.0] * (8 - size)]
        assert found["seen_weights"][row].tolist() == [*weights[kept], *[-1.0] * (8 - size)]
    # A batch of any rows, one row and none are alike.
    one = stream.gather([7])
    assert all(np.array_equal(one[key][0], found[key][7]) for key in found)
    assert stream.gather([])["seen"].shape == (0, 8)


def test_columns_of_samples_may_be_lists() -> None:
    stream = wd.Stream(lists_of_ids(), order=wd.Sequential)
    mapped = stream.map(length_of, columns=["seen", "seen_offsets"], collate=lengths)
    batch = mapped.gather([3, 1, 0])
    assert batch["length"].tolist() == [1, 5, 0]
    assert batch["age"].tolist() == [3, 1, 0]


def length_of(sample: dict[str, Any], generator: Any) -> int:
    assert set(sample) == {"seen"}
    return len(sample["seen"])


def lengths(samples: list[int]) -> dict[str, Any]:
    return {"length": np.array(samples, np.int64)}


def numbered(sample: dict[str, Any], generator: Any) -> Any:
    return sample["number"]


def half(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return {"number": batch["number"][::2]}


def test_samples_after_a_function_of_batches() -> None:
    stream = wd.Stream(Rows(), order=wd.Sequential)
    both = stream.map(masked, seed=1).map(numbered, collate=lengths)
    assert both.gather([4, 2])["length"].tolist() == [4, 2]
    message = r"numbered cannot be taken .* 'number' has shape \(1,\), expected a first axis of 2$"
    with pytest.raises(ValueError, match=message):
        stream.map(half).map(numbered, collate=lengths).gather([4, 2])
    with pytest.raises(
        ValueError, match=r"`collate` must be None for .*: those of `stream` are collated already$"
    ):
        both.map(numbered, collate=lengths)


def shortened_lists(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return {**batch, "seen": batch["seen"][1:]}


def test_lists_that_do_not_fit_their_offsets_are_refused() -> None:
    stream = wd.Stream(lists_of_ids(), order=wd.Sequential).map(shortened_lists)
    with pytest.raises(ValueError, match=r"'seen' has shape \(5,\), expected a first axis of 6$"):
        stream.map(length_of, columns="seen", collate=lengths).gather([1, 3])


def test_a_number_beside_a_list_is_not_taken_for_its_weights() -> None:
    import pyarrow as pa

    data = pa.table({"seen": [[7], [8]], "seen_weights": [0.5, 0.25]})
    stream = wd.Stream(wd.JaggedTable.from_arrow(data), order=wd.Sequential)
    batch = stream.map(weight_of, collate=weights).gather([1, 0])
    assert batch["weight"].tolist() == [0.25, 0.5]


def weight_of(sample: dict[str, Any], generator: Any) -> Any:
    return sample["seen_weights"]


def weights(samples: list[float]) -> dict[str, Any]:
    return {"weight": np.array(samples, np.float64)}


def in_the_middle(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    """Cut each row in three pieces at random, and put the middle one last."""
    tokens = np.concatenate([batch["inputs"][:, :1], batch["targets"]], 1)
    cuts = np.sort(random.integers(0, tokens.shape[1] + 1, 2))
    for row, (start, stop) in zip(tokens, cuts, strict=True):
        row[:] = np.concatenate([row[:start], row[stop:], row[start:stop]])
    return {**batch, "inputs": tokens[:, :-1], "targets": tokens[:, 1:]}


def test_the_middle_of_packed_sequences_is_put_last_alike_after_a_resume(tmp_path: Path) -> None:
    packed = packed_sequences(tmp_path)
    stream = wd.Stream(packed, seed=3).map(in_the_middle, seed=5)
    alone = iter(wd.Loader(stream, batch_size=8))
    whole = np.concatenate([next(alone)["inputs"] for _ in range(9)])
    plain = wd.Stream(packed, seed=3).gather(np.arange(len(whole)))["inputs"]
    assert 0 < (whole == plain).all(1).sum() < len(whole) / 2
    first = wd.Loader(stream, batch_size=8)
    batches_of_first = iter(first)
    for _ in range(3):
        next(batches_of_first)
    rest = [wd.Loader(stream, batch_size=4, rank=rank, world_size=3) for rank in range(3)]
    for one in rest:
        one.load_state_dict(first.state_dict())
    found = [batch["inputs"] for batches in zip(*rest, strict=True) for batch in batches]
    assert np.array_equal(np.concatenate(found)[:48], whole[24:72])


def shaken(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    """Scale and shift the past of each window."""
    past = batch["past_target"]
    return {"past_target": past * (1 + random.uniform(1, 1)) + random.normal(*past.shape[1:])}


def test_windows_are_augmented_alike_with_any_number_of_workers() -> None:
    table = wd.Table.from_columns({"load": np.arange(60.0)})
    windows = wd.Windows(table, context_length=8, prediction_length=2)
    stream = wd.Stream(windows, seed=7).map(shaken, columns=["past_target"], seed=1)
    alone = wd.Loader(stream, batch_size=6)
    wanted = [batch["past_target"] for _ in range(2) for batch in alone]
    plain = next(iter(wd.Loader(windows, batch_size=6, shuffle=True, seed=7)))
    batch = stream.gather(np.arange(6))
    assert torch.equal(plain["future_target"], torch.from_numpy(batch["future_target"]))
    assert not torch.equal(plain["past_target"], wanted[0])
    for workers in (0, 2):
        dataset = wd.IterDataset(stream, batch_size=6)
        loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=workers)
        found = [batch["past_target"] for _ in range(2) for batch in loader]
        assert torch.equal(torch.cat(found), torch.cat(wanted))
