"""JAX: functions that ``jax.export`` has written, quantized as people write it, beside JAX."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest

import subquant
from devices import ON_DEVICES, compile_for
from programs import LONG
from subquant.compiler import mlir_client
from subquant.compiler.pipeline import parse_pipeline, run_pipeline
from subquant.compiler.reading import parse_bytes
from subquant.dialects import create_context
from subquant.errors import InputError, ParseError, Remark
from subquant.runtime import Device
from subquant.transforms.base import walk

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="the package 'jax' is not installed"
)


class Lazy:
    """A module that is imported at its first use: collecting the tests does not import JAX."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __getattr__(self, attribute: str) -> Any:
        return getattr(importlib.import_module(self._name), attribute)


jax, jnp, export = Lazy("jax"), Lazy("jax.numpy"), Lazy("jax.export")


RAISING = parse_pipeline(
    "verify-quantization,pack-narrow-storage,raise-dequantization{explain=true},"
    "fuse-block-contractions"
)


def raised_module(data: bytes, remarks: list[Remark] | None = None) -> Any:
    """Return the module of a function after its weights are raised."""
    module = parse_bytes(data, create_context())
    run_pipeline(module, RAISING, on_remark=(remarks if remarks is not None else []).append)
    return module


# -- exported functions ---------------------------------------------------------------------------


def two_results(x: Any, params: Any, unused: Any) -> Any:
    """A tree of results; an argument that the module does not get."""
    return {"y": x @ params["w"], "norm": (x * x).sum()}


X = np.arange(8, dtype=np.float32).reshape(2, 4)
ARGUMENTS = (X, {"w": np.ones((4, 3), np.float32)}, np.ones(5, np.float32))


def exported(function: Callable[..., Any], arguments: Any) -> Any:
    """Export a function for the shapes of arguments."""
    shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), arguments)
    return export.export(jax.jit(function))(*shapes)


def serialized(function: Callable[..., Any], *shapes_and_types: tuple[Any, Any]) -> bytes:
    """Export a function for shapes, of which axes may be symbolic."""
    arguments = (jax.ShapeDtypeStruct(*each) for each in shapes_and_types)
    return bytes(export.export(jax.jit(function))(*arguments).serialize())


@pytest.mark.parametrize("form", ["serialize", "mlir_module_serialized", "mlir_module"])
def test_every_form_of_a_function_runs(form: str, cpu: Device) -> None:
    function = exported(two_results, ARGUMENTS)
    source = {
        "serialize": lambda: bytes(function.serialize()),
        "mlir_module_serialized": lambda: function.mlir_module_serialized,
        "mlir_module": lambda: str(function.mlir_module()),
    }[form]()
    main = subquant.compile(source, device=cpu).main
    assert [value.name for value in main.signature.inputs] == ["x", "params['w']"]
    assert [value.name for value in main.signature.outputs] == ["result['norm']", "result['y']"]
    norm, y = main(X, ARGUMENTS[1]["w"])  # type: ignore[call-overload, index]
    assert norm == (X * X).sum()
    assert (y == X @ np.ones((4, 3), np.float32)).all()


def test_derivatives_beside_it_are_left_out(cpu: Device) -> None:
    function = exported(lambda x: x * x, (X[0, :3],))
    data = bytes(function.serialize(vjp_order=1))
    assert (subquant.compile(data, device=cpu).main(X[0, :3]) == X[0, :3] ** 2).all()


@pytest.mark.parametrize("tenths", range(1, 7))
def test_a_cut_file_is_an_error_with_its_field(tenths: int) -> None:
    data = bytes(exported(two_results, ARGUMENTS).serialize())
    with pytest.raises(subquant.SubquantError) as caught:
        parse_bytes(data[: len(data) * tenths // 10], create_context(), "f.jax")
    assert "\n" not in caught.value.message


def test_a_distance_out_of_the_file_is_an_error_with_its_field() -> None:
    data = bytearray(exported(two_results, ARGUMENTS).serialize())
    data[:4] = b"\xff\xff\xff\x7f"
    with pytest.raises(InputError, match=r"^f\.jax: error: the root points to byte 2,147,483,647"):
        parse_bytes(bytes(data), create_context(), "f.jax")


def test_symbolic_dimensions_are_dynamic_ones(cpu: Device) -> None:
    q = jnp.asarray(np.arange(-12, 12, dtype=np.int8).reshape(4, 6))
    shape = export.symbolic_shape("batch, 4")
    data = serialized(lambda x: x @ (q.astype(np.float32) * np.float32(0.5)), (shape, np.float32))
    main = subquant.compile(data, device=cpu).main
    assert [str(value) for value in main.signature.inputs] == ["tensor<?x4xf32>"]
    for rows in (1, 5):
        x = np.arange(4 * rows, dtype=np.float32).reshape(rows, 4)
        assert (main(x) == x @ (np.asarray(q) * np.float32(0.5))).all()


def test_a_dynamic_batch_meets_weights_in_another_order(cpu: Device) -> None:
    """Bytes of two rows: the contraction is over rows of bytes, and those of a byte."""
    rng = np.random.default_rng(2)
    packed, scales = in_bytes((WIDTH, 8), rng)
    batches = export.symbolic_shape(f"batch, 3, {WIDTH}"), np.float32

    def function(x: Any, packed: Any, scales: Any) -> Any:
        return of_rows(x, (packed, scales))

    weight = [(each.shape, each.dtype) for each in (packed, scales)]
    data = serialized(function, batches, *weight)
    module = raised_module(data)
    [contraction] = [op for op in walk(module.operation) if "plane_bits" in op.attributes]
    assert list(contraction.operands[0].type.shape)[1:] == [3, WIDTH // 2, 2]
    main = subquant.compile(data, device=cpu).main
    for batch in (1, 4):
        x = rng.normal(size=(batch, 3, WIDTH)).astype(np.float32)
        expected = np.asarray(function(x, packed, scales))
        assert np.abs(main(x, packed, scales) - expected).max() <= 1e-6 * np.abs(expected).max()


def test_what_is_sharded_is_refused_with_what_to_do() -> None:
    script = """
import sys, jax, numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec
rows = NamedSharding(Mesh(np.array(jax.devices()), ("x",)), PartitionSpec("x"))
function = jax.jit(lambda x: x * 2, in_shardings=rows, out_shardings=rows)
exported = jax.export.export(function)(jax.ShapeDtypeStruct((4, 4), np.float32))
sys.stdout.buffer.write(exported.serialize())
"""
    flags = {"XLA_FLAGS": "--xla_force_host_platform_device_count=2", "JAX_PLATFORMS": "cpu"}
    command = [sys.executable, "-c", script]
    data = subprocess.run(command, env=os.environ | flags, capture_output=True, check=True).stdout
    with pytest.raises(ParseError, match=r"sharded over several devices: export the function for"):
        parse_bytes(data, create_context(), "f.jax")


def test_inspect_shows_weights_by_their_names() -> None:
    [*weights] = mlir_client.inspect(model("int4 in blocks", "block").exported)
    assert {each.name for each in weights} == {f"weights['{name}'][0]" for name in SHAPES}
    assert {str(each.parameters.storage) for each in weights} == {"i4"}


# -- quantized as people write it -----------------------------------------------------------------

WIDTH, HIDDEN, HEADS, BLOCK, TOKENS = 64, 128, 4, 32, 8


@dataclass(frozen=True)
class Scheme:
    """A way to quantize linear layers."""

    weight: Callable[[tuple[int, int], np.random.Generator], tuple[Any, ...]]
    """Integers of a shape, and their parameters."""
    linear: Callable[[Any, tuple[Any, ...]], Any]
    raised: str = "subquant.block_contraction"
    """The operation that a weight is raised to."""
    is_packed: bool = False
    bounds: tuple[float, float] = (1e-6, 1e-4)
    """Relative errors against JAX, of a layer and a block."""
    remarks: tuple[str, ...] = ()


def per_channel(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    scales = rng.uniform(0.5, 1, shape[1]) / (74 * np.sqrt(shape[0]))
    return rng.integers(-127, 128, shape).astype(np.int8), scales.astype(np.float32)


def in_blocks(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    rows, columns = shape
    scales = rng.uniform(0.5, 1, (rows // BLOCK, columns)) / (4.6 * np.sqrt(rows))
    return jnp.asarray(rng.integers(-8, 8, shape), jnp.int4), scales.astype(np.float32)


def with_zero_points(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    """Blocks as an axis of their own, rows of outputs, unsigned."""
    rows, columns = shape
    grid = (columns, rows // BLOCK, 1)
    q = jnp.asarray(rng.integers(0, 16, (columns, rows // BLOCK, BLOCK)), jnp.uint4)
    scales = rng.uniform(0.5, 1, grid) / (4.6 * np.sqrt(rows))
    return q, scales.astype(np.float32), jnp.asarray(rng.integers(6, 10, grid), jnp.uint4)


def scaled_before(x: Any, weight: tuple[Any, ...]) -> Any:
    q, scales = weight
    return x @ (q.astype(np.float32) * scales)


def scaled_after(x: Any, weight: tuple[Any, ...]) -> Any:
    q, scales = weight
    return (x @ q.astype(np.float32)) * scales


def blocked(x: Any, weight: tuple[Any, ...]) -> Any:
    q, scales = weight
    rows, columns = q.shape
    blocks = q.astype(np.float32).reshape(rows // BLOCK, BLOCK, columns)
    return x @ (blocks * scales[:, None, :]).reshape(rows, columns)


def transposed(x: Any, weight: tuple[Any, ...]) -> Any:
    @jax.jit  # a function of its own in the module
    def dequantized(q: Any, scales: Any, zeros: Any) -> Any:
        reals = (q.astype(np.float32) - zeros.astype(np.float32)) * scales
        return reals.reshape(q.shape[0], -1)

    return x @ dequantized(*weight).T


def of_two_scales(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = in_blocks(shape, rng)
    channels = rng.uniform(1, 2, shape[1])
    return q, scales.astype(np.float16), channels.astype(np.float16)


def scaled_twice(x: Any, weight: tuple[Any, ...]) -> Any:
    """Scales of groups, then of channels: all products have at most 24 bits but the last."""
    q, scales, channels = weight
    rows, columns = q.shape
    blocks = q.astype(np.float32).reshape(rows // BLOCK, BLOCK, columns)
    groups = (blocks * scales.astype(np.float32)[:, None, :]).reshape(rows, columns)
    return x @ (groups * channels.astype(np.float32))


def of_bf16(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = per_channel(shape, rng)
    return q, jnp.asarray(scales, jnp.bfloat16)


def product_of_bf16(x: Any, weight: Any) -> Any:
    numbers = (((x.ndim - 1,), (0,)), ((), ()))
    operand = x.astype(jnp.bfloat16)
    return jax.lax.dot_general(operand, weight, numbers, preferred_element_type=np.float32)


def rounded_to_bf16(x: Any, weight: tuple[Any, ...]) -> Any:
    """A weight in bf16, from a product in f32 that is exact."""
    q, scales = weight
    reals = q.astype(np.float32) * scales.astype(np.float32)
    return product_of_bf16(x, reals.astype(jnp.bfloat16))


def bf16_scaled_after(x: Any, weight: tuple[Any, ...]) -> Any:
    """Multiply as AQT multiplies 8-bit weights."""
    q, scales = weight
    return product_of_bf16(x, q.astype(jnp.bfloat16)) * scales.astype(np.float32)


def in_bytes(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    rows, columns = shape
    packed = rng.integers(0, 256, (rows // 2, columns)).astype(np.uint8)
    return packed, (rng.uniform(0.5, 1, columns) / (4.6 * np.sqrt(rows))).astype(np.float32)


def of_rows(x: Any, weight: tuple[Any, ...]) -> Any:
    """A byte has two rows, the first in its low bits."""
    packed, scales = weight
    q = jnp.stack([packed & 15, packed >> 4], 1).reshape(-1, packed.shape[1])
    return x @ ((q.astype(np.float32) - 8) * scales)


def of_halves(x: Any, weight: tuple[Any, ...]) -> Any:
    """High bits are the first rows, signed, low bits the others."""
    packed, scales = weight
    signed = packed.astype(np.int8)
    q = jnp.concatenate([signed >> 4, (signed << 4) >> 4])
    return x @ (q.astype(np.float32) * scales)


def in_words(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    """Eight rows in a word, and eight columns in one of zero points, as GPTQ has them."""
    rows, columns = shape
    words = rng.integers(-(2**31), 2**31, (rows // 8, columns)).astype(np.int32)
    zeros = rng.integers(-(2**31), 2**31, (rows // BLOCK, columns // 8)).astype(np.int32)
    scales = rng.uniform(0.5, 1, (rows // BLOCK, columns)) / (6 * np.sqrt(rows))
    return words, zeros, scales.astype(np.float32)


def of_words(x: Any, weight: tuple[Any, ...]) -> Any:
    words, zeros, scales = weight
    shifts = jnp.arange(0, 32, 4, dtype=np.int32)
    q = ((words[:, None, :] >> shifts[:, None]) & 15).reshape(-1, words.shape[1])
    z = ((zeros[:, :, None] >> shifts) & 15).reshape(zeros.shape[0], -1)
    blocks = q.reshape(-1, BLOCK, q.shape[1]) - z[:, None, :]
    return x @ (blocks.astype(np.float32) * scales[:, None, :]).reshape(q.shape)


def in_heads(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    rows, columns = shape
    q, scales = per_channel((HEADS * rows, columns // HEADS), rng)
    return q.reshape(HEADS, rows, -1), 2 * np.tile(scales, (HEADS, 1))


def of_heads(x: Any, weight: tuple[Any, ...]) -> Any:
    """A head after the other in memory, one beside the other in the product."""
    q, scales = weight
    reals = q.astype(np.float32) * scales[:, None, :]
    return x @ reals.transpose(1, 0, 2).reshape(q.shape[1], -1)


def with_zero_point(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = per_channel(shape, rng)
    return q, scales, rng.integers(-20, 20, shape[1]).astype(np.int8)


def shifted_after(x: Any, weight: tuple[Any, ...]) -> Any:
    q, scales, zeros = weight
    offsets = x.sum(-1, keepdims=True) * zeros.astype(np.float32)
    return (x @ q.astype(np.float32) - offsets) * scales


def in_tiles(shape: tuple[int, int], rng: np.random.Generator) -> tuple[Any, ...]:
    q, scales = in_blocks(shape, rng)
    return q.reshape(-1, BLOCK, shape[1]), scales[:, None, :]


def of_tiles(x: Any, weight: tuple[Any, ...]) -> Any:
    """Multiply as Qwix does: blocks are an axis that the product reduces."""
    q, scales = weight
    tiled = x.reshape(*x.shape[:-1], q.shape[0], BLOCK)
    return jnp.einsum("tbk,bko->to", tiled, q.astype(np.float32) * scales)


def integers(x: Any, weight: tuple[Any, ...]) -> Any:
    """Activations with a scale for each row, found as it runs; products of integers."""
    q, scales = weight
    quantized, steps = rounded(x)
    return products(quantized, q).astype(np.float32) * steps * scales


def rounded(x: Any) -> tuple[Any, Any]:
    steps = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / 127
    return jnp.clip(jnp.round(x / steps), -127, 127).astype(jnp.int8), steps


def products(quantized: Any, q: Any) -> Any:
    numbers = (((quantized.ndim - 1,), (0,)), ((), ()))
    return jax.lax.dot_general(quantized, q, numbers, preferred_element_type=np.int32)


SCHEMES = {
    "int8 per channel": Scheme(per_channel, scaled_before),
    "int8 per channel, scaled after": Scheme(per_channel, scaled_after),
    "int4 in blocks": Scheme(in_blocks, blocked, is_packed=True),
    "uint4 in blocks with zero points": Scheme(with_zero_points, transposed, is_packed=True),
    "int8 by int8": Scheme(
        per_channel, integers, "stablehlo.dot_general", bounds=(2e-2, 2e-2)
    ),
    "int8 by a power of two": Scheme(
        lambda shape, rng: (rng.integers(-127, 128, shape).astype(np.int8),),
        lambda x, weight: x @ (weight[0].astype(np.float32) / 1024),
    ),
    "int4 in blocks, by scales of channels": Scheme(of_two_scales, scaled_twice, is_packed=True),
    "int8 rounded to bf16": Scheme(of_bf16, rounded_to_bf16, bounds=(1e-6, 2e-2)),
    "int8 in bf16, scaled after": Scheme(of_bf16, bf16_scaled_after, bounds=(1e-6, 2e-2)),
    "uint4, two rows in a byte": Scheme(in_bytes, of_rows, is_packed=True),
    "int4, two halves in bytes": Scheme(in_bytes, of_halves, is_packed=True),
    "uint4 in words": Scheme(in_words, of_words, is_packed=True),
    "int8 in heads": Scheme(in_heads, of_heads),
    "int8, the zero point after": Scheme(
        with_zero_point, shifted_after, bounds=(1e-5, 1e-3),
        remarks=("is left alone: has integers that are broadcast",),
    ),
    "int4 in tiles": Scheme(in_tiles, of_tiles, is_packed=True),
}  # fmt: skip


def normalized(x: Any) -> Any:
    return x * jax.lax.rsqrt((x * x).mean(-1, keepdims=True) + 1e-5)


def block_of(layers: dict[str, Callable[[Any, Any], Any]]) -> Callable[[Any, dict[str, Any]], Any]:
    """A transformer block: attention with a causal mask, and a gated layer; both residual."""

    def block(x: Any, weights: dict[str, Any]) -> Any:
        def linear(x: Any, name: str) -> Any:
            return layers[name](x, weights[name])

        tokens = x.shape[0]
        h = normalized(x)
        q, k, v = (linear(h, name).reshape(tokens, HEADS, -1) for name in "qkv")
        scores = jnp.einsum("thd,shd->hts", q, k) / np.sqrt(WIDTH // HEADS)
        mask = jnp.tril(jnp.ones((tokens, tokens), bool))
        scores = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
        mixed = jnp.einsum("hts,shd->thd", scores, v).reshape(tokens, WIDTH)
        x = x + linear(mixed, "o")
        h = normalized(x)
        gated = jax.nn.silu(linear(h, "gate")) * linear(h, "up")
        return x + linear(gated, "down")

    return block


SHAPES = {
    **dict.fromkeys("qkvo", (WIDTH, WIDTH)),
    "gate": (WIDTH, HIDDEN), "up": (WIDTH, HIDDEN), "down": (HIDDEN, WIDTH),
}  # fmt: skip


ALL = {
    "q": "uint4, two rows in a byte", "k": "int4, two halves in bytes", "v": "uint4 in words",
    "o": "int8 in heads", "gate": "int8 by a power of two",
    "up": "int4 in blocks, by scales of channels", "down": "int4 in tiles",
}  # fmt: skip
"""One scheme for each weight of a block."""


@dataclass(eq=False)
class Model:
    """A function and its arguments, exported once."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]

    @functools.cached_property
    def exported(self) -> bytes:
        return bytes(exported(self.function, self.arguments).serialize())

    def expected(self) -> np.ndarray:
        return np.asarray(jax.jit(self.function)(*self.arguments))

    def flat(self) -> list[np.ndarray]:
        return [np.asarray(each) for each in jax.tree.leaves(self.arguments)]


@functools.cache
def model(scheme: str, kind: str) -> Model:
    rng = np.random.default_rng(5)
    x = rng.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    if kind == "layer":
        return Model(SCHEMES[scheme].linear, (x, SCHEMES[scheme].weight((WIDTH, WIDTH), rng)))
    chosen = {name: SCHEMES[ALL.get(name, "") if scheme == "all" else scheme] for name in SHAPES}
    weights = {name: chosen[name].weight(shape, rng) for name, shape in SHAPES.items()}
    return Model(block_of({name: each.linear for name, each in chosen.items()}), (x, weights))


CASES = [(scheme, kind) for scheme in SCHEMES for kind in ("layer", "block")]


@pytest.mark.parametrize(("scheme", "kind"), CASES)
def test_every_weight_is_raised(scheme: str, kind: str) -> None:
    remarks: list[Remark] = []
    module = raised_module(model(scheme, kind).exported, remarks)
    operations = [op for op in walk(module.operation) if op.name == SCHEMES[scheme].raised]
    weights = [op for op in operations if "i8>" in str(op.operands[1].type)]
    assert len(weights) == (1 if kind == "layer" else len(SHAPES))
    assert {each.message for each in remarks} == set(SCHEMES[scheme].remarks)
    assert not any(op.name == "subquant.dequantize" for op in walk(module.operation))
    assert {"plane_bits" in op.attributes for op in weights} == {SCHEMES[scheme].is_packed}


COMPUTED = [(scheme, kind) for scheme, kind in CASES
            if LONG or kind == "layer" or scheme in list(SCHEMES)[:5]]  # fmt: skip
"""Layers, and blocks of the schemes that the mixed block lacks; with ``--long`` all."""


@pytest.mark.parametrize(("scheme", "kind"), [*COMPUTED, ("all", "block")])
@ON_DEVICES
@pytest.mark.share(9)
def test_the_answers_are_those_of_jax(scheme: str, kind: str, device: Device) -> None:
    """Dequantized weights are the same numbers; sums of up to 128 products differ in order.

    A layer is within K * 2**-24 * sum |x| |w| of the exact sum, in subquant and JAX. With a zero
    point that is subtracted afterwards, accumulators are ten times their difference. Dynamically
    quantized activations may round differently at a tie, by a step of 1/127; bf16 values by 1/256.
    In a block these differences meet norms and a softmax of numbers near 1: 1e-4 of the greatest
    result, 2e-2 with steps.
    """
    scheme_, model_ = SCHEMES.get(scheme, SCHEMES["int4 in blocks"]), model(scheme, kind)
    main = compile_for(model_.exported, device).main
    result, expected = main(*model_.flat()), model_.expected()
    bound = scheme_.bounds[kind == "block"]
    assert np.abs(result - expected).max() <= bound * np.abs(expected).max()


@ON_DEVICES
def test_integers_are_exact(device: Device) -> None:
    """Products of integers are those of NumPy; quantized activations are JAX's.

    Vulkan lets a division be off by 2.5 units in the last place, and so a tie go the other way.
    """
    rng = np.random.default_rng(8)
    x = rng.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    q, _ = per_channel((WIDTH, HIDDEN), rng)

    def function(x: Any, q: Any) -> Any:
        quantized, steps = rounded(x)
        return quantized, products(quantized, q), steps

    model_ = Model(function, (x, q))
    main = compile_for(model_.exported, device).main
    quantized, accumulators, steps = main(x, q)
    expected = np.abs(x).max(-1, keepdims=True) / np.float32(127)
    np.testing.assert_allclose(steps, expected, rtol=3 * 2.0**-23 if device.is_vulkan else 0)
    flipped = quantized != np.clip(np.rint(x / steps), -127, 127)
    assert flipped.mean() <= (0.01 if device.is_vulkan else 0)
    assert accumulators.dtype == np.int32
    assert (accumulators == quantized.astype(np.int64) @ q.astype(np.int64)).all()


# -- tables and experts ---------------------------------------------------------------------------

EXPERTS, ROWS = 3, 40


def embedding(ids: Any, q: Any, scales: Any) -> Any:
    """Rows of a dequantized table."""
    return jnp.take(q.astype(np.float32) * scales[:, None], ids, axis=0)


def embedding_in_blocks(ids: Any, q: Any, scales: Any) -> Any:
    """Rows of a table of 4 bits, dequantized."""
    rows = q[ids].astype(np.float32).reshape(*ids.shape, -1, BLOCK)
    return (rows * scales[ids][..., None]).reshape(*ids.shape, -1)


def experts(x: Any, q: Any, scales: Any) -> Any:
    """Each expert has rows of its own."""
    return jnp.einsum("ecd,edf->ecf", x, q.astype(np.float32) * scales[:, None, :])


def chosen_experts(ids: Any, x: Any, q: Any, scales: Any) -> Any:
    """Each token has an expert."""
    weights = (q.astype(np.float32) * scales[:, None, :])[ids]
    return jnp.einsum("td,tdf->tf", x, weights)


@functools.cache
def singles() -> dict[str, tuple[Model, tuple[int, ...]]]:
    """Functions of arguments, and how many contractions, dequantizations and unpackings."""
    rng = np.random.default_rng(3)

    def q(*shape: int) -> np.ndarray:
        return rng.integers(-128, 128, shape).astype(np.int8)

    def reals(*shape: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)

    ids = np.array([[0, 39, 7], [7, 21, 3]], np.int32)
    int4 = jnp.asarray(rng.integers(-8, 8, (ROWS, WIDTH)), jnp.int4)
    expert = np.array([2, 0, 0, 1], np.int32)
    channels, by_expert = q(ROWS, WIDTH), q(EXPERTS, WIDTH, 8)
    models = {
        "embedding": (embedding, (ids, channels, reals(ROWS)), (0, 1, 0)),
        "embedding in blocks": (embedding_in_blocks, (ids, int4, reals(ROWS, 2)), (0, 1, 1)),
        "embedding of channels": (lambda ids, q, scales: (q.astype(np.float32) * scales)[ids],
                                  (ids, channels, reals(WIDTH)), (0, 1, 0)),
        "experts": (experts, (reals(EXPERTS, 4, WIDTH), by_expert, reals(EXPERTS, 8)), (1, 0, 0)),
        "chosen experts": (chosen_experts, (expert, reals(4, WIDTH), by_expert, reals(EXPERTS, 8)),
                           (1, 0, 0)),
        "left operand": (
            lambda x, q, scales: jnp.einsum("oi,bi->bo", q.astype(np.float32) * scales[:, None], x),
            (reals(4, WIDTH), q(8, WIDTH), reals(8)), (1, 0, 0),
        ),
    }  # fmt: skip
    return {name: (Model(function, arguments), counts)
            for name, (function, arguments, counts) in models.items()}  # fmt: skip


SINGLES = ("embedding", "embedding in blocks", "embedding of channels", "experts",
           "chosen experts", "left operand")  # fmt: skip
"""The keys of `singles`, which imports JAX."""


@pytest.mark.parametrize("name", SINGLES)
def test_tables_and_experts_are_raised(name: str) -> None:
    model_, counts = singles()[name]
    module = raised_module(model_.exported)
    operations = list(walk(module.operation))
    names = ("subquant.block_contraction", "subquant.dequantize", "subquant.unpack")
    assert tuple(sum(op.name == each for op in operations) for each in names) == counts
    # Only the gathered rows are dequantized or unpacked.
    for op in operations:
        if op.name in names[1:]:
            assert ROWS not in list(op.results[0].type.shape)


@pytest.mark.parametrize("name", SINGLES)
@ON_DEVICES
@pytest.mark.share(2)
def test_tables_and_experts_give_the_answers_of_jax(name: str, device: Device) -> None:
    """Rows are the same numbers; products are sums of 64, in another order."""
    model_, (contractions, *_) = singles()[name]
    result = compile_for(model_.exported, device).main(*model_.flat())
    expected = model_.expected()
    bound = 1e-6 * np.abs(expected).max() if contractions else 0
    assert np.abs(result - expected).max() <= bound


# -- loops over layers ----------------------------------------------------------------------------

LAYERS = 3


@pytest.mark.parametrize(
    "scheme", ["int8 per channel", "int4 in blocks", "uint4, two rows in a byte"]
)
def test_a_loop_over_stacked_weights_reads_them_as_they_are_stored(
    scheme: str, cpu: Device
) -> None:
    """Within the bound of a layer for each."""
    rng, scheme_ = np.random.default_rng(7), SCHEMES[scheme]
    layers = [scheme_.weight((WIDTH, WIDTH), rng) for _ in range(LAYERS)]
    stacked = tuple(jnp.stack(each) for each in zip(*layers, strict=True))
    x = rng.normal(size=(2, WIDTH)).astype(np.float32)

    def function(x: Any, weights: Any) -> Any:
        def step(h: Any, each: Any) -> Any:
            return jnp.tanh(scheme_.linear(h, each)), None

        return jax.lax.scan(step, x, weights)[0]

    model_ = Model(function, (x, stacked))
    module = raised_module(model_.exported)
    operations = list(walk(module.operation))
    [contraction] = [op for op in operations if op.name == "subquant.block_contraction"]
    assert ("plane_bits" in contraction.attributes) == scheme_.is_packed
    assert not any(op.name == "subquant.unpack" for op in operations)
    result = subquant.compile(model_.exported, device=cpu).main(*model_.flat())
    assert np.abs(result - model_.expected()).max() <= LAYERS * scheme_.bounds[0]
