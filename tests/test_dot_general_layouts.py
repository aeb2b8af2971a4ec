"""``dot_general`` with dimensions in any order, and of one element, against NumPy."""

from __future__ import annotations

import functools

import numpy as np
import pytest

from dot_general_programs import Dot, drawn_dot
from programs import LONG
from subquant.runtime import Device
from together import Together

SEEDS = list(range(300)) if LONG else [3, 28, 59, 63, 70, 85, 96, 165, 171]
AT_ONCE = 20
"""Programs of one module."""


@functools.cache
def programs_from(start: int) -> tuple[dict[int, Dot], Together]:
    dots = {seed: drawn_dot(seed) for seed in SEEDS[start : start + AT_ONCE]}
    return dots, Together({seed: dot.text for seed, dot in dots.items()})


@pytest.mark.parametrize(
    "device_name",
    ["cpu", *(pytest.param(name, marks=pytest.mark.vulkan) for name in ("vulkan", "vulkan_32bit"))],
)
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.share(54)
def test_a_drawn_order(seed: int, device: Device) -> None:
    dots, programs = programs_from(SEEDS.index(seed) // AT_ONCE * AT_ONCE)
    got = programs.function(seed, device)(*dots[seed].arguments)
    np.testing.assert_array_equal(got, dots[seed].expected)
