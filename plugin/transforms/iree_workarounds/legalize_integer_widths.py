"""``legalize-integer-widths``: hold integers in widths that the target loads and stores.

IREE 3.13 does not compile i4 tensors with an odd number of elements or dynamic shapes, i2 at all,
and widths between the powers of two only in places. This pass gives every integer of another width
the next container (i4 is held in i8), module-wide: signatures, constants, regions. A held value is
kept sign-extended, so signed operations need nothing; the others mask or sign-extend as needed.
With ``containers=32`` it serves Vulkan devices without 8- and 16-bit storage, where IREE's
emulation of narrow vector loads is wrong.

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
from typing import ClassVar

from ... import emit
from ...core._mlir import Operation, Value, ir
from ...core.option_fields import Containers
from ...dialects.dense import array_of_dense, dense_of_array
from ...dialects.quant import element_type
from ...emit.operation import number_of, with_element
from ...errors import Remark, UnsupportedError
from ..base import (
    UNCHANGED,
    ModulePass,
    TypePredicate,
    convert_future,
    convert_signature,
    named,
    walk,
)
from .explicit_loops import hides_a_loop, make_loops_explicit

__all__ = ["LegalizeIntegerWidths"]

_TAKES_SIGN_EXTENDED = frozenset(
    [
        "arith.select",
        "arith.extsi",
        "arith.sitofp",
        "arith.fptosi",
        "arith.index_cast",
        "arith.andi",
        "arith.ori",
        "arith.xori",
        "arith.cmpi",
        "arith.maxsi",
        "arith.minsi",
        "arith.remsi",
        "arith.shrsi",
        "iree_tensor_ext.compute_barrier.start",
        "stablehlo.all_gather",
        "stablehlo.all_to_all",
        "stablehlo.async_done",
        "stablehlo.async_start",
        "stablehlo.case",
        "stablehlo.collective_broadcast",
        "stablehlo.collective_permute",
        "stablehlo.dynamic_reshape",
        "stablehlo.get_dimension_size",
        "stablehlo.if",
        "stablehlo.infeed",
        "stablehlo.optimization_barrier",
        "stablehlo.outfeed",
        "stablehlo.recv",
        "stablehlo.return",
        "stablehlo.scatter",
        "stablehlo.send",
        "stablehlo.sort",
        "stablehlo.while",
        "util.global.load",
        "util.global.store",
        "util.optimization_barrier",
    ]
)
"""Operations that are right on sign-extended values, with a sign-extended result."""

_DIALECTS_THAT_MOVE = ("builtin.", "cf.", "func.", "linalg.", "scf.", "tensor.")
"""Dialects whose operations do not compute."""
_WRAPPING = frozenset(
    [
        "arith.addi",
        "arith.subi",
        "arith.muli",
        "arith.shli",
        "arith.divsi",
        "arith.floordivsi",
        "arith.ceildivsi",
        "arith.index_cast",
        "math.absi",
    ]
)
_UNSIGNED = frozenset(
    [
        "arith.maxui",
        "arith.minui",
        "arith.divui",
        "arith.remui",
        "arith.shrui",
        "arith.uitofp",
        "arith.index_castui",
        "arith.extui",
    ]
)
_FIRST_UNSIGNED_PREDICATE = 6  # arith.cmpi ult, ule, ugt, uge


@dataclass(frozen=True)
class LegalizeIntegerWidths(ModulePass):
    """Hold integers of other widths in containers.

    Options:
        containers: the narrowest width that the target loads and stores: 8 (8, 16, 32 and 64 are
            used), or 32.
    """

    name: ClassVar[str] = "legalize-integer-widths"

    containers: Containers = 8

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Convert `module`.

        Raises:
            UnsupportedError: an operation on integers of another width that is not known.
        """
        legalizer = _Legalizer(self.containers)
        operations = walk(module, in_kernels=False)
        if self.containers == 32:
            _check_32bit(operations)
        values = legalizer.held_among(operations)
        touching = _touching(values)
        if any(map(hides_a_loop, touching)):
            make_loops_explicit(operations, legalizer.is_held)
            operations = walk(module, in_kernels=False)
            values = legalizer.held_among(operations)
            touching = _touching(values)
        is_changed = legalizer.declarations(module)
        for value in values:  # all widths first: a block may use what a later one defines
            legalizer.hold(value)
        names = {op.name for op in touching if not op.name.startswith(_DIALECTS_THAT_MOVE)}
        # The first results of operations stand for them, whose own hashes change with their types.
        touched = {op.results[0] for op in touching if len(op.results)}
        for op in operations:
            # By name first: 0.1 us, and few are left; looking for a result takes 0.5.
            if op.name in names and (not len(op.results) or op.results[0] in touched):
                legalizer.operation(op)
        return None if values or is_changed else UNCHANGED


def _touching(values: Iterable[Value]) -> list[Operation]:
    """The operations that have values as results or operands, as often as they do."""
    found: list[Operation] = []
    for value in values:
        owner = value.owner
        if not isinstance(owner, ir.Block):
            found.append(owner.operation)
        found += [use.owner.operation for use in value.uses]
    return found


class _Legalizer:
    """Converts operations in program order, remembering the width that each held value stands for.

    Every value's type is changed in place; operations that only move data or compute the same on
    sign-extended integers are then right as they are.
    """

    def __init__(self, narrowest: int) -> None:
        self._narrowest = narrowest
        self._width_of: dict[Value, int] = {}
        self._containers: dict[ir.Type, tuple[int, ir.Type]] = {}
        self._dense: dict[ir.Attribute, ir.Attribute] = {}  # writing one takes 40 us
        self.is_held = TypePredicate(lambda type_: self._held_width(type_) is not None)

    # -- types ------------------------------------------------------------------------------------

    def _container(self, width: int) -> int:
        if width == 1 or width > 64:
            return width
        return next(w for w in (8, 16, 32, 64) if w >= max(width, self._narrowest))

    def _held_width(self, type_: ir.Type) -> int | None:
        """The width of a type's integers if they need a container, else None."""
        element = element_type(type_)
        if not isinstance(element, ir.IntegerType):
            return None
        return element.width if self._container(element.width) != element.width else None

    def _held_type(self, type_: ir.Type) -> ir.Type:
        width = self._held_width(type_)
        if width is None:
            return type_
        return with_element(type_, ir.IntegerType.get_signless(self._container(width)))

    # -- operations -------------------------------------------------------------------------------

    def held_among(self, operations: Iterable[Operation]) -> list[Value]:
        """Return the results and block arguments that need a container."""
        return [value for _, values in self.is_held.among(operations) for value in values]

    def declarations(self, module: Operation) -> bool:
        """Change the types that attributes and futures name; return True if there are any."""
        is_changed = False
        for op in named(module, ["func.func", "stablehlo.async_start", "util.global"]):
            with op.location:
                if op.name == "func.func":
                    is_changed |= convert_signature(op, self._held_type)
                elif op.name == "util.global":
                    is_changed |= self._global(op)
                else:
                    convert_future(op.results[0], self._held_type)
                    is_changed = True
        return is_changed

    def hold(self, value: Value) -> None:
        """Change the type of a result or block argument."""
        type_ = value.type
        if type_ not in self._containers:
            self._containers[type_] = self._container_of(value)
        self._width_of[value], held = self._containers[type_]
        value.set_type(held)

    def operation(self, op: Operation) -> None:
        """Make one operation right whose operands or results changed their type."""
        results = (self._width_of.get(value) for value in op.results)
        result = next((width for width in results if width), None)
        sources = (self._width_of.get(value) for value in op.operands)
        source = next((width for width in sources if width), None)
        if result is None and source is None:
            return
        with op.location:
            self._fix(op, source, result)

    def _container_of(self, value: Value) -> tuple[int, ir.Type]:
        """The width of a value's integers, and the type that holds them."""
        type_ = value.type
        width = self._held_width(type_)
        assert width is not None  # the caller asks only for held values
        owner = value.owner
        op = (owner.owner if isinstance(owner, ir.Block) else owner).operation
        if isinstance(type_, ir.ShapedType) and not isinstance(
            type_, (ir.RankedTensorType, ir.UnrankedTensorType)
        ):
            raise UnsupportedError(
                f"has a value of type '{type_}', which the target does not load and store; "
                "expected a tensor or a scalar",
                op,
            )
        with op.location:
            return width, self._held_type(type_)

    def _global(self, op: Operation) -> bool:
        type_ = op.attributes["type"].value
        if not self.is_held(type_):
            return False
        if "initial_value" in op.attributes:
            initial = op.attributes["initial_value"]
            if not isinstance(initial, ir.DenseElementsAttr):
                raise UnsupportedError(
                    f"has the type '{type_}', which the target does not load and store, and a "
                    f"value from elsewhere, '{initial}'; store it in a wider type",
                    op,
                )
            held = element_type(self._held_type(type_))
            op.attributes["initial_value"] = dense_of_array(array_of_dense(initial), held)
        op.attributes["type"] = ir.TypeAttr.get(self._held_type(type_))
        return True

    def _fix(self, op: Operation, source: int | None, result: int | None) -> None:
        """Make an operation right whose operands or results changed their type."""
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
        elif name not in _TAKES_SIGN_EXTENDED and not name.startswith(_DIALECTS_THAT_MOVE):
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
                held = dense_of_array(array_of_dense(attribute), type_.element_type)
                self._dense[attribute] = held
            op.attributes["value"] = self._dense[attribute]
        else:
            raise UnsupportedError(
                f"has a constant of kind '{type(attribute).__name__}'; expected dense<...>", op
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
        held, type_ = op.operands[0], op.results[0].type
        if op.name == "arith.extui" and source:
            with ir.InsertionPoint(op):
                held = op.operands[0] = _masked(held, source)
        if held.type == type_:
            # The container is as wide as the target: a cast to the same type tells the wide value
            # from the held one.
            with ir.InsertionPoint(op):
                extended = emit.value("arith.bitcast", [held], type_)
            self._replace(op, extended, result)

    def _replace(self, op: Operation, new: Value, width: int | None) -> None:
        """Replace an operation's result by a value that stands for `width` bits (None: all)."""
        op.results[0].replace_all_uses_with(new)
        # A later operation may be given the same address, so the erased value must be forgotten.
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
        result = op.results[0]
        users = [(use.owner, use.operand_number) for use in result.uses]
        with ir.InsertionPoint.after(op):
            extended = _sign_extended(result, width)
        for owner, number in users:
            owner.operands[number] = extended
        self._width_of[extended] = width


def _masked(held: Value, width: int) -> Value:
    """The low `width` bits of a held value, as an unsigned number."""
    return (emit.scalar(held) & ((1 << width) - 1)).value


def _sign_extended(held: Value, width: int) -> Value:
    """The low `width` bits of a held value, as a signed number."""
    amount = element_type(held.type).width - width
    return ((emit.scalar(held) << amount) >> amount).value if amount else held


_NOT_32BIT = ("f16", "bf16", "f64")


def _check_32bit(operations: list[Operation]) -> None:
    """Refuse what a device that loads and stores only 32-bit words cannot compute.

    IREE emulates i64 on such devices, so it may be used between loads and stores.
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
