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
the loaders of these files.

Sources: AutoGPTQ 0.7 (``QuantLinear.pack``), GPTQModel (``convert_gptq_v2_to_v1_format``), AutoAWQ
0.2 (``WQLinear_GEMM.from_linear``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..errors import InputError, Place, UnsupportedError
from ..layouts.scaled import BlockAffineLayout
from ..layouts.tensors import InferenceTensor, PrimitiveTensor, QuantizedTensor
from ..numerics.array_functions import unpack_nibbles
from ..numerics.element_types import Array
from ..numerics.parameters import StorageType
from .strict_json import shown

__all__ = ["PackedInt4Form", "PackedInt4Tensor", "packed_int4_form", "read_packed_int4"]

AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The output, of 8, that each 4 bits of a word hold, from the low bits on."""

_FLOATS = ("float16", "bfloat16", "float32", "float64")
_ONES = 0x11111111


@dataclass(frozen=True)
class PackedInt4Form:
    """What a checkpoint's configuration says of its packed weights.

    Args:
        method: whose packing it is.
        group_size: inputs that share a scale, None for all of them.
        zero_points_less_one: whether zero points are stored less 1.
    """

    method: Literal["gptq", "awq"]
    group_size: int | None
    zero_points_less_one: bool = False


def packed_int4_form(config: Mapping[str, Any], file: str) -> PackedInt4Form:
    """Read a ``quantization_config``.

    Args:
        config: of ``config.json``, or the whole of ``quantize_config.json``.
        file: where it is from, for errors.

    Raises:
        InputError: a value is missing or of the wrong type.
        UnsupportedError: the method, the number of bits or the packing is not supported.
    """
    place = Place(file)

    def text(*keys: str, default: str) -> str:
        value = next((config[key] for key in keys if config.get(key) is not None), default)
        if not isinstance(value, str):
            raise InputError(f"'{keys[0]}' must be a string, got {shown(value)}", place)
        return value.lower()

    def integer(*keys: str) -> int:
        value = next((config[key] for key in keys if config.get(key) is not None), None)
        if not isinstance(value, int) or isinstance(value, bool):
            raise InputError(
                f"'{keys[0]}' of the quantization must be an integer, got {shown(value)}", place
            )
        return value

    # Files from before 'quant_method' was there: 'version' is AWQ's.
    old = "awq" if "version" in config else "gptq"
    method = text("quant_method", "method", default=old)
    if method not in ("gptq", "awq"):
        raise UnsupportedError(
            f"the quantization method is {shown(method)}, expected 'gptq' or 'awq'", place
        )
    bits, group_size = integer("bits", "w_bit"), integer("group_size", "q_group_size")
    if bits != 4:
        raise UnsupportedError(f"the weights have {bits} bits, expected 4", place)
    if group_size < 1 and group_size != -1:
        raise InputError(f"'group_size' must be positive or -1, got {group_size}", place)
    groups = None if group_size == -1 else group_size
    if method == "awq":
        packing = text("version", "checkpoint_format", "format", default="gemm")
        if packing != "gemm":
            raise UnsupportedError(
                f"the AWQ weights are packed as {shown(packing)}, expected 'gemm'", place
            )
        return PackedInt4Form("awq", groups)
    packing = text("checkpoint_format", "format", default="gptq")
    if config.get("is_marlin_format"):
        packing = "marlin"
    if packing not in ("gptq", "gptq_v2"):
        raise UnsupportedError(
            f"the GPTQ weights are packed as {shown(packing)}, expected 'gptq' or 'gptq_v2'", place
        )
    return PackedInt4Form("gptq", groups, packing == "gptq")


def read_packed_int4(
    arrays: Mapping[str, Array], form: PackedInt4Form, file: str
) -> dict[str, InferenceTensor]:
    """Make one tensor ``NAME.weight`` of each ``NAME.qweight`` and what belongs to it.

    Args:
        arrays: of the checkpoint, by name.
        form: how they are packed.
        file: where they are from, for errors.

    Returns:
        The tensors by name, other arrays as they are.

    Raises:
        InputError: an array is missing, or shapes do not fit.
        UnsupportedError: groups that are not consecutive.
    """
    place = Place(file)
    parts = ("qweight", "qzeros", "scales") + (("g_idx",) if form.method == "gptq" else ())
    layers = [name.removesuffix(".qweight") for name in arrays if name.endswith(".qweight")]
    taken = {f"{layer}.{part}" for layer in layers for part in parts}
    tensors: dict[str, InferenceTensor] = {}
    for name, array in arrays.items():
        if name.endswith(".qweight"):
            layer = name.removesuffix(".qweight")
            if f"{layer}.weight" in arrays:
                raise InputError(f"{shown(layer)} has both a weight and a qweight", place)
            found = {part: arrays.get(f"{layer}.{part}") for part in parts}
            tensors[f"{layer}.weight"] = _tensor(layer, found, form, place)
        elif name.endswith(".qzeros") and name not in taken:
            raise InputError(f"{shown(name.removesuffix('.qzeros'))} has no qweight", place)
        elif name not in taken:
            tensors[name] = PrimitiveTensor(array, name)
    return tensors


class PackedInt4Tensor(QuantizedTensor):
    """A weight of 4 bits, packed in int32; archives hold its planar form.

    Args:
        qweight, qzeros, scales: the arrays, of shapes that fit.
        groups: the group of each block of inputs, None for ascending ones.
        block_size: the number of inputs that share a scale.
        form: how they are packed.
        name: of the tensor.
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
        """Of the packed arrays."""
        return int(self.qweight.nbytes + self.qzeros.nbytes + self.scales.nbytes)

    def unpack(self) -> BlockAffineLayout:
        """The layout, of planes that are made at each call."""
        zeros = self.qzeros.view(np.uint32)
        if self.form.zero_points_less_one:
            zeros = zeros + np.uint32(_ONES)
        if self.form.method == "gptq":
            storage = _unpacked(np.ascontiguousarray(self.qweight.T))
            zero_points = _unpacked(zeros).T
        else:
            storage = _in_order(_unpacked(self.qweight)).T
            zero_points = _in_order(_unpacked(zeros)).T
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

    @property
    def arrays(self) -> dict[str, Array]:
        """The planes, as of `to_planar`."""
        return self.to_planar().arrays

    @property
    def record(self) -> dict[str, Any]:
        """The record of the planar form."""
        return self.to_planar().record

    @classmethod
    def from_record(
        cls, name: str, record: Mapping[str, Any], arrays: Mapping[str, Array]
    ) -> PackedInt4Tensor:
        """Refuse: archives hold the planar form."""
        raise InputError(f"tensor '{name}' is packed, and archives hold planes")

    def with_name(self, name: str) -> PackedInt4Tensor:
        """The same arrays under another name."""
        return PackedInt4Tensor(
            self.qweight, self.qzeros, self.scales, self.groups, self.block_size, self.form, name
        )


def _tensor(
    layer: str, found: Mapping[str, Array | None], form: PackedInt4Form, place: Place
) -> PackedInt4Tensor:
    qweight, qzeros, scales = found["qweight"], found["qzeros"], found["scales"]
    label = f"layer {shown(layer)}"
    if qweight is None or qzeros is None or scales is None:
        missing = [part for part in ("qzeros", "scales") if found[part] is None]
        raise InputError(f"{label} has a qweight and no {' and no '.join(missing)}", place)
    for part, array in (("qweight", qweight), ("qzeros", qzeros)):
        if array.dtype != np.int32 or array.ndim != 2:
            raise UnsupportedError(
                f"{label} has as its {part} {_text(array)}, expected a matrix of int32", place
            )
    if scales.dtype.name not in _FLOATS or scales.ndim != 2:
        raise InputError(f"{label} has as its scales {_text(scales)}, expected a matrix", place)
    count, outputs = scales.shape
    inputs = qweight.shape[0] * (8 if form.method == "gptq" else 1)
    if not inputs or not outputs or outputs % 8:
        raise InputError(
            f"{label} has {inputs} inputs and {outputs} outputs, expected a multiple of 8", place
        )
    size = min(form.group_size or inputs, inputs)
    if count != -(-inputs // size):
        raise InputError(
            f"{label} has scales of {count} groups, expected {-(-inputs // size)} for {inputs} "
            f"inputs in groups of {size}",
            place,
        )
    wide = (inputs // 8, outputs) if form.method == "gptq" else (inputs, outputs // 8)
    for part, array, shape in (
        ("qweight", qweight, wide),
        ("qzeros", qzeros, (count, outputs // 8)),
    ):
        if array.shape != shape:
            raise InputError(
                f"{label} has as its {part} {_text(array)}, expected {list(shape)} for scales of "
                f"{list(scales.shape)}",
                place,
            )
    groups = _groups(found.get("g_idx"), inputs, size, count, label, place)
    return PackedInt4Tensor(qweight, qzeros, scales, groups, size, form, f"{layer}.weight")


def _groups(
    indices: Array | None, inputs: int, size: int, count: int, label: str, place: Place
) -> Array | None:
    """The group of each block of `size` inputs, None for ascending ones."""
    if indices is None:
        return None
    if indices.dtype.kind not in "iu" or indices.shape != (inputs,):
        raise InputError(
            f"{label} has as its g_idx {_text(indices)}, expected {inputs} integers", place
        )
    if indices.min() < 0 or indices.max() >= count:
        wrong = indices.min() if indices.min() < 0 else indices.max()
        raise InputError(f"{label} has the group {wrong} in its g_idx, of {count} groups", place)
    if not indices.any():
        return None
    blocks = indices[::size].astype(np.int64)
    if (np.repeat(blocks, size)[:inputs] != indices).any():
        raise UnsupportedError(
            f"{label} has groups of inputs that are not consecutive (desc_act); quantize with "
            "desc_act=False or static_groups=True",
            place,
        )
    return None if (blocks == np.arange(count)).all() else blocks


def _unpacked(words: Array) -> Array:
    """The 8 values of each word of the last axis, from the low bits on, as uint8."""
    little = np.ascontiguousarray(words.astype("<u4", copy=False))
    values: Array = unpack_nibbles(little.view(np.uint8))
    return values


def _in_order(values: Array) -> Array:
    """The values of each 8 of the last axis in the order of the outputs, from AWQ's."""
    places = np.argsort(AWQ_ORDER)
    return values.reshape((*values.shape[:-1], -1, 8))[..., places].reshape(values.shape)


def _text(array: Array) -> str:
    return f"{array.dtype.name}{list(array.shape)}"
