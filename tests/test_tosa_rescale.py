"""The pass that lowers TOSA's rescales: values beside TOSA's pseudocode, and refusals of IREE."""

from __future__ import annotations

import io
import math
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

import subquant
from bare_iree import assert_refused, compile_bare
from programs import LONG, one_operation, run_passes
from subquant.conformance.runner import run_cases
from subquant.conformance.testdata import tosa_cases
from subquant.core._mlir import ir
from subquant.errors import InputError, SubquantError
from subquant.interpreter.interpreted_module import InterpretedModule
from subquant.runtime import Device, Executable
from tosa_rescales import BACK, Mode, check_modes, constant, program, rescale


def interpreted(text: str, *values: np.ndarray) -> list[np.ndarray]:
    """Results of a program after its rescales are StableHLO."""
    return InterpretedModule(run_passes(text, BACK)[0])["main"].invoke([*values])


# -- every rescale mode ---------------------------------------------------------------------------


ALL_BYTES = np.arange(-128, 128).reshape(256, 1).repeat(3, 1).astype(np.int8)
SCALES32 = [([1431655765], [33]), ([1073741824], [30]), ([2147483647], [38]), ([1717986918], [20])]
SCALES32 += [([1431655765, 1073741824, 1999999999], [33, 30, 40]), ([7, 1, 1234567], [40, 62, 2])]
SCALES16 = [([21845], [16]), ([16384], [2]), ([32767, 20000, 17000], [20, 14, 18])]
FLAGS = [
    (("i8", "i8"), (False, False), (-5, 7)),
    (("i8", "i8"), (True, False), (200, 7)),
    (("i8", "i8"), (False, True), (-128, 250)),
    (("i8", "i8"), (True, True), (3, 128)),
    (("i8", "i16"), (False, False), (-5, 0)),
    (("i8", "i16"), (False, True), (-5, 32768)),
    (("i8", "i32"), (False, False), (-5, 0)),
    (("i8", "i32"), (True, False), (255, 0)),
]


def byte_modes(scale32: bool) -> list[Mode]:
    """Every rounding with every scale, signedness and output width, for inputs of i8."""
    return [
        Mode(
            *types, multipliers, shifts, zero_points,
            rounding=rounding, scale32=scale32, unsigned=unsigned,
        )
        for rounding in ("SINGLE_ROUND", "DOUBLE_ROUND", "INEXACT_ROUND")
        for multipliers, shifts in (SCALES32 if scale32 else SCALES16)
        for types, unsigned, zero_points in FLAGS
    ]  # fmt: skip


def some(modes: list[Mode], count: int) -> list[Mode]:
    """One of `count` modes, which divides the numbers of no flag; all in the long suite."""
    return modes if LONG else modes[::count]


@pytest.mark.long
@pytest.mark.parametrize("scale32", [True, False])
def test_all_bytes_in_every_mode_through_stablehlo(scale32: bool) -> None:
    modes = byte_modes(scale32)
    module, _ = run_passes(program(modes, ALL_BYTES.shape), BACK)
    assert "tosa." not in str(module)
    check_modes(modes, ALL_BYTES, InterpretedModule(module)["main"].invoke([ALL_BYTES]))


@pytest.mark.parametrize("scale32", [True, False])
@pytest.mark.parametrize("back", [True, False])
@pytest.mark.share(4)
def test_all_bytes_in_every_mode_on_llvm_cpu(scale32: bool, back: bool, cpu: Device) -> None:
    """Through StableHLO, and through the rescales that ``compile`` lowers itself."""
    modes = some(byte_modes(scale32), 5)
    module, _ = run_passes(program(modes, ALL_BYTES.shape), BACK if back else "verify-quantization")
    check_modes(modes, ALL_BYTES, subquant.compile(module, device=cpu)["main"].invoke([ALL_BYTES]))


@pytest.mark.vulkan
@pytest.mark.parametrize("back", [True, False])
def test_bytes_on_vulkan(back: bool, vulkan: Device) -> None:
    modes = some([*byte_modes(True)[::5], *byte_modes(False)[::5]], 3)
    module, _ = run_passes(program(modes, ALL_BYTES.shape), BACK if back else "verify-quantization")
    executable = subquant.compile(module, target="vulkan", device=vulkan)
    check_modes(modes, ALL_BYTES, executable["main"].invoke([ALL_BYTES]))


WIDE = [-(1 << 31), (1 << 31) - 1, -1, 0, 1, 12345678, -87654321, 1 << 30, -(1 << 20), 255, -256]


@pytest.mark.parametrize("rounding", ["SINGLE_ROUND", "DOUBLE_ROUND", "INEXACT_ROUND"])
def test_wide_inputs(rounding: str, cpu: Device) -> None:
    """32-bit inputs, extremes among them, to every width; products of 62 bits do not wrap."""
    drawn = np.random.default_rng(1).integers(-(1 << 31), 1 << 31, 300 - len(WIDE))
    values = np.array([*WIDE, *drawn]).reshape(100, 3).astype(np.int32)
    modes = [
        Mode("i32", target, multipliers, shifts, (0, zero), rounding=rounding, unsigned=unsigned)
        for multipliers, shifts in [*SCALES32, ([1 << 30], [45]), ([2147483647], [32])]
        for target, unsigned, zero in [
            ("i8", (False, False), -3),
            ("i8", (False, True), 200),
            ("i16", (False, False), 0),
            ("i32", (False, False), 0),
        ]
    ]
    check_modes(modes, values, interpreted(program(modes, values.shape), values))
    modes = some(modes, 3)
    plain = subquant.compile(program(modes, values.shape), device=cpu)
    check_modes(modes, values, plain["main"].invoke([values]))


def test_unsigned_types_and_four_bits() -> None:
    """``ui8`` says by itself how it is read; i4 is a storage type like another."""
    modes = [
        Mode("ui8", target, [1431655765], [31], (200, zero))
        for target, zero in [("i8", 3), ("ui8", 130), ("i16", 0), ("i4", 0)]
    ]
    values = np.arange(256).reshape(256, 1).astype(np.uint8)
    check_modes(modes, values, interpreted(program(modes, values.shape), values))
    modes = [Mode("i4", "i8", [1431655765], [28], (0, 3)), Mode("i4", "i4", [1 << 30], [31])]
    values = np.arange(-8, 8).reshape(16, 1).astype(np.int8)
    check_modes(modes, values, interpreted(program(modes, values.shape), values))


def test_operands_that_are_not_constants(cpu: Device) -> None:
    flags = {"rounding": "DOUBLE_ROUND", "unsigned": (True, False)}
    rescaled = rescale("%x, %m, %k, %xz, %rz", "5x2xi8", "5x2xi8", channels=2, **flags)
    text = f"""
func.func @main(%x: tensor<5x2xi8>, %m: tensor<2xi32>, %k: tensor<2xi8>, %xz: tensor<1xi8>,
                %rz: tensor<1xi8>) -> tensor<5x2xi8> {{
  %r = {rescaled}
  return %r : tensor<5x2xi8>
}}"""
    values = np.array([[0, 1], [200, 255], [-1, -128], [127, 50], [99, 3]]).astype(np.int8)
    mode = Mode("i8", "i8", [1431655765, 1 << 30], [33, 31], (200, -4), **flags)
    arguments = [
        values,
        np.array(mode.multipliers, np.int32),
        np.array(mode.shifts, np.int8),
        np.array([200 - 256], np.int8),
        np.array([-4], np.int8),
    ]
    check_modes([mode], values, interpreted(text, *arguments))
    check_modes([mode], values, subquant.compile(text, device=cpu)["main"].invoke(arguments))


@pytest.mark.parametrize("rounding", ["SINGLE_ROUND", "DOUBLE_ROUND"])
def test_every_shift_may_be_a_value(rounding: str) -> None:
    """Shifts below 2, which TOSA does not define, round like the others."""
    shifts = [0, 1, 2, 3, 30, 31, 32, 33, 45, 61, 62]
    count = len(shifts)
    x_type, flags = f"9x{count}xi32", {"channels": count, "rounding": rounding}
    text = f"""
func.func @main(%x: tensor<{x_type}>, %m: tensor<{count}xi32>, %k: tensor<{count}xi8>)
    -> tensor<{x_type}> {{
  {constant("z", [0], "i32")}
  %r = {rescale("%x, %m, %k, %z, %z", x_type, x_type, zero_types=("i32", "i32"), **flags)}
  return %r : tensor<{x_type}>
}}"""
    module = InterpretedModule(run_passes(text, BACK)[0])
    values = [0, 1, -1, 2, -2, 3, -3, (1 << 31) - 1, -(1 << 31)]
    for multiplier in (1, 3, (1 << 30) + 1, (1 << 31) - 1):
        x = np.array(values, np.int32)[:, None].repeat(count, 1)
        m, k = np.full(count, multiplier, np.int32), np.array(shifts, np.int8)
        (got,) = module["main"].invoke([x, m, k])
        for (row, column), actual in np.ndenumerate(got):
            value, shift = values[row], shifts[column]
            nudge = (1 << 30) * (1 if value >= 0 else -1) if shift > 31 else 0
            nudge = nudge if rounding == "DOUBLE_ROUND" else 0
            exact = Fraction(value * multiplier + nudge, 1 << shift)
            scaled = math.floor(exact + Fraction(1, 2))
            assert actual == min(max(scaled, -(1 << 31)), (1 << 31) - 1), (value, shift)


@pytest.mark.parametrize("range_", ["", "<-100:90>"])
def test_a_quantized_result_has_its_range(range_: str) -> None:
    text = f"""
!q = !quant.uniform<i8{range_}:f32, 0.5:3>
func.func @main(%x: tensor<256xi32>) -> tensor<256x!q> {{
  {constant("m", [1 << 30], "i32")} {constant("k", [30], "i8")}
  {constant("xz", [0], "i32")} {constant("rz", [3], "i8")}
  %r = {rescale("%x, %m, %k, %xz, %rz", "256xi32", "256x!q", zero_types=("i32", "i8"))}
  return %r : tensor<256x!q>
}}"""
    values = np.arange(-128, 128).astype(np.int32)
    (got,) = interpreted(text, values)
    low, high = (-100, 90) if range_ else (-128, 127)
    np.testing.assert_array_equal(got, np.clip(values + 3, low, high))


# -- IREE's own TOSA ------------------------------------------------------------------------------


def bytecode(module: ir.Module) -> bytes:
    stream = io.BytesIO()
    module.operation.write_bytecode(stream)
    return stream.getvalue()


@pytest.mark.long
def test_iree_takes_bytecode_and_generic_text(cpu: Device) -> None:
    """IREE 3.13 does not parse the rescale's own syntax, which newer MLIR prints."""
    modes = [
        mode for mode in byte_modes(True)[::3]
        if mode.rounding != "INEXACT_ROUND" and not mode.unsigned[1]
    ]  # fmt: skip
    module, _ = run_passes(program(modes, ALL_BYTES.shape), "verify-quantization")
    message = b"custom op 'tosa.rescale' expected 'scale32'"
    assert_refused(str(module), message, "the bytecode where text is easier to read")
    for data in (module.operation.get_asm(print_generic_op_form=True), bytecode(module)):
        executable = Executable(compile_bare(data), device=cpu)
        check_modes(modes, ALL_BYTES, executable["main"].invoke([ALL_BYTES]))


@pytest.mark.parametrize(
    ("mode", "message"),
    [
        (Mode("i8", "i32", [1 << 30], [30], rounding="INEXACT_ROUND"), b"requires extension"),
        (
            Mode("i8", "i32", [1 << 14], [14], rounding="DOUBLE_ROUND", scale32=False),
            b"failed to legalize operation 'tosa.rescale'",
        ),
        (Mode("i4", "i32", [1 << 30], [30]), b"illegal"),
    ],
)
def test_what_iree_refuses_compiles(mode: Mode, message: bytes, cpu: Device) -> None:
    values = np.arange(-8, 8).reshape(16, 1).astype(np.int8)
    module, _ = run_passes(program([mode], values.shape), "verify-quantization")
    assert_refused(bytecode(module), message, "the limit from docs/guide/tosa.md")
    check_modes([mode], values, subquant.compile(module, device=cpu)["main"].invoke([values]))


# -- errors ---------------------------------------------------------------------------------------


def test_a_type_that_no_pass_reads_is_an_error() -> None:
    text = f"""
func.func @main(%x: tensor<4x!quant.any<i8:f32>>, %m: tensor<1xi32>, %k: tensor<1xi8>,
                %z: tensor<1xi8>) -> tensor<4xi8> {{
  %r = {rescale("%x, %m, %k, %z, %z", "4x!quant.any<i8:f32>", "4xi8")}
  return %r : tensor<4xi8>
}}"""
    with pytest.raises(SubquantError, match=r"'tosa\.rescale' op"):
        run_passes(text, BACK)


# -- the cases of a StableHLO checkout ------------------------------------------------------------

OWN_FILES = {
    "legalize_quant_ops_to_tosa_rescale.mlir": "\n// -----"
    + one_operation(
        "stablehlo.subtract %0, %1",
        ("9x!quant.uniform<i8:f32, 0.5:1>", "9x!quant.uniform<i8:f32, 0.3:2>"),
        "9x!quant.uniform<i8:f32, 0.7>",
        name="own",
    ),
    "rescale_interpreter.mlir": """
func.func @main() -> tensor<i1> {
  %x = stablehlo.constant dense<[1.0, -2.5]> : tensor<2xf32>
  %e = stablehlo.constant dense<[1.0, 2.6]> : tensor<2xf32>
  %q = stablehlo.uniform_quantize %x : (tensor<2xf32>) -> tensor<2x!quant.uniform<i8:f32, 0.5>>
  %a = stablehlo.abs %q : (tensor<2x!quant.uniform<i8:f32, 0.5>>)
      -> tensor<2x!quant.uniform<i8:f32, 0.5>>
  %r = stablehlo.uniform_dequantize %a : (tensor<2x!quant.uniform<i8:f32, 0.5>>) -> tensor<2xf32>
  %c = stablehlo.custom_call @check.eq(%r, %e) : (tensor<2xf32>, tensor<2xf32>) -> tensor<i1>
  return %c : tensor<i1>
}
""",
}


def checkout(root: Path, files: dict[str, str]) -> Path:
    folder = root / "stablehlo/conversions/tosa/tests"
    folder.mkdir(parents=True)
    for name, text in files.items():
        (folder / name).write_text(text)
    return root


def test_a_checkout_gives_cases(tmp_path: Path) -> None:
    """The golden of the second file is wrong in its last element, and so is the outcome."""
    cases = tosa_cases(checkout(tmp_path, OWN_FILES))
    assert [case.name for case in cases] == [
        "stablehlo-tosa/legalize_quant_ops_to_tosa_rescale:own",
        "stablehlo-tosa/rescale_interpreter:main",
    ]
    outcomes = run_cases(cases, "llvm-cpu", 1, lambda outcome: None)
    assert [outcome.status for outcome in outcomes] == ["pass", "wrong"]
    assert "1 of 2 elements differ, the first at [1]: expected 2.59" in outcomes[1].message


def test_a_checkout_without_the_folder_gives_none(tmp_path: Path) -> None:
    assert tosa_cases(tmp_path) == []


def test_another_form_is_an_error_with_its_place(tmp_path: Path) -> None:
    name = "legalize_quant_ops_to_tosa_rescale.mlir"
    before, ret, after = OWN_FILES[name].partition("  return %r")
    extra = "  %s = stablehlo.negate %r : tensor<9x!quant.uniform<i8:f32, 0.7>>\n"
    text = before + extra + ret + after
    with pytest.raises(InputError, match=r"mlir:3:.* has 2 operations, expected one"):
        tosa_cases(checkout(tmp_path, {name: text}))
