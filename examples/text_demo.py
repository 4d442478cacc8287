"""Training on documents, killed and resumed with more processes: is a sequence lost or repeated?

    python examples/text_demo.py [--data FOLDER] [--steps 120] [--out out/text]

Two processes train a small language model under torchrun, on a mixture of packed datasets. All of
them are killed with SIGKILL. Three processes go on from the saved state. Then the logs of all five
are compared with what the library computes from that state. The exit code is 0 if all is equal.

Without --data, a corpus is built in OUT/stdlib-corpus: the sources of Python's standard library,
whose bytes are the tokens.
"""

import argparse
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from text_trainee import Job, documents, mixture, read_log

import windeck as wd
from windeck.cli.demo_files import write_corpus

TRAINEE = Path(__file__).with_name("text_trainee.py")

#: Processes that train before the kill, and after it.
BEFORE, AFTER = 2, 3

#: For each dataset of the standard library its share of the sequences. The short files have few,
#: and run through several epochs.
WEIGHTS = {"stdlib-modules": 0.4, "stdlib-packages": 0.35, "stdlib-short": 0.25}


def prepare(options: argparse.Namespace) -> Job:
    """Build the corpus or look at that of the user; return the job."""
    settings: dict[str, Any] = {
        "column": options.column,
        "sequence_length": options.sequence_length,
        "batch_size": options.batch_size,
        "steps": options.steps,
        "save_every": max(1, min(10, options.steps // 8)),
        "seed": options.seed,
    }
    if options.data is None:
        root = options.out / "stdlib-corpus"
        print(f"1 Data: the sources of Python's standard library, without tests, in {root}")
        for name, sizes in write_corpus(root).items():
            print(f"  {name}: {len(sizes):,} documents, {sum(sizes):,} bytes")
        return Job(str(root), WEIGHTS, **settings)
    print(f"1 Data: {options.data}")
    if not options.data.is_dir():
        raise FileNotFoundError(f"there is no folder {options.data}")
    names = sorted(path.name.removeprefix("dataset=") for path in options.data.glob("dataset=*"))
    if not names:
        raise FileNotFoundError(f"there is no folder dataset=NAME in {options.data}")
    tokens = {}
    for name in names:
        found = documents(options.data, name, options.column)
        tokens[name] = int(found.shard_tokens.sum())
        print(f"  {name}: {len(found):,} documents, {tokens[name]:,} tokens")
    print(
        "  documents are not framed; the model takes token ids modulo 4,096, the logs as they are"
    )
    # Whole numbers, so that the period of the mixture holds the shares exactly.
    total = max(1, sum(tokens.values()))
    weights = {name: max(1, round(1000 * own / total)) for name, own in tokens.items()}
    return Job(str(options.data), weights, **settings, bos=None, eos=None, vocabulary=4096)


@contextmanager
def torchrun(
    out: Path, name: str, processes: int, *options: str
) -> Iterator["subprocess.Popen[bytes]"]:
    """Run the trainee in some processes; none of them outlives the block."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += ["--local-addr", "127.0.0.1", "--nproc-per-node", str(processes), str(TRAINEE)]
    command += [str(out / "job.json"), "--name", name, *options]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    if any(interface == "lo" for _, interface in socket.if_nameindex()):
        environment["GLOO_SOCKET_IFNAME"] = "lo"  # whatever this machine's name resolves to
    with open(out / f"{name}.txt", "wb") as output:
        process = subprocess.Popen(command, stdout=output, stderr=output, env=environment)
    try:
        yield process
    finally:
        process.terminate()  # it ends its processes, then itself
        process.wait()


def failure(out: Path, name: str) -> RuntimeError:
    """Return the error of a run: the first line of its output that names one."""
    lines = (out / f"{name}.txt").read_text(errors="replace").splitlines()
    errors = (line.split("]: ")[-1] for line in lines if "Error: " in line)
    return RuntimeError(f"a training process failed: {next(errors, 'without an error message')}")


def kill_and_resume(job: Job, out: Path) -> None:
    """Train in two processes, kill them, and go on in three."""
    for pattern in ("killed-*", "resumed-*", "state.*"):
        for stale in out.glob(pattern):
            stale.unlink()
    (out / "job.json").write_text(json.dumps(asdict(job)))
    print(f"3 Kill: torchrun, {BEFORE} processes, {BEFORE * job.batch_size} sequences a step")
    goal = max(1, round(0.57 * job.steps))
    logs = [out / f"killed-{rank}.log" for rank in range(BEFORE)]
    # The processes wait before the last step, so that a slow killer still finds them.
    with torchrun(out, "killed", BEFORE, "--wait-at", str(job.steps - 1)) as process:
        while not (out / "state.pt").exists() or min(last_step(log, job) for log in logs) < goal:
            if process.poll() is not None:
                raise failure(out, "killed")
            time.sleep(0.05)
        for rank in range(BEFORE):
            with suppress(ProcessLookupError):  # torchrun has ended it for the one before
                os.kill(int((out / f"killed-{rank}.pid").read_text()), signal.SIGKILL)
    saved = torch.load(out / "state.pt", weights_only=True)
    step, position = saved["step"], saved["loader"]["position"]
    last = max(last_step(log, job) for log in logs)
    print(f"  SIGKILL to both in step {last:,} of {job.steps:,}; last saved after step {step:,}")
    print(f"4 Resume: torchrun, {AFTER} processes, from one saved integer: position {position:,}")
    with torchrun(out, "resumed", AFTER, "--resume") as process:
        if process.wait():
            raise failure(out, "resumed")


def last_step(log: Path, job: Job) -> int:
    """Return the last step in a log; 0 if there is none."""
    steps = read_log(log, job)["step"]
    return int(steps[-1]) if len(steps) else 0


def check(job: Job, out: Path) -> bool:
    """Compare the five logs with what a loader with the last state says; return if all is equal."""
    stream = mixture(job)
    loader = wd.Loader(stream, batch_size=job.batch_size, rank=0, world_size=AFTER)
    loader.load_state_dict(torch.load(out / "state.pt", weights_only=True)["loader"])
    reports = [json.loads((out / f"resumed-{rank}.json").read_text()) for rank in range(AFTER)]
    killed = np.concatenate([read_log(out / f"killed-{rank}.log", job) for rank in range(BEFORE)])
    resumed = np.concatenate([read_log(out / f"resumed-{rank}.log", job) for rank in range(AFTER)])
    saved = int(resumed["step"].min()) - 1
    kept = np.concatenate((killed[killed["step"] <= saved], resumed))
    kept = kept[np.argsort(kept["position"], kind="stable")]
    lost = len(killed) + len(resumed) - len(kept)
    print(f"5 Check: {len(kept):,} sequences; the {lost:,} after the last save were done again")
    served = stream.samples(kept["position"])
    by_step = [
        loader.samples(step, rank=rank)
        for step in range(job.steps)
        for rank in range(BEFORE if step < saved else AFTER)
    ]
    counts = [
        np.bincount(served[served[:, 0] == number, 1], minlength=stream.parts[name].epoch_length)
        for number, name in enumerate(stream.names)
    ]
    at_position = stream.gather(kept["position"])
    claims = {
        "every position of the stream once: no sequence lost, none repeated":
            np.array_equal(kept["position"], np.arange(loader.position)),
        "each dataset: no sequence is served again before all of them were":
            all(np.ptp(part) <= 1 for part in counts),
        "each sequence: the tokens that the mixture has at its position":
            np.array_equal(kept["tokens"][:, :-1], at_position["inputs"])
            and np.array_equal(kept["tokens"][:, -1], at_position["targets"][:, -1]),
        "the samples of each step, computed from the last saved state":
            np.array_equal(np.concatenate(by_step), served),
        "one model: the same weights in every process, bit for bit":
            len({report["weights"] for report in reports}) == 1,
    }  # fmt: skip
    for claim, holds in claims.items():
        print(f"  {'✔' if holds else '✘'} {claim}")
    return all(claims.values()) and all(
        check_document(loader, document, kept) for document in chosen_documents(job)
    )


def chosen_documents(job: Job) -> list[tuple[str, int, int]]:
    """Return a document of the dataset with the fewest tokens, and one of that with the most."""
    found = [documents(job.corpus, name, job.column) for name in job.weights]
    found.sort(key=lambda dataset: int(dataset.shard_tokens.sum()))
    return [dataset.locate(min(17, len(dataset) - 1)) for dataset in (found[0], found[-1])]


def check_document(
    loader: wd.Loader, document: tuple[str, int, int], kept: npt.NDArray[Any]
) -> bool:
    """Print when a document was trained on in its last epochs; return if the logs say the same."""
    steps = kept["step"] - 1  # the loader counts from 0
    last = loader.visited(document).epoch or 0
    equal = True
    for epoch in range(max(0, last - 2), last + 1):
        visit = loader.visited(document, epoch=epoch)
        pairs = zip(visit.positions, visit.steps, strict=True)
        logged = [steps[position] == step for position, step in pairs if position < len(kept)]
        holds = all(logged) and len(logged) == visit.served
        print(f"  {'✔' if holds else '✘'} visited? {visit}")
        equal = equal and holds
    return equal


def at_least(least: int) -> Any:
    """Return the type of an option that is a whole number from `least` on."""

    def parse(text: str) -> int:
        if not text.isdecimal() or int(text) < least:
            raise argparse.ArgumentTypeError(
                f"must be a whole number of at least {least}, got {text!r}"
            )
        return int(text)

    return parse


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the demo; return the exit code."""
    parser = argparse.ArgumentParser(
        prog="text_demo.py",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder of dataset=NAME/*.partN.arrow or .parquet")
    add("--column", default="tokens", help="its column of tokens or text (default: tokens)")
    add("--steps", type=at_least(4), default=120, help="batches to train (default: 120)")
    add("--batch-size", type=at_least(1), default=8, help="sequences per process (default: 8)")
    add("--sequence-length", type=at_least(1), default=128, help="tokens (default: 128)")
    add("--seed", type=at_least(0), default=0, help="of the shuffle and the weights (default: 0)")
    add("--out", type=Path, default=Path("out/text"), help="folder for all files (out/text)")
    options = parser.parse_args(arguments)
    options.out.mkdir(parents=True, exist_ok=True)
    began = time.perf_counter()
    try:
        job = prepare(options)
        print(f"2 Mix: sequences of {job.sequence_length:,} tokens, in a new order every epoch")
        stream = mixture(job)
        for name, share in stream.shares.items():
            print(f"  {name}: {share:.1%} of them, {stream.parts[name].epoch_length:,} an epoch")
        kill_and_resume(job, options.out)
        holds = check(job, options.out)
    except (OSError, KeyError, ValueError, TypeError, RuntimeError) as error:
        text = error.args[0] if isinstance(error, KeyError) else error
        print(f"{parser.prog}: {text}", file=sys.stderr)
        return 1
    print(f"done in {time.perf_counter() - began:.0f} s")
    return 0 if holds else 1


if __name__ == "__main__":
    sys.exit(main())
