"""Operators of floats, by torch-mlir's importer and passes, and known values by ONNX's evaluator.

Each node is a model of its own, with the types that its operands have here: so shapes are known,
and what others refuse is refused at that node. All that a program needs are imported at once, as
functions that it calls, because torch-mlir's passes take half a second whatever they work on; then
they are inlined. What has no StableHLO there goes by linalg.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..._mlir import ir, onnx_importer, passmanager, register_torch, translate_errors
from ...emit.operation import create, mlir_type, tensor_type
from ...emit.trace import traced
from ...errors import Place, SubquantError, UnsupportedError
from ...formats.onnx import ELEMENTS, Model, Node, Subgraph, element_of, is_too_large
from ...numerics.element_types import AnyArray
from .call import Operand

__all__ = ["FloatFunctions", "evaluated", "one_node"]

_LARGEST_CONSTANT = 64
"""Elements of an operand that torch-mlir sees: shapes, axes, bounds; others are arguments."""

_PIPELINES = {
    "stablehlo": (
        "torch-onnx-to-torch-backend-pipeline,func.func(convert-torch-to-stablehlo,"
        "chlo-legalize-to-stablehlo,convert-torch-to-arith,canonicalize,cse),"
        "torch-func-backend-type-conversion-for-stablehlo,func.func(canonicalize,"
        "torch-finalizing-backend-type-conversion-for-stablehlo),func.func(canonicalize,"
        "stablehlo-canonicalize-dynamism,canonicalize)"
    ),
    "linalg": (
        "torch-onnx-to-torch-backend-pipeline,func.func(torch-restructure-non-constant-axes,"
        "convert-torch-to-tmtensor,canonicalize,convert-torch-to-linalg,canonicalize,"
        "convert-torch-to-scf,convert-torch-to-arith,convert-torch-to-tensor),"
        "convert-torch-conversion-to-mlprogram,func.func(canonicalize,cse),"
        "torch-func-backend-type-conversion,func.func(canonicalize,"
        "torch-finalizing-backend-type-conversion,canonicalize)"
    ),
}
_TAG = re.compile(r"float\.(\d+)")


def one_node(
    model: Model,
    node: Node,
    operands: Sequence[Operand | None],
    place: Place,
    name: str = "float",
) -> tuple[Any, list[Operand]]:
    """A model of one node, and the operands that are its inputs; the others are its constants.

    Raises:
        UnsupportedError: the types or the shapes of its outputs cannot be inferred.
    """
    from onnx import TensorProto, helper, numpy_helper, shape_inference

    proto = type(node.proto)()
    proto.CopyFrom(node.proto)
    proto.name = name
    del proto.input[:], proto.output[:]
    names: dict[int, str] = {}
    inputs, constants, given = [], [], []
    for operand in operands:
        if operand is None:
            proto.input.append("")
            continue
        if id(operand) not in names:
            own = names[id(operand)] = f"input.{len(names)}"
            if operand.is_known and operand.value.size <= _LARGEST_CONSTANT:
                constants.append(numpy_helper.from_array(np.asarray(operand.value), own))
            else:
                number = TensorProto.DataType.Value(operand.type)
                inputs.append(helper.make_tensor_value_info(own, number, operand.shape))
                given.append(operand)
        proto.input.append(names[id(operand)])
    outputs = []
    for index, output in enumerate(node.outputs):
        proto.output.append(f"output.{index}" if output else "")
        if output:
            outputs.append(helper.make_empty_tensor_value_info(f"output.{index}"))
    graph = helper.make_graph([proto], proto.name, inputs, outputs, constants)
    opsets = [helper.make_opsetid(domain, version) for domain, version in model.opsets.items()]
    whole = helper.make_model(graph, opset_imports=opsets, ir_version=max(model.ir_version, 8))
    try:
        whole = shape_inference.infer_shapes(whole, check_type=True, strict_mode=True,
                                             data_prop=True)  # fmt: skip
    except Exception as error:  # whatever its C++ raises: the node is the file's
        lines = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise UnsupportedError(f"{node} is not valid: {lines[-1] if lines else error}",
                               place) from None  # fmt: skip
    return whole, given


def evaluated(
    model: Model, node: Node, operands: Sequence[Operand | None], place: Place
) -> list[AnyArray]:
    """The results of a node by ONNX's reference evaluator, of known operands."""
    from onnx.reference import ReferenceEvaluator

    whole, given = one_node(model, node, operands, place)
    try:
        with np.errstate(all="ignore"):
            feeds = {
                value.name: operand.value
                for value, operand in zip(whole.graph.input, given, strict=True)
            }
            found = ReferenceEvaluator(whole).run(None, feeds)
    except Exception as error:  # Python's, of a node that is the file's
        raise UnsupportedError(
            f"{node} cannot be computed beforehand: {str(error).splitlines()[0][:200]}", place
        ) from None
    return [np.asarray(each) for each in found]


@dataclass(frozen=True, eq=False)
class _Function:
    node: Node
    model: Any


class FloatFunctions:
    """Functions of floats that a program calls.

    Args:
        model: as read.
        module: of the program.
    """

    def __init__(self, model: Model, module: ir.Module) -> None:
        self._model, self._module = model, module
        self._place = Place(model.file)
        self._functions: dict[int, _Function] = {}

    def call(self, node: Node, operands: Sequence[Operand | None], lift: Any) -> list[AnyArray]:
        """Write a call of a node's function.

        Raises:
            UnsupportedError: at the node.
        """
        if any(isinstance(value, Subgraph) for value in node.attributes.values()):
            raise UnsupportedError(f"{node} has a graph of its own", self._place)
        index = len(self._functions)
        whole, given = one_node(self._model, node, operands, self._place, f"float.{index}")
        for operand in operands:
            if operand is not None and operand.type not in _TYPES:
                raise UnsupportedError(f"{node} of {operand.type} is not lowered", self._place)
        types = [self._type(node, output) for output in whole.graph.output]
        arguments = []
        for operand in given:
            value = operand.value
            if operand.is_known:
                value = lift(np.asarray(value), element_of(operand.type))
            arguments.append(value.value)
        self._functions[index] = _Function(node, whole)
        called = create(
            "func.call",
            arguments,
            [tensor_type(shape, mlir_type(element_of(type_))) for type_, shape in types],
            {"callee": ir.FlatSymbolRefAttr.get(f"float.{index}")},
        )
        return [
            traced(value, element_of(type_))
            for value, (type_, _) in zip(called.results, types, strict=True)
        ]

    def _type(self, node: Node, output: Any) -> tuple[str, list[int]]:
        from onnx import TensorProto

        tensor = output.type.tensor_type
        type_ = str(TensorProto.DataType.Name(tensor.elem_type))
        if type_ not in _TYPES or not tensor.HasField("shape"):
            raise UnsupportedError(f"{node} is not lowered", self._place)
        dims = tensor.shape.dim
        if any(not dim.HasField("dim_value") for dim in dims):
            raise UnsupportedError(
                f"{node} has a result whose shape is not known when it is compiled", self._place
            )
        extents = [int(dim.dim_value) for dim in dims]
        if is_too_large(extents):
            raise UnsupportedError(f"{node} has a result of {extents}", self._place)
        return type_, extents

    def finish(self) -> None:
        """Write the functions, and inline them.

        Raises:
            UnsupportedError: at a node that torch-mlir refuses.
        """
        if not self._functions:
            return
        register_torch(self._module.context)
        by_linalg: set[int] = set()
        done: dict[str, ir.Module] = {}
        while len(done) < len(_PIPELINES):
            for route in _PIPELINES:
                chosen = [
                    function for index, function in self._functions.items()
                    if (index in by_linalg) == (route == "linalg")
                ]  # fmt: skip
                try:
                    done[route] = self._lowered(chosen, _PIPELINES[route])
                except _Refused as refused:
                    if route == "linalg":
                        raise refused.error from None
                    operator = refused.function.node.operator
                    by_linalg |= {
                        index for index, function in self._functions.items()
                        if function.node.operator == operator
                    }  # fmt: skip
                    done.clear()
                    break
        for lowered in done.values():
            for operation in list(lowered.body.operations):
                if operation.operation.name == "func.func":
                    operation.attributes["sym_visibility"] = ir.StringAttr.get("private")
                self._module.body.append(operation)
        with translate_errors(UnsupportedError, "functions cannot be inlined", self._model.file):
            passes = passmanager.PassManager.parse("builtin.module(inline,symbol-dce)")
            passes.run(self._module.operation)

    def _lowered(self, functions: Sequence[_Function], pipeline: str) -> ir.Module:
        """A module of functions after torch-mlir's passes."""
        module = ir.Module.create()
        try:
            for function in functions:
                info = onnx_importer().ModelInfo(function.model)
                importer = onnx_importer().NodeImporter.define_function(
                    info.main_graph, module.operation
                )
                importer.import_all()
            if functions:
                passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module.operation)
        except ir.MLIRError as error:
            said = [each.message for each in error.error_diagnostics]
            text = " ".join(f"{each.location} {each.message}" for each in error.error_diagnostics)
            raise self._refused(function, text, said[0] if said else "a pass failed") from None
        return module

    def _refused(self, last: _Function, text: str, said: str) -> _Refused:
        match = _TAG.search(text)
        function = self._functions.get(int(match.group(1)), last) if match else last
        reason = said.splitlines()[0][:200]
        error = UnsupportedError(
            f"{function.node} is not lowered by torch-mlir: {reason}", self._place
        )
        return _Refused(function, error)


class _Refused(Exception):
    def __init__(self, function: _Function, error: SubquantError) -> None:
        super().__init__(str(error))
        self.function, self.error = function, error


_TYPES = frozenset(
    type_ for type_, element in ELEMENTS.items()
    if element in ("f16", "bf16", "f32", "f64", "i1", "i32", "i64")
)  # fmt: skip
"""What torch-mlir is given: it reads unsigned integers as signed in places."""
