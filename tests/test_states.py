"""The file a demo resumes from: it brings everything back, and a torn one is never in its place."""

from pathlib import Path

import pytest
import torch

import windeck as wd
from windeck.tools import states


def parts() -> tuple[torch.nn.Linear, torch.optim.AdamW, wd.Loader]:
    model = torch.nn.Linear(3, 2)
    values = torch.arange(60.0)
    windows = wd.Windows(wd.Table.from_columns({"load": values}), context_length=3)
    loader = wd.Loader(windows, batch_size=4, shuffle=True, seed=1)
    return model, torch.optim.AdamW(model.parameters(), foreach=False), loader


def test_everything_comes_back(tmp_path: Path) -> None:
    model, optimizer, loader = parts()
    for _, batch in zip(range(5), loader, strict=False):
        model(batch["past_target"][..., 0]).sum().backward()
        optimizer.step()
    states.save(tmp_path / "state.pt", 5, model, optimizer, loader)
    assert [path.name for path in tmp_path.iterdir()] == ["state.pt"]
    other, again, new = parts()
    assert states.load(tmp_path / "state.pt", other, again, new) == 5
    assert new.position == loader.position == 20
    assert torch.equal(other.weight, model.weight)
    was, now = optimizer.state_dict()["state"], again.state_dict()["state"]
    assert all(torch.equal(was[i][name], now[i][name]) for i in was for name in was[i])


def test_what_cannot_be_written_leaves_the_former_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, optimizer, loader = parts()
    path = tmp_path / "state.pt"
    states.save(path, 1, model, optimizer, loader)

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space left"):
        states.save(path, 2, model, optimizer, loader)
    assert states.read(path)["step"] == 1
