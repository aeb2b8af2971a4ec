"""Write tests/data/rounded_activations.npz: activations rounded by the libraries of checkpoints.

Run by hand, in an environment with torch 2.13, compressed-tensors 0.20 and torchao 0.18::

    python scripts/make_activation_data.py

The file has ``x``, f32 ``[6, 128]`` with a row of zeros and a row with a great element, and the
rounded ``x`` by the names of `SCHEMES`.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import fake_quantize
from compressed_tensors.quantization.utils import compute_dynamic_scales_and_zp
from torchao.quantization import PerRow
from torchao.quantization.quantize_.workflows.int8.int8_tensor import Int8Tensor

OUTPUT = Path(__file__).parent.parent / "tests" / "data" / "rounded_activations.npz"
GLOBAL_SCALE = 37.5
SCALE, ZERO_POINT = 0.0371, -5

SCHEMES = {
    "int8_token": {"num_bits": 8, "type": "int", "strategy": "token", "dynamic": True},
    "int8_token_asymmetric": {
        "num_bits": 8, "type": "int", "strategy": "token", "dynamic": True, "symmetric": False,
    },
    "int4_token": {"num_bits": 4, "type": "int", "strategy": "token", "dynamic": True},
    "fp8_token": {"num_bits": 8, "type": "float", "strategy": "token", "dynamic": True},
    "fp8_group": {
        "num_bits": 8, "type": "float", "strategy": "group", "group_size": 64, "dynamic": True,
    },
    "int8_tensor_static": {"num_bits": 8, "type": "int", "strategy": "tensor"},
    "int8_tensor_static_asymmetric": {
        "num_bits": 8, "type": "int", "strategy": "tensor", "symmetric": False,
    },
    "fp8_tensor_static": {"num_bits": 8, "type": "float", "strategy": "tensor"},
    "nvfp4": {
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
        "dynamic": "local", "scale_dtype": torch.float8_e4m3fn,
    },
    "mxfp4": {
        "num_bits": 4, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True,
        "scale_dtype": torch.uint8,
    },
    "mxfp8": {
        "num_bits": 8, "type": "float", "strategy": "group", "group_size": 32, "dynamic": True,
        "scale_dtype": torch.uint8,
    },
    "int8_group_asymmetric": {
        "num_bits": 8, "type": "int", "strategy": "group", "group_size": 32, "dynamic": True,
        "symmetric": False,
    },
    "fp4_group_global": {
        "num_bits": 4, "type": "float", "strategy": "tensor_group", "group_size": 16,
        "dynamic": "local",
    },
}  # fmt: skip


def rounded(x: torch.Tensor, name: str) -> np.ndarray:
    """Round by compressed-tensors."""
    args = QuantizationArgs(**SCHEMES[name])
    has_factor = args.strategy == "tensor_group"
    factor = torch.tensor([GLOBAL_SCALE]) if has_factor else None
    if args.dynamic:
        module = torch.nn.Linear(1, 1)
        batch = x[None] if args.strategy == "token" else x
        scale, zero_point = compute_dynamic_scales_and_zp(batch, args, module, factor)
        result = fake_quantize(batch, scale, zero_point, args, factor)
    else:
        is_asymmetric = not args.symmetric
        zero_point = torch.tensor([ZERO_POINT]) if is_asymmetric else None
        result = fake_quantize(x, torch.tensor([SCALE]), zero_point, args)
    return result.reshape(x.shape).float().numpy()


def main() -> None:
    """Write the file."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn((6, 128), generator=generator)
    x[1] = 0
    x[2, 5] = -300.0
    arrays = {name: rounded(x, name) for name in SCHEMES}
    arrays["torchao_int8_row"] = Int8Tensor.from_hp(x, PerRow()).dequantize().float().numpy()
    np.savez_compressed(OUTPUT, x=x.numpy(), **arrays)


if __name__ == "__main__":
    main()
