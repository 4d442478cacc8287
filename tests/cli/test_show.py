"""`windeck view URL show` and `row`: values, slices, statistics, against NumPy."""

from __future__ import annotations

import itertools
import math
import re
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from support.programs import assert_not_imported
from support.view_cases import (
    EXTRA,
    Fresh,
    Table,
    model,
    refused,
    run,
    run_json,
    saved,
    saved_table,
    url,
)
from windeck import checkpoint

__all__ = ["url"]


def as_json(value: Any) -> Any:
    """Numbers as documents have them."""
    if isinstance(value, list):
        return [as_json(item) for item in value]
    if isinstance(value, complex):
        return [as_json(value.real), as_json(value.imag)]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return value


@pytest.mark.parametrize("name", [name for name in model() if name != "nothing"])
def test_show_every_dtype(url: str, name: str) -> None:
    tensor = model(30)[name]
    found = run_json(url, "show", f"model/{name}")
    rows = tensor[:8] if tensor.ndim else tensor
    assert found["values"] == as_json(rows.tolist())
    assert found["box"] == [[0, min(8, n) if i == 0 else n] for i, n in enumerate(tensor.shape)]
    assert (found["generation"], found["step"], found["url"]) == (3, 30, url)
    assert found["dtype"] == str(tensor.dtype).removeprefix("torch.")
    assert found["data"] == ("model/layers.0.w" if "tied" in name else f"model/{name}")
    code, out, err = run(url, "show", f"model/{name}")
    assert (code, err) == (0, "")
    first = rows.flatten()[0].item()
    cell = out.splitlines()[1].split()[-len(rows[0]) if rows.ndim > 1 else -1]
    assert cell == str(first) or type(first)(cell) == first


def test_show_as_text(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    code, out, _ = run(url, "show", "model/layers.0.w", "--head", "2")
    assert code == 0
    assert out.splitlines() == [
        "model/layers.0.w  float32  [12, 5]  240 B  generation 1  step 10",
        "[0, :]  -10  -9  -8  -7  -6",
        "[1, :]   -5  -4  -3  -2  -1",
        "and 10 rows more",
    ]
    assert run(url, "show", "model/layers.1.tied")[1].startswith(
        "model/layers.1.tied  float32  [12, 5]  240 B  = model/layers.0.w  generation 1"
    )
    assert run(url, "show", "model/scalar")[1].splitlines()[1:] == ["[]  2.5"]
    assert run(url, "show", "model/nothing")[1].splitlines()[1:] == ["(no elements)"]
    assert run(url, "show", "model/layers.0.b")[1].splitlines()[1:] == [
        "[0]    0.5",
        "[1]   -inf",
        "[2]    nan",
        "[3]  1e+30",
        "[4]     -0",
    ]


def test_show_of_what_is_wide_and_deep(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    wide, deep = torch.arange(100.0).reshape(2, 50), torch.arange(240).reshape(4, 3, 20)
    checkpoint.save(url, step=1, model={"wide": wide, "deep": deep})
    out = run(url, "show", "model/wide")[1].splitlines()
    assert out[1].split() == ["[0,", ":]", *map(str, range(8))]
    assert out[-1] == "and 42 columns more"
    assert run_json(url, "show", "model/wide")["values"] == wide.tolist()
    out = run(url, "show", "model/deep", "--head", "4")[1].splitlines()
    assert [line.split(":")[0] for line in out[1:-1]] == [
        f"[{i}, {j}, " for i in range(2) for j in range(3)
    ]
    assert out[-1] == "and 12 columns and 6 rows more"
    assert run_json(url, "show", "model/deep", "--head", "4")["values"] == deep[:2].tolist()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("0:3,:", np.s_[0:3, :]),
        ("-1", np.s_[-1]),
        ("2:4", np.s_[2:4]),
        (":,-2", np.s_[:, -2]),
        ("3,1", np.s_[3, 1]),
        ("...,1", np.s_[..., 1]),
        ("-3:,...", np.s_[-3:, ...]),
        ("9:4", np.s_[9:4]),
        (" 1 : 2 , 0 : 1 ", np.s_[1:2, 0:1]),
        ("5:99", np.s_[5:99]),
    ],
)
def test_show_a_slice(fresh: Fresh, text: str, where: Any) -> None:
    url = saved(fresh("rocksdb"))
    expected = model(10)["layers.0.w"].numpy()[where]
    assert run_json(url, "show", "model/layers.0.w", "--slice", text)["values"] == expected.tolist()
    shown = run(url, "show", "model/layers.0.w", "--slice", text)[1].splitlines()[1:]
    cells = [line.split("]")[1].split() for line in shown if line != "(no elements)"]
    assert [float(cell) for row in cells for cell in row] == expected.reshape(-1).tolist()


def test_places_beside_rows(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    for text, places in (
        ("2:4,1:3", ["[2, :]", "[3, :]"]),
        ("2:4,1", ["[2, 1]", "[3, 1]"]),
        ("-1,:2", ["[11, 0]", "[11, 1]"]),
        ("3,1", ["[3, 1]"]),
    ):
        shown = run(url, "show", "model/layers.0.w", "--slice", text)[1].splitlines()[1:]
        assert [f"{line.split(']')[0]}]" for line in shown] == places


#: Shapes of the tensors of the store of `arrays`; the last one has more columns than a screen.
SHAPES = [shape for axes in range(4) for shape in itertools.product((0, 1, 2, 4), repeat=axes)]
SHAPES.append((3, 2, 20))


def array_of(shape: tuple[int, ...]) -> np.ndarray[Any, Any]:
    return np.arange(np.prod(shape, dtype=int)).reshape(shape)


def name_of(shape: tuple[int, ...]) -> str:
    return "x".join(map(str, (len(shape), *shape)))


@pytest.fixture(scope="module")
def arrays() -> str:
    url = "memory://arrays-to-show"
    model = {name_of(shape): torch.from_numpy(array_of(shape)) for shape in SHAPES}
    checkpoint.save(url, step=1, model=model)
    return url


ENDS = st.none() | st.integers(-6, 6)
ITEMS = st.lists(st.one_of(st.integers(-5, 5), st.tuples(ENDS, ENDS)), max_size=3)


@given(shape=st.sampled_from(SHAPES), items=ITEMS)
def test_any_slice_means_what_numpy_means(
    arrays: str, shape: tuple[int, ...], items: list[Any]
) -> None:
    texts = [
        str(item) if isinstance(item, int) else ":".join("" if x is None else str(x) for x in item)
        for item in items
    ]
    where = tuple(item if isinstance(item, int) else slice(*item) for item in items)
    command = ("show", f"model/{name_of(shape)}", f"--slice={','.join(texts) or '...'}")
    try:
        expected = array_of(shape)[where]
    except IndexError:
        told = refused(arrays, *command, code=2)
        assert f"expected such as '0:3,:' within shape {list(shape)}" in told
        return
    assert run_json(arrays, *command)["values"] == expected.tolist()


@given(shape=st.sampled_from(SHAPES), rows=st.integers(1, 9))
def test_the_head_has_the_first_rows_and_few_more(
    arrays: str, shape: tuple[int, ...], rows: int
) -> None:
    command, array = ("show", f"model/{name_of(shape)}", "--head", str(rows)), array_of(shape)
    found = np.array(run_json(arrays, *command)["values"])
    if len(shape) < 2:
        assert found.tolist() == (array[:rows] if shape else array).tolist()
        return
    flat = array.reshape(-1, shape[-1])[:rows] if array.size else array
    assert found.reshape(-1)[: flat.size].tolist() == flat.reshape(-1).tolist()
    assert found.size <= flat.size + max(1, math.prod(shape[1:]))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a", "has 'a'"),
        ("0:4:2", "has '0:4:2'"),
        ("", "has ''"),
        ("1,2,3", "has 3 dimensions"),
        ("...,...", "has two ..."),
        ("12", "has index 12 in dimension 0"),
        ("0,-6", "has index -6 in dimension 1"),
        ("__import__('os')", "has \"__import__('os')\""),
        ("True", "has 'True'"),
    ],
)
def test_a_slice_that_is_none(fresh: Fresh, text: str, words: str) -> None:
    url = saved(fresh("rocksdb"))
    told = refused(url, "show", "model/layers.0.w", "--slice", text, code=2)
    assert told == (f"the slice {text!r} {words}, expected such as '0:3,:' within shape [12, 5]")


@pytest.mark.parametrize("asked", [["--stats"], ["--head", "1"], ["--slice", ":"]])
def test_a_plain_value_is_no_tensor(fresh: Fresh, asked: list[str]) -> None:
    told = refused(saved(fresh("rocksdb")), "show", "extra/loss", *asked, code=2)
    assert told == "generation 1 has no tensor 'extra/loss': it is a plain value"


def test_a_slice_of_numbers_without_end(fresh: Fresh) -> None:
    """More digits than Python reads at once."""
    url, digits = saved(fresh("rocksdb")), "9" * 5000
    for text in (digits, f":{digits}", f"-{digits}:"):
        told = refused(url, "show", "model/layers.0.w", "--slice", text, code=2)
        assert told == (
            f"the slice {text[:80]!r} has {text[:40]!r}, expected such as '0:3,:' within shape "
            "[12, 5]"
        )
    assert run(url, "show", "model/ids", "--slice", f"2:{digits[:100]}")[1].count("\n") == 3


def test_a_slice_that_is_too_large_to_print(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    checkpoint.save(url, step=1, model={"big": torch.zeros(1001, 1000, dtype=torch.uint8)})
    told = refused(url, "show", "model/big", "--slice", ":", code=2)
    assert (
        told == "the slice has 1,001,000 elements, expected at most 1,000,000: export writes files"
    )
    assert run(url, "show", "model/big", "--slice", "1:2")[0] == 0


def test_only_chunks_with_some_of_it_are_read(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    with checkpoint.stores.open_store(url) as store:
        chunks = list(store.keys(b"~windeck~%016x/t/%08x/%08x/" % (1, 0, 0)))
        assert len(chunks) == 4  # of 16 elements
        store.delete_many(chunks[1:])
    assert run_json(url, "show", "model/layers.0.w", "--head", "3")["values"][2][4] == 4.0
    told = refused(url, "show", "model/layers.0.w", code=1)
    assert told == f"{chunks[1].decode()} is missing, expected a chunk"
    assert refused(url, "show", "model/layers.0.w", "--stats", code=1) == told


def test_stats(url: str) -> None:
    found = run_json(url, "show", "model/layers.0.b", "--stats")
    assert "values" not in found
    stats, finite = found["stats"], np.array([0.5, np.float32(1e30), -0.0], np.float64)
    assert {name: stats[name] for name in ("count", "nan", "zeros")} == {
        "count": 5,
        "nan": 1,
        "zeros": 1,
    }
    assert (stats["positive_infinite"], stats["negative_infinite"]) == (0, 1)
    assert (stats["min"], stats["max"], stats["abs_max"]) == (0, finite.max(), finite.max())
    assert math.isclose(stats["mean"], finite.mean(), rel_tol=1e-12)
    assert math.isclose(stats["std"], finite.std(), rel_tol=1e-12)
    assert len(stats["edges"]) == 21
    assert stats["histogram"] == np.histogram(finite, stats["edges"])[0].tolist()
    assert stats["largest"][0] == {"index": [3], "value": finite.max()}
    whole = run_json(url, "show", "model/ids", "--stats")["stats"]
    assert (whole["min"], whole["max"]) == (-(2**63), 2**63 - 1)


def test_stats_as_text(fresh: Fresh) -> None:
    url = saved(fresh("rocksdb"))
    code, out, _ = run(url, "show", "model/layers.0.w", "--stats")
    assert code == 0
    told = out.splitlines()
    assert told[1].split() == ["count", "60"]
    values = model(10)["layers.0.w"].numpy()
    assert ["mean", f"{values.mean():.6g}"] in [line.split() for line in told]
    bars = [line for line in told if line.startswith("[") and "█" in line]
    assert len(bars) == 20
    assert [int(line.split()[-1]) for line in bars] == np.histogram(values, 20)[0].tolist()
    assert "[11, 4]  49" in told
    head = run(url, "show", "model/layers.0.w", "--stats", "--head", "1")[1]
    assert "[0, :]" in head
    assert "count" in head


def test_bars_show_what_is_rare_and_what_is_nothing() -> None:
    url = "memory://bars"
    values = torch.cat([torch.zeros(100_000), torch.ones(1)])
    checkpoint.save(url, step=1, model={"x": values, "none": torch.full((2,), torch.nan)})
    told = run(url, "show", "model/x", "--stats")[1].splitlines()
    bars = [re.split(r"[\])]  ", line, maxsplit=1)[1].split() for line in told if ", " in line]
    bars = [bar for bar in bars if bar[-1].replace(",", "").isdecimal()]
    assert bars[0] == ["█" * len(bars[0][0]), "100,000"]
    assert len(bars[0][0]) > 10
    assert bars[1:-1] == [["0"]] * 18
    assert bars[-1] == ["▏", "1"]
    assert "█" not in run(url, "show", "model/none", "--stats")[1]


def test_stats_of_what_is_no_number(fresh: Fresh) -> None:
    url = fresh("rocksdb")
    bits = torch.tensor([1, 255], dtype=torch.uint8).view(torch.bits8)
    checkpoint.save(url, step=1, model={"bits": bits})
    assert run_json(url, "show", "model/bits")["values"] == ["0x01", "0xff"]
    told = refused(url, "show", "model/bits", "--stats", code=2)
    assert told == "model/bits has elements of dtype bits8, expected numbers"


def test_plain_values(url: str) -> None:
    assert run_json(url, "show", "extra/loss")["values"] == [{"name": "extra/loss", "value": 0.25}]
    found = {item["name"]: item["value"] for item in run_json(url, "show", "extra")["values"]}
    assert found == {
        "extra/loss": 0.25,
        "extra/bad": "nan",
        "extra/note": EXTRA["note"],
        "extra/betas": [0.9, 0.99],
        "extra/deep/0/x": 1,
    }
    assert run(url, "show", "extra/note") == (0, "'warm\\x1b[2Jup'\n", "")
    assert run(url, "show", "extra/betas/1") == (0, "0.99\n", "")
    assert run(url, "show", "extra/deep")[1].split() == ["extra/deep/0/x", "1"]
    for name in ("extra/betas/2", "extra/betas/x", "extra/loss/0"):
        assert refused(url, "show", name, code=2).startswith("generation 3 has no tensor, table or")


def test_a_name_that_nothing_has(url: str) -> None:
    told = refused(url, "show", "model/layers.0.x", code=2)
    assert told.startswith("generation 3 has no tensor, table or value 'model/layers.0.x': did you")
    assert "model/layers.0.w" in told
    for flags in (["--stats"], ["--head", "2"], ["--slice", ":"]):
        told = refused(url, "show", "extra", *flags, code=2)
        assert told == "generation 3 has no tensor 'extra': expected one of the 9 that ls shows"
        told = refused(url, "show", "model/layers", *flags, code=2)
        assert told.endswith("it is a group, expected a name in it, such as model/layers.0.w")
    assert refused(url, "show", "model/half", "--head", "2", "--slice", ":", code=2) == (
        "--slice and --head exclude each other, expected one of them"
    )


def test_rows_of_a_tensor(url: str) -> None:
    values = model(30)["layers.0.w"]
    found = run_json(url, "row", "model/layers.0.w", "3", "-1")["rows"]
    assert found == [
        {"id": 3, "values": values[3].tolist()},
        {"id": -1, "values": values[-1].tolist()},
    ]
    code, out, _ = run(url, "row", "model/ids", "1")
    assert (code, out.split()) == (0, ["id", "values", "1", str(2**63 - 1)])
    for number in (12, -13):
        told = refused(url, "row", "model/layers.0.w", str(number), code=2)
        assert told == f"model/layers.0.w has no row {number}, expected one of -12 to 11"
    told = refused(url, "row", "model/nothing", "0", code=2)
    assert told == "model/nothing has no row 0: it has none"
    told = refused(url, "row", "model/scalar", "0", code=2)
    assert told == "model/scalar has no dimensions, expected a tensor with rows"


@pytest.mark.parametrize("name", ["user", "embeddings/user"])
def test_rows_of_a_table(fresh: Fresh, name: str) -> None:
    url = saved_table(fresh("rocksdb"))
    ids = [*Table.IDS.tolist(), 1]
    found = run_json(url, "row", name, *map(str, ids), "--generation", "1")
    assert found["table"]["name"] == "user"
    assert [one["id"] for one in found["rows"]] == ids
    place = np.cumsum(Table.ADMITTED) - 1
    for one in found["rows"]:
        (at,) = np.flatnonzero(one["id"] == Table.IDS)
        row = as_json(Table.VALUES[place[at]].tolist())
        admitted = bool(Table.ADMITTED[at])
        assert one == {
            "id": int(Table.IDS[at]),
            "found": True,
            "admitted": admitted,
            "version": int(Table.VERSIONS[at]),
            "frequency": int(Table.FREQUENCIES[at]),
            "seen": int(Table.SEEN[at]),
            "values": row[:3] if admitted else None,
            "slots": [row[3:]] if admitted else [],
        }


def test_rows_that_are_not_there(fresh: Fresh) -> None:
    url = saved_table(fresh("rocksdb"))
    found = run_json(url, "row", "user", "1", "7", code=1)["rows"]  # 7 is in generation 1 alone
    assert [one["found"] for one in found] == [True, False]
    code, out, _ = run(url, "row", "user", "7", "1")
    assert code == 1
    assert [line.split()[0] for line in out.splitlines()] == ["id", "7", "1"]
    assert out.splitlines()[1].endswith("not found")
    assert run(url, "row", "user", "7", "--generation", "1")[1].endswith("no row\n")
    told = refused(url, "row", "users", "1", code=2)
    assert told == "generation 2 has no tensor or table 'users': did you mean user?"
    told = refused(url, "show", "user", "--stats", code=2)
    assert told == "generation 2 has no tensor 'user': it is an embedding table"
    for text in ("x", "1.5", str(2**63), "--7", "1e3"):
        told = refused(url, "row", "user", text, code=2)
        assert told == f"an id is {text!r}, expected an integer of 64 bits"


def test_a_table_in_ls_and_show(fresh: Fresh) -> None:
    url = saved_table(fresh("rocksdb"))
    (table,) = run_json(url, "ls", "--generation", "1")["tables"]
    with checkpoint.stores.open_store(url) as store, checkpoint.open(store, generation=1) as saved_:
        info = saved_.tables["user"]
    assert (table["name"], table["dim"], table["slots"]) == ("user", 3, 1)
    assert (table["rows"], table["counted"], table["clock"]) == (4, 1, 5)
    assert table["bytes"] == info.bytes
    assert [link["generation"] for link in table["links"]] == [1]
    assert run_json(url, "show", "user", "--generation", "1")["table"] == table
    (line,) = (line for line in run(url, "ls")[1].splitlines() if "user" in line)
    assert line.split()[:5] == ["embeddings/user", "float32", "[4", "ids,", "3]"]
    shown = [line.split() for line in run(url, "show", "embeddings/user")[1].splitlines()]
    assert ["config", "{'kind':", "'made", "up'}"] in shown
    assert run_json(url, "ls", "embeddings/u*")["tensors"] == []


def test_torch_stays_outside(fresh: Fresh) -> None:
    url = saved_table(fresh("rocksdb"))
    for words in ("show model/w --stats", "row user 1", "find --nan", "diff 2 2", "verify --deep"):
        assert_not_imported({"torch"}, "view", url, *words.split())
