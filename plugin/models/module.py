"""A model as a program: its weights are parameters, its functions those of a session.

::

    util.global private @blk.0.attn_q.weight:qs_low
        = #flow.parameter.named<"model"::"blk.0.attn_q.weight:qs_low"> : tensor<1024x20x16xi8>

    func.func @next(%token: tensor<1xi32>, %position: tensor<i32>,
                    %keys_0: tensor<2048x1x256xf16>, %values_0: ...) -> (tensor<262144xf32>, ...)

The names of the parameters are those of an archive of ``subquant import``. The functions are

    prompt(tokens, position, caches) -> logits after the last token, caches
    next(token, position, caches) -> logits after the token, caches
    all(tokens, position, caches) -> logits after each token, caches

and, if the program is written for drafts or for batches, one of

    verify(tokens, position, caches) -> logits after each of 8 tokens, caches
    batch(tokens, positions, caches) -> logits after a token of each of 8 sequences, caches

A prompt has any number of tokens, `next` one, and `all` as many as the shortest of the pieces
below. ``position`` is that of the first; those of a batch are ``[8]``, and its caches are those of
one sequence after the other. The results include the updated caches. Caches are
arguments instead of variables, so that sessions share a program; the caller donates them, and they
are updated in place. A call whose tokens do not fit into the context fails before it writes.

A prompt is read in pieces of a few lengths, by private functions of static shapes::

    %1:37 = scf.for %i = 0 to %pieces iter_args(%last = %0, %k = %keys_0, ...) {
      %tokens = tensor.extract_slice %all[128 * %i] [128] [1] : tensor<2176xi32> to tensor<128xi32>
      %x:37 = call @read_128(%tokens, %position + 128 * %i, %k, ...)
      ...
    } {subquant.in_place}

The last batch is padded: the cache rows after the prompt are overwritten before a token attends to
them, and the caches have spare rows.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from ..compiler.lowering import bytecode_of
from ..core._mlir import Value, ir
from ..core.mapped_files import mappings_of, release_pages
from ..dialects import create_context
from ..emit import ArrayLike, linalg, scalar, variables
from ..emit.functions import write_function
from ..emit.operation import create, index_type, mlir_type, splat, tensor_type, value
from ..emit.parameters import named_parameter
from ..emit.trace import traced
from ..emit.vectors import quotient
from ..formats.checkpoints.layers import PackedTensor
from ..isolation.child import ReportStep
from ..layouts import (
    GgmlTensor,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedTensor,
    StackedArrays,
    StackedTensor,
)
from ..layouts.reordered import ReorderedArray, ReorderedTensor
from ..numerics.cache_formats import formats_of
from ..numerics.element_types import AnyArray, ElementType
from ..weights.theta import Theta
from .configuration import Configuration, expected_tensors
from .interface import SCOPE, STEP_TOKENS, Cache, Shape, batches_of_size
from .source import open_model
from .transformer import embed, logits, run_blocks, run_blocks_of_sequences


def write_module(
    configuration: Configuration, tensors: Mapping[str, InferenceTensor], shape: Shape
) -> ir.Module:
    """Write a model's program in a context of its own; UnsupportedError for a tensor's type."""
    configuration = replace(
        configuration,
        quantizes_activations=shape.rounds_activations,
        rotation=replace(configuration.rotation, context=shape.context),
        window_rotation=replace(configuration.window_rotation, context=shape.context),
    )
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            parameters = _Parameters({n: tensors[n] for n in expected_tensors(configuration)})
            functions = _Functions(configuration, parameters, shape)
            for count in (*shape.pieces, 1):
                functions.write_read(count)
            functions.write_prompt()
            functions.write_all("all", shape.pieces[-1])
            functions.write_next()
            if shape.steps == "batch":
                functions.write_batch()
            if shape.steps == "draft":
                functions.write_read(STEP_TOKENS)
                functions.write_all("verify", STEP_TOKENS)
        module.operation.verify()
        return module


def program(
    arguments: dict[str, Any], blobs: list[bytes], steps: ReportStep
) -> tuple[None, list[bytes]]:
    """Write the program of the file ``path`` for a context and caches as bytecode, in a child.

    ``is_vulkan`` says that no kernel reads chosen experts of floats.

    The process that runs the model does without MLIR, which takes 60 MB and gives none back.
    """
    steps("write the program")
    source = open_model(arguments["path"], lists=False)
    configuration = source.configuration
    if arguments["is_vulkan"]:
        configuration = configuration.without_float_groups()
    shape = Shape.of_context(
        arguments["context"],
        arguments["kv_cache"],
        arguments["rounds_activations"],
        arguments["steps"],
    )
    return None, [bytecode_of(write_module(configuration, source.tensors, shape))]


class _Functions:
    """Writer of the program's functions, at the insertion point."""

    def __init__(self, configuration: Configuration, weights: _Parameters, shape: Shape) -> None:
        self.configuration = configuration
        self.weights = weights
        self.shape = shape
        rows = [shape.rows, configuration.kv_heads]
        self.caches = [
            tensor_type([*rows, each.row_length(configuration.head_size)], mlir_type(each.element))
            for each in formats_of(shape.kv_cache)
        ] * configuration.blocks
        self.position = ir.IntegerType.get_signless(32)

    def write_read(self, count: int) -> None:
        """Write the function of the hidden states of a batch, and of the caches."""

        def body(tokens: Value, position: Value, *arrays_in: Value) -> list[Value]:
            arrays = [traced(each) for each in arrays_in]
            caches = [Cache(*pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)]
            start_position = traced(
                linalg.from_elements([position], tensor_type([], self.position))
            )
            x = embed(self.configuration, self.weights, traced(tokens))
            x, written = run_blocks(self.configuration, self.weights, x, start_position, caches)
            return [x.value, *(each.value for cache in written for each in cache)]

        self._write(_reader(count), count, body, is_public=False)

    def write_prompt(self) -> None:
        """Write ``prompt``: logits after the last token."""

        def body(tokens: Value, position: Value, *caches: Value) -> list[Value]:
            count = scalar(linalg.dim(tokens, 0))
            linalg.check((count >= 1).value, "there are no tokens to read")
            self._check_context(position, count)
            x, *written = self._read_pieces(tokens, count, position, caches)
            return [self._logits(traced(x)).reshape(-1).value, *written]

        self._write("prompt", None, body)

    def write_all(self, name: str, count: int) -> None:
        """Write ``all`` or ``verify``: logits after each of `count` tokens."""

        def body(tokens: Value, position: Value, *caches: Value) -> list[Value]:
            self._check_context(position, scalar(linalg.constant_index(1)))
            x, *written = self._read(count, tokens, position, caches)
            return [self._logits(traced(x)).value, *written]

        self._write(name, count, body)

    def write_next(self) -> None:
        """Write ``next``: logits after one token."""

        def body(token: Value, position: Value, *caches: Value) -> list[Value]:
            self._check_context(position, scalar(linalg.constant_index(1)))
            x, *written = self._read(1, token, position, caches)
            return [self._logits(traced(x)).reshape(-1).value, *written]

        self._write("next", 1, body)

    def write_batch(self) -> None:
        """Write ``batch``: logits after a token of each of some sequences."""
        blocks, count = self.configuration.blocks, STEP_TOKENS

        def body(tokens: Value, positions: Value, *arrays_in: Value) -> list[Value]:
            arrays = [traced(each) for each in arrays_in]
            pairs = [Cache(*pair) for pair in zip(arrays[::2], arrays[1::2], strict=True)]
            caches = [pairs[number::blocks] for number in range(blocks)]
            x = embed(self.configuration, self.weights, traced(tokens))
            x, written = run_blocks_of_sequences(
                self.configuration, self.weights, x, traced(positions), caches
            )
            own = [written[block][n] for n in range(count) for block in range(blocks)]
            return [self._logits(x).value, *(each.value for cache in own for each in cache)]

        types = [_tokens(count), _tokens(count), *(self.caches * count)]
        write_function("batch", types, lambda values: body(*values))

    def _write(
        self,
        name: str,
        count: int | None,
        body: Callable[..., Sequence[Value]],
        *,
        is_public: bool = True,
    ) -> None:
        types = [_tokens(count), self.position, *self.caches]
        write_function(name, types, lambda values: body(*values), is_public=is_public)

    def _check_context(self, position: Value, count: ArrayLike) -> None:
        """Write a check that the tokens fit into the context."""
        context = self.shape.context
        first = scalar(_converted(position, index_type()))
        fits = (first >= 0) & (first <= context - count)
        linalg.check(
            fits.value,
            f"the tokens from the position on do not fit into the context of {context:,}",
        )

    def _read_pieces(
        self, tokens: Value, count: ArrayLike, position: Value, caches: Sequence[Value]
    ) -> list[Value]:
        """Read tokens in batches, by the rule of `batches_of_size`.

        Returns:
            The hidden state of the last token, and the caches.
        """
        start = scalar(linalg.constant_index(0))
        padded_type = tensor_type([self.shape.rows], self.position)
        padded = linalg.put_slice(tokens, linalg.constant(splat(0, padded_type)), start.value)
        carried = [linalg.constant(splat(0, self._rows(1))), *caches]
        for size in self.shape.pieces:
            pieces = batches_of_size(count - start, size, self.shape.pieces, quotient)

            def read(
                number: Value,
                _: Value,
                *arrays_in: Value,
                size: int = size,
                start: ArrayLike = start,
            ) -> list[Value]:
                first = start + scalar(number) * size
                piece = linalg.take_slice(padded, first.value, _tokens(size))
                start_position = scalar(position) + scalar(_converted(first.value, self.position))
                x, *written = self._read(size, piece, start_position.value, arrays_in)
                last = np.minimum(count - first, size) - 1
                return [linalg.take_slice(x, last.value, self._rows(1)), *written]

            first = linalg.constant_index(0)
            carried = linalg.fold(first, pieces.value, carried, read, in_place=True)
            start = np.minimum(start + pieces * size, count)
        return carried

    def _read(
        self, count: int, tokens: Value, position: Value, caches: Sequence[Value]
    ) -> list[Value]:
        """Call the function of `write_read`."""
        callee = {"callee": ir.FlatSymbolRefAttr.get(_reader(count))}
        types = [self._rows(count), *self.caches]
        return list(create("func.call", [tokens, position, *caches], types, callee).results)

    def _rows(self, count: int) -> ir.Type:
        return tensor_type([count, self.configuration.width], ir.F32Type.get())

    def _logits(self, x: AnyArray) -> AnyArray:
        return logits(self.configuration, self.weights, x)


def _reader(count: int) -> str:
    return f"read_{count}"


def _tokens(count: int | None) -> ir.Type:
    return tensor_type([count], ir.IntegerType.get_signless(32))


def _converted(number: Value, type_: ir.Type) -> Value:
    """An integer as one of another type; one of them is ``index``."""
    return value("arith.index_cast", [number], type_)


class _Parameters:
    """Tensors whose arrays are parameters; a part of the tree is loaded where it is asked for.

    Equal orders of inputs are one parameter, so that layers with one input gather it once.
    """

    def __init__(self, tensors: Mapping[str, InferenceTensor]) -> None:
        self._tensors = {name: _planar(tensor) for name, tensor in tensors.items()}
        self._first_names: dict[str, str] = {}
        self._orders: dict[tuple[ir.Block, str], AnyArray] = {}
        names_by_order: dict[bytes, str] = {}
        for tensor in self._tensors.values():
            for name, array in tensor.arrays.items():
                if name.endswith(":order") and array.ndim == 1:
                    first = names_by_order.setdefault(array.tobytes(), name)
                    self._first_names[name] = first
                    if first != name:
                        continue
                initial = named_parameter(SCOPE, name, _type_of(array))
                variables.define(name, initial, is_mutable=False)

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
        arrays = {
            name: self._load_order(self._first_names[name], array)
            if name in self._first_names
            else _load(name, array)
            for name, array in tensor.arrays.items()
        }
        if not isinstance(tensor, PlanarQuantizedTensor):
            return PrimitiveTensor(arrays[tensor.name], tensor.name)
        planes = zip(tensor.layout.planes, arrays.values(), strict=True)
        return PlanarQuantizedTensor(tensor.layout.with_planes(dict(planes)), tensor.name)

    def _load_order(self, name: str, array: AnyArray) -> AnyArray:
        """Load an order of inputs once in a block, so that CSE merges its gathers."""
        key = ir.InsertionPoint.current.block, name
        if key not in self._orders:
            self._orders[key] = _load(name, array)
        return self._orders[key]


def _planar(tensor: InferenceTensor) -> InferenceTensor:
    """The form that archives have of a tensor, with planes whose elements are not computed."""
    derived = (StackedArrays, StackedTensor, ReorderedArray, ReorderedTensor)
    if isinstance(tensor, (*derived, PackedTensor)):
        outline = tensor.outline()
        release_pages(mappings_of(tensor.stored_arrays))
        return outline
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


def _load(name: str, array: AnyArray) -> AnyArray:
    return traced(variables.load(name, _type_of(array)), ElementType.of_dtype(array.dtype))
