"""Time calls again and again, and say of the times what lasts.

Other programs, interrupts and the clock's changes only ever add time. So the minimum is what the
machine can do; the median is what a caller gets, and tells more of memory, whose minimum needs all
of it to be in a cache by luck.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ..errors import UsageError

__all__ = ["Times", "time_calls"]


@dataclass(frozen=True)
class Times:
    """Times of calls, in milliseconds.

    Args:
        count: how many.
        minimum, lower_quartile, median, upper_quartile: of them.
    """

    count: int
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Times:
        """Summarize times; there must be one at least."""
        values = np.percentile(np.asarray(nanoseconds, np.float64), (0, 25, 50, 75)) / 1e6
        return cls(len(nanoseconds), *map(float, values))

    @property
    def is_disturbed(self) -> bool:
        """The middle half of the times spans more than a quarter."""
        return self.upper_quartile > 1.25 * self.lower_quartile

    def to_json(self) -> dict[str, float]:
        """Return the fields, rounded to nanoseconds."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


def time_calls(
    call: Callable[[int], object],
    *,
    seconds: float = 1.0,
    repeat: int | None = None,
    warm_up: int = 1,
) -> list[int]:
    """Call a function until time is up.

    Args:
        call: what is timed, given the number of the call.
        seconds: for how long, one call at least.
        repeat: how often, in place of that.
        warm_up: calls before, which do not count.

    Returns:
        The nanoseconds of each call.

    Raises:
        UsageError: no time, or a negative number of calls.
    """
    if not seconds > 0 or (repeat is not None and repeat < 1) or warm_up < 0:
        raise UsageError(
            f"expected seconds above 0, and calls, got {seconds} s, {repeat} calls after {warm_up}"
        )
    for number in range(warm_up):
        call(number)
    times: list[int] = []
    end = time.perf_counter() + seconds
    while True:
        number = warm_up + len(times)
        start = time.perf_counter_ns()
        call(number)
        times.append(time.perf_counter_ns() - start)
        if time.perf_counter() >= end if repeat is None else len(times) >= repeat:
            return times
