"""``tosa.transpose_conv2d`` as one convolution for all phases of its strides.

Input pixel ``i`` adds ``x[i] * w[k]`` to output pixel ``i * stride + pad + k``. With ``k = stride *
q + phase``, the output pixels of one phase are a convolution of stride 1 with the kernel taps of
that phase, in reverse order. The kernel is padded to a multiple of the stride
with its zero point. The phases are output channels of one convolution (OC * SY * SX), and are
interleaved afterwards::

    kernel [OC, KH, KW, C] -> [OC, QH, SY, QW, SX, C] -> [SY * SX * OC, QH, QW, C]   (q reversed)
    result [N, H, W, SY * SX * OC] -> [N, H * SY, W * SX, OC]

The input is padded with its zero point, so that output pixels without an input pixel are the bias.
Pixels outside of the result, which ``out_pad`` of either sign moves, are cut off.

Upstream's pass ``tosa-optional-decompositions`` does this too, but not if the weight has another
element type than the input (i16 and i8, i8 and i4), and it breaks depthwise convolutions that pad.

Source: TOSA specification, ``TRANSPOSE_CONV2D``.
"""

from __future__ import annotations

from collections.abc import Sequence

from ... import emit
from ...core._mlir import Operation, Value
from ...emit import linalg, tosa
from ...emit.operation import integers, is_dynamic, with_shape
from ...errors import UnsupportedError


def lower_transpose_conv2d(op: Operation) -> Value:
    """Rewrite a transposed convolution as a convolution, in operations of TOSA.

    Raises:
        UnsupportedError: a dynamic size other than the batch's.
    """
    x, weight, bias, input_zp, weight_zp = op.operands
    if any(is_dynamic(int(size)) for size in (*list(x.type.shape)[1:], *weight.type.shape)):
        raise UnsupportedError(
            "has images or a kernel of dynamic shape; only the batch may be dynamic", op
        )
    strides = [int(step) for step in op.attributes["stride"]]
    top, bottom, left, right = (int(pad) for pad in op.attributes["out_pad"])
    batch, *sizes, _ = map(int, x.type.shape)
    outputs, *kernel, _ = map(int, weight.type.shape)
    taps = [-(-size // step) for size, step in zip(kernel, strides, strict=True)]
    phases = strides[0] * strides[1]
    weight = _phase_weights(weight, weight_zp, strides, taps)

    # Pixels of all phases before the first and after the last one that an input pixel adds to.
    pads = [(top, bottom), (left, right)]
    more = [
        tuple(-(-max(pad, 0) // step) for pad in ends)
        for ends, step in zip(pads, strides, strict=True)
    ]
    x = tosa.pad(
        x,
        [
            (0, 0),
            *((n - 1 + low, n - 1 + high) for n, (low, high) in zip(taps, more, strict=True)),
            (0, 0),
        ],
        input_zp,
    )
    positions = [
        size + n - 1 + low + high for size, n, (low, high) in zip(sizes, taps, more, strict=True)
    ]
    if bias.type.shape[0] == 1:
        bias = tosa.tile(bias, outputs)
    result = op.results[0].type
    shape = [batch, *positions, phases * outputs]
    whole = emit.value(
        "tosa.conv2d",
        [x, weight, tosa.tile(bias, phases), input_zp, weight_zp],
        with_shape(result, shape),
        {
            "acc_type": op.attributes["acc_type"],
            "dilation": integers([1, 1]),
            "pad": integers([0, 0, 0, 0]),
            "stride": integers([1, 1]),
        },
    )
    whole = tosa.reshape(whole, [batch, *positions, *strides, outputs])
    whole = tosa.transpose(whole, [0, 1, 3, 2, 4, 5])
    interleaved = [n * step for n, step in zip(positions, strides, strict=True)]
    whole = tosa.reshape(whole, [batch, *interleaved, outputs])
    first = [
        low * step - before for (low, _), step, (before, _) in zip(more, strides, pads, strict=True)
    ]
    ends = [
        (size - 1) * step + length + sum(ends)
        for size, step, length, ends in zip(sizes, strides, kernel, pads, strict=True)
    ]
    cut = tosa.slice_(whole, [0, *first, 0], [batch, *ends, outputs])
    return linalg.cast(cut, result)


def _phase_weights(
    weight: Value, zero_point: Value, strides: Sequence[int], taps: Sequence[int]
) -> Value:
    """Return a weight ``[OC, KH, KW, C]`` as a reversed kernel of `taps` for each output phase."""
    outputs, *kernel, channels = map(int, weight.type.shape)
    missing = [n * step - size for n, step, size in zip(taps, strides, kernel, strict=True)]
    weight = tosa.pad(weight, [(0, 0), *((0, n) for n in missing), (0, 0)], zero_point)
    by_phase = [outputs, taps[0], strides[0], taps[1], strides[1], channels]
    weight = tosa.transpose(tosa.reshape(weight, by_phase), [2, 4, 0, 1, 3, 5])
    weight = tosa.reshape(weight, [strides[0] * strides[1] * outputs, *taps, channels])
    return tosa.reverse(tosa.reverse(weight, 1), 2)
