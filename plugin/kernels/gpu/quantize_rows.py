"""GPU quantization kernel: f32 activations to int8, with a scale for each block (Vulkan).

A thread has a block of a row. It reads four activations at a time, first for the greatest magnitude
and then for the integers, which it stores as words. IREE's loops over the same take several
dispatches.

`subquant.numerics.block_contraction` has the formulas.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ...core._mlir import Value
from ...emit import ArrayLike, scalar
from ...emit.gpu_threads import for_each_thread
from ...emit.kernel import Binding, Kernel
from ...emit.linalg import DimSize
from ...emit.vectors import (
    Vectors,
    broadcast,
    constant_vector,
    element_at,
    load_element,
    loop,
    quotient,
    store_element,
    workgroup_id,
)
from ...numerics.block_contraction import activation_scale
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32
from ...numerics.parameters import ExpressedType, StorageType

K_PACK = 4
"""A word has this many activations."""
INT8_CAST = Cast(StorageType(32, True, -127, 127), ExpressedType.F32, division="exact")
"""The 8-bit integers are i32 until four are packed to a word."""


def block_of_thread(workgroup: Value, thread: Value, threads: int, blocks: int) -> ArrayLike:
    """The number of a thread's block of a row; threads after the last repeat its block."""
    block = scalar(workgroup) * threads + scalar(thread)
    return np.minimum(block, blocks - 1) if blocks % threads else block


def block_maximum(
    activations: Value, block: ArrayLike, scale_size: int, block_size: int
) -> ArrayLike:
    """The greatest magnitude of the `scale_size` activations that share the scale of a block."""
    words, count = scale_size // K_PACK, scale_size // block_size
    first = (block if count == 1 else quotient(block, count)) * words

    def greater(index: Value, greatest: ArrayLike) -> list[ArrayLike]:
        vector = load_element(activations, [(first + scalar(index)).value])
        return [np.maximum(greatest, np.abs(vector))]

    [greatest] = loop(0, words, 1, greater, [Vectors(K_PACK).known(0.0, F32)])
    lanes = [element_at(greatest, lane) for lane in range(K_PACK)]
    return functools.reduce(np.maximum, lanes)


@dataclass(frozen=True)
class GpuQuantizeRows:
    """Quantization of ``M x K`` activations (f32) to int8.

    Args:
        m: M; None where it is dynamic.
        scale_size: consecutive activations that share a scale, a multiple of `block_size`.
        block_size: consecutive activations of a thread, a multiple of 4; each block gets its scale.
        threads: of a workgroup.
    """

    m: int | None
    k: int
    scale_size: int
    block_size: int
    threads: int

    def kernel(self) -> Kernel:
        """Build the kernel: bindings are activations, integers (words of four), and scales."""
        blocks = self.k // self.block_size
        bindings = [
            Binding((None, self.k), F32, K_PACK),
            Binding((None, self.k // K_PACK), I32),
            Binding((None, blocks), F32),
        ]
        workgroups = -(-blocks // self.threads)
        return Kernel("quantize_rows", bindings, workgroups, self._body, self.m, self.threads)

    def _body(self, memories: Sequence[Value], workgroup: Value, _: DimSize) -> None:
        activations, integers, scales = memories
        row, blocks = scalar(workgroup_id(0)), self.k // self.block_size
        words = self.block_size // K_PACK

        def quantize_block(thread: Value) -> None:
            block = block_of_thread(workgroup, thread, self.threads, blocks)
            block = row * blocks + block
            first = block * words
            maximum = block_maximum(activations, block, self.scale_size, self.block_size)
            scale = activation_scale(maximum)
            store_element(scale, scales, [block.value])
            scale_vector = broadcast(scale, K_PACK)

            def quantize(index: Value) -> None:
                word = (first + scalar(index)).value
                rounded = INT8_CAST.quantize(load_element(activations, [word]), scale_vector)
                shifted = (rounded & 255) << constant_vector([0, 8, 16, 24], I32)
                bytes_ = [element_at(shifted, lane) for lane in range(K_PACK)]
                store_element(functools.reduce(operator.or_, bytes_), integers, [word])

            loop(0, words, 1, quantize)

        for_each_thread(self.threads, quantize_block)
