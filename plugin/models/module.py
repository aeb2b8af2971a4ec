"""A model as a program: its weights are parameters, its functions those of a session.

::

    util.global private @blk.0.attn_q.weight:qs_low
        = #flow.parameter.named<"model"::"blk.0.attn_q.weight:qs_low"> : tensor<1024x20x16xi8>

    func.func @next(%token: tensor<1xi32>, %position: tensor<i32>,
                    %keys_0: tensor<2048x1x256xf16>, %values_0: ...) -> (tensor<262144xf32>, ...)

The names of the parameters are those of an archive of ``subquant import``. There are functions for
one token, and for pieces of ``N`` tokens, with ``x`` of ``[N, width]``:

    next(token, position, caches) -> logits, caches
    read_N(tokens, position, caches) -> x, caches
    last_N(x, row) -> logits of a row of what was read
    all_N(x) -> logits of all rows, for the shortest of the pieces

Caches are given back with the tokens that were read. They are arguments, and not variables, so that
sessions share a program; who calls gives them up, and they are written in place.

The tokens of a prompt are read in pieces of a few lengths, of which the last may be filled up: what
is written to the caches after the prompt is written again before a token attends to it. `trace` and
the kernels of attention are for static shapes, so who calls goes through the pieces
(`Session.prompt`): two calls for a prompt of 256 tokens, and one more for the logits.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np

from .._mlir import Value, ir
from ..dialects import create_context
from ..emit.functions import write_function
from ..emit.operation import create, mlir_type, tensor_type, value
from ..emit.trace import traced
from ..layouts import (
    GgmlTensor,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
)
from ..numerics.array_functions import stack, take_slice
from ..numerics.element_types import AnyArray, ElementType
from ..weights.theta import Theta
from .configuration import Configuration, expected_tensors
from .interface import SCOPE, Cache, Shape
from .transformer import embed, logits, run_blocks

__all__ = ["write_module"]


def write_module(
    configuration: Configuration, tensors: Mapping[str, InferenceTensor], shape: Shape
) -> ir.Module:
    """Write a program, in a context of its own.

    Args:
        configuration: of the model.
        tensors: its tensors by name, whose values are not used.
        shape: what is chosen.

    Raises:
        UnsupportedError: a tensor is of a type that is not computed with.
    """
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            parameters = _Parameters({n: tensors[n] for n in expected_tensors(configuration)})
            functions = _Functions(configuration, parameters, shape.rows)
            for count in shape.pieces:
                functions.write_read(count)
                functions.write_last(count)
            functions.write_all(shape.pieces[-1])
            functions.write_next()
        module.operation.verify()
        return module


class _Functions:
    """Writes functions at the insertion point.

    Args:
        configuration: of the model.
        weights: its tensors.
        rows: of the caches.
    """

    def __init__(self, configuration: Configuration, weights: _Parameters, rows: int) -> None:
        self.configuration = configuration
        self.weights = weights
        i32, f16 = ir.IntegerType.get_signless(32), ir.F16Type.get()
        cache = tensor_type([rows, configuration.kv_heads, configuration.size], f16)
        self.caches = [cache] * (2 * configuration.blocks)
        self.index = tensor_type([], i32)

    def write_read(self, count: int) -> None:
        """What a piece of a prompt becomes."""
        self._write(f"read_{count}", [_tokens(count), self.index, *self.caches], self._read)

    def write_last(self, count: int) -> None:
        """What follows a token of a piece."""

        def body(x: AnyArray, row: AnyArray) -> list[AnyArray]:
            starts = stack([row, row * np.int32(0)], 0)
            taken = take_slice(x, starts, (1, x.shape[1]))
            return [self._logits(taken).reshape(-1)]

        self._write(f"last_{count}", [self._rows(count), self.index], body)

    def write_all(self, count: int) -> None:
        """What follows each token of a piece."""
        self._write(f"all_{count}", [self._rows(count)], lambda x: [self._logits(x)])

    def write_next(self) -> None:
        """What follows one token."""

        def body(*given: AnyArray) -> list[AnyArray]:
            x, *caches = self._read(*given)
            return [self._logits(x).reshape(-1), *caches]

        self._write("next", [_tokens(1), self.index, *self.caches], body)

    def _rows(self, count: int) -> ir.Type:
        return tensor_type([count, self.configuration.width], ir.F32Type.get())

    def _read(self, tokens: AnyArray, position: AnyArray, *given: AnyArray) -> list[AnyArray]:
        caches = [Cache(*pair) for pair in zip(given[::2], given[1::2], strict=True)]
        x = embed(self.configuration, self.weights, tokens)
        x, written = run_blocks(self.configuration, self.weights, x, position, caches)
        return [x, *(each for cache in written for each in cache)]

    def _logits(self, x: AnyArray) -> AnyArray:
        return logits(self.configuration, self.weights, x)

    @staticmethod
    def _write(
        name: str, types: Sequence[ir.Type], function: Callable[..., Sequence[AnyArray]]
    ) -> None:
        def body(values: Sequence[Value]) -> list[Value]:
            return [found.value for found in function(*(traced(value) for value in values))]

        write_function(name, types, body)


def _tokens(count: int) -> ir.Type:
    return tensor_type([count], ir.IntegerType.get_signless(32))


class _Parameters:
    """Tensors whose arrays are parameters; a part of the tree is loaded where it is asked for.

    Args:
        tensors: by name.
    """

    def __init__(self, tensors: Mapping[str, InferenceTensor]) -> None:
        self._tensors = {name: _planar(tensor) for name, tensor in tensors.items()}
        for tensor in self._tensors.values():
            for name, array in tensor.arrays.items():
                _define(name, _type_of(array))

    def __call__(self, part: str) -> Theta:
        """The tensors below a name, loaded where operations are written."""
        prefix = f"{part}."
        return Theta(
            {
                name.removeprefix(prefix): self._loaded(tensor)
                for name, tensor in self._tensors.items()
                if name.startswith(prefix)
            }
        )

    def _loaded(self, tensor: InferenceTensor) -> InferenceTensor:
        arrays = {name: _load(name, array) for name, array in tensor.arrays.items()}
        if not isinstance(tensor, PlanarQuantizedTensor):
            return PrimitiveTensor(arrays[tensor.name], tensor.name)
        planes = zip(tensor.layout.planes, arrays.values(), strict=True)
        return PlanarQuantizedTensor(tensor.layout.with_planes(dict(planes)), tensor.name)


def _planar(tensor: InferenceTensor) -> InferenceTensor:
    """The form that archives have of a tensor, with planes whose elements are not computed."""
    if isinstance(tensor, GgmlTensor):
        row = tensor.rows(0, 1).unpack()
        planes = {
            name: np.broadcast_to(plane, (tensor.shape[0], *plane.shape[1:]))
            for name, plane in row.planes.items()
        }
        return PlanarQuantizedTensor(type(row)(tensor.shape, planes, row.metadata), tensor.name)
    return tensor.to_planar() if isinstance(tensor, QuantizedTensor) else tensor


def _type_of(array: AnyArray) -> ir.Type:
    return tensor_type(array.shape, mlir_type(ElementType.of_dtype(array.dtype)))


def _define(name: str, type_: ir.Type) -> None:
    parameter = ir.Attribute.parse(f'#flow.parameter.named<"{SCOPE}"::"{name}"> : {type_}')
    attributes = {
        "sym_name": ir.StringAttr.get(name),
        "sym_visibility": ir.StringAttr.get("private"),
        "type": ir.TypeAttr.get(type_),
        "initial_value": parameter,
    }
    create("util.global", attributes=attributes)


def _load(name: str, array: AnyArray) -> AnyArray:
    symbol = {"global": ir.FlatSymbolRefAttr.get(name)}
    loaded = value("util.global.load", [], _type_of(array), symbol)
    return traced(loaded, ElementType.of_dtype(array.dtype))
