"""The figures of reports as rows of text, alone or side by side."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from windeck._util.text import format_bytes, plural
from windeck.diagnosis.measurements import LoopTimes, Measurements, Usage
from windeck.diagnosis.verdict import (
    batch_rate,
    findings_of,
    lost_shares,
    sample_rate,
    step_seconds,
)

__all__ = ["TextTable", "aligned", "compared_table", "difference_of", "tables_of"]


@dataclass(frozen=True)
class TextTable:
    """A title, headings, and rows of text; every column but the first is of numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


def tables_of(measured: Measurements) -> list[TextTable]:
    """Return the tables of a report: loops, stages, processes, machine."""
    found = [_loops(measured), _processes(measured), _machine(measured)]
    if measured.stages:
        found.insert(1, _stages(measured))
    return found


def aligned(table: TextTable) -> list[str]:
    """Return a table as lines, its columns two spaces apart."""
    rows = [(table.title, *table.headings[1:]), *table.rows]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if i else cell.ljust(width)
            for i, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in rows
    ]


def _loops(measured: Measurements) -> TextTable:
    subject = measured.subject
    headings = ("loop", f"{subject.unit}/s", "bytes/s", "a batch", "waiting", "batches")
    loops = {"batches alone": measured.loader, "batches and step": measured.both}
    rows = [
        (
            name,
            _number(sample_rate(measured, loop)),
            format_bytes(subject.nbytes * batch_rate(loop)),
            _time(loop.seconds_per_batch),
            _percent(loop.waited / loop.seconds),
            f"{loop.batches:,}",
        )
        for name, loop in loops.items()
        if loop is not None
    ]
    if measured.step is not None:
        alone = step_seconds(measured)
        rows.append(
            (
                "step, one batch again",
                _number(sample_rate(measured, measured.step)),
                format_bytes(subject.nbytes / alone),
                _time(alone),
                _percent(0),
                f"{measured.step.batches:,}",
            )
        )
    return TextTable("loop", headings, tuple(rows))


def _stages(measured: Measurements) -> TextTable:
    headings = ("stage of a batch, alone", "time", "on a core", "major", "read")
    rows = [
        (
            stage.name,
            _time(stage.seconds),
            _percent(min(stage.cpu_seconds / max(stage.seconds, 1e-12), 1.0)),
            f"{stage.major_faults:.3g}",
            _bytes(stage.read_bytes),
        )
        for stage in measured.stages
    ]
    return TextTable(headings[0], headings, tuple(rows))


def _processes(measured: Measurements) -> TextTable:
    title = "process; counts a batch"
    headings = (title, "on a core", "queued", "major", "minor", "switches", "read")
    loop = measured.loader
    rows = [_use("this process", loop.process, loop)]
    rows += [_use(f"child {i}", worker, loop) for i, worker in enumerate(loop.workers, 1)]
    if measured.both is not None:
        both = measured.both
        rows.append(_use("this, with the step", both.process, both))
        rows += [
            _use(f"child {i}, with the step", use, both) for i, use in enumerate(both.workers, 1)
        ]
    return TextTable(title, headings, tuple(rows))


def _use(name: str, use: Usage, loop: LoopTimes) -> tuple[str, ...]:
    queued = "?" if use.queued_seconds is None else _percent(use.queued_seconds / loop.seconds)
    counts = (use.major_faults, use.minor_faults, use.switches)
    return (
        name,
        _percent(use.cpu_seconds / loop.seconds),
        queued,
        *(f"{count / loop.batches:.3g}" for count in counts),
        _bytes(None if use.read_bytes is None else use.read_bytes / loop.seconds, "/s"),
    )


def _machine(measured: Measurements) -> TextTable:
    machine, subject = measured.machine, measured.subject
    rows = [
        ("system", f"{machine.name}, {plural(machine.cores, 'core')}"),
        ("memory", f"{_bytes(machine.memory_bytes)}, {_bytes(machine.memory_free)} free"),
        ("memcpy, one thread", _bytes(machine.memcpy, "/s")),
    ]
    if machine.disk is not None:
        disk = machine.disk
        cache = "" if disk.uncached else ", perhaps out of the page cache"
        rows += [
            ("disk, in sequence", f"{format_bytes(disk.sequential)}/s ({disk.file}{cache})"),
            ("disk, random 4 KiB", f"{_number(disk.random)} reads/s"),
        ]
    if machine.network is not None:
        rows.append(("network", f"{format_bytes(machine.network)}/s"))
    rate = subject.nbytes * batch_rate(measured.loader)
    parts = []
    if machine.memcpy:
        parts.append(f"{rate / machine.memcpy:.2g} of memcpy")
    if machine.uncached_disk is not None:
        parts.append(f"{rate / machine.uncached_disk.sequential:.2g} of the disk in sequence")
    if machine.network:
        parts.append(f"{rate / machine.network:.2g} of the network")
    if parts:
        rows.append(("bytes of batches alone", ", ".join(parts)))
    workers = plural(subject.workers, "worker") if subject.workers else "no workers"
    rows += [
        ("loader", f"{subject.kind}, {workers}"),
        ("batch", f"{_number(subject.samples)} {subject.unit}, {format_bytes(subject.nbytes)}"),
        ("first batch after", _time(measured.first_batch_seconds)),
    ]
    if subject.mapped:
        names = ", ".join(f"{name} ({format_bytes(size)})" for name, size in subject.mapped[:4])
        rows.append(("files of the data", names))
    return TextTable("machine and loader", ("machine and loader", ""), tuple(rows))


#: Figures to compare: label, whether more is better, and the number.
def _figures(measured: Measurements) -> list[tuple[str, str, float | None]]:
    machine, loader = measured.machine, measured.loader
    step = both = None
    if measured.both is not None and measured.step is not None:
        step = sample_rate(measured, measured.step)
        both = sample_rate(measured, measured.both)
    disk = machine.uncached_disk
    unit = measured.subject.unit
    return [
        (f"batches and step, {unit}/s", "rate", both),
        (f"step alone, {unit}/s", "rate", step),
        (f"batches alone, {unit}/s", "rate", sample_rate(measured, loader)),
        ("time waiting", "share", None if both is None else lost_shares(measured)[0]),
        ("step slowed by the loader", "share", None if both is None else lost_shares(measured)[1]),
        ("first batch after", "time", measured.first_batch_seconds),
        *((f"stage {stage.name}", "time", stage.seconds) for stage in measured.stages),
        ("cores", "rate", float(machine.cores)),
        ("memcpy", "bytes", machine.memcpy),
        ("disk, in sequence", "bytes", None if disk is None else disk.sequential),
        ("disk, random reads/s", "rate", None if disk is None else disk.random),
        ("network", "bytes", machine.network),
    ]


def compared_table(reports: Sequence[tuple[str, Measurements]]) -> TextTable:
    """Return the figures of several reports side by side; with two, the second over the first."""
    found = [{label: (kind, value) for label, kind, value in _figures(one)} for _, one in reports]
    two = len(reports) == 2
    headings = ("figure", *(name for name, _ in reports), *(("ratio",) if two else ()))
    rows = []
    for label in dict.fromkeys(label for figures in found for label in figures):
        pairs = [figures.get(label, ("rate", None)) for figures in found]
        if all(value is None for _, value in pairs):
            continue
        row = [label, *(_figure(kind, value) for kind, value in pairs)]
        if two:
            row.append(_ratio(pairs[0][0], pairs[0][1], pairs[1][1]))
        rows.append(tuple(row))
    limits = ["limit", *(findings_of(one)[0].kind for _, one in reports), *([""] if two else [])]
    return TextTable("figure", headings, (tuple(limits), *rows))


def difference_of(reports: Sequence[tuple[str, Measurements]]) -> str:
    """Return a sentence that compares the first two reports.

    Raises
    ------
    ValueError
        For fewer than two.
    """
    if len(reports) < 2:
        raise ValueError(f"expected at least two reports to compare, got {len(reports)}")
    (one, first), (two, second) = reports[:2]
    parts = []
    for word, loop in (("step", "step"), ("loader", "loader"), ("training", "both")):
        loops = getattr(first, loop), getattr(second, loop)
        if loops[0] is not None and loops[1] is not None:
            rates = sample_rate(first, loops[0]), sample_rate(second, loops[1])
            parts.append(f"the {word} {_times(rates[1] / rates[0])}")
    text = f"from {one} to {two}, {', '.join(parts)}"
    if first.both is not None and second.both is not None:
        waits = [_percent(lost_shares(report)[0]) for report in (first, second)]
        text += f"; {waits[0]} of the time is spent waiting on {one}, {waits[1]} on {two}"
    return text


def _times(ratio: float) -> str:
    """Return a ratio of rates in words."""
    if 0.9 < ratio < 1.1:
        return "is as fast"
    faster = ratio > 1
    return f"is {ratio if faster else 1 / ratio:.3g} times as {'fast' if faster else 'slow'}"


def _ratio(kind: str, one: float | None, two: float | None) -> str:
    if kind == "share" or not one or two is None:
        return ""
    return f"{two / one:.3g}x"


def _figure(kind: str, value: float | None) -> str:
    if value is None:
        return "?"
    if kind == "share":
        return _percent(value)
    if kind == "time":
        return _time(value)
    return f"{format_bytes(value)}/s" if kind == "bytes" else _number(value)


def _bytes(value: float | None, after: str = "") -> str:
    return "?" if value is None else f"{format_bytes(value)}{after}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.3g}"


def _time(seconds: float) -> str:
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us"


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", " %")
