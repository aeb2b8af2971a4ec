"""Convolutions of linalg, as ``stablehlo.convolution``.

An axis of the image is read at ``output * stride + tap * dilation``, where ``output`` is a loop of
the result, and ``tap`` one of the kernel. The other loops are those of a contraction::

    (b, y, x, o, ky, kx, i) -> (b, y * 2 + ky, x * 2 + kx, i)      image
    (b, y, x, o, ky, kx, i) -> (ky, kx, i, o)                      kernel
    (b, y, x, o, ky, kx, i) -> (b, y, x, o)                        result

    stablehlo.convolution(%image, %kernel) dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f],
        window = {stride = [2, 2]}

Linalg has no padding: a ``tensor.pad`` of the image stays ahead of it. A depthwise convolution has
the loop of its channels in the image, the kernel and the result.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from ...core._mlir import Value, ir
from ...emit import stablehlo
from ...emit.operation import integers, is_dynamic, with_element, with_shape
from .linalg_contractions import LinalgContraction
from .linalg_loops import Structured, Term, Untranslatable
from .linalg_values import LinalgTranslator


@dataclass(frozen=True)
class Axis:
    """An axis of an image: a loop, or the pixels of a window.

    Attributes:
        loop: the loop of the result's axis, or of the features.
        tap: the loop of the kernel's axis; None for an axis without a window.
        stride, dilation: the steps of `loop` and `tap`.
    """

    loop: int
    tap: int | None = None
    stride: int = 1
    dilation: int = 1

    @classmethod
    def of(cls, expression: ir.AffineExpr, parallel: Sequence[int]) -> Axis:
        """The axis that an expression reads; `Untranslatable` if it is no window."""
        if not isinstance(expression, ir.AffineAddExpr):
            term = Term.of(expression)
            if term.loop is None or term.divisor != 1:
                raise Untranslatable(f"its image is read at '{expression}'")
            return cls(term.loop)
        steps = dict([_step(expression.lhs), _step(expression.rhs)])
        outer = [loop for loop in steps if loop in parallel]
        taps = [loop for loop in steps if loop not in parallel]
        if len(outer) != 1 or len(taps) != 1:
            raise Untranslatable(f"its image is read at '{expression}', which is no window")
        return cls(outer[0], taps[0], steps[outer[0]], steps[taps[0]])


def _step(expression: ir.AffineExpr) -> tuple[int, int]:
    """A loop and its factor."""
    if isinstance(expression, ir.AffineMulExpr):
        loop, factor = expression.lhs, expression.rhs
        if isinstance(loop, ir.AffineDimExpr) and isinstance(factor, ir.AffineConstantExpr):
            return loop.position, factor.value
    if isinstance(expression, ir.AffineDimExpr):
        return expression.position, 1
    raise Untranslatable(f"an operand is read at '{expression}', which is no loop")


def image_of(structured: Structured) -> int | None:
    """The number of the operand that is read by windows; None if there is none."""
    for number, map_ in enumerate(structured.maps[:-1]):
        if any(isinstance(each, ir.AffineAddExpr) for each in map_.results):
            return number
    return None


@dataclass(frozen=True)
class LinalgConvolution:
    """A convolution of linalg.

    Attributes:
        contraction: its product.
        axes: the axes of the image.
        image, kernel: the two sides of the product.
    """

    contraction: LinalgContraction
    axes: list[Axis]
    image: Value
    kernel: Value

    @classmethod
    def of(cls, contraction: LinalgContraction) -> LinalgConvolution | None:
        """The convolution of a contraction; None if no operand is read by windows."""
        structured = contraction.structured
        number = image_of(structured)
        if number is None:
            return None
        axes = [Axis.of(each, structured.parallel) for each in structured.maps[number].results]
        sides = [each for each in contraction.tree if number in structured.operands_of(each)]
        if len(sides) != 1:
            raise Untranslatable("its image is on both sides of its product")
        [kernel] = [each for each in contraction.tree if each != sides[0]]
        return cls(contraction, axes, sides[0], kernel)

    def emit_sides(self, translator: LinalgTranslator) -> tuple[Value, Value]:
        """Emit the image in its own order, and the kernel with an axis for each of its loops."""
        structured = self.contraction.structured
        image = translator.of_operand(structured, self.image)
        kernel = self.contraction.emit_side(translator, [self.kernel])
        if self.groups > 1:
            kernel = stablehlo.reshape(kernel, [*map(int, kernel.type.shape), 1])
        return image, kernel

    @cached_property
    def space(self) -> list[int]:
        """The loops of the kernel's axes."""
        return self.contraction.space([self.kernel])

    @cached_property
    def features(self) -> list[int]:
        """The loops of the image without windows that the kernel has."""
        return [axis.loop for axis in self.axes if axis.tap is None and axis.loop in self.space]

    @cached_property
    def groups(self) -> int:
        """The channels of a depthwise convolution; 1 for others."""
        parallel, structured = self.contraction.parallel, self.contraction.structured
        channels = [loop for loop in self.features if loop in parallel]
        return structured.trip_counts[channels[0]] if len(channels) == 1 else 1

    def emit(self, image: Value, kernel: Value, *, element: ir.Type) -> Value:
        """Emit the convolution, with the axes of the result in their order."""
        parallel = self.contraction.parallel
        windows = {axis.tap: axis for axis in self.axes if axis.tap is not None}
        plain = [axis.loop for axis in self.axes if axis.tap is None]
        batch = [loop for loop in plain if loop in parallel and loop not in self.space]
        outputs = [loop for loop in self.space if loop in parallel]
        loops = [*batch, *outputs, *(axis.loop for axis in windows.values()), *windows]
        loops += [] if self.groups > 1 else self.features
        if (
            [len(batch), len(outputs), len(self.features)] != [1, 1, 1]
            or sorted(loops) != list(range(self.contraction.structured.maps[0].n_dims))
            or not windows.keys() <= {*self.space}
        ):
            raise Untranslatable("its loops are not those of a convolution with one batch axis")
        names = {tap: str(n) for n, tap in enumerate(windows)} | {outputs[0]: "o"}
        kernel_layout = [names.get(loop, "i") for loop in self.space]
        kernel_layout += ["i"] if self.groups > 1 else []
        names = {axis.loop: str(n) for n, axis in enumerate(windows.values())} | {batch[0]: "b"}
        image_layout = [names.get(axis.loop, "f") for axis in self.axes]
        result_layout = [names.get(loop, "f") for loop in parallel]
        self._check_window_sizes(image)
        trip_counts = self.contraction.structured.trip_counts
        shape = [trip_counts[loop] for loop in parallel]
        type_ = with_shape(with_element(image.type, element), shape)
        layout = "x".join(f"[{', '.join(each)}]" for each in (image_layout, kernel_layout))
        return stablehlo.convolution(
            image,
            kernel,
            type_,
            f"{layout}->[{', '.join(result_layout)}]",
            {
                "window_strides": integers([axis.stride for axis in windows.values()]),
                "rhs_dilation": integers([axis.dilation for axis in windows.values()]),
            },
            self.groups,
        )

    def _check_window_sizes(self, image: Value) -> None:
        """`Untranslatable` unless the result has all windows that fit the image."""
        trip_counts = self.contraction.structured.trip_counts
        for axis, pixels in zip(self.axes, image.type.shape, strict=True):
            if axis.tap is None:
                continue
            count, taps = trip_counts[axis.loop], trip_counts[axis.tap]
            if any(map(is_dynamic, (int(pixels), count, taps))):
                raise Untranslatable("its image has a dynamic shape")
            reach = (taps - 1) * axis.dilation + 1
            if (int(pixels) - reach) // axis.stride + 1 != count:
                raise Untranslatable("its result has fewer windows than its image")
