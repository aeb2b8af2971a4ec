"""Registry of the passes by name. Names map to loaders: listing them imports no pass."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import TYPE_CHECKING

from ..errors import UsageError, expected_name, quoted

if TYPE_CHECKING:
    from .base import ModulePass

__all__ = ["PASSES", "load_pass"]

PASSES: dict[str, str] = {
    "legalize-constants": "write resources as elements, and complex constants as real ones",
    "legalize-torch": "lower the torch dialect to StableHLO",
    "verify-quantization": "check quantized types and subquant operations against the RFC's rules",
    "raise-linalg": "write linalg's contractions of quantized operands as StableHLO",
    "convert-tosa-to-storage": "give TOSA's quantized and unsigned values signless storage",
    "lower-tosa-variables": "lower variables of TOSA to globals that IREE keeps between calls",
    "lower-tosa-rescale": "lower tosa.rescale to integer arithmetic",
    "lower-tosa": "lower the rest of TOSA to linalg, tensor, arith and scf",
    "canonicalize-reductions": "write the implicit conversions of reductions as operations",
    "legalize-qdq-to-quantized-op": "fuse dequantize, float operation, quantize into one operation",
    "legalize-quantized-op-to-qdq": "expand quantized operations to float ones between casts",
    "pack-narrow-storage": "bit-pack arguments, constants and parameters of 2 to 6 bits",
    "raise-dequantization": "raise dequantization that is written as arithmetic to one operation",
    "raise-attention": "raise scores, softmax and weighted values to one operation",
    "contract-storage": "contract the integers of operands that are both dequantized",
    "fuse-block-contractions": "fuse contractions with the dequantization of their weights",
    "fold-constant-casts": "fold casts of constants",
    "legalize-quant-to-math": "lower StableHLO on quantized values to integers, exactly",
    "narrow-requantization": "add terms that already have the accumulator's scale unrescaled",
    "estimate-work": "estimate how long functions take on one thread (llvm-cpu)",
    "select-kernels": "call kernels for int8 and block-quantized contractions",
    "correct-zero-points": "contract storage values, and correct accumulators for zero points",
    "lower-requantization": "lower subquant.requantize to integers, exactly or in fixed point",
    "lower-saturation": "lower subquant.saturate to a clamp and a truncation",
    "lower-block-contractions": "lower subquant.block_contraction to a loop nest over its blocks",
    "lower-attention": "lower subquant.attention to products with all keys and values of its cache",
    "lower-packed-storage": "unpack integers of 2 to 6 bits that no contraction reads packed",
    "lower-quant-casts": "lower qcast, dcast, quantize and dequantize to linalg and arith",
    "convert-quantized-to-storage": "convert quantized values and signatures to storage tensors",
    "narrow-byte-sums": "compute scaled and rounded sums of two bytes with one shift",
    "check-integer-only": "fail if floats are computed between quantized values",
    "separate-variables": "give variables with equal initial values memory of their own",
    "order-variables": "name variables in the order in which they are assigned",
    "expand-stablehlo": "expand StableHLO operations that IREE refuses or gets wrong",
    "lower-unranked-tensors": "replace unranked tensors by a flat tensor and a shape tensor",
    "box-half-scalars": "pass f16 and bf16 scalars of public functions as tensors of rank 0",
    "legalize-integer-widths": "store integers in widths that the target loads and stores",
    "fold-constants": "fold conversions and data movement of constants",
    "expand-sign-extension": "expand sign extension so that IREE's SPIR-V backend keeps the sign",
    "isolate-contraction-operands": "keep casts out of contraction and pooling dispatches (Vulkan)",
    "bound-loops": "check loops of dynamic length at run time (Vulkan)",
    "check-hand-off": "fail if anything quantized remains; record signatures for the runtime",
    "quant-legalize-to-tosa-rescale": "lower quantized elementwise StableHLO to tosa.rescale",
    "tosa-rescale-legalize-to-stablehlo": "lower tosa.rescale to StableHLO's integer operations",
}
"""One-line description of each pass, by name, in the order of a compilation."""

_FOLDERS = ("contraction", "iree_workarounds", "quantization", "raising", "torch", "tosa")


def load_pass(name: str) -> type[ModulePass]:
    """Import the module of a pass and return its class: ``a-b`` is ``AB`` in ``a_b.py``.

    Raises:
        UsageError: no pass has this name.
    """
    if name not in PASSES:
        raise UsageError(f"no pass is named {quoted(name)}; {expected_name(name, PASSES)}")
    paths = (f"{__name__}.{folder}.{name.replace('-', '_')}" for folder in _FOLDERS)
    module = importlib.import_module(next(filter(find_spec, paths)))
    class_name = "".join(part.capitalize() for part in name.split("-"))
    pass_class: type[ModulePass] = getattr(module, class_name)
    return pass_class
