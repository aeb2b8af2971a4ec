"""Keep torch-mlir from evaluating arithmetic of constants; its folders take integers as unsigned.

torch-mlir 20261001 evaluates ``div`` of the constants 127 and -2 as 0, ``remainder`` of -128.0 and
5 as -3 or by a crash, ``sub.Scalar`` of 127.0 and -128 as ``127 - (2**64 - 128)``, and
``lt.Scalar`` of 2.0 and 1 as true, because it takes the bits of a float for an integer; ``sign``
of 2.5 is -1, and that of several numbers ends the process. The first
operand is hidden behind a barrier while its passes run, and `constant_arithmetic` evaluates the
operation. Before::

    %0 = torch.aten.div.Tensor_mode %x, %y, %str : ...

After, until the barriers are removed::

    %a = torch_c.to_builtin_tensor %x : !torch.vtensor<[4],si32> -> tensor<4xi32>
    %b = stablehlo.optimization_barrier %a {subquant.hidden} : tensor<4xi32>
    %c = torch_c.from_builtin_tensor %b : tensor<4xi32> -> !torch.vtensor<[4],si32>
    %0 = torch.aten.div.Tensor_mode %c, %y, %str : ...

Source: ``AtenDivTensorModeOp::fold``, ``AtenRemainderTensorOp::fold`` and ``naryFolderHelper`` in
``lib/Dialect/Torch/IR/TorchOps.cpp`` of torch-mlir.
"""

from __future__ import annotations

import re

from ...core._mlir import Operation, ir
from ...emit.operation import create, value
from ...emit.torch_tensors import as_torch
from ..base import named, producer_named

_DIVISIONS = tuple(
    f"torch.aten.{name}"
    for name in (
        *("div.Tensor_mode", "div.Scalar_mode", "floor_divide", "floor_divide.Scalar"),
        *("remainder.Tensor", "remainder.Scalar"),
    )
)
_COMPARISONS = tuple(f"torch.aten.{name}.Scalar" for name in ("eq", "ne", "lt", "le", "gt", "ge"))
_SUMS = tuple(
    f"torch.aten.{name}"
    for name in (
        *("add.Scalar", "sub.Scalar", "rsub.Scalar", "mul.Scalar", "add.Tensor", "sub.Tensor"),
    )
)
"""Operations that lose the sign of a number."""
_TENSOR = re.compile(r"!torch\.vtensor<\[([\d,?]*)\],(?:si|ui|i|f|bf)(\d+)>")
_ATTRIBUTE = "subquant.hidden"


def hide_constants(module: Operation) -> None:
    """Write a barrier between the first operand and each operation that is evaluated wrongly."""
    for op in named(module, (*_DIVISIONS, *_COMPARISONS, *_SUMS, "torch.aten.sign")):
        operand = op.operands[0]
        type_ = _builtin_type(str(operand.type))
        if type_ is None or (op.name in _SUMS and not _has_negative_number(op)):
            continue
        with ir.InsertionPoint(op), op.location:
            tensor = value("torch_c.to_builtin_tensor", [operand], type_)
            hidden = create(
                "stablehlo.optimization_barrier", [tensor], [type_], {_ATTRIBUTE: ir.UnitAttr.get()}
            ).results[0]
            op.operands[0] = as_torch(hidden, operand.type)


def _has_negative_number(op: Operation) -> bool:
    constants = [producer_named(each, "torch.constant.int") for each in op.operands]
    return any(
        ir.IntegerAttr(each.attributes["value"]).value < 0 for each in constants if each is not None
    )


def show_constants(module: Operation) -> None:
    """Remove the barriers of `hide_constants`."""
    for op in named(module, ["stablehlo.optimization_barrier"]):
        if _ATTRIBUTE in op.attributes:
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()


def _builtin_type(text: str) -> ir.Type | None:
    """Return the tensor type of a ``vtensor`` with signless elements; None without a shape."""
    match = _TENSOR.fullmatch(text)
    if match is None:
        return None
    element = re.search(r",(?:s|u)?([ibf]\w*)>", text)
    assert element is not None
    shape = "".join(f"{size}x" for size in match.group(1).split(",") if size)
    return ir.Type.parse(f"tensor<{shape}{element.group(1)}>")
