"""ONNX models for tests, and what computes them here: NumPy, and devices."""

from __future__ import annotations

import functools
import importlib
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.dialects import create_context
from subquant.importers.onnx import Interpreter, write_module
from subquant.importers.onnx.reading.reader import read_onnx
from subquant.runtime import Device, Executable

Array = np.ndarray[Any, Any]

MICROSOFT = "com.microsoft"
OPSET = 21


def node(operator: str, inputs: Sequence[str], outputs: Sequence[str], **attributes: Any) -> Any:
    """A node; of ONNX Runtime's operators if its name says so."""
    domain, _, name = operator.rpartition(".")
    return helper.make_node(name, inputs, outputs, name=f"the {name}", domain=domain, **attributes)


def ms(name: str) -> str:
    """An operator of ONNX Runtime."""
    return f"{MICROSOFT}.{name}"


def end(name: str, described: Any) -> onnx.ValueInfoProto:
    """An input or a result.

    It is described by ONNX's name of the type and the shape; by the name or a dtype for any shape;
    by an array, for its type and shape; by None, for any type.
    """
    if described is None:
        return helper.make_empty_tensor_value_info(name)
    if isinstance(described, (np.ndarray, np.generic)):
        described = described.dtype, described.shape
    type_, shape = described if isinstance(described, tuple) else (described, None)
    is_dtype = isinstance(type_, np.dtype)
    number = helper.np_dtype_to_tensor_dtype(type_) if is_dtype else getattr(TensorProto, type_)
    return helper.make_tensor_value_info(name, number, shape)


def model(
    nodes: Sequence[Any], inputs: Mapping[str, Any], outputs: Mapping[str, Any],
    constants: Mapping[str, Any], opset: int = OPSET,
) -> onnx.ModelProto:  # fmt: skip
    """A model, whose inputs and outputs are described as those of `end`."""
    tensors = []
    for name, value in constants.items():
        is_tensor = isinstance(value, TensorProto)
        tensor = value if is_tensor else numpy_helper.from_array(np.asarray(value), name)
        tensor.name = name
        tensors.append(tensor)
    ends = [[end(*each) for each in named.items()] for named in (inputs, outputs)]
    graph = helper.make_graph(list(nodes), "graph", *ends, tensors)
    opsets = [helper.make_opsetid("", opset), helper.make_opsetid(MICROSOFT, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


@functools.cache
def node_tests(*files: str, operators: frozenset[str] | None = None) -> dict[str, Any]:
    """ONNX's own tests with a node of some operators, by name; without, all that were collected.

    Those of all operators take 6 seconds to collect: its files of tests have one operator each.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # warnings of the test cases
        from onnx.backend.test.case import node as package

        for file in files:
            importlib.import_module(f"{package.__name__}.{file}")
    return {
        case.name.removeprefix("test_"): case
        for case in package._NodeTestCases
        if operators is None or any(each.op_type in operators for each in case.model.graph.node)
    }


def plain(value: Any) -> Array:
    """A tensor as programs have it: a byte for narrow integers, codes of small floats."""
    if isinstance(value, TensorProto):
        value = numpy_helper.to_array(value)
    array = np.asarray(value)
    name = array.dtype.name
    if name.startswith(("float4_", "float6_", "float8_")):
        return array.view(np.uint8)
    if name in ("int2", "int4"):
        return array.astype(np.int8)
    return array.astype(np.uint8) if name in ("uint2", "uint4") else array


def text_of(proto: onnx.ModelProto) -> str:
    """The program of a model."""
    return str(write_module(read_onnx(proto.SerializeToString()), create_context()))


def every_tensor(proto: onnx.ModelProto, feeds: Mapping[str, Array]) -> dict[str, Array]:
    """The tensors that NumPy computes, by name."""
    tensors: dict[str, Array] = {}
    Interpreter(read_onnx(proto.SerializeToString())).run(
        feeds, lambda name, value: tensors.update({name: np.asarray(value)})
    )
    return tensors


def computed(proto: onnx.ModelProto, device: Device | None, *inputs: Array) -> list[Array]:
    """The results of a model on a device, or by NumPy where that is None."""
    actual = read_onnx(proto.SerializeToString())
    if device is None:
        feeds = {each.name: array for each, array in zip(actual.inputs, inputs, strict=True)}
        with np.errstate(all="ignore"):
            return [np.asarray(each) for each in Interpreter(actual).run(feeds)]
    options = CompileOptions(
        target="vulkan" if device.is_vulkan else "llvm-cpu",
        vulkan_target=device.vulkan_target if device.is_vulkan else "generic",
    )
    function = Executable(
        compile_to_bytes(write_module(actual, create_context()), options), device
    ).main
    return arrays_of(function(*inputs))


def arrays_of(results: Any) -> list[Array]:
    """The results of a function that returns one or several."""
    several = results if isinstance(results, (list, tuple)) else [results]
    return [np.asarray(each) for each in several]
