"""Items of a bulk load that several threads can make, each a range of the keys."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from windeck.checkpoint.stores.protocol import Items, Pieces

__all__ = ["Lanes"]

#: Least bytes of a lane.
LANE_BYTES = 32 << 20


class Lanes:
    """Items made in parts. A store may iterate over all of them, or over several lanes at the same
    time.

    Parameters
    ----------
    parts
        For each about how many bytes it has, and a call that gives its pairs. Keys ascend within
        a part and from part to part; parts share nothing that threads could not share.

    Examples
    --------
    >>> first, second = [(b"a", b"1"), (b"b", b"2")], [(b"c", b"3")]
    >>> lanes = Lanes([(40 << 20, lambda: first), (40 << 20, lambda: second)])
    >>> list(lanes)
    [(b'a', b'1'), (b'b', b'2'), (b'c', b'3')]
    >>> [list(lane) for lane in lanes.split(2)]
    [[(b'a', b'1'), (b'b', b'2')], [(b'c', b'3')]]
    """

    def __init__(self, parts: Sequence[tuple[int, Callable[[], Items]]]) -> None:
        self._parts = list(parts)

    def __iter__(self) -> Iterator[tuple[bytes, bytes | Pieces]]:
        return _in_a_row(self._parts)

    def split(self, most: int) -> list[Items]:
        """Split into at most `most` lanes of similar size, in the order of keys."""
        total = sum(size for size, _ in self._parts)
        count = max(1, min(most, total // LANE_BYTES, len(self._parts)))
        lanes: list[list[tuple[int, Callable[[], Items]]]] = [[] for _ in range(count)]
        before = 0
        for size, make in self._parts:
            # Into the lane that holds the middle of the part.
            lanes[min(count - 1, (2 * before + size) * count // (2 * total or 1))].append(
                (size, make)
            )
            before += size
        return [_in_a_row(lane) for lane in lanes if lane] or [()]


def _in_a_row(
    parts: Sequence[tuple[int, Callable[[], Items]]],
) -> Iterator[tuple[bytes, bytes | Pieces]]:
    for _, make in parts:
        yield from make()
