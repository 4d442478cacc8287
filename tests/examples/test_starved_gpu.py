"""The example of the starved GPU: two reports of one loader, with two causes."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.loaded_examples import example
from support.programs import command
from windeck.diagnosis import Diagnosis


def test_the_laptop_is_limited_by_its_step_and_the_cloud_by_its_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The page and the command show both reports, and the step is faster where training is not."""
    starved = example("starved_gpu")
    out = str(tmp_path)
    assert starved.main(["--seconds", "0.6", "--rows", "400000", "--out", out]) == 0
    printed = capsys.readouterr().out
    laptop, cloud = (
        Diagnosis.from_json((tmp_path / f"{name}.json").read_text()) for name in starved.MACHINES
    )
    assert [one.kind for one in laptop.findings] in (["step"], ["overlap"])
    assert [one.kind for one in cloud.findings] == ["sleep"]
    assert cloud.findings[0].share > 0.8
    assert "from laptop to cloud, the step is" in printed
    assert (tmp_path / "starved_gpu.html").read_text().count("<section>") == 3
    files = [str(tmp_path / f"{name}.json") for name in starved.MACHINES]
    code, text, _ = command("doctor", "--compare", *files)
    assert code == 0
    assert text.strip() == printed.partition("\n\nSide by side")[0].strip()
