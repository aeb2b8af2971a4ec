"""Rows of a table that is multiplied with, too: looked up in the tiles of the product's kernel.

What is expected is the ``gguf`` package's, or computed here of integers; and what programs without
kernels give, which look rows up in the table as it was written. Tables are parameters, as the
compiler could compute with constants.
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
"""Those that the table of 40 does not have are the nearest that it has."""


def body_of(text: str, name: str) -> str:
    found = re.search(rf"  func\.func @{name}\(.*?\n  }}\n", text, re.DOTALL)
    assert found is not None
    return found.group()


@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.share(2)
def test_rows_of_every_type_are_those_of_gguf(kernels: str, cpu: Device, tmp_path: Path) -> None:
    names = some_types(False)
    tensors = [WEIGHTS[name] for name in names]
    products = str(program(tensors))
    text = str(program(tensors, embedding_lookup, [([5], np.int32)]))
    more = [body_of(products, name).replace("@", "@product_", 1) for name in names]
    text = text.rstrip().removesuffix("}") + "".join(more) + "}"
    data, archive, lowered = compiled(text, plain(tensors, tmp_path), tmp_path, kernels=kernels)
    # Integers that are looked up in a table themselves are not by this kernel.
    kept = {name.partition(".")[0] for name in Archive(archive) if "@" not in name}
    assert kept == {name for name in names if "table" in BLOCK_TYPES[name].metadata}
    found = len(re.findall(r"entry_points = \[@take_rows", lowered))
    assert found == len(names) - len(kept)
    executable = Executable(data, cpu, {"model": archive})
    for name, tensor in zip(names, tensors, strict=True):
        raw = tensor.raw.reshape((40, -1))
        table = gguf.quants.dequantize(raw, gguf.GGMLQuantizationType[name])
        found = executable[name](ROWS)
        expected = table[np.clip(ROWS, 0, 39)]
        np.testing.assert_array_equal(found.view(np.int32), expected.view(np.int32), name)


def tensor(shape: Sequence[int], element: str) -> str:
    return f"tensor<{'x'.join(map(str, [*shape, element]))}>"


@dataclass(frozen=True)
class Table:
    """A table of 40 rows, in a program that looks rows up in it and multiplies with it."""

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
        found = {"q": q, "s": random.standard_normal(blocks).astype(np.float32)}
        if self.zeros:
            found["z"] = random.integers(low, low + (1 << self.bits), blocks)
        if self.offsets:
            found["o"] = random.standard_normal(blocks).astype(np.float32)
        return found

    def parameters(self) -> dict[str, np.ndarray]:
        arrays = self.arrays()
        q = arrays.pop("q").astype(np.int8)
        planes = pack_planes(q, self.planes) if self.bits < 8 else [q]
        found = {f"q{number}": plane.view(np.int8) for number, plane in enumerate(planes)}
        found |= {
            name: array.astype(np.int8) if name == "z" else array for name, array in arrays.items()
        }
        return {f"{self.name}.{name}": array for name, array in found.items()}

    @property
    def planes(self) -> tuple[int, ...]:
        return PLANE_BITS.get(self.bits, (8,))

    def rows(self) -> list[np.ndarray]:
        """The rows: offsets are added to rounded products, or both are rounded at once."""
        arrays = self.arrays()
        spread = {
            name: np.repeat(array, self.block, 1) for name, array in arrays.items() if name != "q"
        }
        integers = arrays["q"] - spread.get("z", 0)
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
        for part, extent, held in shapes:
            type_ = tensor([40, extent], held)
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
            kinds = {part: typed(extent, held) for part, extent, held in shapes}
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
      : ({tensor([40, extent], held)}, {ids}) -> {tensor([*self.shape, extent], held)}"""
            for part, extent, held in shapes
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


@pytest.mark.parametrize("is_given", [True, False])
@pytest.mark.share(2)
def test_rows_of_any_blocks(is_given: bool, cpu: Device, tmp_path: Path) -> None:
    """With tiles in an archive, and with tiles that the program makes when it is loaded."""
    source = tmp_path / "source.irpa"
    with create_archive(source) as writer:
        for table in TABLES:
            for name, array in table.parameters().items():
                writer.add_tensor(name, array)

    def made(kernels: str, emit: Literal["mlir", "vmfb"] = "vmfb") -> bytes:
        archive, given = None, {}
        if is_given:
            archive, given = tmp_path / f"{kernels}.irpa", {"model": source}
        options = CompileOptions(kernels=kernels)
        text = "".join(table.text(is_multiplied=kernels != "none") for table in TABLES)
        return compile_to_bytes(text, options, emit=emit, parameters=archive, weights=given)

    # No kernel multiplies with narrow integers whose zero points are not known.
    multiplied = [table for table in TABLES if is_given or not table.zeros or table.bits == 8]
    looked_up = re.findall(r"entry_points = \[@take_rows", made("auto", "mlir").decode())
    assert len(looked_up) == len(multiplied)
    found, other = (
        Executable(made(each), cpu, {"model": tmp_path / f"{each}.irpa" if is_given else source})
        for each in ("auto", "none")
    )
    random = np.random.default_rng(1)
    for table in TABLES:
        dtype = np.int32 if table.index == "i32" else np.int64
        ids = random.integers(-3, 44, table.shape).astype(dtype)
        rows = found[f"rows_{table.name}"](ids)
        same = other[f"rows_{table.name}"](ids)
        np.testing.assert_array_equal(rows.view(np.int32), same.view(np.int32), str(table))
        expected = [each[np.clip(ids, 0, 39)] for each in table.rows()]
        assert np.logical_or.reduce([rows == each for each in expected]).all(), table
