"""Pass protocol, pattern driver, walks and signature bookkeeping of all passes.

A pass is a frozen dataclass whose fields are its options. `run` changes a module in place; a pass
that raises leaves the module unspecified.
"""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, TypeAlias

from ..core._mlir import Operation, Value, ir, rewrite
from ..core.option_fields import check_choices
from ..emit.operation import producer_named as producer_named
from ..emit.operation import producer_of as producer_of
from ..emit.operation import value_before as value_before
from ..errors import Remark

SIGNATURE_ATTRIBUTE = "subquant.function_type"
"""Function attribute that holds the signature as the user wrote it."""

WORK_ATTRIBUTE = "subquant.work"
"""The attribute of a function with its `WorkEstimate`."""

NAMES_ATTRIBUTES = ("subquant.argument_names", "subquant.result_names")
"""Function attributes that hold the argument and result names as the user wrote them."""


EXECUTABLE = "stream.executable"
"""Operation that holds the code of a kernel; it has neither tensors nor quantized values."""


@dataclass(frozen=True)
class ModulePass(ABC):
    """A transformation of a module; subclasses add options as fields.

    Raises:
        UsageError: a field with a `Literal` type has a value that is not listed there.
    """

    name: ClassVar[str]
    """The name of the class with hyphens: ``FoldConstants`` is ``fold-constants``."""

    def __init_subclass__(cls) -> None:
        super().__init_subclass__()
        if "name" not in vars(cls):
            cls.name = "-".join(re.findall("[A-Z][a-z0-9]*", cls.__name__)).lower()

    def __post_init__(self) -> None:
        check_choices(self, self.name)

    @abstractmethod
    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Transform `module` in place and return the remarks, if any.

        A pass that changed nothing that a verifier checks may return `UNCHANGED`: the module is
        then not verified again. Verification takes as long as two walks over the module.
        """


class _Unchanged(tuple[Remark, ...]):
    __slots__ = ()


UNCHANGED: Sequence[Remark] = _Unchanged()
"""Returned by a pass that left the module valid as it was and has no remarks."""


@dataclass(frozen=True)
class NoMatch:
    """Returned by a pattern that does not apply, with the reason; other patterns may match."""

    reason: str


Replacement: TypeAlias = Value | Sequence[Value] | NoMatch | None
"""The new results of a matched operation; None for one that a pattern changed in place."""
Pattern = Callable[[Any], Replacement]


def apply_patterns(module: Operation, patterns: dict[str, Pattern]) -> Sequence[Remark] | None:
    """Apply patterns, by root operation name, once to every operation outside of kernels, in order.

    The walk driver is used: it folds nothing, unlike the greedy driver, so ``dcast(qcast(x))``
    keeps its quantization error.

    Returns:
        `UNCHANGED` if no pattern matched, else None: the result of a pass that does no more.
    """
    is_changed = False

    def callback(pattern: Pattern) -> Callable[[Any, Any], bool | None]:
        def match_and_rewrite(op: Any, rewriter: Any) -> bool | None:
            nonlocal is_changed
            with rewriter.ip, op.location:
                results = pattern(op)
                if isinstance(results, NoMatch):
                    return True
                if results is not None:
                    values = results if isinstance(results, Sequence) else [results]
                    rewriter.replace_op(op, list(values))
            is_changed = True
            return None

        return match_and_rewrite

    pattern_set = rewrite.RewritePatternSet()
    for root, pattern in patterns.items():
        pattern_set.add(root, callback(pattern))
    frozen = pattern_set.freeze()
    for root_op in beside_kernels(module):
        rewrite.walk_and_apply_patterns(root_op, frozen)
    return None if is_changed else UNCHANGED


def is_held_by_async_start(op: Operation) -> bool:
    """True for the one operation that ``async_start`` holds, which has to stay there."""
    return op.parent is not None and op.parent.name == "stablehlo.async_start"


def named(module: Operation, names: Collection[str], *, in_kernels: bool = False) -> list[Any]:
    """Return the operations below `module` whose name is in `names`, in order.

    The C++ driver matches the names: 0.3 us per operation, `walk` takes 6 us. With `in_kernels` the
    executables of kernels are searched, too.
    """
    operations: list[Any] = []

    def collect(op: Any, rewriter: Any) -> bool:
        operations.append(op.operation)
        return True  # no match: nothing is rewritten

    pattern_set = rewrite.RewritePatternSet()
    for name in names:
        pattern_set.add(name, collect)
    frozen = pattern_set.freeze()
    for root_op in [module] if in_kernels else beside_kernels(module):
        rewrite.walk_and_apply_patterns(root_op, frozen)
        if root_op is not module and root_op.name in names:
            operations.append(root_op)
    return operations


def beside_kernels(module: Operation) -> list[Operation]:
    """The operations of a module except its kernels; the module itself if it has none."""
    if module.name != "builtin.module":
        return [module]
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    outside_kernels = [op for op in operations if op.name != EXECUTABLE]
    return [module] if len(outside_kernels) == len(operations) else outside_kernels


def walk(root: Any, *, in_kernels: bool = True) -> list[Any]:
    """Return every operation below `root` in order, each before the operations inside it.

    The list is complete before it is returned, so the caller may insert operations while it goes
    through the list. An operation that was erased must not be touched again. Without `in_kernels`
    the executables of kernels are skipped, which hold most operations of a network.
    """
    operations: list[Any] = []
    append, advance, skip = operations.append, ir.WalkResult.ADVANCE, ir.WalkResult.SKIP

    def visit(op: Any) -> Any:
        append(op)
        return advance if in_kernels or op.name != EXECUTABLE else skip

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return operations[1:]


def operation_of(value: Value) -> Any:
    """Return the operation that defines a value, or whose region has it as a block argument."""
    owner = value.owner
    return (owner.owner if isinstance(owner, ir.Block) else owner).operation


def replace_uses(value: Value, build: Callable[[Value], Value]) -> Value:
    """Have every current user of `value` use ``build(value)`` instead, which may use `value`."""
    uses = [(use.owner, use.operand_number) for use in value.uses]
    replacement = build(value)
    for user, number in uses:
        user.operands[number] = replacement
    return replacement


def has_type(op: Operation, applies: Callable[[ir.Type], bool]) -> bool:
    """True for an operation with an operand or result whose type `applies` accepts."""
    return any(applies(value.type) for value in (*op.operands, *op.results))


class TypePredicate:
    """A predicate on types that caches its answers: a module has few distinct types."""

    def __init__(self, predicate: Callable[[ir.Type], bool]) -> None:
        self._predicate = predicate
        self._accepted: set[ir.Type] = set()
        self._rejected: set[ir.Type] = set()

    def __call__(self, type_: ir.Type) -> bool:
        if type_ in self._rejected:
            return False
        if type_ in self._accepted:
            return True
        accepts = self._predicate(type_)
        (self._accepted if accepts else self._rejected).add(type_)
        return accepts

    def values_of(self, op: Any) -> list[Any]:
        """Return the results and block arguments of an operation whose types are accepted."""
        # Most are rejected: types as a list, compared by the set, take half as long as one by one.
        are_rejected, accepted = self._rejected.issuperset, []
        if not are_rejected(op.results.types):
            accepted += [value for value in op.results if self(value.type)]
        if len(op.regions):
            for region in op.regions:
                for block in region:
                    if not are_rejected(block.arguments.types):
                        accepted += [value for value in block.arguments if self(value.type)]
        return accepted

    def among(self, operations: Iterable[Operation]) -> Iterator[tuple[Operation, list[Value]]]:
        """Yield each operation that has accepted values, with these values."""
        are_rejected = self._rejected.issuperset
        for op in operations:
            if are_rejected(op.results.types) and not len(op.regions):
                continue
            values = self.values_of(op)
            if values:
                yield op, values


def convert_future(value: Any, convert: Callable[[ir.Type], ir.Type]) -> None:
    """Convert the types inside ``!stablehlo.future<...>`` of a value, in place."""
    head, text = "!stablehlo.future<", str(value.type)
    inner = ir.Type.parse(f"({text.removeprefix(head)[:-1]}) -> ()").inputs
    converted = ", ".join(str(convert(type_)) for type_ in inner)
    value.set_type(ir.Type.parse(f"{head}{converted}>"))


def is_in_loop_body(op: Any) -> bool:
    """True for an operation inside the body of a linalg operation or ``tensor.generate``."""
    return any(
        each.name.startswith("linalg.") or each.name == "tensor.generate" for each in ancestors(op)
    )


def ancestors(op: Any) -> Iterator[Operation]:
    """Yield the operations around an operation, from the inside out."""
    parent = op.parent
    while parent is not None:
        operation = parent.operation
        yield operation
        parent = operation.parent


def is_public(function: Any) -> bool:
    """True for a function that can be called from outside the module.

    A function of a nested module belongs to a kernel and cannot be called.
    """
    outer = function.operation.parent
    if outer is not None and outer.operation.parent is not None:
        return False
    if "sym_visibility" not in function.attributes:
        return True
    return bool(function.attributes["sym_visibility"].value == "public")


def convert_signature(function: Operation, convert: Callable[[ir.Type], ir.Type]) -> bool:
    """Convert a function's signature and record the original one; True if a type changed."""
    type_ = function.attributes["function_type"].value
    inputs, results = ([convert(old) for old in types] for types in (type_.inputs, type_.results))
    converted = ir.FunctionType.get(inputs, results)
    if converted == type_:
        return False
    record_signature(function)
    function.attributes["function_type"] = ir.TypeAttr.get(converted)
    return True


def record_signature(function: Any) -> None:
    """Record the signature of a public function, unless an earlier pass recorded it."""
    if is_public(function) and SIGNATURE_ATTRIBUTE not in function.attributes:
        function.attributes[SIGNATURE_ATTRIBUTE] = function.attributes["function_type"]
