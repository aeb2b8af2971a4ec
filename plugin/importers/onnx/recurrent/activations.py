"""Activation functions of LSTM, GRU and RNN, with their parameters alpha and beta.

Source: ONNX, LSTM 22; ONNX Runtime, ``rnn_helpers.cc``, for how the values of ``activation_alpha``
and ``activation_beta`` are assigned to functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np

from ....numerics.array_functions import tanh
from ....numerics.element_types import AnyArray
from ..call import Call
from ..elementwise.activations import hard_sigmoid, sigmoid, softplus

Function: TypeAlias = Callable[[AnyArray], AnyArray]
"""An activation function."""


def _elu(x: AnyArray, alpha: Any) -> AnyArray:
    zero = x.dtype.type(0)
    return np.where(x >= zero, x, alpha * np.expm1(np.minimum(x, zero)))


_ACTIVATIONS: dict[str, tuple[Callable[..., AnyArray], tuple[float | None, ...]]] = {
    "relu": (lambda x: np.maximum(x, x.dtype.type(0)), ()),
    "tanh": (tanh, ()),
    "sigmoid": (sigmoid, ()),
    "softsign": (lambda x: x / (x.dtype.type(1) + np.abs(x)), ()),
    "softplus": (softplus, ()),
    "affine": (lambda x, alpha, beta: alpha * x + beta, (None, None)),
    "scaledtanh": (lambda x, alpha, beta: alpha * tanh(beta * x), (None, None)),
    "hardsigmoid": (hard_sigmoid, (0.2, 0.5)),
    "elu": (_elu, (1.0,)),
    "leakyrelu": (lambda x, alpha: np.where(x >= x.dtype.type(0), x, alpha * x), (0.01,)),
    "thresholdedrelu": (lambda x, alpha: np.where(x > alpha, x, x.dtype.type(0)), (None,)),
}
"""Activation functions, and the defaults of their parameters: none, alpha, or alpha and beta.

The specification and ONNX Runtime disagree on a default of None.
"""


def _parameters(call: Call, letter: str, names: Sequence[str]) -> list[float | None]:
    """Return alpha or beta of each activation function; None for a function without it.

    The values of the attribute are for the functions with that parameter, in their order. A value
    for each function is accepted where the result is the same.
    """
    attribute, number = f"activation_{letter}", ("alpha", "beta").index(letter)
    defaults = [_ACTIVATIONS[name][1][number : number + 1] for name in names]
    values = [float(value) for value in call.attribute(attribute) or []]
    remaining, parameters = list(values), []
    for name, default in zip(names, defaults, strict=True):
        if default == (None,) and not remaining:
            raise call.unsupported(
                f"has the activation function {name!r} without a value in {attribute!r}, for which "
                "ONNX and ONNX Runtime have different defaults; state the value"
            )
        parameters.append(remaining.pop(0) if default and remaining else next(iter(default), None))
    agrees = len(values) == len(names) and all(
        value is None or value == values[n] for n, value in enumerate(parameters)
    )
    if remaining and not agrees:
        raise call.unsupported(
            f"has {len(values)} values in {attribute!r} for {sum(map(len, defaults))} activation "
            f"functions that read one, {', '.join(names)}"
        )
    return parameters


def functions_of(
    call: Call, defaults: Sequence[str], directions: int, kind: type[np.floating[Any]]
) -> list[list[Function]]:
    """Return the activation functions of each direction."""
    each = len(defaults)
    listed = call.attribute("activations")
    names = [str(name).lower() for name in listed or [*defaults] * directions]
    if call.node.operator == "RNN" and directions == 1 and len(names) == 2 == len({*names, ""}):
        names = names[:1]  # the default of the specification is a list of two
    unknown = [name for name in names if name not in _ACTIVATIONS]
    if len(names) != each * directions or unknown:
        raise call.error(
            f"has the activation functions {names}, expected {each * directions} of "
            f"{', '.join(_ACTIVATIONS)}"
        )
    alphas, betas = (_parameters(call, letter, names) for letter in ("alpha", "beta"))
    functions: list[Function] = []
    for name, *values in zip(names, alphas, betas, strict=True):
        pairs = zip(("alpha", "beta"), values, strict=True)
        numbers = {letter: kind(value) for letter, value in pairs if value is not None}
        functions.append(functools.partial(_ACTIVATIONS[name][0], **numbers))
    return [functions[n * each : (n + 1) * each] for n in range(directions)]
