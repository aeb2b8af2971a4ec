"""Names of a checkpoint's tensors, as those of the forward pass.

The tensors keep their own names in archives; only their place in the tree changes.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

import numpy as np

from ...core.strict_json import shown
from ...errors import InputError, counted
from ...layouts import InferenceTensor, PrimitiveTensor, stack, stack_name
from .architectures import CheckpointArchitecture

_LAYERS = {
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "self_attn.qkv_proj": "attn_qkv",
    "self_attn.q_norm": "attn_q_norm",
    "self_attn.k_norm": "attn_k_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.gate_up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
    "block_sparse_moe.gate": "ffn_gate_inp",
    "mlp.gate": "ffn_gate_inp",
    "input_layernorm": "attn_norm",
    "post_attention_layernorm": "ffn_norm",
}
_LAYERS_WITH_POST_NORMS = {
    **_LAYERS,
    "post_attention_layernorm": "post_attention_norm",
    "pre_feedforward_layernorm": "ffn_norm",
    "post_feedforward_layernorm": "post_ffw_norm",
}
_EXPERT_LAYERS = {
    "w1": "ffn_gate_exps",
    "w3": "ffn_up_exps",
    "w2": "ffn_down_exps",
    "gate_proj": "ffn_gate_exps",
    "up_proj": "ffn_up_exps",
    "down_proj": "ffn_down_exps",
}
_MODEL = {"model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output"}
_BLOCK = re.compile(r"model\.layers\.(0|[1-9][0-9]{0,5})\.(.+)\.(weight|bias)")
_EXPERT = re.compile(
    r"(model\.layers\.(0|[1-9][0-9]{0,5})\.(?:block_sparse_moe|mlp)\.experts\.)"
    rf"(0|[1-9][0-9]{{0,5}})(\.({'|'.join(_EXPERT_LAYERS)})\.weight)"
)
_FREQUENCIES = re.compile(r"model\.(?:layers\.[0-9]+\.self_attn\.)?rotary_emb\.inv_freq")
"""Frequencies of rotary embeddings, which old checkpoints repeat from the configuration."""


def by_role(
    tensors: Mapping[str, InferenceTensor], *, has_post_norms: bool, is_tied: bool
) -> dict[str, InferenceTensor]:
    """Return tensors by the names of the forward pass; those without one keep their names.

    The weights of a block's experts become one tensor, with the experts as its first axis.

    Args:
        is_tied: the embedding table is the output weight; an ``lm_head`` may repeat it.

    Raises:
        InputError: the ``lm_head`` of a tied model is not its embedding table, or experts are
            missing.
        UnsupportedError: the experts of a block have several formats.
    """
    layers = _LAYERS_WITH_POST_NORMS if has_post_norms else _LAYERS
    by_name: dict[str, InferenceTensor] = {}
    experts: dict[tuple[str, str, str], dict[int, InferenceTensor]] = {}
    for name, tensor in tensors.items():
        expert = _EXPERT.fullmatch(name)
        if expert is not None:
            role = f"blk.{expert[2]}.{_EXPERT_LAYERS[expert[5]]}.weight"
            experts.setdefault((role, expert[1], expert[4]), {})[int(expert[3])] = tensor
            continue
        layer, _, part = name.rpartition(".")
        match = _BLOCK.fullmatch(name)
        if match is not None and match[2] in layers:
            by_name[f"blk.{match[1]}.{layers[match[2]]}.{match[3]}"] = tensor
        elif layer in _MODEL and part in ("weight", "bias"):
            by_name[f"{_MODEL[layer]}.{part}"] = tensor
        elif not _FREQUENCIES.fullmatch(name):
            by_name[name] = tensor
    for (role, prefix, suffix), by_number in experts.items():
        missing = next(n for n in range(len(by_number) + 1) if n not in by_number)
        if missing < len(by_number):
            raise InputError(
                f"the checkpoint has {counted(len(by_number), 'tensor')} "
                f"{shown(f'{prefix}N{suffix}')}, and none with the number {missing}"
            )
        in_order = [by_number[number] for number in range(len(by_number))]
        name = stack_name(prefix, len(in_order), suffix)
        by_name[name if role in by_name else role] = stack(in_order, name)
    output, table = by_name.get("output.weight"), by_name.get("token_embd.weight")
    if is_tied and output is not None:
        if not _are_equal(output, table):
            raise InputError(
                f"'tie_word_embeddings' is true, and {shown(output.name)} is not the embedding "
                "table; leave the wrong one out"
            )
        del by_name["output.weight"]
    return by_name


def name_in_checkpoint(kind: CheckpointArchitecture, name: str) -> str:
    """Return the name in checkpoints of a tensor of the forward pass; that of expert 0 for many."""
    layers = _LAYERS_WITH_POST_NORMS if kind.post_norms else _LAYERS
    role, _, part = name.rpartition(".")
    _, number, layer = role.split(".") if role.startswith("blk.") else ("", "", role)
    is_mixtral = kind.experts is not None and not kind.experts.has_dense_blocks
    if layer in _EXPERT_LAYERS.values():
        names = [each for each, known in _EXPERT_LAYERS.items() if known == layer]
        block = "block_sparse_moe" if is_mixtral else "mlp"
        own = f"{block}.experts.0.{names[0 if is_mixtral else -1]}"
    else:
        names = [each for each, known in (layers | _MODEL).items() if known == layer]
        is_first = is_mixtral if layer == "ffn_gate_inp" else not kind.fused
        own = names[0 if is_first else -1]
    return f"model.layers.{number}.{own}.{part}" if number else f"{own}.{part}"


def _are_equal(output: InferenceTensor, table: InferenceTensor | None) -> bool:
    if not isinstance(output, PrimitiveTensor) or not isinstance(table, PrimitiveTensor):
        return False
    return bool(np.array_equal(output.array.view(np.uint8), table.array.view(np.uint8)))
