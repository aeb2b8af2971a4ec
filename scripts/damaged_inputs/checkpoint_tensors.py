"""Damage to the tensors, shards and indices of Hugging Face checkpoints."""

from __future__ import annotations

import json
import random
import struct
from typing import Any

import numpy as np

from .checkpoint_json import (
    INDEX,
    VALUES,
    WEIGHTS,
    Change,
    Damage,
    Expectation,
    Files,
    damage_json,
    encoded,
)
from .mutations import mutate_bytes, mutate_text

Header = dict[str, Any]


def read_header(data: bytes) -> tuple[Header, bytes]:
    """Return the header and the data of a file."""
    size = int.from_bytes(data[:8], "little")
    return json.loads(data[8 : 8 + size]), data[8 + size :]


def write_header(header: Header, data: bytes) -> bytes:
    """Return a file; nothing is checked."""
    text = encoded(header)
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text + data


Tensors = dict[str, tuple[str, list[int], bytes]]
"""The dtype, shape and bytes of each tensor."""


def tensors_of(data: bytes) -> tuple[Tensors, Header]:
    """Return the tensors of a file, and its metadata."""
    header, payload = read_header(data)
    metadata = header.pop("__metadata__", {})
    return {
        name: (each["dtype"], each["shape"], payload[slice(*each["data_offsets"])])
        for name, each in header.items()
    }, metadata


def write_tensors(tensors: Tensors, metadata: Header) -> bytes:
    """Return a file of tensors."""
    header: Header = {"__metadata__": metadata} if metadata else {}
    payload = b""
    for name, (dtype, shape, data) in tensors.items():
        offsets = [len(payload), len(payload) + len(data)]
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": offsets}
        payload += data
    return write_header(header, payload)


_DTYPES = ("BOOL", "U8", "I8", "I16", "U32", "I32", "I64", "F16", "BF16", "F32", "F64", "C64",
           "F8_E4M3", "F8_E5M2", "F8_E8M0", "F4", "F6_E2M3", "X", 3, None)  # fmt: skip


def headers(rng: random.Random, files: Files) -> Damage:
    """Descriptions of tensors that contradict the data or each other."""
    header, payload = read_header(files[WEIGHTS])
    names = [name for name in header if name != "__metadata__"]
    name = rng.choice(names)
    entry, change = header[name], rng.randrange(12)
    if change == 0:
        entry["dtype"] = rng.choice(_DTYPES)
    elif change == 1:
        entry["shape"] = rng.choice((entry["shape"][::-1], [*entry["shape"], 1], [], [0],
                                     [-1], [1 << 63], [1] * 70, [1 << 32, 1 << 32], [0.5], "x",
                                     [True], entry["shape"][:1], [[1]]))  # fmt: skip
    elif change == 2:
        end = rng.choice((0, -1, 1, len(payload), len(payload) + 1, 1 << 62, 1 << 64, 0.5, "1"))
        entry["data_offsets"][rng.randrange(2)] = end
    elif change == 3:
        entry["data_offsets"] = header[rng.choice(names)]["data_offsets"]
    elif change == 4:
        del header[rng.choice(names)]
    elif change == 5:
        header["__metadata__"] = rng.choice(({"format": 3}, {"x": {}}, [], "x", None, {"": ""}))
    elif change == 6:
        damage_json(rng, header)
    elif change == 7:
        header[rng.choice((name + ".x", "", "\x1b[2J", "a" * 3000, name.upper()))] = header.pop(
            name
        )
    elif change == 8:
        payload = payload[: rng.randrange(len(payload))] if rng.random() < 0.5 else payload + b"\0"
    data = write_header(header, payload)
    if change == 9:  # a key is there twice
        repeated = f"{json.dumps(name)}: {json.dumps(entry)}, ".encode()
        text = data[8 : 8 + int.from_bytes(data[:8], "little")].rstrip()
        text = b"{" + repeated + text[1:]
        data = struct.pack("<Q", len(text)) + text + payload
        return Damage(f"{name} twice", files | {WEIGHTS: data}, "refused")
    if change == 10:
        length = rng.choice((0, 1, 7, len(data), 1 << 40, (1 << 64) - 1, 100_000_001))
        data = struct.pack("<Q", length) + data[8:]
    elif change == 11:
        data = mutate_bytes(rng, data, most=3)
    return Damage(f"header of {name}, change {change}", files | {WEIGHTS: data})


def data_bits(rng: random.Random, files: Files) -> Damage:
    """A byte of the data that is another."""
    header, payload = read_header(files[WEIGHTS])
    changed, position = bytearray(payload), rng.randrange(len(payload))
    changed[position] ^= 1 << rng.randrange(8)
    owner = next(name for name, each in header.items() if name != "__metadata__"
                 and each["data_offsets"][0] <= position < each["data_offsets"][1])  # fmt: skip
    data = write_header(header, bytes(changed))
    is_used = not owner.endswith(_TABLES) and not owner.startswith(_IMAGES)
    return Damage(f"byte {position} of {owner}", files | {WEIGHTS: data},
                  "changed" if is_used else "anything")  # fmt: skip


_OPTIONAL = (
    "g_idx",
    "weight_format",
    "zero_point",
    "weight_shape",
    "qdata",
    "global_scale",
    "input_scale",
)
"""Last names of arrays that may be left out or be of other types with the same values."""
_TABLES = ("nested_quant_map", "g_idx", "bitsandbytes__nf4", "bitsandbytes__fp4")
"""Last names of tensors with elements that may count for nothing."""
_IMAGES = ("vision_tower.", "multi_modal_projector.")
"""First names of the tensors of images, which a text model does not read."""


_NUMPY = {"U8": "u1", "I8": "i1", "I16": "<i2", "I32": "<i4", "I64": "<i8", "F16": "<f2",
          "F32": "<f4", "F64": "<f8"}  # fmt: skip
_REALS = (np.nan, np.inf, -np.inf, 0.0, -0.0, -1.0, 1e-40, 6e4, 3e38, 1.0)
_INTEGERS = (0, 1, -1, 2, 3, 95, 96, 97, 127, -128, (1 << 31) - 1, -(1 << 31), (1 << 63) - 1)


def _elements(rng: random.Random, dtype: str, data: bytes) -> bytes:
    """Set an element, or all of them, to an extreme value."""
    start = rng.choice((0, 0, rng.randrange(1 << 20)))
    if dtype == "BF16":
        real = np.asarray(rng.choice(_REALS), "<f4").view("<u4") >> 16
        array, value = np.frombuffer(data, "<u2").copy(), np.uint16(real)
    elif dtype in _NUMPY:
        array = np.frombuffer(data, _NUMPY[dtype]).copy()
        drawn = rng.choice(_REALS if array.dtype.kind == "f" else _INTEGERS)
        with np.errstate(all="ignore"):
            value = np.asarray(drawn).astype(array.dtype)
    else:
        array = np.frombuffer(data, "u1").copy()
        value = np.uint8(rng.choice((0, 0x7F, 0x80, 0xFF, 1)))
    if array.size:
        array[start % array.size : None if start == 0 else start % array.size + 1] = value
    return array.tobytes()


def arrays(rng: random.Random, files: Files) -> Damage:
    """Arrays with extreme values, of other shapes and types, missing, or under other names."""
    tensors, metadata = tensors_of(files[WEIGHTS])
    is_part = [name for name in tensors if not name.endswith((".weight", "qweight", "qdata"))]
    name = rng.choice(is_part if is_part and rng.random() < 0.7 else list(tensors))
    dtype, shape, data = tensors[name]
    change = rng.randrange(12)
    is_of_images = name.startswith(("vision_tower.", "multi_modal_projector."))
    expected: Expectation = "anything" if is_of_images else "changed"
    if change <= 4:
        tensors[name] = (dtype, shape, _elements(rng, dtype, data))
        expected = "anything" if name.endswith(_TABLES) else expected
    elif change == 5:
        del tensors[name]
    elif change == 6:
        del tensors[name]
        layer, _, part = name.rpartition(".")
        other = rng.choice(list(tensors))
        new = rng.choice((f"{layer}.{part}2", f"{layer}x.{part}", f"{layer}.bias", part,
                          f"x.{name}", f"{layer}.zeta", f"{other}.1"))  # fmt: skip
        tensors[new] = (dtype, shape, data)
    elif change == 7:
        count = int(np.prod(shape))
        shapes = (shape[::-1], [count], [*shape, 1], [1, *shape], [count, 1], [1, count])
        new_shape = rng.choice(shapes)
        tensors[name] = (dtype, new_shape, data)
        if [n for n in shape if n != 1] == [n for n in new_shape if n != 1]:
            expected = "anything"  # an axis of one element
    elif change == 8 and shape:
        rows = rng.choice((0, shape[0] - 1, shape[0] // 2, shape[0] * 2))
        width = len(data) // max(shape[0], 1)
        tensors[name] = (dtype, [rows, *shape[1:]], (data * 2)[: rows * width])
    elif change == 9 and dtype in _NUMPY:
        new = rng.choice(list(_NUMPY))
        with np.errstate(all="ignore"):
            cast = np.frombuffer(data, _NUMPY[dtype]).astype(_NUMPY[new])
        tensors[name] = (new, shape, cast.tobytes())
    elif change == 10:
        new = rng.choice((f"{name}.weight", f"{name}_2", "zeta", f"{name.rpartition('.')[0]}.zeta"))
        tensors[new] = (dtype, shape, data)
        expected = "refused"
    elif change == 11:
        other = rng.choice(list(tensors))
        tensors[name], tensors[other] = tensors[other], tensors[name]
    if name.endswith(_OPTIONAL) and change in (5, 9):
        expected = "anything"
    written = write_tensors(tensors, metadata)
    if expected == "changed" and tensors_of(files[WEIGHTS])[0] == tensors:
        expected = "equal"
    return Damage(f"array {name}, change {change}", files | {WEIGHTS: written}, expected)


def descriptions(rng: random.Random, files: Files) -> Damage:
    """The descriptions of torchao's tensors, and other metadata."""
    tensors, metadata = tensors_of(files[WEIGHTS])
    described = [name for name, text in metadata.items() if text.startswith("{")]
    if not described:
        states = [name for name in tensors if ".quant_state." in name]
        if not states:
            return arrays(rng, files)
        name = rng.choice(states)
        state = json.loads(tensors[name][2])
        change: Change | None = damage_json(rng, state)
        text = encoded(state)
        tensors[name] = ("U8", [len(text)], text)
    else:
        name = rng.choice(described)
        description = json.loads(metadata[name])
        change = damage_json(rng, description)
        metadata[name] = json.dumps(description)
        if rng.random() < 0.1:
            metadata[name] = mutate_text(rng, metadata[name], ['{"_type": "x"}'])
            change = None
    try:
        written = write_tensors(tensors, metadata)
    except UnicodeEncodeError:
        return arrays(rng, files)
    expected: Expectation = "changed"
    is_null = change is not None and change.is_added and change.new is None
    if change is None or is_null or not {*change.path.split(".")}.isdisjoint(_DESCRIPTIVE):
        expected = "anything"
    elif change.is_same:
        expected = "equal"
    return Damage(f"{name}: {change}", files | {WEIGHTS: written}, expected)


_DESCRIPTIVE = (
    "shape",
    "activation_dtype",
    "dim",
    "granularity",
    "_tensor_data_names",
    "dtype",
    "nested_dtype",
    "reduce_range",
    "mm_config",
    "kernel_preference",
)
"""Keys of the descriptions of tensors that change no weight."""


# -- the index -------------------------------------------------------------------------------------


def index_of_shards(rng: random.Random, files: Files) -> Damage:
    """Shards, and an index that contradicts them."""
    tensors, metadata = tensors_of(files[WEIGHTS])
    count = rng.choice((1, 2, 3))
    names = [f"model-{n + 1:05}-of-{count:05}.safetensors" for n in range(count)]
    shards: list[Tensors] = [{} for _ in names]
    listed: dict[str, Any] = {}
    for number, (name, tensor) in enumerate(tensors.items()):
        shards[number * count // len(tensors)][name] = tensor
        listed[name] = names[number * count // len(tensors)]
    index: dict[str, Any] = {"metadata": {"total_size": 1}, "weight_map": listed}
    changed = {each: data for each, data in files.items() if each != WEIGHTS}
    name, shard = rng.choice(list(listed)), rng.randrange(count)
    change = rng.randrange(14)
    expected: Expectation = "refused"
    text: bytes | None = None
    if change <= 1:
        expected = "equal"
    elif change == 2:
        listed[name] = rng.choice(("../x.safetensors", "/etc/passwd", "d/../x.safetensors", "..",
                                   "..\\x.safetensors", "\0", "", ".safetensors", 3, None, ["x"],
                                   {}, "x.safetensors/y", "C:x.safetensors"))  # fmt: skip
        changed["../x.safetensors"] = write_tensors({name: tensors[name]}, {})
    elif change == 3:
        shards[shard] = {}
    elif change == 4:
        shards[shard]["zeta"] = tensors[name]
    elif change == 5:
        listed["zeta"] = names[shard]
    elif change == 6:
        shards[(names.index(listed[name]) + 1) % count][name] = tensors[name]
        expected = "equal" if count == 1 else "refused"
    elif change == 7:
        text = encoded(index).replace(b'"weight_map": {', b'"weight_map": {%s: "x.safetensors", '
                                       % encoded(name))  # fmt: skip
    elif change == 8:
        index["weight_map"] = rng.choice(({}, [], None, list(listed), "x", names))
    elif change == 9:
        index["zeta"] = rng.choice(VALUES)
        expected = "anything" if _is_surrogate(index["zeta"]) else "refused"
    elif change == 10:
        changed[WEIGHTS] = files[WEIGHTS]  # the whole model too
    elif change == 11:
        text = mutate_text(rng, encoded(index).decode(), ['{"weight_map": {"a": 1}}']).encode(
            "utf-8", "surrogatepass")  # fmt: skip
        expected = "anything"
    elif change == 12:
        text = b""
    else:
        del listed[name]
    for shard_name, shard_tensors in zip(names, shards, strict=True):
        changed[shard_name] = write_tensors(shard_tensors, metadata)
    changed[INDEX] = encoded(index) if text is None else text
    if change == 13 and rng.random() < 0.5:
        del changed[INDEX]
        expected = "refused" if count > 1 else "anything"
    elif change == 3 and rng.random() < 0.5:
        del changed[names[shard]]
    return Damage(f"index, change {change}", changed, expected)


def _is_surrogate(value: Any) -> bool:
    return isinstance(value, str) and not value.isprintable()
