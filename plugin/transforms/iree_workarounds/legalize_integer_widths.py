"""``legalize-integer-widths``: integers in widths that the target loads and stores.

Symptom: IREE refuses i4 tensors of an odd element count ("does not have integral number of total
bytes") or dynamic shape, i2, and some other widths between the powers of two (all targets);
emulated narrow vector loads are wrong on Vulkan devices without 8- and 16-bit storage.
Cause: IREE 3.13 packs i4 and i2, and has no layout for other widths.
Test: `test_i4_tensors_of_odd_size_need_containers` in tests/test_iree_limits.py.

Every integer of another width gets the next container (i4 is stored in i8), module-wide:
signatures, constants, regions. A contained value stays sign-extended, so signed operations need no
change; the others mask or sign-extend as needed. With ``containers=32`` the pass serves Vulkan
devices without 8- and 16-bit storage.

Before::

    %q = arith.trunci %i : i32 to i4
    %u = arith.extui %q : i4 to i32

After::

    %t = arith.trunci %i : i32 to i8     // then shifted left and right by 4: sign-extended
    %m = arith.andi %t, 15 : i8
    %u = arith.extui %m : i8 to i32
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...core.option_fields import Containers
from ...dialects.dense import array_of_dense, dense_of_array
from ...dialects.quant import element_type
from ...emit import linalg
from ...emit.operation import number_of, with_element
from ...errors import Remark, UnsupportedError
from ..base import (
    UNCHANGED,
    ModulePass,
    TypePredicate,
    convert_future,
    convert_signature,
    named,
    operation_of,
    producer_of,
    replace_uses,
    walk,
)
from .explicit_loops import is_implicit_loop, make_loops_explicit


def _operations(by_dialect: dict[str, str]) -> frozenset[str]:
    """Operation names with their dialects."""
    items = by_dialect.items()
    return frozenset(f"{dialect}.{name}" for dialect, names in items for name in names.split())


_RIGHT_ON_SIGN_EXTENDED = _operations({
    "arith": "select extsi sitofp fptosi index_cast andi ori xori cmpi maxsi minsi remsi shrsi",
    "iree_tensor_ext": "compute_barrier.start",
    "stablehlo": "all_gather all_to_all async_done async_start case collective_broadcast "
    "collective_permute dynamic_reshape get_dimension_size if infeed "
    "optimization_barrier outfeed recv return scatter send sort while",
    "util": "global.load global.store optimization_barrier",
})  # fmt: skip
"""Operations that are right on sign-extended values, with a sign-extended result."""

_DIALECTS_THAT_MOVE = (
    *("builtin.", "cf.", "func.", "linalg.", "scf.", "tensor."),
    *(linalg.BARRIER, linalg.TIE_SHAPE),
)
"""Prefixes of operations that do not compute."""
_WRAPPING = _operations({
    "arith": "addi subi muli shli divsi floordivsi ceildivsi index_cast",
    "math": "absi",
})  # fmt: skip
_UNSIGNED = _operations({"arith": "maxui minui divui remui shrui uitofp index_castui extui"})
_FIRST_UNSIGNED_PREDICATE = 6
"""The first unsigned predicate of MLIR's ``arith.cmpi``: ult, ule, ugt, uge follow in order."""


@dataclass(frozen=True)
class LegalizeIntegerWidths(ModulePass):
    """Store integers of other widths in containers.

    Options:
        containers: the narrowest width that the target loads and stores: 8 (8, 16, 32 and 64 are
            used), or 32.
    """

    containers: Containers = 8

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Convert `module`.

        Raises:
            UnsupportedError: an unsupported operation has integers of another width.
        """
        legalizer = _Legalizer(self.containers)
        operations = walk(module, in_kernels=False)
        if self.containers == 32:
            _check_32bit(operations)
        values = legalizer.values_to_contain(operations)
        affected = _users_and_producers(values)
        if any(map(is_implicit_loop, affected)):
            make_loops_explicit(operations, legalizer.needs_container)
            operations = walk(module, in_kernels=False)
            values = legalizer.values_to_contain(operations)
            affected = _users_and_producers(values)
        is_changed = legalizer.declarations(module)
        for value in values:  # all types first: a block may use a value of a later one
            legalizer.contain(value)
        names = {op.name for op in affected if not op.name.startswith(_DIALECTS_THAT_MOVE)}
        # First results identify operations: the hash of an operation changes with its types.
        affected_results = {op.results[0] for op in affected if len(op.results)}
        for op in operations:
            # By name first, in 0.1 us: few are left, and a look-up of a result takes 0.5.
            if op.name in names and (not len(op.results) or op.results[0] in affected_results):
                legalizer.fix(op)
        return None if values or is_changed else UNCHANGED


def _users_and_producers(values: Iterable[Value]) -> list[Operation]:
    """The operations that have `values` as results or operands, with repetitions."""
    operations: list[Operation] = []
    for value in values:
        if (producer := producer_of(value)) is not None:
            operations.append(producer)
        operations += [use.owner.operation for use in value.uses]
    return operations


class _Legalizer:
    """Conversion of operations in program order, with the original width of each contained value.

    Every value's type is changed in place; operations that only move data, or compute the same on
    sign-extended integers, are then right as they are.
    """

    def __init__(self, narrowest: int) -> None:
        self._narrowest = narrowest
        self._width_of: dict[Value, int] = {}
        self._containers: dict[ir.Type, tuple[int, ir.Type]] = {}
        self._dense: dict[ir.Attribute, ir.Attribute] = {}  # writing one takes 40 us
        self.needs_container = TypePredicate(lambda type_: self._contained_width(type_) is not None)

    # -- types ------------------------------------------------------------------------------------

    def _container(self, width: int) -> int:
        if width == 1 or width > 64:
            return width
        return next(w for w in (8, 16, 32, 64) if w >= max(width, self._narrowest))

    def _contained_width(self, type_: ir.Type) -> int | None:
        """The width of a type's integers if they need a container, else None."""
        element = element_type(type_)
        if not isinstance(element, ir.IntegerType):
            return None
        return element.width if self._container(element.width) != element.width else None

    def _contained_type(self, type_: ir.Type) -> ir.Type:
        width = self._contained_width(type_)
        if width is None:
            return type_
        return with_element(type_, ir.IntegerType.get_signless(self._container(width)))

    # -- operations -------------------------------------------------------------------------------

    def values_to_contain(self, operations: Iterable[Operation]) -> list[Value]:
        """Return the results and block arguments that need a container."""
        return [value for _, values in self.needs_container.among(operations) for value in values]

    def declarations(self, module: Operation) -> bool:
        """Change the types in attributes and futures; return True if there are any."""
        is_changed = False
        for op in named(module, ["func.func", "stablehlo.async_start", "util.global"]):
            with op.location:
                if op.name == "func.func":
                    is_changed |= convert_signature(op, self._contained_type)
                elif op.name == "util.global":
                    is_changed |= self._global(op)
                else:
                    convert_future(op.results[0], self._contained_type)
                    is_changed = True
        return is_changed

    def contain(self, value: Value) -> None:
        """Change the type of a result or block argument to its container."""
        type_ = value.type
        if type_ not in self._containers:
            self._containers[type_] = self._container_of(value)
        self._width_of[value], container = self._containers[type_]
        value.set_type(container)

    def fix(self, op: Operation) -> None:
        """Fix an operation whose operands or results changed their type."""
        results = (self._width_of.get(value) for value in op.results)
        result = next((width for width in results if width), None)
        sources = (self._width_of.get(value) for value in op.operands)
        source = next((width for width in sources if width), None)
        if result is None and source is None:
            return
        with op.location:
            self._fix(op, source, result)

    def _container_of(self, value: Value) -> tuple[int, ir.Type]:
        """The width of a value's integers, and the type that contains them."""
        type_ = value.type
        width = self._contained_width(type_)
        assert width is not None  # the caller passes only values that need a container
        op = operation_of(value)
        if isinstance(type_, ir.ShapedType) and not isinstance(
            type_, (ir.RankedTensorType, ir.UnrankedTensorType)
        ):
            raise UnsupportedError(
                f"has a value of type '{type_}', which the target does not load and store; "
                "expected a tensor or a scalar",
                op,
            )
        with op.location:
            return width, self._contained_type(type_)

    def _global(self, op: Operation) -> bool:
        type_ = op.attributes["type"].value
        if not self.needs_container(type_):
            return False
        if "initial_value" in op.attributes:
            initial = op.attributes["initial_value"]
            if not isinstance(initial, ir.DenseElementsAttr):
                raise UnsupportedError(
                    f"has the type '{type_}', which the target does not load and store, and a "
                    f"value from elsewhere, '{initial}'; store it in a wider type",
                    op,
                )
            element = element_type(self._contained_type(type_))
            op.attributes["initial_value"] = dense_of_array(array_of_dense(initial), element)
        op.attributes["type"] = ir.TypeAttr.get(self._contained_type(type_))
        return True

    def _fix(self, op: Operation, source: int | None, result: int | None) -> None:
        """Fix an operation whose contained operands and results have these original widths."""
        name = op.name
        if name == "arith.constant":
            self._constant(op)
        elif name == "arith.trunci":
            self._truncate(op, result)
        elif name in ("arith.extsi", "arith.extui"):
            self._extend(op, source, result)
        elif name in _UNSIGNED or (
            name == "arith.cmpi" and op.attributes["predicate"].value >= _FIRST_UNSIGNED_PREDICATE
        ):
            self._mask_operands(op)
            if result:
                self._sign_extend(op, result)
        elif result and (name in _WRAPPING or name == "arith.fptoui"):
            self._sign_extend(op, result)
        elif name not in _RIGHT_ON_SIGN_EXTENDED and not name.startswith(_DIALECTS_THAT_MOVE):
            width = source or result
            raise UnsupportedError(
                f"uses integers of {width} bits, which the target does not load and store; "
                "expected an arith, linalg, tensor, scf or func operation",
                op,
            )

    def _constant(self, op: Operation) -> None:
        attribute, type_ = op.attributes["value"], op.results[0].type
        if isinstance(attribute, ir.IntegerAttr):
            narrow = ir.IntegerType.get_signless(self._width_of[op.results[0]])
            signed = number_of(narrow, int(attribute.value)).value
            op.attributes["value"] = number_of(type_, signed)
        elif isinstance(attribute, ir.DenseElementsAttr):
            if attribute not in self._dense:
                contained = dense_of_array(array_of_dense(attribute), type_.element_type)
                self._dense[attribute] = contained
            op.attributes["value"] = self._dense[attribute]
        else:
            raise UnsupportedError(
                "has elements in another form than dense<...>; write them in this form", op
            )

    def _truncate(self, op: Operation, width: int | None) -> None:
        if width is None:
            return
        source = op.operands[0]
        if source.type != op.results[0].type:
            self._sign_extend(op, width)
            return
        with ir.InsertionPoint(op):
            extended = _sign_extended(source, width)
        self._replace(op, extended, width)

    def _extend(self, op: Operation, source: int | None, result: int | None) -> None:
        contained, type_ = op.operands[0], op.results[0].type
        if op.name == "arith.extui" and source:
            with ir.InsertionPoint(op):
                contained = op.operands[0] = _masked(contained, source)
        if contained.type == type_:
            # The container is as wide as the target: a cast to the same type separates the wide
            # value from the contained one.
            with ir.InsertionPoint(op):
                extended = emit.value("arith.bitcast", [contained], type_)
            self._replace(op, extended, result)

    def _replace(self, op: Operation, new: Value, width: int | None) -> None:
        """Replace an operation's result by a value of `width` original bits (None: all)."""
        op.results[0].replace_all_uses_with(new)
        # A later operation may get the same address, so the erased value must be forgotten.
        self._width_of.pop(op.results[0], None)
        op.erase()
        if width is not None:
            self._width_of[new] = width

    def _mask_operands(self, op: Operation) -> None:
        with ir.InsertionPoint(op):
            for index, operand in enumerate(op.operands):
                width = self._width_of.get(operand)
                if width:
                    op.operands[index] = _masked(operand, width)

    def _sign_extend(self, op: Operation, width: int) -> None:
        """Sign-extend an operation's result from `width` bits."""
        with ir.InsertionPoint.after(op):
            extended = replace_uses(op.results[0], lambda value: _sign_extended(value, width))
        self._width_of[extended] = width


def _masked(contained: Value, width: int) -> Value:
    """The low `width` bits of a contained value, as an unsigned number."""
    return (emit.scalar(contained) & ((1 << width) - 1)).value


def _sign_extended(contained: Value, width: int) -> Value:
    """The low `width` bits of a contained value, as a signed number."""
    amount = element_type(contained.type).width - width
    return ((emit.scalar(contained) << amount) >> amount).value if amount else contained


_NOT_32BIT = ("f16", "bf16", "f64")


def _check_32bit(operations: list[Operation]) -> None:
    """Refuse types that a device with 32-bit loads and stores only does not have.

    IREE emulates i64 on these devices, so it may be used between loads and stores.
    """
    refused = TypePredicate(lambda type_: str(element_type(type_)) in _NOT_32BIT)
    if not any(refused.among(operations)):
        return
    for op in operations:
        for value in (*op.operands, *op.results):
            if refused(value.type):
                raise UnsupportedError(
                    f"uses '{element_type(value.type)}', which a device with 32-bit storage only "
                    "does not have; compile for a device that has it (--vulkan-target generic)",
                    op,
                )
