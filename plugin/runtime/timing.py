"""Timing of repeated calls, summarized by minimum and median.

Other programs, interrupts and changes of the clock only add time. The minimum is therefore the
speed of the machine; the median is the time of a caller, and a better measure of memory traffic:
the minimum needs all data in a cache by luck.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from ..errors import UsageError
from ..numerics.element_types import Array
from ..signature import Signature
from .arguments import element_type

_MAX_SECONDS, _MAX_CALLS = 86_400, 10_000_000
"""A day; and the calls whose times fit into memory."""


@dataclass(frozen=True)
class Times:
    """Times of calls, in milliseconds."""

    count: int
    minimum: float
    lower_quartile: float
    median: float
    upper_quartile: float

    @classmethod
    def of(cls, nanoseconds: Sequence[int]) -> Times:
        """Summarize at least one time."""
        values = np.percentile(np.asarray(nanoseconds, np.float64), (0, 25, 50, 75)) / 1e6
        return cls(len(nanoseconds), *map(float, values))

    @property
    def is_disturbed(self) -> bool:
        """True if the interquartile range exceeds a quarter of the lower quartile."""
        return self.upper_quartile > 1.25 * self.lower_quartile

    def to_json(self) -> dict[str, float]:
        """Return the fields, rounded to nanoseconds."""
        return {name: round(value, 6) for name, value in asdict(self).items()}


def check_duration(seconds: float, repeat: int | None) -> None:
    """Raise UsageError unless a duration and a number of calls are in their ranges."""
    if not 0 < seconds <= _MAX_SECONDS:
        raise UsageError(f"expected a time above 0 s, and at most {_MAX_SECONDS:,}, got {seconds}")
    if repeat is not None and not 1 <= repeat <= _MAX_CALLS:
        raise UsageError(f"expected 1 to {_MAX_CALLS:,} calls, got {repeat}")


def draw_arguments(signature: Signature, seed: int = 0) -> list[Array]:
    """Draw random arguments: storage values, normal floats, and 0 or 1 for other integers."""
    rng, drawn = np.random.default_rng(seed), []
    for number, type_ in enumerate(signature.inputs):
        shape = type_.shape
        if shape is None or None in shape:
            raise UsageError(
                f"argument {number} ({type_.named}) is of no known shape; give the arguments "
                "(--input)"
            )
        sizes, element = [n or 0 for n in shape], element_type(type_.element)
        if type_.parameters is not None:
            storage = type_.parameters.storage
            values = rng.integers(storage.minimum, storage.maximum, sizes, endpoint=True)
            drawn.append(values.astype(storage.dtype))
        elif element.is_float:
            drawn.append(rng.normal(size=sizes).astype(element.dtype))
        else:
            drawn.append(rng.integers(0, 2, sizes).astype(element.dtype))
    return drawn


def time_calls(
    call: Callable[[int], object],
    *,
    seconds: float = 1.0,
    repeat: int | None = None,
    warm_up: int = 1,
) -> list[int]:
    """Call a function until the time is up, and return the nanoseconds of each call.

    Args:
        seconds: the duration, a day at most, for 1 to 10 million calls.
        repeat: the number of calls, instead of a duration.
        warm_up: the number of earlier calls that are not timed.
    """
    check_duration(seconds, repeat)
    for number in range(warm_up):
        call(number)
    times: list[int] = []
    end = time.perf_counter() + seconds
    max_calls = _MAX_CALLS if repeat is None else repeat
    while True:
        number = warm_up + len(times)
        start = time.perf_counter_ns()
        call(number)
        times.append(time.perf_counter_ns() - start)
        if len(times) >= max_calls or (repeat is None and time.perf_counter() >= end):
            return times
