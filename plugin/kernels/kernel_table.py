"""Kernels as IREE takes them: executables whose code is written already, and calls of them.

A kernel is a function of *bindings*, which are pieces of memory that it reads as memrefs, and of
extents that are known at run time only. It runs once for each *workgroup*, in any order.

Before lowering by IREE, a module holds::

    stream.executable private @block_product {
      stream.executable.export public @block_product workgroups() -> (index, index, index) { ... }
      builtin.module {
        func.func @block_product(%0: !stream.binding, %1: !stream.binding) { ... }
      }
    }
    ...
    %y = flow.dispatch @block_product::@block_product(%x) : (tensor<4xf32>) -> tensor<4xf32>
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..core._mlir import Operation, Value, ir
from ..emit import Formula, scalar
from ..emit.linalg import Extent, constant_index
from ..emit.operation import constants_of, create, index_type, parse_attribute, tensor_type, value
from ..emit.vectors import memref_type, quotient, subspan_type, workgroup_id
from ..numerics.element_types import Array, ElementType
from .pack.parameters import LOAD, current, named_parameter

__all__ = [
    "MAX_LARGE_WORKGROUPS",
    "Binding",
    "Kernel",
    "KernelCall",
    "KernelTable",
    "items_per_workgroup",
    "workgroup_range",
    "workgroups_per_tile",
]

_TAKEN = 8
MAX_LARGE_WORKGROUPS = 2 * _TAKEN - 1
"""Of a kernel, at most, where they are large: threads take them one by one.

IREE 3.13 has a thread take one workgroup, or eight where there are as many as eight for each thread
(``iree_hal_cmd_dispatch_tiles_per_reservation``). Of 16, two threads would have a half each, and
the one that wakes first would wait for the other.
"""
_MANY_WORKGROUPS = 16 * _TAKEN
"""Of a kernel, at least, where there are more: they are taken in as many parts."""
_LEAST_PRODUCTS = 1 << 16
"""Of one of so many, which costs a thread 0.1 us."""
_SHARED_PRODUCTS, _PRODUCTS_OF_A_START = 1 << 19, 1 << 15
"""Of a kernel that several workgroups share, at least; and how many take as long as to begin one.

With one thread that takes 0.02 us, with two of a team 0.1 (Zen 4).
"""
_WEIGHT = 4
"""How much more what is done again counts than that threads wait."""
_ALIKE = 4
"""Several workgroups are a multiple of this, where they are as many."""


def items_per_workgroup(parts: int, products: int, calls: int = 1) -> int:
    """Return how many parts of what a kernel does a workgroup has.

    There are `MAX_LARGE_WORKGROUPS` or fewer of them, or `_MANY_WORKGROUPS` or more.

    Args:
        parts: as many as can be done apart.
        products: about how many products of 8 bits take as long as a part.
        calls: as many times the workgroups there are.
    """
    many = parts * calls // _MANY_WORKGROUPS
    if many * products >= _LEAST_PRODUCTS:
        return many
    return -(-parts // max(1, MAX_LARGE_WORKGROUPS // calls))


def workgroups_per_tile(products: int, tiles: int = 1, halo_macs: int = 0) -> int:
    """Return how many workgroups share each of some tiles, with so many products of 8 bits in all.

    Of `n` workgroups, each of which costs a time `c`, the last keeps threads waiting for up to a
    part ``1 / n`` of all the time ``t``: ``n * c + t / n`` is least for ``n = sqrt(t / c)``. Two or
    four threads have as many each, where there are four or more.

    Args:
        products: in all, of 8 bits.
        tiles: how many there are.
        halo_macs: the products that take as long as what each workgroup does that others do,
            too. One thread does it for nothing, so it counts more than the wait.
    """
    if products < _SHARED_PRODUCTS:
        return 1
    most = math.isqrt(products // (_PRODUCTS_OF_A_START + _WEIGHT * halo_macs))
    share, alike = max(1, most // tiles), _ALIKE // math.gcd(tiles, _ALIKE)
    while alike > share:
        alike //= 2
    return share // alike * alike


def workgroup_range(number: Formula, workgroups: int, parts: int) -> tuple[Formula, Formula]:
    """Return the first part that a workgroup has, and the one after its last.

    Args:
        number: of the workgroup.
        workgroups: how many there are.
        parts: as many as they share.
    """
    first, behind = (quotient(each * parts, workgroups) for each in (number, number + 1))
    return first, behind


@dataclass(frozen=True)
class Binding:
    """How a kernel reads a piece of memory.

    Attributes:
        shape: None for the extent that is known at run time only.
        element: of the memref.
        lanes: how many elements are read together, with threads: an element of the memref is a
            vector of so many.
    """

    shape: tuple[int | None, ...]
    element: ElementType
    lanes: int = 1


@dataclass(frozen=True)
class Kernel:
    """What a kernel is.

    Attributes:
        name: of its executable, where no other has it.
        bindings: what it reads and writes.
        workgroups: how many there are.
        body: called with the memrefs, with the number of a workgroup, and with the extent that is
            known at run time only (the number where none is), writes what it does.
        m: the extent that None stands for in shapes, where it is known.
        threads: of a workgroup, on devices that have such. Memrefs have one axis there, and there
            are as many workgroups along a further axis of the grid as it takes for all rows, the
            first: those that read the same weight run one after another, and find it in a cache.
        mr: with threads, how many rows a workgroup has.
        macs: how many products of 8 bits take about as long as a call; None where that is not
            known: the kernel is called by itself then.
    """

    name: str
    bindings: Sequence[Binding]
    workgroups: int
    body: Callable[[Sequence[Value], Value, Extent], None]
    m: int | None
    threads: int | None = None
    mr: int = 1
    macs: int | None = None


@dataclass(frozen=True, eq=False)
class KernelCall:
    """A call of a kernel.

    Attributes:
        operation: the ``flow.dispatch``.
        key: equal for kernels that are equal.
        kernel: the kernel.
        executable: its code.
    """

    operation: Operation
    key: object
    kernel: Kernel
    executable: Operation

    @property
    def operands(self) -> list[Value]:
        """The tensors that a call without a workload has, for the bindings before results."""
        count = len(self.kernel.bindings) - len(self.operation.results)
        return list(self.operation.operands)[:count]

    @property
    def function(self) -> Operation:
        """What is run for each workgroup: it begins with a memref for each binding."""
        [inner] = [
            each.operation
            for each in self.executable.regions[0].blocks[0].operations
            if each.operation.name == "builtin.module"
        ]
        return inner.regions[0].blocks[0].operations[0].operation


class KernelTable:
    """The kernels of a module: equal ones are one executable.

    Args:
        module: an operation with one block, to which executables are added.

    Attributes:
        calls: those that were written.
    """

    def __init__(self, module: Operation) -> None:
        self._module = module
        self._executables: dict[object, Operation] = {}
        self.calls: list[KernelCall] = []
        block = module.regions[0].blocks[0]
        self._taken = {
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
        """Call a kernel.

        Args:
            key: equal for kernels that are equal.
            kernel: the kernel, whose last bindings are results.
            operands: tensors, for the bindings before.
            results: types of tensors.
            m: the extent that None stands for in shapes.
        """
        if key not in self._executables:
            name = self._free_name(kernel.name)
            self._executables[key] = self._define(name, kernel)
        executable = self._executables[key]
        name = executable.attributes["sym_name"].value
        dynamic = [] if isinstance(rows, int) else [rows]
        dims = [[rows] * sum(t.is_dynamic_dim(i) for i in range(t.rank)) for t in _types(operands)]
        result_dims = [[rows] * sum(t.is_dynamic_dim(i) for i in range(t.rank)) for t in results]
        argument_dims = [dim for each in dims for dim in each]
        of_results = [dim for each in result_dims for dim in each]
        given = [*operands, *dynamic]
        workload = dynamic if kernel.threads is not None else []
        counts = [len(workload), len(given), len(argument_dims), len(of_results)]
        symbol = ir.Attribute.parse(f"[@{name}::@{name}]")
        attributes = {
            "entry_points": symbol,
            "operandSegmentSizes": parse_attribute(f"array<i32: {', '.join(map(str, counts))}>"),
        }
        operation = create(
            "flow.dispatch",
            [*workload, *given, *argument_dims, *of_results],
            results,
            attributes,
        )
        self.calls.append(KernelCall(operation, key, kernel, executable))
        return list(operation.results)

    def parameter(self, name: str, compute: Callable[[], Array], element: ir.Type) -> Value:
        """Load a parameter that the compilation writes, once for all that read it.

        Args:
            name: of the parameter.
            compute: returns its elements.
            element: their type.
        """
        parameters = current()
        assert parameters is not None  # or nothing would be computed of one
        if name not in parameters.written:
            array = compute()
            parameters.write(name, array)
            symbol = self._free_name("parameter")
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
        """Have calls of one kernel with the same operands be one.

        Activations that several products read are rounded once.
        """
        calls = {call.operation: call for call in self.calls}
        items_per_workgroup: list[KernelCall] = []
        for block in dict.fromkeys(operation.block for operation in calls):
            known: dict[object, Operation] = {}
            for each in [each.operation for each in block.operations]:
                if each not in calls:
                    continue
                first = known.setdefault((calls[each].key, tuple(each.operands)), each)
                if first is not each:
                    for old, new in zip(each.results, first.results, strict=True):
                        old.replace_all_uses_with(new)
                    items_per_workgroup.append(calls[each])
                    each.erase()
        self.erase_calls(items_per_workgroup)

    def erase_calls(self, calls: Sequence[KernelCall]) -> None:
        """Erase executables that these called, and no others do."""
        forgotten = dict.fromkeys(calls)
        self.calls = [call for call in self.calls if call not in forgotten]
        kept = {call.executable for call in self.calls}
        keys = {each.executable: each.key for each in forgotten if each.executable not in kept}
        for key in keys.values():
            self._executables.pop(key).erase()

    def _free_name(self, wanted: str) -> str:
        name, number = wanted, 0
        while name in self._taken:
            number += 1
            name = f"{wanted}_{number}"
        self._taken.add(name)
        return name

    def _define(self, name: str, kernel: Kernel) -> Operation:
        outer = self._module.regions[0].blocks[0]
        symbol = ir.StringAttr.get(name)
        with ir.InsertionPoint.at_block_begin(outer):
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
        counted = export.regions[0].blocks.append(*workload)
        with ir.InsertionPoint(counted):
            one = constant_index(1)
            grid = [constant_index(kernel.workgroups), one, one]
            if kernel.threads is not None:
                rows = counted.arguments[0] if workload else kernel.m
                grid = [_groups(rows, kernel.mr), grid[0], one]
            create("stream.return", grid)
        with ir.InsertionPoint(inner.regions[0].blocks.append()):
            binding = ir.Type.parse("!stream.binding")
            types = [*[binding] * len(kernel.bindings), *dynamic]
            attributes = {
                "sym_name": symbol,
                "function_type": ir.TypeAttr.get(ir.FunctionType.get(types, [])),
            }
            if kernel.threads is not None:
                attributes["translation_info"] = parse_attribute(_THREADS.format(kernel.threads))
            function = create("func.func", attributes=attributes, regions=1)
        block = function.regions[0].blocks.append(*types)
        with ir.InsertionPoint(block), constants_of(block):
            arguments = list(block.arguments)
            rows = arguments.pop() if dynamic else kernel.m
            zero = constant_index(0)
            if kernel.threads is not None:
                # Where pieces begin inside of a buffer, IREE 3.13 has types for a place that is
                # computed, and for one that is known, but not for both in one kernel. There is one
                # workgroup along the last axis of the grid: its number is 0.
                zero = (scalar(workgroup_id(2)) * _ALIGNMENT).value
            memories = []
            for given, each in zip(arguments, kernel.bindings, strict=True):
                shape = [kernel.m if extent is None else extent for extent in each.shape]
                missing = [rows] * sum(extent is None for extent in shape)
                if kernel.threads is not None:
                    length = math.prod(extent for extent in shape if extent is not None)
                    length //= each.lanes
                    missing = [(scalar(rows) * length).value for rows in missing]
                    shape = [None if missing else length]
                type_ = memref_type(shape, each.element)
                if kernel.threads is not None:
                    type_ = subspan_type(shape[0], each.element, each.lanes)
                memories.append(value("stream.binding.subspan", [given, zero, *missing], type_))
            kernel.body(memories, workgroup_id(0 if kernel.threads is None else 1), rows)
            create("func.return")
        return executable


_ALIGNMENT = 64
"""In bytes, of pieces of memory."""
_THREADS = (
    "#iree_codegen.translation_info<pipeline = "
    '#iree_codegen.pass_pipeline<"iree-codegen-gpu-distribute-scf-for"> '
    "workgroup_size = [{}, 1, 1]>"
)
"""So many threads run the code, which is translated as it is, but for the loop over threads."""


def _groups(rows: Extent, at_once: int) -> Value:
    """How many groups of so many there are."""
    if isinstance(rows, int):
        return constant_index(-(-rows // at_once))
    return quotient(scalar(rows) + (at_once - 1), at_once).value


def _types(values: Sequence[Value]) -> list[ir.RankedTensorType]:
    return [each.type for each in values]
