"""JAX: functions that ``jax.export`` has written, quantized as people write it, beside JAX."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import pytest

import subquant
from subquant.compiler.reading import parse_bytes
from subquant.dialects import create_context
from subquant.errors import InputError
from subquant.runtime import Device

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("jax") is None, reason="the package 'jax' is not installed"
)


def exported(function: Any, *arguments: Any) -> Any:
    """A function for arguments of these shapes, as ``jax.export`` has it."""
    import jax
    from jax import export

    shapes = [jax.ShapeDtypeStruct(np.shape(each), each.dtype) for each in arguments]
    return export.export(jax.jit(function))(*shapes)


# -- what JAX writes ------------------------------------------------------------------------------


def two_results(x: Any, params: Any, unused: Any) -> Any:
    """A tree of results; an argument that the module does not get."""
    return {"y": x @ params["w"], "norm": (x * x).sum()}


X = np.arange(8, dtype=np.float32).reshape(2, 4)
ARGUMENTS = (X, {"w": np.ones((4, 3), np.float32)}, np.ones(5, np.float32))


def exported_tree() -> Any:
    import jax
    from jax import export

    shapes = jax.tree.map(lambda each: jax.ShapeDtypeStruct(each.shape, each.dtype), ARGUMENTS)
    return export.export(jax.jit(two_results))(*shapes)


@pytest.mark.parametrize("form", ["serialize", "mlir_module_serialized", "mlir_module"])
def test_every_form_of_a_function_runs(form: str, cpu: Device) -> None:
    function = exported_tree()
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
    import jax
    from jax import export

    function = export.export(jax.jit(lambda x: x * x))(jax.ShapeDtypeStruct((3,), np.float32))
    data = bytes(function.serialize(vjp_order=1))
    assert (subquant.compile(data, device=cpu).main(X[0, :3]) == X[0, :3] ** 2).all()


@pytest.mark.parametrize("kept", range(1, 7))
def test_a_cut_file_is_an_error_with_its_field(kept: int) -> None:
    data = bytes(exported_tree().serialize())
    with pytest.raises(subquant.SubquantError) as caught:
        parse_bytes(data[: len(data) * kept // 10], create_context(), "f.jax")
    assert "\n" not in caught.value.message


def test_a_distance_out_of_the_file_is_an_error_with_its_field() -> None:
    data = bytearray(exported_tree().serialize())
    data[:4] = b"\xff\xff\xff\x7f"
    with pytest.raises(InputError, match=r"^f\.jax: error: the root points to byte 2,147,483,647"):
        parse_bytes(bytes(data), create_context(), "f.jax")
