"""The start position of every step of a training run, also across changes of its configuration.

Between two changes of batch size, world size or `drop_last` the starts of steps follow by
arithmetic. The history is the list of these changes, so it finds any past step without a log.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable
from dataclasses import astuple, dataclass

from windeck._util.validation import LIMIT, check_integer
from windeck.loader.sharding import Exclusions, Sharding

__all__ = ["Segment", "StepHistory"]


@dataclass(frozen=True)
class Segment:
    """A part of a run with one configuration, from `step` at `position` on."""

    step: int
    position: int
    batch_size: int
    world_size: int
    drop_last: bool
    epoch_length: int

    @property
    def configuration(self) -> tuple[int, int, bool, int]:
        """All but the step and the position at which the segment begins."""
        return self.batch_size, self.world_size, self.drop_last, self.epoch_length

    def sharding(self, exclusions: Exclusions) -> Sharding:
        """Return the sharding of the segment's steps."""
        return Sharding(
            self.epoch_length, self.batch_size, self.world_size, self.drop_last, exclusions
        )


class StepHistory:
    """The segments of a run, ascending; a state holds them as ``legs``."""

    def __init__(self, segments: Iterable[Segment] = ()) -> None:
        self._segments = list(segments)

    @classmethod
    def from_state(cls, saved: object) -> StepHistory:
        """Return the history that a state holds as lists of integers.

        Raises
        ------
        ValueError
            If they are not lists of six integers.
        """
        segments = []
        try:
            for item in saved:  # type: ignore[attr-defined]
                step, position, batch_size, world_size, drop_last, length = item
                segments.append(
                    Segment(
                        check_integer("step", step),
                        check_integer("position", position, most=LIMIT - 1),
                        check_integer("batch_size", batch_size, least=1),
                        check_integer("world_size", world_size, least=1),
                        bool(drop_last),
                        check_integer("epoch_length", length, least=1),
                    )
                )
                segments[-1].sharding(Exclusions([]))  # checks them together
        except (TypeError, ValueError) as error:
            raise ValueError(f"`legs` of the state is invalid: {error}") from None
        return cls(segments)

    def to_state(self) -> list[list[int]]:
        """Return the segments as lists of integers."""
        return [[*map(int, astuple(one))] for one in self._segments]

    @property
    def first_position(self) -> int:
        """The position of the first recorded step; 0 without any."""
        return self._segments[0].position if self._segments else 0

    def record(self, step: int, position: int, sharding: Sharding) -> None:
        """Record that the next step, number `step`, begins at `position` with this sharding."""
        segment = Segment(
            step,
            position,
            sharding.batch_size,
            sharding.world_size,
            sharding.drop_last,
            sharding.epoch_length,
        )
        if self._segments and self._segments[-1].step >= step:
            self._segments.pop()
        if not self._segments or self._segments[-1].configuration != segment.configuration:
            self._segments.append(segment)

    def find(self, step: int, exclusions: Exclusions) -> tuple[Sharding, int]:
        """Return the sharding of a past or future step, and the position at which it begins.

        Raises
        ------
        IndexError
            For a step before the first recorded one.
        """
        index = bisect_right([segment.step for segment in self._segments], step) - 1
        segment = self._segments[max(0, index)]
        if step < segment.step:
            raise IndexError(f"step {step} is before step {segment.step}, the first of the state")
        sharding = segment.sharding(exclusions)
        return sharding, sharding.jump(segment.position, step - segment.step)

    def after(self, step: int, exclusions: Exclusions) -> int:
        """Return the position after `step` steps since the run began, as a state holds it.

        It is the end of the last of these steps, where `find` returns the start of the next one.

        Raises
        ------
        IndexError
            As `find`, and for a position at which the stream has ended.
        """
        for segment in self._segments:
            if segment.step == step:
                return segment.position
        is_recorded = step > self._segments[0].step
        sharding, start = self.find(step - 1 if is_recorded else step, exclusions)
        if start + sharding.step_size >= LIMIT:
            raise IndexError(f"step {step} would pass the end of the stream, 2^63 - 1")
        return sharding.step_end(start)

    def until(self, step: int) -> StepHistory:
        """Return the history of a state that is saved after `step` steps."""
        segments = (segment for segment in self._segments if segment.step <= step)
        return StepHistory(segments)

    def skipped(self, position: int, exclusions: Exclusions) -> list[tuple[int, int]]:
        """Return the ranges before a position that were not served: excluded, or dropped.

        O(excluded ranges), and O(epochs) of segments with `drop_last`. Positions before the first
        segment count as served.
        """
        found = list(exclusions.ranges)
        stops = [*(min(one.position, position) for one in self._segments[1:]), position]
        for segment, stop in zip(self._segments, stops, strict=False):
            if not segment.drop_last:
                continue
            sharding, start = segment.sharding(exclusions), segment.position
            while (end := sharding.epoch_end(start)) <= stop:
                kept = exclusions.kept(start, end)
                if rest := kept % sharding.step_size:
                    found.append((exclusions.nth(start, kept - rest), end))
                start = end
        return found

    def step_of(self, position: int, exclusions: Exclusions) -> int | None:
        """Return the step that contains a position, or None if no step does."""
        index = bisect_right([segment.position for segment in self._segments], position) - 1
        if index < 0:
            return None
        segment = self._segments[index]
        steps = segment.sharding(exclusions).steps_to(segment.position, position)
        return None if steps is None else segment.step + steps
