"""Check of the requantization analysis against every accumulator of a range."""

from __future__ import annotations

import random
from dataclasses import dataclass
from typing import Any

import numpy as np

from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
from subquant.emit.operation import element_of
from subquant.kernels.epilogue import requant_analysis

from .draft import Draft, chain
from .integers import evaluated
from .requantizations import rounding
from .steps import Constant, Numbers, Step, steps_text

_MAX_ACCUMULATOR = 2500


@dataclass(frozen=True)
class MonotoneCase:
    """Steps on all accumulators of a range for each N."""

    steps: tuple[Step, ...]
    bounds: tuple[int, ...]


def monotone(rng: random.Random) -> MonotoneCase:
    """A requantization of small accumulators, or any operations on them."""
    n = rng.choice((1, 2, 3))
    draft = Draft(rng, n)
    reach = rng.choice((40, 500, _MAX_ACCUMULATOR))
    if rng.random() < 0.3:
        chain(draft)
    else:
        rounding(draft, float(reach), floats=False, extremes=rng.random() < 0.3)
    if draft.elements[-1] not in ("i8", "ui8"):
        draft.convert(len(draft.steps), "i8")
    bounds = [rng.choice((reach, rng.randint(1, reach), 0)) if i else reach for i in range(n)]
    return MonotoneCase(tuple(draft.steps), tuple(bounds))


def check_monotone(case: MonotoneCase) -> tuple[str, bool]:
    """Compare a proved line with every accumulator; return the difference, and if it is proved."""
    if any(step.op == "lookup" for step in case.steps):
        return "", False  # no kernel has lookups in its epilogue
    shape = f"1x{len(case.bounds)}"
    body = "\n  ".join(steps_text(case.steps, shape))
    last = case.steps[-1].element
    text = (
        f"func.func @f(%v0: tensor<{shape}xi32>) -> tensor<{shape}x{last}> {{\n  {body}\n"
        f"  return %v{len(case.steps)} : tensor<{shape}x{last}>\n}}"
    )
    module = parse_text(text, create_context())
    [function] = module.body.operations
    block = function.regions[0].blocks[0]
    operations, constants = [], {}
    remaining = iter(op.operation for op in block.operations)
    for step in case.steps:
        for each in step.operands:
            if isinstance(each, Constant):
                op = next(remaining)
                if len(each.numbers) > 1:
                    op = next(remaining)  # its broadcast
                numbers = np.array([int(n) for n in each.numbers], object).reshape(1, -1)
                type_ = np.uint64 if each.element == "ui64" else np.int64
                constants[op.results[0]] = numbers.astype(type_)
        operations.append(next(remaining))
    bounds = np.array([case.bounds], np.int64)

    def evaluate(accumulators: Numbers) -> Numbers:
        return evaluated(case.steps, accumulators.astype(object))[-1]

    def element(value: Any) -> Any:
        return element_of(value.type)

    with module.context:
        line = requant_analysis.monotone_requant(
            operations, block.arguments[0], constants, bounds, element, evaluate
        )
    if line is None:
        return "", False
    reach = max(case.bounds)
    accumulators = np.arange(-reach, reach + 1).reshape(-1, 1, 1)
    inside = np.broadcast_to(np.abs(accumulators) <= bounds, (2 * reach + 1, 1, len(case.bounds)))
    results = evaluate(np.broadcast_to(accumulators, inside.shape)).astype(np.int64)
    x = (accumulators + line.added).astype(np.float64)
    real = line.slope * x + line.offset + np.where(x < 0, -line.sign_offset, line.sign_offset)
    expected = np.clip(np.rint(real), line.low, line.high).astype(np.int64)
    is_far = np.abs(real - np.floor(real) - 0.5) > line.fallback_tolerance * (1 + 2.0**-20)
    is_wrong = (((results - expected) % 256) != 0) & is_far & inside
    if not is_wrong.any():
        return "", True
    at = tuple(int(n) for n in np.argwhere(is_wrong)[0])
    return (
        f"accumulator {accumulators[at[0]].item()} of N = {at[2]} gives {results[at]}, the line "
        f"{expected[at]} ({real[at]}, {int(is_wrong.sum())} are wrong)\n{text}\n{line}"
    ), True
