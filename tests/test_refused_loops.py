"""``while`` loops that IREE refuses with structured loops, and compiles with branches.

See `_REMEDIES` in `subquant.compiler.iree_driver`. Expected numbers are those of StableHLO's
interpreter, exactly: all elements are integers.
"""

from __future__ import annotations

import numpy as np
import pytest

from bare_iree import assert_refused
from devices import ON_DEVICES, main_of
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.conformance.interpreter import interpret
from subquant.runtime import Device

UNREAD = """
func.func @main(%x: tensor<4xi32>, %y: tensor<4xi32>, %n: tensor<i32>, %p: tensor<i1>)
    -> (tensor<4xi32>, tensor<4xi32>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %r:3 = stablehlo.while(%k = %zero, %a = %x, %b = %y)
      : tensor<i32>, tensor<4xi32>, tensor<4xi32>
  cond {
    %q = stablehlo.compare LT, %k, %n : (tensor<i32>, tensor<i32>) -> tensor<i1>
    %goes = stablehlo.and %q, %p : tensor<i1>
    stablehlo.return %goes : tensor<i1>
  } do {
    %m = stablehlo.add %k, %one : tensor<i32>
    %double = stablehlo.add %b, %b : tensor<4xi32>
    stablehlo.return %m, %double, %b : tensor<i32>, tensor<4xi32>, tensor<4xi32>
  }
  return %r#1, %r#2 : tensor<4xi32>, tensor<4xi32>
}
"""
"""No iteration reads ``%a``, and the result is used."""

CONSTANTS = """
func.func @main(%x: tensor<4xi32>, %y: tensor<4xi32>, %n: tensor<i32>, %p: tensor<i1>)
    -> (tensor<4xi32>, tensor<4xi32>) {
  %r:2 = "stablehlo.case"(%n) ({
    stablehlo.return %n, %x : tensor<i32>, tensor<4xi32>
  }, {
    %zero = stablehlo.constant dense<0> : tensor<i32>
    %l:4 = stablehlo.while(%a = %n, %b = %n, %k = %zero, %c = %x)
        : tensor<i32>, tensor<i32>, tensor<i32>, tensor<4xi32>
    cond {
      %four = stablehlo.constant dense<4> : tensor<i32>
      %end = stablehlo.minimum %n, %four : tensor<i32>
      %q = stablehlo.compare LT, %k, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
      stablehlo.return %q : tensor<i1>
    } do {
      %one = stablehlo.constant dense<1> : tensor<i32>
      %m = stablehlo.add %k, %one : tensor<i32>
      stablehlo.return %zero, %zero, %m, %c
          : tensor<i32>, tensor<i32>, tensor<i32>, tensor<4xi32>
    }
    stablehlo.return %l#1, %y : tensor<i32>, tensor<4xi32>
  }) : (tensor<i32>) -> (tensor<i32>, tensor<4xi32>)
  return %y, %r#1 : tensor<4xi32>, tensor<4xi32>
}
"""
"""Each iteration yields constants in place of the carried numbers."""

PREVIOUS = """
func.func @main(%x: tensor<4xi32>, %y: tensor<4xi32>, %n: tensor<i32>, %p: tensor<i1>)
    -> (tensor<i1>, tensor<i1>) {
  %zero = stablehlo.constant dense<0> : tensor<i32>
  %one = stablehlo.constant dense<1> : tensor<i32>
  %four = stablehlo.constant dense<4> : tensor<i32>
  %r:4 = stablehlo.while(%a = %p, %b = %p, %k = %zero, %last = %four)
      : tensor<i1>, tensor<i1>, tensor<i32>, tensor<i32>
  cond {
    %end = stablehlo.minimum %n, %four : tensor<i32>
    %q = stablehlo.compare LT, %k, %end : (tensor<i32>, tensor<i32>) -> tensor<i1>
    stablehlo.return %q : tensor<i1>
  } do {
    %m = stablehlo.add %k, %one : tensor<i32>
    stablehlo.return %a, %a, %m, %k : tensor<i1>, tensor<i1>, tensor<i32>, tensor<i32>
  }
  return %r#0, %r#1 : tensor<i1>, tensor<i1>
}
"""
"""No iteration and no result needs ``%last``, the previous count."""

_BRANCH_POINT = b"region branch point has 4 operands, but region successor needs 2 inputs"
_FIXED_POINT = b"maximum iteration count exceeded in fixed point pipeline"
_MATERIALIZATION = b"failed to legalize unresolved source materialization"
_IDS = ("unread", "constants", "previous")


@ON_DEVICES
@pytest.mark.parametrize("text", [UNREAD, CONSTANTS, PREVIOUS], ids=_IDS)
def test_loops_are_compiled_with_branches(device: Device, device_name: str, text: str) -> None:
    x, y = np.arange(4, dtype=np.int32), np.arange(7, 11, dtype=np.int32)
    main = main_of(text, device)
    for count, goes in ((0, True), (3, True), (3, False)):
        arguments = [x, y, np.array(count, np.int32), np.array(goes)]
        for actual, expected in zip(main(*arguments), interpret(text, arguments), strict=True):
            np.testing.assert_array_equal(actual, expected)


@pytest.mark.parametrize(
    ("text", "message"),
    [(UNREAD, _BRANCH_POINT), (CONSTANTS, _FIXED_POINT), (PREVIOUS, _MATERIALIZATION)],
    ids=_IDS,
)
def test_structured_loops_are_still_refused(text: str, message: bytes) -> None:
    lowered = compile_to_bytes(text, CompileOptions(), emit="mlir")
    assert_refused(lowered, message, "convert-scf-to-cf in compiler/iree_driver.py")
