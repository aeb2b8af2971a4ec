"""GPTQ: weights of 2, 3, 4 or 8 bits, packed along inputs.

    qweight  int32  [K * bits / 32, N]  the integers of an output follow one another through words
    qzeros   int32  [G, N * bits / 32]  likewise those of a group
    g_idx    int32  [K]                 the group of each input; without it, input k is of k // B

The first GPTQ format stores zero points less 1. Its words are read as ``qzeros`` plus 1 in each
field, with carries: so a word with a zero point of 0, which is stored with a borrow, is read as it
was before (GPTQModel writes such words), and any other word as if 1 were added to each of its
values. Fields of 3 bits cross words; each of them is read as its value plus 1, modulo 8.
``checkpoint_format: gptq_v2`` stores zero points as they are.

Groups of inputs that are not consecutive (``desc_act``) become consecutive: the planes have the
inputs in the order of their groups, and the layout's `order` says which they are. Groups that are
consecutive and not ascending need none, and a g_idx that is all zero says nothing, as for the
loaders of the files.

Sources: AutoGPTQ 0.7 (``QuantLinear.pack``), GPTQModel (``convert_gptq_v1_to_v2_format_module``).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from ...layouts.affine import BlockAffineLayout
from ...layouts.tensors import InferenceTensor
from ...numerics.element_types import Array
from .grouped import check_shapes, layout_of, layout_of_words, packed_arrays
from .layers import Layer, Layers, PackedTensor, order_of
from .packed_words import PLANE_WIDTHS, unpack_stream

_ONES = {2: 0x55555555, 4: 0x11111111, 8: 0x01010101}
"""One in each of the integers of a word, by their bits."""


@dataclass(frozen=True)
class GptqFormat:
    """GPTQ's packing.

    Args:
        bits: the bits of an integer: 2, 3, 4 or 8.
        group_size: inputs that share a scale, None for all of them.
        has_zero_points_less_one: True if zero points are stored less 1.
        is_symmetric: True if the configuration says that each zero point is half the range.
        has_act_order: True if it says that groups may be of inputs that are not consecutive.
    """

    bits: int
    group_size: int | None
    has_zero_points_less_one: bool = True
    is_symmetric: bool = False
    has_act_order: bool = False

    def read(self, layers: Layers) -> dict[str, InferenceTensor]:
        """Return the tensors of a checkpoint; see `Layers.finish`."""
        for name in layers.named("qweight", "qzeros"):
            layers.add(name, self._weight(layers.layer(name)))
        return layers.finish("GPTQ")

    def _weight(self, layer: Layer) -> PackedTensor:
        if not layer.has("qweight"):
            raise layer.error("has no qweight")
        qweight, qzeros, scales = packed_arrays(layer)
        count, outputs = scales.shape
        inputs, words = qweight.shape[0] * 32 // self.bits, outputs * self.bits // 32
        if not inputs or not outputs or outputs * self.bits % 32 or inputs * self.bits % 32:
            multiple = 32 if self.bits == 3 else 32 // self.bits
            raise layer.error(
                f"has {inputs} inputs and {outputs} outputs, expected a multiple of {multiple}"
            )
        size = min(self.group_size or inputs, inputs)
        expected = {
            "qweight": (qweight, (inputs * self.bits // 32, outputs)),
            "qzeros": (qzeros, (count, words)),
        }
        check_shapes(layer, inputs, size, scales, expected)
        if self.is_symmetric:
            self._check_symmetric(layer, self._zero_points(qzeros))
        order, blocks = self._groups(layer, inputs, size, count)
        arrays = {"qweight": qweight, "qzeros": qzeros, "scales": scales}

        def make_layout() -> BlockAffineLayout:
            words = np.ascontiguousarray(qweight.T)
            zero_points = self._zero_points(qzeros).T
            own_scales = scales.T
            if blocks is not None:
                own_scales, zero_points = own_scales[:, blocks], zero_points[:, blocks]
            if self.bits in PLANE_WIDTHS and order is None:
                return layout_of_words(words, own_scales, zero_points, size, self.bits)
            storage = unpack_stream(words, self.bits)
            if order is not None:
                storage = storage[:, order]
            return layout_of(storage, own_scales, zero_points, size, self.bits, order)

        return PackedTensor(
            f"{layer.name}.weight",
            (outputs, inputs),
            "GPTQ",
            arrays,
            make_layout,
            order=order,
            has_row_blocks=True,
        )

    def _zero_points(self, qzeros: Array) -> Array:
        """Return the zero points ``[G, N]`` as the format says that they are stored."""
        words = qzeros.view(np.uint32)
        if not self.has_zero_points_less_one:
            return unpack_stream(words, self.bits)
        if self.bits in _ONES:
            return unpack_stream(words + np.uint32(_ONES[self.bits]), self.bits)
        return (unpack_stream(words, self.bits) + np.uint8(1)) & np.uint8(2**self.bits - 1)

    def _check_symmetric(self, layer: Layer, zero_points: Array) -> None:
        """Refuse other zero points than half the range in weights that are said to be symmetric.

        Raises:
            InputError: one is another, as where a checkpoint of the format gptq_v2 says gptq.
        """
        middle = 2 ** (self.bits - 1)
        asymmetric = zero_points[zero_points != middle]
        if not asymmetric.size:
            return
        advice = "set it to the contrary if the zero points are right"
        shift = 1 if self.has_zero_points_less_one else -1
        if (zero_points == middle + shift).all():
            right = "gptq_v2" if self.has_zero_points_less_one else "gptq"
            advice = f"set 'checkpoint_format' to '{right}', with which each is {middle}"
        raise layer.error(
            f"has a zero point of {asymmetric.flat[0]}, and 'sym' is true, which means {middle} "
            f"for each; {advice}"
        )

    def _groups(
        self, layer: Layer, inputs: int, size: int, count: int
    ) -> tuple[Array | None, Array | None]:
        """Return the order of the inputs, or the group of each block of consecutive inputs.

        Both are None for ascending groups.
        """
        indices = layer.get("g_idx")
        says_nothing = indices is None or (indices.shape == (inputs,) and not indices.any())
        if self.has_act_order and count > 1 and says_nothing:
            raise layer.error(
                "has no g_idx that says which group each input belongs to, and 'desc_act' is "
                "true; set 'desc_act' to false if groups are of consecutive inputs"
            )
        if indices is None or (says_nothing and indices.dtype.kind in "iu"):
            return None, None
        if indices.dtype.kind in "iu" and indices.shape == (inputs,):
            blocks = indices[::size].astype(np.int64)
            is_in_range = blocks.min() >= 0 and blocks.max() < count
            if is_in_range and (np.repeat(blocks, size)[:inputs] == indices).all():
                return None, None if (blocks == np.arange(count)).all() else blocks
        return order_of(layer, "g_idx", inputs, size, count), None
