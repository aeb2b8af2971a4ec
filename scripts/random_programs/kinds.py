"""Kinds of random programs: a contraction, and the steps after it."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable
from dataclasses import replace

import numpy as np

from .draft import Draft, chain, second_contraction
from .program import Contraction, ConvGeometry, Program
from .requantizations import rescale, rounding


def draw_contraction(rng: random.Random) -> Contraction:
    """Draw bytes whose accumulators are small or large, often extreme."""
    numpy = np.random.default_rng(rng.getrandbits(63))
    kind = rng.choice(("dot", "transposed", "transposed", "convolution", "depthwise"))
    n = rng.choice((1, 3, 8, 16, 17, 20, 32, 33, 48, 64))
    k = rng.choice((1, 4, 8, 13, 16, 32, 64))
    has_weight_argument = kind in ("dot", "transposed") and rng.random() < 0.2
    geometry = ConvGeometry()
    if kind in ("dot", "transposed"):
        m = rng.choice((1, 1, 2, 5, 16, 33, 64))
        shapes = [(m, k), (k, n) if kind == "dot" else (n, k)]
    else:
        images = (rng.choice((1, 2)), rng.choice((1, 5, 9)), rng.choice((3, 8, 16)))
        taps, geometry = (3, 3), ConvGeometry(groups=n if kind == "depthwise" else 1)
        if rng.random() < 0.5:
            taps, images, geometry = _draw_geometry(rng, geometry)
        shapes = [(*images, n), (*taps, 1, n)]
        if kind == "convolution":
            k = min(k, 16)
            if rng.random() < 0.3:
                geometry = replace(geometry, groups=rng.choice((2, 3, 4, 8)))
                k, n = rng.randint(1, 5), geometry.groups * rng.choice((1, 2, 5, 8, 16))
            shapes = [(*images, k * geometry.groups), (*taps, k, n)]
    x, w = (numpy.integers(-128, 128, shape).astype(np.int8) for shape in shapes)
    style = rng.randrange(4)
    if style == 0:  # accumulators of every magnitude
        w = np.where(numpy.random(w.shape) < 0.3, w, 0).astype(np.int8)
        x = (x >> numpy.integers(0, 8, x.shape)).astype(np.int8)
    elif style == 1:
        w = numpy.choice(np.array([-128, -127, 127], np.int8), w.shape)
        x = numpy.choice(np.array([-128, 127, 127], np.int8), x.shape)
    elif style == 2:
        w = numpy.integers(-1, 2, w.shape).astype(np.int8)
    return Contraction(kind, x, w, has_weight_argument, geometry)


def _draw_geometry(
    rng: random.Random, geometry: ConvGeometry
) -> tuple[tuple[int, int], tuple[int, int, int], ConvGeometry]:
    """Draw kernel sizes, image shapes with at least one output pixel, and a geometry."""
    axes = []
    for _ in range(2):
        taps, dilation = rng.choice((1, 2, 3, 5)), rng.choice((1, 1, 2, 3))
        stride = rng.choice((1, 2, 3))
        padding = rng.choice(((0, 0), (1, 1), (0, 1), (2, 0), (3, 4), (-1, 0), (0, -1)))
        least = max(1, (taps - 1) * dilation + 1 - sum(padding), 2)
        size = rng.choice((least, least + 1, least + 5, 14, 17, 33))
        axes.append((taps, dilation, stride, padding, max(size, least)))
    (kh, kw), dilations, strides, paddings, sizes = zip(*axes, strict=True)
    images = (rng.choice((1, 2)), *sizes)
    geometry = replace(geometry, dilations=dilations, strides=strides, padding=paddings)
    return (kh, kw), images, geometry


def _program(rng: random.Random, layer: Callable[[Draft, float], None]) -> Program:
    """Draw a contraction and a layer after it, and perhaps a second contraction and layer.

    Args:
        rng: the random numbers.
        layer: appends steps; called with the reach of the accumulators.
    """
    contraction = draw_contraction(rng)
    accumulators = contraction.accumulators()
    draft = Draft(rng, accumulators.shape[-1], accumulators.shape)
    layer(draft, float(max(1, np.abs(accumulators).max())))
    reach = second_contraction(draft)
    if reach:
        layer(draft, reach)
    results = [len(draft.steps)]
    if rng.random() < 0.1:
        results.insert(0, rng.randrange(len(draft.steps)))
    return Program(contraction, tuple(draft.steps), tuple(results), tuple(draft.extra_arguments))


def chains(rng: random.Random) -> Program:
    """Operations of any kind."""
    return _program(rng, lambda draft, reach: chain(draft))


def requantizations(rng: random.Random) -> Program:
    """Requantizations as other runtimes write them."""
    return _program(rng, functools.partial(rounding, floats=True, extremes=True))


def rescales(rng: random.Random) -> Program:
    """TOSA's ``rescale``."""
    return _program(rng, rescale)
