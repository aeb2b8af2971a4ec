"""The command line, called in this process."""

from __future__ import annotations

from pathlib import Path

from click.testing import CliRunner, Result

from subquant.cli import main

MODEL = """
!q = !quant.uniform<i8:f32, 0.5:1>
!u = !quant.uniform<u4<1:14>:f32:{0:2}, {1.0:2, 2.0:8}>
func.func @main(%x: tensor<4xf32>) -> tensor<4x!q> {
  %q = quant.qcast %x : tensor<4xf32> to tensor<4x!q>
  return %q : tensor<4x!q>
}
func.func @back(%q: tensor<4x!u>) -> tensor<4xf32> {
  %x = quant.dcast %q : tensor<4x!u> to tensor<4xf32>
  return %x : tensor<4xf32>
}
func.func @two(%a: i32, %b: i4, %h: bf16) -> (i32, i4, bf16) {
  %w = arith.extsi %b : i4 to i32
  %s = arith.addi %a, %w : i32
  return %s, %b, %h : i32, i4, bf16
}
func.func @divide(%x: tensor<2xf32>, %y: tensor<2xf32>) -> tensor<2xf32> {
  %z = arith.divf %x, %y : tensor<2xf32>
  return %z : tensor<2xf32>
}
func.func @columns(%x: tensor<?x!u>) -> tensor<?xf32> {
  %y = quant.dcast %x : tensor<?x!u> to tensor<?xf32>
  return %y : tensor<?xf32>
}
func.func @nothing() {
  return
}
"""
"""A module of functions with quantized, unsigned, narrow and dynamic arguments."""
INPUT = ("--input", "4xf32=1,2,3,1000")
QUANTIZED_I8 = "result[0]: 4xi8=3 5 7 127\n"
WRONG = "func.func private @f(tensor<5x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0, 3.0}>>)\n"


def call(*arguments: object, stdin: str | bytes | None = None) -> Result:
    """Run the command line in this process; unhandled exceptions are raised."""
    return CliRunner(catch_exceptions=False).invoke(main, [*map(str, arguments)], input=stdin)


def succeed(*arguments: object, stdin: str | bytes | None = None) -> Result:
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == 0, result.stderr
    return result


def fail(status: int, *arguments: object, stdin: str | bytes | None = None) -> str:
    """Run a call that must fail with `status`; return its standard error."""
    result = call(*arguments, stdin=stdin)
    assert result.exit_code == status, result.output
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    return result.stderr


def fail_in_one_line(status: int, *arguments: object, stdin: str | bytes | None = None) -> str:
    """Run a call that must fail with `status` and one line of standard error; return it."""
    error = fail(status, *arguments, stdin=stdin)
    assert error.count("\n") == 1, error
    return error.rstrip("\n")


def files() -> list[str]:
    return sorted(path.name for path in Path().iterdir())
