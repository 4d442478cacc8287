"""DLinear on ETTh1, 96 steps to 96, with the usual borders: train, validate and test.

    python examples/dlinear_ett.py ETTh1.csv [--epochs 10] [--rate 0.005] [--seed 7]

The file is the hourly one of the Electricity Transformer Temperature dataset (Zhou et al. 2021): a
column ``date`` and seven columns of numbers. As in the benchmarks that use it, the first 12 months
of 30 days are for training, the next four for validation, the next four for testing; all columns
are standardised by the training rows, and errors are those of standardised values.

DLinear (Zeng et al. 2023) splits the context into a moving average and the rest, and maps each to
the horizon by one linear layer that all columns share. Windows, scaling, batches and their order
come from windeck: the weights after training equal, bit for bit, those of the dataset class that
these benchmarks use, if it is served in the same order.
"""

import argparse
from collections.abc import Iterable
from pathlib import Path

import torch
from torch import Tensor, nn

import windeck as wd

CONTEXT, HORIZON = 96, 96
#: Rows of a month, and the first rows of validation and test, and the end.
MONTH = 30 * 24
VALIDATION, TEST, END = 12 * MONTH, 16 * MONTH, 20 * MONTH
#: Steps of the moving average.
KERNEL = 25


class DLinear(nn.Module):
    """Two linear maps from context to horizon: of the moving average, and of the rest."""

    def __init__(self, context: int, horizon: int) -> None:
        super().__init__()
        self.trend = nn.Linear(context, horizon)
        self.seasonal = nn.Linear(context, horizon)

    def forward(self, past: Tensor) -> Tensor:
        """Return (batch, horizon, columns) for a past of (batch, context, columns)."""
        past = past.transpose(1, 2)
        half = KERNEL // 2
        padded = nn.functional.pad(past, (half, half), mode="replicate")
        average = nn.functional.avg_pool1d(padded, KERNEL, stride=1)
        ahead: Tensor = self.trend(average) + self.seasonal(past - average)
        return ahead.transpose(1, 2)


def read_parts(path: Path) -> tuple[wd.Windows, wd.Windows, wd.Windows]:
    """Return the windows for training, validation and testing, standardised."""
    table = wd.Table.read(path, timestamp_column="date", rows=(0, END))
    windows = wd.Windows(table, context_length=CONTEXT, prediction_length=HORIZON, dtype="float32")
    stamps = table.timestamps
    assert stamps is not None
    # A window belongs to the part that its future lies in.
    parts = windows.split(stamps[VALIDATION], stamps[TEST])
    return parts.with_scaler(wd.Scaler.fit(parts.train))


def build_model(seed: int) -> DLinear:
    """Return a model whose first weights depend on `seed` alone."""
    torch.manual_seed(seed)
    return DLinear(CONTEXT, HORIZON)


def train_epoch(
    model: DLinear, optimizer: torch.optim.Optimizer, batches: Iterable[dict[str, Tensor]]
) -> float:
    """Train on batches; return the mean loss."""
    total, count = 0.0, 0
    for batch in batches:
        loss = nn.functional.mse_loss(model(batch["past_target"]), batch["future_target"])
        optimizer.zero_grad()
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total, count = total + float(loss.detach()), count + 1
    return total / count


def errors(model: DLinear, windows: wd.Windows) -> tuple[float, float]:
    """Return the mean squared and the mean absolute error over all windows."""
    squared, absolute, count = 0.0, 0.0, 0
    with torch.no_grad():
        for batch in wd.Loader(windows, batch_size=min(512, len(windows))):
            difference = model(batch["past_target"]) - batch["future_target"]
            squared += float(difference.double().square().sum())
            absolute += float(difference.double().abs().sum())
            count += difference.numel()
    return squared / count, absolute / count


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("file", type=Path, help="ETTh1.csv or ETTh2.csv")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--rate", type=float, default=0.005, help="learning rate of Adam")
    parser.add_argument("--seed", type=int, default=7, help="of the first weights and the shuffle")
    options = parser.parse_args()
    train, validation, test = read_parts(options.file)
    print(f"{len(train):,} to train, {len(validation):,} to validate, {len(test):,} to test")
    model = build_model(options.seed)
    optimizer = torch.optim.Adam(model.parameters(), lr=options.rate)
    batches = wd.Loader(train, batch_size=options.batch_size, shuffle=True, seed=options.seed)
    for epoch in range(options.epochs):
        loss = train_epoch(model, optimizer, batches)
        squared, _ = errors(model, validation)
        print(f"epoch {epoch + 1}: loss {loss:.4f}, validation MSE {squared:.4f}")
    print("test MSE {:.4f}, MAE {:.4f}".format(*errors(model, test)))


if __name__ == "__main__":
    main()
