"""Options that a call does not have, and options that have no effect."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import torch
from pyarrow import feather
from torch.utils.data import DataLoader

import windeck as wd
from support.frozen_names import MODULES
from windeck._util import options as messages

#: Options of other libraries without an equivalent, by the call and their name.
ABSENT = {
    (call, name): note
    for call, notes in messages.NOTES.items()
    for name, note in notes.items()
    if not any(name in names for (owner, _), names in messages.WORDS.items() if owner == call)
}
DOCS = Path(__file__).parents[2] / "docs"

EXPLAINED = (
    *("Windows", "Loader", "Stream", "Mixture", "OrderSampler", "MapDataset", "IterDataset"),
    *("PackedSequences", "Documents"),
)


def owner_of(call: str) -> Any:
    found: Any = wd
    for name in call.split("."):
        found = getattr(found, name)
    return found


def options_of(call: str) -> list[str]:
    if call == "Stream.map":
        return ["columns", "seed", "collate"]  # passed on to MappedStream
    return list(inspect.signature(owner_of(call)).parameters)


def rows_of_words() -> list[tuple[str, str]]:
    """Return the first and the last cell of every row of the tables in words.md."""
    lines = (DOCS / "words.md").read_text(encoding="utf-8").splitlines()
    cells = [line.strip()[1:-1].split("|") for line in lines if line.startswith("| ")]
    return [(row[0], row[2]) for row in cells if row[0].strip() != "windeck"]


def test_names_of_other_libraries_are_those_of_the_docs() -> None:
    rows = rows_of_words()
    for (_, option), names in messages.WORDS.items():
        of_option = [last for first, last in rows if re.search(rf"\b{option}\b", first)]
        for name in names:
            assert any(re.search(rf"\b{name}\b", last) for last in of_option), (option, name)


def test_names_in_the_docs_are_those_of_messages() -> None:
    known: dict[str, set[str]] = {}
    for (_, option), names in messages.WORDS.items():
        known.setdefault(option, set()).update(names)
    for first, last in rows_of_words():
        options = [option for option in re.findall(r"`(\w+)`", first) if option in known]
        named = {name for option in options for name in known[option]}
        for name in re.findall(r"`([a-z]\w*)(?:=[^`]*)?`", last) if options else ():
            assert name in named or name in options, (first, name)


def test_every_option_of_the_words_exists() -> None:
    for call, option in messages.WORDS:
        assert option in options_of(call), (call, option)
    for call, name in [(call, name) for call, names in messages.NOTES.items() for name in names]:
        assert name not in options_of(call), (call, name)


def test_options_without_an_equivalent_are_in_the_docs() -> None:
    text = (DOCS / "words.md").read_text(encoding="utf-8")
    table = text.partition("### Options without an equivalent")[2].partition("\n## ")[0]
    rows = [row.strip("|").split("|") for row in table.splitlines() if row.startswith("| `")]
    documented = {
        (call, name)
        for calls, names, _ in rows
        for call in re.findall(r"`([\w.]+)`", calls)
        for name in re.findall(r"`(\w+)`", names)
    }
    assert documented == ABSENT.keys()


def minimal(call: str) -> tuple[Any, ...]:
    """Return a first argument; keywords are looked at before it."""
    return () if call == "Mixture" else (None,)


@pytest.mark.parametrize("call", EXPLAINED)
def test_foreign_options_are_explained(call: str) -> None:
    own = options_of(call)
    for (owner, option), names in messages.WORDS.items():
        for name in names:
            if name in own or (call, name) in ABSENT:
                continue
            with pytest.raises(TypeError) as found:
                owner_of(call)(*minimal(call), **{name: 1})
            message = str(found.value)
            assert message.startswith(f"{call} has no option `{name}`, which is `"), message
            named = [o for (who, o), ns in messages.WORDS.items() if name in ns and who == call]
            wanted = named or [o for (_, o), ns in messages.WORDS.items() if name in ns]
            assert any(f"which is `{o}`" in message for o in wanted), message
            if option == "seed" and option in own:  # It means the same in all calls.
                assert "which is `seed` here" in message, message
                continue
            assert (f"` of {owner} here" in message) or owner == call or len(wanted) > 1 or named


def functions_with_options() -> dict[str, Callable[..., Any]]:
    """Return the public functions and methods that have keyword-only parameters."""
    calls: dict[str, Callable[..., Any]] = {}
    for module in map(import_module, MODULES):
        prefix = module.__name__.partition(".")[2]
        for name in module.__all__:
            value = getattr(module, name)
            if inspect.isfunction(value):
                calls[f"{prefix}.{name}".lstrip(".")] = value
            elif inspect.isclass(value) and not getattr(value, "_is_protocol", False):
                methods = [method for method in vars(value) if not method.startswith("_")]
                calls |= {f"{name}.{method}": getattr(value, method) for method in methods}
                if "__init__" in vars(value):
                    calls[name] = value
    return {call: one for call, one in calls.items() if callable(one) and has_options(one)}


def has_options(function: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(function).parameters.values()
    except ValueError:  # of the extension
        return False
    kinds = {one.kind for one in parameters}
    return inspect.Parameter.KEYWORD_ONLY in kinds and inspect.Parameter.VAR_KEYWORD not in kinds


CALLS = functions_with_options()
#: Called for every batch, or by other functions of the package alone.
UNEXPLAINED = {"gather", "gather_rows", "forward", "step"}
del CALLS["Permutation.plot"]  # of a class of the extension, which explains nothing


@pytest.mark.parametrize("call", [call for call in CALLS if call.split(".")[-1] not in UNEXPLAINED])
def test_every_public_function_explains_unknown_options(call: str) -> None:
    own = list(inspect.signature(CALLS[call]).parameters)
    is_method = own[0] == "self"
    with pytest.raises(TypeError, match=rf"^{call} has no option `zzz`; it has ") as found:
        CALLS[call](*[None] * is_method, zzz=1)
    assert found.value.__cause__ is None
    with pytest.raises(TypeError, match=rf"^{call} has no option `{own[-1]}_`; did you mean .*"):
        CALLS[call](*[None] * is_method, **{f"{own[-1]}_": 1})


@pytest.mark.parametrize(("call", "name"), ABSENT)
def test_options_without_an_equivalent_say_what_to_do(call: str, name: str) -> None:
    first = [None] * ("." in call and not call.startswith(("checkpoint", "Table", "Scaler")))
    message = re.escape(f"{call} has no option `{name}`: {ABSENT[call, name]}")
    with pytest.raises(TypeError, match=f"^{message}$"):
        owner_of(call)(*first, **{name: 1})


@pytest.mark.parametrize(
    ("call", "name", "message"),
    [
        (wd.Table.from_arrow, "unique_id", "which is `id_columns` here$"),
        (wd.Table.from_columns, "sep", "which is `delimiter` of Table.read here"),
        (wd.Windows.latest, "horizon", "which is `prediction_length` of Windows here"),
        (wd.Windows, "n_splits", "which is `k` of Windows.folds here: windows.folds"),
        (wd.Loader, "epoch", "did you mean 'epochs'"),
        (wd.prepare, "unique_id", "which is `id_columns` here"),
        (wd.Table.from_pandas, "parse_dates", "which is `timestamp_column` here: the name of the"),
        (wd.Table.from_pandas, "time", "which is `timestamp_column` here$"),
        (wd.Documents, "shuffle", "which is an option of Loader"),
    ],
    ids=lambda value: str(getattr(value, "__qualname__", value)),
)
def test_options_of_other_calls_are_named(call: Any, name: str, message: str) -> None:
    first = [None] * (call is wd.Windows.latest)
    with pytest.raises(TypeError, match=f"has no option `{name}`.*{message}"):
        call(*first, **{name: 1})


def test_options_without_their_names_are_explained() -> None:
    wanted = "Windows is called with 3 positional arguments; expected Windows(table, "
    wanted += "context_length=..., prediction_length=...)"
    with pytest.raises(TypeError, match=f"^{re.escape(wanted)}$"):
        wd.Windows(plain(), 10, 2)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"2 .*; expected Loader\(data, batch_size=\.\.\.\)$"):
        wd.Loader(windows(), 32)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"expected Table.read\(path, columns=\.\.\.\)$"):
        wd.Table.read("a.csv", "load")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"expected Windows.latest\(future=\.\.\.\)$"):
        windows().latest(True)  # type: ignore[call-arg]


def test_type_errors_of_known_options_stay_as_they_are() -> None:
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'path'"):
        wd.Table.read(columns="x")  # type: ignore[call-arg]
    with pytest.raises(TypeError, match="`stride` must be an integer, got str 'a'"):
        windows(stride="a")


@pytest.mark.parametrize("call", EXPLAINED)
def test_misspelt_options_name_similar_ones(call: str) -> None:
    for option in options_of(call)[1:]:
        for wrong in (option + "s", option[:-1] + "_", option.upper()):
            if wrong in options_of(call):
                continue
            with pytest.raises(TypeError, match=rf"^{call} has no option `{wrong}`.*{option}"):
                owner_of(call)(*minimal(call), **{wrong: 1})


def test_signatures_are_those_of_the_constructors() -> None:
    for call in EXPLAINED:
        own = list(inspect.signature(owner_of(call).__init__).parameters)[1:]
        assert options_of(call) == own
        assert not {"args", "kwargs", "options"} & set(own)


def test_derived_classes_may_have_other_options() -> None:
    class Mine(wd.Windows):
        def __init__(self, table: wd.Table, *, input_chunk_length: int) -> None:
            super().__init__(table, context_length=input_chunk_length)

    assert len(Mine(plain(), input_chunk_length=5)) == 56
    assert list(inspect.signature(Mine.__init__).parameters)[1:] == ["table", "input_chunk_length"]


# --- objects that are no source ------------------------------------------------------------------


def plain() -> wd.Table:
    return wd.Table.from_columns({"x": np.arange(60.0)})


def windows(**options: Any) -> wd.Windows:
    return wd.Windows(plain(), context_length=4, prediction_length=2, **options)


@pytest.mark.parametrize(
    ("data", "cure"),
    [
        (plain(), r"got Table without gather; make one of it: wd.Windows\(table, context"),
        (np.arange(3.0), r"got ndarray .*Windows\(wd.Table.from_columns"),
        (torch.arange(3), r"got Tensor .*Windows\(wd.Table.from_columns"),
        (type("DataFrame", (), {})(), r"got DataFrame .*Table.from_arrow\(frame\)"),
        ("data.parquet", r"got str .*Windows\(wd.Table.read\(path\), context_length"),
        (Path("data.parquet"), r"got PosixPath .*Windows\(wd.Table.read\(path\), context_length"),
        (wd.MapDataset(windows()), r"got MapDataset .*its attribute `source` is one"),
        (DataLoader(wd.MapDataset(windows())), r"got DataLoader .* is used in its place"),
        (windows().split(), r"got Split .* such as split.train"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_a_loader_of_what_is_no_source_says_how_to_make_one(data: Any, cure: str) -> None:
    with pytest.raises(TypeError, match=cure):
        wd.Loader(data, batch_size=2)


@pytest.mark.parametrize("workers", [0, 2])
@pytest.mark.parametrize("restart", [False, True])
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_data_loader_refuses_a_loader(restart: bool, workers: int) -> None:
    loader: Any = wd.Loader(windows(), batch_size=2, restart=restart)
    cases: tuple[dict[str, Any], ...] = ({}, {"batch_size": 3, "shuffle": True})
    for options in cases:
        with pytest.raises(
            TypeError, match=r"a Loader makes whole batches itself, .*MapDataset\(source"
        ):
            next(iter(DataLoader(loader, num_workers=workers, **options)))
    with pytest.raises(TypeError, match="'Loader' object is not subscriptable"):
        next(iter(DataLoader(loader, num_workers=workers, batch_size=None)))
    assert loader.position == 0


def test_a_data_loader_refuses_packed_sequences(tmp_path: Path) -> None:
    (tmp_path / "dataset=a").mkdir()
    tokens = pa.table({"tokens": [[1, 2, 3]] * 40})
    feather.write_feather(tokens, tmp_path / "dataset=a" / "x.part1.arrow", "uncompressed")
    packed: Any = wd.PackedSequences(wd.Documents(tmp_path), sequence_length=8)
    with pytest.raises(TypeError, match=r"change from epoch to epoch, .*IterDataset\(wd\.Stream"):
        next(iter(DataLoader(packed, batch_size=2)))
    dataset: Any = wd.IterDataset(wd.Stream(packed), batch_size=2)  # as the message says
    batch = next(iter(DataLoader(dataset, batch_size=None)))
    assert batch["inputs"].shape == (2, 8)


# --- options that have no effect -----------------------------------------------------------------


def stamped() -> wd.Table:
    return wd.Table.from_columns({"x": np.arange(60.0), "t": np.arange(60)}, timestamp_column="t")


def of_files(read: Callable[..., Any], name: str = "rows.arrow", **options: Any) -> Any:
    """Return a call that reads a file of rows or documents with options."""

    def call(folder: Path) -> Any:
        (folder / "dataset=a").mkdir(exist_ok=True)
        feather.write_feather(
            pa.table({"x": np.arange(5.0)}), folder / "rows.arrow", "uncompressed"
        )
        tokens = pa.table({"tokens": pa.array([[1, 2, 3], [4]], pa.list_(pa.uint16()))})
        feather.write_feather(tokens, folder / "dataset=a/x.part0.arrow", "uncompressed")
        return read(folder / name, **options)

    return call


def loader(**options: Any) -> Any:
    return lambda _: wd.Loader(windows(), batch_size=2, **options)


def windows_with(**options: Any) -> Any:
    return lambda _: wd.Windows(plain(), **{"context_length": 4, **options})


read = wd.Table.read

#: Calls with an option that cannot have an effect, and the error.
REFUSED: dict[str, tuple[Callable[[Path], Any], str]] = {
    "Loader(seed=)": (loader(seed=7), "`seed` has no effect without shuffle=True, got seed=7"),
    "Loader(seed=0)": (loader(seed=0), "`seed` has no effect without shuffle=True, got seed=0"),
    "Loader(shuffle, Sequential)": (
        loader(shuffle=True, order=wd.Sequential),
        "`shuffle` is True and `order` is Sequential, expected one of them",
    ),
    "Loader(stream, seed=)": (
        lambda _: wd.Loader(wd.Stream(windows()), batch_size=2, seed=1),
        r"`seed` must not be given to the loader of a stream, which has an order",
    ),
    "Loader(rank=)": (loader(rank=0), "`rank` and `world_size` must be given together"),
    "Loader(device source, pin_memory=)": (
        lambda _: wd.Loader(windows().to("cpu"), batch_size=2, pin_memory=True),
        "`pin_memory` is True, expected False",
    ),
    "IterDataset(rank=)": (
        lambda _: wd.IterDataset(wd.Stream(windows()), batch_size=2, rank=0),
        "must be given together",
    ),
    "Windows(max_gap=)": (windows_with(max_gap=3), "has no timestamp column"),
    "Windows(min_context_length=)": (windows_with(min_context_length=2), "expected pad='start'"),
    "Windows(min_prediction_length=)": (
        windows_with(prediction_length=2, min_prediction_length=1),
        "expected pad='end'",
    ),
    "Windows(min_observed_future=)": (windows_with(min_observed_future=1), "must be at most 0"),
    "Windows(masks=, keys=)": (
        windows_with(keys=["past_target", "past_target_mask"], masks=False),
        "but `masks` is False",
    ),
    "split(seed=)": (lambda _: windows().split(seed=3), "`seed` has no effect with by='time'"),
    "split(0.7, 0.15, 0.15)": (
        lambda _: windows().split(0.7, 0.15, 0.15),  # type: ignore[arg-type]
        r"training is the rest: expected split\(0.15, 0.15\)",
    ),
    "split(test_rows=, shares)": (lambda _: windows().split(0.2, test_rows=3), "must not be given"),
    "latest(step=)": (lambda _: windows().latest(step=1), "`step` is 1, expected future=table"),
    "prediction_table(step=)": (
        lambda _: windows().latest().prediction_table(np.zeros((1, 2)), step=1),
        "has no timestamp column",
    ),
    "PackedSequences(pad=)": (
        of_files(lambda path: wd.PackedSequences(wd.Documents(path), sequence_length=2, pad=3), ""),
        "`pad` must be 0 without padded=True",
    ),
    "Documents(end_token=)": (of_files(wd.Documents, "", end_token=3), "and with no other"),
    "Documents(dtype=)": (of_files(wd.Documents, "", dtype="uint16"), "states the dtype of its"),
    "Documents(cache_bytes=)": (of_files(wd.Documents, "", cache_bytes=5), "needs `cache_dir`"),
    "Documents(storage_options=)": (
        of_files(wd.Documents, "", storage_options={"k": 1}),
        "for URLs",
    ),
    "read(header=)": (of_files(read, header=True), "`header` is an option of CSV files"),
    "read(delimiter=)": (of_files(read, delimiter=";"), "`delimiter` is an option of CSV files"),
    "read(decimal=)": (of_files(read, decimal=","), "`decimal` is an option of CSV files"),
    "read(encoding=)": (of_files(read, encoding="ascii"), "`encoding` is an option of CSV files"),
    "read(group_bytes=)": (of_files(read, group_bytes=100), "is of streamed tables"),
    "read(cache_bytes=)": (of_files(read, cache_bytes=100), "needs `cache_dir`"),
    "read(storage_options=)": (of_files(read, storage_options={"k": 1}), "are for URLs"),
    "read(categories=)": (
        of_files(read, columns="x", categories="y"),
        "'y'",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_options_without_effect_are_refused(name: str, tmp_path: Path) -> None:
    call, message = REFUSED[name]
    with pytest.raises((TypeError, ValueError, KeyError), match=message):
        call(tmp_path)


#: Calls with an option that has no effect, the same call without it, and what the docs say.
HARMLESS: dict[str, tuple[Callable[[], Any], Callable[[], Any], Any, str]] = {
    "Windows(anchor=)": (
        lambda: windows(anchor="end").window_starts().tolist(),
        lambda: windows().window_starts().tolist(),
        wd.Windows,
        "The same with a stride of 1",
    ),
    "Windows(gap=)": (
        lambda: wd.Windows(plain(), context_length=4, gap=3).gather([2])["past_target"].tolist(),
        lambda: wd.Windows(plain(), context_length=4).gather([2])["past_target"].tolist(),
        wd.Windows,
        "without a future they only move the first step of `prediction_table`",
    ),
    "Loader(threads=)": (
        lambda: wd.Loader(wd.Stream(windows()).map(same), batch_size=2, threads=3).peek()["start"],
        lambda: wd.Loader(wd.Stream(windows()).map(same), batch_size=2).peek()["start"],
        wd.Loader,
        "Other sources, and those on a device, take no notice of it",
    ),
    "Loader(restart, epochs)": (
        lambda: len(list(wd.Loader(windows(), batch_size=2, restart=True, epochs=3))),
        lambda: len(list(wd.Loader(windows(), batch_size=2, restart=True))),
        wd.Loader,
        "With `restart` every loop is epoch 0",
    ),
    "Stream(order=Sequential, seed=)": (
        lambda: wd.Stream(windows(), order=wd.Sequential, seed=3).samples([4, 5]).tolist(),
        lambda: wd.Stream(windows(), order=wd.Sequential).samples([4, 5]).tolist(),
        wd.Stream,
        "`Sequential` ignores it",
    ),
    "OrderSampler(order=Sequential, seed=)": (
        lambda: list(wd.OrderSampler(9, order=wd.Sequential, seed=3)),
        lambda: list(wd.OrderSampler(9, order=wd.Sequential)),
        wd.OrderSampler,
        "`Sequential` ignores it",
    ),
    "Mixture(unit=)": (
        lambda: wd.Loader(wd.Mixture({"a": (windows(), 1)}, unit=4), batch_size=9).peek()["start"],
        lambda: wd.Loader(wd.Mixture({"a": (windows(), 1)}), batch_size=9).peek()["start"],
        wd.Mixture,
        "With one lane `unit` has no effect",
    ),
}


def same(batch: dict[str, Any], random: Any) -> dict[str, Any]:
    return batch


@pytest.mark.parametrize("name", HARMLESS)
def test_other_options_without_effect_are_documented(name: str) -> None:
    with_option, without, owner, text = HARMLESS[name]
    np.testing.assert_equal(np.asarray(with_option()), np.asarray(without()))
    assert text in " ".join((owner.__doc__ or "").split())


def test_seeds_of_sources_that_shuffle_themselves_have_an_effect() -> None:
    balanced = windows().balanced(epoch_length=9)
    first, second = (wd.Loader(balanced, batch_size=9, seed=seed).peek() for seed in (1, 2))
    assert not torch.equal(first["start"], second["start"])
    state = wd.Loader(windows(), batch_size=2, shuffle=True).state_dict()
    wd.Loader(windows(), batch_size=2, shuffle=True, seed=0).load_state_dict(state)


STEPPED = ("Table.regularize", "prepare", "Windows.latest", "Windows.prediction_table")


@pytest.mark.parametrize("call", STEPPED)
def test_a_frequency_is_a_step(call: str) -> None:
    with pytest.raises(TypeError, match=f"{call} has no option `freq`, which is `step` here"):
        owner_of(call)(None, freq="1h")


def test_a_misspelt_name_of_another_library_is_explained() -> None:
    with pytest.raises(TypeError, match=r"no option `num_worker`, which is `prefetch` here: batch"):
        owner_of("Loader")([], batch_size=1, num_worker=4)
