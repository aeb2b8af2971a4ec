"""Data sets in archives that sharktank wrote (`tests/sharktank`) and opens."""

from __future__ import annotations

import functools
import gzip
import json
import operator
import os
import random
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

from subquant.errors import InputError, SubquantError, UnsupportedError
from subquant.formats.irpa import DTYPES, Archive
from subquant.formats.irpa_writer import create_archive
from subquant.layouts import (
    LAYOUTS,
    BlockScaledI4Layout,
    BlockScaledLayout,
    InferenceTensor,
    PlanarQuantizedTensor,
    PrimitiveTensor,
    QuantizedLayout,
    QuantizedTensor,
    TensorScaledLayout,
)
from subquant.layouts.quantizers import DynamicScaledQuantizer, StaticScaledQuantizer
from subquant.layouts.tensors import TENSORS
from subquant.weights import Dataset, Theta
from test_theta import tensor, theta

SHARKTANK = Path(__file__).parent / "sharktank"
PROPERTIES = {
    "hparams": {"block_count": 2, "rope.freq_base": 10000.5, "name": "größe", "flag": True},
    "meta": {"_class_name": "Model", "list": [1, 2.5, "three", None]},
}


def unpacked_file(name: str, folder: Path) -> Path:
    """One of sharktank's files, unpacked into a folder."""
    path = folder / name
    path.write_bytes(gzip.decompress((SHARKTANK / f"{name}.gz").read_bytes()))
    return path


def our_tensors() -> list[InferenceTensor]:
    """Tensors of each kind; scales are powers of two, exact in the float16 that sharktank uses."""
    rng = np.random.default_rng(7)
    scales = (2.0 ** rng.integers(-1, 3, (4, 2, 1))).astype(np.float16)
    bytes_ = rng.integers(-128, 128, (4, 2, 32)).astype(np.int8)
    nibbles = bytes_[..., :16].view(np.uint8)
    created: list[InferenceTensor] = [
        PrimitiveTensor(rng.integers(0, 5, (2, 3)).astype(dtype), f"primitive.{name}")
        for name, dtype in DTYPES.items()
    ]
    layouts: dict[str, QuantizedLayout] = {
        "block": BlockScaledLayout((4, 64), {"d": scales, "qs": bytes_}),
        "nibbles": BlockScaledI4Layout((4, 64), {"d": scales, "qs": nibbles}, {"signed": True}),
        "nibbles, offsets": BlockScaledI4Layout(
            (4, 64), {"d": scales, "m": -scales, "qs": nibbles}, {"signed": False}
        ),
        "tensor": TensorScaledLayout((4, 2, 32), {"d": np.float32(0.25), "qs": bytes_}),
    }  # fmt: skip
    created += [PlanarQuantizedTensor(layout, f"layer.{name}") for name, layout in layouts.items()]
    created += [
        PrimitiveTensor(np.float32(3.5), "scalar"),
        PrimitiveTensor(np.zeros((0, 4), np.int8), "empty"),
        StaticScaledQuantizer(np.float32(2), offset=np.int8(3), name="quantizer.tensor"),
        StaticScaledQuantizer(np.array([2, 4], np.float32), axis=1, name="quantizer.axis"),
        DynamicScaledQuantizer(name="quantizer.dynamic"),
    ]
    return created


def assert_same(got: InferenceTensor, expected: InferenceTensor) -> None:
    assert type(got) is type(expected)
    assert (got.name, got.shape, got.record) == (expected.name, expected.shape, expected.record)
    assert list(got.arrays) == list(expected.arrays)
    for name, array in expected.arrays.items():
        other = got.arrays[name]
        assert (other.dtype, other.shape) == (array.dtype, array.shape)
        assert other.tobytes() == array.tobytes()


def test_save_and_load_lose_nothing(tmp_path: Path) -> None:
    tensors = our_tensors()
    properties = json.loads(json.dumps(PROPERTIES))
    Dataset(properties, Theta(tensors)).save(tmp_path / "x.irpa")
    assert properties == PROPERTIES
    loaded = Dataset.load(tmp_path / "x.irpa")
    assert loaded.properties == PROPERTIES
    assert list(loaded.theta.flatten()) == [t.name for t in tensors]
    for expected in tensors:
        assert_same(loaded.theta.tensor(expected.name), expected)
    loaded.save(tmp_path / "y.irpa")
    assert (tmp_path / "x.irpa").read_bytes() == (tmp_path / "y.irpa").read_bytes()


def test_loaded_arrays_are_views_of_the_file(tmp_path: Path) -> None:
    Dataset({}, Theta(our_tensors())).save(tmp_path / "x.irpa")
    for loaded in Dataset.load(tmp_path / "x.irpa").theta.flatten().values():
        for array in loaded.arrays.values():
            assert not array.flags.owndata
            assert not array.flags.writeable


def test_blobs_are_as_sharktank_writes_them(tmp_path: Path) -> None:
    """Name for name and byte for byte, apart from JSON's white space and absent metadata."""
    theirs = Archive(unpacked_file("written.irpa", tmp_path))
    Dataset.load(theirs.path).save(tmp_path / "ours.irpa")
    ours = Archive(tmp_path / "ours.irpa")
    assert set(ours) == set(theirs)
    for name, entry in theirs.items():
        assert ours[name].metadata == entry.metadata
        if name == "__SHARK_DATASET__":
            assert json.loads(ours[name].content()) == json.loads(entry.content())
        elif name != "__SHARK_INFERENCE_TENSORS__":
            assert ours[name].content() == entry.content()
    name = "__SHARK_INFERENCE_TENSORS__"
    records, expected = (json.loads(archive[name].content()) for archive in (ours, theirs))
    for record in (*records.values(), *expected.values()):
        record["layout_metadata"] = record.get("layout_metadata") or None
    assert records == expected
    for name in ("__SHARK_DATASET__", "__SHARK_INFERENCE_TENSORS__"):
        text = ours[name].content().decode()
        assert text == json.dumps(json.loads(text), ensure_ascii=False, separators=(",", ":"))


def test_a_file_of_sharktank_opens(tmp_path: Path) -> None:
    dataset = Dataset.load(unpacked_file("written.irpa", tmp_path))
    assert dataset.properties == PROPERTIES
    primitives = dataset.theta("primitive").flatten()
    assert len(primitives) == 18
    for name, primitive in primitives.items():
        if name in DTYPES:
            expected = np.arange(6).reshape(2, 3).astype(DTYPES[name])
            assert_same(primitive, PrimitiveTensor(expected, f"primitive.{name}"))
    assert dataset.theta.tensor("primitive.scalar").arrays["primitive.scalar"] == 3.5
    assert dataset.theta.tensor("primitive.empty").shape == (0, 4)
    quantizer = dataset.theta("quantizer").tensor("axis")
    assert isinstance(quantizer, StaticScaledQuantizer)
    assert quantizer.axis == 1
    assert quantizer.scale.tolist() == [2.0, 4.0, 0.5]
    assert isinstance(dataset.theta.tensor("quantizer.dynamic"), DynamicScaledQuantizer)


def test_layouts_of_sharktank_mean_what_they_mean_there(tmp_path: Path) -> None:
    """Every dequantized element, in layouts of values that its float16 arithmetic holds exactly."""
    dataset = Dataset.load(unpacked_file("written.irpa", tmp_path))
    expected = Dataset.load(unpacked_file("dequantized.irpa", tmp_path)).theta("layer", 0)
    layer = dataset.theta("layer", 0)
    assert set(layer.flatten()) == set(expected.flatten())
    assert len(layer) == 7
    for name, quantized in layer.flatten().items():
        assert isinstance(quantized, QuantizedTensor)
        (values,) = expected.tensor(name).arrays.values()
        np.testing.assert_array_equal(quantized.unpack().dequant(), values, strict=True)


def test_sharktank_opens_our_files(tmp_path: Path) -> None:
    python = os.environ.get("SUBQUANT_SHARKTANK_PYTHON")
    if not python:
        pytest.skip("set SUBQUANT_SHARKTANK_PYTHON to a Python with sharktank 3.8")
    quantized = [t for t in our_tensors() if isinstance(t, PlanarQuantizedTensor)]
    rest = [t for t in our_tensors() if not isinstance(t, PlanarQuantizedTensor)]
    Dataset(PROPERTIES, Theta([*quantized, *rest])).save(tmp_path / "ours.irpa")
    command = [python, str(SHARKTANK / "peer.py"), "dequantize"]
    subprocess.run([*command, "ours.irpa", "theirs.irpa"], cwd=tmp_path, check=True)
    theirs = Dataset.load(tmp_path / "theirs.irpa")
    assert theirs.properties == PROPERTIES
    for tensor_ in quantized:
        (got,) = theirs.theta.tensor(tensor_.name).arrays.values()
        np.testing.assert_array_equal(got, tensor_.unpack().dequant(), strict=True)
    arrays = {n: a for t in theirs.theta.flatten().values() for n, a in t.arrays.items()}
    for tensor_ in rest:
        for name, array in tensor_.arrays.items():
            assert (arrays[name].dtype, arrays[name].shape) == (array.dtype, array.shape)
            assert arrays[name].tobytes() == array.tobytes()


def test_an_archive_without_records_is_primitive_tensors(tmp_path: Path) -> None:
    with create_archive(tmp_path / "x.irpa") as archive:
        archive.add_tensor("a.b", np.arange(3, dtype=np.float32))
        archive.add_blob("c", b"\x01\x02")
    dataset = Dataset.load(tmp_path / "x.irpa")
    assert dataset.properties == {}
    assert dataset.theta.tensor("a.b").arrays["a.b"].tolist() == [0.0, 1.0, 2.0]
    assert dataset.theta.tensor("c").arrays["c"].tolist() == [1, 2]


def test_a_failed_save_leaves_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "x.irpa"
    Dataset({}, theta()).save(path)
    before = path.read_bytes()
    bad = PrimitiveTensor(np.zeros(2, ml_dtypes.int4), "int4")
    with pytest.raises(InputError, match="'int4' has elements of int4, which archives do not have"):
        Dataset({}, Theta([tensor("a"), bad])).save(path)
    with pytest.raises(InputError, match=r"properties cannot be written as JSON: .*ndarray"):
        Dataset({"a": np.zeros(2)}, theta()).save(path)
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.irpa"]


def test_two_tensors_of_one_name_are_refused(tmp_path: Path) -> None:
    one, other = tensor("same"), tensor("same", 1)
    with pytest.raises(InputError, match="two tensors are named 'same'"):
        Dataset({}, Theta({"a": one, "b": other})).save(tmp_path / "x.irpa")
    assert list(tmp_path.iterdir()) == []


def test_on_tensor_counts_what_is_written(tmp_path: Path) -> None:
    seen: list[tuple[int, int, str]] = []
    Dataset({}, theta()).save(
        tmp_path / "x.irpa", on_tensor=lambda n, count, t: seen.append((n, count, t.name))
    )
    assert seen[0] == (0, 4, "blk.0.w")
    assert [n for n, *_ in seen] == [0, 1, 2, 3]


def test_a_folder_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"cannot write .*No such file or directory"):
        Dataset({}, theta()).save(tmp_path / "none" / "x.irpa")


PRIMITIVE = {"type_name": "PrimitiveTensor", "raw_tensors": {"": "a"}}
PLANAR = {
    "type_name": "PlanarQuantizedTensor",
    "raw_tensors": {"d": "a", "qs": "b"},
    "shape": [2, 32],
    "layout_type": "BlockScaledLayout",
}
WRONG_RECORDS = [
    ([], r"entry '__SHARK_INFERENCE_TENSORS__' holds a list, expected an object"),
    ({"t": 1}, "record of tensor 't' has no type or no arrays"),
    ({"t": {"type_name": [], "raw_tensors": {}}}, "has no type or no arrays"),
    ({"t": PRIMITIVE | {"raw_tensors": []}}, "has no type or no arrays"),
    ({"t": PRIMITIVE | {"raw_tensors": {"": "x"}}}, "has the array 'x', which is not there"),
    ({"t": PRIMITIVE | {"raw_tensors": {"": {}}}}, "has the array {}, which is not there"),
    (
        {"t": PRIMITIVE | {"raw_tensors": {"d": "a"}}},
        r"error: tensor 't' has the arrays \['d'\], expected one",
    ),
    ({"t": PRIMITIVE | {"type_name": "SplitPrimitiveTensor"}}, "is of the type 'SplitPrim.*one of"),
    ({"t": PRIMITIVE, "t.u": PRIMITIVE}, "'t.u' is below the name of another tensor"),
    ({"t": PLANAR | {"layout_type": "Round"}}, "is not valid: no layout is named 'Round'"),
    ({"t": PLANAR | {"layout_type": "\x1b"}}, r"is not valid: \"no layout is named '\\x1b'"),
    ({"t": PLANAR | {"shape": [2, -32]}}, "no valid shape"),
    ({"t": PLANAR | {"shape": "2x32"}}, "no valid shape"),
    ({"t": PLANAR | {"layout_metadata": [1]}}, "no valid layout"),
    ({"t": PLANAR | {"raw_tensors": {"d": "a"}}}, "has the planes"),
    ({"t": PLANAR | {"shape": [2, 64]}}, "tensor 't' is not valid: .* of shape"),
]


UNKNOWN_PIECES = [
    (PRIMITIVE | {"zzz": 1}, "error: tensor 't' has the key 'zzz' = 1, which subquant does not"),
    (PRIMITIVE | {"shard_count": 2}, "error: tensor 't' has the key 'shard_count' = 2"),
    (
        PLANAR | {"layout_metadata": {"rotated": True}},
        "error: tensor 't' has the metadata of BlockScaledLayout 'rotated' = True, which",
    ),
    (PRIMITIVE, "error: has the entry 'b', which subquant does not use: the results could be"),
]


@pytest.mark.parametrize(
    ("records", "error", "message"),
    [
        *((records, InputError, message) for records, message in WRONG_RECORDS),
        *(({"t": record}, UnsupportedError, message) for record, message in UNKNOWN_PIECES),
    ],
)
def test_wrong_records_are_refused(
    records: Any, error: type[SubquantError], message: str, tmp_path: Path
) -> None:
    refuse(tmp_path, error, message, b"{}", json.dumps(records).encode())


WRONG_PROPERTIES: dict[str, tuple[bytes, type[Exception], str]] = {
    "no JSON": (b"{", InputError, "'__SHARK_DATASET__' is not JSON: expecting"),
    "no UTF-8": (b"\xff{}", InputError, "is not UTF-8: byte 0xff at 0"),
    "half a character": (b'{"a": "\\ud800"}', InputError, "is half of a surrogate pair"),
    "twice": (b'{"a": 1, "a": 2}', InputError, "the key 'a' is there twice"),
    "deep": (b"[" * 100_000 + b"]" * 100_000, InputError, "is nested too deeply"),
    "rather deep": (b'{"a":' * 101 + b"1" + b"}" * 101, InputError, "is nested too deeply"),
    "wide": (b"[" + b"[]," * 8_000_000 + b"[]]", InputError, "has 16000002 values, expected at"),
    "long": (
        b'{"a": ' + b"1" * 5000 + b"}",
        InputError,
        "an integer has 5000 digits, .* 4300",
    ),
    "no object": (b"[]", InputError, "holds a list, expected an object"),
    "version": (b'{"SHARK_DATASET_VERSION": 2}', UnsupportedError, "of version 2; only 1 can be"),
    "many keys": (
        b"{" + b"".join(b'"%d": 1,' % n for n in range(10**5)) + b'"7": 1}',
        InputError,
        "the key '7' is there twice",
    ),
}


@pytest.mark.parametrize("case", WRONG_PROPERTIES)
def test_wrong_properties_are_refused(case: str, tmp_path: Path) -> None:
    blob, error, message = WRONG_PROPERTIES[case]
    refuse(tmp_path, error, message, blob, b"{}")


def test_properties_may_nest_a_hundred_levels(tmp_path: Path) -> None:
    properties: dict[str, Any] = {}
    for _ in range(99):
        properties = {"a": properties}
    Dataset(properties, theta()).save(tmp_path / "x.irpa")
    assert Dataset.load(tmp_path / "x.irpa").properties == properties
    with pytest.raises(InputError, match="the properties are nested too deeply"):
        Dataset({"a": properties}, theta())


def test_a_missing_blob_and_ranks_are_refused(tmp_path: Path) -> None:
    refuse(tmp_path, InputError, "has no entry '__SHARK_INFERENCE_TENSORS__'", b"{}", None)
    message = "one of several files of a sharded data set"
    refuse(tmp_path, UnsupportedError, message, b"{}", b"{}", b"[0, 1]")


def refuse(
    folder: Path, error: type[Exception], message: str,
    properties: bytes, records: bytes | None, ranks: bytes | None = None,
) -> None:  # fmt: skip
    """A data set of some blobs is refused."""
    path = folder / "x.irpa"
    names = ("__SHARK_DATASET__", "__SHARK_INFERENCE_TENSORS__", "__SHARK_SHARD_RANKS__")
    with create_archive(path) as archive:
        archive.add_tensor("a", np.ones((2, 1, 1), np.float16))
        archive.add_tensor("b", np.ones((2, 1, 32), np.int8))
        for name, blob in zip(names, (properties, records, ranks), strict=True):
            if blob is not None:
                archive.add_blob(name, blob)
    with pytest.raises(error, match=message):
        Dataset.load(path)


def paths(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Yield the paths of the values inside a JSON value."""
    for key, child in value.items() if isinstance(value, dict) else enumerate(value):
        yield (*path, key)
        if isinstance(child, dict | list):
            yield from paths(child, (*path, key))


def test_mutated_records_open_or_are_refused(tmp_path: Path) -> None:
    """A valid file is written again, and its quantized tensors have values."""
    source = Archive(unpacked_file("written.irpa", tmp_path))
    written = json.loads(source["__SHARK_INFERENCE_TENSORS__"].content())
    values = [
        None, True, -1, 0, 2, 32, 2**63, 2**70, 1.5, float("nan"), "", "\ud800", "\x1b", "d", "qs",
        "int8", "float8_e5m2", "bool", *TENSORS, *LAYOUTS, *source, [], [2, 2, 32], [[1]], {},
        {"d": "layer.0.block:d"},
    ]  # fmt: skip
    texts = [value for value in values if isinstance(value, str)]
    texts += ["axis", "block_size", "block_shape", "storage", "dtype", "m", "z", "offset", "table"]
    chance = random.Random(5)
    messages, opened = [], 0
    for _ in range(900):
        name = chance.choice([name for name in written if not name.startswith("primitive")])
        records = {name: json.loads(json.dumps(written[name]))}
        for _ in range(chance.choice([1, 1, 2, 4])):
            path = chance.choice([*paths(records)] or [("t",)])
            parent = functools.reduce(operator.getitem, path[:-1], records)
            kind = chance.randrange(3)
            if kind == 0 and path[-1] in parent:
                del parent[path[-1]]
            elif kind == 1 and isinstance(parent, dict):
                parent[chance.choice(texts)] = chance.choice(values)
            elif isinstance(parent, dict) or path[-1] < len(parent):
                parent[path[-1]] = chance.choice(values)
        text = json.dumps(records)
        with create_archive(tmp_path / "x.irpa") as archive:
            for entry in source.values():
                if json.dumps(entry.name) in text and not entry.name.startswith("__SHARK"):
                    archive.add_tensor(entry.name, entry.array())
            archive.add_blob("__SHARK_DATASET__", b"{}")
            archive.add_blob("__SHARK_INFERENCE_TENSORS__", text.encode())
        try:
            dataset = Dataset.load(tmp_path / "x.irpa")
            dataset.save(tmp_path / "y.irpa")
        except SubquantError as error:
            messages.append(str(error))
            continue
        opened += 1
        assert len(Dataset.load(tmp_path / "y.irpa").theta) == len(dataset.theta)
        for tensor_ in dataset.theta.flatten().values():
            if isinstance(tensor_, QuantizedTensor):
                with np.errstate(all="ignore"):
                    assert tensor_.unpack().dequant().shape == tensor_.shape
    assert opened > 50
    assert len(messages) > 100
    assert all(message.isprintable() for message in messages)
