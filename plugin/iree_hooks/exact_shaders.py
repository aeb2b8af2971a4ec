"""What keeps a Vulkan driver from computing floats otherwise than a program says.

A driver may compute ``x * y + z`` with one rounding, and take it for granted that nothing is NaN,
where a shader does not forbid that (Vulkan specification, "Precision and Operation of SPIR-V
Instructions"; SPIR-V specification, ``NoContraction`` and ``SignedZeroInfNanPreserve``). NVIDIA's
driver 580 does both: a sum was never unlike itself, so that NaN was quantized to -128 and not to 0;
``x < low ? low : x`` was ``low`` for NaN; and all of 4096 products were added with one rounding.
IREE 3.13 forbids nothing.

So where it has reached SPIR-V, operations on floats are decorated, and dispatches have NaN of f32.
``GLSL.std.450 Fma``, which rounds once, stays that. A product of 128 rows with 4096 x 4096 integers
takes up to 11 % longer so, of one row nothing (H100).

This file imports nothing of the package, which has another MLIR.
"""

from __future__ import annotations

from typing import Any

try:
    from .sync_entries import all_in
except ImportError:  # in a program by itself
    from sync_entries import all_in  # type: ignore[import-not-found, no-redef]

__all__ = ["keep_floats"]

_ROUNDED = frozenset(
    f"spirv.{name}"
    for name in ("FAdd", "FSub", "FMul", "FDiv", "FNegate", "Dot", "VectorTimesScalar")
)
_KEPT = "no_contraction"
_NAN, _CONTROLS = "SignedZeroInfNanPreserve", "SPV_KHR_float_controls"
_MODE = f"#spirv.execution_mode<{_NAN}>"


def keep_floats(ir: Any, module: Any) -> None:
    """Have the dispatches of a module compute floats as they say.

    Args:
        ir: the bindings of IREE's compiler.
        module: whose executables are in the SPIR-V dialect.
    """
    with module.context:
        for op in all_in(module):
            if op.name in _ROUNDED:
                op.attributes[_KEPT] = ir.UnitAttr.get()
            elif op.name == "spirv.module":
                _have_nan(ir, op)


def _have_nan(ir: Any, shader: Any) -> None:
    """Add the execution mode of f32 to each entry point, and what the module needs for it."""
    entries = [op for op in all_in(shader) if op.name == "spirv.EntryPoint"]
    if not entries or "vce_triple" not in shader.attributes:
        return
    version, capabilities, extensions = _parts(str(shader.attributes["vce_triple"]))
    needed = f"{version}, [{_with(capabilities, _NAN)}], [{_with(extensions, _CONTROLS)}]"
    shader.attributes["vce_triple"] = ir.Attribute.parse(f"#spirv.vce<{needed}>")
    for entry in entries:
        attributes = {
            "fn": entry.attributes["fn"],
            "execution_mode": ir.Attribute.parse(_MODE),
            "values": ir.Attribute.parse("[32 : i32]"),
        }
        with ir.InsertionPoint(entry), entry.location:
            mode = ir.Operation.create("spirv.ExecutionMode", attributes=attributes)
        mode.move_after(entry)


def _parts(triple: str) -> tuple[str, str, str]:
    """The version, the capabilities and the extensions of ``#spirv.vce<v1.0, [...], [...]>``."""
    version, capabilities, extensions = triple.split("[")
    return (
        version.partition("<")[2].rstrip(", "),
        capabilities.partition("]")[0],
        extensions.partition("]")[0],
    )


def _with(names: str, name: str) -> str:
    return f"{names}, {name}" if names else name
