"""The examples run, and what they compare is the same."""

import argparse
import json
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

from support.loaded_examples import EXAMPLES, example

SCRIPT = EXAMPLES / "four_ways.py"
ROWS, COLUMNS = 3000, 12


@pytest.fixture(scope="module")
def four_ways() -> ModuleType:
    return example("four_ways")


# The workers of torch's DataLoader are forked, which newer Pythons advise against.
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_all_ways_feed_the_same(
    four_ways: ModuleType, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "wide.arrow"
    four_ways.generate(path, ROWS, COLUMNS)
    found = [four_ways.run(way, path, COLUMNS, 32, 0.1) for way in four_ways.WAYS]
    assert [result["way"] for result in found] == ["mapped", "in RAM", "tensors", "windeck"]
    assert len({result["digest"] for result in found}) == 1
    for result in found:
        assert result["windows_per_second"] > 0
        assert result["loading_alone"] > 0
        assert 0 <= result["waiting"] <= 1
        result["peak_megabytes"] = 1.0
    options = argparse.Namespace(rows=ROWS, columns=COLUMNS, batch_size=32, rounds=1)
    found = [four_ways.middle([result]) for result in found]
    four_ways.show(found, options)
    four_ways.plot(found, tmp_path / "four_ways.png")
    assert "windeck" in capsys.readouterr().out
    assert (tmp_path / "four_ways.png").read_bytes().startswith(b"\x89PNG")


def test_a_difference_in_content_is_found(four_ways: ModuleType, tmp_path: Path) -> None:
    path = tmp_path / "wide.arrow"
    four_ways.generate(path, ROWS, COLUMNS)
    right = four_ways.used(COLUMNS)
    wrong = [*right[:-1], "c01"]
    probes = [four_ways.tensors(path, names, 32)[1] for names in (right, right, wrong)]
    digests = [four_ways.digest(probe, path) for probe in probes]
    assert digests[0] == digests[1] != digests[2]


def test_memory_is_that_of_the_process(four_ways: ModuleType) -> None:
    before = four_ways.megabytes(os.getpid())
    kept = bytearray(64 << 20)
    kept[:: 1 << 12] = b"x" * (64 << 8)
    assert 48 < four_ways.megabytes(os.getpid()) - before < 80
    assert len(kept)


@pytest.mark.slow
def test_the_whole_script(tmp_path: Path) -> None:
    command = [
        sys.executable,
        str(SCRIPT),
        "--rows",
        str(ROWS),
        "--seconds",
        "0.3",
        "--rounds",
        "2",
    ]
    result = subprocess.run(
        [*command, "--batch-size", "32", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert "Contents of all four compared: equal" in result.stdout
    assert (tmp_path / "four_ways.png").exists()


@pytest.mark.usefixtures("forked")
def test_one_way_alone_answers_in_json(four_ways: ModuleType, tmp_path: Path) -> None:
    four_ways.generate(tmp_path / "wide.arrow", ROWS, COLUMNS)
    command = [sys.executable, str(SCRIPT), "--way", "windeck", "--columns", str(COLUMNS)]
    result = subprocess.run(
        [*command, "--batch-size", "32", "--seconds", "0.1", "--out", str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(result.stdout)["way"] == "windeck"
