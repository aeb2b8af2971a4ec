"""Parameters whose elements a compilation reads, and the packed parameters that it writes.

Without the parameters' files, a program packs a weight that is a parameter whenever it is loaded,
into memory of its own. With them, the compiler packs it like a constant, and writes the result to
another archive, which the program maps into memory. Before::

    util.global private @w = #flow.parameter.named<"model"::"attn.weight:qs"> : tensor<64x64xi8>

After::

    util.global private @parameter
        = #flow.parameter.named<"model"::"attn.weight:qs@16x2.0123456789ab"> : tensor<2x2x1024xi8>

A packed parameter's name has the parameter that it is packed from, the lanes and vectors of a tile,
and a digest of the whole computation. An archive of another program, or for other instructions,
has no parameter of this name: IREE refuses to load it instead of computing wrong numbers.
"""

from __future__ import annotations

import hashlib
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass

from ..core._mlir import Operation, Value, ir
from ..errors import InputError, quoted
from ..numerics.array_pieces import ArrayPieces
from ..numerics.element_types import Array, ElementType
from .operation import all_producers

LOAD = "util.global.load"
PREPACKED_ATTRIBUTE = "subquant.weights"
"""Function attribute: the numbers of the arguments that the caller prepacks."""

_NAMED = re.compile(
    r'#flow\.parameter\.named<("(?:[^"\\]|\\.)*")::("(?:[^"\\]|\\.)*")> : (tensor<.*>)', re.DOTALL
)
_ARCHIVED_ELEMENTS = ("i8", "i16", "i32", "i64", "f16", "bf16", "f32", "f64")
"""Element types that an archive stores as NumPy does."""


@dataclass(frozen=True)
class Parameter:
    """The parameter that a global is initialized with."""

    scope: str
    name: str
    type: ir.Type


@dataclass
class ParameterStore:
    """Source and destination of parameters.

    Args:
        arrays: for each scope, a function of a source parameter's name to its bytes, or KeyError.
        scope: scope of packed parameters.
        write: writes the name and the elements of a packed parameter.
        written: symbol and type of the global of each packed parameter, by parameter name.
    """

    arrays: Mapping[str, Callable[[str], Array]]
    scope: str
    write: Callable[[str, ArrayPieces], object]
    written: dict[str, tuple[str, ir.Type]] = field(default_factory=dict)

    def has(self, parameter: Parameter) -> bool:
        """True if a parameter's scope has a source, and its elements can be computed with."""
        element = str(parameter.type.element_type)
        return parameter.scope in self.arrays and element in _ARCHIVED_ELEMENTS

    def array(self, parameter: Parameter, op: Operation) -> Array:
        """Return the elements of a parameter that `op` loads; bytes if they are below 8 bits.

        Raises:
            InputError: the source has no such parameter, or one of another size.
        """
        try:
            array = self.arrays[parameter.scope](parameter.name)
        except KeyError:
            raise InputError(
                f"reads the parameter {quoted(parameter.name)}, which the weights of the scope "
                f"{quoted(parameter.scope)} do not have",
                op,
            ) from None
        if not self.has(parameter):
            return array
        shape = [int(size) for size in parameter.type.shape]
        dtype = ElementType.of_mlir(str(parameter.type.element_type)).dtype
        expected = math.prod(shape) * dtype.itemsize
        if array.size != expected:
            raise InputError(
                f"reads the parameter {quoted(parameter.name)} as {parameter.type}, which is "
                f"{expected} bytes, and the weights have {array.size}",
                op,
            )
        return array.view(dtype).reshape(shape)


def parameter_of(global_: Operation) -> Parameter | None:
    """Return the parameter that initializes a ``util.global``, or None."""
    if "initial_value" not in global_.attributes:
        return None
    match = _NAMED.fullmatch(str(global_.attributes["initial_value"]))
    if match is None:
        return None
    scope, name = (ir.Attribute.parse(text, global_.context).value for text in match.groups()[:2])
    return Parameter(scope, name, ir.Type.parse(match.group(3), global_.context))


def named_parameter(scope: str, name: str, type_: ir.Type) -> ir.Attribute:
    """Return the initial value of a global that is a parameter."""
    texts = ir.StringAttr.get(scope), ir.StringAttr.get(name)
    return ir.Attribute.parse(f"#flow.parameter.named<{texts[0]}::{texts[1]}> : {type_}")


def is_prepacked_argument(argument: Value) -> bool:
    """True for an argument that the caller of its function prepacks."""
    function = argument.owner.owner
    if not isinstance(function, ir.OpView | ir.Operation):
        return False
    attributes = function.operation.attributes
    if PREPACKED_ATTRIBUTE not in attributes:
        return False
    return ir.BlockArgument(argument).arg_number in list(attributes[PREPACKED_ATTRIBUTE])


@dataclass
class ModuleGlobals:
    """The globals of a module, and the elements of parameters among them.

    Each global is looked up once: the module may get further globals, but may change none.

    Args:
        parameters: the source and destination of parameters; None where the program loads all.
    """

    module: Operation
    parameters: ParameterStore | None = None
    _symbols: ir.SymbolTable | None = field(default=None, init=False)
    _globals: dict[str, tuple[bool, Parameter | None]] = field(default_factory=dict, init=False)

    def is_immutable(self, load: Operation) -> bool:
        """True if a ``util.global.load`` returns the same at each call."""
        return self._loaded(load)[0]

    def source_parameter(self, load: Operation) -> Parameter | None:
        """Return the parameter that a ``util.global.load`` returns, if the compiler can read it."""
        if self.parameters is None:
            return None
        is_immutable, parameter = self._loaded(load)
        if not is_immutable or parameter is None or not self.parameters.has(parameter):
            return None
        return parameter

    def elements(self, load: Operation) -> Array:
        """Return the elements of a `source_parameter`; 8-bit integers as int8.

        Raises:
            InputError: as `ParameterStore.array` does.
        """
        parameters, parameter = self.parameters, self.source_parameter(load)
        assert parameters is not None  # else the load has no `source_parameter`
        assert parameter is not None
        return parameters.array(parameter, load)

    def packed_name(self, sources: Sequence[Value], label: str, layout: object) -> str | None:
        """Return the name of a packed parameter; None if the sources read no parameters.

        Args:
            sources: constant values that it is computed from.
            label: legible summary of the layout.
            layout: all else that the elements depend on: numbers, strings, sequences, dataclasses.
        """

        def is_no_load(value: Value) -> bool | None:
            return False if value.owner.operation.name == LOAD else None

        if all(all_producers(value, is_no_load) for value in sources):
            return None
        names: list[str] = []
        digests: dict[int, str] = {}

        def digest(value: Value) -> str:
            op = value.owner.operation
            key = hash(op)
            if key not in digests:
                description = [op.name, *(str(result.type) for result in op.results)]
                parameter = self.source_parameter(op) if op.name == LOAD else None
                if parameter is not None:
                    names.append(parameter.name)
                    description += [parameter.scope, parameter.name]
                else:
                    description += sorted(
                        f"{name} = {op.attributes[name]}" for name in op.attributes
                    )
                description += [digest(operand) for operand in op.operands]
                digests[key] = _digest("\n".join(description))
            return digests[key]

        key = [digest(value) for value in sources]
        key.append(repr(_plain(layout)))
        return f"{names[0]}@{label}.{_digest(' '.join(key))}"

    def _loaded(self, load: Operation) -> tuple[bool, Parameter | None]:
        """Return whether a loaded global is immutable, and its parameter.

        No verifier has checked that the global exists.
        """
        name = load.attributes["global"].value
        if name not in self._globals:
            if self._symbols is None or name not in self._symbols:
                self._symbols = ir.SymbolTable(self.module)  # with new globals
            if name not in self._symbols:
                return False, None
            op = self._symbols[name].operation
            self._globals[name] = "is_mutable" not in op.attributes, parameter_of(op)
        return self._globals[name]


def _plain(layout: object) -> object:
    """Return a layout with tuples for dataclasses: names of classes and fields may change."""
    if is_dataclass(layout):
        return tuple(_plain(getattr(layout, each.name)) for each in fields(layout))
    if isinstance(layout, tuple | list):
        return tuple(map(_plain, layout))
    return layout


def _digest(text: str) -> str:
    return hashlib.blake2b(text.encode(), digest_size=6).hexdigest()
