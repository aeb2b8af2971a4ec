"""Activation functions of LSTM, GRU and RNN, with their parameters alpha and beta.

Source: ONNX, LSTM 22; ONNX Runtime, ``rnn_helpers.cc``, for how the values of ``activation_alpha``
and ``activation_beta`` are assigned to functions.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np

from ....errors import UnsupportedError
from ....numerics.array_functions import tanh
from ....numerics.element_types import AnyArray
from ..call import Call
from ..elementwise.activations import hard_sigmoid, sigmoid, softplus

Function: TypeAlias = Callable[[AnyArray], AnyArray]
"""An activation function."""


def _elu(x: AnyArray, alpha: Any, beta: Any) -> AnyArray:
    zero = x.dtype.type(0)
    return np.where(x >= zero, x, alpha * np.expm1(np.minimum(x, zero)))


@dataclass(frozen=True)
class _Activation:
    """An activation function, its parameters alpha and beta, and their default values.

    The specification and ONNX Runtime disagree on a default of None.
    """

    function: Callable[..., AnyArray]
    has_alpha: bool = False
    has_beta: bool = False
    alpha: float | None = None
    beta: float | None = None


_ACTIVATIONS = {
    "relu": _Activation(lambda x, alpha, beta: np.maximum(x, x.dtype.type(0))),
    "tanh": _Activation(lambda x, alpha, beta: tanh(x)),
    "sigmoid": _Activation(lambda x, alpha, beta: sigmoid(x)),
    "softsign": _Activation(lambda x, alpha, beta: x / (x.dtype.type(1) + np.abs(x))),
    "softplus": _Activation(lambda x, alpha, beta: softplus(x)),
    "affine": _Activation(lambda x, alpha, beta: alpha * x + beta, True, True),
    "scaledtanh": _Activation(lambda x, alpha, beta: alpha * tanh(beta * x), True, True),
    "hardsigmoid": _Activation(hard_sigmoid, True, True, 0.2, 0.5),
    "elu": _Activation(_elu, True, False, 1.0),
    "leakyrelu": _Activation(
        lambda x, alpha, beta: np.where(x >= x.dtype.type(0), x, alpha * x), True, False, 0.01
    ),
    "thresholdedrelu": _Activation(
        lambda x, alpha, beta: np.where(x > alpha, x, x.dtype.type(0)), True
    ),
}


def _parameters(call: Call, attribute: str, names: Sequence[str]) -> list[float | None]:
    """Return alpha or beta of each activation function; None for a function without it.

    The values of the attribute are for the functions with that parameter, in their order. A value
    for each function is accepted where the result is the same.
    """
    letter = attribute.removeprefix("activation_")
    has_one = [getattr(_ACTIVATIONS[name], f"has_{letter}") for name in names]
    values = [float(value) for value in call.attribute(attribute) or []]
    remaining, parameters = list(values), []
    for name, has in zip(names, has_one, strict=True):
        default = getattr(_ACTIVATIONS[name], letter)
        if has and not remaining and default is None:
            raise call.error(
                f"has the activation function {name!r} without a value in {attribute!r}, for which "
                "ONNX and ONNX Runtime have different defaults; state the value",
                UnsupportedError,
            )
        parameters.append((remaining.pop(0) if remaining else default) if has else None)
    agrees = len(values) == len(names) and all(
        value is None or value == values[n] for n, value in enumerate(parameters)
    )
    if remaining and not agrees:
        raise call.error(
            f"has {len(values)} values in {attribute!r} for {sum(has_one)} activation functions "
            f"that read one, {', '.join(names)}",
            UnsupportedError,
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
    parameters = (_parameters(call, f"activation_{n}", names) for n in ("alpha", "beta"))
    functions: list[Function] = []
    for name, alpha, beta in zip(names, *parameters, strict=True):
        numbers = [None if value is None else kind(value) for value in (alpha, beta)]
        function = _ACTIVATIONS[name].function
        functions.append(functools.partial(function, alpha=numbers[0], beta=numbers[1]))
    return [functions[n * each : (n + 1) * each] for n in range(directions)]
