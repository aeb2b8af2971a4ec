"""StableHLO's portable artifacts: read in every version, with names, and refused with a reason."""

from __future__ import annotations

import contextlib
from pathlib import Path

import numpy as np
import pytest
from click.testing import CliRunner

import subquant
from subquant._mlir import ir, stablehlo
from subquant.cli import main
from subquant.compiler import worker
from subquant.compiler.artifacts import is_artifact
from subquant.compiler.reading import parse_bytes, parse_text
from subquant.dialects import create_context
from subquant.errors import ParseError
from subquant.runtime import Device

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


@pytest.mark.parametrize(
    "version", ["0.9.0", "0.14.0", "0.17.0", "1.0.0", "1.9.0", stablehlo.get_current_version()]
)
def test_every_version_becomes_the_same_module(version: str) -> None:
    data = artifact(version=version)
    assert is_artifact(data)
    read = parse_bytes(data, create_context())
    assert str(read) == str(parse_text(PROGRAM, create_context()))


def test_its_functions_run(cpu: Device) -> None:
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
def test_names_that_are_none_do_no_harm(names: str, cpu: Device) -> None:
    text = PROGRAM.replace(
        "tensor<f32>) {", f"tensor<f32>) attributes {{subquant.argument_names = {names}}} {{", 1
    )
    signature = subquant.compile(text, device=cpu).main.signature
    assert [str(value) for value in signature.inputs] == ["tensor<2x4xf32>", "tensor<4x3xi8>"]
    assert signature.inputs[0].name in ("", "x")


def test_commands_take_it(in_temporary_folder: Path) -> None:
    Path("m.mlirbc").write_bytes(artifact())

    def said(*arguments: str) -> str:
        result = CliRunner().invoke(main, [*arguments], catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    assert "stablehlo.dot_general" in said("opt", "m.mlirbc", "--passes", "cse")
    assert "params['w']" in said("inspect", "m.mlirbc")  # integers that a contraction takes
    output = said("exec", "m.mlirbc", "--input", "2x4xf32=1", "--input", "4x3xi8=2")
    assert output.endswith("result[1]: f32=1.5\n")


@pytest.mark.parametrize("kept", [0.3, 0.6, 0.99])
def test_a_cut_one_is_one_line(kept: float) -> None:
    data = artifact()
    with pytest.raises(ParseError, match=r"^m\.mlirbc: error: cannot read the portable artifact"):
        parse_bytes(data[: int(len(data) * kept)], create_context(), "m.mlirbc")


def test_a_version_that_is_not_read_is_named() -> None:
    newer = artifact().replace(stablehlo.get_current_version().encode(), b"9.99.0", 1)
    # What it holds is of a version that is known, so it is read.
    parse_bytes(newer, create_context())
    with pytest.raises(ParseError, match=r"it is of StableHLO 9\.99\.0, and versions 0\.9\.0 to"):
        parse_bytes(newer[:-40], create_context())


def test_errors_of_operations_are_where_the_exporter_says() -> None:
    text = PROGRAM.replace(
        'stablehlo.convert %w : (tensor<4x3xi8>) -> tensor<4x3xf32> loc("model.py":7:9)',
        'stablehlo.custom_call @f(%w) : (tensor<4x3x!q>) -> tensor<4x3xf32> loc("model.py":7:9)',
    ).replace("tensor<4x3xi8>", "tensor<4x3x!q>")
    data = artifact("!q = !quant.uniform<i8:f32, 0.5>\n" + text)
    with pytest.raises(subquant.SubquantError, match=r"^model\.py:7:9: error: .*custom_call"):
        subquant.compile(data)


def test_bytes_that_crash_upstream_are_an_error() -> None:
    """What a byte more or less does in upstream's reader happens in another process."""
    data = artifact()
    rng = np.random.default_rng(11)
    for _ in range(40):
        changed = bytearray(data)
        changed[rng.integers(20, len(data))] ^= int(rng.integers(1, 256))
        with contextlib.suppress(subquant.SubquantError):  # anything else is a defect
            worker.optimize(bytes(changed), "m.mlirbc", None, reproducer="/dev/null")
