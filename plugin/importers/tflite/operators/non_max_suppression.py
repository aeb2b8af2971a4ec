"""Importers of non-maximum suppression: the best boxes without those that overlap better ones.

Sources: LiteRT, ``non_max_suppression.cc``, ``reference/non_max_suppression.h``.
"""

from __future__ import annotations

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import convert, over_time, take
from ....numerics.element_types import I32, AnyArray
from ....numerics.ordering import reduce_rows
from ..call import Call, importer

_REMOVED = np.float32(-np.inf)


def suppress(
    boxes: AnyArray,
    scores: AnyArray,
    count: int,
    max_overlap: AnyArray,
    *,
    min_score: AnyArray | None = None,
    sigma: float = 0.0,
) -> tuple[AnyArray, AnyArray]:
    """Select the best boxes of each row of scores, one by one, without those that overlap them.

    Args:
        boxes: ``[boxes, 4]``: two corners, the lesser one first.
        scores: ``[rows, boxes]``, -inf for absent boxes; of equal scores the first is better.
        count: the number of boxes to select in each row.
        max_overlap: the greatest intersection over union with a better box; exclusive with
            `min_score`.
        min_score: the exclusive lower bound of scores.
        sigma: if positive, other scores decay by ``exp(-overlap**2 / (2 * sigma))``.

    Returns:
        Indices, int32 ``[rows, count]``, -1 after the last; and their scores.
    """
    box_count, zero = scores.shape[1], np.float32(0)
    indices = np.arange(box_count, dtype=np.int32)
    low, high = boxes[:, :2], boxes[:, 2:]
    sizes = high - low
    areas = sizes[:, 0] * sizes[:, 1]

    def step(remaining: AnyArray) -> list[AnyArray]:
        best = reduce_rows(remaining, "max")
        is_best = remaining == best[:, None]
        first = reduce_rows(np.where(is_best, indices, np.int32(box_count)), "min")
        selected = np.minimum(first, box_count - 1)
        inner = np.maximum(take(low, selected, 0)[:, None, :], low)
        outer = np.minimum(take(high, selected, 0)[:, None, :], high)
        intersection_sizes = np.maximum(outer - inner, zero)
        intersection = intersection_sizes[:, :, 0] * intersection_sizes[:, :, 1]
        area = take(areas, selected, 0)[:, None]
        has_area = (area > 0) & (areas > 0)
        overlap = intersection / np.where(has_area, area + areas - intersection, np.float32(1))
        overlap = np.where(has_area, overlap, zero)
        is_removed = overlap > max_overlap if min_score is None else overlap >= max_overlap
        if sigma > 0:
            decayed = remaining * np.exp(np.float32(-0.5 / sigma) * overlap * overlap)
            remaining = np.where(remaining > _REMOVED, decayed, remaining)
        if min_score is not None:
            is_removed = is_removed | (remaining <= min_score)
        index = np.where(best > _REMOVED, selected, np.int32(-1))
        result = np.stack([index.astype(np.float32), best], axis=1)
        is_removed = is_removed | (indices == selected[:, None])
        return [result, np.where(is_removed, _REMOVED, remaining)]

    start = step(scores)
    results = start[0][None]
    if count > 1:
        _, following = over_time(
            lambda _, remaining, __: step(remaining), start, [np.arange(count - 1, dtype=np.int32)]
        )
        results = np.concatenate([results, following])
    results = results.transpose(2, 1, 0)
    return convert(results[0], I32), results[1]


@importer("NON_MAX_SUPPRESSION_V4", "NON_MAX_SUPPRESSION_V5")
def non_max_suppression(call: Call) -> list[AnyArray]:
    """Import NON_MAX_SUPPRESSION_V4 and V5: indices (V5: and scores) of at most input 2 boxes."""
    boxes, scores = call.input(0), call.input(1)
    max_results = int(call.constant_scalar(2))
    max_overlap, min_score = (call.only_element(index, call.input(index).value) for index in (3, 4))
    is_v5 = call.operator.name == "NON_MAX_SUPPRESSION_V5"
    sigma = float(call.constant_scalar(5)) if is_v5 else 0.0
    box_count = scores.shape[0] if len(scores.shape) == 1 else 0
    if boxes.shape != (box_count, 4) or not box_count or max_results < 1:
        raise call.error(
            f"has boxes {list(boxes.shape)} and scores {list(scores.shape)}, of which it selects "
            f"{max_results}",
            UnsupportedError,
        )
    value = boxes.value
    corners = np.concatenate(
        [np.minimum(value[:, :2], value[:, 2:]), np.maximum(value[:, :2], value[:, 2:])], axis=1
    )
    start = np.where(scores.value > min_score, scores.value, _REMOVED)[None]
    indices, values = suppress(
        corners, start, max_results, max_overlap, min_score=min_score, sigma=sigma
    )
    is_selected = indices[0] >= 0
    count = is_selected.astype(np.int32).sum(dtype=np.int32)
    indices = np.where(is_selected, indices[0], np.int32(0))
    if not is_v5:
        return [indices, count]
    return [indices, np.where(is_selected, values[0], np.float32(0)), count]
