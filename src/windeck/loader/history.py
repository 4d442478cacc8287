"""The start position of every step of a training, also across changes of its configuration.

Between two changes of batch size, world size or `drop_last` the starts of steps follow by
arithmetic. The history is the list of these changes, so it finds any past step without a log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from windeck._util.validation import LIMIT, check_integer
from windeck.loader.sharding import Exclusions, Sharding

__all__ = ["Leg", "StepHistory"]


@dataclass(frozen=True)
class Leg:
    """A leg of a training: its steps with one configuration, from `step` at `position` on."""

    step: int
    position: int
    batch_size: int
    world_size: int
    drop_last: bool
    epoch_length: int

    @property
    def configuration(self) -> tuple[int, int, bool, int]:
        """All but the step and the position at which the leg begins."""
        return self.batch_size, self.world_size, self.drop_last, self.epoch_length

    def sharding(self, exclusions: Exclusions) -> Sharding:
        """Return the sharding of the leg's steps."""
        return Sharding(
            self.epoch_length, self.batch_size, self.world_size, self.drop_last, exclusions
        )


class StepHistory:
    """The legs of a training, ascending; a state holds them as ``legs``."""

    def __init__(self, legs: Iterable[Leg] = ()) -> None:
        self._legs = list(legs)

    @classmethod
    def from_state(cls, saved: object) -> StepHistory:
        """Return the history that a state holds as lists of integers.

        Raises
        ------
        ValueError
            If they are not lists of six integers.
        """
        legs = []
        try:
            for item in saved:  # type: ignore[attr-defined]
                step, position, batch_size, world_size, drop_last, length = item
                legs.append(
                    Leg(
                        check_integer("step", step),
                        check_integer("position", position, most=LIMIT - 1),
                        check_integer("batch_size", batch_size, least=1),
                        check_integer("world_size", world_size, least=1),
                        bool(drop_last),
                        check_integer("epoch_length", length, least=1),
                    )
                )
                legs[-1].sharding(Exclusions([]))  # checks them together
        except (TypeError, ValueError) as error:
            raise ValueError(f"`legs` of the state is invalid: {error}") from None
        return cls(legs)

    def to_state(self) -> list[list[int]]:
        """Return the legs as lists of integers."""
        return [[*map(int, astuple(one))] for one in self._legs]

    @property
    def first_position(self) -> int:
        """The position of the first recorded step; 0 without any."""
        return self._legs[0].position if self._legs else 0

    def record(self, step: int, position: int, sharding: Sharding) -> None:
        """Record that the next step, number `step`, begins at `position` with this sharding."""
        leg = Leg(
            step,
            position,
            sharding.batch_size,
            sharding.world_size,
            sharding.drop_last,
            sharding.epoch_length,
        )
        if self._legs and self._legs[-1].step >= step:
            self._legs.pop()
        if not self._legs or self._legs[-1].configuration != leg.configuration:
            self._legs.append(leg)

    def find(self, step: int, exclusions: Exclusions) -> tuple[Sharding, int]:
        """Return the sharding of a past or future step, and the position at which it begins.

        Raises
        ------
        IndexError
            For a step before the first recorded one.
        """
        index = bisect_right([leg.step for leg in self._legs], step) - 1
        leg = self._legs[max(0, index)]
        if step < leg.step:
            raise IndexError(f"step {step} is before step {leg.step}, the first of the state")
        sharding = leg.sharding(exclusions)
        return sharding, sharding.jump(leg.position, step - leg.step)

    def after(self, step: int, exclusions: Exclusions) -> int:
        """Return the position after `step` steps since the training began, as a state holds it.

        It is the end of the last of these steps, where `find` returns the start of the next one.

        Raises
        ------
        IndexError
            As `find`, and for a position at which the stream has ended.
        """
        for leg in self._legs:
            if leg.step == step:
                return leg.position
        is_recorded = step > self._legs[0].step
        sharding, start = self.find(step - 1 if is_recorded else step, exclusions)
        if start + sharding.step_size >= LIMIT:
            raise IndexError(f"step {step} would pass the end of the stream, 2^63 - 1")
        return sharding.step_end(start)

    def until(self, step: int) -> StepHistory:
        """Return the history of a state that is saved after `step` steps."""
        legs = (leg for leg in self._legs if leg.step <= step)
        return StepHistory(legs)

    def skipped(self, position: int, exclusions: Exclusions) -> list[tuple[int, int]]:
        """Return the ranges before a position that were not served: excluded, or dropped.

        O(excluded ranges), and O(epochs) of legs with `drop_last`. Positions before the first
        leg count as served.
        """
        found = list(exclusions.ranges)
        stops = [*(min(one.position, position) for one in self._legs[1:]), position]
        for leg, stop in zip(self._legs, stops, strict=False):
            if not leg.drop_last:
                continue
            sharding, start = leg.sharding(exclusions), leg.position
            while (end := sharding.epoch_end(start)) <= stop:
                kept = exclusions.kept(start, end)
                if rest := kept % sharding.step_size:
                    found.append((exclusions.nth(start, kept - rest), end))
                start = end
        return found

    def step_of(self, position: int, exclusions: Exclusions) -> int | None:
        """Return the step that contains a position, or None if no step does."""
        index = bisect_right([leg.position for leg in self._legs], position) - 1
        if index < 0:
            return None
        leg = self._legs[index]
        steps = leg.sharding(exclusions).steps_to(leg.position, position)
        return None if steps is None else leg.step + steps
