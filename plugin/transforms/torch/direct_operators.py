"""Write operators that torch-mlir 20261001 lacks as operations of StableHLO and CHLO.

Before::

    %y = torch.operator "torch.aten.lgamma"(%x) : (!torch.vtensor<[4],f32>) -> ...
    %z = torch.aten.scatter_reduce.two %v, %int0, %index, %source, %str, %true : ...

After::

    %0 = torch_c.to_builtin_tensor %x : !torch.vtensor<[4],f32> -> tensor<4xf32>
    %1 = chlo.lgamma %0 : tensor<4xf32> -> tensor<4xf32>
    %y = torch_c.from_builtin_tensor %1 : tensor<4xf32> -> !torch.vtensor<[4],f32>
    %2 = "stablehlo.scatter"(...) of maxima, minima or products
"""

from __future__ import annotations

import math
from typing import Any

from ...core._mlir import Operation, Value, ir
from ...emit import stablehlo
from ...emit.operation import parse_attribute, splat, tensor_type, value, with_element
from ...emit.torch_tensors import as_builtin, as_torch, builtin_tensor_type
from ..base import producer_named, walk

_FUNCTIONS = {
    "aten.erfc": "math.erfc",
    "aten.erfinv": "chlo.erf_inv",
    "aten.lgamma": "chlo.lgamma",
    "aten.polygamma": "chlo.polygamma",
    "aten.special_i1e": "chlo.bessel_i1e",
}
_REDUCTIONS = {"amax": "maximum", "amin": "minimum", "prod": "multiply"}
_TRANSFORMS = {"subquant.fft": "FFT", "subquant.irfft": "IRFFT", "subquant.rfft": "RFFT"}
"""Operators of `importers/torch/fourier_operators.py`, with types of ``stablehlo.fft``."""
_SCATTER = "aten.scatter_reduce.two"


def write_operators(module: Operation) -> None:
    """Replace functions, which convert integers first, and scatters of static shapes."""
    for op in list(walk(module)):
        name = _operator(op)
        if name in _FUNCTIONS:
            with ir.InsertionPoint(op), op.location:
                element = builtin_tensor_type(op.results[0].type).element_type
                *orders, tensor = op.operands
                x = stablehlo.convert(as_builtin(tensor), element)
                operands = [*(_order(each, x.type) for each in orders), x]
                _replace(op, value(_FUNCTIONS[name], operands, x.type))
        elif name in _TRANSFORMS:
            with ir.InsertionPoint(op), op.location:
                _replace(op, *_transformed(op, _TRANSFORMS[name]))
        elif name == _SCATTER and (reduction := _reduction(op)) is not None:
            with ir.InsertionPoint(op), op.location:
                _replace(op, _scattered(op, *reduction))


def _operator(op: Operation) -> str:
    """The name of an operator of PyTorch; empty for another operation."""
    name = op.name
    if name == "torch.operator":
        name = ir.StringAttr(op.attributes["name"]).value
    return name.removeprefix("torch.") if name.startswith("torch.") else ""


def _order(number: Value, type_: ir.Type) -> Value:
    """The order of ``polygamma``, for each element."""
    return stablehlo.constant_of(splat(_constant(number, ir.IntegerAttr), type_))


def _replace(op: Operation, *results: Value) -> None:
    for old, new in zip(op.results, results, strict=True):
        old.replace_all_uses_with(as_torch(new, old.type))
    op.erase()


def _transformed(op: Operation, kind: str) -> list[Value]:
    """Transform the last axis of a real tensor, or of its real and imaginary parts."""
    types = [builtin_tensor_type(each.type) for each in op.results]
    if kind == "RFFT":
        operand = as_builtin(op.operands[0])
        length = int(operand.type.shape[-1])
    else:
        components = [as_builtin(each) for each in op.operands[:2]]
        operand = value("stablehlo.complex", components, _complex_of(components[0].type))
        length = int(types[0].shape[-1])
    if kind == "FFT" and _constant(op.operands[2], ir.BoolAttr):
        kind = "IFFT"
    attributes = {
        "fft_type": parse_attribute(f"#stablehlo<fft_type {kind}>"),
        "fft_length": ir.DenseI64ArrayAttr.get([length]),
    }
    if kind == "IRFFT":
        return [value("stablehlo.fft", [operand], types[0], attributes)]
    result = value("stablehlo.fft", [operand], _complex_of(types[0]), attributes)
    return [value(f"stablehlo.{part}", [result], types[0]) for part in ("real", "imag")]


def _complex_of(type_: ir.Type) -> ir.Type:
    return with_element(type_, ir.ComplexType.get(type_.element_type))


def _constant(number: Value, attribute: Any) -> Any:
    return attribute(number.owner.attributes["value"]).value


def _reduction(op: Operation) -> tuple[int, str] | None:
    """The axis, and StableHLO's function; None for another reduction or dynamic shapes."""
    dim = producer_named(op.operands[1], "torch.constant.int")
    name = producer_named(op.operands[4], "torch.constant.str")
    includes = producer_named(op.operands[5], "torch.constant.bool")
    if dim is None or name is None or includes is None:
        return None
    function = _REDUCTIONS.get(ir.StringAttr(name.attributes["value"]).value)
    is_static = all("?" not in str(op.operands[number].type) for number in (0, 2, 3))
    if function is None or not is_static or not ir.BoolAttr(includes.attributes["value"]).value:
        return None
    return ir.IntegerAttr(dim.attributes["value"]).value, function


def _scattered(op: Operation, dim: int, function: str) -> Value:
    """Combine each element of the source with the element that the index assigns to it."""
    values, index, source = (as_builtin(op.operands[number]) for number in (0, 2, 3))
    shape = [int(size) for size in index.type.shape]
    count, rank = math.prod(shape), len(shape)
    wide = index.type.element_type
    components = [
        index if axis == dim % rank else stablehlo.iota(tensor_type(shape, wide), axis)
        for axis in range(rank)
    ]
    columns = [stablehlo.reshape(each, [count, 1]) for each in components]
    indices = stablehlo.concatenate(columns, 1)
    return stablehlo.scatter(values, indices, stablehlo.reshape(source, [count]), function)
