"""Import of an exported program as a module of the ``torch`` dialect, with one function.

torch-mlir's importer of FX graphs translates the operators; the pass ``legalize-torch`` lowers
them to StableHLO. Parameters and constants are constants of the module. A buffer that the program
updates becomes a variable that the executable keeps between calls::

    util.global private mutable @"state.count" = dense<0.0> : tensor<f32>
    func.func @main(%x: !torch.vtensor<[4],f32>) -> !torch.vtensor<[4],f32> {
      %0 = util.global.load @"state.count" : tensor<f32>
      ...
      util.global.store %1, @"state.count" : tensor<f32>

Arguments and results have the names of the Python function's arguments, and of the paths in the
results (``logits``, ``cache.0.key``).
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterator, Mapping
from typing import Any, TypeAlias

import numpy as np
import torch
from torch.export import ExportedProgram
from torch.export.graph_signature import ConstantArgument, InputKind, OutputKind
from torch.utils import _pytree as pytree
from torch_mlir.dialects import torch as _torch_dialect  # noqa: F401  registers its operations
from torch_mlir.extras.fx_importer import (
    TORCH_DTYPE_TO_MLIR_TYPE,
    FxImporter,
    FxImporterHooks,
    GraphNodeImporter,
    InputInfo,
)

from ...core._mlir import Value, ir
from ...emit import variables
from ...emit.operation import value
from ...emit.torch_tensors import as_builtin, as_torch, builtin_tensor_type
from ...errors import SubquantError, UnsupportedError
from ...numerics.element_types import Array
from ...transforms.base import NAMES_ATTRIBUTES
from .complex_programs import with_real_tensors
from .control_flow import ControlFlowImporter, name_graphs
from .decompositions import custom_decompositions, decomposition_table
from .dimension_checks import check_dimensions
from .program_checks import check_program
from .source_lines import (
    NamedLocations,
    drop_frames_of_pytorch,
    place_of_error,
    restore_control_flow_traces,
)

_NUMPY_VIEWS = {
    torch.bfloat16: torch.int16,
    torch.float8_e4m3fn: torch.uint8,
    torch.float8_e4m3fnuz: torch.uint8,
    torch.float8_e5m2: torch.uint8,
    torch.float8_e5m2fnuz: torch.uint8,
}
"""Types that NumPy lacks, with a type of the same width for their bytes."""


def import_programs(programs: Mapping[str, ExportedProgram], module: ir.Module) -> None:
    """Append exported programs to `module` as public functions of the ``torch`` dialect.

    The functions share parameters, and a buffer that one of them updates is one variable.

    Args:
        programs: the programs by the names of their functions, of any dialect of ATen; they are
            decomposed here, and not changed.
        module: a module of a context of `subquant.dialects.create_context`.

    Raises:
        UnsupportedError: an operator or a type that torch-mlir cannot import.
    """
    with warnings.catch_warnings():  # PyTorch copies trees of its own that it calls deprecated
        warnings.filterwarnings("ignore", message=".*LeafSpec", category=FutureWarning)
        table = decomposition_table()
        decomposed = {
            name: _decomposed(each, custom_decompositions(each) | table)
            for name, each in ((name, with_real_tensors(each)) for name, each in programs.items())
        }
    for program in decomposed.values():
        drop_frames_of_pytorch(program)
        check_program(program)
    tensors = _Tensors(module, {key for each in decomposed.values() for key in _updated(each)})
    for name, program in decomposed.items():
        _import_program(program, module, name, tensors)


def _decomposed(program: ExportedProgram, table: Any) -> ExportedProgram:
    try:
        decomposed = program.run_decompositions(table)
    except SubquantError as error:
        raise error.located(place_of_error(error)) from None
    except Exception as error:  # of any class, by the operator
        reason = str(error).partition("\n\nWhile executing")[0].strip() or type(error).__name__
        raise UnsupportedError(
            f"PyTorch cannot decompose the program: {reason}", place_of_error(error)
        ) from error
    restore_control_flow_traces(decomposed, program)
    return decomposed


def _updated(program: ExportedProgram) -> Iterator[_Key]:
    """Return the keys of the buffers that a program updates."""
    for target in program.graph_signature.buffers_to_mutate.values():
        buffers = program.state_dict if target in program.state_dict else program.constants
        yield _key(buffers[target])


def _import_program(
    program: ExportedProgram, module: ir.Module, name: str, tensors: _Tensors
) -> None:
    importer = FxImporter(module=module, hooks=tensors, graph_node_importer_cls=ControlFlowImporter)
    importer._cc = NamedLocations(module.context, py_attr_tracker=importer._py_attr_tracker)
    name_graphs(importer, program.graph_module, name)
    names = _argument_names(program), _result_names(program)
    _drop_constant_results(program)
    with module.context, ir.Location.unknown():
        try:
            function = importer.import_program(program, func_name=name).operation
        except (NotImplementedError, TypeError, AssertionError, KeyError) as error:
            raise UnsupportedError(_reason(error)) from None
        tensors.move_stores(function)
        block = function.regions[0].blocks[0]
        with ir.InsertionPoint.at_block_begin(block):
            check_dimensions(program, dict(zip(names[0], block.arguments, strict=True)))
        for attribute, listed in zip(NAMES_ATTRIBUTES, names, strict=True):
            texts = [ir.StringAttr.get(each) for each in listed]
            function.attributes[attribute] = ir.ArrayAttr.get(texts)


def _reason(error: Exception) -> str:
    """Return why torch-mlir cannot import a program, in a sentence."""
    match = re.search(r"Unimplemented call_function: target=<[\w-]* ?function (\w+)", str(error))
    if match is None:
        return f"torch-mlir cannot import the program: {error}"
    return (
        f"the program computes a dynamic size by {match.group(1)}, which torch-mlir does not "
        "import; compute sizes by sums, products and // of integers"
    )


def _drop_constant_results(program: ExportedProgram) -> None:
    """Drop results that are None, numbers or texts: the caller of the executable knows them."""
    signature, output = program.graph_signature, program.graph.output_node()
    pairs = zip(signature.output_specs, output.args[0], strict=True)
    tensors = [pair for pair in pairs if not isinstance(pair[0].arg, ConstantArgument)]
    signature.output_specs = [spec for spec, _ in tensors]
    output.args = (tuple(each for _, each in tensors),)


def _argument_names(program: ExportedProgram) -> list[str]:
    return [
        each.arg.name
        for each in program.graph_signature.input_specs
        if each.kind == InputKind.USER_INPUT and not isinstance(each.arg, ConstantArgument)
    ]


def _result_names(program: ExportedProgram) -> list[str]:
    """Return the path of each result in the value that the Python function returns."""
    spec = program.call_spec.out_spec
    tree = pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
    paths = [path for path, _ in pytree.tree_flatten_with_path(tree)[0]]
    outputs = [s for s in program.graph_signature.output_specs if s.kind == OutputKind.USER_OUTPUT]
    return [
        ".".join(_text_of(key) for key in path) or "result"
        for path, each in zip(paths, outputs, strict=True)
        if not isinstance(each.arg, ConstantArgument)
    ]


def _text_of(key: Any) -> str:
    """Return an element of a path in a tree: the key of a dict, an index, or an attribute."""
    for field in ("key", "idx", "name"):
        if hasattr(key, field):
            return str(getattr(key, field))
    return str(key)


def _array_of(tensor: torch.Tensor) -> Array:
    """Return the elements of a tensor; of a type that NumPy lacks, their bits."""
    tensor = tensor.detach().cpu()
    if tensor.dtype in _NUMPY_VIEWS:
        tensor = tensor.contiguous().view(_NUMPY_VIEWS[tensor.dtype])
    return np.ascontiguousarray(tensor.numpy())


def _elements_of(tensor: torch.Tensor, *, signless: bool = False) -> ir.DenseElementsAttr:
    """Return the elements of a tensor as an attribute; `signless` for a variable of IREE."""
    element = TORCH_DTYPE_TO_MLIR_TYPE[tensor.dtype]()
    if signless and isinstance(element, ir.IntegerType):
        element = ir.IntegerType.get_signless(element.width)
    type_ = ir.RankedTensorType.get(list(tensor.shape), element)
    elements = _array_of(tensor).reshape(-1)
    codes = elements.view(f"u{elements.itemsize}")  # 0.0 and -0.0 differ
    if (codes == codes[:1]).all():
        elements = elements[:1]  # a buffer of one element is a splat
    return ir.DenseElementsAttr.get(elements.view(np.uint8), type=type_)


def _signless(type_: ir.Type) -> ir.Type:
    """Return the type of a variable of IREE, which has no unsigned integers, for a tensor type."""
    shaped = ir.RankedTensorType(type_)
    element = shaped.element_type
    if not isinstance(element, ir.IntegerType) or element.is_signless:
        return type_
    return ir.RankedTensorType.get(shaped.shape, ir.IntegerType.get_signless(element.width))


def _with_signs_of(tensor: Value, type_: ir.Type) -> Value:
    """Return the bits of a tensor as a type that differs in the signedness of its integers."""
    if tensor.type == type_:
        return tensor
    return value("stablehlo.bitcast_convert", [tensor], type_)


class _Tensors(FxImporterHooks):  # type: ignore[misc]
    """Writer of the tensors of programs: constants, and variables for updated buffers.

    Tensors with the same memory, shape and type are one.
    """

    def __init__(self, module: ir.Module, updated: Collection[_Key]) -> None:
        self._module = module
        self._updated = updated
        self._elements: dict[_Key, tuple[torch.Tensor, ir.DenseElementsAttr]] = {}
        self._variables: dict[_Key, str] = {}
        self._stores: list[ir.Operation] = []

    def resolve_literal(
        self, gni: GraphNodeImporter, literal: Any, info: InputInfo | None
    ) -> Value | None:
        """Write a tensor as a constant; None for other literals, which torch-mlir writes."""
        if not isinstance(literal, torch.Tensor):
            return None
        type_ = gni._cc.tensor_to_vtensor_type(literal)
        attributes = {"value": self._attribute(literal)}
        return value("torch.vtensor.literal", [], type_, attributes)

    def resolve_input(self, gni: GraphNodeImporter, tensor: Any, info: InputInfo) -> Value | None:
        """Write a parameter or buffer: a constant, or the value of a variable if it is updated."""
        if _key(tensor) not in self._updated:
            return self.resolve_literal(gni, tensor, info)
        name, type_ = self._variable(tensor, info), builtin_tensor_type(info.ir_type)
        with ir.InsertionPoint.at_block_begin(gni._b):
            loaded = _with_signs_of(variables.load(name, _signless(type_)), type_)
            return as_torch(loaded, info.ir_type)

    def store_produced_value(
        self, gni: GraphNodeImporter, py_value: Any, produced_ir_value: Value, info: InputInfo
    ) -> None:
        """Write a store of a variable, which `move_stores` moves to the end."""
        produced = as_builtin(produced_ir_value)
        stored = _with_signs_of(produced, _signless(produced.type))
        self._stores.append(variables.store(self._variable(py_value, info), stored))

    def move_stores(self, function: ir.Operation) -> None:
        """Move the stores behind all loads: a buffer may be read after its new value is known."""
        end = list(function.regions[0].blocks[0].operations)[-1]
        for store in self._stores:
            store.move_before(end)
        self._stores.clear()

    def _variable(self, tensor: torch.Tensor, info: InputInfo) -> str:
        """Return the name of a tensor's variable, which is defined on first use."""
        key = _key(tensor)
        if key not in self._variables:
            name = f"state.{info.input_spec.target}"
            while name in self._variables.values():
                name += "_"
            self._variables[key] = name
            with ir.InsertionPoint.at_block_begin(self._module.body):
                variables.define(name, _elements_of(tensor, signless=True))
        return self._variables[key]

    def _attribute(self, tensor: torch.Tensor) -> ir.DenseElementsAttr:
        """Return the elements of a tensor, one attribute for all its uses."""
        key = _key(tensor)
        if key not in self._elements:
            self._elements[key] = tensor, _elements_of(tensor)  # the tensor keeps its memory
        return self._elements[key][1]


_Key: TypeAlias = tuple[int, tuple[int, ...], tuple[int, ...], torch.dtype]
"""The address, shape, strides and type of a tensor: equal for two names of one tensor."""


def _key(tensor: torch.Tensor) -> _Key:
    return tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype
