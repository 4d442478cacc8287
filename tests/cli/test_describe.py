"""`windeck describe`: what it says of each kind of file, and that the Python it prints runs."""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from pyarrow import feather

import windeck as wd
from support.internals import plant
from support.object_servers import Website
from support.programs import command
from support.token_files import llm_c_header, write_mds, write_megatron

HOURS = pa.array([datetime(2024, 1, 1) + timedelta(hours=h) for h in range(400)] * 2)
SITES = ["a"] * 400 + ["b"] * 400


def described(*paths: str) -> Any:
    """Return the document that describes a path."""
    code, out, err = command("describe", "--json", *paths)
    assert (code, err) == (0, "")
    (line,) = out.splitlines()
    return json.loads(line)


def described_all(path: str) -> list[Any]:
    """Return the documents that describe a folder of several kinds."""
    code, out, err = command("describe", "--json", path)
    assert (code, err) == (0, "")
    return [json.loads(line) for line in out.splitlines()]


def refused(*paths: str) -> str:
    """Return the sentence for paths that cannot be described."""
    code, out, err = command("describe", *paths)
    assert (code, out) == (1, "")
    assert err.count("\n") == 1
    assert err.startswith("windeck describe: ")
    return err.removeprefix("windeck describe: ").strip()


def executed(found: Any) -> dict[str, Any]:
    """Return the variables of the printed code, and a batch of two samples."""
    names: dict[str, Any] = {}
    exec(found["code"], names)
    if "loader" in names:  # without torch there is none
        assert len(next(iter(names["loader"])))
    source = names.get("windows") or names.get("packed") or names.get("table")
    if source is not None and hasattr(source, "gather"):
        names["batch"] = source.gather(np.arange(2))
    return names


def roles(found: Any) -> dict[str, str]:
    return {column["name"]: column["role"] for column in found["columns"]}


def curves() -> pa.Table:
    rng = np.random.default_rng(0)
    return pa.table(
        {
            "site": SITES,
            "timestamp": HOURS,
            "load": pa.array(rng.random(800), mask=rng.random(800) < 0.01),
            "temperature": rng.random(800).astype(np.float32),
            "lights": rng.random(800),
            "holiday": np.arange(800) % 24 == 0,
            "area": np.repeat([3.5, 4.5], 400),
            "note": [f"text {number}" for number in range(800)],
        }
    )


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def test_a_table_has_roles_series_and_code_that_runs() -> None:
    pq.write_table(curves(), "curves.parquet")
    found = described("curves.parquet")
    assert found["kind"] == "table"
    assert (found["format"], found["files"], found["rows"], found["series"]) == (
        *("Parquet", 1, 800),
        2,
    )
    assert found["rows_are_exact"]
    assert found["sampled_rows"] is None
    assert found["span"] == ["2024-01-01T00:00:00.000000", "2024-01-17T15:00:00.000000"]
    assert (found["gaps"], found["repeated_times"]) == (0, 0)
    assert roles(found) == {
        "site": "id",
        "timestamp": "time",
        "load": "target",
        "temperature": "past covariate",
        "lights": "past covariate",
        "holiday": "known covariate",
        "area": "static covariate",
        "note": "left out: text",
    }
    missing = {column["name"]: column["missing"] for column in found["columns"]}
    assert missing["load"] == curves()["load"].null_count
    batch = executed(found)["batch"]
    assert batch["past_target"].shape == (2, 168, 1)
    assert batch["future_known"].shape == (2, 24, 1)
    assert batch["past_covariates"].shape == (2, 168, 2)
    assert batch["static"].shape == (2, 1)


@pytest.mark.parametrize("name", ["curves.feather", "curves.csv", "parts"])
def test_tables_of_every_format(name: str) -> None:
    if name == "parts":
        Path(name).mkdir()
        pq.write_table(curves()[:400], f"{name}/part1.parquet")
        pq.write_table(curves()[400:], f"{name}/part2.parquet")
    elif name.endswith("csv"):
        from pyarrow import csv

        csv.write_csv(curves(), name)
    else:
        feather.write_feather(curves(), name, compression="uncompressed")
    found = described(name)
    assert (found["rows"], found["series"], roles(found)["load"]) == (800, 2, "target")
    assert executed(found)["table"].num_rows == 800


def test_a_csv_file_with_gaps_dates_of_its_own_and_rows_of_series_in_turn() -> None:
    lines = ["station;when;load"]
    for hour in range(400):
        if not 50 <= hour < 53:
            when = datetime(2024, 1, 1) + timedelta(hours=hour)
            lines += [f"{name};{when:%d.%m.%Y %H:%M};{hour}.5" for name in "ab"]
    Path("gaps.csv").write_text("\n".join(lines).replace(";", ",") + "\n")
    found = described("gaps.csv")
    assert (found["gaps"], found["series"], found["step"]) == (2, 2, "3600 seconds")
    assert any("2 breaks in 2 series" in note for note in found["notes"])
    assert 'timestamp_format="%d.%m.%Y %H:%M"' in found["code"]
    assert 'max_gap="1h"' in found["code"]
    assert "sort=True" in found["code"]
    windows = executed(found)["windows"]
    starts = windows.locate(np.arange(len(windows)))[1]
    assert not np.isin(starts, np.arange(0, 50)).any()  # those would cross the gap


def test_the_description_is_also_text() -> None:
    pq.write_table(curves(), "curves.parquet")
    code, out, err = command("describe", "curves.parquet", "curves.parquet")
    assert (code, err) == (0, "")
    assert out.startswith("curves.parquet: a table of 800 rows in 1 Parquet file, about ")
    assert "\nsite         string         id" in out
    assert "    table = wd.Table.read(" in out
    assert "2 series of 400 rows, usual step 1 hour" in out
    assert out.count("import windeck as wd") == 2


def test_a_long_table_is_judged_by_a_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    plant(monkeypatch, "tables.SAMPLE_ROWS", 500)
    pq.write_table(curves(), "curves.parquet", row_group_size=100)
    found = described("curves.parquet")
    assert (found["rows"], found["sampled_rows"], found["rows_are_exact"]) == (800, 500, True)
    assert "from a sample: the first 500 of 800 rows" in found["notes"]
    assert executed(found)["table"].num_rows == 800


@pytest.mark.parametrize("name", ["long.csv", "long.csv.gz"])
def test_a_long_text_is_judged_by_its_first_lines(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "tables.SAMPLE_CSV", 10_000)
    lines = ["t,load", *(f"{number},{math.sin(number):.6f}" for number in range(5000))]
    data = "\n".join(lines).encode()
    with pa.output_stream(name) as stream:
        stream.write(data)
    found = described(name)
    assert not found["rows_are_exact"]
    assert 500 < found["sampled_rows"] < 1000
    assert found["rows"] >= found["sampled_rows"]
    assert executed(found)["table"].num_rows == 5000


def test_tables_without_numbers_times_or_rows_for_windows() -> None:
    pq.write_table(pa.table({"color": ["red", "blue"] * 5}), "texts.parquet")
    found = described("texts.parquet")
    assert "there is no column of numbers to forecast" in found["notes"]
    assert executed(found)["table"].num_rows == 10
    dates = {"year": [2024] * 99, "month": [1] * 99, "day": [1 + h // 24 for h in range(99)]}
    pq.write_table(pa.table({**dates, "load": np.arange(99.0)}), "dates.parquet")
    found = described("dates.parquet")
    assert roles(found)["year"] == "part of a date"
    assert executed(found)["table"].num_series == 1
    pq.write_table(curves()[:5], "short.parquet")
    assert "wd.Windows" not in described("short.parquet")["code"]


def test_prepared_data_keep_their_ids_and_time() -> None:
    pq.write_table(curves().rename_columns(["x", "y", *curves().column_names[2:]]), "a.parquet")
    wd.prepare("a.parquet", "prepared", id_columns="x", timestamp_column="y")
    found = described("prepared")
    assert roles(found)["x"] == "id"
    assert any("written by windeck prepare" in note for note in found["notes"])
    assert executed(found)["table"].num_series == 2


def test_lists_of_ids() -> None:
    data = {
        "user": np.arange(40),
        "seen": [[7, 8, 9][: n % 4] for n in range(40)],
        "clicked": pa.array([None if n == 3 else n % 2 for n in range(40)]),
        "note": ["x"] * 40,
    }
    pq.write_table(pa.table(data), "clicks.parquet")
    found = described("clicks.parquet")
    assert (found["kind"], found["rows"]) == ("lists", 40)
    assert roles(found) == {
        "user": "column", "seen": "list", "clicked": "column", "note": "left out"
    }  # fmt: skip
    assert "seen: lists of 0 to 3, on average 1.5, 10 empty" in found["notes"]
    assert "clicked: 1 missing" in found["notes"]
    assert "seen" in executed(found)["batch"]


TOKENS = [list(range(1, 40)) for _ in range(20)]


def _write_nanogpt(header: bool) -> str:
    tokens = np.concatenate([[*doc, 50256] for doc in TOKENS]).astype("<u2")
    head = llm_c_header(len(tokens)) if header else b""
    Path("bins").mkdir()
    Path("bins/train.bin").write_bytes(head + tokens.tobytes())
    return "bins/train.bin"


def _write_lists(column: str) -> str:
    Path("corpus").mkdir()
    pq.write_table(pa.table({column: pa.array(TOKENS, pa.list_(pa.uint16()))}), "corpus/a.parquet")
    return "corpus"


def _write_datasets() -> str:
    Path("corpus/dataset=c4").mkdir(parents=True)
    table = pa.table({"tokens": pa.array(TOKENS, pa.list_(pa.uint16()))})
    feather.write_feather(table, "corpus/dataset=c4/x.part1.arrow", compression="uncompressed")
    return "corpus"


def _write_megatron() -> str:
    Path("mega").mkdir()
    write_megatron(Path("mega/x_document.bin"), [[doc] for doc in TOKENS])
    return "mega"


def _write_mds() -> str:
    write_mds(Path("mds"), [TOKENS])
    return "mds"


def _write_json(content: Callable[[list[int]], dict[str, Any]]) -> str:
    lines = [json.dumps(content(doc)) for doc in TOKENS]
    Path("texts").mkdir()
    Path("texts/a.jsonl").write_text("\n".join(lines) + "\n")
    return "texts/a.jsonl"


def _write_text_column() -> str:
    Path("texts").mkdir()
    pq.write_table(pa.table({"text": ["some words " * 5] * 20}), "texts/a.parquet")
    return "texts/a.parquet"


@pytest.mark.parametrize(
    ("write", "said"),
    [
        (lambda: _write_nanogpt(False), "uint16 is assumed"),
        (lambda: _write_nanogpt(True), ""),
        (lambda: _write_lists("tokens"), ""),
        (lambda: _write_lists("input_ids"), ""),
        (_write_datasets, ""),
        (_write_megatron, ""),
        (_write_mds, ""),
        (lambda: _write_json(lambda doc: {"id": 1, "text": "abc " * len(doc)}), "put your token"),
        (lambda: _write_json(lambda doc: {"tokens": doc}), ""),
        (_write_text_column, "put your tokenizer in"),
    ],
)
def test_documents_of_every_format(write: Callable[[], str], said: str) -> None:
    found = described(write())
    assert (found["kind"], found["documents"]) == ("documents", 20)
    assert any(said in note for note in found["notes"])
    names = executed(found)
    assert len(names["documents"]) == 20
    assert names["documents"].shard_tokens.sum() == found["tokens"]
    assert "inputs" in names["batch"]


def test_of_many_files_the_first_are_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("corpus").mkdir()
    for part in range(5):
        table = pa.table({"tokens": pa.array(TOKENS, pa.list_(pa.uint16()))})
        pq.write_table(table, f"corpus/a.part{part}.parquet")
    size = Path("corpus/a.part0.parquet").stat().st_size
    plant(monkeypatch, "corpora._COUNTED_BYTES", 2 * size)
    found = described("corpus")
    assert (found["documents"], found["counted_files"], found["files"]) == (40, 2, 5)
    assert "from a sample: 2 files of 5 counted" in found["notes"]
    assert len(executed(found)["documents"]) == 100
    plant(monkeypatch, "corpora._COUNTED_BYTES", 1)
    found = described("corpus")
    assert (found["documents"], found["tokens"]) == (None, None)
    executed(found)


def test_the_text_of_json_lines_may_begin_late() -> None:
    lines = ["", '{"id": "a", "text": null}', " ", '{"id": "b", "text": "some words"}', '{"te']
    Path("a.jsonl").write_text("\n".join(lines[:-1]))
    found = described("a.jsonl")
    assert (found["documents"], found["tokens"]) == (2, 10)
    assert 'column="text"' in found["code"]


def test_bytes_of_mds_have_the_dtype_that_gives_small_tokens() -> None:
    for dtype in ("int64", "uint32", "uint16"):
        write_mds(Path(dtype), [TOKENS], encoding="bytes", dtype=dtype)
        found = described(dtype)
        assert found["tokens"] == sum(map(len, TOKENS))
        assert f"{dtype} is a guess" in found["notes"][-1]
        assert len(executed(found)["documents"]) == 20


def test_a_folder_of_several_kinds_is_described_kind_by_kind() -> None:
    Path("all/tables").mkdir(parents=True)
    pq.write_table(curves(), "all/tables/a.parquet")
    pq.write_table(curves(), "all/tables/b.parquet")
    write_megatron(Path("all/mega.bin"), [[doc] for doc in TOKENS])
    lines = "".join(json.dumps({"text": "abc " * len(doc)}) + "\n" for doc in TOKENS)
    for name in ("x", "y"):
        Path(f"all/{name}.jsonl").write_text(lines)
    Path("all/text/corpus/dataset=c4").mkdir(parents=True)
    table = pa.table({"tokens": pa.array(TOKENS, pa.list_(pa.uint16()))})
    feather.write_feather(table, "all/text/corpus/dataset=c4/x.part1.arrow", "uncompressed")
    for split in ("train", "val"):
        write_mds(Path("all/mds") / split, [TOKENS])
    Path("all/broken").mkdir()
    Path("all/broken/a.parquet").write_bytes(b"PAR1 and nothing else")
    found = {one["path"]: one for one in described_all("all")}
    assert {path: one["kind"] for path, one in found.items()} == {
        "all/*.jsonl": "documents",
        "all/broken": "error",
        "all/mds/train": "documents",
        "all/mds/val": "documents",
        "all/mega.bin": "documents",
        "all/tables": "table",
        "all/text/corpus": "documents",
    }
    assert "cannot be read as Parquet" in found["all/broken"]["summary"]
    assert found["all/*.jsonl"]["documents"] == 40
    for one in found.values():
        if one["kind"] == "documents":
            assert len(executed(one)["documents"]) == one["documents"]
    code, out, err = command("describe", "all")
    assert (code, err) == (0, "")
    assert "all/broken: cannot be described: " in out
    (only,) = described_all("all/text")
    assert only["path"] == "all/text/corpus"


def test_of_a_folder_of_many_kinds_the_first_are_described() -> None:
    for number in range(21):
        Path(f"all/{number}").mkdir(parents=True)
        Path(f"all/{number}/b.jsonl").write_text('{"text": "some words"}\n')
    pq.write_table(curves(), "all/a.parquet")
    *first, more = described_all("all")
    assert [one["path"] for one in first] == ["all/a.parquet", *(f"all/{n}" for n in range(19))]
    assert more["summary"] == "2 more files and folders are not described"


def _german(encoding: str) -> None:
    start = datetime(2024, 1, 1)
    lines = ["Zeit;Last;Ort", *(
        f"{start + timedelta(hours=h):%d.%m.%Y %H:%M};{h % 7},5;München" for h in range(300)
    )]  # fmt: skip
    lines[9] = lines[9].replace("1,5", "oops")
    Path("a.csv").write_text("\n".join(lines) + "\n", encoding=encoding)


GERMAN = ("--delimiter", ";", "--decimal", ",", "--missing", "oops")


@pytest.mark.parametrize("size", [32 << 20, 1000])
@pytest.mark.parametrize("encoding", ["utf-8", "latin-1", "utf-16"])
def test_options_of_csv_are_in_the_code(
    encoding: str, size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "tables.SAMPLE_CSV", size)
    _german(encoding)
    found = described("a.csv", *GERMAN, "--encoding", encoding)
    assert roles(found) == {"Zeit": "time", "Last": "target", "Ort": "past covariate"}
    for line in ('delimiter=";"', 'decimal=","', 'missing=["oops"]', f'encoding="{encoding}"'):
        assert line in found["code"]
    assert 'timestamp_format="%d.%m.%Y %H:%M"' in found["code"]
    assert executed(found)["table"].num_rows == 300
    given = ("--time", "Zeit", "--timestamp-format", "%d.%m.%Y %H:%M", "--encoding", encoding)
    assert described("a.csv", *GERMAN, *given)["code"] == found["code"]


def test_csv_of_another_kind_names_the_options() -> None:
    _german("latin-1")
    assert "pass delimiter=';' and decimal=',', or" in refused("a.csv")
    assert refused("a.csv").endswith("--encoding, --timestamp-format, --missing)")
    found = described("a.csv", *GERMAN)
    assert any("not UTF-8: encoding='latin-1'" in note for note in found["notes"])
    assert "expected --time COLUMN" in refused("a.csv", "--timestamp-format", "%d.%m.%Y")
    pq.write_table(curves(), "curves.parquet")
    assert "is Parquet, and `delimiter` is an option of CSV" in refused("curves.parquet", *GERMAN)
    Path("b.jsonl").write_text('{"text": "some words"}\n')
    assert "b.jsonl: `delimiter` is an option of CSV files, expected" in refused(
        "b.jsonl", "--delimiter", ";"
    )
    assert "b.jsonl: `time` is a column of a table, expected" in refused("b.jsonl", "--time", "t")


@pytest.mark.parametrize(
    ("values", "is_asked"),
    [
        (["5,5", "6.0", "7", "-,25"], True),
        (["5,5", "6,0"], False),
        (["5.5", "6,0", "off"], False),
        (["1.5 m", "2,5 m"], False),
    ],
)
def test_decimal_commas_among_points_are_a_question(values: list[str], is_asked: bool) -> None:
    rows = [f'2024-01-0{day},"{value}",{day}\n' for day, value in enumerate(values, 1)]
    Path("mixed.csv").write_text("time,load,count\n" + "".join(rows), encoding="utf-8")
    question = (
        "is the comma in '5,5' a decimal point, as the point in '6.0' of column 'load'? It is read "
        "as text; with one of them in the file it is numbers"
    )
    assert (question in described("mixed.csv")["notes"]) == is_asked


def test_csv_without_names_and_with_an_index_of_pandas() -> None:
    rows = [f"{datetime(2024, 1, 1) + timedelta(hours=h)},{h % 7}.5" for h in range(300)]
    Path("a.csv").write_text("\n".join(rows) + "\n")
    found = described("a.csv", "--header", "no")
    assert roles(found) == {"f0": "time", "f1": "target"}
    executed(found)
    Path("a.csv").write_text(",load\n" + "\n".join(rows) + "\n")
    found = described("a.csv")
    assert roles(found) == {"": "time", "load": "target"}
    executed(found)
    for numbers in (range(300), [n * 7 % 300 for n in range(300)]):
        numbered = [f"{n},{row}" for n, row in zip(numbers, rows, strict=True)]
        Path("a.csv").write_text(",ds,load\n" + "\n".join(numbered) + "\n")
        found = described("a.csv")
        assert roles(found) == {"": "left out: no name", "ds": "time", "load": "target"}
        assert executed(found)["table"].column_names == ("load",)


@pytest.mark.parametrize("name", ["model.pt", "model.npz", "run"])
def test_checkpoints_in_files_and_stores(name: str, tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from windeck import checkpoint

    path = name
    if name == "model.pt":
        torch.save({"w": torch.zeros(3, 2)}, name)
    elif name == "model.npz":
        np.savez(name, w=np.zeros((3, 2), np.float32))
    else:
        checkpoint.save(f"rocksdb://{tmp_path}/run", step=7, model={"w": torch.zeros(3, 2)})
    found = described(path)
    assert (found["kind"], found["tensors"], found["bytes"]) == ("checkpoint", 1, 24)
    assert found["columns"][0]["type"] == "float32 (3, 2)"
    executed(found)
    if name == "run":
        assert found["step"] == 7
        assert described(f"rocksdb://{tmp_path}/run")["tensors"] == 1


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("no.parquet", None, "does not exist"),
        ("empty.csv", b"", "is empty"),
        ("bad.parquet", b"PAR1 and nothing else", "cannot be read as Parquet"),
        ("bad.jsonl", b"no json\n", "is not JSON lines"),
        ("numbers.jsonl", b'{"a": 1}\n', "has no text in its first line"),
        ("numbers.json", b'{"a": 1}\n', "read it with polars.read_ndjson"),
        ("array.json", b'[{"a": 1}, {"a": 2}]', "is not JSON lines, but an array: read a table"),
        ("pretty.json", b'{\n "a": 1\n}', "but an object of several lines: read a table with"),
        ("mds/index.json", b'{"shards": [], "version": 2}', "is an index of MDS: expected the"),
        ("g.jsonl", b'{"start": "2024-01-01", "target": [1.5]}\n', "has entries of GluonTS: read"),
        ("book.xlsx", b"PK\x03\x04 and more", "is an Excel workbook"),
        ("bad.npz", b"nothing", "bad.npz"),
        ("bad.idx", b"nothing", "bad"),
        ("folder/notes.md", b"# words", "no file that windeck reads"),
    ],
)
def test_bad_input_is_one_sentence(name: str, content: bytes | None, said: str) -> None:
    if content is not None:
        Path(name).parent.mkdir(exist_ok=True)
        Path(name).write_bytes(content)
    assert said in refused("folder" if name.startswith("folder") else name)


def test_control_characters_in_names_are_escaped() -> None:
    pq.write_table(pa.table({"load\x1b[2J": np.arange(99.0), "b": [1] * 99}), "a.parquet")
    code, out, err = command("describe", "a.parquet")
    assert (code, err) == (0, "")
    assert "\x1b" not in out


@pytest.mark.parametrize(("dropped", "has_gap"), [(200, True), (4000, False)])
def test_max_gap_is_set_if_most_windows_have_none(dropped: int, has_gap: bool) -> None:
    """Windows are counted: breaks next to each other drop the same windows."""
    hours = np.arange(10_000)
    kept = (hours < 100) | (hours >= 100 + dropped) | (hours % 2 == 0)
    if not has_gap:
        kept = hours % 300 > 0  # of 300 windows 108 have no gap
    times = pa.array(hours[kept].astype("datetime64[h]").astype("datetime64[s]"))
    pq.write_table(pa.table({"time": times, "load": np.sin(hours[kept])}), "curve.parquet")
    found = described("curve.parquet")
    assert ("max_gap" in found["code"]) == has_gap
    assert any("cross breaks" in note for note in found["notes"]) != has_gap
    executed(found)


def hourly(**columns: Any) -> pa.Table:
    """Return a table of 1,000 hours."""
    hours = pa.array(np.arange(1000).astype("datetime64[h]").astype("datetime64[s]"))
    return pa.table({"time": hours, "load": np.sin(np.arange(1000.0)), **columns})


def test_text_is_categories_and_integers_of_few_values_may_be() -> None:
    number = np.arange(1000)
    table = hourly(
        wind=np.array(["NE", "NW", "cv", "SE"])[number % 4], state=number % 3, row=number
    )
    pq.write_table(table, "a.parquet")
    found = described("a.parquet")
    assert 'categorical=["wind"]' in found["code"]
    batch = executed(found)["batch"]
    assert batch["past_categorical"][0, :4, 0].tolist() == [1, 2, 4, 3]  # NE, NW, SE, cv
    assert batch["past_covariates"].shape[2] == 2
    (note,) = (note for note in found["notes"] if "codes" in note)
    assert "at most 20 values are taken as numbers: state; if they are codes, pass " in note
    assert 'categorical=["state"] to Windows' in note


def test_days_without_weekends_have_their_gaps() -> None:
    days = np.arange(1000)
    days = days[np.is_busday(days.astype("datetime64[D]"))]
    times = pa.array(days.astype("datetime64[D]").astype("datetime64[s]"))
    pq.write_table(pa.table({"time": times, "price": np.sin(days)}), "prices.parquet")
    found = described("prices.parquet")
    assert 'max_gap="72h"' in found["code"]
    assert len(executed(found)["windows"]) == len(days) - 191


def test_files_of_no_known_kind_are_counted() -> None:
    Path("all/deep").mkdir(parents=True)
    Path("all/a.jsonl").write_text('{"text": "some words"}\n')
    Path("all/settings.json").write_text("{}")
    for name in ("a.txt", "deep/b.txt", "LICENSE"):
        Path("all", name).write_text("words\n")
    note = "3 files of no known kind are not read: 2 .txt, 1 LICENSE"
    assert described("all")["notes"][-1] == note
    pq.write_table(hourly(), "all/b.parquet")
    assert described_all("all")[-1]["summary"] == note
    Path("all/deep/b.txt").unlink()
    Path("all/LICENSE").unlink()
    assert described_all("all")[-1]["summary"] == "1 file of no known kind is not read: 1 .txt"


def test_a_folder_without_files_that_are_read_names_those_it_has() -> None:
    Path("texts").mkdir()
    Path("texts/a.txt").write_text("words\n")
    found = refused("texts")
    assert "has no file that windeck reads: 1 file of no known kind is not read: 1 .txt; " in found
    assert ".jsonl" in found


def test_a_target_of_integers_becomes_floats() -> None:
    pytest.importorskip("torch")
    hours = pa.array(np.arange(1000).astype("datetime64[h]").astype("datetime64[s]"))
    load = pa.array([None if n % 7 == 0 else n % 50 for n in range(1000)], pa.int64())
    pq.write_table(pa.table({"time": hours, "load": load}), "whole.parquet")
    names = executed(described("whole.parquet"))
    assert next(iter(names["loader"]))["past_target"].is_floating_point()


def test_output_may_be_cut_off() -> None:
    pq.write_table(curves(), "curves.parquet")
    program = "from windeck.cli.main import process; process()"
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-c", program, "describe", "curves.parquet"],
        stdout=writer,
        stderr=subprocess.PIPE,
        text=True,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, "")


def test_no_error_shows_the_password_of_a_store(request: pytest.FixtureRequest) -> None:
    pytest.importorskip("redis")
    server = request.getfixturevalue("start_redis")()
    server.say("ACL", "SETUSER", "reader", "on", ">geheim", "~*", "&*", "+@all")
    login = f"{server.url.replace('redis://', 'redis://reader:geheim@')}"
    wd.checkpoint.save(login, step=1, extra={"w": 2})
    for words in (["--time", "t"], ["--delimiter", ";"]):
        message = refused(login, *words)
        assert "reader:***@" in message
        assert "geheim" not in message


@pytest.mark.parametrize("options", [[], ["--json"]])
def test_nothing_that_is_printed_shows_credentials_of_a_url(
    web: Website, options: list[str]
) -> None:
    url = web.url.replace("http://", "http://reader:geheim@")
    web.objects["a.csv"] = b"load,wind\n1.5,2\n2.5,3\n"
    code, out, err = command("describe", *options, f"{url}/a.csv?signature=verborgen")
    assert (code, err) == (0, "")
    assert "http://***@127.0.0.1" in out
    assert "geheim" not in out
    assert "verborgen" not in out
