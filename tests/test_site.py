"""The site: every page is in its navigation, and every public name in its reference."""

from __future__ import annotations

import importlib
import importlib.util
import os
import pydoc
import re
import runpy
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import windeck as wd
from support.pages import ROOT

DOCS = ROOT / "docs"
#: Modules whose `__all__` is public.
PUBLIC = {
    "windeck",
    "windeck.adapters",
    "windeck.adapters.chronos2",
    "windeck.adapters.darts",
    "windeck.adapters.gluonts",
    "windeck.adapters.neuralforecast",
    "windeck.adapters.pytorch_forecasting",
    "windeck.adapters.time_series_library",
    "windeck.checkpoint",
    "windeck.checkpoint.accelerate",
    "windeck.checkpoint.dcp",
    "windeck.checkpoint.lightning",
    "windeck.checkpoint.safetensors",
    "windeck.checkpoint.stores",
    "windeck.checkpoint.transformers",
    "windeck.sources",
}


def in_reference() -> set[str]:
    """Return the names that the pages of the reference have."""
    text = "".join(path.read_text("utf-8") for path in (DOCS / "reference").glob("*.md"))
    return set(re.findall(r"^\.\. (?:auto\w+|py:data):: ([\w.]+)$", text, re.MULTILINE))


@pytest.mark.parametrize("module", sorted(PUBLIC))
def test_every_public_name_is_in_the_reference(module: str) -> None:
    if module.rpartition(".")[2] in ("accelerate", "lightning", "safetensors", "transformers"):
        pytest.importorskip(module.rpartition(".")[2])
    names = {f"{module}.{name}" for name in importlib.import_module(module).__all__}
    assert names - in_reference() - PUBLIC <= {"windeck.__version__"}


def test_every_name_of_the_reference_is_public() -> None:
    for name in in_reference():
        module, _, member = name.rpartition(".")
        assert module in PUBLIC
        if importlib.util.find_spec(module.rpartition(".")[2]) or module.count(".") < 2:
            assert member in importlib.import_module(module).__all__, name


def test_every_page_is_in_the_navigation() -> None:
    listed: set[Path] = {DOCS / "index.md"}
    for page in DOCS.rglob("*.md"):
        text = page.read_text("utf-8")
        for block in re.findall(r"^```\{toctree\}\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            for line in filter(None, block.splitlines()):
                entry = (re.search(r"<(.*)>", line) or [line, line])[1]
                listed |= set(page.parent.glob(f"{entry}.md"))
    pages = {path for path in DOCS.rglob("*.md") if "design" not in path.relative_to(DOCS).parts}
    assert pages == listed


def imported_examples(path: Path) -> set[Path]:
    """Return an example and those that it imports, directly or not."""
    names = re.findall(r"^ *from (\w+) import", path.read_text("utf-8"), re.MULTILINE)
    others = {one for name in names if (one := path.with_name(f"{name}.py")).exists()} - {path}
    return {path}.union(*(imported_examples(one) for one in others))


def test_pages_link_to_all_files_of_the_examples_that_they_name() -> None:
    examples = {path.name: path for path in (ROOT / "examples").glob("*.py")}
    named: set[str] = set()
    for page in DOCS.rglob("*.md"):
        if "design" in page.relative_to(DOCS).parts:
            continue
        text = page.read_text("utf-8")
        links = {(page.parent / link).resolve() for link in re.findall(r"\]\(([^)#:]+)\)", text)}
        here = set(re.findall(r"\w+\.py", text)) & examples.keys()
        assert {one for name in here for one in imported_examples(examples[name])} <= links, page
        named |= here
    assert {"rolling_forecast.py", "beijing_job.py", "recommender.py"} <= named


def test_links_to_examples_are_downloads() -> None:
    pytest.importorskip("sphinx")
    app = SimpleNamespace(env=SimpleNamespace(doc2path=lambda name: DOCS / f"{name}.md"))
    content = ["[`four_ways.py`](../examples/four_ways.py), [windows](windows.md#keys)"]
    runpy.run_path(str(DOCS / "conf.py"))["link_to_source"](app, "plain_torch", content)
    download = "{download}`four_ways.py <../examples/four_ways.py>`"
    assert content == [f"{download}, [windows](windows.md#keys)"]


def test_help_of_the_package_names_all_and_fits_on_a_screen() -> None:
    text = pydoc.getdoc(wd)
    assert len(text.splitlines()) <= 24
    assert max(map(len, text.splitlines())) <= 100
    assert "`docs`" in text
    assert set(wd.__all__) - {"__version__"} <= set(re.findall(r"`(\w+)`", text))


def test_every_extra_is_on_the_page_on_installing() -> None:
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    section = project.partition("[project.optional-dependencies]")[2].partition("\n[")[0]
    extras = set(re.findall(r"^(\w+) = ", section, re.MULTILINE))
    page = (DOCS / "install.md").read_text("utf-8")
    shown = set(re.findall(r"^\| `(\w+)` \|", page, re.MULTILINE))
    assert extras - {"test", "lint", "bench", "frameworks"} <= shown


@pytest.mark.slow
def test_the_site_is_built_without_warnings(tmp_path: Path) -> None:
    for module in ("sphinx", "myst_parser", "furo", "sphinx_copybutton"):
        pytest.importorskip(module)
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    command += ["-d", str(tmp_path / "doctrees"), str(DOCS), str(tmp_path / "site")]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    pages = (tmp_path / "site" / "llms.txt").read_text("utf-8")
    for title in ("Install", "Windows", "What is stable in 0.2"):
        assert f"- [{title}](_sources/" in pages
    links = re.findall(r"\]\((_sources/[^)]+)\)", pages)
    assert all((tmp_path / "site" / link).is_file() for link in links)
    assert "design/" not in "".join(links)
    downloads = {path.name for path in (tmp_path / "site" / "_downloads").rglob("*.py")}
    assert {"rolling_forecast.py", "beijing_trainee.py", "dlinear_ett.py"} <= downloads
