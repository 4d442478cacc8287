"""`_repr_html_`: valid HTML for notebooks, with all text escaped."""

from __future__ import annotations

from html.parser import HTMLParser
from typing import Any

import numpy as np
import pyarrow as pa

from windeck import Loader, Table, Windows


class Cells(HTMLParser):
    """The cells of tables; an error for tags that are not closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.opened: list[str] = []
        self.cells: list[str] = []
        self.feed(text)
        assert not self.opened

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.opened.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.opened.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.opened[-1] in ("td", "th"):
            self.cells.append(data)


def table(rows: int = 60) -> Table:
    data = pa.table(
        {
            "site": ["a"] * rows,
            "<script>": [None, *np.arange(rows - 1.0)],
            "wind": ["N", "S"] * (rows // 2),
        }
    )
    return Table.from_arrow(data, id_columns="site", categories="wind")


def test_tables() -> None:
    text = table()._repr_html_()
    assert "<script>" not in text
    cells = Cells(text).cells
    assert cells[:4] == ["column", "dtype", "missing", "categories"]
    assert cells[cells.index("wind") :] == ["wind", "int32", "0", "2"]
    assert "<script>" in cells
    many = Table.from_columns({f"c{n}": np.zeros(2) for n in range(30)})
    assert "and 10 columns more" in many._repr_html_()
    assert Cells(many._repr_html_()).cells.count("float64") == 20


def test_windows_splits_and_loaders() -> None:
    windows = Windows(table(), context_length=4, prediction_length=2, target_columns="<script>")
    text = windows._repr_html_()
    assert {"past_target", "future_target"} <= set(Cells(text).cells)
    assert str(windows.explain()).splitlines()[0] in text
    split = windows.split(validation=0.2, test=0.2)
    cells = Cells(split._repr_html_()).cells
    assert cells[3:5] == ["train", f"{len(split.train):,}"]
    loader = Loader(windows, batch_size=8)
    next(iter(loader))
    cells = Cells(loader._repr_html_()).cells
    assert cells[cells.index("position") + 1] == "8, epoch 0"
    assert cells[cells.index("step") + 1] == "1"
