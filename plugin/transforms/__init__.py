"""Registry of the passes by name. Names map to loaders: listing them imports no pass."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

from ..errors import UsageError, expected_name, quoted

if TYPE_CHECKING:
    from .base import ModulePass

__all__ = ["PASSES", "load_pass"]

PASSES: dict[str, str] = {
    "verify-quantization": "check quantized types and subquant operations against the RFC's rules",
    "convert-tosa-to-storage": "give TOSA's quantized and unsigned values signless storage",
    "lower-tosa-variables": "turn variables of TOSA into globals that IREE keeps between calls",
    "lower-tosa-rescale": "write tosa.rescale as integer arithmetic",
    "lower-tosa": "write the rest of TOSA as linalg, tensor, arith and scf",
    "canonicalize-reductions": "write the implicit conversions of reductions as operations",
    "legalize-qdq-to-quantized-op": "turn dequantize, float operation, quantize into one operation",
    "legalize-quantized-op-to-qdq": "turn quantized operations into float ones between casts",
    "pack-narrow-storage": "store arguments, constants and parameters of 2 to 6 bits packed",
    "raise-dequantization": "turn dequantization that is written as arithmetic into one operation",
    "fuse-block-contractions": "turn contractions of dequantized weights into one operation",
    "fold-constant-casts": "compute what casts make of constants",
    "legalize-quant-to-math": "write StableHLO on quantized values with integers, exactly",
    "narrow-requantization": "add integers that have the unit of their sum as they are",
    "estimate-work": "record how long functions take on one thread, about (llvm-cpu)",
    "select-kernels": "call kernels for contractions of 8-bit integers or with weights in blocks",
    "correct-zero-points": "contract storage values, and correct the sums for the zero points",
    "lower-requantization": "write subquant.requantize with integers, exactly or in fixed point",
    "lower-saturation": "write subquant.saturate as a clamp and a truncation",
    "lower-block-contractions": "write subquant.block_contraction as a loop nest over its blocks",
    "lower-attention": "write subquant.attention as products with all keys and values of its cache",
    "lower-packed-storage": "unpack integers of 2 to 6 bits that no contraction reads packed",
    "lower-quant-casts": "lower qcast, dcast, quantize and dequantize to linalg and arith",
    "convert-quantized-to-storage": "turn quantized values and signatures into storage tensors",
    "narrow-byte-sums": "write scaled and rounded sums of two bytes with one shift",
    "check-integer-only": "fail if quantized values are computed with floats on the way",
    "separate-variables": "give variables that start with equal values memory of their own",
    "expand-stablehlo": "write StableHLO operations that IREE refuses with others",
    "lower-unranked-tensors": "turn unranked tensors into a flat tensor and a shape tensor",
    "box-half-scalars": "pass f16 and bf16 scalars of public functions as tensors without axes",
    "legalize-integer-widths": "hold integers in widths that the target loads and stores",
    "fold-constants": "compute what conversions and movements make of constants",
    "expand-sign-extension": "write sign extension so that IREE's SPIR-V backend keeps the sign",
    "isolate-contraction-operands": "keep casts out of contraction and pooling dispatches (Vulkan)",
    "bound-loops": "check loops of unknown length at run time (Vulkan)",
    "check-hand-off": "fail if anything quantized is left, and record signatures for the runtime",
    "quant-legalize-to-tosa-rescale": "write quantized elementwise StableHLO with tosa.rescale",
    "tosa-rescale-legalize-to-stablehlo": "write tosa.rescale as StableHLO's integer operations",
}
"""One-line description of each pass, by name, in the order of a compilation."""

_FOLDERS = {
    "contraction": (
        *("fuse-block-contractions", "estimate-work", "select-kernels", "correct-zero-points"),
        *("lower-block-contractions", "lower-attention"),
    ),
    "iree_workarounds": (
        *("separate-variables", "expand-stablehlo", "box-half-scalars", "legalize-integer-widths"),
        *("fold-constants", "expand-sign-extension", "isolate-contraction-operands"),
        *("bound-loops", "check-hand-off"),
    ),
    "quantization": (
        *("verify-quantization", "canonicalize-reductions", "legalize-qdq-to-quantized-op"),
        *("legalize-quantized-op-to-qdq", "pack-narrow-storage", "fold-constant-casts"),
        *("legalize-quant-to-math", "narrow-requantization", "lower-requantization"),
        *("lower-saturation", "lower-packed-storage", "lower-quant-casts"),
        *("convert-quantized-to-storage", "narrow-byte-sums", "check-integer-only"),
        "lower-unranked-tensors",
    ),
    "raising": ("raise-dequantization",),
    "tosa": (
        *("convert-tosa-to-storage", "lower-tosa-variables", "lower-tosa-rescale", "lower-tosa"),
        *("quant-legalize-to-tosa-rescale", "tosa-rescale-legalize-to-stablehlo"),
    ),
}
"""Names of the passes in each folder."""


def load_pass(name: str) -> type[ModulePass]:
    """Import the module of a pass and return its class: ``a-b`` is ``AB`` in ``a_b.py``.

    Raises:
        UsageError: no pass has this name.
    """
    if name not in PASSES:
        raise UsageError(f"no pass is named {quoted(name)}; {expected_name(name, PASSES)}")
    folder = next(folder for folder, names in _FOLDERS.items() if name in names)
    module = importlib.import_module(f".{folder}.{name.replace('-', '_')}", __name__)
    class_name = "".join(part.capitalize() for part in name.split("-"))
    pass_class: type[ModulePass] = getattr(module, class_name)
    return pass_class
