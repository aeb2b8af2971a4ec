"""Exact SPIR-V: decorations that keep a Vulkan driver from changing floating-point results.

A driver may contract ``x * y + z`` to one rounding and assume that no value is NaN, unless the
shader forbids it (Vulkan specification, "Precision and Operation of SPIR-V Instructions"; SPIR-V
specification, ``NoContraction`` and ``SignedZeroInfNanPreserve``). IREE 3.13 forbids nothing.
NVIDIA's driver 580 does both: a sum compared equal to itself always, so that NaN was quantized to
-128 and not to 0; ``x < low ? low : x`` was ``low`` for NaN; and 4096 products were accumulated
with one rounding each. `tests/test_device_features.py` compares such programs on each device.

Operations on floats are therefore decorated with ``NoContraction``, and entry points preserve NaN
of f32. ``GLSL.std.450 Fma``, which rounds once, stays. A 128x4096x4096 integer GEMM takes up to
11 % longer, a GEMV the same time (H100).
"""

from __future__ import annotations

import re
from typing import Any

from .hal_operations import descendants

_ROUNDING_OPERATIONS = frozenset(
    f"spirv.{name}"
    for name in ("FAdd", "FSub", "FMul", "FDiv", "FNegate", "Dot", "VectorTimesScalar")
)
_PRESERVES_NAN = "SignedZeroInfNanPreserve"


def forbid_inexact_floats(ir: Any, module: Any) -> None:
    """Decorate floats with ``NoContraction``, entry points with ``SignedZeroInfNanPreserve``.

    The module is in the SPIR-V dialect; `ir` is IREE's bindings.
    """
    with module.context:
        for op in descendants(module):
            if op.name in _ROUNDING_OPERATIONS:
                op.attributes["no_contraction"] = ir.UnitAttr.get()
            elif op.name == "spirv.module":
                _preserve_nan(ir, op)


def _preserve_nan(ir: Any, shader: Any) -> None:
    """Add the execution mode for f32 to each entry point, and its capability and extension.

    ``#spirv.vce<v1.0, [Shader], []>`` becomes ``#spirv.vce<v1.6, [Shader,
    SignedZeroInfNanPreserve], [SPV_KHR_float_controls]>``. The version is that of the target: IREE
    3.13 lists the variables of an entry point as this version demands, and writes a lower one.
    """
    entries = [op for op in descendants(shader) if op.name == "spirv.EntryPoint"]
    if not entries or "vce_triple" not in shader.attributes:
        return
    _, capabilities, extensions = str(shader.attributes["vce_triple"]).split("[")
    version = re.search(r"v1\.\d", str(shader.parent.attributes["spirv.target_env"]))
    if version is None:
        raise ValueError("the target of a shader has no version of SPIR-V")
    lists = (
        _appended(capabilities.partition("]")[0], _PRESERVES_NAN),
        _appended(extensions.partition("]")[0], "SPV_KHR_float_controls"),
    )
    shader.attributes["vce_triple"] = ir.Attribute.parse(
        f"#spirv.vce<{version[0]}, [{lists[0]}], [{lists[1]}]>"
    )
    for entry in entries:
        attributes = {
            "fn": entry.attributes["fn"],
            "execution_mode": ir.Attribute.parse(f"#spirv.execution_mode<{_PRESERVES_NAN}>"),
            "values": ir.Attribute.parse("[32 : i32]"),
        }
        with ir.InsertionPoint(entry), entry.location:
            mode = ir.Operation.create("spirv.ExecutionMode", attributes=attributes)
        mode.move_after(entry)


def _appended(names: str, name: str) -> str:
    return f"{names}, {name}" if names else name
