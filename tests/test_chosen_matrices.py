"""Contractions with matrices that are chosen among those of a stacked weight, by kernels."""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from ggml_blocks import COMPUTED, activation_block, moderate_blocks
from programs import LONG
from subquant.core._mlir import Value, ir
from subquant.dialects import create_context
from subquant.emit import variables
from subquant.emit.functions import write_function
from subquant.emit.operation import mlir_type, tensor_type
from subquant.emit.parameters import named_parameter
from subquant.emit.trace import traced
from subquant.formats.irpa import Archive
from subquant.layouts import GgmlTensor, InferenceTensor, PrimitiveTensor
from subquant.numerics.block_contraction import round_activations
from subquant.numerics.element_types import AnyArray, ElementType
from subquant.ops.linear import chosen_linear
from subquant.runtime import Device, Executable
from test_packed_parameters import (
    KERNELS,
    compiled,
    loaded,
    plain,
    program,
    some_types,
    type_of,
)

MATRICES, ROWS, COLUMNS, DEPTH = 5, 2, 40, 512
CHOICES = np.array([4, 0, 4, 2], np.int32)


def stack(name: str) -> GgmlTensor:
    random = np.random.default_rng(list(COMPUTED).index(name))
    rows = moderate_blocks(name, (MATRICES * COLUMNS, DEPTH), random)
    return GgmlTensor(rows.raw, name, (MATRICES, COLUMNS, DEPTH), f"{name}.weight")


STACKS = {name: stack(name) for name in COMPUTED}


def multiply(x: AnyArray, choices: AnyArray, weight: InferenceTensor) -> AnyArray:
    return chosen_linear(x, weight, choices)


def inputs(count: int, rows: int = ROWS) -> list[tuple[list[int | None], object]]:
    return [([count, rows, DEPTH], np.float32), ([count], np.int32)]


def expected(tensor: GgmlTensor, x: np.ndarray, choices: np.ndarray, block: int | None = None):
    """The products in f64; with `block`, of activations of 8 bits."""
    if block is not None:
        x = round_activations(x, [1, 1, block])
    weight = tensor.unpack().dequant(np.float64)[np.clip(choices, 0, MATRICES - 1)]
    return np.einsum("bmk,bnk->bmn", x.astype(np.float64), weight)


@pytest.mark.long
@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.share(4)
def test_chosen_matrices_of_every_block_type(
    kernels: str, activations: str, cpu: Device, tmp_path: Path
) -> None:
    names = some_types(activations == "int8")
    tensors = [STACKS[name] for name in names]
    count = len(CHOICES)
    data, archive, text = compiled(
        program(tensors, multiply, inputs(count)), plain(tensors, tmp_path), tmp_path,
        kernels=kernels, activations=activations, fuse_below_macs=0,
    )  # fmt: skip
    assert len(re.findall(r"entry_points = \[@blockwise_gemm", text)) == len(names)
    assert "stablehlo.gather" not in text
    assert all("@" in name for name in Archive(archive))
    x = np.random.default_rng(1).normal(size=(count, ROWS, DEPTH)).astype(np.float32)
    executable = Executable(data, cpu, {"model": archive})
    for name, tensor in zip(names, tensors, strict=True):
        block = activation_block(tensor) if activations == "int8" else None
        reference = expected(tensor, x, CHOICES, block)
        actual = executable[name](x, CHOICES)
        np.testing.assert_allclose(
            actual, reference, rtol=0, atol=1e-5 * np.abs(reference).max(), err_msg=name
        )


@pytest.mark.parametrize(("count", "rows"), [(1, 1), (1, 8), (3, 1), (3, 8), (2, 40)])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.share(10)
def test_numbers_of_batches_and_rows(
    kernels: str, count: int, rows: int, cpu: Device, tmp_path: Path
) -> None:
    """Numbers out of range are clamped, as those of a gather."""
    tensors = [STACKS["Q4_K"]]
    data, archive, text = compiled(
        program(tensors, multiply, inputs(count, rows)), plain(tensors, tmp_path), tmp_path,
        kernels=kernels, activations="int8",
    )  # fmt: skip
    assert "stablehlo.gather" not in text
    x = np.random.default_rng(1).normal(size=(count, rows, DEPTH)).astype(np.float32)
    executable = Executable(data, cpu, {"model": archive})
    for choices in ([2, 4, 0], [99, -1, 1]):
        chosen = np.array(choices[:count], np.int32)
        reference = expected(tensors[0], x, chosen, activation_block(tensors[0]))
        actual = executable["Q4_K"](x, chosen)
        np.testing.assert_allclose(actual, reference, rtol=0, atol=1e-5 * np.abs(reference).max())


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("element", ["bfloat16", "float16"])
def test_chosen_matrices_of_floats(element: str, rows: int, cpu: Device, tmp_path: Path) -> None:
    weight = STACKS["Q8_0"].unpack().dequant().astype(ml_dtypes.bfloat16).astype(element)
    tensor = PrimitiveTensor(weight, "floats.weight")
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            type_ = type_of(weight)
            initial = named_parameter("model", tensor.name, type_)
            variables.define(tensor.name, initial, is_mutable=False)

            def body(values: Sequence[Value]) -> list[Value]:
                return [chosen_linear(*map(traced, values[:1]), loaded(tensor.name, weight),
                                      traced(values[1])).value]  # fmt: skip

            types = [
                tensor_type(shape, mlir_type(ElementType.of_dtype(np.dtype(dtype))))
                for shape, dtype in inputs(len(CHOICES), rows)
            ]
            write_function("main", types, body)
    data, archive, text = compiled(module, plain([tensor], tmp_path), tmp_path)
    assert "stablehlo.gather" not in text
    assert len(re.findall(r"entry_points = \[@blockwise_gemm", text)) == 1
    x = np.random.default_rng(1).normal(size=(len(CHOICES), rows, DEPTH)).astype(np.float32)
    reference = np.einsum("bmk,bnk->bmn", x, weight.astype(np.float64)[CHOICES])
    actual = Executable(data, cpu, {"model": archive})["main"](x, CHOICES)
    np.testing.assert_allclose(actual, reference, rtol=0, atol=1e-5 * np.abs(reference).max())


@pytest.mark.device
@pytest.mark.skipif(not LONG, reason="6 s; kernels of GPUs have tests of their own")
def test_vulkan(vulkan: Device, tmp_path: Path) -> None:
    """Up to eight rows choose a matrix; IREE computes more of them."""
    tensors = [STACKS[name] for name in ("Q4_K", "Q8_0")]
    for rows in (1, 8):
        module = program(tensors, multiply, inputs(len(CHOICES), rows))
        for activations in ("int8", "float") if LONG else ({1: "int8", 8: "float"}[rows],):
            data, archive, text = compiled(
                module, plain(tensors, tmp_path), tmp_path,
                target="vulkan", activations=activations,
            )  # fmt: skip
            assert len(re.findall(r"entry_points = \[@blockwise_gemm", text)) == len(tensors)
            x = np.random.default_rng(1).normal(size=(len(CHOICES), rows, DEPTH))
            executable = Executable(data, vulkan, {"model": archive})
            for name, tensor in zip(("Q4_K", "Q8_0"), tensors, strict=True):
                block = activation_block(tensor) if activations == "int8" else None
                single = x.astype(np.float32)
                reference = expected(tensor, single, CHOICES, block)
                actual = executable[name](single, CHOICES)
                atol = 1e-5 * np.abs(reference).max()
                np.testing.assert_allclose(actual, reference, rtol=0, atol=atol)


def test_programs_without_kernels(cpu: Device, tmp_path: Path) -> None:
    tensors = [STACKS["Q4_0"]]
    module = program(tensors, multiply, inputs(len(CHOICES)))
    data, archive, text = compiled(module, plain(tensors, tmp_path), tmp_path, kernels="none")
    assert "blockwise_gemm" not in text
    x = np.random.default_rng(1).normal(size=(len(CHOICES), ROWS, DEPTH)).astype(np.float32)
    reference = expected(tensors[0], x, CHOICES)
    actual = Executable(data, cpu, {"model": archive})["Q4_0"](x, CHOICES)
    np.testing.assert_allclose(actual, reference, rtol=0, atol=1e-5 * np.abs(reference).max())
