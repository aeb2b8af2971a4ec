"""Views of tensors beside NumPy's arrays."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from subquant.transforms.raising.views import View, aligned


@st.composite
def factored(draw: st.DrawFn, count: int) -> list[int]:
    """Return a shape of `count` elements."""
    shape = []
    while count > 1 or draw(st.booleans()):
        divisors = [n for n in range(1, count + 1) if count % n == 0]
        shape.append(draw(st.sampled_from(divisors)))
        count //= shape[-1]
    return shape


@st.composite
def viewed(draw: st.DrawFn) -> tuple[View | None, np.ndarray]:
    """A view, and the array that has the positions by NumPy."""
    shape = draw(factored(draw(st.sampled_from([1, 6, 24, 36, 64]))))
    array = np.arange(math.prod(shape)).reshape(shape)
    view: View | None = View.of(shape)
    for _ in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(["transpose", "reshape", "broadcast"]))
        if view is None:
            break
        if kind == "transpose":
            order = draw(st.permutations(range(array.ndim)))
            view, array = view.transposed(order), array.transpose(order)
        elif kind == "reshape":
            shape = draw(factored(array.size))
            view, array = view.reshaped(shape), array.reshape(shape)
        elif array.size < 500:
            rank = array.ndim + draw(st.integers(0, 2))
            positions = sorted(draw(st.permutations(range(rank)))[: array.ndim])
            target, inner = [draw(st.sampled_from([1, 2, 3])) for _ in range(rank)], [1] * rank
            for position, extent in zip(positions, array.shape, strict=True):
                target[position] = extent if extent > 1 else target[position]
                inner[position] = extent
            view = view.broadcast(positions, target)
            array = np.broadcast_to(array.reshape(inner), target)
    return view, array


@given(viewed())
def test_a_view_has_the_elements_of_numpys(pair: tuple[View | None, np.ndarray]) -> None:
    view, array = pair
    if view is not None:
        assert view.shape == array.shape
        assert (view.indices() == array).all()
        assert view.repeats == (len(np.unique(array)) < array.size)


@given(st.data())
def test_aligned_views_have_the_same_extents(data: st.DataObject) -> None:
    first, array = data.draw(viewed().filter(lambda pair: pair[0] is not None))
    second = View.of([1] * array.ndim).broadcast(range(array.ndim), array.shape)
    assert first is not None
    third = View.of(data.draw(factored(array.size))).reshaped(array.shape)
    views = [first, second, *([third] if third is not None else [])]
    pieces = aligned(views)
    if pieces is None:
        return
    for view, own in zip(views, pieces, strict=True):
        assert (View(tuple(tuple(axis) for axis in own)).indices() == view.indices()).all()
    extents = [[[n for n, _ in axis] for axis in own] for own in pieces]
    assert all(each == extents[0] for each in extents)


def test_what_divides_unevenly_has_no_form() -> None:
    swapped = View.of([2, 3, 4]).transposed([1, 0, 2])
    assert swapped.reshaped([4, 6]) is None
    assert swapped.reshaped([3, 8]) is not None
    assert View.of([6, 4]).reshaped([4, 6]) == View.of([4, 6])
    halves, thirds = View((((2, 1), (3, 2)),)), View((((3, 1), (2, 3)),))
    assert aligned([halves, thirds]) is None
    assert aligned([halves, View.of([6])]) == [[[(2, 1), (3, 2)]], [[(2, 3), (3, 1)]]]
