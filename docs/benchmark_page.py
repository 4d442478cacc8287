"""Write `docs/benchmarks.md` and its pictures from `benchmarks/RESULTS.md`.

    python docs/benchmark_page.py [--check]

`KINDS` names the rows of RESULTS.md that the page shows. Pictures are bars of ratios on a
logarithmic axis. With `--check` nothing is written, and the exit code is 1 if a file would change.
"""

from __future__ import annotations

import argparse
import math
import re
import sys
import textwrap
from dataclasses import dataclass
from html import escape
from pathlib import Path

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS.parent / "benchmarks" / "RESULTS.md"

#: The median and the quartiles of a row, in its last column but one.
RATIO = re.compile(r"\| ([\d.,]+)x \(([\d.,]+ to [\d.,]+)\) \|[^|]*\|$")


@dataclass(frozen=True)
class Bar:
    """A figure: the ratio of the first row of a section whose text begins with `row`.

    Attributes
    ----------
    section, row : str
        Heading in RESULTS.md, and the beginning of the row's text after its first bar.
    what, rival : str
        Text of the page.
    contains : str
        Text that the row contains, where several rows begin alike.
    """

    section: str
    row: str
    what: str
    rival: str
    contains: str = ""


@dataclass(frozen=True)
class Kind:
    """A section of the page: a kind of work, a paragraph about it, and its figures."""

    name: str
    title: str
    text: str
    bars: tuple[Bar, ...]


ONE = "one series of 200,000 rows, past and future"

KINDS = (
    Kind(
        "shuffling",
        "Shuffling",
        "The order of an epoch, in pieces. Nothing is stored, so the last line, a copy of as many "
        "numbers that are in memory already, is faster.",
        (
            Bar("orders", "order of 10^8", "order of 10^8 samples", "NumPy's `permutation`"),
            Bar("orders", "the same, per index", "an index", "Grain's `index_shuffle`, a call for "
                "each", contains="Grain"),
            Bar("orders", "the same, per index", "an index", "a copy of int64", contains="copyto"),
        ),
    ),
    Kind(
        "windows",
        "Windows",
        "Batches of windows of 168 + 24 steps, with masks unless stated. Other libraries serve the "
        "same windows, which is compared first. The last rows are the nearest rivals: one index of "
        "torch or NumPy into data in memory. If a batch takes long to train on, they do as well.",
        (
            Bar("loader", "an epoch of 97", "an epoch, batches of 1,024", "`Dataset` of windows "
                "with masks, `DataLoader`", contains="(filled, masked, numbered)"),
            Bar("loader", "an epoch of 97 batches of 1024 windows 168 + 24 x 1 ",
                "an epoch, batches of 1,024", "`Dataset` of values alone, `DataLoader`",
                contains="(values only)"),
            Bar("forecasting_libraries", "", "an epoch, batches of 256", "GluonTS",
                contains="gluonts"),
            Bar("forecasting_libraries", "", "an epoch, batches of 256", "Darts",
                contains="darts"),
            Bar("forecasting_libraries", "", "an epoch",
                "NeuralForecast, all windows of 32 series at once",
                contains="all of 32 series"),
            Bar("small_batches", f"{ONE} with masks, batches of 256 ", "batches of 256",
                "`unfold`, `randperm`, and masks in torch", contains="torch, indexed"),
            Bar("small_batches", f"{ONE} without masks, batches of 1024 ",
                "batches of 1,024, values alone", "`unfold`, `randperm` in torch",
                contains="torch, indexed"),
            Bar("small_batches", f"{ONE} without masks, batches of 1024 ",
                "batches of 1,024, values alone", "`unfold`, `randperm`, `index_select` in torch",
                contains="torch, selected"),
            Bar("gather", "gather rows", "rows of 8 columns, no masks",
                "`sliding_window_view` of NumPy", contains="1 thread | numpy"),
        ),
    ),
    Kind(
        "models",
        "Models of other libraries",
        "The same windows by the library's own loader and by its adapter in `windeck.adapters`, in "
        "batches of 256. Training is the whole epoch, by the library's trainer with one of its "
        "smallest models: the larger the model, the nearer to 1. **NeuralForecast loads faster by "
        "itself**: it cuts windows inside its training step.",
        (
            *(
                Bar("adapters", f"{module}: an epoch", f"{library}: {work} an epoch", rival,
                    contains=f"windows, {work}")
                for module, library, rival in (
                    ("gluonts", "GluonTS", "its own loader"),
                    ("darts", "Darts", "its own loader"),
                    ("pytorch_forecasting", "pytorch-forecasting", "its own loader"),
                    ("neuralforecast", "NeuralForecast", "its own loader"),
                    ("chronos", "Chronos-2", "its own loader"),
                    ("time_series_library", "Time-Series-Library",
                        "its arithmetic in a `DataLoader`"),
                )
                for work in ("loading", "training")
            ),
        ),
    ),
    Kind(
        "files",
        "Files",
        "Tables in Parquet and Arrow files. Reading the same columns as pyarrow and checking them "
        "takes longer than pyarrow alone. Larger than memory, the rivals are the formulations of "
        "`datasets` with a shuffle buffer of as many bytes.",
        (
            Bar("table", "Parquet: 6 of 96", "6 of 96 columns of Parquet", "pyarrow, all columns",
                contains="all 96"),
            Bar("table", "Parquet: 6 of 96", "6 of 96 columns of Parquet", "pyarrow, these columns",
                contains="the same"),
            Bar("table", "Arrow IPC: 6 of 96", "6 of 96 columns of Arrow IPC",
                "pyarrow, these columns", contains="the same"),
            Bar("datasets", "local files: windows of 168 + 24, stride 1,",
                "windows of a table larger than memory", "`datasets`, rows in a `DataLoader`",
                contains="DataLoader(num_workers=2)"),
            Bar("datasets", "local files: windows of 168 + 24, stride 1,",
                "windows of a table larger than memory", "`datasets`, batches of Arrow",
                contains="Arrow batches"),
            Bar("datasets", "S3, 50 ms away, 20 MB/s: windows of 168 + 24, stride 1,",
                "the same from S3", "`datasets`, batches of Arrow", contains="Arrow batches"),
            Bar("datasets", "local files: resume at 90%", "resume at 90 % of an epoch",
                "`datasets`", contains="first batch after load_state_dict"),
        ),
    ),
    Kind(
        "tokens",
        "Tokens",
        "Packed sequences with position ids and document offsets. Ratios shrink with the length of "
        "sequences: both sides then copy long stretches.",
        (
            Bar("packing", "packed batches of 64 x 1,024", "batches of 64 x 1,024",
                "`torch.stack` of `memmap` slices"),
            Bar("packing", "packed batches of 16 x 4,096", "batches of 16 x 4,096",
                "`torch.stack` of `memmap` slices"),
            Bar("packing", "packed batches of 64 x 4,096", "batches of 64 x 4,096",
                "lists, document by document"),
            Bar("documents", "start-up seconds at 10,000,000", "start with 10^7 documents",
                "a shuffled list of tuples"),
            Bar("documents", "resident bytes at 10,000,000", "memory with 10^7 documents",
                "a shuffled list of tuples"),
            Bar("documents", "locate a million", "locate a million documents",
                "`bisect` in a loop"),
        ),
    ),
    Kind(
        "checkpoints",
        "Checkpoints",
        "1 GB of float32 in RocksDB, durable at the end, in memory (tmpfs). A save is faster than "
        "that of the others. **A load is slower**: it compares every checksum, and the others "
        "compare none.",
        (
            Bar("checkpoint", "save 1 GB of float32 against torch.save (tmpfs) ", "save",
                "`torch.save` and fsync"),
            Bar("checkpoint", "save 1 GB of float32 against safetensors (tmpfs) ", "save",
                "safetensors and fsync"),
            Bar("checkpoint", "load 1 GB of float32 in place (tmpfs) ", "load",
                "`torch.load(mmap=True)`", contains="torch.load(mmap=True), copied by 1"),
            Bar("checkpoint", "load 1 GB of float32 in place (tmpfs) ", "load", "safetensors",
                contains="safetensors, copied by 1"),
            Bar("checkpoint", "load 1 GB of float32 in place (tmpfs) ", "load",
                "`torch.distributed.checkpoint`", contains="checkpoint, copied by 1"),
            Bar("embedding_stores", "bytes of a save after 1 %",
                "bytes of an incremental save, 1 % of rows changed", "bytes of a full one"),
        ),
    ),
    Kind(
        "embeddings",
        "Embedding tables",
        "Rows of 64 floats for any 64-bit id. A table with a hash of ids is slower than a matrix "
        "with dense indices, and its checkpoint slower than a file of safetensors.",
        (
            Bar("embeddings", "look up 65,536 ids in 10 million x 64 float32,",
                "look up 65,536 of 10 million ids", "`dict` and `torch.stack`",
                contains="EmbeddingCore.lookup | dict of views"),
            Bar("embeddings", "look up 65,536 ids in 10 million x 64 float32,",
                "look up 65,536 of 10 million ids", "`F.embedding` of a matrix",
                contains="EmbeddingCore.lookup | F.embedding"),
            Bar("embedding_redis", "export 262,144 rows of 64 float32 to redis, used memory |",
                "save to Redis", "`MSET` of 100 rows", contains="MSET of up to 100 "),
            Bar("embedding_stores", "export 262,144 rows of 64 float32 to rocksdb, in memory",
                "save to RocksDB", "a key for each row", contains="a key per row"),
            Bar("tables", "save a table of 200,000 x 64, ids in random order (tmpfs) ", "save",
                "safetensors and fsync"),
            Bar("tables", "load a table of 200,000 x 64, ids in random order (tmpfs) ", "load",
                "safetensors and one insert"),
        ),
    ),
)  # fmt: skip

TITLE = """\
# Benchmarks

<!-- Written by docs/benchmark_page.py from benchmarks/RESULTS.md: edit that script. -->
"""
ABOUT = (
    "A ratio is **the other's time over windeck's**, on two cores: above 1 windeck is faster, "
    "below 1 the other is. Both sides give the same result, which is compared first, with the "
    "same dtypes and numbers of threads. The other gets preallocated outputs where it takes "
    "them, and memory is touched before. Rounds alternate; a ratio is the median, with its "
    "quartiles. Ratios depend on the machine. [All figures](../benchmarks/RESULTS.md) are in the "
    "repository, with machines, dates and what was asked of each; `make bench` in a clone "
    "measures them anew."
)


def sections(results: str) -> dict[str, str]:
    """Return the sections of RESULTS.md by their headings."""
    _, *texts = re.split(r"^## ", results, flags=re.MULTILINE)
    return {text.partition("\n")[0]: text for text in texts}


def figure(bar: Bar, texts: dict[str, str]) -> tuple[str, str]:
    """Return the ratio of a bar, and its quartiles, as RESULTS.md has them.

    Raises
    ------
    LookupError
        If RESULTS.md has no such row, or the row has no ratio.
    """
    for line in texts.get(bar.section, "").splitlines():
        if line.startswith(f"| {bar.row}") and bar.contains in line:
            found = RATIO.search(line)
            if found is None:
                raise LookupError(f"{line!r} has no ratio with its quartiles")
            return found[1], found[2]
    raise LookupError(
        f"no row of section {bar.section!r} begins with {bar.row!r} and has {bar.contains!r}"
    )


def fill(text: str) -> str:
    """Return a paragraph in lines of the pages' width."""
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False)


def short(ratio: float) -> str:
    """Return a ratio with two significant digits, or as an integer."""
    return f"{ratio:,.0f}" if ratio >= 10 else f"{ratio:.2g}".removesuffix(".0")


LEFT, WIDTH, STEP = 300, 660, 34
STYLE = """\
<style>
text { font: 13px system-ui, sans-serif; fill: #1b1f24 }
.rival { fill: #57606a; font-size: 11px }
.more { fill: #1f6fb4 } .less { fill: #c2571a }
line { stroke: #8c959f; stroke-width: 1 }
@media (prefers-color-scheme: dark) {
  text { fill: #e6edf3 } .rival { fill: #9da7b3 } .more { fill: #58a6ff } .less { fill: #f0883e }
}
</style>"""


def picture(kind: Kind, ratios: list[float]) -> str:
    """Return an SVG with a bar for each ratio, from 1 to the right or to the left."""
    least = min(-0.4, *(math.log10(ratio) for ratio in ratios))
    most = max(1.0, *(math.log10(ratio) for ratio in ratios))
    scale = (WIDTH - LEFT - 60) / (most - least)
    one = LEFT - least * scale
    height = STEP * len(ratios) + 30
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {WIDTH} {height}" role="img">',
        f"<title>{escape(kind.title)}: the other's time over windeck's</title>",
        STYLE,
        f'<line x1="{one:.0f}" y1="4" x2="{one:.0f}" y2="{height - 22}"/>',
        f'<text class="rival" x="{one:.0f}" y="{height - 8}" text-anchor="middle">'
        "1: as fast as the other</text>",
    ]
    for number, (bar, ratio) in enumerate(zip(kind.bars, ratios, strict=True)):
        top = 8 + number * STEP
        length = math.log10(ratio) * scale
        name = "more" if ratio >= 1 else "less"
        end = one + length + 5 if ratio >= 1 else one + 5
        what, rival = (escape(text.replace("`", "")) for text in (bar.what, bar.rival))
        parts += [
            f'<text x="4" y="{top + 11}">{what}</text>',
            f'<text class="rival" x="4" y="{top + 24}">{rival}</text>',
            f'<rect class="{name}" x="{min(one, one + length):.1f}" y="{top}"'
            f' width="{max(abs(length), 1):.1f}" height="22"/>',
            f'<text x="{end:.1f}" y="{top + 16}">{short(ratio)}</text>',
        ]
    return "\n".join([*parts, "</svg>"]) + "\n"


def pages(results: str) -> dict[str, str]:
    """Return the text of the page and of its pictures, by their paths below `docs`."""
    texts, found = sections(results), {}
    lines = [TITLE, fill(ABOUT), ""]
    for kind in KINDS:
        figures = [figure(bar, texts) for bar in kind.bars]
        ratios = [float(ratio.replace(",", "")) for ratio, _ in figures]
        path = f"pictures/benchmark_{kind.name}.svg"
        found[path] = picture(kind, ratios)
        faster = sum(ratio > 1 for ratio in ratios)
        about = f"{kind.title}: windeck is faster in {faster} of {len(ratios)} figures"
        lines += [f"## {kind.title}\n", f"{fill(kind.text)}\n", f"![{about}]({path})\n"]
        lines += ["| what | the other | ratio | quartiles |", "|---|---|---|---|"]
        for bar, (ratio, quartiles) in zip(kind.bars, figures, strict=True):
            lines.append(f"| {bar.what} | {bar.rival} | {ratio} | {quartiles} |")
        lines.append("")
    return {"benchmarks.md": "\n".join(lines), **found}


def main() -> int:
    """Write the files, or compare them; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="write nothing; 1 if a file differs")
    check = parser.parse_args().check
    changed = [
        (DOCS / name, text)
        for name, text in pages(RESULTS.read_text(encoding="utf-8")).items()
        if not (DOCS / name).exists() or (DOCS / name).read_text(encoding="utf-8") != text
    ]
    for path, text in changed:
        print(f"{'differs' if check else 'wrote'}: {path}")
        if not check:
            path.write_text(text, encoding="utf-8")
    return int(check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
