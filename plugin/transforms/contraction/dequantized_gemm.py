"""Block contraction as one dequantization and a GEMM: for M >= 4 and 65,536 weights or more.

The loop nest of a block contraction computes a weight's real for each product. That reads few
bytes, which is what counts where each weight is multiplied once; with several rows of activations
the reals are computed anew for each. On llvm-cpu (two cores, int4 in blocks of 32, 2048 x 2048) a
row takes 4 ms in a nest, and 16 rows 65 ms; written out first, 3 ms and 6 ms. With 4096 x 4096 and
one row, where the reals no longer fit the cache, the nest takes 33 ms and these 60 ms. On Vulkan
(llvmpipe, 512 x 512, 8 rows) a nest takes 15 ms, and the product of reals 0.8 ms.
"""

from __future__ import annotations

import math

from ...core._mlir import Value, ir
from ...dialects.block_contraction import BlockContraction, sum_type
from ...dialects.quant import any_type_of, expressed_mlir_type, storage_mlir_type
from ...emit import linalg, stablehlo, subquant
from ...emit.operation import is_dynamic, tensor_type

_MIN_WEIGHT_ELEMENTS = 1 << 16
"""Elements (256 x 256) from which on a weight is dequantized once; smaller ones are a loop nest."""


def is_gemm(contraction: BlockContraction, min_rows: int) -> bool:
    """Return True for a GEMM of `min_rows` static rows or more with a large weight, no windows."""
    activations, storage, _ = contraction.indices
    stored = {loop for [(loop, _)] in storage}
    if contraction.activation_type != "float" or any(len(terms) > 1 for terms in activations):
        return False
    if not stored.intersection(contraction.summed) <= {loop for [(loop, _)] in activations}:
        return False  # the weight has reduction loops of its own
    shape = [int(n) for n in contraction.activations.type.shape]
    count = math.prod(
        extent for extent, [(loop, _)] in zip(shape, activations, strict=True) if loop not in stored
    )
    is_large = math.prod(contraction.storage_shape) >= _MIN_WEIGHT_ELEMENTS
    return is_large and count >= min_rows and not any(is_dynamic(extent) for extent in shape)


def matrix_product(contraction: BlockContraction, result: ir.Type) -> Value:
    """Write the dequantized weight and its GEMM, accumulated in `sum_type`."""
    storage = storage_mlir_type(contraction.storage_type)
    integers = contraction.storage
    if contraction.plane_bits is not None:
        integers = subquant.unpack(contraction.planes, contraction.plane_bits, storage)
    reals = subquant.dequantize(
        integers,
        contraction.scales,
        contraction.block_sizes,
        ir.TypeAttr.get(any_type_of(contraction.storage_type, contraction.expressed)),
        expressed_mlir_type(contraction.expressed),
        contraction.zero_points,
        contraction.offsets,
    )
    accumulator = sum_type(contraction.expressed)
    left, right, result_loops = ([loop for [(loop, _)] in axes] for axes in contraction.indices)
    summed = [loop for loop in left if loop in right and loop not in result_loops]
    batch = [loop for loop in left if loop in right and loop in result_loops]
    product = [
        *batch,
        *(loop for loop in left if loop not in right),
        *(loop for loop in right if loop not in left),
    ]
    sides = (left, right)
    shape = [int(n) for n in contraction.activations.type.shape]
    extent_of = dict(zip(right, contraction.storage_shape, strict=True))
    extent_of |= dict(zip(left, shape, strict=True))
    total = stablehlo.dot_general(
        stablehlo.convert(contraction.activations, accumulator),
        stablehlo.convert(reals, accumulator),
        tensor_type([extent_of[loop] for loop in product], accumulator),
        [[side.index(loop) for loop in summed] for side in sides],
        [[side.index(loop) for loop in batch] for side in sides],
    )
    total = stablehlo.transpose(total, [product.index(loop) for loop in result_loops])
    return linalg.cast(stablehlo.convert(total, result.element_type), result)
