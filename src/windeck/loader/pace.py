"""Choice between items made ahead and on request, by the time that a loop takes for an item.

A thread that makes items ahead saves the time that it takes to make one where a processor is free
meanwhile, and costs time where the step uses all of them: the step then waits for its threads that
share a processor. Which of them holds cannot be known from whether an item was ready, only from the
seconds of the whole loop.
"""

from __future__ import annotations

from collections import deque
from math import inf
from statistics import median

__all__ = ["Pace"]

#: Seconds between two items below which the consumer makes the next one: about twice what it
#: takes to wake two threads.
SHORT_STEP = 200e-6
#: The same where making an item takes as long: so much is saved then.
SHORT_STEP_AND_ITEM = 100e-6
#: Cycles of a way that are compared. A cycle is from one item to the next.
COMPARED = 5
#: Cycles after which the other way is tried again: at first, and at most. Each trial with the same
#: result makes it four times as long.
FIRST_HOLD, LONGEST_HOLD = 16, 1024
#: Ratio of the times of a cycle with items made ahead and without, up to which they are: the
#: thread also hides items that now and then take longer.
PAYS_UP_TO = 1.03
#: Ratio of times at which a trial ends after two cycles.
CLEARLY_SLOWER = 1.5


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
        #: The way in force, True for items made ahead, and the cycles for which it stays in force.
        self._way, self._cycles_left = True, COMPARED
        self._best, self._is_trial, self._hold = True, False, FIRST_HOLD
        self._seconds: dict[bool, deque[float]] = {
            way: deque(maxlen=COMPARED) for way in (True, False)
        }

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
        self._seconds[ahead].append(seconds)
        if ahead is not self._way:
            return
        self._cycles_left -= 1
        if self._cycles_left <= 0 or (self._is_trial and self._is_clearly_slower()):
            self._change()

    def _is_clearly_slower(self) -> bool:
        tried = self._seconds[self._way]
        before = self._seconds[not self._way]
        return len(tried) >= 2 and min(tried) > CLEARLY_SLOWER * median(before)

    def _change(self) -> None:
        """End a trial by a decision, or begin one."""
        if not self._is_trial:
            self._way, self._is_trial, self._cycles_left = not self._way, True, COMPARED
            self._seconds[self._way].clear()
            return
        ahead, own = (median(self._seconds[way]) for way in (True, False))
        best = ahead <= PAYS_UP_TO * own
        self._hold = min(4 * self._hold, LONGEST_HOLD) if best is self._best else FIRST_HOLD
        self._way = self._best = best
        self._is_trial, self._cycles_left = False, self._hold
        if not best:
            self._cycles_left, self.unseen = COMPARED, self._hold - COMPARED
