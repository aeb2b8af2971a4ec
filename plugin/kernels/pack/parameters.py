"""Parameters whose elements the compiler is given, and what it computes of them.

A weight that is a parameter is laid out for a kernel by the program, whenever that is loaded, into
memory of its own. Where a compilation is given the parameters (`given`), it does that itself, as
with a constant, and what it makes is a parameter of another archive, which a program reads where
that is mapped. Before::

    util.global private @w = #flow.parameter.named<"model"::"attn.weight:qs"> : tensor<64x64xi8>

After::

    util.global private @parameter
        = #flow.parameter.named<"model"::"attn.weight:qs@16x2.0123456789ab"> : tensor<2x2x1024xi8>

A name says what was made of which parameter: the lanes and vectors of a tile, and a digest of all
that was computed. An archive that was made for another program, or other instructions, has no
parameter of such a name: it is not loaded, where it would give wrong numbers.
"""

from __future__ import annotations

import contextlib
import hashlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field

from ...core._mlir import Operation, Value, ir
from ...emit.operation import all_producers
from ...errors import InputError, quoted
from ...numerics.element_types import Array, ElementType

__all__ = [
    "LOAD",
    "GivenParameters",
    "Parameter",
    "current",
    "given",
    "given_parameter",
    "is_immutable",
    "known_globals",
    "loaded_elements",
    "named_parameter",
    "origin_of",
    "parameter_of",
]

LOAD = "util.global.load"

_NAMED = re.compile(
    r'#flow\.parameter\.named<("(?:[^"\\]|\\.)*")::("(?:[^"\\]|\\.)*")> : (tensor<.*>)', re.DOTALL
)
_ELEMENTS = ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")
"""Elements that lie in an archive as NumPy has them."""


@dataclass(frozen=True)
class Parameter:
    """What a global begins as.

    Attributes:
        scope, name: of the parameter.
        type: of the tensor.
    """

    scope: str
    name: str
    type: ir.Type


@dataclass
class GivenParameters:
    """Parameters, and where goes what is computed of them.

    Args:
        arrays: the bytes of parameters, by name, by scope.
        scope: of what is computed.
        write: takes the name and the elements of a new parameter.
    """

    arrays: Mapping[str, Mapping[str, Array]]
    scope: str
    write: Callable[[str, Array], object]
    written: dict[str, tuple[str, ir.Type]] = field(default_factory=dict)
    """The global and the type of what was computed, by name of the parameter."""

    def has(self, parameter: Parameter) -> bool:
        """True if the elements of a parameter are given, or should be."""
        element = str(parameter.type.element_type)
        return parameter.scope in self.arrays and element in _ELEMENTS

    def array(self, parameter: Parameter, op: Operation) -> Array:
        """The elements of a parameter that `op` loads; its bytes if they are of less than 8 bits.

        Raises:
            InputError: the file does not have them.
        """
        found = self.arrays[parameter.scope].get(parameter.name)
        if found is None:
            raise InputError(
                f"reads the parameter {quoted(parameter.name)}, which the weights of the scope "
                f"{quoted(parameter.scope)} do not have",
                op,
            )
        if not self.has(parameter):
            return found
        shape = [int(extent) for extent in parameter.type.shape]
        dtype = ElementType.of_mlir(str(parameter.type.element_type)).dtype
        expected = dtype.itemsize
        for extent in shape:
            expected *= extent
        if found.size != expected:
            raise InputError(
                f"reads the parameter {quoted(parameter.name)} as {parameter.type}, which is "
                f"{expected} bytes, and the weights have {found.size}",
                op,
            )
        return found.view(dtype).reshape(shape)


_GIVEN: ContextVar[GivenParameters | None] = ContextVar("given_parameters", default=None)


@contextlib.contextmanager
def given(parameters: GivenParameters) -> Iterator[None]:
    """Let the passes of this block know the elements of parameters."""
    token = _GIVEN.set(parameters)
    try:
        yield
    finally:
        _GIVEN.reset(token)


def current() -> GivenParameters | None:
    """The parameters that are given."""
    return _GIVEN.get()


def parameter_of(global_: Operation) -> Parameter | None:
    """The parameter that a ``util.global`` begins as, None if it does as something else."""
    if "initial_value" not in global_.attributes:
        return None
    match = _NAMED.fullmatch(str(global_.attributes["initial_value"]))
    if match is None:
        return None
    scope, name = (ir.Attribute.parse(text, global_.context).value for text in match.groups()[:2])
    return Parameter(scope, name, ir.Type.parse(match.group(3), global_.context))


def named_parameter(scope: str, name: str, type_: ir.Type) -> ir.Attribute:
    """What a global begins as that is a parameter."""
    texts = ir.StringAttr.get(scope), ir.StringAttr.get(name)
    return ir.Attribute.parse(f"#flow.parameter.named<{texts[0]}::{texts[1]}> : {type_}")


@dataclass(frozen=True)
class _Global:
    """What is known of a ``util.global``; `parameter` is what it begins as, if that is one."""

    is_mutable: bool
    parameter: Parameter | None


class _Globals:
    """The globals of a module, each of which is read once."""

    def __init__(self, module: Operation) -> None:
        self._module = module
        self._symbols = ir.SymbolTable(module)
        self._read: dict[str, _Global] = {}

    def find(self, name: str) -> _Global | None:
        """The global of a name, if there is one: no verifier has looked."""
        if name not in self._read:
            if name not in self._symbols:
                self._symbols = ir.SymbolTable(self._module)  # it may be new
            if name not in self._symbols:
                return None
            found = self._symbols[name].operation
            self._read[name] = _Global("is_mutable" in found.attributes, parameter_of(found))
        return self._read[name]


_GLOBALS: ContextVar[_Globals | None] = ContextVar("known_globals", default=None)


@contextlib.contextmanager
def known_globals(module: Operation) -> Iterator[None]:
    """Look each global of a module up once in this block, which may add some, and change none."""
    token = _GLOBALS.set(_Globals(module))
    try:
        yield
    finally:
        _GLOBALS.reset(token)


def _global_of(load: Operation) -> _Global | None:
    """The ``util.global`` that is loaded, in a block of `known_globals`."""
    known = _GLOBALS.get()
    assert known is not None
    return known.find(load.attributes["global"].value)


def is_immutable(load: Operation) -> bool:
    """True if a ``util.global.load`` gives the same at each call."""
    loaded = _global_of(load)
    return loaded is not None and not loaded.is_mutable


def given_parameter(load: Operation) -> Parameter | None:
    """The parameter that a ``util.global.load`` gives, if its elements are known."""
    parameters = _GIVEN.get()
    if parameters is None:
        return None
    loaded = _global_of(load)
    if loaded is None or loaded.is_mutable or loaded.parameter is None:
        return None
    return loaded.parameter if parameters.has(loaded.parameter) else None


def loaded_elements(load: Operation) -> Array:
    """The elements of a `given_parameter`; integers of 8 bits as int8.

    Raises:
        InputError: the archive does not have them.
    """
    parameters, parameter = _GIVEN.get(), given_parameter(load)
    assert parameters is not None  # the caller has looked
    assert parameter is not None
    return parameters.array(parameter, load)


def origin_of(values: Sequence[Value], label: str, how: object) -> str | None:
    """The name of what is computed of values in some way; None if there is no parameter in them.

    Args:
        values: what is known, all of it.
        label: what people read of the way.
        how: what the elements follow from besides; its text says it all.
    """
    if _GIVEN.get() is None or all(all_producers(value, _is_no_load) for value in values):
        return None
    first: list[str] = []
    digests: dict[int, str] = {}

    def digest(value: Value) -> str:
        op = value.owner.operation
        key = hash(op)
        if key not in digests:
            said = [op.name, *(str(result.type) for result in op.results)]
            parameter = given_parameter(op) if op.name == LOAD else None
            if parameter is not None:
                first.append(parameter.name)
                said += [parameter.scope, parameter.name]
            else:
                said += sorted(f"{name} = {op.attributes[name]}" for name in op.attributes)
            said += [digest(operand) for operand in op.operands]
            digests[key] = _digest("\n".join(said))
        return digests[key]

    found = [digest(value) for value in values]
    return f"{first[0]}@{label}.{_digest(' '.join([*found, repr(how)]))}"


def _is_no_load(value: Value) -> bool | None:
    return False if value.owner.operation.name == LOAD else None


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
