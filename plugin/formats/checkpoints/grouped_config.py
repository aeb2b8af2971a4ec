"""The ``quantization_config`` of checkpoints that GPTQ or AWQ packed.

Each key is read, or is known to change no weight, or refuses the checkpoint by its name.

Sources: ``BaseQuantizeConfig`` of AutoGPTQ 0.7, ``QuantizeConfig`` of GPTQModel, ``AwqConfig`` and
``GPTQConfig`` of transformers, ``AwqConfig`` of AutoAWQ 0.2, AutoRound's export to GPTQ's format.
"""

from __future__ import annotations

from collections.abc import Mapping

from ...core.json_settings import Settings
from ...core.read_record import Irrelevant
from ...core.strict_json import Json, shown
from ...errors import InputError, Place, UnsupportedError
from .awq import AwqFormat
from .gptq import GptqFormat
from .layers import CheckpointFormat

_QUANTIZING = "says how the integers were chosen"
_RUNNING = "says how another program runs the model"
_NAMING = "names parts of the model, and the tensors show which are packed"

_IRRELEVANT = (
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
            "train_bs", "amp", "fallback", "foem", "gc_mode", "mock_quantization", "telemetry",
            "uri", "dense_vram_strategy", "dense_vram_strategy_devices", "moe_vram_strategy",
            "moe_vram_strategy_devices", "quantizer", "gradient_accumulate_steps",
            "low_gpu_mem_usage", "low_cpu_mem_usage", "enable_quanted_input",
            "enable_minmax_tuning", "enable_norm_bias_tuning",
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
    Irrelevant("extra_config", "sets nothing apart from the rest", ({},)),
    Irrelevant("rotation", "rotates nothing", ("",)),
)  # fmt: skip


_GPTQ_BITS = (2, 3, 4, 8)


def grouped_format(config: Mapping[str, Json], file: str) -> CheckpointFormat:
    """Read the configuration of GPTQ or AWQ, or the whole of ``quantize_config.json``.

    Raises:
        InputError: a value is missing or of the wrong type.
        UnsupportedError: the method, the number of bits or the packing is not supported, or there
            is a key that is not known.
    """
    settings = Settings(config, Place(file), irrelevant=_IRRELEVANT)
    # Files from before 'quant_method' was there: 'version' is AWQ's.
    old = "awq" if settings.has("version") else "gptq"
    method = settings.value(str, "quant_method", "method", default=old).lower()
    if method not in ("gptq", "awq"):
        raise UnsupportedError(
            f"the quantization method is {shown(method)}, expected 'gptq' or 'awq'",
            settings.location,
        )
    bits = settings.value(int, "bits", "w_bit")
    group_size = settings.value(int, "group_size", "q_group_size")
    if bits not in (_GPTQ_BITS if method == "gptq" else (4,)):
        expected = "2, 3, 4 or 8" if method == "gptq" else "4"
        raise UnsupportedError(
            f"the weights have {bits} bits, expected {expected}", settings.location
        )
    if group_size < 1 and group_size != -1:
        raise InputError(f"'group_size' must be positive or -1, got {group_size}", Place(file))
    _check_dynamic(settings)
    groups = None if group_size == -1 else group_size
    form = _awq(settings, groups) if method == "awq" else _gptq(settings, bits, groups)
    settings.finish()
    return form


def _check_dynamic(settings: Settings) -> None:
    """Refuse settings of single layers. A key ``-:`` names layers that stay floats.

    Raises:
        UnsupportedError: a key names layers with other settings.
    """
    dynamic = settings.get("dynamic")
    if dynamic in (None, False):
        return
    if not isinstance(dynamic, dict) or not all(key.startswith("-:") for key in dynamic):
        raise settings.unsupported("dynamic", "keys that begin with '-:', of layers of floats")


def _awq(settings: Settings, group_size: int | None) -> AwqFormat:
    _expect_packing(settings, ("version", "checkpoint_format", "format"), "gemm")
    settings.flag("sym")  # GPTQModel writes it beside 'zero_point'
    settings.flag("desc_act")  # and this, which AWQ has not
    return AwqFormat(group_size, not settings.flag("zero_point", True))


def _gptq(settings: Settings, bits: int, group_size: int | None) -> GptqFormat:
    packing = _expect_packing(settings, ("checkpoint_format", "format"), "gptq", "gptq_v2")
    return GptqFormat(
        bits,
        group_size,
        has_zero_points_less_one=packing == "gptq",
        is_symmetric=settings.flag("sym"),
        has_act_order=settings.flag("desc_act"),
    )


def _expect_packing(settings: Settings, keys: tuple[str, ...], *known: str) -> str:
    """Return the packing; refuse one that is not known for the kind of weights."""
    packing = settings.value(str, *keys, default=known[0]).lower()
    if settings.flag("is_marlin_format"):
        packing = "marlin"
    if packing not in known:
        kind = "AWQ" if known[0] == "gemm" else "GPTQ"
        raise UnsupportedError(
            f"the {kind} weights are packed as {shown(packing)}, expected "
            f"{' or '.join(map(repr, known))}",
            settings.location,
        )
    return packing
