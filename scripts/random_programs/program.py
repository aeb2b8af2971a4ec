"""Programs: an int8 contraction and elementwise steps after it."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from .integers import evaluated, stored
from .steps import Numbers, Step, steps_text


@dataclass(frozen=True)
class ConvGeometry:
    """Geometry of a convolution along H and W.

    Attributes:
        strides, dilations: of the kernel.
        padding: before and after an image; negative padding crops it.
        groups: the number of groups of channels.
    """

    strides: tuple[int, int] = (1, 1)
    dilations: tuple[int, int] = (1, 1)
    padding: tuple[tuple[int, int], tuple[int, int]] = ((1, 1), (1, 1))
    groups: int = 1


@dataclass(frozen=True)
class Contraction:
    """An int8 contraction with i32 accumulators.

    Attributes:
        kind: dot, transposed (a dot with an N x K weight), convolution or depthwise.
        x, w: the operands.
        has_weight_argument: the weight is an argument, not a constant.
        geometry: of a convolution.
    """

    kind: str
    x: Numbers
    w: Numbers
    has_weight_argument: bool
    geometry: ConvGeometry = ConvGeometry()

    def accumulators(self) -> Numbers:
        """The accumulators."""
        x, w = self.x.astype(np.int64), self.w.astype(np.int64)
        if self.kind == "dot":
            return x @ w
        if self.kind == "transposed":
            return x @ w.T
        geometry, n_out = self.geometry, self.w.shape[3]
        padding = [(max(0, low), max(0, high)) for low, high in geometry.padding]
        padded = np.pad(x, [(0, 0), *padding, (0, 0)])
        for axis, (low, high) in enumerate(geometry.padding, 1):
            inside = np.arange(max(0, -low), padded.shape[axis] - max(0, -high))
            padded = padded.take(inside, axis)
        axes = [*zip(w.shape, geometry.dilations, geometry.strides, strict=False)]
        sizes = [
            (size - (taps - 1) * dilation - 1) // stride + 1
            for size, (taps, dilation, stride) in zip(padded.shape[1:3], axes, strict=True)
        ]
        accumulators = np.zeros((x.shape[0], *sizes, n_out), np.int64)
        k, n_group = self.w.shape[2], n_out // geometry.groups
        for tap in np.ndindex(*w.shape[:2]):
            rows, columns = (
                np.arange(size) * stride + index * dilation
                for size, index, (_, dilation, stride) in zip(sizes, tap, axes, strict=True)
            )
            pixels = padded[:, rows][:, :, columns]
            for group in range(geometry.groups):
                own = slice(group * n_group, (group + 1) * n_group)
                channels = pixels[..., group * k : (group + 1) * k]
                accumulators[..., own] += channels @ w[tap][:, own]
        return accumulators

    def text(self, shape: str) -> str:
        """The operation; its operands are ``%x`` and ``%w``."""
        types = f"({_type(self.x)}, {_type(self.w)}) -> tensor<{shape}xi32>"
        if self.kind in ("dot", "transposed"):
            axis = int(self.kind == "transposed")
            return f"stablehlo.dot_general %x, %w, contracting_dims = [1] x [{axis}] : {types}"
        geometry = self.geometry
        padding = ", ".join(f"[{low}, {high}]" for low, high in geometry.padding)
        return (
            "stablehlo.convolution(%x, %w) "
            "dim_numbers = [b, 0, 1, f]x[0, 1, i, o]->[b, 0, 1, f], "
            f"window = {{stride = {[*geometry.strides]}, pad = [{padding}], "
            f"rhs_dilate = {[*geometry.dilations]}}} {{batch_group_count = 1 : i64, "
            f"feature_group_count = {geometry.groups} : i64}} : {types}"
        )


@dataclass(frozen=True)
class Program:
    """A contraction and elementwise steps after it.

    Attributes:
        contraction: the contraction.
        steps: the steps.
        results: the values that are returned.
        extra_arguments: arguments beside the contraction's.
    """

    contraction: Contraction
    steps: tuple[Step, ...]
    results: tuple[int, ...]
    extra_arguments: tuple[Numbers, ...] = ()

    def arguments(self) -> list[Numbers]:
        """The arguments of a call."""
        weight = [self.contraction.w] if self.contraction.has_weight_argument else []
        return [self.contraction.x, *weight, *self.extra_arguments]

    def expected(self) -> list[Numbers]:
        """The results."""
        accumulators = self.contraction.accumulators().astype(object)
        values = evaluated(self.steps, accumulators, self.extra_arguments)
        elements = ["i32", *(step.element for step in self.steps)]
        return [stored(values[n], elements[n]) for n in self.results]

    def text(self, name: str) -> str:
        """The function's MLIR."""
        shape = "x".join(map(str, self.contraction.accumulators().shape))
        w = self.contraction.w
        arguments = [f"%x: {_type(self.contraction.x)}"]
        arguments += [f"%w: {_type(w)}"] if self.contraction.has_weight_argument else []
        arguments += [f"%g{n}: {_type(array)}" for n, array in enumerate(self.extra_arguments)]
        operations = []
        if not self.contraction.has_weight_argument:
            operations.append(f"%w = stablehlo.constant dense<{w.tolist()}> : {_type(w)}")
        operations += [f"%v0 = {self.contraction.text(shape)}", *steps_text(self.steps, shape)]
        elements = ["i32", *(step.element for step in self.steps)]
        values = ", ".join(f"%v{n}" for n in self.results)
        types = ", ".join(f"tensor<{shape}x{elements[n]}>" for n in self.results)
        body = "\n  ".join([*operations, f"return {values} : {types}"])
        return f"func.func @{name}({', '.join(arguments)}) -> ({types}) {{\n  {body}\n}}\n"


def _type(array: Numbers) -> str:
    kinds = {"i": "i", "u": "ui", "b": "i", "f": "f"}
    bits = 1 if array.dtype == np.bool_ else 8 * array.dtype.itemsize
    return f"tensor<{'x'.join(map(str, array.shape))}x{kinds[array.dtype.kind]}{bits}>"
