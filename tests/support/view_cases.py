"""Checkpoints for the tests of `windeck view`, and functions that run its commands."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from support.programs import command
from support.store_servers import DURABLE
from windeck import checkpoint
from windeck._core import EmbeddingCore

#: Stores that another process can reach.
REACHABLE = DURABLE
Fresh = Callable[[str], str]
inf, nan = float("inf"), float("nan")


def run(url: str, *arguments: str) -> tuple[int, str, str]:
    """Return exit code, stdout and stderr of ``windeck view URL ...``, with stdout no terminal."""
    return command("view", url, *arguments)


def run_json(url: str, *arguments: str, code: int = 0) -> Any:
    """Return the document that a command prints with --json; NaN is refused."""
    found, out, err = run(url, *arguments, "--json")
    assert (found, err) == (code, "")

    def refuse(constant: str) -> None:
        raise AssertionError(f"{constant} is no JSON")

    return json.loads(out, parse_constant=refuse)


def refused(url: str, *arguments: str, code: int) -> str:
    """Return the message of a command that fails with one line on stderr and no traceback."""
    found, out, err = run(url, *arguments)
    assert (found, out) == (code, ""), err
    assert err.startswith("windeck view: ")
    assert err.count("\n") == 1
    return err.removeprefix("windeck view: ").rstrip("\n")


def model(step: int = 0) -> dict[str, torch.Tensor]:
    """Return tensors of many dtypes; `w` and `tied` are the same tensor."""
    w = torch.arange(60, dtype=torch.float32).reshape(12, 5) - 20 + step
    return {
        "layers.0.w": w,
        "layers.0.b": torch.tensor([0.5, -inf, nan, 1e30, -0.0]),
        "layers.1.tied": w,
        "half": torch.tensor([[1.5, -2.25], [0.0, 3.0]], dtype=torch.bfloat16),
        "ids": torch.tensor([-(2**63), 2**63 - 1, 0, step]),
        "flags": torch.tensor([True, False, True]),
        "turns": torch.tensor([1 - 2j, complex(nan, 0)], dtype=torch.complex64),
        "scalar": torch.tensor(2.5, dtype=torch.float64),
        "nothing": torch.empty(0, 4),
    }


EXTRA = {
    "loss": 0.25,
    "bad": nan,
    "note": "warm\x1b[2Jup",
    "betas": (0.9, 0.99),
    "deep": [{"x": 1}],
}


def saved(url: str, *steps: int, chunk_bytes: int = 64, **options: Any) -> str:
    """Save a generation for each step; return the URL."""
    with checkpoint.stores.open_store(url) as store:
        for step in steps or (10,):
            checkpoint.save(
                store,
                step=step,
                model=model(step),
                extra=EXTRA,
                chunk_bytes=chunk_bytes,
                **options,
            )
    return url


@pytest.fixture(params=REACHABLE)
def url(request: pytest.FixtureRequest, fresh: Fresh) -> str:
    """Return the URL of a store that another process can reach, with generations 1 to 3."""
    return saved(fresh(request.param), 10, 20, 30)


class Table:
    """An embedding table of five ids with chosen contents."""

    DIM = 3
    IDS = np.array([-(2**63), -5, 1, 7, 2**63 - 1])
    VERSIONS = np.array([3, 1, 2, 0, 4])
    FREQUENCIES = np.array([12, 1, 5, 1, 20])
    SEEN = np.array([3, 2, 2, 4, 4])
    ADMITTED = np.array([True, True, True, False, True])
    #: Embedding and one slot of each of the four that have a row.
    VALUES = np.array(
        [[1, -2, 3, 9, 9, 9], [0.5, nan, 4, 8, 8, 8], [0, -0.0, inf, 7, 7, 7], [2, 2, 2, 6, 6, 6]],
        np.float32,
    )

    def __init__(self, *, without: int | None = None, add: float = 0) -> None:
        self.config = {"kind": "made up"}
        self.core = EmbeddingCore(self.DIM, slots=1, admit_after=2)
        kept = np.array([key != without for key in self.IDS.tolist()])
        self.core.insert(
            self.IDS[kept],
            self.VERSIONS[kept],
            self.FREQUENCIES[kept],
            self.SEEN[kept],
            self.ADMITTED[kept],
            self.VALUES[kept[self.ADMITTED]] + np.float32(add),
        )
        self.core.set_clock(5)


def saved_table(url: str) -> str:
    """Save the table as generation 1, and with one id less and a row changed as generation 2.

    Return the URL.
    """
    with checkpoint.stores.open_store(url) as store:
        tables: Any = {"user": Table()}
        checkpoint.save(store, step=1, model={"w": torch.arange(3.0)}, embeddings=tables)
        tables = {"user": Table(without=7, add=1)}
        checkpoint.save(store, step=2, model={"w": torch.arange(3.0)}, embeddings=tables)
    return url
