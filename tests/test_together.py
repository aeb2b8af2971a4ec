"""Programs that are compiled as one module still fail alone; which cases the short suite has."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

import conftest
import devices
import programs
from programs import PRODUCT, one_operation
from subquant.compiler import iree_driver
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.reading import parse_text
from subquant.dialects import create_context
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


@pytest.fixture(autouse=True)
def without_requested_names(monkeypatch: pytest.MonkeyPatch) -> None:
    """No program has the name of another test's case."""
    monkeypatch.setattr("together.requested", set())


def test_each_program_has_its_name(cpu: Device) -> None:
    together = Together({"one": adds(1), "ten": f"module {{{adds(10)}\n}}"})
    for name, number in (("ten", 10), ("one", 1)):
        np.testing.assert_array_equal(together.function(name, cpu)(X), X + number)
    assert [*together._compiled] == [(("one", "ten"), None)]


def test_programs_of_cases_that_are_left_out_are_left_out(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("together.requested", {"ten"})
    together = Together({"one": adds(1), "ten": adds(10)})
    for name, number in (("ten", 10), ("one", 1)):
        np.testing.assert_array_equal(together.function(name, cpu)(X), X + number)
    assert [*together._compiled] == [(("ten",), None), (("one", "ten"), None)]


def test_aliases_of_one_name(cpu: Device) -> None:
    def transposed(order: str) -> str:
        text = f"""
func.func @main(%x: tensor<2x2xi32>) -> tensor<2x2xi32> {{
  %e = tensor.empty() : tensor<2x2xi32>
  %r = linalg.generic {{iterator_types = ["parallel", "parallel"], indexing_maps = [
      affine_map<(d0, d1) -> ({order})>, affine_map<(d0, d1) -> (d0, d1)>]}}
      ins(%x : tensor<2x2xi32>) outs(%e : tensor<2x2xi32>) {{
  ^bb0(%in: i32, %out: i32):
    linalg.yield %in : i32
  }} -> tensor<2x2xi32>
  return %r : tensor<2x2xi32>
}}"""
        return str(parse_text(text, create_context()))  # with aliases of the maps

    together = Together({"same": transposed("d0, d1"), "turned": transposed("d1, d0")})
    x = X.reshape(2, 2)
    np.testing.assert_array_equal(together.function("same", cpu)(x), x)
    np.testing.assert_array_equal(together.function("turned", cpu)(x), x.T)
    assert [*together._compiled] == [(("same", "turned"), None)]


def test_only_the_program_that_is_wrong_fails(cpu: Device) -> None:
    together = Together({"one": adds(1), "wrong": adds(5, "i8"), "ten": adds(10)})
    np.testing.assert_array_equal(together.function("one", cpu)(X), X + 1)
    for _ in range(2):
        with pytest.raises(SubquantError, match="expects different type than prior uses"):
            together.function("wrong", cpu)
    np.testing.assert_array_equal(together.function("ten", cpu)(X), X + 10)


@pytest.mark.parametrize("number", [1, 10])
def test_programs_of_tests_beside_one_another_are_one_module(number: int, cpu: Device) -> None:
    np.testing.assert_array_equal(devices.run(adds(number), cpu, X), X + number)
    item = devices._running[0]
    chosen = [
        each.callspec.params["number"]
        for each in item.session.items
        if each.path == item.path and each.originalname == item.originalname
    ]
    assert devices._texts_around((adds(number), ()), cpu) == [adds(each) for each in chosen]
    assert devices._texts_around((adds(2), ()), cpu) == [adds(2)]


def check(number: int, products: int) -> None:
    """The program that `devices` detects in a function called by a test."""
    actual = devices.main_of(adds(number), fuse_below_macs=products)
    np.testing.assert_array_equal(actual(X), X + number)


@pytest.mark.share(1)  # the cases are compiled as one module, so all of them count
@pytest.mark.parametrize(("number", "products"), [(2, 0), (3, 1), (4, 0)])
def test_programs_with_the_same_options_are_one_module(number: int, products: int) -> None:
    check(number, products)
    options = (("fuse_below_macs", products),)
    texts = [[adds(2), adds(4)], [adds(3)]][products]
    assert devices._texts_around((adds(number), options), devices._cpu()) == texts


def test_a_program_may_have_aliases_and_functions_of_its_own(cpu: Device) -> None:
    def called(number: int) -> str:
        return (
            "!t = tensor<4xi32>\n"
            + adds(number).replace("@main", "private @inner")
            + """
func.func @main(%x: !t) -> !t {
  %r = func.call @inner(%x) : (!t) -> !t
  return %r : !t
}"""
        )

    together = Together({"one": called(1), "ten": called(10)})
    for name, number in (("ten", 10), ("one", 1)):
        np.testing.assert_array_equal(together.function(name, cpu)(X), X + number)
    assert [*together._compiled] == [(("one", "ten"), None)]


# -- which cases there are -------------------------------------------------------------------------


@dataclass(eq=False)
class FakeItem:
    nodeid: str
    callspec: SimpleNamespace


def test_a_share_has_each_value_of_each_parameter() -> None:
    cases = [
        FakeItem(f"test[{a}-{b}]", SimpleNamespace(params={"a": a, "b": b}))
        for a in range(6)
        for b in ("cpu", "vulkan")
    ]
    chosen = [tuple(case.callspec.params.values()) for case in conftest._spread(cases, 6)]
    assert sorted(a for a, _ in chosen) == list(range(6))
    assert sorted(b for _, b in chosen) == ["cpu"] * 3 + ["vulkan"] * 3


def test_a_share_of_names_keeps_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    names = [f"{n}" for n in range(10)]
    for is_long, count in ((False, 4), (True, 10)):
        monkeypatch.setattr(programs, "LONG", is_long)
        actual = programs.share_of(names, 3)
        assert len(actual) == count
        assert actual == sorted(actual, key=int)


_WHOLE_KERNELS = """
import os, sys
sys.path[:1] = [PLUGIN, sys.argv[1]]
from iree_hooks import session
session.KernelBodies.take = lambda self, module: None
os._exit(session._main(*sys.argv[2:]))
"""


def test_absent_kernels_and_verification_change_no_code(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A kernel whose body IREE has from the start, in a module that it verifies after each pass."""
    monkeypatch.setenv("SUBQUANT_CACHE", "off")
    program = one_operation(PRODUCT, ["8x64xi8", "64x96xi8"], "8x96xi32")
    code = compile_to_bytes(program)
    python, no_site, session_path, packages = iree_driver.session_command()
    script = tmp_path / "session.py"
    script.write_text(_WHOLE_KERNELS.replace("PLUGIN", repr(str(Path(session_path).parents[1]))))
    command = [python, no_site, str(script), packages]
    monkeypatch.setattr(iree_driver, "session_command", lambda: command)
    monkeypatch.setattr(iree_driver, "VERIFIES_EACH_PASS", True)
    assert compile_to_bytes(program) == code


@pytest.mark.parametrize(("expression", "is_found"), [("device", True), ("not device", False)])
def test_tests_on_devices_are_chosen_by_their_mark(expression: str, is_found: bool) -> None:
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q", "-n0", "-m", expression]
    result = subprocess.run([*command, __file__], capture_output=True, text=True, check=True)
    assert ("test_each_program_has_its_name" in result.stdout) == is_found
    assert ("test_a_share_of_names_keeps_their_order" in result.stdout) != is_found
