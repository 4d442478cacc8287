"""Progress bars that appear unasked: at a terminal, after two seconds, and nowhere else."""

from __future__ import annotations

import io
import itertools
import threading
from collections.abc import Callable
from contextlib import redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import windeck as wd
from support.internals import plant
from support.store_servers import need
from windeck._util import report_progress
from windeck.cli.main import main

pytest.importorskip("rich")


class Terminal(io.StringIO):
    """Standard error of a terminal."""

    def isatty(self) -> bool:
        return True


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 3 seconds pass between two looks at the clock."""
    seconds = itertools.count(0.0, 3.0)
    plant(monkeypatch, "progress.clock", lambda: next(seconds))


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    made = Terminal()
    monkeypatch.setenv("TERM", "xterm")
    for name in ("RANK", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    return made


def corpus(folder: Path) -> Path:
    tokens = pa.array([list(range(20))] * 6, pa.list_(pa.uint16()))
    for part in range(300):
        pq.write_table(pa.table({"tokens": tokens}), folder / f"x.part{part}.parquet")
    return folder


def files(folder: Path) -> str:
    for part in range(3):
        rows = 70_000
        data = {"id": [part] * rows, "t": np.arange(rows), "load": np.arange(rows) / 7}
        pq.write_table(pa.table(data), folder / f"part{part}.parquet", row_group_size=10_000)
    return str(folder)


def read_documents(folder: Path) -> None:
    wd.Documents(corpus(folder))


def read_table(folder: Path) -> None:
    wd.Table.read(files(folder), id_columns="id", timestamp_column="t")


def open_streamed(folder: Path) -> None:
    wd.Table.read(files(folder), id_columns="id", timestamp_column="t", in_memory=False)


def prepare(folder: Path) -> None:
    (folder / "in").mkdir()
    wd.prepare(
        files(folder / "in"),
        folder / "out",
        id_columns="id",
        timestamp_column="t",
        file_bytes=1 << 20,
    )


def fit_scaler(folder: Path) -> None:
    columns = {"a": np.arange(9.0), "b": np.arange(9.0)}
    wd.Scaler.fit(wd.Table.from_columns(columns), per_series=True)


def save_and_load(folder: Path) -> None:
    torch = pytest.importorskip("torch")
    from windeck import checkpoint

    model = {"w": torch.arange(900.0), "b": torch.arange(900.0)}
    need("rocksdb")
    with checkpoint.stores.open_store(f"rocksdb://{folder}/run") as store:
        for step in range(5):
            checkpoint.save(store, step=step, model=model, chunk_bytes=1024)
        checkpoint.load(store, model=model)
        with checkpoint.stores.open_store("memory://") as target:
            checkpoint.copy(store, target)
        checkpoint.gc(store, keep=1)


def look(folder: Path) -> None:
    """Verify, search and compare generations with the viewer."""
    torch = pytest.importorskip("torch")
    need("rocksdb")
    from windeck import checkpoint

    url, table = f"rocksdb://{folder}/run", wd.EmbeddingTable(4)
    for step in (1, 2):
        table(torch.arange(100 * step))
        model = {"w": torch.arange(10_000.0) * step}
        checkpoint.save(url, step=step, model=model, embeddings={"t": table}, chunk_bytes=1024)
    for words in (["verify", "--deep"], ["find", "--eq", "7"], ["diff", "1", "2"]):
        with redirect_stdout(io.TextIOWrapper(io.BytesIO(), "utf-8")), suppress(SystemExit):
            main(["view", url, *words])


WORK: list[tuple[Callable[[Path], None], list[str]]] = [
    (read_documents, ["counting"]),
    (read_table, ["opening files", "reading"]),
    (open_streamed, ["opening files", "reading ids and time"]),
    (prepare, ["reading", "sorting"]),
    (fit_scaler, ["fitting a scaler"]),
    (save_and_load, ["saving", "loading", "copying", "removing"]),
    (look, ["verifying", "searching", "comparing t"]),
]


@pytest.mark.parametrize(("work", "whats"), WORK)
@pytest.mark.usefixtures("slow")
def test_long_work_shows_a_bar_at_a_terminal(
    work: Callable[[Path], None], whats: list[str], terminal: Terminal, tmp_path: Path
) -> None:
    with redirect_stderr(terminal):  # pytest replaces it between fixtures and the test
        work(tmp_path)
    shown = terminal.getvalue()
    for what in whats:
        assert what in shown, what


@pytest.mark.parametrize("work", [work for work, _ in WORK])
def test_short_work_shows_none(
    work: Callable[[Path], None],
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
) -> None:
    plant(monkeypatch, "progress.clock", lambda: 1.0)
    with redirect_stderr(terminal):
        work(tmp_path)
    assert terminal.getvalue() == ""


@pytest.mark.parametrize("where", ["a file", "another rank", "dumb", "another thread"])
@pytest.mark.usefixtures("slow")
def test_elsewhere_none_is_shown(
    where: str, terminal: Terminal, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if where == "a file":
        monkeypatch.setattr(Terminal, "isatty", lambda self: False)
    elif where == "another rank":
        monkeypatch.setenv("RANK", "1")
    elif where == "dumb":
        monkeypatch.setenv("TERM", "dumb")
    with redirect_stderr(terminal):
        if where == "another thread":
            thread = threading.Thread(target=fit_scaler, args=[tmp_path])
            thread.start()
            thread.join()
        else:
            fit_scaler(tmp_path)
            read_table(tmp_path)
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("slow")
def test_a_choice_of_the_caller_counts(terminal: Terminal, tmp_path: Path) -> None:
    calls: list[Any] = []
    with redirect_stderr(terminal):
        wd.Documents(corpus(tmp_path), progress=lambda done, total: calls.append((done, total)))
        wd.Documents(tmp_path, progress=False)
    assert calls[-1] == (300, 300)
    assert terminal.getvalue() == ""


@pytest.mark.usefixtures("slow")
def test_a_bar_ends_with_an_error(terminal: Terminal) -> None:

    def fail() -> None:
        with report_progress(None, "counting", 9) as advance:
            advance(1)
            raise KeyError

    with redirect_stderr(terminal), pytest.raises(KeyError):
        fail()
    assert "1/9" in terminal.getvalue()
    for thread in threading.enumerate():
        if "rich" in type(thread).__module__:
            thread.join(10)
            assert not thread.is_alive()


@pytest.mark.parametrize("kind", ["no isatty", "closed", "gone"])
def test_no_terminal_is_no_error(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    class Tee:
        def write(self, text: str) -> int:
            return len(text)

        def flush(self) -> None:
            pass

    closed = io.StringIO()
    closed.close()
    stream = {"no isatty": Tee(), "closed": closed, "gone": None}[kind]
    monkeypatch.setattr("sys.stderr", stream)
    with report_progress(None, "counting", 9) as advance:
        advance(9)


def test_an_error_of_drawing_ends_the_bar_alone(
    terminal: Terminal, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def write(text: str) -> int:
        raise OSError(5, "Input/output error")

    with redirect_stderr(terminal):
        with report_progress(None, "counting", 9) as advance:
            advance(1)
            monkeypatch.setattr(terminal, "write", write)
            advance(1)
            advance(1)
        advance(1)  # after the end


def test_what_is_printed_meanwhile_stays_where_it_goes(terminal: Terminal, slow: None) -> None:
    printed = io.StringIO()
    streams = redirect_stderr(terminal), redirect_stdout(printed)
    with streams[0], streams[1], report_progress(None, "counting", 9) as advance:
        advance(1)
        advance(1)
        print("loss 0.5")
    assert printed.getvalue() == "loss 0.5\n"
    assert "loss" not in terminal.getvalue()


def test_processes_of_multiprocessing_draw_no_bars(
    terminal: Terminal, slow: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    plant(monkeypatch, "progress.parent_process", lambda: object())
    with redirect_stderr(terminal), report_progress(None, "counting", 9) as advance:
        advance(1)
        advance(1)
    assert terminal.getvalue() == ""
