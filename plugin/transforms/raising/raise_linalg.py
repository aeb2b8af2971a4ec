"""``raise-linalg``: contractions of quantized operands in linalg become StableHLO.

IREE's own programs, and kernels that frameworks write by hand, dequantize weights in the body of a
``linalg.generic``, and contract them in another one, in a named operation (``linalg.matmul``), or
in the same body. This pass writes the contraction and the dequantization as StableHLO's operations
on tensors, which `raise-dequantization`, ``contract-storage`` and ``fuse-block-contractions`` take.

Before::

    %d = linalg.generic {indexing_maps = [(n, g, k) -> (n, g, k), (n, g, k) -> (n, g), ...]}
           ins(%q, %s : tensor<8x2x32xi4>, tensor<8x2xf32>) outs(%e : tensor<8x2x32xf32>) {
         ^bb0(%q0: i4, %s0: f32, %out: f32):
           %0 = arith.sitofp %q0 : i4 to f32
           %1 = arith.mulf %0, %s0 : f32
           linalg.yield %1 : f32 } -> tensor<8x2x32xf32>
    %w = tensor.collapse_shape %d [[0], [1, 2]] : tensor<8x2x32xf32> into tensor<8x64xf32>
    %y = linalg.matmul_transpose_b ins(%x, %w : tensor<4x64xf32>, tensor<8x64xf32>) outs(%zeros)

After::

    %0 = stablehlo.convert %q : (tensor<8x2x32xi4>) -> tensor<8x2x32xf32>
    %1 = stablehlo.broadcast_in_dim %s, dims = [0, 1] : (tensor<8x2xf32>) -> tensor<8x2x32xf32>
    %2 = stablehlo.multiply %0, %1 : tensor<8x2x32xf32>
    %w = stablehlo.reshape %2 : (tensor<8x2x32xf32>) -> tensor<8x64xf32>
    %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1] : (...) -> tensor<4x8xf32>

A contraction is a structured operation whose body adds a product to its result: every named one
(``matmul``, ``batch_matmul``, ``matvec``, ``contract``, ``quantized_matmul``), and ``generic``. It
is raised in two cases, and stays as it is in all others:

* An operand is a dequantization that `raise-dequantization` would raise (the pass writes it, and
  asks `raising.arithmetic`), a ``subquant.dequantize``, or a cast of a sub-channel type. The sum
  has the roundings of a sum of floats, in another order.
* Both operands are integers of at most 8 bits, less zero points, and the sum is i32. It is exact.

Convolutions are contractions that read one operand by windows (`raising.linalg_windows`). They are
raised where both operands are quantized, which is where kernels compute them.

With ``explain=true`` a remark on each contraction of narrow integers that stays gives the reason,
and a remark names each dequantization that no contraction reads.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial

from ...core._mlir import Operation, Value, ir
from ...emit.operation import erase_unused, is_used, mlir_type, recorded
from ...errors import Remark
from ...numerics.element_types import I32
from ..base import UNCHANGED, ModulePass, NoMatch, named, value_before
from .arithmetic import STEPS, Arithmetic
from .dequantization_plan import DequantizationPlan
from .facts import ExpressedFact
from .integer_contractions import Difference, contract_differences
from .linalg_contractions import LinalgContraction
from .linalg_loops import Untranslatable, elementwise
from .linalg_values import LinalgTranslator, is_dequantized
from .linalg_windows import LinalgConvolution
from .tensor_views import VIEWS

_ELEMENTWISE = ("linalg.generic", "linalg.map")
_OPERATIONS = (
    *_ELEMENTWISE,
    *("linalg.contract", "linalg.dot", "linalg.matmul", "linalg.matvec", "linalg.vecmat"),
    *("linalg.mmt4d", "linalg.batch_mmt4d", "linalg.batch_matmul", "linalg.batch_reduce_matmul"),
    *("linalg.batch_matvec", "linalg.batch_vecmat", "linalg.quantized_matmul"),
    *("linalg.quantized_batch_matmul", "linalg.conv_1d_ncw_fcw", "linalg.conv_1d_nwc_wcf"),
    *(
        f"linalg.{name}{suffix}"
        for name in (
            *("conv_2d_nchw_fchw", "conv_2d_nhwc_fhwc", "conv_2d_nhwc_hwcf"),
            *("conv_2d_ngchw_gfchw", "conv_2d_nhwgc_gfhwc", "conv_3d_ndhwc_dhwcf"),
            *("depthwise_conv_2d_nhwc_hwc", "depthwise_conv_2d_nhwc_hwcm"),
        )
        for suffix in ("", "_q")
    ),
)
"""Operations whose bodies may contract."""
_ERASED = ("linalg", "tensor", "arith", "flow")
"""Dialects of the producers that a raised contraction leaves without a use."""


@dataclass(frozen=True)
class RaiseLinalg(ModulePass):
    """Write linalg's contractions of quantized operands as StableHLO.

    Options:
        explain: return a remark on each contraction of narrow integers that stays, and on each
            dequantization that no contraction reads.
    """

    explain: bool = False

    def run(self, module: Operation) -> Sequence[Remark] | None:
        """Raise in `module`; never fails."""
        contractions = [LinalgContraction.of(op) for op in named(module, _OPERATIONS)]
        remarks: list[Remark] = []
        is_changed, visited = False, set[Operation]()
        for contraction in filter(None, contractions):
            op, translator = contraction.structured.op, LinalgTranslator()
            if not any(map(translator.reaches_integers, contraction.tensors)):
                continue
            with recorded() as emitted:
                result = _result(contraction, translator, emitted)
            if isinstance(result, NoMatch):
                remarks.append(Remark.about(op, f"is left to IREE: {result.reason}"))
                visited |= translator.producers
            else:
                is_changed = True
                op.results[0].replace_all_uses_with(result)
                erase_unused(op, also=_is_erased)
            for each in reversed(emitted):
                if len(each.results) and not any(map(is_used, each.results)):
                    each.erase()
        if not self.explain:
            return () if is_changed else UNCHANGED
        remarks += _unread(op for op in named(module, _ELEMENTWISE) if op not in visited)
        return remarks if is_changed or remarks else UNCHANGED


def _is_erased(op: Operation) -> bool:
    """True for a producer that goes with its last use; the pass visits contractions itself."""
    is_pure = op.name.partition(".")[0] in _ERASED
    return is_pure and LinalgContraction.of(op) is None


def _unread(operations: Iterable[Operation]) -> Iterator[Remark]:
    """Remarks on dequantizations that no contraction reads."""
    for op in operations:
        structured = elementwise(op)
        if structured is None or not is_used(op.results[0]):
            continue
        body = [each.operation for each in structured.block.operations]
        is_float = isinstance(op.results[0].type.element_type, ir.FloatType)
        converts = any(each.name in ("arith.sitofp", "arith.uitofp") for each in body)
        if is_float and converts and LinalgTranslator().reaches_integers(op.results[0]):
            yield Remark.about(op, "is left to IREE: no contraction reads what it dequantizes")


def _result(
    contraction: LinalgContraction, translator: LinalgTranslator, emitted: Sequence[Operation]
) -> Value | NoMatch:
    """Emit a quantized contraction; `emitted` has the operations that are emitted for it."""
    op = contraction.structured.op
    try:
        with ir.InsertionPoint(op), op.location:
            total = _contract(contraction, translator, emitted)
            if isinstance(total, NoMatch):
                reasons = dict.fromkeys([*translator.reasons.values(), total.reason])
                return NoMatch("; ".join(reasons))
            return contraction.with_initial(total)
    except Untranslatable as error:
        return NoMatch(str(error))


def _contract(
    contraction: LinalgContraction, translator: LinalgTranslator, emitted: Sequence[Operation]
) -> Value | NoMatch:
    """Emit the sum of products, if an operand is dequantized, or both are integers."""
    element = contraction.structured.op.results[0].type.element_type
    convolution = LinalgConvolution.of(contraction)
    if convolution is not None:
        left, right = convolution.emit_sides(translator)
        spaces, emit = None, convolution.emit
    else:
        sides = contraction.sides(translator)
        spaces = [contraction.space(side) for side in sides]
        left, right = (contraction.emit_side(translator, side) for side in sides)
        emit = partial(contraction.emit, spaces=spaces)
    if isinstance(element, ir.IntegerType):
        return _contract_integers(contraction, left, right, spaces, emit)
    arithmetic, reasons = Arithmetic(), dict[str, None]()
    for each in emitted:
        if each.name in STEPS and (reason := arithmetic.follow(each)) is not None:
            reasons[reason.reason] = None
    quantized = [_is_quantized(side, arithmetic, reasons) for side in (left, right)]
    if all(quantized) or (any(quantized) and convolution is None):
        return emit(left, right, element=element)
    if any(quantized):
        return NoMatch("a convolution with one quantized operand has no kernel")
    if reasons:
        return NoMatch(f"the dequantization of an operand {' and '.join(reasons)}")
    return NoMatch("no operand is dequantized in a known form")


def _is_quantized(side: Value, arithmetic: Arithmetic, reasons: dict[str, None]) -> bool:
    """True for a side that is a dequantization; `reasons` gets the reason if it is nearly one."""
    if is_dequantized(value_before(side, *VIEWS, "stablehlo.convert")):
        return True
    fact = arithmetic.of(side)
    if not isinstance(fact, ExpressedFact):
        return False
    plan = DequantizationPlan.of(fact)
    if isinstance(plan, NoMatch):
        reasons[plan.reason] = None
    return isinstance(plan, DequantizationPlan)


def _contract_integers(
    contraction: LinalgContraction,
    left: Value,
    right: Value,
    spaces: Sequence[Sequence[int]] | None,
    emit: Callable[..., Value],
) -> Value | NoMatch:
    """Emit a contraction of integers; `spaces` are the loops of both sides, None for windows."""
    i32, parallel = mlir_type(I32), contraction.parallel
    if contraction.structured.op.results[0].type.element_type != i32:
        return NoMatch("its integers are not summed in i32")
    contracted = [
        [axis for axis, loop in enumerate(space) if loop not in parallel]
        for space in spaces or ((), ())
    ]
    x, w = (
        Difference.of(side, summed) for side, summed in zip((left, right), contracted, strict=True)
    )
    if x is None or w is None:
        return NoMatch("its operands are not integers of at most 8 bits less zero points")
    if spaces is None and (x.computed is not None or w.computed is not None):
        return NoMatch("the zero points of a convolution are computed")
    axes = [
        [parallel.index(loop) if loop in parallel else -1 for loop in space]
        for space in spaces or ((), ())
    ]
    return contract_differences(x, w, contracted, axes, partial(emit, element=i32))
