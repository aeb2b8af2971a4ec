"""What of a quantized model computes with integers, node by node, and why the rest does not.

A node is listed if it takes or gives quantized values: storage with its parameters, or sums of
such. One that computes with floats takes them dequantized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...errors import Place, Remark
from .call import Call, Operand
from .quantization.expressed import Quantized, ScaledSum
from .reading.model import Node

__all__ = ["Explained"]

_REALS = frozenset(("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"))


@dataclass
class _Dequantized:
    """A node that gives storage and scales, and the nodes that take them as floats."""

    node: Node
    as_floats: list[Node] = field(default_factory=list)
    is_used: bool = False


@dataclass
class Explained:
    """Collects how nodes compute, and says it.

    Args:
        place: of the model's file.
        on_remark: called with a line about each node, in their order.
    """

    place: Place
    on_remark: Callable[[Remark], None]
    _said: dict[str, str | _Dequantized] = field(default_factory=dict)
    _sources: dict[str, _Dequantized] = field(default_factory=dict)
    _integers: int = 0
    _floats: int = 0

    def add(self, call: Call, results: Sequence[Operand]) -> None:
        """Note a node that has been computed."""
        node, how = call.node, call.arithmetic
        if node.operator.rpartition(".")[2] == "DequantizeLinear":
            if any(isinstance(each.value, Quantized) for each in results):
                self._said[str(node)] = self._sources[node.outputs[0]] = _Dequantized(node)
            elif not call.input(0).is_constant:
                self._count(node, False, f"its storage is {call.input(0).type}, read by a table")
            return
        takes = any(
            operand is not None and isinstance(operand.value, (Quantized, ScaledSum))
            for operand in call.inputs
        )
        gives = any(isinstance(each.value, (Quantized, ScaledSum)) for each in results)
        is_integer = gives or how.is_integer
        if takes and not gives and not any(each.type in _REALS for each in results):
            is_integer = how.is_integer is not False  # rounded, or a shape
        if not takes and is_integer is None:
            return
        for name in node.inputs:
            if name in self._sources:
                self._sources[name].is_used = True
                if not is_integer:
                    self._sources[name].as_floats.append(node)
        self._count(node, bool(is_integer), how.reason)

    def _count(self, node: Node, is_integer: bool, reason: str) -> None:
        self._integers += is_integer
        self._floats += not is_integer
        reason = reason or "no arithmetic of integers is known for it"
        self._said[str(node)] = (
            "computes with integers" if is_integer else f"computes with floats: {reason}"
        )

    def finish(self) -> None:
        """Say it, and how many there are of each."""
        for node, said in self._said.items():
            if isinstance(said, _Dequantized):
                said = _dequantized(said)
            self.on_remark(Remark(f"{node} {said}", self.place))
        count = self._integers + self._floats
        if count:
            self.on_remark(
                Remark(
                    f"{self._integers} of {count} nodes with quantized operands or results compute "
                    "with integers",
                    self.place,
                )
            )


def _dequantized(source: _Dequantized) -> str:
    if source.as_floats:
        nodes = ", ".join(str(node) for node in source.as_floats[:3])
        more = f" and {len(source.as_floats) - 3} more" if len(source.as_floats) > 3 else ""
        return f"becomes floats for {nodes}{more}"
    return "stays integers" if source.is_used else "is a result, or not used"
