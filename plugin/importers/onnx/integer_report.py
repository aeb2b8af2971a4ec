"""Reports the nodes of a quantized model that compute with integers, and why others do not.

A node is listed if it takes or gives quantized values: storage with its parameters, or sums of
scaled integers. A node that computes with floats takes them dequantized.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from ...errors import Place, Remark
from .call import Call, Operand
from .quantization.expressed import Quantized, ScaledSum
from .reading.model import Node

_FLOAT_TYPES = frozenset(("FLOAT", "FLOAT16", "BFLOAT16", "DOUBLE"))


@dataclass
class _Dequantization:
    """A DequantizeLinear whose result stays integers, and the nodes that take it as floats."""

    float_users: list[Node] = field(default_factory=list)
    is_used: bool = False

    def __str__(self) -> str:
        if not self.float_users:
            return "stays integers" if self.is_used else "is a result, or not used"
        nodes = ", ".join(str(node) for node in self.float_users[:3])
        more = f" and {len(self.float_users) - 3} more" if len(self.float_users) > 3 else ""
        return f"becomes floats for {nodes}{more}"


@dataclass
class IntegerReport:
    """Collects the arithmetic of nodes, and reports it: a line about each node, in their order."""

    location: Place
    on_remark: Callable[[Remark], None]
    _arithmetic_by_node: dict[str, str | _Dequantization] = field(default_factory=dict)
    _sources: dict[str, _Dequantization] = field(default_factory=dict)
    _integers: int = 0
    _floats: int = 0

    def add(self, call: Call, results: Sequence[Operand]) -> None:
        """Add a node that has been computed."""
        node, arithmetic = call.node, call.arithmetic
        if node.operator.rpartition(".")[2] == "DequantizeLinear":
            if any(isinstance(each.value, Quantized) for each in results):
                self._arithmetic_by_node[str(node)] = self._sources[node.outputs[0]] = (
                    _Dequantization()
                )
            elif not call.input(0).is_constant:
                self._count(node, False, f"its storage is {call.input(0).type}, read by a table")
            return
        takes, gives = (
            any(isinstance(each.value, (Quantized, ScaledSum)) for each in ends if each is not None)
            for ends in (call.inputs, results)
        )
        is_integer = gives or arithmetic.is_integer
        if takes and not gives and not any(each.type in _FLOAT_TYPES for each in results):
            is_integer = arithmetic.is_integer is not False  # rounded, or a shape
        types = {each.type for each in (*call.inputs, *results) if each is not None}
        has_floats_only = not (takes or gives or types - _FLOAT_TYPES)
        if not is_integer and (has_floats_only or (is_integer is None and not takes)):
            return
        for name in node.inputs:
            if name in self._sources:
                self._sources[name].is_used = True
                if not is_integer:
                    self._sources[name].float_users.append(node)
        self._count(node, bool(is_integer), arithmetic.reason)

    def _count(self, node: Node, is_integer: bool, reason: str) -> None:
        self._integers += is_integer
        self._floats += not is_integer
        reason = reason or "no arithmetic of integers is known for it"
        self._arithmetic_by_node[str(node)] = (
            "computes with integers" if is_integer else f"computes with floats: {reason}"
        )

    def finish(self) -> None:
        """Report each node, and the number of nodes with each arithmetic."""
        remarks = [f"{node} {arithmetic}" for node, arithmetic in self._arithmetic_by_node.items()]
        count = self._integers + self._floats
        if count:
            remarks.append(
                f"{self._integers} of {count} nodes with quantized operands or results compute "
                "with integers"
            )
        for remark in remarks:
            self.on_remark(Remark(remark, self.location))
