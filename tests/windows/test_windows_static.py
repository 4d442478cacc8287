"""Static covariates that vary within a series are named; first rows are read all the same."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
from pyarrow import feather, parquet

import windeck as wd
from support.internals import plant

TYPES = ("float64", "float32", "int64", "uint8", "bool", "category")


def values_of(numbers: Sequence[int | None], dtype: str) -> Any:
    """Return an Arrow array with a different value for each number, None where there is none."""
    if dtype == "category":
        return pa.array([n if n is None else f"k{n}" for n in numbers]).dictionary_encode()
    kind = pa.bool_() if dtype == "bool" else pa.from_numpy_dtype(np.dtype(dtype))
    return pa.array(
        [n if n is None else n % 2 == 1 if dtype == "bool" else n for n in numbers], kind
    )


def varies(numbers: Sequence[int | None]) -> bool:
    return any(n is not None and n != numbers[0] for n in numbers)


def table_in(way: str, data: pa.Table, folder: Path) -> wd.Table:
    if way == "arrow":
        return wd.Table.from_arrow(data, id_columns="id")
    path = folder / f"rows.{'arrow' if way == 'mapped' else 'parquet'}"
    if way == "mapped":
        feather.write_feather(data, path, compression="uncompressed")
    else:
        parquet.write_table(data, path, row_group_size=5)
    options: dict[str, Any] = {"group_bytes": 300} if way == "streamed" else {}
    return wd.Table.read(path, id_columns="id", in_memory=way == "memory", **options)


@pytest.mark.parametrize("way", ["arrow", "memory", "mapped", "streamed"])
@pytest.mark.parametrize("dtype", TYPES)
def test_series_in_which_a_static_covariate_varies_are_named(
    way: str, dtype: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "static_columns.ROWS_AT_A_TIME", 7)
    rng = np.random.default_rng(len(dtype) + len(way))
    kept: list[Sequence[int | None]] = [
        [1] * 9, [0, 0, 0, 1], [1], [None, None, 0], [0, None, None], [None] * 8, [1, 0] * 4,
        [0] * 15, *(rng.integers(0, 2, 6).tolist() for _ in range(4)), [0] * 20 + [1],
    ]  # fmt: skip
    names = [f"s{number}" for number in range(len(kept))]
    data = pa.table(
        {
            "id": np.repeat(names, [len(one) for one in kept]),
            "x": np.arange(float(sum(map(len, kept)))),
            "area": values_of([n for one in kept for n in one], dtype),
            "size": values_of([s for s, one in enumerate(kept) for _ in one], dtype),
        }
    )
    table = table_in(way, data, tmp_path)
    expected = [name for name, one in zip(names, kept, strict=True) if varies(one)]
    options: dict[str, Any] = {"context_length": 1, "target_columns": "x"}
    wd.Windows(table, **options, static_covariates="size")
    for _ in range(2):  # Of a column that was read already too.
        with pytest.warns(UserWarning, match="static covariates vary within a series") as found:
            w = wd.Windows(table, **options, static_covariates=["size", "area"])
        assert len(found) == 1
        assert found[0].filename == __file__
        some = ", ".join(map(repr, expected[:10])) + ", ..." * (len(expected) > 10)
        message = f"('area' in {len(expected)} of {len(kept)} series: {some})"
        assert message in str(found[0].message)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parts = [w.split(test=0).train, w.subset(last=1), w.latest(), w.with_scaler(None)]
    first = [w.gather([i])["static"] for i in range(len(w)) if w.locate(i)[1] in table.offsets]
    assert len(parts) + len(first) == 4 + len(kept)


@pytest.mark.filterwarnings("ignore:.*series are shorter:UserWarning")
def test_series_without_rows_do_not_vary() -> None:
    offsets = [0, 4, 4, 9]
    area = np.array([1.0, 1, 1, 1, 2, 2, 3, 2, np.nan])
    table = wd.Table.from_columns({"x": np.arange(9.0), "area": area}, offsets=offsets)
    loops = [len(set(area[a:b][~np.isnan(area[a:b])])) > 1 for a, b in pairwise(offsets)]
    assert loops == [False, False, True]
    with pytest.warns(UserWarning, match=r"\('area' in 1 of 3 series: 2\)"):
        wd.Windows(table, context_length=1, static_covariates="area", target_columns="x")
