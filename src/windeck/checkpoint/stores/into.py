"""Values read to where they are wanted, by whatever way a view has for that."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from windeck.checkpoint.stores.protocol import DirectView, StreamView, Wanted

__all__ = ["each_into"]


def each_into(view: DirectView | StreamView, wanted: Iterable[Wanted]) -> Iterator[int | None]:
    """As `StreamView.get_each_into`, of a view that has it or reads one value at a time."""
    if isinstance(view, StreamView):
        return view.get_each_into(wanted)
    return (view.get_many_into([one])[0] for one in wanted)
