"""Kernels as IREE executables whose code is emitted here.

A kernel is a function of *bindings*, which it reads and writes as memrefs, and of a dimension that
may be dynamic. It runs once for each *workgroup*, in any order::

    stream.executable private @block_product {
      stream.executable.export public @block_product workgroups() -> (index, index, index) { ... }
      builtin.module {
        func.func @block_product(%0: !stream.binding, %1: !stream.binding) { ... }
      }
    }
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core._mlir import Operation, Value, ir
from ..emit import scalar
from ..emit.linalg import Extent, constant_index
from ..emit.operation import constants_of, create, index_type, parse_attribute, value
from ..emit.vectors import memref_type, quotient, subspan_type, workgroup_id
from ..numerics.element_types import ElementType

_BINDING_ALIGNMENT_BYTES = 64
_GPU_TRANSLATION = (
    "#iree_codegen.translation_info<pipeline = "
    '#iree_codegen.pass_pipeline<"iree-codegen-gpu-distribute-scf-for"> '
    "workgroup_size = [{}, 1, 1]>"
)
"""IREE's pipeline of GPU kernels: it only distributes the loop over a workgroup's threads."""


@dataclass(frozen=True)
class Binding:
    """A buffer of a kernel.

    Attributes:
        shape: its shape; None is the dynamic dimension.
        element: its element type.
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
        workgroups: the number of workgroups.
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
    body: Callable[[Sequence[Value], Value, Extent], None]
    m: int | None
    threads: int | None = None
    mr: int = 1
    macs: int | None = None


def define_executable(module: Operation, name: str, kernel: Kernel) -> Operation:
    """Emit the executable of a kernel at the beginning of a module.

    Args:
        module: an operation with one block.
        name: the symbol of the executable, of its export and of its function.
        kernel: the kernel.
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
            grid = [_row_groups(rows, kernel.mr), grid[0], one]
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


def _row_groups(rows: Extent, mr: int) -> Value:
    """The number of groups of ``mr`` rows."""
    if isinstance(rows, int):
        return constant_index(-(-rows // mr))
    return quotient(scalar(rows) + (mr - 1), mr).value
