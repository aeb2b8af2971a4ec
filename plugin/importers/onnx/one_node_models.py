"""Models of one node: for ONNX's reference evaluator, and for the bodies of function operators.

Some operators are functions in ONNX's specification: their schema has a body of other operators.
One that has no importer here is replaced by its body, with the meaning of the specification.
The reference evaluator computes nodes whose operands are all constant and that nothing else lowers.

Source: ONNX, "Functions".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ...numerics.element_types import AnyArray
from .call import Call, Operand
from .reading.model import Subgraph, Tensor
from .reading.reader import read_onnx

_MAX_CONSTANT_ELEMENTS = 64
"""Elements of a constant operand that is written into a model (shapes, axes), at most."""


def _one_node(call: Call, operands: Sequence[Operand | None]) -> tuple[Any, list[Operand]]:
    """Return a model of one node, and the operands that are its inputs.

    Constants of few elements are constants of the model.

    Raises:
        UnsupportedError: the types or the shapes of its outputs cannot be inferred.
    """
    from onnx import TensorProto, defs, helper, numpy_helper, shape_inference

    node, model = call.node, call.graph.model
    domain, _, operator = node.operator.rpartition(".")
    attributes = {
        key: numpy_helper.from_array(value.data) if isinstance(value, Tensor) else value
        for key, value in node.attributes.items()
        if not isinstance(value, Subgraph)
    }
    if len(attributes) < len(node.attributes):
        raise call.unsupported("has a graph of its own, and is not lowered")
    proto = helper.make_node(operator, [], [], "node", domain=domain, **attributes)
    names: dict[int, str] = {}
    inputs, constants, arguments = [], [], []
    for operand in operands:
        if operand is None:
            proto.input.append("")
            continue
        if id(operand) not in names:
            own = names[id(operand)] = f"input.{len(names)}"
            if operand.is_constant and operand.value.size <= _MAX_CONSTANT_ELEMENTS:
                constants.append(numpy_helper.from_array(np.asarray(operand.value), own))
            else:
                number = TensorProto.DataType.Value(operand.type)
                inputs.append(helper.make_tensor_value_info(own, number, operand.shape))
                arguments.append(operand)
        proto.input.append(names[id(operand)])
    outputs = []
    for index, output in enumerate(node.outputs):
        proto.output.append(f"output.{index}" if output else "")
        if output:
            outputs.append(helper.make_empty_tensor_value_info(f"output.{index}"))
    typed = [helper.make_tensor_value_info(c.name, c.data_type, c.dims) for c in constants]
    graph = helper.make_graph([proto], "graph", [*inputs, *typed], outputs, constants)
    versions = {**model.opsets, "": defs.onnx_opset_version()}
    opsets = [helper.make_opsetid(name, version) for name, version in versions.items()]
    whole = helper.make_model(graph, opset_imports=opsets, ir_version=max(model.ir_version, 10))
    try:
        whole = shape_inference.infer_shapes(whole, check_type=True, strict_mode=True,
                                             data_prop=True)  # fmt: skip
    except Exception as error:  # whatever its C++ raises: the node is the file's
        messages = [line.strip() for line in str(error).splitlines() if line.strip()]
        raise call.unsupported(f"is not valid: {messages[-1] if messages else error}") from None
    return whole, arguments


def evaluated(call: Call, operands: Sequence[Operand | None]) -> list[AnyArray]:
    """Return the results of a node by ONNX's reference evaluator; all operands are constant.

    Raises:
        UnsupportedError: the evaluator refuses the node.
    """
    from onnx.reference import ReferenceEvaluator

    whole, arguments = _one_node(call, operands)
    try:
        with np.errstate(all="ignore"):
            feeds = {
                value.name: operand.value
                for value, operand in zip(whole.graph.input, arguments, strict=False)
            }
            results = ReferenceEvaluator(whole).run(None, feeds)
    except Exception as error:  # Python's, of a node that is the file's
        problem = f"cannot be computed beforehand: {str(error).splitlines()[0][:200]}"
        raise call.unsupported(problem) from None
    return [np.asarray(each) for each in results]


def function_body(
    call: Call, operands: Sequence[Operand | None]
) -> tuple[Subgraph, list[Operand]] | None:
    """The body and arguments of a function operator; None for others, or bodies that lack types.

    Raises:
        UnsupportedError: the node is not valid.
    """
    from onnx import defs, inliner

    domain, _, operator = call.node.operator.rpartition(".")
    try:
        schema = defs.get_schema(operator, defs.onnx_opset_version(), domain)
    except defs.SchemaError:
        return None
    if not schema.has_function and not schema.has_context_dependent_function:
        return None
    whole, arguments = _one_node(call, operands)
    try:
        inlined = inliner.inline_selected_functions(
            whole, [(domain, operator)], inline_schema_functions=True
        )
    except RuntimeError:  # it needs the types of optional inputs that are absent
        return None
    if any(each.op_type == operator and each.domain == domain for each in inlined.graph.node):
        return None  # its body depends on types that it does not have here
    for output in inlined.graph.output:
        if not output.type.HasField("tensor_type"):
            return None
    body = read_onnx(inlined.SerializeToString(), call.graph.model.file)
    outputs = tuple(each.name for each in body.outputs)
    inputs = tuple(each.name for each in body.inputs)
    nodes = tuple(replace(each, path=f"{call.node}, its body: ") for each in body.nodes)
    return Subgraph(inputs, outputs, body.constants, nodes), arguments
