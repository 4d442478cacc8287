"""Scalers of prepared files are those of `Scaler.fit` on the same rows, also for each series."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

import windeck as wd
from support.prepare_cases import SMALL, contents, unsorted_rows, write_files

KEYS: dict[str, Any] = {"id_columns": "site", "timestamp_column": "time"}
STOP = np.datetime64("2024-01-31")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Write rows of series of unequal length, one of them without rows before `STOP`."""
    rows = unsorted_rows(series=6, length=60)
    late = np.asarray(rows["time"]) >= STOP
    site = np.asarray(rows["site"])
    number = np.char.replace(site.astype("U"), "s", "").astype(int)
    keep = np.where(site == "s3", late, np.asarray(rows["number"]) % 7 > number - 1)
    rows = rows.filter(pa.array(keep))
    rows = rows.append_column("half", pa.array(np.asarray(rows["load"], np.float16)))
    hole = np.where(np.asarray(rows["number"]) % 5, np.asarray(rows["load"]), np.nan)
    rows = rows.append_column("hole", pa.array(hole)).append_column("wind", rows["site"])
    write_files(tmp_path / "in", rows, 4)
    return tmp_path / "in"


def fitted(folder: Path, stop: Any, **options: Any) -> wd.Scaler:
    """Return the scaler of windows of one row each, of the rows before a time."""
    columns = ["load", "number", "half", "hole"]
    table = wd.Table.read(folder, **KEYS, columns=columns)
    windows = wd.Windows(table, context_length=1, target_columns="load")
    if stop is not None:
        windows = windows.split(validation=stop, test=0).train
    return wd.Scaler.fit(windows, per_series=True, columns=columns, **options)


@pytest.mark.filterwarnings("ignore:1 of 6 series have no values")
@pytest.mark.parametrize("kind", ["standard", "minmax", "robust", "mean_abs"])
@pytest.mark.parametrize(("stop", "sample"), [(None, None), (STOP, None), (STOP, 9), (None, 20)])
def test_each_series_has_the_scaling_of_its_training_rows(
    tmp_path: Path, source: Path, kind: Any, stop: Any, sample: int | None
) -> None:
    result = wd.prepare(
        source,
        tmp_path / "out",
        **KEYS,
        columns=["load", "number", "half", "hole", "wind"],
        scaler=kind,
        per_series=True,
        train=None if stop is None else (None, stop),
        sample=sample,
        seed=3,
        file_bytes=SMALL,
    )
    assert len(result.files) > 3
    expected = fitted(tmp_path / "out", stop, kind=kind, sample=sample, seed=3)
    assert result.scalers[kind] == expected
    read = wd.Prepared.read(tmp_path / "out").scalers[kind]
    assert read == expected
    table = wd.Table.read(tmp_path / "out", **KEYS, columns=["load"])
    one, two = (
        wd.Windows(table, context_length=2, target_columns="load", scaler=scaler).gather([0, 40])
        for scaler in (read, expected)
    )
    assert all((one[name] == two[name]).all() for name in one)


def test_a_range_of_training_times_and_integers(tmp_path: Path) -> None:
    rows = pa.table({"unit": [2, 1] * 50, "time": range(100), "load": np.arange(100.0) ** 2})
    write_files(tmp_path / "in", rows, 3)
    result = wd.prepare(
        tmp_path / "in",
        tmp_path / "out",
        id_columns="unit",
        timestamp_column="time",
        scaler=["minmax", "standard"],
        per_series=True,
        train=(10, 51),
        file_bytes=1024,
    )
    scaler = result.scalers["minmax"]
    assert scaler.series == (1, 2)
    assert scaler.statistics["min"].tolist() == [[121.0], [100.0]]
    assert scaler.statistics["max"].tolist() == [[49.0**2], [2500.0]]
    assert scaler.pooled is not None
    assert scaler.pooled.counts.tolist() == [[41]]
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert {"_scaler-minmax.arrow", "_scaler-standard.arrow"} < names
    assert wd.Table.read(tmp_path / "out", **{**KEYS, "id_columns": "unit"}).num_rows == 100


@pytest.mark.parametrize("ids", [[], ["unit", "site"]])
def test_names_of_series(tmp_path: Path, ids: list[str]) -> None:
    rows = pa.table(
        {"unit": [1, 2], "site": ["\U0001f600", "b"], "load": [1.0, 2.0], "time": [0, 1]}
    )
    write_files(tmp_path / "in", rows, 1)
    out = tmp_path / "out"
    options: dict[str, Any] = {"id_columns": ids, "timestamp_column": "time", "columns": "load"}
    wd.prepare(tmp_path / "in", out, **options, scaler="minmax", per_series=True)
    expected = wd.Scaler.fit(wd.Table.read(out, **options), kind="minmax", per_series=True)
    assert wd.Prepared.read(out).scalers["minmax"] == expected


def test_scalers_of_all_series_together_are_in_the_manifest(tmp_path: Path, source: Path) -> None:
    options: dict[str, Any] = {**KEYS, "scaler": "standard", "columns": "load"}
    wd.prepare(source, tmp_path / "out", **options)
    document = json.loads((tmp_path / "out" / "manifest.json").read_bytes())
    assert document["options"]["per_series"] is False
    assert document["scalers"]["standard"]["series"] is None
    other = wd.prepare(source, tmp_path / "other", **options, per_series=True)
    assert other.fingerprint != document["fingerprint"]
    assert (
        other.scalers["standard"].pooled == wd.Prepared.read(tmp_path / "out").scalers["standard"]
    )
    with pytest.raises(FileExistsError, match="has the result of other"):
        wd.prepare(source, tmp_path / "other", **options)
    wd.prepare(source, tmp_path / "other", **options, overwrite=True)
    assert contents(tmp_path / "other") == contents(tmp_path / "out")


def written(table: Any) -> bytes:
    """Return a table as an Arrow file."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    return bytes(sink.getvalue())


def with_column(table: Any, name: str, values: Any) -> bytes:
    """Return an Arrow file of a table with another column of a name."""
    return written(table.set_column(table.schema.get_field_index(name), name, values))


def damaged(content: bytes) -> bytes:
    """Return an Arrow file with a number changed."""
    table = pa.ipc.open_file(content).read_all()
    means = table["0.mean"].to_numpy().copy()
    means[0] += 1
    return with_column(table, "0.mean", pa.array(means))


@pytest.mark.parametrize("change", [damaged, lambda content: content[:-9], lambda content: b""])
def test_a_damaged_scaler_is_named(tmp_path: Path, source: Path, change: Any) -> None:
    wd.prepare(source, tmp_path / "out", **KEYS, columns="load", scaler="standard", per_series=True)
    path = tmp_path / "out" / "_scaler-standard.arrow"
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(ValueError, match=r"manifest.json' cannot be read.*_scaler-standard.arrow"):
        wd.Prepared.read(tmp_path / "out")


@pytest.mark.parametrize(
    "change",
    [
        lambda table: b"",
        lambda table: b"ARROW1\0\0",
        lambda table: written(table.replace_schema_metadata(None)),
        lambda table: written(table.drop_columns(["0.mean"])),
        lambda table: with_column(table, "0.mean", pa.array([0.0, float("nan")])),
        lambda table: with_column(table, "0.count", pa.array([-1, 2])),
        lambda table: with_column(table, "0.mean", pa.array([0.0, None])),
        lambda table: with_column(table, "series", pa.array(["1", "{"])),
    ],
)
def test_files_that_are_no_scaler_are_refused(tmp_path: Path, change: Any) -> None:
    """Files with the digest of the manifest, as of another program."""
    write_files(tmp_path / "in", unsorted_rows(series=2, length=9), 1)
    out = tmp_path / "out"
    wd.prepare(tmp_path / "in", out, **KEYS, columns="load", scaler="standard", per_series=True)
    path = out / "_scaler-standard.arrow"
    table = pa.ipc.open_file(path.read_bytes()).read_all()
    manifest = json.loads((out / "manifest.json").read_text())

    def store(content: bytes) -> None:
        path.write_bytes(content)
        manifest["scalers"]["standard"]["sha256"] = hashlib.sha256(content).hexdigest()
        (out / "manifest.json").write_text(json.dumps(manifest))

    store(written(table))
    expected = wd.Prepared.read(out).scalers["standard"]
    assert expected.series == ("s0", "s1")
    store(change(table))
    with pytest.raises(ValueError, match=r"manifest.json' cannot be read as a manifest"):
        wd.Prepared.read(out)
