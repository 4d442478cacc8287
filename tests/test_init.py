"""Tests of `import windeck`: the public names, and the modules that it does not import."""

import subprocess
import sys
from pathlib import Path

import pytest

import windeck as wd


def test_importing_leaves_what_is_heavy_outside_until_it_is_needed() -> None:
    pytest.importorskip("torch")
    program = (
        "import sys, windeck\n"
        "heavy = {'torch', 'numpy', 'pyarrow', 'pandas', 'matplotlib', 'rich'}\n"
        "heavy &= set(sys.modules)\n"
        "assert not heavy, heavy\n"
        "windeck.Loader\n"
        "assert 'torch' in sys.modules"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


def test_every_public_name_is_there() -> None:
    pytest.importorskip("torch")
    assert dir(wd) == sorted(wd.__all__)
    for name in wd.__all__:
        assert getattr(wd, name) is not None


def test_every_public_name_of_checkpoints_is_there_whichever_is_asked_for_first() -> None:
    """Each is asked for first in a fork of a process that has imported torch, windeck not."""
    pytest.importorskip("torch")
    program = """
import os, sys, torch
for first in ("stores", "Commit", "gc", "begin", "save"):
    assert "windeck" not in sys.modules
    child = os.fork()
    if not child:
        from windeck import checkpoint
        assert getattr(checkpoint, first) is not None
        assert all(getattr(checkpoint, name) is not None for name in checkpoint.__all__)
        assert dir(checkpoint) == sorted(checkpoint.__all__)
        assert checkpoint.log.__module__ == "windeck.checkpoint.maintenance"
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0, first
"""
    subprocess.run([sys.executable, "-c", program], check=True)


def test_the_agreed_names_are_public() -> None:
    agreed = {"Permutation", "Sequential", "BlockPermutation", "Lanes", "LCG", "quality"}
    agreed |= {"Table", "Windows", "Scaler", "Stream", "Mixture", "Loader", "OrderSampler"}
    agreed |= {"MapDataset", "IterDataset", "collate", "ORDER_VERSION"}
    assert agreed <= set(wd.__all__)


def test_an_unknown_name_is_an_attribute_error() -> None:
    with pytest.raises(AttributeError, match="module 'windeck' has no attribute 'Loder'"):
        wd.Loder  # noqa: B018


def test_the_version_is_that_of_the_distribution() -> None:
    project = (Path(__file__).parents[1] / "pyproject.toml").read_text()
    assert f'\nversion = "{wd.__version__}"\n' in project
