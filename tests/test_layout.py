"""Tests of the layout: `windeck.io` alone accesses files, and names of classes are unique."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[1] / "src" / "windeck"

#: Files and folders that may use the file system themselves, each with the reason.
EXCEPTIONS = {
    "io": "the one place for access to files",
    "checkpoint/stores": "an engine of a store opens the files of its own database",
    "checkpoint/foreign": "torch and NumPy open their files themselves, local ones only",
    "checkpoint/safetensors": "safetensors opens its files itself, and takes local paths only",
    "checkpoint/transformers.py": "Trainer reads its state from a folder only, made for that",
    "diagnosis": "reads /proc, and reads a file to measure the disk",
    "cli/demo.py": "the demo makes its folder, and removes the state of a former run",
    "cli/demo_files.py": "the demo writes a corpus, token files and tables",
    "cli/demo_job.py": "the demo writes its samples and states, and reads them after a kill",
    "cli/doctor.py": "reads reports, and writes a page",
    "cli/export.py": "writes tensors to a local file",
    "cli/html.py": "writes a page to a local file, and reads its templates",
    "cli/main.py": "replaces output streams that are closed",
    "cli/output.py": "replaces a local file by a result that is complete",
    "cli/parser.py": "replaces standard output after a broken pipe",
    "cli/session.py": "tells files from the URLs of stores",
}

#: Functions and methods that use the file system, as they are written.
USES = re.compile(
    # One line for each of: os, os.path, glob and shutil, open, pathlib, numpy, pyarrow.
    r"os\.(access|chmod|fsync|link|listdir|lstat|makedirs|mkdir|open|pread|pwrite|readlink|remove"
    r"|rename|replace|rmdir|scandir|stat|symlink|truncate|unlink|walk)"
    r"|os\.path\.(abspath|exists|getmtime|getsize|isdir|isfile|islink|lexists|realpath|samefile)"
    r"|glob\.i?glob|shutil\.(copy\w*|disk_usage|move|rmtree)"
    r"|open|io\.open|.*[Pp]ath(\(.*\))?\.open"
    r"|.*\.(exists|r?glob|is_dir|is_file|is_symlink|iterdir|lstat|mkdir|read_bytes|read_text"
    r"|stat|touch|unlink|write_bytes|write_text)"
    r"|.*\.(fromfile|memmap|open_memmap|tofile)"
    r"|.*\.(OSFile|ParquetFile|input_stream|memory_map|open_csv|open_file|open_stream"
    r"|output_stream|read_csv|read_feather|read_metadata|read_parquet)",
    re.DOTALL,
)
#: Modules that read and write files.
MODULES = re.compile(
    r"bz2|fileinput|gzip|lzma|mmap|tempfile|pyarrow\.(csv|dataset|feather|fs|json|parquet)"
)


def uses(path: Path) -> Iterator[str]:
    """Yield the uses of the file system in a source file."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    defined = {node.name for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            found = [name.name for name in node.names if MODULES.fullmatch(name.name)]
        elif isinstance(node, ast.ImportFrom):
            module = node.module or ""
            names = [f"{module}.{name.name}" for name in node.names]
            found = [name for name in names if USES.fullmatch(name)]
            found += [name for name in (module, *names) if MODULES.fullmatch(name)]
            found = [] if module.startswith("windeck.") else found
        elif isinstance(node, ast.Call):
            name = ast.unparse(node.func)
            own = name in defined or name.startswith("filesystem.")
            found = [name] if USES.fullmatch(name) and not own else []
        else:
            continue
        yield from (f"{path}:{node.lineno}: {name}" for name in found)


def _excepted(path: Path) -> bool:
    own = path.relative_to(SOURCES)
    return any(own.is_relative_to(place) for place in EXCEPTIONS)


@pytest.mark.parametrize(
    "path",
    [path for path in sorted(SOURCES.rglob("*.py")) if not _excepted(path)],
    ids=lambda path: str(path.relative_to(SOURCES)),
)
def test_files_are_opened_by_io_alone(path: Path) -> None:
    assert not list(uses(path))


@pytest.mark.parametrize("place", EXCEPTIONS)
def test_exceptions_are_needed(place: str) -> None:
    below = [SOURCES / place, *(SOURCES / place).rglob("*.py")]
    assert any(use for path in below if path.is_file() for use in uses(path))


@pytest.mark.parametrize(
    "line",
    [
        "open(path)",
        "from os import stat",
        "os.stat(path)",
        "os.path.getsize(path)",
        "import mmap",
        "from pyarrow import parquet",
        "import pyarrow.dataset as ds",
        "path.read_bytes()",
        "pathlib.Path(name).open()",
        "glob.glob(pattern)",
        "pa.memory_map(path)",
        "pa.ipc.open_file(path)",
    ],
)
def test_uses_are_found(line: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(f"{line}\n")
    assert list(uses(source))


#: Calls that write to a file: by their name, and `open` and others by their mode.
WRITES = re.compile(
    r".*\.(write_text|write_bytes|touch|ParquetWriter|CSVWriter|open_memmap|savefig|tofile)"
    r"|os\.(rename|replace|truncate)|shutil\.(copy\w*|move)|(np|numpy|torch)\.(save\w*)"
)
MODES = re.compile(r"[rbt]*[wax+][wbt+]*|r\+b?|.*O_(WRONLY|RDWR|CREAT|TRUNC|APPEND).*")
#: What they may write to: new files of `windeck.io.local_files`, memory, and no file at all.
NEW = re.compile(r"(str\()?(temporary|part)\)?|create_file\(\w+\)|data|os\.devnull")


def writes(path: Path) -> Iterator[str]:
    """Yield the calls in a source file that write to another file than a new one."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        name, given = ast.unparse(node.func), [ast.unparse(one) for one in node.args]
        modes = [*given[1:2], *(ast.unparse(one.value) for one in node.keywords)]
        if name in ("open", "os.open") or re.fullmatch(r".*\.(OSFile|memmap)", name):
            found = any(MODES.fullmatch(mode.strip("'")) for mode in [*modes, *given[1:3]])
        else:
            found = WRITES.fullmatch(name) is not None and not name.startswith("filesystem.")
        into = given[1] if name == "torch.save" else given[0] if given else ""
        if name.endswith((".write_text", ".touch")):
            into = name.rpartition(".")[0]
        if found and not NEW.fullmatch(into):
            yield f"{path}:{node.lineno}: {ast.unparse(node)}"


def test_only_new_files_are_written() -> None:
    """No file is written through a link: see tests/test_links.py."""
    found = [call for path in SOURCES.rglob("*.py") for call in writes(path)]
    # The function that moves a whole file of `local_files` to its place.
    found = [call for call in found if "io/local_files.py" not in call]
    assert [call.partition(": ")[2] for call in found] == ["os.replace(path, destination)"]


@pytest.mark.parametrize(
    "line",
    [
        "open(path, 'wb')",
        "open(path, mode='a')",
        "open(path, 'x')",
        "open(path, 'r+b')",
        "os.open(path, os.O_WRONLY | os.O_CREAT)",
        "path.write_text('')",
        "np.save(path, array)",
        "torch.save(state, path)",
        "pa.OSFile(path, 'wb')",
        "np.memmap(path, np.int64, 'w+')",
        "shutil.copyfile(a, b)",
        "os.replace(path, other)",
    ],
)
def test_writes_are_found(line: str, tmp_path: Path) -> None:
    source = tmp_path / "module.py"
    source.write_text(f"{line}\nopen(path)\nopen(temporary, 'wb')\nopen(path, 'rb')\n")
    (found,) = writes(source)
    assert found.endswith(f": {line}")


def test_no_two_classes_have_one_name() -> None:
    names = [
        node.name.lstrip("_")
        for path in SOURCES.rglob("*.py")
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.ClassDef)
    ]
    # The class `windeck.Stream` implements the protocol `windeck.sources.Stream`.
    assert [name for name, count in Counter(names).items() if count > 1] == ["Stream"]
