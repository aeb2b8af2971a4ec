"""Programs that are compiled for a device, and run there.

The fixture ``device`` of a test that is parametrized `ON_DEVICES` is the device of the fixture that
``device_name`` names.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import subquant
from subquant.runtime import Device

ON_DEVICES = pytest.mark.parametrize(
    "device_name", ["cpu", pytest.param("vulkan", marks=pytest.mark.vulkan)]
)


def run(text: str, device: Device, *arguments: np.ndarray) -> Any:
    """Compile a program, and return what ``main`` returns: an array, or several."""
    target = "vulkan" if device.is_vulkan else "llvm-cpu"
    return subquant.compile(text, target=target, device=device).main(*arguments)
