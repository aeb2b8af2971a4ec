"""Sharktank's side of `test_sharktank_archives.py`; run by hand where sharktank 3.8 is installed.

    pip install torch sharktank wave-lang
    python peer.py write written.irpa                    # a data set of each kind of tensor
    python peer.py dequantize written.irpa dequantized.irpa
    gzip -9n written.irpa dequantized.irpa

The two files beside this one were made so. With SUBQUANT_SHARKTANK_PYTHON set to a Python that has
sharktank, the tests also let it open files that subquant wrote.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from sharktank.types import (
    BlockScaledI4Layout,
    BlockScaledLayout,
    Dataset,
    DefaultPrimitiveTensor,
    DynamicScaledQuantizer,
    PlanarQuantizedTensor,
    QuantizedTensor,
    StaticScaledQuantizer,
    SuperBlockOffsetScaled_4_6_Layout,
    TensorScaledLayout,
    Theta,
)

PROPERTIES = {
    "hparams": {"block_count": 2, "rope.freq_base": 10000.5, "name": "größe", "flag": True},
    "meta": {"_class_name": "Model", "list": [1, 2.5, "three", None]},
}
DTYPES = (
    *("float32", "float64", "float16", "bfloat16"),
    *("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"),
    *("int8", "int16", "int32", "int64", "uint8", "bool", "complex64", "complex128"),
)


def tensors() -> list[Any]:
    """Return tensors whose values float16 holds exactly, since sharktank computes in it."""
    samples: list[Any] = []
    for name in DTYPES:
        data = torch.arange(6).reshape(2, 3).to(getattr(torch, name))
        samples.append(DefaultPrimitiveTensor(name=f"primitive.{name}", data=data))
    samples.append(DefaultPrimitiveTensor(name="primitive.scalar", data=torch.tensor(3.5)))
    samples.append(DefaultPrimitiveTensor(name="primitive.empty", data=torch.zeros(0, 4)))
    scales = torch.tensor([0.25, 0.5, 1.0, 2.0], dtype=torch.float16).reshape(2, 2, 1)
    offsets = torch.tensor([-1.0, 2.0, 0.5, 7.0], dtype=torch.float16).reshape(2, 2, 1)
    signed = (torch.arange(2 * 2 * 32) * 37 % 251 - 125).to(torch.int8).reshape(2, 2, 32)
    nibbles = (torch.arange(2 * 2 * 16) * 29 % 256).to(torch.uint8).reshape(2, 2, 16)
    layouts = {
        "block": BlockScaledLayout([2, 64], scales, signed),
        "block_offset": BlockScaledLayout([2, 64], scales, signed, m=offsets),
        "nibbles": BlockScaledI4Layout([2, 64], scales, nibbles, signed=True),
        "nibbles_offset": BlockScaledI4Layout([2, 64], scales, nibbles, m=offsets, signed=False),
        "tensor": TensorScaledLayout(shape=[2, 2, 32], d=torch.tensor(0.5), qs=signed),
        "axis": TensorScaledLayout(
            shape=[2, 2, 32],
            d=torch.tensor([0.5, 0.25]).reshape(2, 1, 1),
            qs=signed,
            m=torch.tensor([3.0, -4.0]).reshape(2, 1, 1),
            dtype=torch.float16,
        ),
        "super_block": super_block(),
    }
    for name, layout in layouts.items():
        samples.append(
            PlanarQuantizedTensor(name=f"layer.0.{name}", shape=layout.shape, layout=layout)
        )
    samples += [
        StaticScaledQuantizer(
            name="quantizer.tensor", scale=torch.tensor(2.0), dtype=torch.int8,
            offset=torch.tensor(3, dtype=torch.int8),
        ),
        StaticScaledQuantizer(
            name="quantizer.axis", scale=torch.tensor([2.0, 4.0, 0.5]), axis=1, dtype=torch.int8,
        ),
        DynamicScaledQuantizer(name="quantizer.dynamic", dtype=torch.int8),
    ]  # fmt: skip
    return samples


def super_block() -> SuperBlockOffsetScaled_4_6_Layout:
    """Return the planes of two rows of one super-block; its minimums have all 6 bits."""
    two_bits = (torch.arange(2 * 2) * 71 % 256 + 27).to(torch.uint8).reshape(2, 1, 2)
    low = (torch.arange(2 * 4) * 57 % 256 + 18).to(torch.uint8).reshape(2, 1, 4)
    return SuperBlockOffsetScaled_4_6_Layout(
        [2, 256],
        d=torch.tensor([[[0.5]], [[0.25]]], dtype=torch.float16),
        dmin=torch.tensor([[[0.5]], [[0.25]]], dtype=torch.float16),
        sb_scales_high=two_bits,
        sb_scales_low=low,
        sb_mins_high=~two_bits,
        sb_mins_low=~low,
        qs=(torch.arange(2 * 128) * 73 % 256).to(torch.uint8).reshape(2, 1, 8, 16),
    )


def dequantized(source: str) -> Dataset:
    """Return the tensors of a file as primitive tensors: float32 values of quantized ones."""
    dataset = Dataset.load(source)
    values = []
    for tensor in dataset.root_theta.flatten().values():
        if isinstance(tensor, QuantizedTensor):
            data = tensor.unpack().dequant().to(torch.float32)
            values.append(DefaultPrimitiveTensor(name=tensor.name, data=data.reshape(tensor.shape)))
        elif not isinstance(tensor, DynamicScaledQuantizer):  # it has no array
            values += [
                DefaultPrimitiveTensor(name=name, data=data.clone())
                for name, data in tensor.subtensors.items()
            ]
    return Dataset(dataset.properties, Theta(values))


if __name__ == "__main__":
    command, *files = sys.argv[1:]
    if command == "write":
        Dataset(PROPERTIES, Theta(tensors())).save(files[0])
    else:
        dequantized(files[0]).save(files[1])
