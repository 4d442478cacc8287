"""Codes of categories in batches, against a model of one value at a time."""

from __future__ import annotations

import json
import os
import pickle
import signal
import tempfile
import tracemalloc
import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import windeck as wd
from models import category_model as model
from models import reference as ref
from support.doomed import child
from support.streamed_tables import assert_same

pytestmark = [
    pytest.mark.filterwarnings("ignore:static covariates vary:UserWarning"),
    pytest.mark.filterwarnings("ignore:.*series are shorter:UserWarning"),
]
QUIET = settings(
    deadline=None, suppress_health_check=list(HealthCheck), derandomize=True, database=None
)

ROLES = ("known", "past", "static")
TYPES = {
    "text": pa.string(),
    "dictionary": pa.dictionary(pa.int16(), pa.string()),
    "int8": pa.int8(),
    "uint16": pa.uint16(),
    "int64": pa.int64(),
    "uint64": pa.uint64(),
    "bool": pa.bool_(),
}
#: Values of columns: some are never in the rows that categories are fitted to.
VALUES: dict[str, list[Any]] = {
    "text": ["z", "a", "", "ä", "b c", "\U0001f600"],
    "dictionary": ["north", "east", "south"],
    "int8": [-128, 0, 127, 3],
    "uint16": [0, 9, 65535, 300],
    "int64": [-(2**63), -1, 0, 7, 2**40, 2**63 - 1],
    "uint64": [0, 5, 2**63 - 1],
    "bool": [True, False],
}


PADS: list[bool | str] = [False, "start", "end"]


@dataclass
class Drawn:
    """A table with one or two categorical columns in each role, and options of windows."""

    case: ref.Case
    kinds: dict[str, str]
    values: dict[str, list[Any]]
    load: list[float]
    options: dict[str, Any] = field(default_factory=dict)

    def arrow(self) -> pa.Table:
        lengths = np.diff(self.case.offsets)
        columns: dict[str, Any] = {
            "id": np.repeat([f"s{i}" for i in range(len(lengths))], lengths),
            "load": self.load,
            "price": np.arange(len(self.load), dtype=np.float32),
        }
        for name, kind in self.kinds.items():
            columns[name] = pa.array(self.values[name], TYPES[kind])
        return pa.table(columns)

    @property
    def names(self) -> dict[str, list[str]]:
        return {role: [n for n in self.kinds if n.startswith(role)] for role in ROLES}

    def windows(self, table: wd.Table) -> wd.Windows:
        case, names = self.case, self.names
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return wd.Windows(
                table,
                context_length=case.context_length,
                prediction_length=case.prediction_length,
                gap=case.gap,
                stride=case.stride,
                dilation=case.dilation,
                pad=case.pad,  # type: ignore[arg-type]
                layout=case.layout,  # type: ignore[arg-type]
                target_columns="load",
                known_covariates=["price", *names["known"]],
                past_covariates=names["past"],
                static_covariates=names["static"],
                categorical=list(self.kinds),
                **self.options,
            )

    @property
    def read(self) -> dict[str, Any]:
        return {"id_columns": "id", "categories": True}


@st.composite
def cases(draw: st.DrawFn) -> Drawn:
    lengths = draw(st.lists(st.integers(1, 20), min_size=1, max_size=5))
    rows = sum(lengths)
    kinds, values = {}, {}
    for role in ROLES:
        for number in range(draw(st.integers(role == "known", 2))):
            name, kind = f"{role}{number}", draw(st.sampled_from(sorted(TYPES)))
            pool = [*VALUES[kind], None] if draw(st.booleans()) else VALUES[kind]
            kinds[name] = kind
            values[name] = draw(st.lists(st.sampled_from(pool), min_size=rows, max_size=rows))
    case = ref.Case(
        {},
        [0, *np.cumsum(lengths).tolist()],
        draw(st.integers(1, 4)),
        draw(st.integers(0, 3)),
        gap=draw(st.integers(0, 2)),
        stride=draw(st.integers(1, 3)),
        dilation=draw(st.integers(1, 3)),
        pad=draw(st.sampled_from(PADS)),
        layout=draw(st.sampled_from(["btc", "bct", "columns"])),
    )
    options = {"fill": draw(st.sampled_from([0.0, -1.0]))}
    return Drawn(case, kinds, values, [0.5] * rows, options)


def expected_keys(
    drawn: Drawn, fitted: dict[str, list[Any]], chosen: list[ref.Window]
) -> dict[str, Any]:
    """Return the keys of codes, and their masks."""
    case, names = drawn.case, drawn.names

    def key(columns: list[str], rows_of: Any) -> tuple[Any, Any]:
        cells = np.array(
            [
                [
                    model.codes_at(case, drawn.values[c], fitted[c], series, rows_of(series, start))
                    for c in columns
                ]
                for series, start in chosen
            ],
            dtype=np.int64,
        )  # windows, columns, steps, (code, mask)
        return cells[..., 0], cells[..., 1].astype(bool)

    def past(_: int, start: int) -> list[int]:
        return ref.past_rows(case, start)

    def future(_: int, start: int) -> list[int]:
        return ref.future_rows(case, start)

    def whole(_: int, start: int) -> list[int]:
        return ref.rows_of(case, start)

    def first(series: int, _: int) -> list[int]:
        return [case.offsets[series]]

    if case.layout == "columns":
        rows = {"known": whole, "past": past, "static": first}
        made = {n: key([n], rows[role]) for role in ROLES for n in names[role]}
        arrays = {
            n: tuple(a[:, 0, 0] if n.startswith("static") else a[:, 0] for a in pair)
            for n, pair in made.items()
        }
    else:
        wanted = {"past_known_categorical": (names["known"], past)}
        if case.prediction_length:
            wanted["future_known_categorical"] = (names["known"], future)
        wanted["past_categorical"] = (names["past"], past)
        arrays = {n: key(*pair) for n, pair in wanted.items() if pair[0]}
        if case.layout == "btc":
            arrays = {n: tuple(a.swapaxes(1, 2) for a in pair) for n, pair in arrays.items()}
        if names["static"]:
            made = {"": key(names["static"], first)}
            arrays["static_categorical"] = tuple(a[..., 0] for a in made[""])
    return {
        name: array
        for n, (codes, mask) in arrays.items()
        for name, array in ((n, codes), (f"{n}_mask", mask))
    }


def check(batch: dict[str, Any], expected: dict[str, Any]) -> None:
    for key, array in expected.items():
        np.testing.assert_array_equal(np.asarray(batch[key]), array, err_msg=key, strict=True)


def fitted_by(drawn: Drawn, train: wd.Windows, **limits: Any) -> dict[str, list[Any]]:
    """Return the values that the model fits to the rows of windows."""
    series, starts = train.locate(np.arange(len(train)))
    windows = list(zip(series.tolist(), starts.tolist(), strict=True))
    rows, firsts = model.rows_read(drawn.case, windows), model.first_rows(drawn.case, windows)
    return {
        name: model.fit(
            [drawn.values[name][row] for row in (firsts if name[:6] == "static" else rows)],
            **limits,
        )
        for name in drawn.kinds
    }


@settings(QUIET, max_examples=200)
@given(cases(), st.data())
def test_codes_equal_those_of_the_model(drawn: Drawn, data: st.DataObject) -> None:
    table = wd.Table.from_arrow(drawn.arrow(), **drawn.read)
    try:
        windows = drawn.windows(table)
    except ValueError:
        return  # no window fits
    kept = data.draw(st.lists(st.integers(0, len(windows) - 1), min_size=1, unique=True))
    train = windows.subset(indices=kept)
    limits: dict[str, Any] = {
        "min_count": data.draw(st.sampled_from([1, 1, 2, 4])),
        "max_categories": data.draw(st.sampled_from([None, None, 1, 2])),
    }
    categories = wd.Categories.fit(train, **limits)
    windows = windows.with_categories(categories)
    numbers = np.arange(len(windows))[-8:]
    batch = windows.gather(numbers)
    unseen = windows.unseen_categories()
    limits["most"] = limits.pop("max_categories")
    fitted = fitted_by(drawn, train, **limits)
    assert categories.cardinalities == {n: 1 + len(fitted[n]) for n in drawn.kinds}
    for name, values in fitted.items():
        assert categories.names(name) == (None, *values)
        assert list(map(type, categories.names(name)[1:])) == list(map(type, values))
    series, starts = windows.locate(np.arange(len(windows)))
    every = list(zip(series.tolist(), starts.tolist(), strict=True))
    expected = expected_keys(drawn, fitted, [every[i] for i in numbers])
    check(batch, expected)
    codes = {key for key in batch if "categorical" in key}
    assert drawn.case.layout == "columns" or codes == set(expected)
    rows, firsts = model.rows_read(drawn.case, every), model.first_rows(drawn.case, every)
    assert unseen == {
        name: sum(
            drawn.values[name][row] is not None and drawn.values[name][row] not in fitted[name]
            for row in (firsts if name[:6] == "static" else rows)
        )
        for name in drawn.kinds
    }
    again = wd.Categories.from_json(categories.to_json())
    assert again == categories
    assert hash(again) == hash(categories)
    check(windows.with_categories(again).gather(numbers), expected)


@settings(QUIET, max_examples=40)
@given(cases(), st.integers(1, 30), st.sampled_from([1, 200, 10**6]))
def test_streamed_joined_moved_and_pickled_windows_have_the_same_codes(
    drawn: Drawn, part_rows: int, group_bytes: int
) -> None:
    table = wd.Table.from_arrow(drawn.arrow(), **drawn.read)
    try:
        windows = drawn.windows(table)
    except ValueError:
        return
    half = windows.subset(indices=np.arange(0, len(windows), 2))
    categories = wd.Categories.fit(half)
    windows = windows.with_categories(categories)
    numbers = np.arange(len(windows))
    batch = windows.gather(numbers)
    same = [pickle.loads(pickle.dumps(windows)).gather(numbers)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        same.append(windows.to("cpu").gather_tensors(numbers))
    if drawn.case.layout != "columns":
        same.append(windows.joined().gather(numbers))
        same.append(windows.joined().to("cpu").gather_tensors(numbers))
    for other in same:
        assert_same({key: other[key] for key in batch}, batch)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "data.parquet"
        pq.write_table(drawn.arrow(), path, row_group_size=part_rows)
        streamed = wd.Table.read(path, in_memory=False, group_bytes=group_bytes, **drawn.read)
        from_files = drawn.windows(streamed.with_missing_counts())
        assert wd.Categories.fit(from_files.subset(indices=numbers[::2])) == categories
        from_files = from_files.with_categories(categories)
        assert from_files.unseen_categories() == windows.unseen_categories()
        found = from_files.gather(numbers)
        assert_same(found, batch)


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("width", [1, 2**41])
def test_many_rows_are_fitted_and_coded_in_parts(text: bool, width: int) -> None:
    """Several parts of rows, and more distinct values than are merged at a time."""
    random = np.random.default_rng(0)
    numbers = random.integers(0, 400_000, 700_000) * width
    numbers[::2] = numbers[0]
    shops: Any = pa.array(
        numbers.astype(str) if text else numbers, mask=random.random(700_000) < 0.1
    )
    offsets = [0, 5, 300_000, 300_001, 600_000, 700_000]
    ids = np.repeat(np.arange(5), np.diff(offsets))
    data = pa.table({"id": ids, "load": np.zeros(700_000, np.float32), "shop": shops})
    table = wd.Table.from_arrow(data, id_columns="id", categories=True)
    windows = windows_of(table)
    train = windows.subset(rows=(0, 650_000), series=[0, 1, 3, 4])
    categories = wd.Categories.fit(train, min_count=2, max_categories=100_000)
    rows = np.delete(np.arange(650_000), 300_000)
    values, counts = np.unique(
        shops.take(pa.array(rows)).drop_null().to_numpy(zero_copy_only=False), return_counts=True
    )
    values, counts = values[counts >= 2], counts[counts >= 2]
    kept = np.sort(np.lexsort([np.arange(len(values)), -counts])[:100_000])
    assert categories.names("shop") == (None, *values[kept].tolist())
    code_of = {value: code for code, value in enumerate(values[kept].tolist(), 1)}
    expected = np.array([code_of.get(value, 0) for value in shops.to_pylist()])
    windows = windows.with_categories(categories)
    chosen = np.arange(0, len(windows), 7)
    found = windows.gather(chosen)["past_known_categorical"][..., 0]
    starts = windows.window_starts()[chosen]
    np.testing.assert_array_equal(found, np.stack([expected[starts], expected[starts + 1]], axis=1))
    seen = ~np.asarray(shops.is_null())
    inside = np.isin(ids, [1, 3, 4, 0])  # one row is no window
    assert windows.unseen_categories() == {"shop": int(((expected == 0) & seen & inside).sum())}


def test_columns_in_rows_have_the_same_codes() -> None:
    values = np.random.default_rng(0).integers(-3, 5, (50, 3))
    columns = dict(zip(["load", "shop", "size"], values.T.copy(), strict=True))
    options: dict[str, Any] = {"known_covariates": ["shop", "size"]}
    batches = []
    for table in (wd.Table.from_columns(columns), wd.Table.from_rows(values, [*columns])):
        windows = windows_of(table, ["shop", "size"], **options)
        windows = windows.with_categories(wd.Categories.fit(windows.subset(rows=(0, 6))))
        batches.append(windows.gather(np.arange(len(windows))))
    assert_same(*batches)
    assert len(np.unique(batches[0]["past_known_categorical"])) > 3


def test_codes_count_in_the_bytes_of_streamed_groups(tmp_path: Path) -> None:
    shops = pa.array(np.arange(100) % 7, pa.int8())
    pq.write_table(pa.table({"load": np.zeros(100), "shop": shops}), tmp_path / "a.parquet")
    table = wd.Table.read(tmp_path / "a.parquet", in_memory=False)
    plain = windows_of(table, None).explain().reading
    codes = windows_of(table, wd.Categories.fit(table, columns="shop")).explain().reading
    # 100 rows and 3 after them, of 8 + 1 bytes and 2 bits; and of 1 byte more.
    assert "and 953 bytes each" in plain
    assert "and 1.06 kB each" in codes


# --- options ---------------------------------------------------------------------------------


def table_of(shops: Any, **more: Any) -> wd.Table:
    columns = {"load": np.arange(float(len(shops))), "shop": shops, **more}
    return wd.Table.from_arrow(pa.table(columns), categories=True)


def windows_of(table: wd.Table, categorical: Any = "shop", **options: Any) -> wd.Windows:
    given: dict[str, Any] = {
        "target_columns": "load",
        "known_covariates": "shop",
        "prediction_length": 1,
    }
    return wd.Windows(table, context_length=2, categorical=categorical, **given | options)


def test_values_match_by_name_in_a_table_that_numbers_them_otherwise() -> None:
    one, other = table_of(["a", "b", "c", "a"]), table_of(["c", "x", "a", "b"])
    categories = wd.Categories.fit(one)
    assert windows_of(one, categories)[0]["past_known_categorical"].ravel().tolist() == [1, 2]
    found = windows_of(other, categories).gather([0, 1])["past_known_categorical"][..., 0]
    assert found.tolist() == [[3, 0], [0, 1]]
    assert one.column("shop").categories != other.column("shop").categories


def test_categorical_true_is_all_covariates_of_text() -> None:
    table = table_of(["a", "b", "c"], size=[1, 2, 3], kind=["u", "v", "u"])
    options: dict[str, Any] = {"known_covariates": ["shop", "size"], "past_covariates": "kind"}
    assert windows_of(table, True, **options).roles.categorical == ("shop", "kind")
    assert windows_of(table, False, known_covariates="size").roles.categorical == ()


def test_fitted_categories_are_of_the_columns_that_are_covariates() -> None:
    table = table_of(["a", "b", "c"], kind=["u", "v", "u"])
    categories = wd.Categories.fit(table)
    assert categories.columns == ("shop", "kind")
    windows = windows_of(table, categories)
    assert windows.roles.categorical == ("shop",)
    with pytest.raises(ValueError, match=r"`categorical` has the columns \('shop', 'kind'\)"):
        windows_of(table, categories, known_covariates=())


def test_batches_need_fitted_categories(tmp_path: Path) -> None:
    windows = windows_of(table_of(["a", "b", "c"]))
    message = "categories of 'shop' are not fitted, expected windows.with_categories"
    with pytest.raises(ValueError, match=message):
        windows.gather([0])
    with pytest.raises(ValueError, match=message):
        windows.to("cpu")
    with pytest.raises(ValueError, match=message):
        next(iter(wd.Loader(windows, batch_size=1)))
    with pytest.raises(ValueError, match="no fitted categories"):
        windows.unseen_categories()
    assert "shop" not in str(windows.explain())
    others = windows_of(table_of(["a", "b", "c"]), keys=["past_target"])
    assert list(others[0]) == ["past_target"]
    fitted = windows.with_categories(wd.Categories.fit(windows))
    with pytest.raises(ValueError, match="are not fitted"):
        fitted.with_categories(None).gather([0])


WRONG: list[tuple[type[Exception], str, dict[str, Any]]] = [
    (KeyError, "no column 'shops'; did you mean 'shop'", {"categorical": "shops"}),
    (ValueError, "'load' of `categorical` is no covariate", {"categorical": "load"}),
    (ValueError, "`dtype` has column 'shop', which is categ", {"dtype": {"shop": "int64"}}),
    (
        TypeError,
        "'price' is float64, expected text, integers or bools",
        {"categorical": "price", "known_covariates": "price"},
    ),
]


@pytest.mark.parametrize(("kind", "message", "options"), WRONG)
def test_wrong_options_are_refused(
    kind: type[Exception], message: str, options: dict[str, Any]
) -> None:
    table = table_of(["a", "b", "c"], price=[0.5, 1.5, 2.5])
    with pytest.raises(kind, match=message):
        windows_of(table, **options)


def test_categories_that_do_not_fit_are_refused() -> None:
    table = table_of(["a", "b", "c"], size=[1, 2, 3])
    windows = windows_of(table)
    with pytest.raises(KeyError, match="`categories` has no column 'shop'"):
        windows.with_categories(wd.Categories.fit(table, columns="size"))
    numbers = wd.Categories.fit(table_of([1, 2, 3]), columns="shop")
    with pytest.raises(TypeError, match="'shop' is of kind text, expected integer as its"):
        windows.with_categories(numbers)
    with pytest.raises(TypeError, match="`categories` must be Categories, got a dict"):
        windows.with_categories({"shop": ["a"]})  # type: ignore[arg-type]
    plain = windows_of(table, None, known_covariates="size")
    with pytest.raises(ValueError, match="expected windows with categorical="):
        plain.with_categories(wd.Categories.fit(table))


def test_fit_refuses_what_it_cannot_read() -> None:
    table = table_of([1, 2, 3], price=[0.5, 1.5, 2.5])
    for error, message, options in (
        (ValueError, "no column is categorical", {}),
        (KeyError, "no column 'shops'", {"columns": "shops"}),
        (TypeError, "'price' is float64", {"columns": ["shop", "price"]}),
        (ValueError, "each once", {"columns": ["shop", "shop"]}),
        (ValueError, "at least one column", {"columns": []}),
        (ValueError, "`min_count` must be at least 1", {"columns": "shop", "min_count": 0}),
        (ValueError, "`max_categories` must be", {"columns": "shop", "max_categories": 0}),
    ):
        with pytest.raises(error, match=message):
            wd.Categories.fit(table, **options)
    with pytest.raises(TypeError, match="`data` must be a Table or Windows, got a list"):
        wd.Categories.fit([1], columns="shop")  # type: ignore[arg-type]
    with pytest.raises(KeyError, match="`categories` has no column 'size'"):
        wd.Categories.fit(table, columns="shop").names("size")


def test_integers_above_int64_have_code_0() -> None:
    shops = pa.array([2**64 - 1, 2**63, 5, 1], pa.uint64())
    table = table_of(shops)
    categories = wd.Categories.fit(table, columns="shop")
    assert categories.names("shop") == (None, 1, 5)
    found = windows_of(table, categories).gather([0, 1])["past_known_categorical"]
    assert found[..., 0].tolist() == [[0, 0], [0, 2]]
    # Fitted to -1, whose bits are those of the largest one.
    minus = wd.Categories.fit(table_of([-1, 5, 1]), columns="shop")
    assert windows_of(table, minus)[0]["past_known_categorical"].ravel().tolist() == [0, 0]


def test_a_column_without_values_has_code_0() -> None:
    nothing = pa.array([None, None, None], pa.int32())
    table = table_of(nothing)
    categories = wd.Categories.fit(table, columns="shop")
    assert categories.cardinalities == {"shop": 1}
    batch = windows_of(table, categories)[0]
    assert batch["past_known_categorical"].ravel().tolist() == [0, 0]
    assert not batch["past_known_categorical_mask"].any()
    other = table_of([5, 6, 7])
    assert windows_of(other, categories)[0]["past_known_categorical"].ravel().tolist() == [0, 0]


@pytest.mark.parametrize("count", [254, 255, 256, 65534, 65535, 65536])
def test_codes_at_the_limits_of_their_bytes(count: int) -> None:
    shops = np.arange(count + 2) * 3
    table = table_of(shops)
    categories = wd.Categories.fit(table_of(shops[:count]), columns="shop")
    windows = windows_of(table, categories)
    found = windows.gather([count - 2, count - 1])["past_known_categorical"][..., 0]
    assert found.tolist() == [[count - 1, count], [count, 0]]


def test_a_scaler_leaves_categorical_columns_out() -> None:
    table = table_of([3, 5, 5, 9], size=[1, 2, 3, 4])
    windows = windows_of(table, known_covariates=["shop", "size"])
    windows = windows.with_categories(wd.Categories.fit(windows))
    assert wd.Scaler.fit(windows).columns == ("load", "size")
    scaler = wd.Scaler.fit(table, per_series=True, unseen="error")
    assert scaler.columns == ("load", "shop", "size")
    scaled = windows.with_scaler(scaler).gather([0, 1])
    plain = windows.gather([0, 1])
    np.testing.assert_array_equal(scaled["past_known_categorical"], plain["past_known_categorical"])
    only = wd.Scaler.fit(table, columns="shop")
    with pytest.raises(ValueError, match="`scaler` must have some of the columns"):
        windows.with_scaler(only)


def test_fingerprints_have_categories_only_where_there_are_some() -> None:
    table = table_of(["a", "b", "c"], size=[1, 2, 3])
    plain = windows_of(table, None, known_covariates="size")
    assert not {"categorical", "categories"} & set(plain.fingerprint)
    windows = windows_of(table)
    assert windows.fingerprint["categories"] == "none"
    fitted = windows.with_categories(wd.Categories.fit(table))
    other = windows.with_categories(wd.Categories.fit(table, min_count=2))
    assert fitted.fingerprint["categorical"] == "shop"
    assert len({str(w.fingerprint["categories"]) for w in (windows, fitted, other)}) == 3
    # Values of columns that these windows do not use do not count.
    more = wd.Categories.fit(table, columns=["shop", "size"])
    assert windows.with_categories(more).fingerprint == fitted.fingerprint
    state = wd.Loader(fitted, batch_size=1, shuffle=True).state_dict()
    with pytest.raises(ValueError, match="categories"):
        wd.Loader(other, batch_size=1, shuffle=True).load_state_dict(state)


def test_splits_folds_subsets_and_latest_keep_categories() -> None:
    table = table_of([*"aabbccddee", *"fghijklmno"])
    windows = windows_of(table, prediction_length=2)
    split = windows.split(validation=0, test=0.5)
    categories = wd.Categories.fit(split.train)
    assert categories.names("shop") == (None, *"abcde")
    parts = split.with_categories(categories)
    assert (parts.test.gather([len(parts.test) - 1])["past_known_categorical"] == 0).all()
    assert parts.test.unseen_categories()["shop"] > 0
    assert "'shop' has values without a code in" in str(parts.test.explain())
    assert "without a code" not in str(parts.train.explain())
    whole = windows.with_categories(categories)
    for fold in whole.folds(2, test_rows=3):
        assert fold.train[0]["past_known_categorical"].ravel().tolist() == [1, 1]
    assert whole.latest()[0]["past_known_categorical"].ravel().tolist() == [0, 0]
    assert whole.subset(rows=(2, 9))[0]["past_known_categorical"].ravel().tolist() == [2, 2]
    assert whole.balanced().gather([0])["past_known_categorical"].shape == (1, 2, 1)


def test_a_future_table_may_have_new_values() -> None:
    days = np.datetime64("2024-01-01") + np.arange(6)
    rows = {"load": np.arange(4.0), "shop": [*"abba"], "day": days[:4]}
    read: dict[str, Any] = {"timestamp_column": "day", "categories": True}
    table = wd.Table.from_arrow(pa.table(rows), **read)
    windows = wd.Windows(
        table, context_length=2, prediction_length=2, known_covariates="shop", categorical="shop"
    )
    windows = windows.with_categories(wd.Categories.fit(windows))
    later = wd.Table.from_arrow(pa.table({"shop": ["new", "b"], "day": days[4:]}), **read)
    batch = windows.latest(future=later)[0]
    assert batch["past_known_categorical"].ravel().tolist() == [2, 1]
    assert batch["future_known_categorical"].ravel().tolist() == [0, 2]
    assert batch["future_known_categorical_mask"].all()


def test_a_table_may_grow_by_texts_that_come_before() -> None:
    smaller, larger = table_of([*"bcbcbc"]), table_of([*"abcbcbcb"])
    categories = wd.Categories.fit(smaller)
    windows_of(smaller, categories).check_growth(windows_of(larger, categories))
    plain = {"categorical": None, "dtype": {"shop": "float64"}}
    with pytest.raises(ValueError, match="categories of 'shop' have other codes"):
        windows_of(smaller, **plain).check_growth(windows_of(larger, **plain))


def test_two_categories_of_one_table_do_not_share_codes_on_a_device() -> None:
    table = table_of(["a", "b", "b", "c"])
    windows = windows_of(table)
    all_of_them = windows.with_categories(wd.Categories.fit(table)).to("cpu")
    frequent = windows.with_categories(wd.Categories.fit(table, min_count=2)).to("cpu")
    found = [
        w.gather_tensors([0])["past_known_categorical"].ravel().tolist()
        for w in (all_of_them, frequent)
    ]
    assert found == [[1, 2], [0, 1]]


def test_descriptions() -> None:
    table = table_of([*"abcdefghijkl"], size=[True, False] * 6)
    categories = wd.Categories.fit(table, columns=["shop", "size"])
    assert repr(categories).splitlines() == [
        "Categories",
        "  shop: 12 values 'a', 'b', 'c', 'd', 'e', 'f', 'g', 'h', 'i', 'j', ...",
        "  size: 2 values False, True",
    ]
    assert "size" in categories._repr_html_()


# --- JSON and resumption ---------------------------------------------------------------------

HOSTILE = [
    "",
    "[]",
    "null",
    "[" * 100_000,
    '{"format": 1}',
    '{"format": 2, "columns": {"a": {"kind": "text", "values": []}}}',
    '{"format": 1, "columns": {}}',
    '{"format": 1, "columns": []}',
    '{"format": 1, "columns": {"a": []}}',
    '{"format": 1, "columns": {"a": {"kind": "text"}}}',
    '{"format": 1, "columns": {"a": {"kind": [], "values": []}}}',
    '{"format": 1, "columns": {"a": {"kind": "float", "values": [0.5]}}}',
    '{"format": 1, "columns": {"a": {"kind": "text", "values": {}}}}',
    '{"format": 1, "columns": {"a": {"kind": "text", "values": [null]}}}',
    '{"format": 1, "columns": {"a": {"kind": "text", "values": ["b", "a"]}}}',
    '{"format": 1, "columns": {"a": {"kind": "text", "values": ["a", "a"]}}}',
    '{"format": 1, "columns": {"a": {"kind": "text", "values": ["\\ud800"]}}}',
    '{"format": 1, "columns": {"a": {"kind": "text", "values": [1]}}}',
    '{"format": 1, "columns": {"a": {"kind": "integer", "values": [true]}}}',
    '{"format": 1, "columns": {"a": {"kind": "integer", "values": [NaN]}}}',
    '{"format": 1, "columns": {"a": {"kind": "integer", "values": [1.0]}}}',
    '{"format": 1, "columns": {"a": {"kind": "integer", "values": [9223372036854775808]}}}',
    '{"format": 1, "columns": {"a": {"kind": "integer", "values": [' + "9" * 5000 + "]}}}",
    '{"format": 1, "columns": {"a": {"kind": "bool", "values": [0, 1]}}}',
    '{"format": 1, "columns": {"a": {"kind": "bool", "values": [true, false]}}}',
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_json_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="categories"):
        wd.Categories.from_json(text)


@settings(QUIET, max_examples=300)
@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(["format", "columns", "kind", "values", "a"]), inner, max_size=4
            )
        ),
        max_leaves=12,
    )
)
def test_any_json_is_read_or_refused(value: Any) -> None:
    if isinstance(value, dict):
        value["format"] = 1
    try:
        found = wd.Categories.from_json(json.dumps(value))
    except ValueError:
        return
    assert wd.Categories.from_json(found.to_json()) == found


#: JSON of format 1 and its digests, which later versions read and keep.
FROZEN = (
    '{"format": 1, "columns": {"shop": {"kind": "text", "values": ["", "a", "\\u00e4"]}, '
    '"size": {"kind": "integer", "values": [-5, 7]}, "open": {"kind": "bool", "values": [true]}}}'
)


def test_the_json_and_the_digests_of_format_1_stay() -> None:
    table = table_of(["a", "ä", "", None], size=[7, -5, 7, 7], open=[True, True, None, True])
    fitted = wd.Categories.fit(table, columns=["shop", "size", "open"])
    assert fitted.to_json() == FROZEN
    assert wd.Categories.from_json(FROZEN) == fitted
    windows = windows_of(table, fitted, known_covariates=["shop", "size", "open"])
    assert windows.fingerprint["categories"] == "f2b9b2dd3eb123c59d115c9361195f28"


@pytest.mark.parametrize("per_series", [False, True])
def test_one_text_has_scaler_and_categories(per_series: bool) -> None:
    """Windows where a model is served have the batches and the fingerprint of those trained on."""
    table = table_of(["a", "b", "a", "c", "b", "a"])
    fitted = wd.Categories.fit(table, columns="shop")
    windows = windows_of(table, fitted, known_covariates="shop")
    scaler = wd.Scaler.fit(windows, per_series=per_series)
    text = scaler.to_json(categories=fitted)
    assert wd.Scaler.from_json(text) == scaler
    assert wd.Scaler.from_json(text.encode()).to_json() == scaler.to_json()
    assert wd.Categories.from_json(text) == wd.Categories.from_json(text.encode()) == fitted
    trained = windows.with_scaler(scaler)
    serving = windows_of(
        table, wd.Categories.from_json(text), known_covariates="shop",
        scaler=wd.Scaler.from_json(text),
    )  # fmt: skip
    assert serving.fingerprint == trained.fingerprint
    numbers = np.arange(len(trained))
    for key, array in trained.gather(numbers).items():
        np.testing.assert_array_equal(serving.gather(numbers)[key], array, err_msg=key)
    with pytest.raises(
        ValueError, match=r"that of a scaler without categories, expected scaler\.to"
    ):
        wd.Categories.from_json(scaler.to_json())
    with pytest.raises(TypeError, match="`categories` must be Categories, got a dict"):
        scaler.to_json(categories={"shop": 3})  # type: ignore[arg-type]
    damaged = {**json.loads(text), "categories": {"format": 1, "columns": {}}}
    with pytest.raises(ValueError, match="categories' JSON cannot be read: it names no columns"):
        wd.Categories.from_json(json.dumps(damaged))
    values: list[Any] = [None, [], "x", 3]
    for value in values:
        with pytest.raises(ValueError, match="its categories are not an object"):
            wd.Categories.from_json(json.dumps({**damaged, "categories": value}))


def test_a_killed_loader_resumes_with_categories_of_json(tmp_path: Path) -> None:
    pytest.importorskip("torch")  # what a child process lacks is not seen
    random = np.random.default_rng(0)
    shops = [f"shop {number}" for number in random.integers(0, 30, 200)]

    def loader(categories: wd.Categories) -> wd.Loader:
        return wd.Loader(
            windows_of(table_of(shops), categories), batch_size=8, shuffle=True, seed=3
        )

    def fitted() -> wd.Categories:
        return wd.Categories.fit(windows_of(table_of(shops)).split(validation=0, test=0.5).train)

    def train() -> None:
        categories = fitted()
        running = loader(categories)
        for number, _ in enumerate(running):
            state = {"loader": running.state_dict(), "categories": categories.to_json()}
            (tmp_path / "part").write_text(json.dumps(state))
            (tmp_path / "part").replace(tmp_path / "state.json")
            if number == 4:
                os.kill(os.getpid(), signal.SIGKILL)

    assert child(train) == -signal.SIGKILL
    state = json.loads((tmp_path / "state.json").read_text())
    resumed = loader(wd.Categories.from_json(state["categories"]))
    resumed.load_state_dict(state["loader"])
    expected = list(loader(fitted()))
    found = list(resumed)
    assert len(found) == len(expected) - 5
    for one, other in zip(found, expected[5:], strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    "text",
    [
        '{"format": 1, "columns": {"shop": {"kind": "integer", "values": [7]}, '
        '"shop": {"kind": "integer", "values": [9]}}}',
        '{"format": 1, "columns": {"a": {"kind": "integer", "values": [7], "values": [9]}}}',
    ],
)
def test_json_with_a_repeated_key_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"the key '(shop|values)' is repeated, expected each key"):
        wd.Categories.from_json(text)


def test_windows_of_a_table_share_their_codes() -> None:
    """Also where other windows that used them are deleted first."""
    rows = 1 << 20
    table = wd.Table.from_columns({"a": np.zeros(rows), "k": np.arange(rows) % 50})
    data = wd.Windows(table, context_length=4, known_covariates="k", categorical="k")
    data = data.with_categories(wd.Categories.fit(data))
    data.joined()  # Is deleted.
    tracemalloc.start()
    try:
        kept = [data.joined(), data.split(validation=0.2).train]
        held = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert len(kept[0]) == len(data)
    assert held < rows // 2
