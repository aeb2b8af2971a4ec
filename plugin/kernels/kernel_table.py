"""The kernels of a module, and their calls.

A call is a ``flow.dispatch`` of an executable (`subquant.kernels.kernel`)::

    %y = flow.dispatch @block_product::@block_product(%x) : (tensor<4xf32>) -> tensor<4xf32>
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core._mlir import Operation, Value, ir
from ..emit.linalg import Extent
from ..emit.operation import create, parse_attribute, tensor_type, value
from ..numerics.element_types import Array
from .kernel import Kernel, define_executable
from .parameters import LOAD, ModuleGlobals, named_parameter


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A call of a kernel.

    Attributes:
        operation: the ``flow.dispatch``.
        key: equal for equal kernels.
        kernel: the kernel.
        executable: the ``stream.executable``.
    """

    operation: Operation
    key: object
    kernel: Kernel
    executable: Operation

    @property
    def operands(self) -> list[Value]:
        """The tensors of the bindings before the results."""
        count = len(self.kernel.bindings) - len(self.operation.results)
        return list(self.operation.operands)[:count]

    @property
    def function(self) -> Operation:
        """The ``func.func`` of a workgroup."""
        [inner] = [
            each.operation
            for each in self.executable.regions[0].blocks[0].operations
            if each.operation.name == "builtin.module"
        ]
        return inner.regions[0].blocks[0].operations[0].operation


class KernelTable:
    """The kernels of a module; equal kernels share an executable.

    Args:
        module: an operation with one block, to which executables are added.
        module_globals: its globals.

    Attributes:
        calls: the calls that were emitted.
    """

    def __init__(self, module: Operation, module_globals: ModuleGlobals) -> None:
        self._module, self.module_globals = module, module_globals
        self._executables: dict[object, Operation] = {}
        self.calls: list[KernelCall] = []
        block = module.regions[0].blocks[0]
        self._symbols = {
            op.attributes["sym_name"].value
            for op in block.operations
            if "sym_name" in op.attributes
        }

    def call(
        self,
        key: object,
        kernel: Kernel,
        operands: Sequence[Value],
        results: Sequence[ir.Type],
        rows: Extent,
    ) -> list[Value]:
        """Emit a call of a kernel.

        Args:
            key: equal for equal kernels.
            kernel: the kernel, whose last bindings are results.
            operands: tensors, for the bindings before the results.
            results: the types of the results.
            rows: the size of the dimension that is None in shapes.
        """
        if key not in self._executables:
            symbol = self._unique_symbol(kernel.name)
            self._executables[key] = define_executable(self._module, symbol, kernel)
        executable = self._executables[key]
        symbol = executable.attributes["sym_name"].value
        dynamic = [] if isinstance(rows, int) else [rows]
        operand_dims = [rows] * _dynamic_dims([operand.type for operand in operands])
        result_dims = [rows] * _dynamic_dims(results)
        arguments = [*operands, *dynamic]
        workload = dynamic if kernel.threads is not None else []
        counts = [len(workload), len(arguments), len(operand_dims), len(result_dims)]
        attributes = {
            "entry_points": ir.Attribute.parse(f"[@{symbol}::@{symbol}]"),
            "operandSegmentSizes": parse_attribute(f"array<i32: {', '.join(map(str, counts))}>"),
        }
        operation = create(
            "flow.dispatch",
            [*workload, *arguments, *operand_dims, *result_dims],
            results,
            attributes,
        )
        self.calls.append(KernelCall(operation, key, kernel, executable))
        return list(operation.results)

    def parameter(self, name: str, compute: Callable[[], Array], element: ir.Type) -> Value:
        """Load a parameter that this compilation writes, once for all its readers.

        Args:
            name: the name of the parameter.
            compute: returns its elements.
            element: its element type.
        """
        parameters = self.module_globals.parameters
        assert parameters is not None  # else no value has a packed name
        if name not in parameters.written:
            array = compute()
            parameters.write(name, array)
            symbol = self._unique_symbol("parameter")
            type_ = tensor_type(array.shape, element)
            parameters.written[name] = symbol, type_
            with ir.InsertionPoint.at_block_begin(self._module.regions[0].blocks[0]):
                create(
                    "util.global",
                    attributes={
                        "sym_name": ir.StringAttr.get(symbol),
                        "sym_visibility": ir.StringAttr.get("private"),
                        "type": ir.TypeAttr.get(type_),
                        "initial_value": named_parameter(parameters.scope, name, type_),
                    },
                )
        symbol, type_ = parameters.written[name]
        return value(LOAD, [], type_, {"global": ir.FlatSymbolRefAttr.get(symbol)})

    def merge_equal_calls(self) -> None:
        """Merge calls of one kernel with the same operands.

        So activations that several GEMMs read are quantized once.
        """
        calls = {call.operation: call for call in self.calls}
        merged: list[KernelCall] = []
        for block in dict.fromkeys(operation.block for operation in calls):
            first_calls: dict[object, Operation] = {}
            for operation in [each.operation for each in block.operations]:
                if operation not in calls:
                    continue
                key = calls[operation].key, tuple(operation.operands)
                first = first_calls.setdefault(key, operation)
                if first is not operation:
                    for old, new in zip(operation.results, first.results, strict=True):
                        old.replace_all_uses_with(new)
                    merged.append(calls[operation])
                    operation.erase()
        self.erase_calls(merged)

    def erase_calls(self, calls: Sequence[KernelCall]) -> None:
        """Forget calls, and erase the executables that no other call has."""
        erased = dict.fromkeys(calls)
        self.calls = [call for call in self.calls if call not in erased]
        used = {call.executable for call in self.calls}
        keys = {each.executable: each.key for each in erased if each.executable not in used}
        for key in keys.values():
            self._executables.pop(key).erase()

    def _unique_symbol(self, name: str) -> str:
        symbol, number = name, 0
        while symbol in self._symbols:
            number += 1
            symbol = f"{name}_{number}"
        self._symbols.add(symbol)
        return symbol


def _dynamic_dims(types: Sequence[ir.RankedTensorType]) -> int:
    return sum(type_.is_dynamic_dim(axis) for type_ in types for axis in range(type_.rank))
