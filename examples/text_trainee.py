"""The training that `text_demo.py` kills: a small language model on packed, mixed documents.

    torchrun --nproc-per-node 2 examples/text_trainee.py JOB.json --name killed [--resume]

Every process logs each sequence before it trains on it: the step, the position in the stream, the
tokens and their position ids. Rank 0 saves the model, the optimizer and the loader every few steps.
"""

import argparse
import glob
import hashlib
import json
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, distributed, nn
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

import windeck as wd

Batch = dict[str, Tensor]


@dataclass(frozen=True)
class Job:
    """Everything that decides what is trained on, and in which order; written as JSON."""

    corpus: str
    weights: dict[str, float]
    column: str = "tokens"
    sequence_length: int = 128
    batch_size: int = 8
    steps: int = 120
    save_every: int = 10
    seed: int = 0
    bos: int | None = 256
    eos: int | None = 257
    vocabulary: int = 258


def documents(root: str | Path, dataset: str, column: str) -> wd.Documents:
    """Return the documents of one dataset; the tokens of a text are its bytes."""
    files = f"dataset={glob.escape(dataset)}"
    try:
        return wd.Documents(root, column=column, files=files)
    except TypeError as error:
        try:
            return wd.Documents(root, column=column, files=files, tokenizer=utf8)
        except TypeError:
            raise error from None


def utf8(text: str) -> bytes:
    """Return the tokens of a text."""
    return text.encode()


def mixture(job: Job) -> wd.Mixture:
    """Return the stream that is trained on: packed sequences of each dataset, mixed by weight."""
    parts = {}
    for name, weight in job.weights.items():
        try:
            packed = wd.PackedSequences(
                documents(job.corpus, name, job.column),
                sequence_length=job.sequence_length,
                bos=job.bos,
                eos=job.eos,
            )
        except ValueError as error:
            raise ValueError(f"dataset {name!r}: {error}") from None
        parts[name] = (packed, weight)
    return wd.Mixture(parts, seed=job.seed)


class LanguageModel(nn.Module):
    """Next-token logits, by causal attention that does not cross documents."""

    def __init__(self, vocabulary: int, length: int, *, width: int = 64, heads: int = 4) -> None:
        super().__init__()
        self.vocabulary, self.heads = vocabulary, heads
        self.tokens = nn.Embedding(vocabulary, width)
        self.places = nn.Embedding(length, width)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True
            )
            for _ in range(2)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, batch: Batch) -> Tensor:
        """Return logits, (batch, time, vocabulary); larger ids are taken modulo the vocabulary."""
        inputs = batch["inputs"] % self.vocabulary
        hidden = document_mask(batch["cu_seqlens"], *inputs.shape).logical_not()
        hidden = hidden.repeat_interleave(self.heads, dim=0)
        x = self.tokens(inputs) + self.places(batch["position_ids"])
        for layer in self.layers:
            x = layer(x, src_mask=hidden)
        logits: Tensor = self.head(x)
        return logits


def document_mask(cu_seqlens: Tensor, rows: int, length: int) -> Tensor:
    """Return (rows, length, length): True where a token may attend to another.

    A token sees itself and what comes before it in its own document. Attention kernels for packed
    sequences take `cu_seqlens` as it is; this is for those that want a mask.
    """
    places = torch.arange(rows * length)
    piece = torch.searchsorted(cu_seqlens, places, right=True).view(rows, length)
    causal = torch.ones(length, length, dtype=torch.bool).tril()
    return (piece[:, :, None] == piece[:, None, :]) & causal


def build_model(job: Job) -> LanguageModel:
    """Return the model with its first weights: the same for one seed in every process."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(job.seed)
        return LanguageModel(job.vocabulary, job.sequence_length)


def loss_of(model: nn.Module, batch: Batch, vocabulary: int) -> Tensor:
    """Return the mean cross-entropy of the next token."""
    targets = (batch["targets"] % vocabulary).reshape(-1)
    return functional.cross_entropy(model(batch).reshape(-1, vocabulary), targets)


def record_type(sequence_length: int) -> np.dtype[Any]:
    """Return the type of a line of the log: one sequence."""
    ids = ("position_ids", "<i8", (sequence_length,))
    return np.dtype(
        [("step", "<i8"), ("position", "<i8"), ("tokens", "<i8", (sequence_length + 1,)), ids]
    )


def records(job: Job, step: int, position: int, batch: Batch) -> npt.NDArray[Any]:
    """Return the log's lines for a batch whose first sequence is at `position`."""
    lines = np.zeros(len(batch["inputs"]), record_type(job.sequence_length))
    lines["step"], lines["position"] = step, position + np.arange(len(lines))
    lines["tokens"] = torch.cat((batch["inputs"], batch["targets"][:, -1:]), dim=1).numpy()
    lines["position_ids"] = batch["position_ids"].numpy()
    return lines


def read_log(path: Path, job: Job) -> npt.NDArray[Any]:
    """Return the lines of a log; a kill may have cut the last one short."""
    kind = record_type(job.sequence_length)
    content = path.read_bytes() if path.exists() else b""
    return np.frombuffer(content[: len(content) // kind.itemsize * kind.itemsize], kind)


def batches_with_positions(loader: wd.Loader) -> Iterator[tuple[int, Batch]]:
    """Yield batches for ever, each with the position of this rank's first sequence."""
    while True:
        position = loader.position
        for batch in loader:
            yield position + loader.rank * loader.batch_size, batch
            position = loader.position


def train(job: Job, files: Path, state: Path, *, resume: bool, wait_at: int | None) -> None:
    """Train to step `job.steps` on this rank's share of each batch."""
    model = build_model(job)
    trained = DistributedDataParallel(model)  # averages gradients, so that there is one model
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3, foreach=False)
    loader = wd.Loader(mixture(job), batch_size=job.batch_size)
    step = 0
    if resume:  # whatever number of ranks saved it
        saved = torch.load(state, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    batches = batches_with_positions(loader)
    losses: list[float] = []
    with open(files.with_suffix(".log"), "ab", buffering=0) as log:
        while step < job.steps:
            if step == wait_at:
                time.sleep(60)  # to be killed
            position, batch = next(batches)
            step += 1
            log.write(records(job, step, position, batch).tobytes())
            loss = loss_of(trained, batch, job.vocabulary)
            optimizer.zero_grad(set_to_none=True)
            loss.backward()  # type: ignore[no-untyped-call]
            optimizer.step()
            losses.append(float(loss.detach()))
            if distributed.get_rank() == 0 and (step % job.save_every == 0 or step == job.steps):
                content = {"step": step, "loader": loader.state_dict()}
                content |= {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
                torch.save(content, state.with_suffix(".unfinished"))
                os.replace(state.with_suffix(".unfinished"), state)
    digest = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    report = {"loss": losses[-1], "weights": digest.hexdigest(), "position": loader.position}
    files.with_suffix(".json").write_text(json.dumps(report))


def main() -> None:
    """Train a job from a JSON file, as one of the processes that torchrun started."""
    parser = argparse.ArgumentParser(description=main.__doc__)
    parser.add_argument("job", type=Path, help="its folder also gets the logs and the state")
    parser.add_argument("--name", required=True, help="what the names of the logs begin with")
    parser.add_argument("--resume", action="store_true", help="go on from the state")
    parser.add_argument("--wait-at", type=int, help="step at which to wait to be killed")
    options = parser.parse_args()
    out = options.job.parent
    files = out / f"{options.name}-{os.environ['RANK']}"
    files.with_suffix(".pid").write_text(str(os.getpid()))
    torch.set_num_threads(1)
    distributed.init_process_group("gloo")
    try:
        job = Job(**json.loads(options.job.read_text()))
        train(job, files, out / "state.pt", resume=options.resume, wait_at=options.wait_at)
        distributed.barrier()  # a process that ends while gloo still holds its tensors may abort
    finally:
        distributed.destroy_process_group()


if __name__ == "__main__":
    # By its own name: the loader's state has the name of the tokenizer's module.
    from text_trainee import main as run

    run()
