"""The lowering beside upstream's C++ pass ``lower-quant-ops``, on inputs where that is defined.

With ``rounding=toward-zero`` the integers must be equal, and the reals equal to the bit. Upstream's
lowering runs on the same IREE behind the same later passes, so only the casts differ. Upstream
truncates and does not saturate: the default rounding is compared where both give one number.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from devices import compile_for
from programs import LONG, Cast, casts, examples, module_text, run_passes, same_bits
from subquant.core._mlir import ir
from subquant.emit import linalg
from subquant.emit.operation import is_dynamic
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from subquant.runtime import Device
from subquant.transforms.base import walk

# IREE removes the roundings between bf16 operations, so upstream's arithmetic cannot be run there.
NOT_BF16 = [ExpressedType.F16, ExpressedType.F32, ExpressedType.F64]


def upstream_accepts(cast: Cast) -> bool:
    """Return True if upstream's casts accept the type and IREE compiles the result.

    IREE does not tile upstream's ``d floordiv block`` for every block size; powers of two are safe.
    """
    parameters = cast.parameters
    if parameters.expressed is ExpressedType.F16 and parameters.storage.width > 12:
        return False  # a zero point would overflow to infinity: undefined in upstream's arithmetic
    return cast.dialect == "quant" and all(b in (1, 2, 4) for b in parameters.block_sizes)


def lowered_by_upstream(text: str) -> ir.Module:
    module, _ = run_passes(text, "lower-quant-ops")
    for op in [op for op in walk(module.operation) if op.name == "tensor.splat"]:
        # IREE does not compile a `tensor.splat` of a dynamic shape: it becomes a loop.
        with module.context, op.location, ir.InsertionPoint(op):
            value, *extents = op.operands
            type_ = op.results[0].type
            shape = [extents.pop(0) if is_dynamic(extent) else extent for extent in type_.shape]
            filled = linalg.filled(shape, value)
        op.results[0].replace_all_uses_with(filled)
        op.erase()
    assert not [op.name for op in module.body.operations if ".qcast" in str(op)]
    return module


@pytest.mark.skipif(not LONG, reason="3 s; the reference is compared with upstream toward nearest")
@settings(max_examples=examples(1))
@given(
    generated=st.lists(casts(expressed=NOT_BF16).filter(upstream_accepts), min_size=4, max_size=6)
)
def test_toward_zero_equals_upstream(generated: list[Cast], cpu: Device) -> None:
    text = module_text(generated)
    theirs = compile_for(lowered_by_upstream(text), cpu)
    ours = compile_for(text, cpu, rounding="toward-zero")
    rng = np.random.default_rng(7)
    for number, cast in enumerate(generated):
        reals = cast.tame_reals(rng)
        expected = theirs[f"q{number}"](reals)
        got = ours[f"q{number}"](reals)
        np.testing.assert_array_equal(got, expected, err_msg=str(cast), strict=True)
        np.testing.assert_array_equal(
            quantize(reals, cast.parameters, "toward-zero"), expected, err_msg=str(cast)
        )
        stored = cast.stored(rng)
        real = theirs[f"d{number}"](stored)
        assert same_bits(ours[f"d{number}"](stored), real), str(cast)
        if cast.parameters.storage.width <= 8:  # so `q - z` is exact in every float
            assert same_bits(dequantize(stored, cast.parameters), real), str(cast)


def test_where_upstream_differs_from_the_contract(cpu: Device) -> None:
    """Truncation instead of rounding, and the numbers that the contract asks for."""
    parameters = QuantizationParameters(StorageType(8), ExpressedType.F32, scales=np.array(2.0))
    text = module_text([Cast(parameters, (4,))])
    theirs = compile_for(lowered_by_upstream(text), cpu)
    ours = compile_for(text, cpu)
    reals = np.array([3.0, 5.0, -3.0, 253.9], np.float32)
    assert theirs.q0(reals).tolist() == [1, 2, -1, 126]
    assert ours.q0(reals).tolist() == [2, 2, -2, 127]
    saturated = ours.q0(np.array([1e9, -1e9, np.inf, np.nan], np.float32))
    assert saturated.tolist() == [127, -128, 127, 0]


@pytest.mark.parametrize("dialect_op", ["quant.qcast", "quant.dcast"])
def test_upstream_lowers_the_same_operations(dialect_op: str) -> None:
    """Both lowerings leave no cast; only ``scast`` is left for the boundary."""
    parameters = QuantizationParameters(
        StorageType(4), ExpressedType.F32, (0,), (2,), np.array([[1.0], [2.0]])
    )
    text = module_text([Cast(parameters, (4, 3))])
    assert dialect_op in text
    ours, _ = run_passes(text, "lower-quant-casts{rounding=toward-zero}")
    for module in (ours, lowered_by_upstream(text)):
        assert dialect_op not in str(module)
        assert "quant.scast" in str(module)
