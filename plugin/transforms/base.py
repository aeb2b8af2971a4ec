"""What the passes share: the pass protocol, walking, and building operations at a place.

A pass is a frozen dataclass whose fields are its options; `run` changes a module in place and
leaves it valid, or raises and leaves it unspecified.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from .._mlir import ir, passmanager, rewrite

__all__ = [
    "SIGNATURE_ATTRIBUTE",
    "Builder",
    "ModulePass",
    "NoMatch",
    "apply_patterns",
    "is_in_loop_body",
    "is_public",
    "make_loops_explicit",
    "record_signature",
    "walk",
]

SIGNATURE_ATTRIBUTE = "subquant.function_type"
"""The function attribute that holds the signature as the user wrote it."""


@dataclass(frozen=True)
class ModulePass:
    """A named transformation of a module; subclasses add options as fields."""

    name: ClassVar[str] = ""

    def run(self, module: ir.Operation) -> None:
        """Transform `module` in place."""
        raise NotImplementedError


@dataclass(frozen=True)
class NoMatch:
    """What a pattern returns when another pattern may take the operation, with the reason."""

    reason: str


Pattern = Callable[[Any, Any], NoMatch | None]


def apply_patterns(module: ir.Operation, patterns: dict[str, Pattern]) -> None:
    """Apply patterns, by root operation name, once to every operation of `module`, in order.

    The walk driver is used: unlike the greedy one it folds nothing, so ``dcast(qcast(x))`` keeps
    its quantization error.
    """
    pattern_set = rewrite.RewritePatternSet()
    for root, pattern in patterns.items():
        pattern_set.add(root, _driver_callback(pattern))
    rewrite.walk_and_apply_patterns(module, pattern_set.freeze())


def _driver_callback(pattern: Pattern) -> Callable[[Any, Any], bool | None]:
    def match_and_rewrite(op: Any, rewriter: Any) -> bool | None:
        with rewriter.ip, op.location:
            return True if isinstance(pattern(op, rewriter), NoMatch) else None

    return match_and_rewrite


def walk(root: Any) -> Iterator[Any]:
    """Yield every operation below `root` in order, each before the operations inside it.

    The list of a block's operations is taken before the block is entered, so operations may be
    inserted while walking. To erase some, collect them first.
    """
    for region in root.regions:
        for block in region:
            for op in list(block.operations):
                yield op.operation
                yield from walk(op.operation)


def is_in_loop_body(op: Any) -> bool:
    """True for an operation inside the body of a linalg operation or ``tensor.generate``."""
    parent = op.parent
    while parent is not None:
        operation = parent.operation
        if operation.name.startswith("linalg.") or operation.name == "tensor.generate":
            return True
        parent = operation.parent
    return False


def is_public(function: Any) -> bool:
    """True for a function that can be called from outside the module."""
    if "sym_visibility" not in function.attributes:
        return True
    return bool(function.attributes["sym_visibility"].value == "public")


def record_signature(function: Any) -> None:
    """Keep a public function's signature before a pass changes it, unless one is kept already."""
    if is_public(function) and SIGNATURE_ATTRIBUTE not in function.attributes:
        function.attributes[SIGNATURE_ATTRIBUTE] = function.attributes["function_type"]


def make_loops_explicit(module: ir.Operation, applies: Callable[[ir.Type], bool]) -> None:
    """Write element-wise arith on tensors, and named linalg operations, as ``linalg.generic``.

    Only if some such operation has an operand or result whose type `applies` accepts. After this,
    scalar operations are all that a pass over element types has to know.
    """
    for op in walk(module):
        on_tensors = op.name.startswith(("arith.", "math.")) and op.name != "arith.constant"
        named = op.name.startswith("linalg.") and len(op.regions) and op.name != "linalg.generic"
        if not (on_tensors or named):
            continue
        types = [value.type for value in (*op.operands, *op.results)]
        if any(isinstance(t, ir.RankedTensorType) and applies(t) for t in types):
            pipeline = "func.func(convert-elementwise-to-linalg,linalg-generalize-named-ops)"
            passmanager.PassManager.parse(f"builtin.module({pipeline})").run(module)
            return


class Builder:
    """Creates operations by name at the current insertion point, with the current location."""

    def __init__(self) -> None:
        self.index = ir.IndexType.get()
        self.i1 = ir.IntegerType.get_signless(1)
        self.i32 = ir.IntegerType.get_signless(32)
        self.i64 = ir.IntegerType.get_signless(64)
        self.f32 = ir.F32Type.get()
        self.f64 = ir.F64Type.get()

    def op(
        self,
        name: str,
        operands: Sequence[Any],
        result: ir.Type | None = None,
        attributes: dict[str, ir.Attribute] | None = None,
    ) -> Any:
        """Create an operation with at most one result; return the result, or the operation."""
        results = [] if result is None else [result]
        created = ir.Operation.create(
            name, results=results, operands=operands, attributes=attributes
        )
        return created.results[0] if results else created

    def constant(self, value: float | int, type_: ir.Type) -> Any:
        """Create a scalar ``arith.constant`` (integers are given as signed)."""
        if isinstance(type_, (ir.IntegerType, ir.IndexType)):
            attribute: ir.Attribute = ir.IntegerAttr.get(type_, int(value))
        else:
            attribute = ir.FloatAttr.get(type_, float(value))
        return self.op("arith.constant", [], type_, {"value": attribute})

    def dense(self, attribute: Any) -> Any:
        """Create an ``arith.constant`` from a dense attribute."""
        return self.op("arith.constant", [], attribute.type, {"value": attribute})

    def dim(self, tensor: Any, axis: int) -> Any:
        """Create a ``tensor.dim``."""
        return self.op("tensor.dim", [tensor, self.constant(axis, self.index)], self.index)

    def compare(self, predicate: int, left: Any, right: Any) -> Any:
        """Create an ``arith.cmpi`` with the number of its predicate (0: eq, 2: slt, 5: sge)."""
        attribute = ir.IntegerAttr.get(self.i64, predicate)
        return self.op("arith.cmpi", [left, right], self.i1, {"predicate": attribute})

    def compare_float(self, predicate: int, left: Any, right: Any) -> Any:
        """Create an ``arith.cmpf`` (2: ogt, 4: olt, 14: uno)."""
        attribute = ir.IntegerAttr.get(self.i64, predicate)
        return self.op("arith.cmpf", [left, right], self.i1, {"predicate": attribute})

    def check(self, condition: Any, message: str) -> None:
        """Create a ``cf.assert``: the program fails with `message` unless `condition` holds."""
        self.op("cf.assert", [condition], None, {"msg": ir.StringAttr.get(message)})
