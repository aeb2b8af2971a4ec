"""AWQ: weights of 4 bits, packed along outputs in AutoAWQ's order.

    qweight  int32  [K, N / 8]  bits 4i to 4i + 3 of word c hold output 8c + ORDER[i]
    qzeros   int32  [G, N / 8]  as qweight

Sources: AutoAWQ 0.2 (``WQLinear_GEMM.from_linear``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...layouts.tensors import InferenceTensor
from ...numerics.element_types import Array
from .grouped import check_shapes, layout_of, packed_arrays
from .layers import Layer, Layers, PackedTensor
from .packed_words import unpack_stream

ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of 8, that each 4 bits of a word hold, from the low bits on."""
_BITS = 4
_MIDDLE = 8
"""The zero point of symmetric integers."""


@dataclass(frozen=True)
class AwqFormat:
    """AWQ's packing.

    Args:
        group_size: inputs that share a scale, None for all of them.
        is_symmetric: True if the configuration says that each zero point is 8.
    """

    group_size: int | None
    is_symmetric: bool = False

    def read(self, layers: Layers) -> dict[str, InferenceTensor]:
        """Return the tensors of a checkpoint; see `Layers.finish`."""
        for name in layers.named("qweight", "qzeros"):
            layers.add(name, self._weight(layers.layer(name)))
        return layers.finish("AWQ")

    def _weight(self, layer: Layer) -> PackedTensor:
        if not layer.has("qweight"):
            raise layer.error("has no qweight")
        qweight, qzeros, scales = packed_arrays(layer)
        (inputs, _), outputs = qweight.shape, scales.shape[1]
        if not inputs or not outputs or outputs % 8:
            raise layer.error(
                f"has {inputs} inputs and {outputs} outputs, expected a multiple of 8 outputs"
            )
        size = self.group_size or inputs
        if inputs % size:
            raise layer.error(f"has {inputs} inputs, expected a multiple of the group size {size}")
        expected = {
            "qweight": (qweight, (inputs, outputs // 8)),
            "qzeros": (qzeros, (len(scales), outputs // 8)),
        }
        check_shapes(layer, inputs, size, scales, expected)
        if self.is_symmetric:
            zero_points = _unpacked(qzeros)
            wrong = zero_points[zero_points != _MIDDLE]
            if wrong.size:
                raise layer.error(
                    f"has a zero point of {wrong.flat[0]}, and the configuration says symmetric, "
                    f"which means {_MIDDLE} for each; set it to the contrary if the zero points "
                    "are right"
                )
        return PackedTensor(
            f"{layer.name}.weight",
            (outputs, inputs),
            "AWQ",
            {"qweight": qweight, "qzeros": qzeros, "scales": scales},
            lambda: layout_of(_unpacked(qweight).T, scales.T, _unpacked(qzeros).T, size, _BITS),
        )


def _unpacked(words: Array) -> Array:
    """The integers of words, in the order of the outputs."""
    values = unpack_stream(words, _BITS)
    ordered = values.reshape((*values.shape[:-1], -1, 8))[..., np.argsort(ORDER)]
    return ordered.reshape(values.shape)
