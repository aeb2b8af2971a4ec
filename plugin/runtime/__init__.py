"""Run what was compiled, with arrays in and out.

`executable` runs with IREE on a `device` what `vm_modules` loads; `interpreter` evaluates a module
with StableHLO's reference interpreter, in a process of its own (`evaluation`). Both check and
convert `arguments` in one way. `streaming` calls a function of either once for each slice of its
inputs.
"""

from __future__ import annotations

from .device import Device, list_devices
from .executable import Executable, Function
from .vm_modules import read_signatures

__all__ = ["Device", "Executable", "Function", "list_devices", "read_signatures"]
