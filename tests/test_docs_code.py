"""Every code block of every page runs as written, in a folder where `windeck demo` ran once."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from support.demo_folder import copy_demo_files
from support.object_servers import ACCESS, SECRET, bucket_of
from support.page_session import Block, blocks_of, run
from support.pages import ROOT

SESSION = Path(__file__).parent / "support" / "page_session.py"
PAGES = [
    path
    for path in (ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md")))
    if "design" not in path.parts and any(blocks_of(path.read_text("utf-8")))
]


@pytest.fixture
def environment(page: Path, request: pytest.FixtureRequest) -> Iterator[dict[str, str]]:
    """The environment of a page; with an S3 server that has the buckets the page names."""
    found = {**os.environ, "OMP_NUM_THREADS": "1"}
    code = "".join(block.code for block in blocks_of(page.read_text("utf-8")))
    buckets = set(re.findall(r"s3://(\w+)", code))
    with ExitStack() as stack:
        if buckets:
            port = request.getfixturevalue("s3_port")
            for name in buckets:
                bucket = stack.enter_context(bucket_of(port, name))
                found["AWS_ENDPOINT_URL"] = f"http://127.0.0.1:{bucket.proxy.port}"
            found |= {"AWS_ACCESS_KEY_ID": ACCESS, "AWS_SECRET_ACCESS_KEY": SECRET}
            found["AWS_EC2_METADATA_DISABLED"] = "true"
        yield found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_code_runs_as_written(page: Path, environment: dict[str, str], tmp_path: Path) -> None:
    copy_demo_files(tmp_path / "out")
    done = subprocess.run(
        [sys.executable, str(SESSION), str(page)],
        cwd=tmp_path, env=environment, timeout=600, check=False, text=True,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip
    for line, reason in re.findall(r"^skipped (\d+): (.*)$", done.stdout, re.MULTILINE):
        print(f"{page.name}:{line} was not run: {reason}")
    assert done.returncode == 0, done.stdout[-5000:]


def test_a_failure_names_page_and_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    faults = {
        "```python\nx = 1\n1 / 0\n```\n": "page.md:5: ZeroDivisionError: division by zero",
        "```python\nx = (\n```\n": "page.md:4: SyntaxError: '(' was never closed",
        "```bash\nexit 3\n```\n": "page.md:4: CalledProcessError: ",
        "```python\ndef f():\n    gone\n```\n\n```python\n\nf()\n```\n": "page.md:5: NameError: ",
        "```python\n>>> 1 + 1\n3\n```\n": "page.md:4: AssertionError: an example prints",
    }
    for text, wanted in faults.items():
        page.write_text(f"# Title\n\n{text}")
        assert run(page) == 1
        assert capfd.readouterr().out.splitlines()[-1].startswith(wanted)


def test_comments_above_blocks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = tmp_path / "page.md"
    page.write_text(
        "<!-- docs-test: file one.py -->\n```python\nvalue = 7\n```\n\n"
        "```python\nimport one\nassert one.value == 7\n```\n\n"
        "<!-- docs-test: needs no_such_module -->\n```python\nimport no_such_module\n```\n"
        "<!-- docs-test: skip it takes a day -->\n```bash\nsleep 86400\n```\n"
        "```text\nno code\n```\n"
    )
    monkeypatch.setattr(sys, "path", ["", *sys.path])
    assert run(page) == 0
    assert capfd.readouterr().out.splitlines() == [
        "skipped 13: needs no_such_module, which is not installed",
        "skipped 17: it takes a day",
    ]


def test_blocks_are_those_of_the_page() -> None:
    text = "```python\na\n```\n\n    ```\n\n```console\n$ b\n```\n```bash\nc\n```\n"
    assert list(blocks_of(text)) == [
        Block("python", "a\n", 2, "", ""),
        Block("bash", "c\n", 11, "", ""),
    ]


def test_few_blocks_are_skipped() -> None:
    """Each with a reason; what is not code that runs is no block of code."""
    skipped = [
        block
        for path in PAGES
        for block in blocks_of(path.read_text("utf-8"))
        if block.order == "skip"
    ]
    assert len(skipped) <= 5
    assert all(len(block.argument.split()) > 2 for block in skipped)
    assert shutil.which("bash")
