"""The kernel that rounds activations to 8 bits, for devices of many threads (Vulkan).

A thread has a block of a row: it reads four activations at a time, first for the greatest magnitude
and then for the integers, which it writes as words. IREE's loops over the same are several
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
from ...emit.linalg import Extent
from ...emit.vectors import (
    Vectors,
    broadcast,
    constant_vector,
    element_at,
    for_each_thread,
    load_element,
    loop,
    store_element,
    workgroup_id,
)
from ...numerics.block_contraction import activation_scale
from ...numerics.casts import Cast
from ...numerics.element_types import F32, I32
from ...numerics.parameters import ExpressedType, StorageType
from ..kernel import Binding, Kernel

__all__ = ["GpuQuantizeRows"]

_WORD = 4
"""Activations that become a word."""
_CAST = Cast(StorageType(32, True, -127, 127), ExpressedType.F32, division="exact")
"""Integers of 8 bits, in words of their own until these are one."""


@dataclass(frozen=True)
class GpuQuantizeRows:
    """Round ``rows x depth`` activations (f32) to integers of 8 bits.

    Args:
        rows: None where that is known at run time only.
        depth: how many activations a row has.
        block: how many share a scale; a multiple of 4.
        threads: of a workgroup.
    """

    rows: int | None
    depth: int
    block: int
    threads: int

    def kernel(self) -> Kernel:
        """The kernel.

        Bindings are the activations; and as results the integers, four to a word, and the scale of
        each block.
        """
        blocks = self.depth // self.block
        bindings = [
            Binding((None, self.depth), F32, _WORD),
            Binding((None, self.depth // _WORD), I32),
            Binding((None, blocks), F32),
        ]
        workgroups = -(-blocks // self.threads)
        return Kernel("thread_rounding", bindings, workgroups, self._body, self.rows, self.threads)

    def _body(self, memories: Sequence[Value], number: Value, _: Extent) -> None:
        activations, integers, scales = memories
        row, blocks = scalar(workgroup_id(0)), self.depth // self.block
        words = self.block // _WORD

        def of_thread(thread: Value) -> None:
            block = scalar(number) * self.threads + scalar(thread)
            if blocks % self.threads:
                block = np.minimum(block, blocks - 1)  # the last one is written again, the same
            block = row * blocks + block
            first = block * words

            def greater(place: Value, so_far: ArrayLike) -> list[ArrayLike]:
                found = load_element(activations, [(first + scalar(place)).value])
                return [np.maximum(so_far, np.abs(found))]

            [found] = loop(0, words, 1, greater, [Vectors(_WORD).known(0.0, F32)])
            lanes = [element_at(found, lane) for lane in range(_WORD)]
            scale = activation_scale(functools.reduce(np.maximum, lanes))
            store_element(scale, scales, [block.value])
            spread = broadcast(scale, _WORD)

            def round_(place: Value) -> None:
                at = (first + scalar(place)).value
                rounded = _CAST.quantize(load_element(activations, [at]), spread)
                moved = (rounded & 255) << constant_vector([0, 8, 16, 24], I32)
                bytes_ = [element_at(moved, lane) for lane in range(_WORD)]
                store_element(functools.reduce(operator.or_, bytes_), integers, [at])

            loop(0, words, 1, round_)

        for_each_thread(self.threads, of_thread)
