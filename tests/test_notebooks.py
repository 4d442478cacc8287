"""`_repr_html_`: valid HTML for notebooks, with all text escaped."""

from __future__ import annotations

from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from windeck import (
    Documents,
    EmbeddingTable,
    JaggedTable,
    Loader,
    Mixture,
    PackedSequences,
    Scaler,
    Table,
    Windows,
)


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


def test_scalers() -> None:
    scaler = Scaler.fit(table(), columns=["<script>"])
    cells = Cells(scaler._repr_html_()).cells
    assert cells[:3] == ["column", "estimates", "<script>"]
    assert cells[3] == "mean 29, std 17.0294, of 59 values, exact"
    many = Scaler.fit(Table.from_columns({f"c{n}": np.arange(4.0) for n in range(30)}))
    assert "and 10 columns more" in many._repr_html_()


def test_documents_packed_sequences_and_mixtures(tmp_path: Path) -> None:
    folder = tmp_path / "dataset=<b>"
    folder.mkdir()
    tokens = pa.array([list(range(20))] * 6, pa.list_(pa.uint16()))
    pq.write_table(pa.table({"tokens": tokens}), folder / "x.part0.parquet")
    documents = Documents(tmp_path)
    text = documents._repr_html_()
    assert "<b>:" not in text
    assert Cells(text).cells[5:9] == ["<b>", "1", "6", "120"]
    packed = PackedSequences(documents, sequence_length=8, eos=0)
    cells = Cells(packed._repr_html_()).cells
    assert cells[cells.index("sequence_length") + 1] == "8"
    mixture = Mixture({"<i>": (packed, 3), "b": (packed, 1)}, seed=1)
    text = mixture._repr_html_()
    assert "<i>" not in text
    assert Cells(text).cells[:5] == ["part", "share", "source", "<i>", "0.75"]


def test_tables_with_lists_and_embedding_tables() -> None:
    lists = pa.table({"<b>": [[1, 2], [], [3]], "clicked": [1.0, 0.0, 1.0]})
    cells = Cells(JaggedTable.from_arrow(lists)._repr_html_()).cells
    assert cells[4:] == ["<b>", "int64", "3", "1", "clicked", "float64"]
    embeddings = EmbeddingTable(4, name="<user>")
    text = embeddings._repr_html_()
    assert "<user>" not in text
    assert "EmbeddingTable: 0 rows of 4 on this rank" in text
    cells = Cells(text).cells
    assert cells[cells.index("name") + 1] == "'<user>'"
