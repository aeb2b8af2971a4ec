"""Weights of 4 bits packed in int32, as GPTQ and AWQ checkpoints have them.

A linear layer of K inputs and N outputs, with groups of B inputs, G = ceil(K / B) of them, has

    scales   float  [G, N]
    g_idx    int32  [K]         the group of each input (GPTQ; without it, input k is of k // B)
    qweight  int32  [K / 8, N]  GPTQ: bits 4i to 4i + 3 of word r hold input 8r + i
                    [K, N / 8]  AWQ: bits 4i to 4i + 3 of word c hold output 8c + ORDER[i]
    qzeros   int32  [G, N / 8]  GPTQ: output 8c + i in bits 4i; AWQ: as qweight

and the weight of input k and output n, in group g, is ``(q[k, n] - z[g, n]) * scale[g, n]``. Here
it becomes one tensor ``weight`` of shape [N, K], as PyTorch has it, in a `BlockAffineLayout` with
blocks of [1, B].

The first GPTQ format stores zero points less 1. Its words are read as ``qzeros + 0x11111111``,
with carries: so a word with a zero point of 0, which is stored with a borrow, is read as it was
before (GPTQModel writes such words), and any other word as if 1 were added to each of its values.
``checkpoint_format: gptq_v2`` stores zero points as they are, and so does AWQ.

Groups of inputs that are not consecutive (``desc_act``) are refused: the layout's blocks are
consecutive, and a permuted weight would need permuted inputs, of which its users know nothing. An
order of the groups other than ascending is fine, and a g_idx that is all zero says nothing, as for
the loaders of the files.

Sources: AutoGPTQ 0.7 (``QuantLinear.pack``), GPTQModel (``convert_gptq_v2_to_v1_format``), AutoAWQ
0.2 (``WQLinear_GEMM.from_linear``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from ..core.read_record import ReadRecord
from ..core.strict_json import shown
from ..errors import InputError, Place, SubquantError, UnsupportedError
from ..layouts.base import FLOAT_DTYPES
from ..layouts.scaled import BlockAffineLayout
from ..layouts.tensors import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..numerics.array_functions import unpack_bits
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from .packed_settings import PackedInt4Form

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of 8, that each 4 bits of a word hold, from the low bits on: AutoAWQ's order."""

_PARTS = {
    "gptq": ("qweight", "qzeros", "scales", "g_idx"),
    "awq": ("qweight", "qzeros", "scales"),
}
_SYMMETRIC = 8
"""The zero point of symmetric integers of 4 bits."""
_ONES = 0x11111111
"""One in each of the eight integers of a word."""


def read_packed_int4(
    arrays: Mapping[str, Array], form: PackedInt4Form, file: str
) -> dict[str, InferenceTensor]:
    """Make ``NAME.weight`` of each ``NAME.qweight`` and its parts; other arrays stay as they are.

    Raises:
        InputError: an array is missing, shapes do not fit, no weight is packed, or zero points
            contradict the configuration.
        UnsupportedError: groups that are not consecutive, or an array below the name of a packed
            layer that is neither one of its parts nor its bias.
    """
    location = Place(file)
    record = ReadRecord(location)
    tracked = record.track("tensor", arrays)
    layers = {name.removesuffix(".qweight") for name in arrays if name.endswith(".qweight")}
    tensors: dict[str, InferenceTensor] = {}
    for name in arrays:
        layer, _, part = name.rpartition(".")
        if part == "qweight":
            if f"{layer}.weight" in arrays:
                raise InputError(f"{shown(layer)} has both a weight and a qweight", location)
            planes = {part: tracked.get(f"{layer}.{part}") for part in _PARTS[form.method]}
            tensors[f"{layer}.weight"] = _PackedLayer(layer, planes, form, location).tensor()
        elif part == "qzeros" and layer not in layers:
            raise InputError(f"{shown(layer)} has no qweight", location)
        elif (layer in layers and part == "bias") or not _is_below(name, layers):
            tensors[name] = PrimitiveTensor(tracked[name], name)
    record.finish("quantize the model again without it")
    if not layers:
        raise InputError(
            f"the configuration says that {form.method.upper()} packed the weights, and no tensor "
            "has the name of a qweight",
            location,
        )
    return tensors


def _is_below(name: str, layers: set[str]) -> bool:
    """Return True if a tensor belongs to one of the layers."""
    while "." in name:
        name = name.rpartition(".")[0]
        if name in layers:
            return True
    return False


class PackedInt4Tensor(QuantizedTensor):
    """A weight of 4 bits, packed in int32.

    Args:
        qweight, qzeros, scales: the arrays, of shapes that fit.
        groups: the group of each block of inputs, None for ascending ones.
        block_size: the number of inputs that share a scale.
    """

    def __init__(
        self,
        qweight: Array,
        qzeros: Array,
        scales: Array,
        groups: Array | None,
        block_size: int,
        form: PackedInt4Form,
        name: str = "",
    ) -> None:
        inputs = qweight.shape[0] * (8 if form.method == "gptq" else 1)
        super().__init__(name, (scales.shape[1], inputs))
        self.qweight, self.qzeros, self.scales = qweight, qzeros, scales
        self.groups, self.block_size, self.form = groups, block_size, form

    @property
    def size_in_bytes(self) -> int:
        """The bytes of the packed arrays."""
        return int(self.qweight.nbytes + self.qzeros.nbytes + self.scales.nbytes)

    def unpack(self) -> BlockAffineLayout:
        """The layout, of planes that are made at each call."""
        zero_points = _zero_points(self.qzeros, self.form).T
        if self.form.method == "gptq":
            storage = _unpacked(np.ascontiguousarray(self.qweight.T))
        else:
            storage = _in_order(_unpacked(self.qweight)).T
        scales = self.scales.T
        if self.groups is not None:
            scales, zero_points = scales[:, self.groups], zero_points[:, self.groups]
        return BlockAffineLayout.of(
            np.ascontiguousarray(storage),
            np.ascontiguousarray(scales),
            np.ascontiguousarray(zero_points),
            [1, self.block_size],
            StorageType(4, False),
        )


@dataclass(frozen=True)
class _PackedLayer:
    """A packed layer: the arrays of a checkpoint by part, checked against each other."""

    name: str
    arrays: Mapping[str, Array | None]
    form: PackedInt4Form
    location: Place

    def error(self, problem: str, kind: type[SubquantError] = InputError) -> SubquantError:
        return kind(f"layer {shown(self.name)} {problem}", self.location)

    def tensor(self) -> PackedInt4Tensor:
        """Return the weight; refuse parts that are missing or do not fit."""
        form = self.form
        qweight, qzeros, scales = (self.arrays[part] for part in ("qweight", "qzeros", "scales"))
        if qweight is None or qzeros is None or scales is None:
            missing = [part for part in ("qzeros", "scales") if self.arrays[part] is None]
            raise self.error(f"has a qweight and no {' and no '.join(missing)}")
        packed = {"qweight": qweight, "qzeros": qzeros}
        for part, array in packed.items():
            if array.dtype != np.int32 or array.ndim != 2:
                raise self.error(
                    f"has as its {part} {_text(array)}, expected a matrix of int32",
                    UnsupportedError,
                )
        if scales.dtype.name not in FLOAT_DTYPES or scales.ndim != 2:
            raise self.error(f"has as its scales {_text(scales)}, expected a matrix")
        count, outputs = scales.shape
        inputs = qweight.shape[0] * (8 if form.method == "gptq" else 1)
        if not inputs or not outputs or outputs % 8:
            raise self.error(f"has {inputs} inputs and {outputs} outputs, expected a multiple of 8")
        size = min(form.group_size or inputs, inputs)
        if count != -(-inputs // size):
            raise self.error(
                f"has scales of {count} groups, expected {-(-inputs // size)} for {inputs} inputs "
                f"in groups of {size}"
            )
        wide = (inputs // 8, outputs) if form.method == "gptq" else (inputs, outputs // 8)
        for part, shape in (("qweight", wide), ("qzeros", (count, outputs // 8))):
            if packed[part].shape != shape:
                raise self.error(
                    f"has as its {part} {_text(packed[part])}, expected {list(shape)} for scales "
                    f"of {list(scales.shape)}"
                )
        if form.is_symmetric:
            self.check_symmetric(_zero_points(qzeros, form))
        groups = self.groups(inputs, size, count)
        return PackedInt4Tensor(qweight, qzeros, scales, groups, size, form, f"{self.name}.weight")

    def check_symmetric(self, zero_points: Array) -> None:
        """Refuse zero points other than 8 in weights that are said to be symmetric.

        Raises:
            InputError: one is another, as where a checkpoint of the format gptq_v2 says gptq.
        """
        form, asymmetric = self.form, zero_points[zero_points != _SYMMETRIC]
        if not asymmetric.size:
            return
        says = "'sym' is true" if form.method == "gptq" else "the configuration says symmetric"
        advice = "set it to the contrary if the zero points are right"
        shift = 1 if form.zero_points_less_one else -1
        if form.method == "gptq" and (zero_points == _SYMMETRIC + shift).all():
            right = "gptq_v2" if form.zero_points_less_one else "gptq"
            advice = f"set 'checkpoint_format' to '{right}', with which each is {_SYMMETRIC}"
        raise self.error(
            f"has a zero point of {asymmetric.flat[0]}, and {says}, which means {_SYMMETRIC} for "
            f"each; {advice}"
        )

    def groups(self, inputs: int, size: int, count: int) -> Array | None:
        """Return the group of each block of `size` inputs, None for ascending ones."""
        indices = self.arrays.get("g_idx")
        if self.form.has_act_order and count > 1 and (indices is None or not indices.any()):
            raise self.error(
                "has no g_idx that says which group each input belongs to, and 'desc_act' is "
                "true; set 'desc_act' to false if groups are of consecutive inputs"
            )
        if indices is None:
            return None
        if indices.dtype.kind not in "iu" or indices.shape != (inputs,):
            raise self.error(f"has as its g_idx {_text(indices)}, expected {inputs} integers")
        if indices.min() < 0 or indices.max() >= count:
            wrong = indices.min() if indices.min() < 0 else indices.max()
            raise self.error(f"has the group {wrong} in its g_idx, of {count} groups")
        if not indices.any():
            return None
        blocks = indices[::size].astype(np.int64)
        if (np.repeat(blocks, size)[:inputs] != indices).any():
            raise self.error(
                "has groups of inputs that are not consecutive (desc_act); quantize with "
                "desc_act=False or static_groups=True",
                UnsupportedError,
            )
        return None if (blocks == np.arange(count)).all() else blocks


def _zero_points(qzeros: Array, form: PackedInt4Form) -> Array:
    """Return the zero points ``[G, N]`` as the form says that they are stored."""
    zeros = qzeros.view(np.uint32)
    if form.zero_points_less_one:
        zeros = zeros + np.uint32(_ONES)
    return _unpacked(zeros) if form.method == "gptq" else _in_order(_unpacked(zeros))


def _unpacked(words: Array) -> Array:
    """The 8 values of each word of the last axis, from the low bits on, as uint8."""
    little = np.ascontiguousarray(words.astype("<u4", copy=False))
    values: Array = unpack_bits(little.view(np.uint8), 4)
    return values


def _in_order(values: Array) -> Array:
    """The values of each 8 of the last axis in the order of the outputs, from AWQ's."""
    inverse_order = np.argsort(AWQ_ORDER)
    return values.reshape((*values.shape[:-1], -1, 8))[..., inverse_order].reshape(values.shape)


def _text(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
