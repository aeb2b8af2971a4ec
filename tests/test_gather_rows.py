"""Row gathers from the packed weight of a contraction.

References are the ``gguf`` package, integers that are computed here, and programs without kernels,
which gather from the original table. Tables are parameters: the compiler could compute with
constants.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import gguf
import numpy as np
import pytest

from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.formats.irpa import Archive
from subquant.formats.irpa_writer import create_archive
from subquant.layouts.ggml import BLOCK_TYPES
from subquant.numerics.packed_integers import PLANE_BITS, pack_planes
from subquant.ops import embedding_lookup
from subquant.runtime import Device, Executable
from test_packed_parameters import KERNELS, WEIGHTS, compiled, plain, program, some_types

ROWS = np.array([0, 39, -7, 1000, 17], np.int32)
"""Indices, of which some are clamped to the 40 rows of the table."""


def body_of(text: str, name: str) -> str:
    body = re.search(rf"  func\.func @{name}\(.*?\n  }}\n", text, re.DOTALL)
    assert body is not None
    return body.group()


@pytest.mark.long
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.share(4)
def test_rows_of_every_block_type_match_gguf(kernels: str, cpu: Device, tmp_path: Path) -> None:
    names = some_types(False)
    tensors = [WEIGHTS[name] for name in names]
    products = str(program(tensors))
    text = str(program(tensors, embedding_lookup, [([5], np.int32)]))
    more = [body_of(products, name).replace("@", "@product_", 1) for name in names]
    text = text.rstrip().removesuffix("}") + "".join(more) + "}"
    data, archive, lowered = compiled(text, plain(tensors, tmp_path), tmp_path, kernels=kernels)
    # The kernel supports no codebooks.
    unpacked = {name.partition(".")[0] for name in Archive(archive) if "@" not in name}
    assert unpacked == {name for name in names if "table" in BLOCK_TYPES[name].metadata}
    calls = len(re.findall(r"entry_points = \[@gather_rows", lowered))
    assert calls == len(names) - len(unpacked)
    executable = Executable(data, cpu, {"model": archive})
    for name, tensor in zip(names, tensors, strict=True):
        raw = tensor.raw.reshape((40, -1))
        table = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
        rows = executable[name](ROWS)
        expected = table[np.clip(ROWS, 0, 39)]
        np.testing.assert_array_equal(rows.view(np.int32), expected.view(np.int32), name)


def tensor(shape: Sequence[int], element: str) -> str:
    return f"tensor<{'x'.join(map(str, [*shape, element]))}>"


@dataclass(frozen=True)
class Table:
    """A table of 40 rows, in a program that gathers its rows and multiplies with it."""

    bits: int
    signed: bool
    block: int
    depth: int
    zeros: bool = False
    offsets: bool = False
    shape: tuple[int, ...] = (5,)
    index: str = "i32"

    def __str__(self) -> str:
        besides = "z" * self.zeros + "o" * self.offsets
        return f"{'i' if self.signed else 'u'}{self.bits}-{self.block}-{besides}{self.index}"

    @property
    def name(self) -> str:
        return re.sub(r"\W", "_", str(self))

    def arrays(self) -> dict[str, np.ndarray]:
        random = np.random.default_rng(self.bits)
        low = -(1 << (self.bits - 1)) if self.signed else 0
        blocks = (40, self.depth // self.block)
        q = random.integers(low, low + (1 << self.bits), (40, self.depth))
        arrays = {"q": q, "s": random.standard_normal(blocks).astype(np.float32)}
        if self.zeros:
            arrays["z"] = random.integers(low, low + (1 << self.bits), blocks)
        if self.offsets:
            arrays["o"] = random.standard_normal(blocks).astype(np.float32)
        return arrays

    def parameters(self) -> dict[str, np.ndarray]:
        arrays = self.arrays()
        q = arrays.pop("q").astype(np.int8)
        planes = pack_planes(q, self.planes) if self.bits < 8 else [q]
        if self.zeros:
            arrays["z"] = arrays["z"].astype(np.int8)
        arrays |= {f"q{number}": plane.view(np.int8) for number, plane in enumerate(planes)}
        return {f"{self.name}.{name}": array for name, array in arrays.items()}

    @property
    def planes(self) -> tuple[int, ...]:
        return PLANE_BITS.get(self.bits, (8,))

    def rows(self) -> list[np.ndarray]:
        """Return the rows, of which offsets are added to rounded products, or with one rounding."""
        arrays = self.arrays()
        q = arrays.pop("q")
        spread = {name: np.repeat(array, self.block, 1) for name, array in arrays.items()}
        integers = q - spread.get("z", 0)
        products = integers.astype(np.float64) * spread["s"]
        if not self.offsets:
            return [products.astype(np.float32)]
        offsets = spread["o"].astype(np.float64)
        apart = products.astype(np.float32) + spread["o"]
        return [apart, (products + offsets).astype(np.float32)]

    def text(self, *, is_multiplied: bool) -> str:
        name, depth, blocks = self.name, self.depth, self.depth // self.block
        element = f"i{self.bits}" if self.signed else "i8"
        kind = element if self.signed else f"u8<0:{(1 << self.bits) - 1}>"
        shapes = [(f"q{n}", depth * bits // 8, "i8") for n, bits in enumerate(self.planes)]
        shapes += [("s", blocks, "f32")]
        shapes += [("z", blocks, "i8")] * self.zeros + [("o", blocks, "f32")] * self.offsets
        defined, loads = "", ""
        for part, extent, dtype in shapes:
            type_ = tensor([40, extent], dtype)
            defined += f"""
"util.global"() {{sym_name = "{name}.{part}", sym_visibility = "private", type = {type_},
    initial_value = #flow.parameter.named<"model"::"{name}.{part}"> : {type_}}} : () -> ()"""
            loads += f"""
  %{part} = "util.global.load"() {{global = @"{name}.{part}"}} : () -> {type_}"""
        operands = ["s", *["z"] * self.zeros, *["o"] * self.offsets]
        segments = f"1, 1, {int(self.zeros)}, {int(self.offsets)}"

        def dequantized(ones: list[int], shape: list[int], prefix: str) -> str:
            def typed(extent: int, element: str) -> str:
                return tensor([*shape, extent], element)

            reals = typed(depth, "f32")
            planes = [f"q{n}" for n in range(len(self.planes))]
            kinds = {part: typed(extent, dtype) for part, extent, dtype in shapes}
            storage, integers = f"%{prefix}q0", ""
            if self.bits < 8:
                storage = f"%{prefix}q"
                integers = f"""
  {storage} = "subquant.unpack"({", ".join("%" + prefix + each for each in planes)}) {{
      bits = array<i64: {", ".join(map(str, self.planes))}>,
      operandSegmentSizes = array<i32: 1, {len(planes) - 1}>}}
      : ({", ".join(kinds[each] for each in planes)}) -> {typed(depth, element)}"""
            sizes = ", ".join(map(str, [*ones, self.block]))
            return f"""{integers}
  %{prefix}r = "subquant.dequantize"({", ".join([storage, *("%" + prefix + n for n in operands)])})
      {{block_sizes = array<i64: {sizes}>, operandSegmentSizes = array<i32: {segments}>,
       quantized_type = !quant.any<{kind}:f32>}}
      : ({", ".join([typed(depth, element), *(kinds[n] for n in operands)])}) -> {reals}"""

        rank, ids = len(self.shape), tensor(self.shape, self.index)
        rows = tensor([*self.shape, depth], "f32")
        gathers = "".join(
            f"""
  %t{part} = "stablehlo.gather"(%{part}, %ids) {{dimension_numbers = #stablehlo.gather<
      offset_dims = [{rank}], collapsed_slice_dims = [0], start_index_map = [0],
      index_vector_dim = {rank}>, slice_sizes = array<i64: 1, {extent}>}}
      : ({tensor([40, extent], dtype)}, {ids}) -> {tensor([*self.shape, extent], dtype)}"""
            for part, extent, dtype in shapes
        )
        rows_function = f"""{defined}
func.func @rows_{name}(%ids: {ids}) -> {rows} {{
{loads}{gathers}{dequantized([1] * rank, list(self.shape), "t")}
  return %tr : {rows}
}}
"""
        if not is_multiplied:
            return rows_function
        return f"""{rows_function}
func.func @product_{name}(%x: tensor<1x{depth}xf32>) -> tensor<1x40xf32> {{
{loads}{dequantized([1], [40], "")}
  %y = stablehlo.dot_general %x, %r, contracting_dims = [1] x [1]
      : (tensor<1x{depth}xf32>, tensor<40x{depth}xf32>) -> tensor<1x40xf32>
  return %y : tensor<1x40xf32>
}}
"""


TABLES = [
    Table(2, False, 16, 512),
    Table(3, False, 64, 512, zeros=True),  # a block of two steps
    Table(4, True, 32, 512, offsets=True),
    Table(4, False, 512, 512, zeros=True, shape=(2, 3)),
    Table(5, False, 32, 512, zeros=True, offsets=True, index="i64"),
    Table(6, False, 16, 512, offsets=True, shape=(70,)),  # three workgroups
    Table(8, True, 8, 512),
    Table(8, False, 128, 512, zeros=True, offsets=True, shape=()),
]


@pytest.mark.parametrize("has_archive", [True, False])
@pytest.mark.skipif(not LONG, reason="6 s; the short suite looks up rows of GGUF's types")
def test_rows_of_any_block_format(has_archive: bool, cpu: Device, tmp_path: Path) -> None:
    """With packed parameters in an archive, and with weights that the program packs at load."""
    source = tmp_path / "source.irpa"
    with create_archive(source) as writer:
        for table in TABLES:
            for name, array in table.parameters().items():
                writer.add_tensor(name, array)

    def compile_(kernels: str, emit: Literal["mlir", "vmfb"] = "vmfb") -> bytes:
        archive, weights = None, {}
        if has_archive:
            archive, weights = tmp_path / f"{kernels}.irpa", {"model": source}
        options = CompileOptions(kernels=kernels)
        text = "".join(table.text(is_multiplied=kernels != "none") for table in TABLES)
        return compile_to_bytes(text, options, emit=emit, parameters=archive, weights=weights)

    # Kernels multiply narrow integers with constant zero points only.
    multiplied = [table for table in TABLES if has_archive or not table.zeros or table.bits == 8]
    looked_up = re.findall(r"entry_points = \[@gather_rows", compile_("auto", "mlir").decode())
    assert len(looked_up) == len(multiplied)
    gathered, reference = (
        Executable(
            compile_(each), cpu, {"model": tmp_path / f"{each}.irpa" if has_archive else source}
        )
        for each in ("auto", "none")
    )
    random = np.random.default_rng(1)
    for table in TABLES:
        dtype = np.int32 if table.index == "i32" else np.int64
        ids = random.integers(-3, 44, table.shape).astype(dtype)
        rows = gathered[f"rows_{table.name}"](ids)
        same = reference[f"rows_{table.name}"](ids)
        np.testing.assert_array_equal(rows.view(np.int32), same.view(np.int32), str(table))
        expected = [each[np.clip(ids, 0, 39)] for each in table.rows()]
        assert np.logical_or.reduce([rows == each for each in expected]).all(), table
