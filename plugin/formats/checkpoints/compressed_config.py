"""The ``quantization_config`` of compressed-tensors: groups of layers with their settings.

Each key is read, or is known to change no weight, or refuses the checkpoint by its name.

Sources: ``QuantizationConfig``, ``QuantizationScheme`` and ``QuantizationArgs`` of
compressed-tensors 0.20.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from ...core.json_settings import Settings
from ...core.read_record import Irrelevant
from ...core.strict_json import Json, shown
from ...errors import Place
from ...layouts.activations import ActivationQuantization
from .targets import Target

FORMATS = (
    "pack-quantized",
    "int-quantized",
    "float-quantized",
    "naive-quantized",
    "nvfp4-pack-quantized",
    "mxfp4-pack-quantized",
    "mxfp8-quantized",
)
_MIXED = "mixed-precision"
"""The format of a configuration whose groups have formats of their own."""

_IRRELEVANT = (
    Irrelevant("quant_method", "was read before"),
    Irrelevant("version", "is that of the library"),
    Irrelevant("global_compression_ratio", "counts bytes"),
    Irrelevant("quantization_status", "says that it is done", ("compressed", "frozen")),
    Irrelevant("transform_config", "transforms nothing", ({}, {"config_groups": {}})),
)
_IRRELEVANT_ARGUMENTS = (
    Irrelevant("observer", "says how scales were chosen"),
    Irrelevant("observer_kwargs", "says how scales were chosen"),
    Irrelevant("zp_dtype", "is the type of zero points, which their tensors have"),
)
_IRRELEVANT_SPARSITY = tuple(
    Irrelevant(key, "describes no sparsity")
    for key in (
        "global_sparsity", "ignore", "registry_requires_subclass", "sparsity_structure", "targets",
    )
)  # fmt: skip
_BLOCK = re.compile("([0-9]{1,9})x([0-9]{1,9})")
_STRATEGIES = ("tensor", "channel", "group", "block", "tensor_group")
_SCALE_TYPES = {
    "torch.uint8": "f8E8M0FNU",
    "torch.float8_e8m0fnu": "f8E8M0FNU",
    "torch.float8_e4m3fn": "f8E4M3FN",
}
_ACTIVATION_TYPES = {
    ("int", 8): "i8",
    ("int", 4): "i4",
    ("float", 8): "f8E4M3FN",
    ("float", 4): "f4E2M1FN",
}


@dataclass(frozen=True)
class WeightSettings:
    """Quantization of the weights of a group.

    Args:
        type: ``int`` or ``float``.
        strategy: the elements that share a scale: ``tensor``, ``channel`` (an output), ``group``
            (inputs of an output), ``block``, or ``tensor_group`` (groups and a global scale).
        group_size: the inputs of a group; None where there are none.
        block: the outputs and inputs of a block; None where there are none.
        has_order: True if groups are of inputs that are not consecutive.
    """

    type: str
    bits: int
    is_symmetric: bool
    strategy: str
    group_size: int | None = None
    block: tuple[int, int] | None = None
    has_order: bool = False


@dataclass(frozen=True)
class Group:
    """A group of layers.

    Args:
        activations: the quantization of inputs, None for floats. If it is static, its `scale` is
            1 in place of the one of each layer.
        has_global_scale: True if each layer has a global scale for its inputs.
    """

    name: str
    targets: tuple[Target, ...]
    format: str
    weights: WeightSettings
    activations: ActivationQuantization | None = None
    has_global_scale: bool = False


@dataclass(frozen=True)
class CompressedConfiguration:
    """All groups of a checkpoint, and the layers that stay floats."""

    groups: tuple[Group, ...]
    ignored: tuple[Target, ...]


def compressed_configuration(config: Mapping[str, Json], file: str) -> CompressedConfiguration:
    """Read a ``quantization_config``.

    Raises:
        InputError: a value is missing or of the wrong type.
        UnsupportedError: a value or a key is not supported.
    """
    settings = Settings(config, Place(file), irrelevant=_IRRELEVANT)
    _check_sparsity(settings)
    if settings.get("format") is not None:  # which counts for groups without one
        settings.choice("format", (*FORMATS, _MIXED, "dense"))
    names = list(settings.value(dict, "config_groups"))
    if not names:
        raise settings.error("config_groups", "groups that say how layers are quantized")
    listed = settings.required_part("config_groups")
    groups = [_group(name, listed.required_part(name), settings) for name in names]
    ignored = _targets(settings, "ignore")
    settings.finish()
    return CompressedConfiguration(tuple(groups), ignored)


def _targets(settings: Settings, key: str) -> tuple[Target, ...]:
    texts = settings.elements(key, str) or ()
    return tuple(Target.of(text, f"{settings.path}{key}", settings.location) for text in texts)


def _check_sparsity(settings: Settings) -> None:
    """Refuse a sparse format; a dense one changes nothing."""
    sparsity = settings.part("sparsity_config", _IRRELEVANT_SPARSITY)
    if sparsity is not None:
        sparsity.choice("format", ("dense",), "dense")
        sparsity.finish()


def _group(name: str, group: Settings, whole: Settings) -> Group:
    targets = _targets(group, "targets")
    if group.get("format") is not None:
        form = group.choice("format", FORMATS)
    else:
        form = whole.choice("format", (*FORMATS, _MIXED))
    if form == _MIXED:
        raise group.error("format", f"one of each group, as 'format' is '{_MIXED}'")
    if group.get("output_activations") is not None:
        raise group.unsupported("output_activations", "null: results of layers stay floats")
    weights = _weights(group.required_part("weights", _IRRELEVANT_ARGUMENTS), form)
    activations, has_global_scale = None, False
    arguments = group.part("input_activations", _IRRELEVANT_ARGUMENTS)
    if arguments is not None:
        activations, has_global_scale = _activations(arguments)
    group.finish()
    return Group(name, targets, form, weights, activations, has_global_scale)


def _strategy(arguments: Settings, is_dynamic: bool) -> tuple[str, int | None]:
    """Return the strategy and the group size; old files leave the strategy out."""
    size: int | None = None
    if arguments.get("group_size") is not None:
        size = arguments.value(int, "group_size")
    if arguments.get("strategy") is not None:
        strategy = arguments.value(str, "strategy")
    elif size is None:
        strategy = "token" if is_dynamic else "tensor"
    else:
        strategy = "channel" if size == -1 else "group"
    if strategy not in ("group", "tensor_group"):
        if size not in (None, -1) and strategy in ("tensor", "channel", "block", "token"):
            raise arguments.error("group_size", f"null or -1 for the strategy {shown(strategy)}")
        return strategy, None
    if size is None or size < 1:
        raise arguments.error("group_size", f"a positive integer for the strategy '{strategy}'")
    return strategy, size


def _weights(arguments: Settings, form: str) -> WeightSettings:
    bits = arguments.value(int, "num_bits", default=8)
    kind = arguments.choice("type", ("int", "float"), "int")
    strategy, size = _strategy(arguments, False)
    if strategy not in _STRATEGIES:
        raise arguments.unsupported("strategy", f"one of: {', '.join(_STRATEGIES)}")
    if arguments.flag_or_text("dynamic") not in (None, False):
        raise arguments.unsupported("dynamic", "false: scales of weights are stored")
    symmetric = arguments.flag("symmetric", True)
    expected: dict[str, tuple[str, tuple[int, ...], tuple[str, ...]]] = {
        "pack-quantized": ("int", (2, 4, 8), ("tensor", "channel", "group")),
        "int-quantized": ("int", (4, 8), ("tensor", "channel", "group", "block")),
        "float-quantized": ("float", (8,), ("tensor", "channel", "group", "block")),
        "naive-quantized": (kind, (8,), ("tensor", "channel", "group", "block")),
        "nvfp4-pack-quantized": ("float", (4,), ("tensor_group",)),
        "mxfp4-pack-quantized": ("float", (4,), ("group",)),
        "mxfp8-quantized": ("float", (8,), ("group",)),
    }
    own_kind, own_bits, strategies = expected[form]
    for key, value, known in (
        ("type", kind, (own_kind,)),
        ("num_bits", bits, own_bits),
        ("strategy", strategy, strategies),
        ("symmetric", symmetric, (True,) if kind == "float" else (True, False)),
    ):
        if value not in known:
            raise arguments.unsupported(
                key, f"{' or '.join(str(each).lower() for each in known)} for weights of '{form}'"
            )
    arguments.get("scale_dtype")  # the tensors have it
    order = arguments.flag_or_text("actorder")
    if order not in (None, False, True, "weight", "static", "group", "dynamic"):
        raise arguments.unsupported("actorder", "null, 'weight', 'static', 'group' or 'dynamic'")
    block = _block(arguments) if strategy == "block" else None
    if block is None and arguments.get("block_structure") is not None:
        raise arguments.unsupported("block_structure", f"null for the strategy '{strategy}'")
    arguments.finish()
    has_order = order in (True, "group", "dynamic") and strategy == "group"
    return WeightSettings(kind, bits, symmetric, strategy, size, block, has_order)


def _block(arguments: Settings) -> tuple[int, int]:
    block = arguments.get("block_structure")
    match = _BLOCK.fullmatch(block) if isinstance(block, str) else None
    if match is not None:  # old files: "128x128"
        block = [int(match[1]), int(match[2])]
    return arguments.block("block_structure", block)


def _check_scale_type(arguments: Settings, kind: str, strategy: str, is_dynamic: bool) -> None:
    """Refuse a type of computed scales that the library does not compute, or nobody writes."""
    scale_type = arguments.get("scale_dtype")
    if scale_type is None or not is_dynamic:
        return
    if _SCALE_TYPES[str(scale_type)] == "f8E8M0FNU":
        is_known = (kind, strategy, arguments.get("group_size")) == ("float", "group", 32)
        expected = "null, or 'group' of 32 floats, for exponents of 2"
    else:
        is_known = kind == "float" or strategy in ("group", "tensor_group")
        expected = "null for integers with a scale for each token or tensor"
    if not is_known:
        raise arguments.unsupported("scale_dtype", expected)


def _activations(arguments: Settings) -> tuple[ActivationQuantization, bool]:
    """Return the quantization of inputs, and whether layers have a global scale for them."""
    bits = arguments.value(int, "num_bits", default=8)
    kind = arguments.choice("type", ("int", "float"), "int")
    if (kind, bits) not in _ACTIVATION_TYPES:
        raise arguments.unsupported("num_bits", "4 or 8 for activations")
    dynamic = arguments.flag_or_text("dynamic")
    if dynamic not in (None, False, True, "local"):
        raise arguments.unsupported("dynamic", "true, false or 'local'")
    is_dynamic = dynamic not in (None, False)
    strategy, size = _strategy(arguments, is_dynamic)
    has_global_scale = strategy == "tensor_group"
    known = ("token", "tensor", "group", "tensor_group") if is_dynamic else ("tensor",)
    if strategy not in known:
        word = "dynamic" if is_dynamic else "static"
        raise arguments.unsupported("strategy", f"{' or '.join(known)} for {word} activations")
    if has_global_scale != (dynamic == "local"):
        raise arguments.unsupported("dynamic", "'local' for the strategy 'tensor_group' only")
    scale_type = arguments.get("scale_dtype")
    if scale_type is not None and (
        not isinstance(scale_type, str) or scale_type not in _SCALE_TYPES
    ):
        raise arguments.unsupported("scale_dtype", f"one of: {', '.join(_SCALE_TYPES)}")
    for key in ("actorder", "block_structure"):
        if arguments.get(key) not in (None, False):
            raise arguments.unsupported(key, "null for activations")
    symmetric = arguments.flag("symmetric", True)
    has_zero_points = kind == "int" and strategy != "tensor_group"
    if not symmetric and not (has_zero_points and (scale_type is None or not is_dynamic)):
        raise arguments.unsupported(
            "symmetric", "true for floats, the strategy 'tensor_group' and a 'scale_dtype'"
        )
    _check_scale_type(arguments, kind, strategy, is_dynamic)
    arguments.finish()
    return (
        ActivationQuantization(
            _ACTIVATION_TYPES[kind, bits],
            "group" if size is not None else strategy,
            group_size=size,
            is_dynamic=is_dynamic,
            is_symmetric=symmetric,
            scale=None if is_dynamic else 1.0,
            scale_type=None if scale_type is None else _SCALE_TYPES[scale_type],
        ),
        has_global_scale,
    )
