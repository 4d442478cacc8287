"""Choice between items made ahead and on request, by the time that a loop takes for an item.

A thread that makes items ahead saves the time that it takes to make one where a processor is free
meanwhile, and costs time where the step uses all of them: the step then waits for its threads that
share a processor. Which of them holds cannot be known from whether an item was ready, only from the
seconds of the whole loop. Both ways are tried in turn, and their totals compared: beside other
programs, most steps take as long as ever and a few wait for a processor for tens of milliseconds.
"""

from __future__ import annotations

from math import inf, log

__all__ = ["Pace"]

#: Seconds between two items below which the consumer makes the next one: about what it takes to
#: wake two threads.
SHORT_STEP = 100e-6
#: The same where making an item takes as long: so much is saved then.
SHORT_STEP_AND_ITEM = 50e-6
#: Cycles of a way that are compared, and their seconds, at least. A cycle is from one item to the
#: next. Systems let a thread wait for another one for up to some tens of milliseconds.
COMPARED, COMPARED_SECONDS = 5, 0.1
#: Stretches of as many cycles until the next trial: at first, the factor by which each trial that
#: confirms the way makes them more, and the most, for items made on request and for those made
#: ahead: a thread in vain may take five times as long, one that is missed at most twice.
FIRST_HOLD, GROWTH, LONGEST_HOLD = 3, 3, (200, 100)
#: The least share of the last trial in the mean of all, and the largest ratio of times that it
#: counts for: a single one is often chance.
LAST_TRIAL, LARGEST_RATIO = 0.25, 2.0
#: Ratio of the times of a cycle with items made ahead and without, up to which they are: the
#: thread also hides items that now and then take longer.
PAYS_UP_TO = 1.03


class Pace:
    """The seconds that a loop takes for an item, and what follows from them.

    Attributes
    ----------
    away
        Seconds that the consumer was away before it asked for its last item.
    unseen
        Items that the consumer makes next without notes of any time: each takes microseconds.
    """

    def __init__(self, away: float = inf) -> None:
        self.away = away
        self.unseen = 0
        self._is_long = away >= SHORT_STEP  # Long enough for items to be made ahead.
        self._made = self._least_made = 0.0
        #: The way in force, True for items made ahead, and the one that trials have chosen.
        self._way = self._best = True
        #: Stretches until the one that is compared, and how many it was. The first of all is not:
        #: steps compile a model, and memory is new.
        self._rest, self._hold = 1, FIRST_HOLD
        #: Seconds and cycles of this stretch, and of the one before it in the other way in a trial.
        self._seconds, self._cycles = 0.0, 0
        self._before: tuple[float, int] | None = None
        #: Trials, and the mean of the logarithm of their ratios of times, ahead over not.
        self._trials, self._log_ratio = 0, 0.0

    @property
    def makes_ahead(self) -> bool:
        """True if the next items are to be made ahead."""
        return self._is_long and self._way

    def saw_item_made(self, seconds: float) -> None:
        """Note the time in which the consumer made an item."""
        self._made, self._least_made = seconds, min(self._made, seconds)

    def saw_consumer_away(self, seconds: float) -> None:
        """Note the time for which the consumer was away before it asked for an item."""
        least = min(seconds, self.away)  # Once may be chance: another process was running.
        self.away = seconds
        self._is_long = least >= SHORT_STEP or min(least, self._least_made) >= SHORT_STEP_AND_ITEM

    def saw_cycle(self, seconds: float, *, ahead: bool) -> None:
        """Note the time from one item to the next, both made in one way."""
        if ahead is not self._way:
            return
        self._seconds += seconds
        self._cycles += 1
        if self._before is None:
            if self._cycles >= COMPARED and self._seconds >= COMPARED_SECONDS:
                if self._rest:
                    self._rest -= 1
                    self._change(self._way)
                else:
                    self._before = self._seconds, self._cycles
                    self._change(not self._way)
            return
        before, cycles = self._before
        allowed = before * PAYS_UP_TO if self._way else before / PAYS_UP_TO
        # The trial is lost as soon as it took longer than all cycles before it.
        if self._seconds > allowed or self._cycles == cycles:
            self._end_trial(self._seconds / self._cycles / (before / cycles), cycles)

    def _end_trial(self, ratio: float, cycles: int) -> None:
        """Choose a way after a trial, whose cycles took `ratio` times those before it."""
        found = log(min(max(ratio, 1 / LARGEST_RATIO), LARGEST_RATIO))
        found = found if self._way else -found
        self._trials += 1
        self._log_ratio += (found - self._log_ratio) * max(1 / self._trials, LAST_TRIAL)
        best = self._log_ratio <= log(PAYS_UP_TO)
        is_confirmed = best is (found <= log(PAYS_UP_TO))
        if best is not self._best:
            self._best, self._hold = best, FIRST_HOLD
        elif is_confirmed:
            self._hold = min(GROWTH * self._hold, LONGEST_HOLD[best])
        rest = self._hold if is_confirmed else FIRST_HOLD
        self._rest, self.unseen = (rest, 0) if best else (0, rest * cycles)
        self._before = None
        self._change(best)

    def _change(self, way: bool) -> None:
        self._way, self._seconds, self._cycles = way, 0.0, 0
