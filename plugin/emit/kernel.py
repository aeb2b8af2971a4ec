"""Kernels as IREE executables whose code is emitted here, and the calls of a module's kernels.

A kernel is a function of *bindings*, which it reads and writes as memrefs, and of a dimension that
may be dynamic. It runs once for each *workgroup*, in any order::

    stream.executable private @blockwise_gemm {
      stream.executable.export public @blockwise_gemm workgroups() -> (index, index, index) { ... }
      builtin.module {
        func.func @blockwise_gemm(%0: !stream.binding, %1: !stream.binding) { ... }
      }
    }

A call is a ``flow.dispatch`` of an executable::

    %y = flow.dispatch @blockwise_gemm::@blockwise_gemm(%x) : (tensor<4xf32>) -> tensor<4xf32>
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core._mlir import Operation, Value, ir
from ..numerics.array_pieces import ArrayPieces
from ..numerics.element_types import AnyArray, ElementType
from .constant_values import is_constant, materialize, to_storage
from .linalg import DimSize, constant_index
from .operation import (
    attributes_of,
    constants_of,
    create,
    index_type,
    mlir_type,
    parse_attribute,
    tensor_type,
    value,
)
from .parameters import LOAD, ModuleGlobals, named_parameter
from .values import scalar
from .vectors import memref_type, quotient, subspan_type, workgroup_id

_BINDING_ALIGNMENT_BYTES = 64
"""The alignment of a binding in bytes."""
_GPU_TRANSLATION = (
    "#iree_codegen.translation_info<pipeline = "
    '#iree_codegen.pass_pipeline<"iree-codegen-gpu-distribute-scf-for"> '
    "workgroup_size = [{}, 1, 1]>"
)
"""IREE's pipeline of GPU kernels: it only distributes the loop over a workgroup's threads."""
MAX_WORKGROUPS = 512
"""Kernels of equal workgroups have about as many at most: 64 threads then share them evenly."""
_MIN_MACS_PER_WORKGROUP = 1 << 15
"""A workgroup has at least this many int8 MACs, where it may have several items."""
_MIN_MACS_TO_SHARE = 1 << 19
"""A kernel with fewer int8 MACs has one workgroup for each tile."""
MACS_PER_WORKGROUP_START = 1 << 15
"""Starting a workgroup takes as long as this many int8 MACs: 0.1 us with two threads (Zen 4)."""
_HALO_WEIGHT = 4
"""Halo recomputation counts this many times as much as threads that wait."""
_WORKGROUP_MULTIPLE = 16
"""Counts of this size or more are rounded to a multiple: 2, 4, 8 or 16 threads share it evenly."""
_MAX_WORKGROUPS_ROUNDED_DOWN = 8
"""Few workgroups are rounded down, as each start then takes a larger part of the time."""


@dataclass(frozen=True)
class Binding:
    """A buffer of a kernel.

    Attributes:
        shape: its shape; None is the dynamic dimension.
        lanes: on GPUs, the lanes of the vectors that are the elements of the memref.
    """

    shape: tuple[int | None, ...]
    element: ElementType
    lanes: int = 1


@dataclass(frozen=True)
class Kernel:
    """A kernel, before it becomes an executable.

    Attributes:
        name: of its executable, where the name is free.
        bindings: operands, then results.
        body: emits the code of a workgroup; it is called with the memrefs, the workgroup's number,
            and the dynamic dimension (its size where it is static).
        m: the size of the dimension that is None in shapes; None where it is dynamic.
        threads: of a workgroup, on GPUs; None on CPUs. Memrefs of GPU kernels have one axis. The
            rows of M are a further axis of the grid, its first: workgroups that read the same
            weight run one after another, and find it in a cache.
        mr: on GPUs, the rows of M of a workgroup.
        macs: the int8 MACs that take about as long as a call; None where that is unknown, which
            excludes the kernel from dispatch fusion.
    """

    name: str
    bindings: Sequence[Binding]
    workgroups: int
    body: Callable[[Sequence[Value], Value, DimSize], None]
    m: int | None
    threads: int | None = None
    mr: int = 1
    macs: int | None = None

    def takes_at_most(self, macs: int) -> bool:
        """True if a call is known to take as long as a number of int8 MACs, or less."""
        return self.macs is not None and self.macs <= macs


def define_executable(module: Operation, name: str, kernel: Kernel) -> Operation:
    """Emit the executable of a kernel at the beginning of a module.

    Args:
        module: an operation with one block.
        name: the symbol of the executable, of its export and of its function.
    """
    symbol = ir.StringAttr.get(name)
    with ir.InsertionPoint.at_block_begin(module.regions[0].blocks[0]):
        attributes = {"sym_name": symbol, "sym_visibility": ir.StringAttr.get("private")}
        executable = create("stream.executable", attributes=attributes, regions=1)
    with ir.InsertionPoint(executable.regions[0].blocks.append()):
        attributes = {
            "sym_name": symbol,
            "sym_visibility": ir.StringAttr.get("public"),
            "function_ref": ir.FlatSymbolRefAttr.get(name),
        }
        export = create("stream.executable.export", attributes=attributes, regions=1)
        inner = create("builtin.module", regions=1)
        create("stream.executable.end")
    dynamic = [] if kernel.m is not None else [index_type()]
    workload = dynamic if kernel.threads is not None else []
    grid_block = export.regions[0].blocks.append(*workload)
    with ir.InsertionPoint(grid_block):
        one = constant_index(1)
        grid = [constant_index(kernel.workgroups), one, one]
        if kernel.threads is not None:
            rows = grid_block.arguments[0] if workload else kernel.m
            if isinstance(rows, int):
                groups = constant_index(-(-rows // kernel.mr))
            else:
                groups = quotient(scalar(rows) + (kernel.mr - 1), kernel.mr).value
            grid = [groups, grid[0], one]
        create("stream.return", grid)
    with ir.InsertionPoint(inner.regions[0].blocks.append()):
        binding_type = ir.Type.parse("!stream.binding")
        types = [*[binding_type] * len(kernel.bindings), *dynamic]
        attributes = {
            "sym_name": symbol,
            "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
        }
        if kernel.threads is not None:
            translation = _GPU_TRANSLATION.format(kernel.threads)
            attributes["translation_info"] = parse_attribute(translation)
        function = create("func.func", attributes=attributes, regions=1)
    block = function.regions[0].blocks.append(*types)
    with ir.InsertionPoint(block), constants_of(block):
        _emit_function(kernel, list(block.arguments))
    return executable


def _emit_function(kernel: Kernel, arguments: list[Value]) -> None:
    rows = kernel.m if kernel.m is not None else arguments.pop()
    offset = constant_index(0)
    if kernel.threads is not None:
        # IREE 3.13 has types for offsets of subspans that are computed, and for constant ones, but
        # not for both in one kernel. The grid's last axis has one workgroup: its number is 0.
        offset = (scalar(workgroup_id(2)) * _BINDING_ALIGNMENT_BYTES).value
    memories = []
    for argument, binding in zip(arguments, kernel.bindings, strict=True):
        shape = [kernel.m if size is None else size for size in binding.shape]
        dims = [rows] * sum(size is None for size in shape)
        if kernel.threads is not None:
            length = math.prod(size for size in shape if size is not None) // binding.lanes
            dims = [(scalar(dim) * length).value for dim in dims]
            type_ = subspan_type(None if dims else length, binding.element, binding.lanes)
        else:
            type_ = memref_type(shape, binding.element)
        memories.append(value("stream.binding.subspan", [argument, offset, *dims], type_))
    kernel.body(memories, workgroup_id(0 if kernel.threads is None else 1), rows)
    create("func.return")


# -- workgroups of CPU kernels ---------------------------------------------------------------------


def items_per_workgroup(items: int, macs: int, calls: int = 1) -> int:
    """Return a workgroup's items: as few as are worth its start, for many threads to share.

    Args:
        macs: the int8 MACs that take about as long as an item.
        calls: the workgroups are multiplied by this number.
    """
    return max(-(-_MIN_MACS_PER_WORKGROUP // macs), items * calls // MAX_WORKGROUPS, 1)


def workgroups_per_tile(
    macs: int, tiles: int = 1, halo_macs: int = 0, start_macs: int = MACS_PER_WORKGROUP_START
) -> int:
    """Return the number of workgroups that share the output pixels of each weight tile.

    With ``n`` workgroups that each cost a time ``c``, threads wait for the last one for up to
    ``1 / n`` of the whole time ``t``: ``n * c + t / n`` is least for ``n = sqrt(t / c)``.

    Args:
        macs: the int8 MACs of all tiles.
        halo_macs: the int8 MACs that take as long as the halo that each workgroup recomputes.
        start_macs: the int8 MACs that take as long as the start of a workgroup.
    """
    if macs < _MIN_MACS_TO_SHARE:
        return 1
    workgroups = math.isqrt(macs // (start_macs + _HALO_WEIGHT * halo_macs))
    share = max(1, (workgroups + tiles // 2) // tiles)
    multiple = _WORKGROUP_MULTIPLE // math.gcd(tiles, _WORKGROUP_MULTIPLE)
    while multiple > share:
        multiple //= 2
    if share * tiles > _MAX_WORKGROUPS_ROUNDED_DOWN:
        share += multiple // 2
    return share // multiple * multiple


# -- calls -----------------------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A call of a kernel: the ``flow.dispatch`` of a ``stream.executable``.

    The key is equal for equal kernels.
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

    Executables are added to the one block of `module`. `calls` has the calls that were emitted.
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
        rows: DimSize,
    ) -> list[Value]:
        """Emit a call of a kernel.

        Args:
            key: equal for equal kernels.
            kernel: the kernel, whose last bindings are results.
            operands: tensors, for the bindings before the results.
            rows: the size of the dimension that is None in shapes.
        """
        if key not in self._executables:
            symbol = self._unique_symbol(kernel.name)
            self._executables[key] = define_executable(self._module, symbol, kernel)
        executable = self._executables[key]
        symbol = executable.attributes["sym_name"].value
        dynamic = [] if isinstance(rows, int) else [rows]
        operand_dims, result_dims = (
            [rows]
            * sum(type_.is_dynamic_dim(axis) for type_ in types for axis in range(type_.rank))
            for types in ([operand.type for operand in operands], results)
        )
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

    def prepacked(
        self,
        sources: Sequence[Value],
        label: str,
        layout: object,
        pack: Callable[[], AnyArray | ArrayPieces],
        element: ElementType,
    ) -> Value:
        """Return a prepacked operand: a constant, a parameter that is written, or a traced result.

        A constant operand is packed by the compiler. Where it is computed from parameters that the
        compiler reads (`subquant.emit.parameters`), the result is a parameter of another archive,
        written and loaded once for all its readers. All other operands are traced: the pack
        functions emit operations that the program executes.

        Args:
            sources: tensors that it is computed from.
            label: legible summary of the layout, for the name of a parameter.
            layout: all else that it depends on, see `ModuleGlobals.packed_name`.
            pack: returns the elements; those of a large tensor in pieces.
            element: their type.
        """
        parameters, name = self.module_globals.parameters, None
        if parameters and all(is_constant(source, self.module_globals) for source in sources):
            name = self.module_globals.packed_name(sources, label, layout)
        if parameters is None or name is None:
            packed = pack()
            array = packed.whole() if isinstance(packed, ArrayPieces) else packed
            return materialize(array, element)
        if name not in parameters.written:
            packed = pack()
            pieces = packed if isinstance(packed, ArrayPieces) else ArrayPieces.of(packed)
            parameters.write(name, pieces.map(lambda piece: to_storage(piece, element)))
            symbol = self._unique_symbol("parameter")
            type_ = tensor_type(pieces.shape, mlir_type(element))
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
        """Merge calls of one kernel with the same operands, and equal matrices of joined axes.

        So activations that several GEMMs read are quantized once.
        """
        calls = {call.operation: call for call in self.calls}
        merged: list[KernelCall] = []
        for block in dict.fromkeys(operation.block for operation in calls):
            first_calls: dict[object, Operation] = {}
            # The hash of an operation depends on its operands, which merging changes.
            operations = [each.operation for each in block.operations]
            for operation, call in [(each, calls.get(each)) for each in operations]:
                if call is not None:
                    kind = call.key
                elif operation.name == "tensor.collapse_shape":
                    attributes = tuple(attributes_of(operation).items())
                    kind = operation.results[0].type, attributes
                else:
                    continue
                first = first_calls.setdefault((kind, *operation.operands), operation)
                if first is not operation:
                    for old, new in zip(operation.results, first.results, strict=True):
                        old.replace_all_uses_with(new)
                    merged += [] if call is None else [call]
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
