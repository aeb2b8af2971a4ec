"""Parameters that the compiler reads are packed into an archive, which executables map."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import pytest

from devices import compile_for
from ggml_blocks import COMPUTED, activation_block, moderate_blocks
from gguf_models import write_file
from instruction_sets import AUTO, HERE, case_of
from processes import run_python
from programs import LONG
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.iree_driver import host_features
from subquant.core._mlir import Value, ir
from subquant.dialects import create_context
from subquant.emit.functions import write_function
from subquant.emit.operation import create, mlir_type, tensor_type, value
from subquant.emit.trace import traced
from subquant.errors import ExecutionError, InputError, UsageError
from subquant.formats.irpa import Archive
from subquant.formats.irpa_writer import create_archive
from subquant.kernels.isa.registry import INSTRUCTION_SETS, fastest_instruction_set
from subquant.layouts import (
    GgmlTensor,
    InferenceTensor,
    PlanarQuantizedTensor,
    QuantizedTensor,
    SuperBlockLayout,
)
from subquant.numerics.block_contraction import round_activations
from subquant.numerics.element_types import AnyArray, ElementType
from subquant.ops import linear
from subquant.runtime import Device, Executable
from subquant.weights import Dataset, Theta

DEPTH = 512
KERNELS = [AUTO, case_of("avx2")]


def weight(name: str, columns: int = 40, seed: int = 0) -> GgmlTensor:
    """Random blocks with moderate scales; N is no multiple of NR."""
    return moderate_blocks(name, (columns, DEPTH), np.random.default_rng(seed), f"{name}.weight")


WEIGHTS: dict[str, QuantizedTensor] = {name: weight(name) for name in COMPUTED}


def some_types(is_other: bool) -> list[str]:
    """Return every other type, or the remaining ones; the long suite has all."""
    return list(WEIGHTS)[int(is_other) :: 2] if not LONG else list(WEIGHTS)


def program(
    tensors: Sequence[QuantizedTensor],
    function: Callable[..., AnyArray] = linear,
    types: Sequence[tuple[list[int | None], Any]] = (([3, DEPTH], np.float32),),
) -> ir.Module:
    """Return a function of each tensor, with parameters that ``subquant import`` would name.

    Its last argument is the tensor; those before it have the `types`.
    """
    with create_context(), ir.Location.unknown():
        module = ir.Module.create()
        with ir.InsertionPoint(module.body):
            for tensor in tensors:
                planar = tensor.to_planar()
                for name, array in planar.arrays.items():
                    type_ = type_of(array)
                    parameter = f'#flow.parameter.named<"model"::"{name}"> : {type_}'
                    attributes = {
                        "sym_name": ir.StringAttr.get(name),
                        "sym_visibility": ir.StringAttr.get("private"),
                        "type": ir.TypeAttr.get(type_),
                        "initial_value": ir.Attribute.parse(parameter),
                    }
                    create("util.global", attributes=attributes)

                def body(values: Sequence[Value], planar: Any = planar) -> list[Value]:
                    arrays = {name: loaded(name, array) for name, array in planar.arrays.items()}
                    planes = zip(planar.layout.planes, arrays.values(), strict=True)
                    layout = planar.layout.with_planes(dict(planes))
                    weight = PlanarQuantizedTensor(layout, planar.name)
                    return [function(*map(traced, values), weight).value]

                inputs = [
                    tensor_type(shape, mlir_type(ElementType.of_dtype(np.dtype(dtype))))
                    for shape, dtype in types
                ]
                write_function(tensor.name.removesuffix(".weight"), inputs, body)
        module.operation.verify()
        return module


def type_of(array: AnyArray) -> ir.Type:
    return tensor_type(array.shape, mlir_type(ElementType.of_dtype(array.dtype)))


def loaded(name: str, array: AnyArray) -> AnyArray:
    symbol = {"global": ir.FlatSymbolRefAttr.get(name)}
    return traced(
        value("util.global.load", [], type_of(array), symbol), ElementType.of_dtype(array.dtype)
    )


def plain(tensors: Sequence[QuantizedTensor], folder: Path) -> Path:
    Dataset({}, Theta(tensors)).save(folder / "plain.irpa")
    return folder / "plain.irpa"


def compiled(
    module: ir.Module | str, weights: Path, folder: Path, **options: Any
) -> tuple[bytes, Path, str]:
    """Return the executable, its archive, and the lowered module."""
    archive, choices = folder / "packed.irpa", CompileOptions(**options)
    sources = {"model": weights}
    text = compile_to_bytes(module, choices, emit="mlir", parameters=archive, weights=sources)
    data = compile_to_bytes(module, choices, parameters=archive, weights=sources)
    return data, archive, text.decode()


# -- values ---------------------------------------------------------------------------------------


@pytest.mark.long
@pytest.mark.parametrize("activations", ["int8", "float"])
@pytest.mark.parametrize("kernels", KERNELS)
@pytest.mark.share(4)
def test_every_block_type_is_packed(
    kernels: str, activations: str, cpu: Device, tmp_path: Path
) -> None:
    names = some_types(activations == "int8")
    tensors = [WEIGHTS[name] for name in names]
    data, archive, text = compiled(
        program(tensors), plain(tensors, tmp_path), tmp_path,
        kernels=kernels, activations=activations, fuse_below_macs=0,
    )  # fmt: skip
    assert len(re.findall(r"entry_points = \[@blockwise_gemm", text)) == len(names)
    read = set(re.findall(r'parameter\.named<"model"::"([^"]+)">', text))
    assert read == set(Archive(archive))
    assert all("@" in name for name in read), "a parameter is not packed"
    for looked_up in (name for name in read if name.startswith("IQ4_NL")):
        instructions = INSTRUCTION_SETS[HERE[0] if kernels == "auto" else kernels]
        assert ("-u4-32." in looked_up) == bool(instructions.shuffle_intrinsic)
    executable = Executable(data, cpu, {"model": archive})
    x = np.random.default_rng(3).standard_normal((3, DEPTH)).astype(np.float32)
    for name in names:
        check_product(name, executable, x, activations)


def check_product(name: str, executable: Executable, x: AnyArray, activations: str) -> None:
    """Sums of f32 of 512 products, with one or two roundings each."""
    real = WEIGHTS[name].unpack().dequant().astype(np.float64)
    rounded = x.astype(np.float64)
    if activations == "int8":
        rounded = round_activations(x, [1, activation_block(WEIGHTS[name])]).astype(np.float64)
    bound = 2.0**-24 * (DEPTH + 8) * (np.abs(rounded) @ np.abs(real).T)
    assert (np.abs(executable[name](x) - rounded @ real.T) <= bound).all(), name


def check_sums(name: str, actual: Any, factor: int = 1) -> None:
    """The product of three rows of ones with a weight."""
    expected = np.tile(factor * WEIGHTS[name].unpack().dequant().sum(1), (3, 1))
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize("name", ["Q3_K", "Q6_K"])
def test_quantized_scales_take_a_byte(name: str, tmp_path: Path) -> None:
    """The scales of Q3_K have a zero point."""
    tensor = weight(name, columns=128)
    weights, archive = {"model": plain([tensor], tmp_path)}, tmp_path / "packed.irpa"
    options = CompileOptions(kernels="portable", activations="int8")
    compile_to_bytes(program([tensor]), options, emit="mlirbc", parameters=archive, weights=weights)
    layout = tensor.unpack()
    assert isinstance(layout, SuperBlockLayout)
    integers = sum(layout.planes[plane].nbytes for plane in layout.QS.bits)
    scales = 128 * DEPTH // layout.block_size
    packed = sum(entry.length for entry in Archive(archive).values())
    assert packed == integers + scales + layout.planes["d"].nbytes


@pytest.mark.vulkan
def test_on_vulkan(vulkan: Device, tmp_path: Path) -> None:
    names = ("Q5_0", "Q4_K", "IQ1_M")
    tensors, archive = [WEIGHTS[name] for name in names], tmp_path / "packed.irpa"
    files = {"weights": {"model": plain(tensors, tmp_path)}, "archive": archive}
    executable = compile_for(program(tensors), vulkan, activations="int8", **files)
    assert all("@32x1x4-u" in name for name in Archive(archive))
    x = np.random.default_rng(3).standard_normal((3, DEPTH)).astype(np.float32)
    for name in names:
        check_product(name, executable, x, "int8")


def test_vulkan_gemv_and_gemm_share_packed_weights(tmp_path: Path) -> None:
    tensor = weight("Q4_K", columns=600)

    def of_both(x: AnyArray, w: InferenceTensor) -> AnyArray:
        return np.concatenate([linear(x[:1], w), linear(x, w)], 0)

    module = program([tensor], of_both, [([33, DEPTH], np.float32)])
    _, archive, text = compiled(module, plain([tensor], tmp_path), tmp_path, target="vulkan")
    assert len(set(re.findall(r"entry_points = \[@(blockwise_gemm\w*)", text))) == 2
    sources = [name.split("@")[0] for name in Archive(archive)]
    assert sources
    assert len(set(sources)) == len(sources), "a weight is packed twice"


def test_gguf_files_are_read_directly(cpu: Device, tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "test")
    for name, tensor in WEIGHTS.items():
        raw = tensor.raw.reshape((40, -1))
        writer.add_tensor(tensor.name, raw, raw_dtype=gguf.GGMLQuantizationType[name])
    write_file(writer)
    module = program(list(WEIGHTS.values()))
    plain(list(WEIGHTS.values()), tmp_path)
    archives = []
    for source in ("x.gguf", "plain.irpa"):
        weights, archive = {"model": tmp_path / source}, tmp_path / "packed.irpa"
        compile_to_bytes(module, emit="mlirbc", parameters=archive, weights=weights)
        archives.append(archive.read_bytes())
    assert archives[0] == archives[1]
    x = np.ones((3, DEPTH), np.float32)
    data, archive, _ = compiled(program([WEIGHTS["IQ4_NL"]]), tmp_path / "x.gguf", tmp_path)
    check_sums("IQ4_NL", Executable(data, cpu, {"model": archive}).IQ4_NL(x))


@pytest.mark.parametrize("rows", [1, 40])
def test_int8_weights_are_packed(rows: int, cpu: Device, tmp_path: Path) -> None:
    """With AMX, if the CPU has it, and with vectors."""
    random = np.random.default_rng(2)
    x = random.integers(-128, 128, (rows, 128)).astype(np.int8)
    w = random.integers(-128, 128, (72, 128)).astype(np.int8)
    text = f"""
"util.global"() {{sym_name = "w", sym_visibility = "private", type = tensor<72x128xi8>,
    initial_value = #flow.parameter.named<"model"::"w"> : tensor<72x128xi8>}} : () -> ()
func.func @main(%x: tensor<{rows}x128xi8>) -> tensor<{rows}x72xi32> {{
  %w = "util.global.load"() {{global = @w}} : () -> tensor<72x128xi8>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<{rows}x128xi8>, tensor<72x128xi8>) -> tensor<{rows}x72xi32>
  return %y : tensor<{rows}x72xi32>
}}
"""
    with create_archive(tmp_path / "plain.irpa") as writer:
        writer.add_tensor("w", w)
    data, archive, _ = compiled(text, tmp_path / "plain.irpa", tmp_path)
    assert all(re.fullmatch(r"w@i8\.[0-9a-f]{12}", name) for name in Archive(archive))
    actual = Executable(data, cpu, {"model": archive}).main(x)
    np.testing.assert_array_equal(actual, x.astype(np.int32) @ w.astype(np.int32).T)


# -- contents of the archive ----------------------------------------------------------------------


def test_functions_share_packed_weights(cpu: Device, tmp_path: Path) -> None:
    """A prompt and a token read the same packed weight; slices read the original."""
    table = weight("Q8_0", 96)
    texts = []
    for types in ([([1, DEPTH], np.float32)], [([20, DEPTH], np.float32)]):
        texts.append(str(program([table], types=types)))

    def rows_of(row: AnyArray, w: Any) -> AnyArray:
        return w.unpack().planes["qs"][3:5]  # type: ignore[no-any-return]

    texts.append(str(program([table], rows_of, [([1], np.float32)])))
    bodies = [re.findall(r"func\.func @Q8_0.*?\n  }", text, re.DOTALL)[0] for text in texts]
    prompt, looked_up = bodies[1].replace("@Q8_0", "@prompt"), bodies[2].replace("@Q8_0", "@rows")
    text = texts[0].rstrip().removesuffix("}") + prompt + "\n" + looked_up + "\n}"
    data, archive, _ = compiled(text, plain([table], tmp_path), tmp_path, activations="int8")
    names = sorted(re.sub(r"@.*", "@tiles", name) for name in Archive(archive))
    assert names == ["Q8_0.weight:qs", "Q8_0.weight:qs@tiles"]
    executable = Executable(data, cpu, {"model": archive})
    x = np.random.default_rng(1).standard_normal((20, DEPTH)).astype(np.float32)
    np.testing.assert_allclose(executable.Q8_0(x[:1]), executable.prompt(x)[:1], rtol=1e-5)
    np.testing.assert_array_equal(
        executable.rows(np.zeros(1, np.float32)), table.unpack().planes["qs"][3:5]
    )


def test_command_line(tmp_path: Path) -> None:
    tensors = [WEIGHTS["Q4_K"]]
    plain(tensors, tmp_path)
    (tmp_path / "x.mlir").write_text(str(program(tensors)))
    np.save(tmp_path / "x.npy", np.ones((3, DEPTH), np.float32))
    commands = [
        "compile x.mlir --weights model=plain.irpa --parameters packed.irpa",
        "run x.vmfb --parameters model=packed.irpa --input @x.npy --output @y.npy",
    ]
    tool = Path(sys.executable).parent / "subquant"
    for command in commands:
        subprocess.run([tool, *command.split()], cwd=tmp_path, check=True, capture_output=True)
    check_sums("Q4_K", np.load(tmp_path / "y.npy"))


# -- errors ---------------------------------------------------------------------------------------


def test_an_archive_of_other_tiles_is_not_loaded(cpu: Device, tmp_path: Path) -> None:
    tensors = [WEIGHTS["Q5_0"]]
    weights, module = plain(tensors, tmp_path), program(tensors)
    (tmp_path / "other").mkdir()
    # AVX2 and portable kernels share a tile layout of eight columns.
    is_equal = (
        fastest_instruction_set(host_features() or ()).lanes == INSTRUCTION_SETS["portable"].lanes
    )
    options = {"target_cpu": "znver4"} if is_equal else {"kernels": "portable"}
    _, other, _ = compiled(module, weights, tmp_path / "other", **options)
    data, archive, _ = compiled(module, weights, tmp_path)
    Executable(data, cpu, {"model": archive})
    for path in (other, weights):
        with pytest.raises(ExecutionError) as raised:
            Executable(data, cpu, {"model": path})
        assert re.search(
            r"reads the parameter 'Q5_0\.weight:qs_low@\S+', which is not in "
            rf"'{path}'; give the archive that was written when it was compiled",
            str(raised.value),
        )


def test_an_archive_of_another_program_is_not_loaded(cpu: Device, tmp_path: Path) -> None:
    """The other program doubles the scales."""
    tensors = [WEIGHTS["Q5_0"]]
    weights = plain(tensors, tmp_path)

    def doubled(x: AnyArray, w: Any) -> AnyArray:
        layout = w.layout
        planes = {**layout.planes, "d": layout.planes["d"] + layout.planes["d"]}
        return linear(x, PlanarQuantizedTensor(layout.with_planes(planes), w.name))

    (tmp_path / "other").mkdir()
    executable, other, _ = compiled(program(tensors, doubled), weights, tmp_path / "other")
    x = np.ones((3, DEPTH), np.float32)
    check_sums("Q5_0", Executable(executable, cpu, {"model": other}).Q5_0(x), 2)
    data, _, _ = compiled(program(tensors), weights, tmp_path)
    with pytest.raises(ExecutionError, match=r"'Q5_0\.weight:qs_low@\S+', which is not"):
        Executable(data, cpu, {"model": other})


def test_weights_that_do_not_fit(tmp_path: Path) -> None:
    text = str(program([WEIGHTS["Q5_0"]]))
    for name, array, message in (
        ("other", np.zeros(3), "reads the parameter 'Q5_0.weight:qs_low', which the weights of"),
        (
            "Q5_0.weight:qs_low",
            np.zeros(3, np.uint8),
            "as tensor<40x16x16xi8>, which is 10240 bytes, and the weights have 3",
        ),
    ):
        with create_archive(tmp_path / "wrong.irpa") as writer:
            writer.add_tensor(name, array)
        with pytest.raises(InputError) as raised:
            compiled(text, tmp_path / "wrong.irpa", tmp_path)
        assert message in str(raised.value)
        assert re.match(r"-:\d+:\d+: error: 'util.global.load' op reads", str(raised.value))
        assert not (tmp_path / "packed.irpa").exists()


def test_weights_need_a_file_to_be_written_to(tmp_path: Path) -> None:
    tensors = [WEIGHTS["Q5_0"]]
    weights, module = plain(tensors, tmp_path), program(tensors)
    with pytest.raises(UsageError, match="no file of parameters that they are written to"):
        compile_to_bytes(module, weights={"model": weights})
    with pytest.raises(UsageError, match="which they are read from; give another file"):
        compile_to_bytes(module, weights={"model": weights}, parameters=weights)


# -- memory ---------------------------------------------------------------------------------------

_MEMORY = """
import json, sys
import numpy as np
import subquant

def resident():
    lines = (line.split() for line in open("/proc/self/status"))
    fields = {words[0]: words[1] for words in lines if len(words) > 1}
    return [int(fields[name + ":"]) * 1024 for name in ("RssAnon", "RssFile")]

executable = subquant.load("x.vmfb", parameters={"model": sys.argv[1]}, threads=1)
x = np.ones((1, 4096), np.float32)
executable.main(x)
print(json.dumps(resident()))
"""


@pytest.mark.skipif(not LONG, reason="4 s; a claim on memory, not on numbers")
@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="Linux says what is resident")
def test_packed_parameters_are_mapped(tmp_path: Path) -> None:
    """A program maps 64 MiB of packed integers, and copies unpacked ones to pack them."""
    columns, depth = 16384, 4096
    text = f"""
"util.global"() {{sym_name = "q", sym_visibility = "private", type = tensor<{columns}x{depth}xi8>,
    initial_value = #flow.parameter.named<"model"::"q"> : tensor<{columns}x{depth}xi8>}} : () -> ()
func.func @main(%x: tensor<1x{depth}xf32>) -> tensor<1x{columns}xf32> {{
  %q = "util.global.load"() {{global = @q}} : () -> tensor<{columns}x{depth}xi8>
  %s = stablehlo.constant dense<0.5> : tensor<{columns}x{depth // 32}xf32>
  %w = "subquant.dequantize"(%q, %s) {{block_sizes = array<i64: 1, 32>,
      operandSegmentSizes = array<i32: 1, 1, 0, 0>, quantized_type = !quant.any<i8:f32>}}
      : (tensor<{columns}x{depth}xi8>, tensor<{columns}x{depth // 32}xf32>)
      -> tensor<{columns}x{depth}xf32>
  %y = stablehlo.dot_general %x, %w, contracting_dims = [1] x [1]
      : (tensor<1x{depth}xf32>, tensor<{columns}x{depth}xf32>) -> tensor<1x{columns}xf32>
  return %y : tensor<1x{columns}xf32>
}}
"""
    with create_archive(tmp_path / "plain.irpa") as writer:
        writer.add_tensor("q", np.ones((columns, depth), np.int8))

    size = columns * depth
    data, archive, _ = compiled(text, tmp_path / "plain.irpa", tmp_path, activations="int8")
    (tmp_path / "x.vmfb").write_bytes(data)
    anonymous, of_files = json.loads(run_python(_MEMORY, archive.name, cwd=tmp_path))
    assert of_files > size
    assert anonymous < size // 2
    (tmp_path / "x.vmfb").write_bytes(compile_to_bytes(text, CompileOptions(activations="int8")))
    anonymous, _ = json.loads(run_python(_MEMORY, "plain.irpa", cwd=tmp_path))
    assert anonymous > size  # the program packs into memory of its own
