"""JAX: functions that ``jax.export`` has written, quantized as people write it, beside JAX."""

from __future__ import annotations

import functools
import importlib
import importlib.util
import os
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import subquant
from devices import ON_DEVICES, compile_for
from jax_schemes import (
    BLOCK,
    HIDDEN,
    SCHEMES,
    SHAPES,
    TOKENS,
    WIDTH,
    Model,
    export,
    exported,
    in_bytes,
    jax,
    jnp,
    model,
    of_rows,
    per_channel,
    products,
    rounded,
)
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


RAISING = parse_pipeline(
    "verify-quantization,pack-narrow-storage,raise-dequantization{explain=true},"
    "fuse-block-contractions"
)


def raised_module(data: bytes, remarks: list[Remark] | None = None) -> Any:
    """Return the module of a function after its weights are raised."""
    module = parse_bytes(data, create_context())
    run_pipeline(module, RAISING, on_remark=(remarks if remarks is not None else []).append)
    return module


def two_results(x: Any, params: Any, unused: Any) -> Any:
    """A tree of results; an argument that the module does not get."""
    return {"y": x @ params["w"], "norm": (x * x).sum()}


X = np.arange(8, dtype=np.float32).reshape(2, 4)
ARGUMENTS = (X, {"w": np.ones((4, 3), np.float32)}, np.ones(5, np.float32))


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


@pytest.mark.long
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
    with pytest.raises(ParseError, match=r"it has shardings: export the function for one device"):
        parse_bytes(data, create_context(), "f.jax")


def test_on_one_device_shardings_and_collectives_are_identities() -> None:
    """A mesh of one device: annotations of Shardy, and a sum and an index over its devices."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:1]), ("x",))
    rows, whole = (jax.sharding.PartitionSpec(axis) for axis in ("x", None))
    sharded, replicated = (jax.sharding.NamedSharding(mesh, each) for each in (rows, whole))

    def of_shard(x: Any) -> Any:
        index = jax.lax.axis_index("x").astype(np.float32)
        return x * 2 + jax.lax.psum(x.sum(0, keepdims=True), "x") + index

    def function(x: Any) -> Any:
        x = jax.lax.with_sharding_constraint(x + 1, replicated)
        return jax.shard_map(of_shard, mesh=mesh, in_specs=rows, out_specs=rows)(x)

    function = jax.jit(function, in_shardings=sharded, out_shardings=sharded)
    text = str(export.export(function)(jax.ShapeDtypeStruct(X.shape, X.dtype)).mlir_module())
    assert "sdy.mesh" in text
    assert "sdy.sharding_constraint" in text
    assert "#sdy.sharding<" in text
    assert "all_reduce" in text
    main = subquant.compile(text.encode()).main
    np.testing.assert_array_equal(main(X), (X + 1) * 2 + (X + 1).sum(0, keepdims=True))


SHARDED = """
%s
func.func @main(%%x: tensor<4x8xf32>) -> tensor<4x8xf32> {
  %s
  return %%0 : tensor<4x8xf32>
}
"""
MESH = 'sdy.mesh @"a mesh" = <["a"=1, "b"=%d]> {about = {size = 1}} loc("here")'
CONSTRAINT = '%0 = sdy.sharding_constraint %x <@"a mesh", [{"a"}, {?}]> {n = 1} : tensor<4x8xf32>'
MANUAL = """%0 = sdy.manual_computation(%x) in_shardings=[<@mesh, [{"a"}, {}]>]
      out_shardings=[<@mesh, [{"a"}, {}]>] manual_axes={"a"} (%y: tensor<4x8xf32>) {
    sdy.return %y : tensor<4x8xf32>
  } : (tensor<4x8xf32>) -> tensor<4x8xf32>"""


def test_annotations_of_shardy_are_blanked() -> None:
    group = "sdy.sharding_group %x group_id=0 : tensor<4x8xf32>\n  "
    text = SHARDED % (MESH % 1, group + "// sdy.return\n  " + CONSTRAINT)
    module = parse_bytes(text.encode(), create_context())
    call, _ = module.body.operations[0].regions[0].blocks[0].operations
    assert call.operation.name == "stablehlo.custom_call"
    assert str(call.location) == 'loc("-":6:8)'


@pytest.mark.parametrize(
    ("mesh", "body", "message"),
    [
        (MESH % 3, CONSTRAINT, "<stdin>:2:5: error: the mesh of a sharding has 3 devices; an ex"),
        (MESH % 1, MANUAL, "<stdin>:4:8: error: 'sdy.manual_computation' is for several dev"),
        ('sdy.mesh @m = <["a"=1', CONSTRAINT, "'sdy.mesh' is for several devices, or is not"),
        ("", CONSTRAINT.replace(" : tensor", " : f32, tensor"), "'sdy.sharding_constraint' is"),
        ("", '%0 = sdy.reshard %x <mesh<["a"=2]>, [{"a"}, {}]> : tensor<4x8xf32>', "has 2 devices"),
    ],
)
def test_text_for_several_devices_is_refused_at_its_place(
    mesh: str, body: str, message: str
) -> None:
    with pytest.raises(ParseError) as raised:
        parse_bytes((SHARDED % (mesh, body)).encode(), create_context(), "<stdin>")
    assert message in str(raised.value)


def test_inspect_shows_weights_by_their_names() -> None:
    [*weights] = mlir_client.inspect(model("int4 in blocks", "block").exported)
    assert {each.name for each in weights} == {f"weights['{name}'][0]" for name in SHAPES}
    assert {str(each.parameters.storage) for each in weights} == {"i4"}


CASES = [(scheme, kind) for scheme in SCHEMES for kind in ("layer", "block")]


@pytest.mark.parametrize(("scheme", "kind"), CASES)
@pytest.mark.share(6)
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
@pytest.mark.share(42)
def test_the_answers_are_those_of_jax(scheme: str, kind: str, device: Device) -> None:
    """Dequantized weights are the same numbers; sums of up to 128 products differ in order.

    A layer is within K * 2**-24 * sum |x| |w| of the exact sum, in subquant and JAX. With a zero
    point that is subtracted afterwards, accumulators are ten times their difference. Dynamically
    quantized activations may round differently at a tie, by a step of 1/127; bf16 values by 1/256.
    In a block these differences meet norms and a softmax of numbers near 1: 1e-4 of the greatest
    result, 2e-2 with steps.
    """
    scheme_, model_ = SCHEMES.get(scheme, SCHEMES["int4 in blocks"]), model(scheme, kind)
    assert model_.relative_error(device) <= scheme_.bounds[kind == "block"]


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


SINGLES = {
    "embedding": (0, 1, 0), "embedding in blocks": (0, 1, 1), "embedding of channels": (0, 1, 0),
    "experts": (1, 0, 0), "chosen experts": (1, 0, 0), "left operand": (1, 0, 0),
}  # fmt: skip
"""The number of contractions, dequantizations and unpackings of each function."""


@functools.cache
def singles() -> dict[str, Model]:
    rng = np.random.default_rng(3)

    def q(*shape: int) -> np.ndarray:
        return rng.integers(-128, 128, shape).astype(np.int8)

    def reals(*shape: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, shape).astype(np.float32)

    ids = np.array([[0, 39, 7], [7, 21, 3]], np.int32)
    int4 = jnp.asarray(rng.integers(-8, 8, (ROWS, WIDTH)), jnp.int4)
    expert = np.array([2, 0, 0, 1], np.int32)
    channels, by_expert = q(ROWS, WIDTH), q(EXPERTS, WIDTH, 8)
    return {
        "embedding": Model(embedding, (ids, channels, reals(ROWS))),
        "embedding in blocks": Model(embedding_in_blocks, (ids, int4, reals(ROWS, 2))),
        "embedding of channels": Model(
            lambda ids, q, scales: (q.astype(np.float32) * scales)[ids],
            (ids, channels, reals(WIDTH)),
        ),
        "experts": Model(experts, (reals(EXPERTS, 4, WIDTH), by_expert, reals(EXPERTS, 8))),
        "chosen experts": Model(
            chosen_experts, (expert, reals(4, WIDTH), by_expert, reals(EXPERTS, 8))
        ),
        "left operand": Model(
            lambda x, q, scales: jnp.einsum("oi,bi->bo", q.astype(np.float32) * scales[:, None], x),
            (reals(4, WIDTH), q(8, WIDTH), reals(8)),
        ),
    }


@pytest.mark.parametrize("name", SINGLES)
def test_tables_and_experts_are_raised(name: str) -> None:
    module = raised_module(singles()[name].exported)
    operations = list(walk(module.operation))
    names = ("subquant.block_contraction", "subquant.dequantize", "subquant.unpack")
    assert tuple(sum(op.name == each for op in operations) for each in names) == SINGLES[name]
    # Only the gathered rows are dequantized or unpacked.
    for op in operations:
        if op.name in names[1:]:
            assert ROWS not in list(op.results[0].type.shape)


@pytest.mark.parametrize("name", SINGLES)
@ON_DEVICES
@pytest.mark.share(12)
def test_tables_and_experts_give_the_answers_of_jax(name: str, device: Device) -> None:
    """Rows are the same numbers; products are sums of 64, in another order."""
    contractions, *_ = SINGLES[name]
    assert singles()[name].relative_error(device) <= (1e-6 if contractions else 0)


LAYERS = 3


@pytest.mark.long
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
    assert model_.relative_error(cpu) <= LAYERS * scheme_.bounds[0]


def test_text_of_a_lowered_function(cpu: Device) -> None:
    """It has operations of ``chlo``, and a complex constant."""

    def function(x: Any) -> Any:
        factors = jnp.array([1 + 2j, 3j, -1, 0.5], dtype=jnp.complex64)
        spectrum = jnp.fft.fft(jax.scipy.special.erf(x)) * factors
        largest, indices = jax.lax.top_k(jnp.fft.ifft(spectrum).real, 3)
        return largest, indices

    x = np.random.default_rng(4).standard_normal((5, 4)).astype(np.float32)
    text = jax.jit(function).lower(x).as_text()
    assert "chlo.erf" in text
    assert "chlo.top_k" in text
    assert "complex<f32>" in text
    largest, indices = compile_for(text, cpu).main(x)
    expected_largest, expected_indices = jax.jit(function)(x)
    np.testing.assert_allclose(largest, expected_largest, rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(indices, expected_indices)
