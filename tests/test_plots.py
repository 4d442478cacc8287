"""`plot` of tables, windows, orders and loaders, and the pictures of `docs/looking.md`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import windeck as wd
from support.corpora import write_corpus
from support.demo_folder import copy_demo_files, write_hours
from support.pages import Page
from support.programs import printed
from windeck.orders import plot_order

matplotlib = pytest.importorskip("matplotlib")
matplotlib.use("Agg")
PAGE = Page("docs/looking.md")


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    from matplotlib import pyplot

    pyplot.close("all")


@pytest.fixture
def ax() -> Any:
    from matplotlib.figure import Figure

    return Figure().subplots()


def table(rows: int = 60) -> wd.Table:
    values = np.arange(2.0 * rows)
    values[5] = np.nan
    columns = {"load": values, "wind": values[::-1].astype(np.float32)}
    return wd.Table.from_columns(columns, offsets=[0, rows, 2 * rows], series_names=["a", "b"])


def lines(ax: Any) -> dict[str, Any]:
    """Return x and y of each line by its label."""
    return {line.get_label(): line.get_xydata() for line in ax.lines}


def test_a_table_draws_columns_of_series_with_gaps(ax: Any) -> None:
    assert table().plot(ax=ax) is ax
    found = lines(ax)
    assert [*found] == ["load", "wind"]
    assert np.isnan(found["load"][5, 1])
    assert found["load"][:, 1].tolist()[6:] == [*np.arange(6.0, 60)]
    assert ax.get_title() == "series a"


def test_a_table_draws_several_series(ax: Any) -> None:
    table().plot("load", series=[0, 1], ax=ax)
    found = lines(ax)
    assert [*found] == ["load, a", "load, b"]
    assert found["load, b"][0].tolist() == [0, 60]


def test_long_lines_keep_their_least_and_greatest_values(ax: Any) -> None:
    values = np.random.default_rng(0).random(100_001)
    values[[70_000, 70_001]] = 5.0, -5.0
    values[:30_000] = np.nan
    wd.Table.from_columns({"load": values}).plot(ax=ax)
    y = lines(ax)["load"]
    assert len(y) <= 4000
    assert (np.nanmax(y[:, 1]), np.nanmin(y[:, 1])) == (5.0, -5.0)
    assert np.all(np.diff(y[:, 0]) >= 0)
    assert np.isnan(y[y[:, 0] < 29_000, 1]).all()


def test_what_a_table_refuses_to_draw(tmp_path: Path) -> None:
    with pytest.raises(KeyError, match="no column 'lod'"):
        table().plot("lod")
    with pytest.raises(ValueError, match="series"):
        table().plot(series=2)
    path = write_hours(tmp_path / "a.parquet", sites=1, days=9)
    streamed = wd.Table.read(path, columns="load", in_memory=False, group_bytes=1 << 20)
    with pytest.raises(TypeError, match=r"plot\(\)"):
        streamed.plot()
    windows = wd.Windows(streamed, context_length=4, target_columns="load")
    with pytest.raises(TypeError, match=r"plot\(\)"):
        windows.plot(0)


def test_a_window_draws_past_future_prediction_and_missing_steps(ax: Any) -> None:
    windows = wd.Windows(table(), context_length=4, prediction_length=2, target_columns="load")
    assert windows.plot(2, prediction=[1.0, 2.0], ax=ax) is ax
    found = lines(ax)
    assert found["load, past"][:, 0].tolist() == [-4, -3, -2, -1]
    assert found["load, past"][[0, 1, 2], 1].tolist() == [2, 3, 4]
    assert found["load, future"].tolist() == [[0, 6], [1, 7]]
    assert found["load, prediction"].tolist() == [[0, 1], [1, 2]]
    assert found["missing"].tolist() == [[-1, 0]]
    assert ax.get_title() == "window 2: series a"


def test_a_window_draws_units_of_the_table_whatever_its_options(ax: Any) -> None:
    data = table()
    windows = wd.Windows(
        data, context_length=4, prediction_length=2, gap=2, dilation=3, layout="columns",
        target_columns=["load", "wind"], scaler=wd.Scaler.fit(data), dtype="bfloat16",
    )  # fmt: skip
    windows.plot(0, prediction=np.zeros((2, 2)), ax=ax)
    found = lines(ax)
    assert found["wind, past"][:, 1].tolist() == [119, 116, 113, 110]
    assert found["load, future"][:, 1].tolist() == [14, 17]
    assert found["load, future"][:, 0].tolist() == [2 / 3, 5 / 3]
    with pytest.raises(ValueError, match=r"`prediction` has shape \(2,\), expected \(2, 2\)"):
        windows.plot(0, prediction=[1, 2])
    with pytest.raises(IndexError):
        windows.plot(len(windows))


def test_steps_outside_of_a_series_are_marked(ax: Any) -> None:
    windows = wd.Windows(table(), context_length=4, target_columns="wind", pad=True)
    windows.plot(0, ax=ax)
    assert lines(ax)["missing"][:, 0].tolist() == [-4, -3, -2]


def test_orders_draw_samples_by_position(ax: Any) -> None:
    for order in (
        wd.Permutation(50, seed=1),
        wd.Sequential(50),
        wd.Lanes(50, lanes=5),
        wd.BlockPermutation(50, block_size=5, seed=1),
    ):
        ax.clear()
        assert order.plot(ax=ax) is ax
        (line,) = ax.lines
        assert line.get_ydata().tolist() == order[:].tolist()
    ax.clear()
    plot_order(wd.Permutation(10**12, seed=1), ax=ax)
    assert ax.get_title() == "Permutation of 1,000,000,000,000 samples"
    assert len(ax.lines[0].get_xdata()) == 2000


def test_loaders_draw_the_samples_of_their_next_steps(ax: Any) -> None:
    pytest.importorskip("torch")
    windows = wd.Windows(table(), context_length=4, target_columns="wind")
    loader = wd.Loader(windows, batch_size=8, shuffle=True)
    next(iter(loader))
    assert loader.plot(steps=3, ax=ax) is ax
    expected = [[step, n] for step in (1, 2, 3) for n in loader.samples(step).tolist()]
    assert lines(ax)["rank 0"].tolist() == expected
    ax.clear()
    mixture = wd.Mixture({"x": (windows, 1), "y": (windows, 1)}, seed=1)
    wd.Loader(mixture, batch_size=8, rank=0, world_size=2).plot(ax=ax)
    assert {"x", "y"} == set(lines(ax))


def test_sequences_are_drawn_at_their_first_document(ax: Any, tmp_path: Path) -> None:
    """The numbers of sequences are those of the shuffled order, which would be drawn as a line."""
    pytest.importorskip("torch")
    for name in ("a", "b"):
        shards = {f"{name}/x.part{part}": [[1, 2, 3, 4, 5, 6, 7]] * 40 for part in range(3)}
        write_corpus(tmp_path / name, shards)
    packed = {
        name: wd.PackedSequences(wd.Documents(tmp_path / name), sequence_length=8, order="mixed")
        for name in ("a", "b")
    }
    mixture = wd.Mixture({"a": (packed["a"], 1), "b": (packed["b"], 1)}, seed=1)
    for data, names in ((mixture, {"a", "b"}), (packed["a"], {"rank 0"})):
        ax.clear()
        loader = wd.Loader(data, batch_size=8)
        loader.plot(steps=8, ax=ax)
        assert ax.get_ylabel() == "document, of those drawn"
        rows = [row[0][:3] for step in range(8) for row in loader.documents(step)]
        numbers = {document: number for number, document in enumerate(sorted(set(rows)))}
        drawn = lines(ax)
        assert set(drawn) == names
        found = sorted(point for line in drawn.values() for point in line[:, 1].tolist())
        assert found == sorted(numbers[row] for row in rows)
        for line in drawn.values():
            assert (np.diff(line[:, 1]) < 0).any()


def test_without_matplotlib_an_error_says_what_to_install() -> None:
    program = """
import sys
sys.modules["matplotlib"] = None
import numpy as np, windeck as wd
try:
    wd.Table.from_columns({"load": np.arange(3.0)}).plot()
except ImportError as error:
    print(error)
"""
    cure = "pip install 'windeck[plot]'"
    assert printed(program) == f"plot() needs matplotlib, which is not installed: {cure}\n"


def test_the_page_runs_and_makes_its_pictures(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With WINDECK_PICTURES=1 in the environment the pictures of the page are replaced."""
    pytest.importorskip("torch")
    pictures = re.findall(r"\]\((pictures/\w+\.png)\)", PAGE.text)
    monkeypatch.chdir(tmp_path)
    copy_demo_files(tmp_path / "out")
    names: dict[str, Any] = {}
    made = []
    for number in range(len(PAGE.blocks)):
        names = PAGE.run(names, only=slice(number, number + 1))
        made.append(names["ax"].figure)
    assert len(made) == len(pictures)
    for figure, picture in zip(made, pictures, strict=True):
        kept = PAGE.path.parent / picture
        if os.environ.get("WINDECK_PICTURES"):
            figure.savefig(kept, dpi=80)
        figure.savefig("new.png", dpi=80)
        assert kept.read_bytes()[:24] == Path("new.png").read_bytes()[:24]  # their size
        assert kept.stat().st_size < 80_000
