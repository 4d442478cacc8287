"""`make bench`: every benchmark, one table, one picture, and the newest figures in RESULTS.md.

docs/benchmarks.md and its pictures are written from these.

Each module bench_<question>.py has `rows()`, a generator of Row values.
"""

from __future__ import annotations

import argparse
import importlib
import json
import os
import platform
import re
import subprocess
import sys
from concurrent.futures import ProcessPoolExecutor
from dataclasses import asdict
from datetime import date
from multiprocessing import get_context
from pathlib import Path

import measure
from measure import Row, digits
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent

#: The newest figures of every benchmark, a section for each.
RESULTS = HERE / "RESULTS.md"


def modules(names: list[str]) -> list[str]:
    """The benchmark modules asked for, or all of them."""
    found = sorted(path.stem for path in HERE.glob("bench_*.py"))
    wanted = [f"bench_{name.removeprefix('bench_')}" for name in names] or found
    unknown = set(wanted) - set(found)
    if unknown:
        raise SystemExit(f"no benchmark named {sorted(unknown)}; there are {found}")
    return wanted


def table(rows: list[Row]) -> Table:
    """One line per figure: the ratio, its quartiles, and whether it reaches what is asked."""
    view = Table(title="rival's time over ours: median (quartiles)")
    for heading in ("question", "ours", "rival", "ratio", "asked", "bound by"):
        view.add_column(heading, overflow="fold")
    for row in rows:
        asked = "" if row.needed is None else f"{digits(row.needed)}x"
        style = "" if row.reached else "bold red"
        view.add_row(
            row.question, row.ours, row.rival, str(row.ratio), asked, row.bound, style=style
        )
    return view


def section(name: str, rows: list[Row], machine: str) -> str:
    """The section of a benchmark in RESULTS.md."""
    lines = [f"## {name}", "", f"Machine: {machine}.", ""]
    lines += ["| question | ours | rival | ratio | asked |", "|---|---|---|---|---|"]
    for row in rows:
        asked = "" if row.needed is None else digits(row.needed)
        lines.append(f"| {row.question} | {row.ours} | {row.rival} | {row.ratio} | {asked} |")
    return "\n".join(lines)


def updated(results: str, sections: dict[str, str]) -> str:
    """The text of RESULTS.md with the sections of some benchmarks in place of their former ones."""
    head, *former = re.split(r"^(?=## )", results, flags=re.MULTILINE)
    kept = {text.split("\n", 1)[0].removeprefix("## "): text for text in former}
    found = {**kept, **sections}
    texts = [head, *(found[name] for name in sorted(found))]
    return "\n\n".join(map(str.strip, texts)) + "\n"


def processor() -> str:
    """The model of the processor, as far as the system names it."""
    facts = Path("/proc/cpuinfo")
    text = facts.read_text(encoding="utf-8") if facts.exists() else ""
    model = re.search(r"^model name\s*: (.+)$", text, re.MULTILINE)
    return model[1] if model else platform.processor() or platform.machine()


def picture(rows: list[Row], path: Path) -> None:
    """Ratios as bars on a logarithmic axis, with what is asked as a tick."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(figsize=(10, 0.42 * len(rows) + 1.2), layout="constrained")
    places = range(len(rows))
    medians = [row.ratio.median for row in rows]
    below = [row.ratio.median - row.ratio.low for row in rows]
    above = [row.ratio.high - row.ratio.median for row in rows]
    axes.barh(places, medians, xerr=[below, above], color="#3b6ea5", ecolor="#1b2a3a")
    for place, row in enumerate(rows):
        if row.needed is not None:
            axes.plot([row.needed] * 2, [place - 0.4, place + 0.4], color="#d1495b", lw=2)
    axes.set_yticks(places, [f"{row.question}\nagainst {row.rival}" for row in rows], fontsize=7)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.axvline(1, color="grey", lw=0.8)
    axes.set_xlabel("rival's time / ours (red: what is asked)")
    figure.savefig(path, dpi=130)


def measured(name: str, out: Path) -> list[Row]:
    """The rows of a benchmark, each of them printed."""
    measure.OUT = out
    found = []
    for row in importlib.import_module(name).rows():
        print(f"  {row.question} against {row.rival}: {row.ratio}", flush=True)
        found.append(row)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="benchmarks to run; all when none is named")
    parser.add_argument("--out", type=Path, default=Path("out"), help="folder for the results")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    # One thread unless a benchmark asks for more: rivals and ours alike.
    os.environ.setdefault("OMP_NUM_THREADS", "1")

    import windeck._core as core

    console = Console()
    machine = f"{processor()}, {os.cpu_count()} cores, {core.simd()}, {date.today().isoformat()}"
    console.print(f"machine: {machine}")
    rows: list[Row] = []
    for name in modules(arguments.names):
        console.print(f"[dim]{name} ...[/dim]")
        # A process for each: threads of torch and memory that are kept are not those of another.
        with ProcessPoolExecutor(1, mp_context=get_context("spawn")) as pool:
            found = pool.submit(measured, name, arguments.out).result()
        rows += found
        if found:  # else its rival is not installed, and the section stays as it is
            title = name.removeprefix("bench_")
            text = updated(RESULTS.read_text("utf-8"), {title: section(title, found, machine)})
            RESULTS.write_text(text, encoding="utf-8")
    console.print(table(rows))
    (arguments.out / "bench.json").write_text(
        json.dumps({"machine": machine, "rows": [asdict(row) for row in rows]}, indent=1)
    )
    picture(rows, arguments.out / "bench.png")
    subprocess.run([sys.executable, HERE.parent / "docs" / "benchmark_page.py"], check=True)
    console.print(f"wrote {RESULTS}, and bench.json and bench.png into {arguments.out}")


if __name__ == "__main__":
    main()
