"""What the passes share: the pass protocol, patterns, walking, signatures.

A pass is a frozen dataclass whose fields are its options; `run` changes a module in place and
leaves it valid, or raises and leaves it unspecified.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from ..core._mlir import Operation, Value, ir, rewrite
from ..core.options import check_choices
from ..errors import Remark

__all__ = [
    "EXECUTABLE",
    "NAMES_ATTRIBUTES",
    "SIGNATURE_ATTRIBUTE",
    "UNCHANGED",
    "ModulePass",
    "NoMatch",
    "Pattern",
    "TypePredicate",
    "apply_patterns",
    "beside_kernels",
    "convert_future",
    "convert_signature",
    "is_in_loop_body",
    "is_public",
    "named",
    "record_signature",
    "walk",
]

SIGNATURE_ATTRIBUTE = "subquant.function_type"
"""The function attribute that holds the signature as the user wrote it."""

NAMES_ATTRIBUTES = ("subquant.argument_names", "subquant.result_names")
"""The function attributes that hold the names of arguments and results, as the user wrote them."""


EXECUTABLE = "stream.executable"
"""What holds the code of a kernel, which has neither tensors nor quantized values."""


@dataclass(frozen=True)
class ModulePass(ABC):
    """A named transformation of a module; subclasses add options as fields.

    Raises:
        UsageError: a field with a `Literal` type has a value that is not listed there.
    """

    name: ClassVar[str] = ""

    def __post_init__(self) -> None:
        check_choices(self, self.name)

    @abstractmethod
    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Transform `module` in place; return what there is to say about it, if anything.

        A pass that has done nothing that a verifier looks at may return `UNCHANGED`: the module is
        then not verified again, which takes as long as walking it twice.
        """


class _Unchanged(tuple[Remark, ...]):
    __slots__ = ()


UNCHANGED: Sequence[Remark] = _Unchanged()
"""What a pass returns that left the module as valid as it was, and has nothing to say."""


@dataclass(frozen=True)
class NoMatch:
    """What a pattern returns when another pattern may take the operation, with the reason."""

    reason: str


Pattern = Callable[[Any, Any], NoMatch | None]


def apply_patterns(module: Operation, patterns: dict[str, Pattern]) -> Sequence[Remark] | None:
    """Apply patterns, by root operation name, once to every operation in functions, in order.

    Kernels are left as they are.

    The walk driver is used: unlike the greedy one it folds nothing, so ``dcast(qcast(x))`` keeps
    its quantization error.

    Returns:
        What a pass returns that does no more: `UNCHANGED` if no pattern took an operation.
    """
    is_changed = False

    def callback(pattern: Pattern) -> Callable[[Any, Any], bool | None]:
        def match_and_rewrite(op: Any, rewriter: Any) -> bool | None:
            nonlocal is_changed
            with rewriter.ip, op.location:
                if isinstance(pattern(op, rewriter), NoMatch):
                    return True
            is_changed = True
            return None

        return match_and_rewrite

    pattern_set = rewrite.RewritePatternSet()
    for root, pattern in patterns.items():
        pattern_set.add(root, callback(pattern))
    frozen = pattern_set.freeze()
    for part in beside_kernels(module):
        rewrite.walk_and_apply_patterns(part, frozen)
    return None if is_changed else UNCHANGED


def named(module: Operation, names: Collection[str], *, in_kernels: bool = False) -> list[Any]:
    """Return the operations of some names below `module`, in order.

    The C++ driver looks for them: 0.3 us where `walk` takes 6.

    Args:
        module: an operation.
        names: of operations.
        in_kernels: as of `walk`.
    """
    found: list[Any] = []

    def collect(op: Any, rewriter: Any) -> bool:
        found.append(op.operation)
        return True  # no match: nothing is rewritten

    pattern_set = rewrite.RewritePatternSet()
    for name in names:
        pattern_set.add(name, collect)
    frozen = pattern_set.freeze()
    for part in [module] if in_kernels else beside_kernels(module):
        rewrite.walk_and_apply_patterns(part, frozen)
        if part is not module and part.name in names:
            found.append(part)
    return found


def beside_kernels(module: Operation) -> list[Operation]:
    """What a module with kernels has beside them, one by one; a module without them, itself."""
    if module.name != "builtin.module":
        return [module]
    operations = [op.operation for op in module.regions[0].blocks[0].operations]
    others = [op for op in operations if op.name != EXECUTABLE]
    return [module] if len(others) == len(operations) else others


def walk(root: Any, *, in_kernels: bool = True) -> list[Any]:
    """Return every operation below `root` in order, each before the operations inside it.

    The list is taken before anything is done, so operations may be inserted while going through it;
    an operation that was erased must not be touched again.

    Args:
        root: an operation.
        in_kernels: also what executables of kernels do, which are most operations of a network.
    """
    found: list[Any] = []
    append, advance, skip = found.append, ir.WalkResult.ADVANCE, ir.WalkResult.SKIP

    def visit(op: Any) -> Any:
        append(op)
        return advance if in_kernels or op.name != EXECUTABLE else skip

    root.operation.walk(visit, ir.WalkOrder.PRE_ORDER)
    return found[1:]


class TypePredicate:
    """A predicate on types that is computed once for each type: modules have few."""

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
        """Yield the operations that have such values, each with these."""
        are_rejected = self._rejected.issuperset
        for op in operations:
            if are_rejected(op.results.types) and not len(op.regions):
                continue
            values = self.values_of(op)
            if values:
                yield op, values


def convert_future(value: Any, convert: Callable[[ir.Type], ir.Type]) -> None:
    """Convert the types of the values that a ``!stablehlo.future`` stands for, in place."""
    head, text = "!stablehlo.future<", str(value.type)
    inner = ir.Type.parse(f"({text.removeprefix(head)[:-1]}) -> ()").inputs
    converted = ", ".join(str(convert(type_)) for type_ in inner)
    value.set_type(ir.Type.parse(f"{head}{converted}>"))


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
    """True for a function that can be called from outside the module.

    One of a module inside it, which is a kernel's, cannot.
    """
    outer = function.operation.parent
    if outer is not None and outer.operation.parent is not None:
        return False
    if "sym_visibility" not in function.attributes:
        return True
    return bool(function.attributes["sym_visibility"].value == "public")


def convert_signature(function: Operation, convert: Callable[[ir.Type], ir.Type]) -> bool:
    """Convert the types of a function's signature, and record the one that it had.

    Returns:
        True if a type is another one.
    """
    type_ = function.attributes["function_type"].value
    inputs, results = ([convert(old) for old in types] for types in (type_.inputs, type_.results))
    converted = ir.FunctionType.get(inputs, results)
    if converted == type_:
        return False
    record_signature(function)
    function.attributes["function_type"] = ir.TypeAttr.get(converted)
    return True


def record_signature(function: Any) -> None:
    """Keep a public function's signature before a pass changes it, unless one is kept already."""
    if is_public(function) and SIGNATURE_ATTRIBUTE not in function.attributes:
        function.attributes[SIGNATURE_ATTRIBUTE] = function.attributes["function_type"]
