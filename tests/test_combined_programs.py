"""Programs that combine operations as models do are right, or refused for a documented reason.

Eight programs are compiled as one module (`together.Together`), of a family in the long suite. The
short suite runs some, ``scripts/test --long`` all of them.
"""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import numpy as np
import pytest

import combined_flow  # noqa: F401  (its programs)
import combined_networks  # noqa: F401
import combined_ranges  # noqa: F401
import combined_tosa  # noqa: F401
from combined_programs import PROGRAMS, Program, program_of
from combined_values import Ambiguous, Quantized, settle
from programs import LONG
from subquant.errors import SubquantError
from subquant.runtime import Device
from together import Together

ROOT = Path(__file__).parent.parent

SHORT = {
    "cpu": {
        "residual_block-3", "inverted_bottleneck-3", "unet-0", "attention-1", "mlp-4",
        "super_blocks-1", "centered-3", "lstm-3", "branches-2", "shuffled-1", "fake_quantized-4",
        "dynamic_network-1", "tosa_network-1", "random_graph-0", "random_graph-7",
    },
    "vulkan": {
        "decoder-0", "decoder-3", "decoder-4", "residual_block-4", "mlp-4", "iterated-1",
        "random_graph-0", "attention-1", "squeeze_excite-2", "iterated-4", "called-1",
    },
}  # fmt: skip

REFUSED: dict[tuple[str, str], tuple[str, str]] = {
    (f"selected-{at}", device): ("requires compatible types", "A `select` of two quantized types")
    for at in range(3)
    for device in ("cpu", "vulkan")
}
"""Programs that a device refuses: the error, and the entry in ``docs/limits.md``."""

CHOSEN = [
    (device, name)
    for device in ("cpu", "vulkan")
    for name in PROGRAMS
    if LONG or name in SHORT[device]
]

CASES = [pytest.param(device, name, id=f"{device}-{name}") for device, name in CHOSEN]


@cache
def program(name: str) -> Program:
    return program_of(PROGRAMS[name], name)


def together(name: str, device: str) -> Together:
    family = f"{name.split('-')[0]}-" if LONG else ""
    names = [each for on, each in CHOSEN if on == device and each.startswith(family)]
    start = names.index(name) // 8 * 8
    return programs_of(tuple(names[start : start + 8]), device)


@cache
def programs_of(names: tuple[str, ...], device: str) -> Together:
    return Together({name: program(name).text for name in names})


@pytest.mark.parametrize(("device", "name"), CASES)
@pytest.mark.share(18)
def test_program(device: str, name: str, request: pytest.FixtureRequest) -> None:
    where: Device = request.getfixturevalue(device)
    refusal = REFUSED.get((name, device))
    each = program(name)
    if refusal is None:
        function = together(name, device).function(name, where)
        each.check(function(*each.inputs))
        return
    message, reason = refusal
    assert reason in (ROOT / "docs/limits.md").read_text()
    with pytest.raises(SubquantError, match=message) as error:
        together(name, device).function(name, where)
    assert re.match(r".*:\d+:\d+: error: ", str(error.value).splitlines()[0])


def test_there_are_200_programs_and_the_short_suite_names_some() -> None:
    assert len(PROGRAMS) >= 200
    assert set().union(*SHORT.values()) <= set(PROGRAMS)


def test_a_wrong_result_is_noticed() -> None:
    each = program("random_graph-0")
    results = [want.copy() for want, _ in each.expected]
    each.check(results)
    results[0].flat[0] ^= 1
    with pytest.raises(AssertionError, match="result 0"):
        each.check(results)


def test_what_a_float_decides_is_drawn_again() -> None:
    element = Quantized("i8", 0.5, 3)
    reals = np.array([0.25, 0.75, 1.2, 1000.0])
    np.testing.assert_array_equal(settle(reals, element), [4, 4, 5, 127])
    np.testing.assert_array_equal(settle(reals[2:], element, np.array([0.01, 1.0])), [5, 127])
    with pytest.raises(Ambiguous):
        settle(reals, element, np.full(4, 1e-9))
