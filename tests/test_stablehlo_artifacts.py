"""Portable artifacts of StableHLO: each version is read, with names, or refused with a reason."""

from __future__ import annotations

import contextlib
import functools
from pathlib import Path

import numpy as np
import pytest

import subquant
from command_line import succeed
from stablehlo_forms import PROGRAMS, QUANTIZED_PROGRAMS
from subquant.compiler import mlir_client
from subquant.compiler.lowering import bytecode_of
from subquant.compiler.reading import parse_bytes, parse_text
from subquant.compiler.stablehlo_artifacts import is_artifact
from subquant.core._mlir import ir, stablehlo
from subquant.dialects import create_context
from subquant.errors import ParseError
from subquant.runtime import Device
from subquant.transforms.base import walk

PROGRAM = """
func.func @main(%x: tensor<2x4xf32> loc("x"), %w: tensor<4x3xi8> loc("params['w']"))
    -> (tensor<2x3xf32> {jax.result_info = "result['y']"}, tensor<f32>) {
  %0 = stablehlo.convert %w : (tensor<4x3xi8>) -> tensor<4x3xf32> loc("model.py":7:9)
  %1 = stablehlo.dot_general %x, %0, contracting_dims = [1] x [0]
      : (tensor<2x4xf32>, tensor<4x3xf32>) -> tensor<2x3xf32>
  %2 = stablehlo.constant dense<1.5> : tensor<f32>
  return %1, %2 : tensor<2x3xf32>, tensor<f32>
}
"""


def artifact(text: str = PROGRAM, version: str | None = None) -> bytes:
    """A program as an artifact, of the newest version by default."""
    module = ir.Module.parse(text, create_context())
    target = version or stablehlo.get_current_version()
    return bytes(stablehlo.serialize_portable_artifact(module, target))


VERSIONS = [*(f"0.{minor}.0" for minor in range(9, 21)), *(f"1.{minor}.0" for minor in range(20))]
"""All that StableHLO had, from the oldest that is read."""
FORMS = {
    "main": PROGRAM,
    **{name: text for name, (text, _) in QUANTIZED_PROGRAMS.items()},
    **{
        name: PROGRAMS[name][0]
        for name in ("scatter-later-axes", "scatter-batches", "reduce_window-dilated", "gather",
                     "select_and_scatter", "broadcast_in_dim", "sort-ui8", "dynamic_conv")
    },
}  # fmt: skip
LATER = {"scatter-batches": "1.1.0", "gather": "1.1.0"}
"""Programs with attributes that older versions do not have, and the first that has."""


def test_the_versions_are_those_of_the_wheel() -> None:
    assert VERSIONS[0] == stablehlo.get_minimum_version()
    assert VERSIONS[-1] == stablehlo.get_current_version()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.share(6)
def test_every_version_becomes_the_same_module(version: str) -> None:
    context = create_context()
    for name, text in FORMS.items():
        if VERSIONS.index(version) < VERSIONS.index(LATER.get(name, VERSIONS[0])):
            with pytest.raises(ValueError, match="failed to serialize"):
                artifact(text, version)
            continue
        data = artifact(text, version)
        assert is_artifact(data)
        assert str(parse_bytes(data, context)) == as_it_is(text), name


@functools.cache
def as_it_is(text: str) -> str:
    return str(parse_text(text, create_context()))


def test_functions_of_an_artifact_run(cpu: Device) -> None:
    rng = np.random.default_rng(3)
    x = rng.normal(size=(2, 4)).astype(np.float32)
    w = rng.integers(-128, 128, (4, 3), dtype=np.int8)
    y, constant = subquant.compile(artifact(), device=cpu).main(x, w)
    # 4 products and sums in f32.
    bound = 4 * np.finfo(np.float32).eps * (np.abs(x) @ np.abs(w.astype(np.float64)))
    assert (np.abs(y - x.astype(np.float64) @ w) <= bound).all()
    assert constant == 1.5


def test_names_are_in_the_signature(cpu: Device) -> None:
    function = subquant.compile(artifact(), device=cpu).main
    assert [value.name for value in function.signature.inputs] == ["x", "params['w']"]
    assert [value.name for value in function.signature.outputs] == ["result['y']", ""]
    assert repr(function) == (
        "<function main(x: tensor<2x4xf32>, params['w']: tensor<4x3xi8>) -> "
        "(result['y']: tensor<2x3xf32>, tensor<f32>)>"
    )


@pytest.mark.parametrize("names", ["5", '[1, "w"]', '["x"]', '["x", "w", "more"]', "[]"])
def test_invalid_names_are_ignored(names: str, cpu: Device) -> None:
    text = PROGRAM.replace(
        "tensor<f32>) {", f"tensor<f32>) attributes {{subquant.argument_names = {names}}} {{", 1
    )
    signature = subquant.compile(text, device=cpu).main.signature
    assert [str(value) for value in signature.inputs] == ["tensor<2x4xf32>", "tensor<4x3xi8>"]
    assert signature.inputs[0].name in ("", "x")


def test_commands_read_artifacts(in_temporary_folder: Path) -> None:
    Path("m.mlirbc").write_bytes(artifact())
    assert "stablehlo.dot_general" in succeed("opt", "m.mlirbc", "--passes", "cse").output
    # Integers that a contraction takes are shown.
    assert "params['w']" in succeed("inspect", "m.mlirbc").output
    result = succeed("exec", "m.mlirbc", "--input", "2x4xf32=1", "--input", "4x3xi8=2")
    assert result.output.endswith("result[1]: f32=1.5\n")


@pytest.mark.parametrize("fraction", [0.3, 0.6, 0.99])
def test_a_truncated_artifact_is_one_line(fraction: float) -> None:
    data = artifact()
    with pytest.raises(ParseError, match=r"^m\.mlirbc: error: cannot read the portable artifact"):
        parse_bytes(data[: int(len(data) * fraction)], create_context(), "m.mlirbc")


def of_version(version: bytes) -> bytes:
    return artifact().replace(stablehlo.get_current_version().encode(), version, 1)


def refusal_of(data: bytes) -> str:
    with pytest.raises(ParseError) as caught:
        parse_bytes(data, create_context(), "m.mlirbc")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_newer_version_with_known_features_is_read() -> None:
    newer = of_version(b"9.99.0")
    assert str(parse_bytes(newer, create_context())) == str(parse_text(PROGRAM, create_context()))
    assert refusal_of(newer.replace(b"convert_v1", b"convert_v9")) == (
        "model.py:7:9: error: cannot read the portable artifact: unregistered operation "
        "'vhlo.convert_v9' found in dialect ('vhlo') that does not allow unknown operations; it is "
        "of StableHLO 9.99.0, and versions 0.9.0 to 1.19.0 are read: write it for one of those"
    )


@pytest.mark.parametrize("version", ["0.8.0", "0.3.12", "0.8.99", ".", "0"])
def test_an_older_version_is_refused_whatever_it_uses(version: str) -> None:
    assert refusal_of(of_version(version.encode())) == (
        "m.mlirbc: error: cannot read the portable artifact; it is of StableHLO "
        f"{version}, and versions 0.9.0 to 1.19.0 are read: write it for one of those"
    )


def test_an_operation_that_stablehlo_does_not_have_is_one_line() -> None:
    module = ir.Module.parse(PROGRAM, create_context())
    stablehlo.serialize_portable_artifact(module, VERSIONS[-1])  # leaves the module in VHLO
    [product] = [op for op in walk(module) if op.name == "vhlo.dot_general_v2"]
    with module.context:
        product.attributes["lhs_contracting_dimensions"] = ir.Attribute.parse(
            '#vhlo.string_v1<"last">'
        )
    data, writer = bytecode_of(module), f"StableHLO_v{VERSIONS[-1]}".encode()
    assert refusal_of(data[:5] + writer + data[data.index(b"\0", 5) :]) == (
        "-:5:8: error: cannot read the portable artifact: its 'vhlo.dot_general_v2' is none "
        "that StableHLO has"
    )


def test_negative_dimensions_are_refused() -> None:
    """Upstream's reader accepts them."""
    extent = 1234567
    text = f"""
        func.func @main(%x: tensor<{extent}xf32>) -> tensor<{extent}xf32> {{
          return %x : tensor<{extent}xf32>
        }}
    """
    # A signed number of four bytes, as MLIR's bytecode has it; the last bit of it is the sign.
    written, negative = ((2 * extent + sign << 4 | 8).to_bytes(4, "little") for sign in (0, 1))
    data = artifact(text)
    assert data.count(written) == 1
    assert refusal_of(data.replace(written, negative)).endswith(
        "cannot read the portable artifact: it has a tensor with the dimension size -1234568"
    )


def test_a_name_that_is_no_text_is_one_line() -> None:
    assert "it has a name that is not UTF-8 text" in refusal_of(
        artifact().replace(b"convert_v1", b"convert_v\xff")
    )


def test_errors_of_operations_are_where_the_exporter_says() -> None:
    text = PROGRAM.replace(
        'stablehlo.convert %w : (tensor<4x3xi8>) -> tensor<4x3xf32> loc("model.py":7:9)',
        'stablehlo.custom_call @f(%w) : (tensor<4x3x!q>) -> tensor<4x3xf32> loc("model.py":7:9)',
    ).replace("tensor<4x3xi8>", "tensor<4x3x!q>")
    data = artifact("!q = !quant.uniform<i8:f32, 0.5>\n" + text)
    with pytest.raises(subquant.SubquantError, match=r"^model\.py:7:9: error: .*custom_call"):
        subquant.compile(data)


def test_bytes_that_crash_upstream_are_an_error() -> None:
    """A changed byte can crash upstream's reader, which runs in another process."""
    data = artifact()
    rng = np.random.default_rng(11)
    for _ in range(40):
        changed = bytearray(data)
        changed[rng.integers(20, len(data))] ^= int(rng.integers(1, 256))
        with contextlib.suppress(subquant.SubquantError):  # anything else is a defect
            mlir_client.optimize(bytes(changed), "m.mlirbc", None, reproducer="/dev/null")
