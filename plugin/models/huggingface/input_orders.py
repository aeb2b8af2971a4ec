"""Orders of inputs (GPTQ's ``desc_act``) folded into the rows of the layers before.

The inputs of ``down_proj`` are products of the outputs of ``gate_proj`` and ``up_proj``, and
nothing else reads these: their rows, and biases, are put in the order of the inputs
(`subquant.layouts.reordered`), and the program gathers nothing.

The order of ``o_proj`` is not folded: it is of the inputs of all heads, a head of values belongs to
several heads of queries (grouped attention), and the caches have the elements of each head in one
order. A permutation that stays within heads and is the same for the heads of a group could be
folded, which GPTQ does not make. Experts' orders are gathered, too: their weights are stacks.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...layouts import InferenceTensor, QuantizedTensor
from ...layouts.reordered import has_rows, in_stored_order, input_order, with_rows

_DOWN = ".ffn_down.weight"
_PRODUCERS = ("ffn_gate", "ffn_up")


def fold_input_orders(tensors: Mapping[str, InferenceTensor]) -> dict[str, InferenceTensor]:
    """Return tensors, by the names of the forward pass, in which no ``ffn_down`` has an order.

    It keeps its order where a layer before it is packed in another way than GPTQ's.
    """
    folded = dict(tensors)
    for name, down in tensors.items():
        if not name.endswith(_DOWN) or input_order(down) is None:
            continue
        block = name.removesuffix(_DOWN)
        producers = [
            each
            for layer in _PRODUCERS
            for part in ("weight", "bias")
            if (each := f"{block}.{layer}.{part}") in tensors
        ]
        if all(has_rows(tensors[each]) for each in producers):
            assert isinstance(down, QuantizedTensor)
            folded |= {each: with_rows(tensors[each], down) for each in producers}
            folded[name] = in_stored_order(down)
    return folded
