"""``linear`` and ``matmul``.

``linear(x, w, bias)`` is ``x @ w.T + bias`` for ``x [..., K]`` and ``w [N, K]``, in float32.

* *affine*: integers on both sides. With offsets ``mx``, ``mw``::

      acc = sum_k qx qw - mx sum_k qw - mw sum_k qx + K mx mw,    y = acc * (dx * dw)

  The sums of ``qw`` and ``qx`` are over ``k``: an offset belongs to every term of the sum. ``acc``
  is exact; ``y`` is rounded twice.
* *blocks*: a float left operand and weights in blocks of ``K``, super-blocks among them. Storage
  values are contracted block by block, so a block's scale is multiplied once::

      y = sum_b (d[n, b] * sum_k x[b, k] q[n, b, k] + (m[n, b] - d[n, b] z[n, b]) * sum_k x[b, k])

  In a program the weight is a ``subquant.dequantize`` in front of the contraction, and the passes
  make one block contraction of the two.
* *ordered*: weights whose columns are stored in another order (GPTQ's ``desc_act``). The elements
  of ``x`` are gathered in that order, and the weight is one in its stored order.
* *dequantized*: any layout, by its float values.

Bound of the last two, beside exact sums: ``(K + 4) * 2**-24 * sum_k |x| |w|`` where ``|w|`` is
``|d q| + |d z| + |m|``.
"""

from __future__ import annotations

import numpy as np

from ..errors import UsageError
from ..layouts import BlockAffineLayout, BlockLayout, QuantizedLayout, TensorScaledLayout
from ..layouts.affine import flat_columns
from ..numerics.array_functions import is_known, take
from ..numerics.convolutions import contract
from ..numerics.element_types import AnyArray
from .affine import accumulator, is_affine, offsets, scales_along
from .registry import Argument, Op, Operand, operands, real

linear = Op("linear")
"""``linear(x, w, bias=None)``: ``x [..., K]``, ``w [N, K]``, ``bias [N]`` to ``[..., N]``."""


def _shape(value: Operand) -> tuple[int, ...]:
    return tuple(value.shape)


def _fits(x: Operand, w: Operand, bias: Operand = None) -> bool:
    shapes = _shape(x), _shape(w)
    if len(shapes[1]) != 2 or not shapes[0] or shapes[0][-1] != shapes[1][1]:
        raise UsageError(f"linear takes x [..., K] and w [N, K], got {shapes[0]} and {shapes[1]}")
    if bias is not None and _shape(bias) != shapes[1][:1]:
        raise UsageError(f"linear takes a bias of shape {shapes[1][:1]}, got {_shape(bias)}")
    return True


def _with_bias(result: AnyArray, bias: Operand) -> AnyArray:
    return result if bias is None else result + real(bias)


def _takes_affine(x: Operand, w: Operand, bias: Operand = None) -> bool:
    return _fits(x, w, bias) and is_affine(x, _row_axis(x)) and is_affine(w, 0)


def _row_axis(x: Operand) -> int | None:
    """The axis of a matrix along which the scales of the left operand may differ."""
    return 0 if isinstance(x, QuantizedLayout) and len(x.shape) == 2 else None


def _of_rows(numbers: AnyArray) -> AnyArray:
    """Numbers of rows, one for each, as a column."""
    return numbers.reshape((-1, 1)) if numbers.ndim else numbers


@linear.implementation("affine", _takes_affine)
def _affine(x: Operand, w: Operand, bias: Operand = None) -> AnyArray:
    k = w.shape[1]
    dtype = accumulator(x, w, k)
    qx, qw = x.planes["qs"], w.planes["qs"]
    axis = len(x.shape) - 1
    acc = contract(qx, qw, ((axis,), (1,)), dtype=dtype)
    rows = _row_axis(x)
    mx, mw = offsets(x, rows, dtype), offsets(w, 0, dtype)
    mx = None if mx is None else _of_rows(mx)
    if mx is not None:
        acc = acc - mx * qw.astype(dtype).sum(axis=1, dtype=dtype)
    if mw is not None:
        accumulators = qx.astype(dtype).sum(axis=axis, dtype=dtype, keepdims=True)
        acc = acc - accumulators * mw
    if mx is not None and mw is not None:
        acc = acc + mx * mw * dtype.type(k)
    scales = _of_rows(scales_along(x, rows)) * scales_along(w, 0)
    return _with_bias(acc.astype(np.float32) * scales, bias)


def _takes_ordered(x: Operand, w: Operand, bias: Operand = None) -> bool:
    return (
        _fits(x, w, bias)
        and not isinstance(x, QuantizedLayout)
        and isinstance(w, BlockAffineLayout)
        and "order" in w.planes
    )


@linear.implementation("ordered", _takes_ordered)
def _ordered(x: Operand, w: Operand, bias: Operand = None) -> AnyArray:
    gathered = take(real(x), w.planes["order"], axis=len(_shape(x)) - 1)
    stored = w.in_stored_order()
    implementation = _blocks if _takes_blocks(gathered, stored, bias) else _dequantized
    return implementation(gathered, stored, bias)


def _takes_blocks(x: Operand, w: Operand, bias: Operand = None) -> bool:
    return (
        _fits(x, w, bias)
        and x is not None
        and not isinstance(x, QuantizedLayout)
        and isinstance(w, BlockLayout)
        and w.has_block_form
        and w.row_block is not None
    )


@linear.implementation("blocks", _takes_blocks)
def _blocks(x: Operand, w: Operand, bias: Operand = None) -> AnyArray:
    if not all(map(is_known, (x, *w.planes.values()))):
        return _dequantized(x, w, bias)  # a program's passes find the blocks
    count, k = w.shape
    form = w.block_form()
    blocks = k // w.row_block
    rows = real(x).reshape((-1, blocks, w.row_block))
    stored = form.storage.reshape((count, blocks, w.row_block)).astype(np.float32)
    # [blocks, rows, N]
    accumulators = contract(rows, stored, ((2,), (2,)), ((1,), (1,)))
    scales, offsets = form.real_scales(w.expressed()).astype(np.float32), None
    if form.offsets is not None:
        offsets = form.real_offsets(w.expressed()).astype(np.float32)
    result = (accumulators * scales.T[:, None, :]).sum(axis=0, dtype=np.float32)
    if form.zero_points is not None:
        shift = scales * form.zero_points.astype(np.float32)
        offsets = -shift if offsets is None else offsets - shift
    if offsets is not None:
        result = result + contract(rows.sum(axis=2, dtype=np.float32), offsets, ((1,), (1,)))
    return _with_bias(result.reshape((*_shape(x)[:-1], count)), bias)


@linear.implementation("dequantized", _fits)
def _dequantized(x: Operand, w: Operand, bias: Operand = None) -> AnyArray:
    if isinstance(w, TensorScaledLayout):
        w = w.with_factor_in_scales()  # a dequantization that the passes know
    axis = len(_shape(x)) - 1
    return _with_bias(contract(real(x), real(w), ((axis,), (1,))), bias)


chosen_linear = Op("chosen_linear")
"""``chosen_linear(x, w, choices)``: ``x [B, M, K]``, ``w [E, N, K]`` to ``[B, M, N]``.

``choices [B]`` are integers: row ``b`` of the result is ``x[b] @ w[choices[b]].T``. Only the chosen
matrices are read.
"""


def _are_choices(x: Operand, w: Operand, choices: Operand) -> bool:
    shapes = _shape(x), _shape(w), _shape(choices)
    fits = [len(shape) for shape in shapes] == [3, 3, 1]
    if not fits or shapes[0][2] != shapes[1][2] or shapes[0][:1] != shapes[2]:
        raise UsageError(
            "chosen_linear takes x [B, M, K], w [E, N, K] and choices [B], got "
            f"{shapes[0]}, {shapes[1]} and {shapes[2]}"
        )
    return True


def _has_matrices(x: Operand, w: Operand, choices: Operand) -> bool:
    if not _are_choices(x, w, choices) or not isinstance(w, QuantizedLayout):
        return False
    return all(plane.shape[:1] == w.shape[:1] for plane in w.planes.values())


@chosen_linear.implementation("matrices", _has_matrices)
def _matrices(x: Operand, w: QuantizedLayout, choices: Operand) -> AnyArray:
    planes = {name: take(plane, choices) for name, plane in w.planes.items()}
    chosen = type(w)((_shape(choices)[0], *w.shape[1:]), planes, w.metadata)
    if isinstance(chosen, BlockAffineLayout) and "order" in planes:
        x, chosen = _gathered(x, planes["order"]), chosen.in_stored_order()
    if isinstance(chosen, TensorScaledLayout):
        chosen = chosen.with_factor_in_scales()  # a dequantization that the passes know
    return _chosen(x, real(chosen))


def _gathered(x: Operand, order: AnyArray) -> AnyArray:
    """Return the elements of ``x [B, M, K]`` in an order ``[B, K]`` of the last axis."""
    batch, rows, k = _shape(x)
    columns = real(x).transpose((0, 2, 1)).reshape((batch * k, rows))
    gathered = take(columns, flat_columns(order))
    return gathered.reshape((batch, k, rows)).transpose((0, 2, 1))


@chosen_linear.implementation("dequantized", _are_choices)
def _chosen_of_all(x: Operand, w: Operand, choices: Operand) -> AnyArray:
    w = w.dequant() if isinstance(w, QuantizedLayout) else w
    return _chosen(x, real(take(w, choices)))


def _chosen(x: Operand, w: AnyArray) -> AnyArray:
    return contract(real(x), w, ((2,), (2,)), ((0,), (0,)))


def matmul(x: Argument, w: Argument, *, transpose_rhs: bool = False) -> AnyArray:
    """``x [..., K] @ w [K, N]``, or with `transpose_rhs` `linear`: ``x @ w.T`` of ``w [N, K]``."""
    if transpose_rhs:
        return linear(x, w)
    left, right = map(real, operands(x, w))
    if len(_shape(right)) != 2 or _shape(left)[-1] != _shape(right)[0]:
        raise UsageError(
            f"matmul takes x [..., K] and w [K, N], got {_shape(left)} and {_shape(right)}"
        )
    return contract(left, right, ((len(_shape(left)) - 1,), (0,)))
