"""`windeck view URL find`, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from support.view_cases import Fresh, Table, model, refused, run, run_json, saved, saved_table, url

__all__ = ["url"]


def places(mask: Any) -> list[list[int]]:
    return [list(map(int, index)) for index in np.argwhere(mask)]


def found_in(document: Any) -> dict[str, list[list[int]]]:
    return {
        one["name"]: [match["index"] for match in one["matches"]]
        for one in document["tensors"]
        if one["count"]
    }


def real_tensors() -> dict[str, Any]:
    return {
        f"model/{name}": tensor.to(torch.float64).numpy()
        for name, tensor in model(30).items()
        if name not in ("turns", "layers.1.tied", "ids")
    }


def test_find_by_value_everywhere(url: str) -> None:
    found = run_json(url, "find", "--where", "abs>1e3", "--limit", "1000")
    expected = {name: places(np.abs(array) > 1e3) for name, array in real_tensors().items()}
    expected["model/ids"] = [[0], [1]]
    assert found_in(found) == {name: where for name, where in expected.items() if where}
    assert found["count"] == sum(map(len, expected.values()))
    assert {one["name"]: one["elements"] for one in found["tensors"]}["model/layers.0.w"] == 60
    assert found["tables"] == []


@pytest.mark.parametrize(
    ("asked", "test"),
    [
        (["--nan"], lambda x: np.isnan(x)),
        (["--inf"], lambda x: np.isinf(x)),
        (["--nan", "--inf"], lambda x: ~np.isfinite(x)),
        (["--eq", "0.5"], lambda x: x == 0.5),
        (["--eq", "3", "--tol", "2"], lambda x: np.abs(x - 3) <= 2),
        (["--eq=-2.25"], lambda x: x == -2.25),
        (["--where", "0 <= value < 2 or nan"], lambda x: ((x >= 0) & (x < 2)) | np.isnan(x)),
        (["--where", "value > 30", "--eq", "0.5"], lambda x: (x > 30) | (x == 0.5)),
    ],
)
def test_find_conditions(fresh: Fresh, asked: list[str], test: Any) -> None:
    url = saved(fresh("rocksdb"), 30)
    with np.errstate(invalid="ignore"):
        expected = {name: places(test(array)) for name, array in real_tensors().items()}
    found = {
        name: where
        for name, where in found_in(run_json(url, "find", *asked, "--limit", "1000")).items()
        if name not in ("model/turns", "model/ids")
    }
    assert found == {name: where for name, where in expected.items() if where}


def test_find_in_some_and_as_text(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"), 10)
    code, out, err = run(url, "find", "model/layers", "--where", "value > 46", "--limit", "2")
    assert (code, err) == (0, "")
    assert out.splitlines() == [
        "model/layers.0.w  3 of 60",
        "  [11, 2]  47",
        "  [11, 3]  48",
        "  and 1 more",
        "model/layers.0.b  1 of 5",
        "  [3]  1e+30",
        "4 found",
    ]
    (one,) = run_json(url, "find", "model/layers.1.tied", "--eq", "10")["tensors"]
    assert (one["name"], one["matches"]) == (
        "model/layers.1.tied",
        [{"index": [4, 0], "value": 10.0}],
    )
    assert run_json(url, "find", "*.w", "--eq", "10", "--limit", "0")["tensors"][0]["count"] == 1


def test_what_cannot_be_searched_is_said(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"), 10)
    found = run_json(url, "find", "model/turns", "--where", "value > 1", code=1)
    (one,) = found["tensors"]
    assert one["skipped"] == "complex64 has no order: expected abs > 1"
    code, out, _ = run(url, "find", "model/turns", "--where", "value > 1")
    assert code == 1
    assert out.splitlines() == [f"model/turns  skipped: {one['skipped']}", "0 found"]
    found = run_json(url, "find", "model/turns", "--eq", "1-2j")["tensors"][0]
    assert found["matches"] == [{"index": [0], "value": [1.0, -2.0]}]


def test_nothing_found(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    assert run_json(url, "find", "model/flags", "--nan", code=1)["count"] == 0
    assert run(url, "find", "model/flags", "--nan") == (1, "0 found\n", "")


def ids_where(mask: Any) -> list[int]:
    return sorted(Table.IDS[mask].tolist())


@pytest.mark.parametrize(
    ("asked", "mask"),
    [
        (["--freq", ">10"], Table.FREQUENCIES > 10),
        (["--freq", "== 1"], Table.FREQUENCIES == 1),
        (["--version", "<2"], Table.VERSIONS < 2),
        (["--seen", ">=4"], Table.SEEN >= 4),
        (["--freq", ">1", "--version", "<=3"], (Table.FREQUENCIES > 1) & (Table.VERSIONS <= 3)),
        (["--nan"], Table.IDS == -5),
        (["--where", "value > 2"], np.array([True, True, True, False, False])),
        (["--where", "value > 2", "--freq", ">1"], np.array([True, False, True, False, False])),
    ],
)
def test_find_rows_of_a_table(fresh: Fresh, asked: list[str], mask: Any) -> None:
    url = saved_table(fresh("rocksdb"))
    found = run_json(url, "find", "user", *asked, "--generation", "1")
    (table,) = found["tables"]
    assert sorted(row["id"] for row in table["rows"]) == ids_where(mask)
    assert table["count"] == found["count"] == mask.sum()
    for row in table["rows"]:
        (at,) = np.flatnonzero(row["id"] == Table.IDS)
        assert (row["version"], row["frequency"], row["seen"]) == (
            Table.VERSIONS[at],
            Table.FREQUENCIES[at],
            Table.SEEN[at],
        )


def test_rows_as_text(fresh: Fresh) -> None:
    url = saved_table(fresh("rocksdb"))
    out = run(url, "find", "--where", "value > 2", "--generation", "1", "--freq", "<2")[1]
    assert out.splitlines() == [
        "user  1",
        "  id -5  version 1  frequency 1  seen 2  [2] 4",
        "1 found",
    ]
    everywhere = run_json(url, "find", "--where", "value >= 2", "--generation", "1")
    assert [one["name"] for one in everywhere["tensors"]] == ["model/w"]
    assert everywhere["tables"][0]["count"] == 4


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        (
            [],
            "nothing is searched for, expected --where, --nan, --inf, --eq, --freq, --version or "
            "--seen",
        ),
        (["--tol", "1"], "--tol is a distance from --eq, expected both"),
        (
            ["--where", "open(1) > 2"],
            "cannot parse the condition 'open(1) > 2', expected for example ",
        ),
        (
            ["--where", "value >"],
            "cannot parse the condition 'value >', expected for example 'abs > ",
        ),
        (["--eq", "x"], "--eq is 'x', expected a number"),
        (["--eq", "nan"], "value is nan, expected a number; nan needs a separate condition"),
        (["--eq", "1", "--tol", "-1"], "tolerance is -1.0, expected a finite number of at least"),
        (["--freq", "10"], "--freq is '10', expected such as '>10'"),
        (["--freq", ">x"], "--freq is '>x', expected such as '>10'"),
        (["--version", "> 1 or f(2)"], "--version is '> 1 or f(2)', expected such as '>10'"),
        (["--freq", ">1"], "--freq, --version and --seen are for embedding tables, expected one"),
        (["model/nan", "--nan"], "generation 1 has no tensor or table 'model/nan': did you mean"),
    ],
)
def test_what_cannot_be_asked(fresh: Fresh, asked: list[str], told: str) -> None:
    words = refused(saved(fresh("rocksdb")), "find", *asked, code=2)
    assert words.startswith(told)


def test_damage_is_no_match(fresh: Fresh) -> None:
    from windeck.checkpoint.stores import open_store

    url = saved(fresh("rocksdb"))
    key = b"~windeck~%016x/t/%08x/%08x/%08x" % (1, 0, 0, 0)
    with open_store(url) as store:
        store.delete_many([key])
    told = refused(url, "find", "model/layers.0.w", "--nan", code=1)
    assert told == f"{key.decode()} is missing, expected a chunk"
