"""Tests of what works where torch is not installed, and of the errors of what does not."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from support.programs import printed
from windeck.columns import DTYPES

#: Hides torch from a process, as if it were not installed.
HIDE = "import sys\nsys.modules['torch'] = None\n"

TABLES = """
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import windeck as wd

folder = sys.argv[1]
columns = {"id": np.repeat(["a", "b"], 50), "time": np.tile(np.arange(50), 2),
           "load": np.arange(100.0)}
pq.write_table(pa.table(columns), f"{folder}/load.parquet")
read = wd.Table.read(f"{folder}/load.parquet", id_columns="id", timestamp_column="time")
assert "100 rows" in read.explain(), read.explain()
assert repr(read) and read._repr_html_()
wd.Table.estimate(f"{folder}/load.parquet")
made = wd.Table.from_columns({"load": np.arange(100.0), "half": np.zeros(100, np.float16)})
wd.Table.from_arrow(pa.table({"load": np.arange(9.0)}))
windows = wd.Windows(read, context_length=8, prediction_length=4, target_columns="load")
batch = windows.gather(np.arange(3))
assert type(batch["past_target"]) is np.ndarray and batch["past_target"].shape == (3, 8, 1)
split = windows.split(0.2, 0.1)
assert len(split.train) and len(windows.subset(series=["a"])) and str(windows.explain())
assert windows._repr_html_() and split._repr_html_()
scaler = wd.Scaler.fit(windows, per_series=True)
assert windows.with_scaler(scaler).gather([0])["past_target"].shape == (1, 8, 1)
assert sorted(wd.Permutation(10, seed=1).take(np.arange(10))) == list(range(10))
order = wd.Lanes(10, lanes=2)
assert len(order.take(np.arange(10))) == 10 and wd.Sequential(4).take(np.arange(2)).sum() == 1
assert wd.quality(wd.Permutation(1000, seed=1))
halves = wd.Windows(read, context_length=8, target_columns="load", dtype="bfloat16")
assert halves.gather([0])["past_target"].dtype == np.uint16
prepared = wd.prepare(f"{folder}/load.parquet", f"{folder}/prepared", id_columns="id",
                      timestamp_column="time")
assert len(wd.Table.read(f"{folder}/prepared", id_columns="id", timestamp_column="time")) == 100
"""

DOCUMENTS = """
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import windeck as wd

tokens = pa.table({"tokens": pa.array([list(range(n)) for n in (5, 9, 30)], pa.list_(pa.uint16()))})
pq.write_table(tokens, sys.argv[1] + "/part.parquet")
documents = wd.Documents(sys.argv[1])
assert len(documents) == 3 and documents.explain() and repr(documents)
packed = wd.PackedSequences(documents, sequence_length=8, eos=0)
assert packed.gather(np.arange(2))["inputs"].shape == (2, 8)
"""


def test_tables_windows_scalers_orders_and_prepare_work(tmp_path: Path) -> None:
    printed(HIDE + TABLES, str(tmp_path))


def test_documents_and_packed_sequences_work(tmp_path: Path) -> None:
    printed(HIDE + DOCUMENTS, str(tmp_path))


VIEW = """
import json
import os
from support.programs import command

for words in json.loads(sys.argv[1]):
    code, out, err = command("view", *words)
    assert code < 2 and not err, (words, code, err)
    print(out)
"""


def test_every_command_of_the_viewer_works_for_every_dtype(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    from support.view_cases import model, saved_table
    from windeck import checkpoint

    names = [name for name in DTYPES if name.startswith("float8") and hasattr(torch, name)]
    bits = torch.arange(56, 64, dtype=torch.uint8)
    eights = {name: bits.view(getattr(torch, name)) for name in names}
    url, table = f"rocksdb://{tmp_path}/run", saved_table(f"rocksdb://{tmp_path}/table")
    checkpoint.save(url, step=1, model={**model(), **eights}, extra={"note": "x"})
    checkpoint.save(url, step=2, model=model())
    first = ("--generation", "1")
    commands = [
        [url, "ls"],
        [url, "log"],
        [url, "verify", "--deep"],
        [url, "diff", "1", "2"],
        [url, "show", "model/half"],
        [url, "find", "--nan"],
        [url, "row", "model/half", "0"],
        [url, "html", f"{tmp_path}/run.html", *first],
        [table, "html", f"{tmp_path}/table.html", *first],
        [table, "row", "user", "7", *first],
        [table, "find", "user", "--where", "value > 1"],
        [table, "export", f"{tmp_path}/user.parquet", "user"],
        [url, "export", f"{tmp_path}/w.npy", "model/layers.0.w"],
        *([url, "show", f"model/{name}", *first] for name in names),
        [url, "copy", f"rocksdb://{tmp_path}/copy"],
        [url, "gc", "--keep", "1"],
    ]
    tests = str(Path(__file__).parent)
    out = printed(HIDE + VIEW, json.dumps(commands), PYTHONPATH=tests)
    assert "-2.25" in out
    assert all(f"model/{name}" in out for name in names)
    assert pq.read_table(tmp_path / "user.parquet").num_rows == 4


REFUSED = """
import numpy as np
import windeck as wd
from windeck import checkpoint

table = wd.Table.from_columns({"load": np.arange(100.0)})
windows = wd.Windows(table, context_length=8)
np.savez(sys.argv[1] + "/model.npz", w=np.zeros(3))
for attempt in (
    lambda: wd.Loader,
    lambda: wd.EmbeddingTable,
    lambda: checkpoint.save,
    lambda: checkpoint.open,
    lambda: __import__("windeck.loader"),
    lambda: __import__("windeck.embeddings"),
    lambda: __import__("windeck.checkpoint.safetensors"),
    lambda: __import__("windeck.checkpoint.dcp"),
    lambda: __import__("windeck.checkpoint.accelerate"),
    lambda: __import__("windeck.checkpoint.foreign"),
    lambda: __import__("windeck.checkpoint.lightning"),
    lambda: __import__("windeck.checkpoint.transformers"),
    lambda: __import__("windeck.device_orders"),
    lambda: __import__("windeck.adapters"),
    table.to_torch,
    lambda: windows.to("cpu"),
    lambda: windows.balanced([1], epoch_length=4).to("cpu"),
):
    try:
        attempt()
    except ImportError as error:
        print(error)
"""


def test_what_needs_torch_says_how_to_install_it(tmp_path: Path) -> None:
    lines = printed(HIDE + REFUSED, str(tmp_path)).splitlines()
    things = ["Loader", "EmbeddingTable", "checkpoint.save", "checkpoint.open", "loader"]
    things += ["embeddings", "checkpoint.safetensors", "checkpoint.dcp", "checkpoint.accelerate"]
    things += ["checkpoint.foreign", "checkpoint.lightning", "checkpoint.transformers"]
    things += ["device_orders", "adapters"]
    whats = [f"windeck.{name}" for name in things]
    whats += ["Table.to_torch", "Windows.to", "BalancedWindows.to"]
    cure = "needs torch, which is not installed: pip install torch"
    assert lines == [f"{what} {cure}" for what in whats]


@pytest.mark.parametrize("package", ["lightning", "transformers"])
def test_what_needs_a_trainer_says_how_to_install_it(package: str) -> None:
    pytest.importorskip("torch")
    program = f"""
import sys
sys.modules[{package!r}] = None
try:
    import windeck.checkpoint.{package}
except ImportError as error:
    print(error)
"""
    cure = f"needs {package}, which is not installed: pip install {package}"
    assert printed(program).strip() == f"windeck.checkpoint.{package} {cure}"


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["demo", "--out", "{}/out"], "windeck demo: the demo"),
        (["doctor", "{}/load.csv"], "windeck doctor: windeck.Loader"),
        (["view", "{}/model.npz"], "windeck view: reading {}/model.npz"),
    ],
)
def test_commands_that_need_torch_say_so_in_one_line(
    words: list[str], what: str, tmp_path: Path
) -> None:
    (tmp_path / "load.csv").write_text("load\n" + "1\n" * 500)
    np.savez(tmp_path / "model.npz", w=np.zeros(3))
    words = [word.format(tmp_path) for word in words]
    program = f"from windeck.cli.main import main\nmain({words!r})"
    done = subprocess.run(
        [sys.executable, "-c", HIDE + program], capture_output=True, text=True, check=False
    )
    assert done.returncode in (1, 3)
    cure = "needs torch, which is not installed: pip install torch"
    assert done.stderr == f"{what.format(tmp_path)} {cure}\n"


def test_help_and_dir_show_the_names_that_work() -> None:
    program = """
import pydoc, windeck
from windeck import checkpoint
assert pydoc.render_doc(windeck) and pydoc.render_doc(checkpoint)
for module in (windeck, checkpoint):
    assert all(getattr(module, name) is not None for name in dir(module))
    print(*dir(module))
"""
    names, saved = (set(line.split()) for line in printed(HIDE + program).splitlines())
    assert {"Table", "Windows", "Scaler", "Documents", "PackedSequences", "prepare"} <= names
    assert {"log", "verify", "copy", "gc", "search"} <= saved
    assert not names & {"Loader", "EmbeddingTable"}


FORKED = """
import subprocess, sys
from support.forked import Forked

program = [sys.executable, "-c", "import sys; print(sys.argv[1])", "ended"]
out, _ = Forked(program, stdout=subprocess.PIPE, text=True).communicate(timeout=120)
print(out)
"""


def test_the_programs_that_tests_fork_run(tmp_path: Path) -> None:
    (tmp_path / "torch.py").write_text("raise ModuleNotFoundError(name='torch')")
    path = os.pathsep.join([str(tmp_path), str(Path(__file__).parent), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", FORKED], env={**os.environ, "PYTHONPATH": path},
        capture_output=True, text=True, check=True,
    )  # fmt: skip
    assert done.stdout.split() == ["ended"]
