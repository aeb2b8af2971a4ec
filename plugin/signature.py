"""Function signatures as the user wrote them, recorded in an executable.

A compiled function takes storage tensors, flat tensors with a shape, and integers in containers.
The types of its arguments and results are JSON in the function's ``iree.reflection`` dictionary,
key ``subquant.signature``, which the runtime reads without MLIR. Further keys:

* ``subquant.target``: the target of the compilation.
* ``subquant.cpu_features``: the CPU features that the code needs.
* ``subquant.loops``: the iterations of the longest loop and its operation, if a device might end it
  early.
* ``subquant.work``: the estimated time of a call.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np

from .errors import InputError, SubquantError, printable, quoted
from .numerics.element_types import Array
from .numerics.packed_integers import PLANE_BITS, packed_shape
from .numerics.parameters import ExpressedType, Granularity, QuantizationParameters, StorageType

REFLECTION_KEY = "subquant.signature"
TARGET_KEY = "subquant.target"
CPU_FEATURES_KEY = "subquant.cpu_features"
LOOPS_KEY = "subquant.loops"
WORK_KEY = "subquant.work"
LAYOUTS_KEY = "subquant.layouts"
"""The number of tensors that each weight is packed to, by its argument's number, as JSON."""
MAX_LOOP_ITERATIONS = 65535
"""Iterations after which Mesa's llvmpipe ends a loop, without an error: a loop has no more.

Vulkan executables split or bound longer loops.
"""
MAX_CPU_THREADS = 256
"""Threads of a CPU, at most: IREE 3.13 starts no more, without an error."""
_VERSION = 1
"""The version of recorded signatures; an executable with another one is compiled again."""
_MAX_LIST_LENGTH = 64
"""Arrays of up to this number of elements are lists in JSON; longer ones are base64."""


@dataclass(frozen=True)
class ValueType:
    """The type of one argument or result.

    Args:
        element: the element type as in MLIR ("f32", "i4", "index"); the storage type if quantized.
        shape: dimension sizes, None for a dynamic one; None for an unranked tensor; for a scalar
            see `is_scalar`.
        is_scalar: the value is no tensor.
        parameters: the quantization parameters, or None.
        abi: the MLIR types of the compiled function for this value.
        name: the name of the argument or result in the source; "" for none.
        is_consumed: the program may write to the memory of the argument.
        is_fresh: the result never shares memory with an argument.
    """

    element: str
    shape: tuple[int | None, ...] | None = ()
    is_scalar: bool = False
    parameters: QuantizationParameters | None = None
    abi: tuple[str, ...] = ()
    name: str = ""
    is_consumed: bool = False
    is_fresh: bool = False

    @property
    def plane_bits(self) -> tuple[int, ...] | None:
        """The bits of an integer in each plane of bytes; None for a type without planes.

        `subquant.numerics.packed_integers` describes the layout.
        """
        match = re.fullmatch(r"u?i(\d+)", self.element)
        if match is None or len(self.abi) != 1 or not self.shape or None in self.shape:
            return None
        bits = PLANE_BITS.get(int(match.group(1)))
        known = [extent or 0 for extent in self.shape]
        shape = None if bits is None else packed_shape(known, bits)
        if shape is None or self.abi[0] != f"tensor<{''.join(f'{n}x' for n in shape)}i8>":
            return None
        return bits

    @property
    def named(self) -> str:
        """The type, after the name if there is one: ``x: tensor<4xf32>``."""
        return f"{printable(self.name)}: {self}" if self.name else str(self)

    def __str__(self) -> str:
        element = self.element
        if self.parameters is not None:
            element = str(self.parameters)
        if self.is_scalar:
            return element
        if self.shape is None:
            return f"tensor<*x{element}>"
        dims = "".join(f"{'?' if n is None else n}x" for n in self.shape)
        return f"tensor<{dims}{element}>"


@dataclass(frozen=True)
class Signature:
    """The arguments and results of one function.

    Args:
        keeps_state: the function assigns variables, and may do so after it has returned.
    """

    inputs: tuple[ValueType, ...]
    outputs: tuple[ValueType, ...]
    keeps_state: bool = False

    def to_json(self) -> str:
        """Return the signature as JSON text."""
        values = {
            "version": _VERSION,
            "inputs": [_value_to_json(value) for value in self.inputs],
            "outputs": [_value_to_json(value) for value in self.outputs],
        }
        if self.keeps_state:
            values["state"] = True
        return json.dumps(values, separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Signature:
        """Read a signature from JSON text.

        Raises:
            InputError: the text is no signature of this version.
        """
        try:
            values = json.loads(text)
            if values["version"] != _VERSION:
                raise InputError(
                    f"expected a signature of version {_VERSION}, got "
                    f"{quoted(str(values['version']))}; compile the module again"
                )
            inputs, outputs = (
                tuple(_value_from_json(fields) for fields in _list_of(dict, values[name]))
                for name in ("inputs", "outputs")
            )
            return cls(inputs, outputs, bool(values.get("state")))
        except _INVALID_JSON_ERRORS as error:
            missing = "there is no " if isinstance(error, KeyError) else ""
            reason = quoted(f"{missing}{error}", 200)
            raise InputError(
                f"the executable's signature cannot be read ({reason[1:-1]}); compile the module "
                "again"
            ) from None


@dataclass(frozen=True)
class WorkEstimate:
    """Nanoseconds of a call on one thread, and its sequential dispatches.

    The estimate decides between one thread and several.
    """

    nanoseconds: int
    dispatches: int

    def __str__(self) -> str:
        return f"{self.nanoseconds} {self.dispatches}"

    @classmethod
    def from_text(cls, text: str) -> WorkEstimate | None:
        """Return the work of `str`; None for other text, and for no estimate."""
        match = re.fullmatch(r"(\d{1,18}) (\d{1,18})", text)
        return cls(int(match.group(1)), int(match.group(2))) if match else None

    def gains_from_threads(self, threads: int, *, pool: bool) -> bool:
        """True if several threads save more nanoseconds than they cost: to start, and per dispatch.

        Args:
            pool: the threads are those of a worker pool (`subquant.iree_hooks`), not IREE's.
        """
        start, each_dispatch = _WORKER_POOL_OVERHEAD_NS if pool else _IREE_THREADS_OVERHEAD_NS
        saved = self.nanoseconds - self.nanoseconds // threads
        return saved > start + each_dispatch * self.dispatches


_WORKER_POOL_OVERHEAD_NS = (2_000, 500)
"""Overhead of a worker pool in ns: to start, and for each dispatch. A call must save more.

IREE 3.13 on two cores of a Zen 4: a convolution of 20 us on one thread takes a pool of two 12 us,
and one of 78 us 45.
"""
_IREE_THREADS_OVERHEAD_NS = (45_000, 5_000)
"""Overhead of IREE's threads in ns, which are woken: 15 us on Emerald Rapids, 50 us on a Zen 4."""


_INVALID_JSON_ERRORS = (
    AttributeError, IndexError, KeyError, OverflowError, RecursionError, TypeError, ValueError,
    SubquantError, MemoryError,
)  # fmt: skip
"""The exceptions of a read of values that are no signature."""


def _value_to_json(value: ValueType) -> dict[str, Any]:
    fields: dict[str, Any] = {"element": value.element, "abi": list(value.abi)}
    if value.is_scalar:
        fields["scalar"] = True
    else:
        fields["shape"] = None if value.shape is None else list(value.shape)
    if value.parameters is not None:
        fields["quantized"] = parameters_to_json(value.parameters)
    if value.name:
        fields["name"] = value.name
    if value.is_consumed:
        fields["consumed"] = True
    if value.is_fresh:
        fields["fresh"] = True
    return fields


def _value_from_json(fields: dict[str, Any]) -> ValueType:
    """Read a value of `_value_to_json`; other JSON raises one of `_INVALID_JSON_ERRORS`."""
    shape = fields.get("shape", ())
    quantized = fields.get("quantized")
    value = ValueType(
        element=fields["element"],
        shape=None if shape is None else tuple(shape),
        is_scalar=bool(fields.get("scalar")),
        parameters=None if quantized is None else parameters_from_json(quantized),
        abi=tuple(_list_of(str, fields["abi"])),
        name=fields.get("name", ""),
        is_consumed=bool(fields.get("consumed")),
        is_fresh=bool(fields.get("fresh")),
    )
    if not isinstance(value.element, str):
        raise TypeError(f"expected the name of an element type, got {quoted(str(value.element))}")
    if not isinstance(value.name, str):
        raise TypeError(f"expected a name, got {quoted(str(value.name))}")
    if any(type(n) not in (int, type(None)) or (n or 0) < 0 for n in value.shape or ()):
        raise ValueError(f"{quoted(str(shape))} is no shape")
    if len(value.abi) != (2 if value.shape is None else 1):
        raise ValueError(f"a value of type {value} is {len(value.abi)} values of the program")
    return value


_KINDS = {dict: "objects", int: "integers", str: "texts"}


def _list_of(kind: type, values: Any) -> list[Any]:
    if not isinstance(values, list) or any(type(value) is not kind for value in values):
        raise TypeError(f"expected a list of {_KINDS[kind]}, got {quoted(str(values))}")
    return values


def parameters_to_json(
    parameters: QuantizationParameters, array_to_json: Callable[[Array], Any] | None = None
) -> dict[str, Any]:
    """Return quantization parameters as JSON values; scales and zero points are exact.

    `array_to_json` writes the scales, in f64, and the zero points, in i64.
    """
    written = array_to_json or _array_to_json
    storage = parameters.storage
    return {
        "storage": [storage.width, storage.signed, storage.minimum, storage.maximum],
        "expressed": parameters.expressed.value,
        "axes": list(parameters.axes),
        "block_sizes": list(parameters.block_sizes),
        "granularity": parameters.granularity,
        "shape": list(parameters.scales.shape),
        "scales": written(parameters.scales.astype(np.float64)),
        "zero_points": written(parameters.zero_points),
    }


def parameters_from_json(
    fields: dict[str, Any], array_from_json: Callable[[Any, Any], Array] | None = None
) -> QuantizationParameters:
    """Return the parameters that `parameters_to_json` wrote.

    `array_from_json` reads a flat array of a dtype that `array_to_json` wrote.
    """
    read = array_from_json or _array_from_json
    shape = tuple(_list_of(int, fields["shape"]))
    width, signed, low, high = fields["storage"]
    _list_of(int, [width, low, high])
    if fields["granularity"] not in get_args(Granularity):
        raise ValueError(f"no granularity is named {quoted(str(fields['granularity']))}")
    return QuantizationParameters(
        StorageType(width, bool(signed), low, high),
        ExpressedType(fields["expressed"]),
        tuple(_list_of(int, fields["axes"])),
        tuple(_list_of(int, fields["block_sizes"])),
        read(fields["scales"], np.float64).reshape(shape),
        read(fields["zero_points"], np.int64).reshape(shape),
        fields["granularity"],
    )


def _array_to_json(array: Array) -> Any:
    """Return a short array as a list, and a long one as base64 (both are exact)."""
    if array.size <= _MAX_LIST_LENGTH:
        return array.reshape(-1).tolist()
    little = np.ascontiguousarray(array.astype(array.dtype.newbyteorder("<")))
    return base64.b64encode(little.tobytes()).decode()


def _array_from_json(values: Any, dtype: Any) -> Array:
    if isinstance(values, str):
        return np.frombuffer(base64.b64decode(values), np.dtype(dtype).newbyteorder("<"))
    return np.array(values, dtype)
