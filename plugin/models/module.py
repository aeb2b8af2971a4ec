"""A model as a program: its weights are parameters, its functions those of a session.

::

    util.global private @blk.0.attn_q.weight:qs_low
        = #flow.parameter.named<"model"::"blk.0.attn_q.weight:qs_low"> : tensor<1024x20x16xi8>

    func.func @next(%token: tensor<1xi32>, %position: tensor<i32>,
                    %keys_0: tensor<2048x1x256xf16>, %values_0: ...) -> (tensor<262144xf32>, ...)

The names of the parameters are those of an archive of ``subquant import``. Every function takes the
caches of all blocks, and gives them back with the tokens that it was given:

    read_N   N tokens; gives the caches only
    score_N  N tokens; gives the logits of each, too
    next     a token; gives its logits

The tokens of a prompt are read in pieces of a few lengths, of which the last may be filled up: what
is written to the caches after the prompt is written again before a token attends to it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from .._mlir import Value, ir
from ..dialects import create_context
from ..emit.functions import write_function
from ..emit.operation import create, mlir_type, tensor_type, value
from ..emit.trace import traced
from ..layouts import InferenceTensor, PlanarQuantizedTensor, PrimitiveTensor, QuantizedTensor
from ..numerics.element_types import AnyArray, ElementType
from ..weights.theta import Theta
from .configuration import Configuration, expected_tensors
from .transformer import Cache, embed, logits, run_blocks

__all__ = ["SCOPE", "Shape", "write_module"]

SCOPE = "model"
"""The scope of the parameters."""


@dataclass(frozen=True)
class Shape:
    """The sizes that are chosen when a program is written.

    Attributes:
        context: for how many tokens there is room in the caches.
        pieces: how many tokens the functions ``read_N`` take, descending.
        scored: how many tokens ``score_N`` takes.
    """

    context: int
    pieces: tuple[int, ...] = (128, 16)
    scored: int = 16

    @property
    def rows(self) -> int:
        """The rows of a cache: the last piece of a prompt may be filled up."""
        return self.context + max(*self.pieces, self.scored)


def write_module(
    configuration: Configuration, tensors: Mapping[str, InferenceTensor], shape: Shape
) -> ir.Module:
    """Write a program, in a context of its own.

    Args:
        configuration: of the model.
        tensors: its tensors by name, of whose values only the constants of layouts are used.
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
                functions.write(f"read_{count}", count)
            functions.write(f"score_{shape.scored}", shape.scored, lambda found: [found])
            functions.write("next", 1, lambda found: [found.reshape(-1)])
        module.operation.verify()
        return module


class _Functions:
    """Writes functions at the insertion point."""

    def __init__(self, configuration: Configuration, weights: _Parameters, rows: int) -> None:
        self.configuration = configuration
        self.weights = weights
        c = configuration
        f16 = ir.F16Type.get()
        self.caches = [
            tensor_type([rows, c.kv_heads, size], f16)
            for _ in range(c.blocks)
            for size in (c.key_size, c.value_size)
        ]

    def write(
        self,
        name: str,
        count: int,
        results: Callable[[AnyArray], Sequence[AnyArray]] | None = None,
    ) -> None:
        """Write a function of `count` tokens.

        Args:
            name: of the function.
            count: of the tokens.
            results: what it gives before the caches, of the logits; None for nothing.
        """
        i32 = ir.IntegerType.get_signless(32)

        def body(values: Sequence[Value]) -> list[Value]:
            tokens, position, *given = (traced(each) for each in values)
            caches = [Cache(*pair) for pair in zip(given[::2], given[1::2], strict=True)]
            x = embed(self.configuration, self.weights, tokens)
            x, written = run_blocks(self.configuration, self.weights, x, position, caches)
            found: list[Any] = []
            if results is not None:
                found += results(logits(self.configuration, self.weights, x))
            found += [each for cache in written for each in cache]
            return [each.value for each in found]

        types = [tensor_type([count], i32), tensor_type([], i32), *self.caches]
        write_function(name, types, body)


class _Parameters:
    """Tensors whose arrays are parameters; a part of the tree is loaded where it is asked for.

    Args:
        tensors: by name.
    """

    def __init__(self, tensors: Mapping[str, InferenceTensor]) -> None:
        self._tensors = {
            name: tensor.to_planar() if isinstance(tensor, QuantizedTensor) else tensor
            for name, tensor in tensors.items()
        }
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
