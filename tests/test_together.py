"""Programs that are compiled as one module still fail alone."""

from __future__ import annotations

import numpy as np
import pytest

from subquant.errors import SubquantError
from subquant.runtime import Device
from together import Together


def adds(number: int, element: str = "i32") -> str:
    tensor = f"tensor<4x{element}>"
    return f"""
func.func @main(%x: tensor<4xi32>) -> tensor<4xi32> {{
  %c = stablehlo.constant dense<{number}> : {tensor}
  %r = stablehlo.add %x, %c : tensor<4xi32>
  return %r : tensor<4xi32>
}}"""


X = np.arange(4, dtype=np.int32)


def test_each_program_has_its_name(cpu: Device) -> None:
    programs = {"one": adds(1), "ten": f"module {{{adds(10)}\n}}"}
    together = Together(programs)
    for name, number in (("ten", 10), ("one", 1)):
        np.testing.assert_array_equal(together.function(name, cpu)(X), X + number)
    assert [*together._compiled] == [(None, None)]


def test_aliases_of_one_name(cpu: Device) -> None:
    def transposed(order: str) -> str:
        return (
            f"#map = affine_map<(d0, d1) -> ({order})>\n"
            "#map1 = affine_map<(d0, d1) -> (d0, d1)>\n"
            "module {\n"
            "  func.func @main(%x: tensor<2x2xi32>) -> tensor<2x2xi32> {\n"
            "    %e = tensor.empty() : tensor<2x2xi32>\n"
            "    %r = linalg.generic {indexing_maps = [#map, #map1], "
            'iterator_types = ["parallel", "parallel"]} '
            "ins(%x : tensor<2x2xi32>) outs(%e : tensor<2x2xi32>) {\n"
            "    ^bb0(%in: i32, %out: i32):\n"
            "      linalg.yield %in : i32\n"
            "    } -> tensor<2x2xi32>\n"
            "    return %r : tensor<2x2xi32>\n"
            "  }\n"
            "}\n"
        )

    together = Together({"same": transposed("d0, d1"), "turned": transposed("d1, d0")})
    x = X.reshape(2, 2)
    np.testing.assert_array_equal(together.function("same", cpu)(x), x)
    np.testing.assert_array_equal(together.function("turned", cpu)(x), x.T)
    assert [*together._compiled] == [(None, None)]


def test_only_the_program_that_is_wrong_fails(cpu: Device) -> None:
    together = Together({"one": adds(1), "wrong": adds(5, "i8"), "ten": adds(10)})
    np.testing.assert_array_equal(together.function("one", cpu)(X), X + 1)
    for _ in range(2):
        with pytest.raises(SubquantError, match="expects different type than prior uses"):
            together.function("wrong", cpu)
    np.testing.assert_array_equal(together.function("ten", cpu)(X), X + 10)
