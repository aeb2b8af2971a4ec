"""The ``quantization_config`` of checkpoints that GPTQ or AWQ packed.

Each key is read, or is known to change no weight, or refuses the checkpoint by its name.

Sources: ``BaseQuantizeConfig`` of AutoGPTQ 0.7, ``QuantizeConfig`` of GPTQModel, ``AwqConfig`` and
``GPTQConfig`` of transformers, ``AwqConfig`` of AutoAWQ 0.2, AutoRound's export to GPTQ's format.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

from ..core.read_record import Irrelevant, ReadRecord
from ..core.strict_json import shown
from ..errors import InputError, Place, UnsupportedError

_T = TypeVar("_T")
_REQUIRED: dict[type, str] = {
    str: "must be a string",
    int: "of the quantization must be an integer",
    bool: "must be true or false",
}

_QUANTIZING = "says how the integers were chosen"
_RUNNING = "says how another program runs the model"
_NAMING = "names parts of the model, and the tensors show which are packed"

_IRRELEVANT = [
    *(
        Irrelevant(key, _QUANTIZING)
        for key in (
            "damp_percent", "damp_auto_increment", "static_groups", "true_sequential", "dataset",
            "tokenizer", "batch_size", "model_seqlen", "cache_block_outputs", "pad_token_id",
            "mse", "act_group_aware", "parallel_packing", "gptaq", "gptaq_alpha", "v2", "v2_alpha",
            "fail_safe", "failsafe", "hyb_act", "hessian", "gptaq_memory_device",
            "offload_to_disk", "offload_to_disk_path", "vram_strategy", "device",
            "wait_for_submodule_finalizers", "auto_forward_data_parallel", "meta", "pack_impl",
            "autoround_version", "provider", "iters", "lr", "minmax_lr", "nsamples", "seqlen",
            "train_bs", "amp", "gradient_accumulate_steps", "low_gpu_mem_usage",
            "low_cpu_mem_usage", "enable_quanted_input", "enable_minmax_tuning",
            "enable_norm_bias_tuning",
        )
    ),
    *(
        Irrelevant(key, _RUNNING)
        for key in (
            "backend", "use_exllama", "disable_exllama", "exllama_config", "max_input_length",
            "use_cuda_fp16", "do_fuse", "modules_to_fuse", "fuse_max_seq_len",
        )
    ),
    *(
        Irrelevant(key, _NAMING)
        for key in (
            "lm_head", "modules_to_not_convert", "modules_in_block_to_quantize",
            "inside_layer_modules", "block_name_to_quantize", "module_name_preceding_first_block",
            "model_name_or_path", "model_file_base_name", "quant_config_filename",
            "to_quant_block_names",
        )
    ),
    Irrelevant("pack_dtype", "is the type of the packed words", ("int32", "torch.int32")),
    Irrelevant("scale_dtype", "is the type of the scales, which their tensors have"),
    Irrelevant("data_type", "is the type of the values", ("int",)),
    Irrelevant("act_bits", "says that activations are floats", (16, 32)),
    Irrelevant("extra_config", "sets nothing apart from the rest", (None, {})),
    Irrelevant("dynamic", "sets nothing apart from the rest", (None, {}, False)),
    Irrelevant("rotation", "rotates nothing", (None, "")),
    Irrelevant("adapter", "adds nothing", (None,)),
]  # fmt: skip


@dataclass(frozen=True)
class PackedInt4Form:
    """The form of packed weights, by the configuration of a checkpoint.

    Args:
        method: the tool whose packing it is.
        group_size: inputs that share a scale, None for all of them.
        zero_points_less_one: True if zero points are stored less 1.
        is_symmetric: True if the configuration says that each zero point is 8.
        has_act_order: True if it says that groups may be of inputs that are not consecutive.
    """

    method: Literal["gptq", "awq"]
    group_size: int | None
    zero_points_less_one: bool = False
    is_symmetric: bool = False
    has_act_order: bool = False


def packed_int4_form(config: Mapping[str, Any], file: str) -> PackedInt4Form:
    """Read a ``quantization_config``, or the whole of ``quantize_config.json``.

    Raises:
        InputError: a value is missing or of the wrong type.
        UnsupportedError: the method, the number of bits or the packing is not supported, or there
            is a key that is not known.
    """
    record = ReadRecord(Place(file), "the quantization")
    form = _Settings(record.track("key", config, _IRRELEVANT), Place(file)).form()
    record.finish("quantize the model without it")
    return form


class _Settings:
    """The keys of a configuration, each checked when it is read."""

    def __init__(self, config: Mapping[str, Any], location: Place) -> None:
        self.config, self.location = config, location

    def form(self) -> PackedInt4Form:
        """Return the form that the keys describe."""
        # Files from before 'quant_method' was there: 'version' is AWQ's.
        old = "awq" if "version" in self.config else "gptq"
        method = self.value(str, "quant_method", "method", default=old).lower()
        if method not in ("gptq", "awq"):
            raise UnsupportedError(
                f"the quantization method is {shown(method)}, expected 'gptq' or 'awq'",
                self.location,
            )
        bits = self.value(int, "bits", "w_bit")
        group_size = self.value(int, "group_size", "q_group_size")
        if bits != 4:
            raise UnsupportedError(f"the weights have {bits} bits, expected 4", self.location)
        if group_size < 1 and group_size != -1:
            raise InputError(
                f"'group_size' must be positive or -1, got {group_size}", self.location
            )
        groups = None if group_size == -1 else group_size
        if method == "awq":
            self.expect_packing(("version", "checkpoint_format", "format"), "gemm")
            self.value(bool, "sym", default=False)  # GPTQModel writes it beside 'zero_point'
            has_zero_points = self.value(bool, "zero_point", default=True)
            return PackedInt4Form("awq", groups, is_symmetric=not has_zero_points)
        packing = self.expect_packing(("checkpoint_format", "format"), "gptq", "gptq_v2")
        return PackedInt4Form(
            "gptq",
            groups,
            packing == "gptq",
            is_symmetric=self.value(bool, "sym", default=False),
            has_act_order=self.value(bool, "desc_act", default=False),
        )

    def expect_packing(self, keys: tuple[str, ...], *known: str) -> str:
        """Return the packing; refuse one that is not known for the kind of weights."""
        packing = self.value(str, *keys, default=known[0]).lower()
        if self.value(bool, "is_marlin_format", default=False):
            packing = "marlin"
        if packing not in known:
            kind = "AWQ" if known[0] == "gemm" else "GPTQ"
            raise UnsupportedError(
                f"the {kind} weights are packed as {shown(packing)}, expected "
                f"{' or '.join(map(repr, known))}",
                self.location,
            )
        return packing

    def value(self, kind: type[_T], *keys: str, default: _T | None = None) -> _T:
        """Return the value of keys that are names of one setting, of the type `kind`."""
        values = {key: self.config[key] for key in keys if self.config.get(key) is not None}
        for key, value in values.items():
            first, expected = next(iter(values.items()))
            if _lower(value) != _lower(expected):
                raise InputError(
                    f"'{first}' is {shown(expected)} and '{key}' is {shown(value)}, which "
                    "contradict each other; leave the wrong one out",
                    self.location,
                )
        value = next(iter(values.values()), default)
        if type(value) is not kind:
            raise InputError(f"'{keys[0]}' {_REQUIRED[kind]}, got {shown(value)}", self.location)
        return value


def _lower(value: Any) -> Any:
    return value.lower() if isinstance(value, str) else value
