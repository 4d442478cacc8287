"""One ``for`` loop over a loader: batches made ahead, and the position moved as they are taken."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TypeAlias

from windeck.positions import Deal
from windeck.prefetch import Inline, Prefetcher, ahead
from windeck.tensors import Assembler, Ready, Tensors, span

if TYPE_CHECKING:
    from windeck.loader import Loader

__all__ = ["Loop"]

Ahead: TypeAlias = "Prefetcher[tuple[Ready, int, int]] | Inline[tuple[Ready, int, int]]"


class Loop:
    """One ``for`` loop: the batches of one epoch, from the loader's position on.

    Batches made ahead are thrown away when the loader was moved meanwhile: by a loaded state,
    an exclusion, another loop; and in a child process, which has no thread, after a fork.
    The loop stays that of one epoch, wherever the loader is moved.
    """

    def __init__(self, loader: Loader) -> None:
        self._loader = loader
        self._ahead: Ahead | None = None
        self._epoch: int | None = None
        self._version = -1

    def __iter__(self) -> Iterator[Tensors]:
        return self

    def __next__(self) -> Tensors:
        loader = self._loader
        while True:
            source = self._ahead
            if source is None or self._version != loader._version or not source.alive_here:
                source = self._start()
            try:
                with span("windeck.wait"):
                    ready, before, after = source.get()
            except BaseException:  # The end, an error of the source, or Ctrl-C: no thread stays.
                self.close()
                raise
            if before == loader._position:
                break
            self.close()  # Another loop took this batch, or Ctrl-C came when one was taken.
        loader._position = after
        loader._step += 1
        return ready.hand_over()

    def close(self) -> None:
        """Stop working ahead. The position stays; a further `next` starts again from it."""
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _start(self) -> Ahead:
        self.close()
        loader = self._loader
        loader._note()
        if self._epoch is None:
            self._epoch = loader.epoch
        self._version = loader._version
        if loader.epochs is None or self._epoch < loader.epochs:
            steps = loader._deal().steps(loader.position, self._epoch)
        else:
            steps = iter(())
        made = _made(steps, loader._deal(), loader.position, loader.rank, loader._assemble)
        self._ahead = ahead(made, loader.prefetch)
        return self._ahead


def _made(
    steps: Iterator[tuple[int, int]], deal: Deal, position: int, rank: int, assemble: Assembler
) -> Iterator[tuple[Ready, int, int]]:
    """The batches of `steps`, each with the loader's position before and after it.

    Advanced in another thread, which must keep no reference to the loop.
    """
    for start, stop in steps:
        yield assemble(deal.positions(start, rank)), position, stop
        position = stop
