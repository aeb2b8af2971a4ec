"""Boxes without those that overlap better ones.

Sources: LiteRT, ``non_max_suppression.cc``, ``reference/non_max_suppression.h``.
"""

from __future__ import annotations

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, over_time, take
from ....numerics.element_types import I32, AnyArray
from ....numerics.ordering import reduce_rows
from ..call import Call, kernel

__all__ = ["suppressed"]

_GONE = np.float32(-np.inf)


def suppressed(
    boxes: AnyArray,
    scores: AnyArray,
    count: int,
    limit: AnyArray,
    *,
    least: AnyArray | None = None,
    softness: float = 0.0,
) -> tuple[AnyArray, AnyArray]:
    """The best boxes of each row of scores, again and again, without those that overlap them.

    Args:
        boxes: ``[boxes, 4]``: two corners, the lesser one first.
        scores: ``[rows, boxes]``, -inf for boxes that are none; of equal ones the first is better.
        count: how many boxes of each row.
        limit: the greatest share of the area of both that a box may have in common with a better
            one; with `least`, what it must be under.
        least: what scores must stay above.
        softness: other scores are multiplied by ``exp(-share**2 / (2 * softness))``, if it is
            above 0.

    Returns:
        Positions, int32 ``[rows, count]``, -1 after the last; and their scores.
    """
    extent, zero = scores.shape[1], np.float32(0)
    places = np.arange(extent, dtype=np.int32)
    low, high = boxes[:, :2], boxes[:, 2:]
    sizes = high - low
    areas = sizes[:, 0] * sizes[:, 1]

    def step(left: AnyArray) -> list[AnyArray]:
        best = reduce_rows(left, "max")
        first = reduce_rows(np.where(left == best[:, None], places, np.int32(extent)), "min")
        chosen = np.minimum(first, extent - 1)
        inner = np.maximum(take(low, chosen, 0)[:, None, :], low)
        outer = np.minimum(take(high, chosen, 0)[:, None, :], high)
        both = np.maximum(outer - inner, zero)
        common = both[:, :, 0] * both[:, :, 1]
        own = take(areas, chosen, 0)[:, None]
        is_known = (own > 0) & (areas > 0)
        share = common / np.where(is_known, own + areas - common, np.float32(1))
        share = np.where(is_known, share, zero)
        is_gone = share > limit if least is None else share >= limit
        if softness > 0:
            kept = left * np.exp(np.float32(-0.5 / softness) * share * share)
            left = np.where(left > _GONE, kept, left)
        if least is not None:
            is_gone = is_gone | (left <= least)
        found = np.where(best > _GONE, chosen, np.int32(-1))
        result = np.stack([found.astype(np.float32), best], axis=1)
        return [result, np.where(is_gone | (places == chosen[:, None]), _GONE, left)]

    start = step(scores)
    results = start[0][None]
    if count > 1:
        _, more = over_time(
            lambda _, left, __: step(left), start, [np.arange(count - 1, dtype=np.int32)]
        )
        results = np.concatenate([results, more])
    moved = results.transpose(2, 1, 0)
    return convert(moved[0], I32), moved[1]


@kernel("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(call: Call) -> list[AnyArray]:
    """Positions (and scores, of V5) of as many boxes as input 2 says, zeros after the last."""
    boxes, scores = call.input(0), call.input(1)
    most = int(call.constant_scalar(2))
    limit, least = (call.only_element(index, call.input(index).value) for index in (3, 4))
    is_soft = call.operator.name == "NON_MAX_SUPPRESSION_V5"
    softness = float(call.constant_scalar(5)) if is_soft else 0.0
    extent = scores.shape[0] if len(scores.shape) == 1 else 0
    if boxes.shape != (extent, 4) or not extent or most < 1:
        raise call.error(
            f"has boxes {list(boxes.shape)} and scores {list(scores.shape)}, of which it keeps "
            f"{most}",
            UnsupportedError,
        )
    value = boxes.value
    corners = np.concatenate(
        [np.minimum(value[:, :2], value[:, 2:]), np.maximum(value[:, :2], value[:, 2:])], axis=1
    )
    start = np.where(scores.value > least, scores.value, _GONE)[None]
    found, values = suppressed(corners, start, most, limit, least=least, softness=softness)
    is_found = found[0] >= 0
    count = is_found.astype(np.int32).sum(dtype=np.int32)
    positions = np.where(is_found, found[0], np.int32(0))
    if not is_soft:
        return [positions, count]
    return [positions, np.where(is_found, values[0], np.float32(0)), count]
