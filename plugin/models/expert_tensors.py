"""Experts of GGUF files before April 2024, which have a tensor for each expert.

``blk.0.ffn_gate.3.weight`` is the expert 3 of ``blk.0.ffn_gate_exps.weight``. The tensors of a
block become a stack, whose name has the range of experts, by which it is found in the file.

Source: llama.cpp, "ggml : mul_mat_id use the same tensor for all the experts" (#6387).
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from ..errors import InputError
from ..layouts import InferenceTensor, stack, stack_name

_EXPERT = re.compile(
    r"(blk\.(?:0|[1-9][0-9]{0,5})\.ffn_(?:gate|up|down))\.(0|[1-9][0-9]{0,5})\.weight"
)


def with_stacked_experts(tensors: Mapping[str, InferenceTensor]) -> dict[str, InferenceTensor]:
    """Return the tensors with a stack in place of the tensors of a block's experts.

    Raises:
        InputError: an expert is missing, or experts have several shapes.
        UnsupportedError: experts have several types.
    """
    result: dict[str, InferenceTensor] = {}
    experts: dict[str, dict[int, InferenceTensor]] = {}
    for name, tensor in tensors.items():
        match = _EXPERT.fullmatch(name)
        if match is None:
            result[name] = tensor
        else:
            experts.setdefault(match[1], {})[int(match[2])] = tensor
    for layer, by_number in experts.items():
        missing = next(n for n in range(len(by_number) + 1) if n not in by_number)
        if missing < len(by_number):
            raise InputError(
                f"the file has no tensor '{layer}.{missing}.weight', and has later experts of the "
                "block; convert the model again"
            )
        in_order = [by_number[number] for number in range(len(by_number))]
        stacked = stack(in_order, stack_name(f"{layer}.", len(in_order), ".weight"))
        role = f"{layer}_exps.weight"
        result[stacked.name if role in result else role] = stacked
    return result
