"""Which step began at which position, over all that a training run has been through.

Between two changes of batch size, world size or `drop_last` steps are arithmetic. A run is a
handful of such legs, so any step of the past is found without a log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import dataclass

from windeck._util.validation import LIMIT, check_integer
from windeck.loader.sharding import Deal, Exclusions

__all__ = ["History", "Leg"]


@dataclass(frozen=True)
class Leg:
    """From `step` on, at `position`, steps were dealt so."""

    step: int
    position: int
    batch_size: int
    world_size: int
    drop_last: bool
    epoch_length: int


class History:
    """The legs of a run, ascending.

    Parameters
    ----------
    epoch_length
        Positions in an epoch, of legs that do not say otherwise: a stream whose data grow has
        epochs in the legs before, and none in those after.
    legs
        As saved by `saved`.
    """

    def __init__(self, epoch_length: int, legs: Iterable[Leg] = ()) -> None:
        self._epoch_length = epoch_length
        self._legs = list(legs)

    @classmethod
    def of(cls, saved: object, epoch_length: int) -> History:
        """A history from the lists of a state.

        Raises
        ------
        ValueError
            When they are no lists of five or six integers.
        """
        legs = []
        try:
            for item in saved:  # type: ignore[attr-defined]
                step, position, batch_size, world_size, drop_last, *other = item
                (length,) = other or [epoch_length]
                legs.append(
                    Leg(
                        check_integer("a leg's step", step),
                        check_integer("a leg's position", position, most=LIMIT - 1),
                        check_integer("a leg's batch_size", batch_size, least=1),
                        check_integer("a leg's world_size", world_size, least=1),
                        bool(drop_last),
                        check_integer("a leg's epoch_length", length, least=1),
                    )
                )
        except (TypeError, ValueError) as error:
            raise ValueError(f"the state's legs are damaged: {error}") from None
        return cls(epoch_length, legs)

    def saved(self) -> list[list[int]]:
        """The legs as lists of integers; the sixth, the epoch's length, only where it differs."""
        lists = []
        for leg in self._legs:
            shape = [leg.step, leg.position, leg.batch_size, leg.world_size, int(leg.drop_last)]
            usual = leg.epoch_length == self._epoch_length
            lists.append(shape if usual else [*shape, leg.epoch_length])
        return lists

    @property
    def begin(self) -> int:
        """The position of the first step there is a record of; 0 without any."""
        return self._legs[0].position if self._legs else 0

    def note(self, step: int, position: int, deal: Deal) -> None:
        """The next step is number `step`, at `position`, dealt like `deal`."""
        shape = (deal.batch_size, deal.world_size, deal.drop_last, deal.epoch_length)
        leg = Leg(step, position, *shape)
        if self._legs and self._legs[-1].step >= step:
            self._legs.pop()
        if not self._legs or self._shape(self._legs[-1]) != self._shape(leg):
            self._legs.append(leg)

    def find(self, step: int, exclusions: Exclusions) -> tuple[Deal, int]:
        """How step number `step` was or will be dealt, and the position it begins at."""
        leg = self._legs[max(0, bisect_right([leg.step for leg in self._legs], step) - 1)]
        if step < leg.step:
            raise IndexError(f"step {step} lies before step {leg.step}, where the state began")
        deal = self._deal(leg, exclusions)
        return deal, deal.jump(leg.position, step - leg.step)

    def step_of(self, position: int, exclusions: Exclusions) -> int | None:
        """The step that deals a position, or None where none does."""
        starts = [leg.position for leg in self._legs]
        number = bisect_right(starts, position) - 1
        if number < 0:
            return None
        leg = self._legs[number]
        steps = self._deal(leg, exclusions).steps_to(leg.position, position)
        return None if steps is None else leg.step + steps

    def _deal(self, leg: Leg, exclusions: Exclusions) -> Deal:
        return Deal(leg.epoch_length, leg.batch_size, leg.world_size, leg.drop_last, exclusions)

    @staticmethod
    def _shape(leg: Leg) -> tuple[int, int, bool, int]:
        return leg.batch_size, leg.world_size, leg.drop_last, leg.epoch_length
