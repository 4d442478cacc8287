"""Pictures of a report as SVG: bars of rates, a bar of shares, a timeline."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

__all__ = ["rate_bars", "share_bar", "timeline"]

Span = tuple[float, float, float]

_WIDTH, _LEFT, _RIGHT = 720, 130, 110
#: Batches of a timeline that are drawn, at most.
_DRAWN = 40
#: The largest rate in units of the smallest one up to which bars are in proportion.
_LINEAR = 20


def rate_bars(rates: Sequence[tuple[str, float, str]]) -> str:
    """Return a bar for each rate: its label, its number and the class of its colour.

    Rates that differ by much are on a logarithmic scale, which says so.
    """
    found = [rate for _, rate, _ in rates if rate > 0]
    most, least = max(found, default=1.0), min(found, default=1.0)
    first = 10.0 ** (math.ceil(math.log10(least)) - 1)  # of the scale: a power below all rates
    is_logarithmic = most > _LINEAR * least
    widest, shapes = _WIDTH - _LEFT - _RIGHT, list[str]()
    for row, (label, rate, kind) in enumerate(rates):
        part = rate / most
        if is_logarithmic and rate > 0:
            part = math.log(rate / first) / math.log(most / first)
        top, width = 26 * row + 2, max(widest * part, 1.0)
        shapes += [
            _text(0, top + 15, label),
            _box(_LEFT, top, width, 20, kind, label),
            _text(_LEFT + width + 8, top + 15, _rate(rate)),
        ]
    height = 26 * len(rates) + 4
    if is_logarithmic:
        height += 18
        shapes.append(_text(_LEFT, height - 4, f"logarithmic scale from {_rate(first)} on", "soft"))
    return _svg(height, shapes, "rates")


def _rate(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= 10 else f"{rate:.3g}"


def share_bar(shares: Sequence[tuple[str, float, str]]) -> str:
    """Return one bar that is divided into shares, with a legend; shares of 0 are left out."""
    total = sum(share for _, share, _ in shares) or 1.0
    left, shapes = 0.0, list[str]()
    for label, share, kind in shares:
        width = _WIDTH * share / total
        if share > 0:
            shapes.append(_box(left, 0, width, 22, kind, f"{label}: {share:.0%}"))
        left += width
    at = 0.0
    for label, share, kind in shares:
        text = f"{label} {share:.0%}".replace("%", " %")
        shapes += [_box(at, 32, 12, 12, kind, label), _text(at + 18, 42, text)]
        at += 40 + 6.6 * len(text)
    return _svg(50, shapes, "shares")


def timeline(lanes: Sequence[tuple[str, Sequence[Span]]]) -> str:
    """Return the first batches of loops over time, one loop in a lane, all on one scale.

    Each span is the time of the request, of the batch, and of the end of the step. The scale ends
    with the first loop's batches.
    """
    drawn = [(label, list(spans[:_DRAWN])) for label, spans in lanes]
    end = max((done for _, _, done in drawn[0][1]), default=0.0) if drawn else 0.0
    if end <= 0:
        return "<p>No batches.</p>"
    scale = (_WIDTH - _LEFT) / end
    shapes = list[str]()
    height = 34 * len(drawn)
    tick = _tick(end)
    for number in range(int(end / tick) + 1):
        x = _LEFT + number * tick * scale
        shapes.append(f'<line x1="{x:.1f}" y1="0" x2="{x:.1f}" y2="{height}"/>')
        if x < _WIDTH - 50:
            shapes.append(_text(x + 3, height + 14, _seconds(number * tick), "soft"))
    for row, (label, spans) in enumerate(drawn):
        top = 34 * row + 4
        shapes.append(_text(0, top + 17, label))
        for number, (began, got, done) in enumerate(spans):
            for start, stop, kind, what in (
                (began, got, "wait", "waiting"),
                (got, done, "step", "step"),
            ):
                stop = min(stop, end)
                if stop > start:
                    title = f"batch {number}: {what} {_seconds(stop - start)}"
                    width = max((stop - start) * scale - 0.4, 0.3)
                    shapes.append(_box(_LEFT + start * scale, top, width, 24, kind, title))
    below = height + 34
    for x, kind, label in ((_LEFT, "wait", "waiting for a batch"), (_LEFT + 160, "step", "step")):
        shapes += [_box(x, below - 10, 12, 12, kind, label), _text(x + 18, below, label)]
    return _svg(below + 6, shapes, "timeline")


def _tick(end: float) -> float:
    """Return a round distance of ticks, of which there are up to eight."""
    rough = end / 8
    power = 10.0 ** math.floor(math.log10(rough))
    return next(power * step for step in (1, 2, 5, 10) if power * step >= rough)


def _seconds(seconds: float) -> str:
    """Return a time in the largest unit of which it has one."""
    for unit, size in (("s", 1.0), ("ms", 1e-3)):
        if seconds >= size * 0.9999:
            return f"{seconds / size:.3g} {unit}"
    return f"{seconds * 1e6:.3g} us" if seconds else "0"


def _box(x: float, y: float, width: float, height: float, kind: str, title: str) -> str:
    return (
        f'<rect class="{kind}" x="{x:.2f}" y="{y:.1f}" width="{width:.2f}" height="{height}">'
        f"<title>{escape(title)}</title></rect>"
    )


def _text(x: float, y: float, text: str, kind: str = "number") -> str:
    return f'<text class="{kind}" x="{x:.1f}" y="{y:.1f}">{escape(text)}</text>'


def _svg(height: float, shapes: Sequence[str], label: str) -> str:
    return (
        f'<svg viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{label}">'
        f"{''.join(shapes)}</svg>"
    )
