"""Error messages: the mistake, the value found, and the proposed correction."""

from __future__ import annotations

import itertools
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import subquant
from command_line import call, succeed
from command_line import fail_in_one_line as fail
from programs import PRODUCT, one_operation
from subquant.compiler import iree_driver, pipeline
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.diagnostics import reworded
from subquant.compiler.iree_driver import compiler_path, host_features, recorded_features
from subquant.compiler.iree_driver import target_features as llvm_features
from subquant.compiler.mlir_client import text_of
from subquant.compiler.targets import IREE_VULKAN_TARGETS
from subquant.core import cpu_features
from subquant.core._mlir import passmanager, register_upstream_passes
from subquant.dialects import create_context
from subquant.errors import ExecutionError, UsageError, expected_name
from subquant.runtime import Device, Executable
from subquant.runtime import host_features as runtime_features
from subquant.runtime.host_features import missing_features
from subquant.runtime.vm_modules import load_module, public_functions
from subquant.signature import CPU_FEATURES_KEY

PROGRAM = """func.func @main(%x: tensor<2x3xf32>, %n: tensor<?xui8>) -> tensor<2x3xf32> {
  return %x : tensor<2x3xf32>
}
"""
ARGUMENTS = ("--input", "2x3xf32=1", "--input", "4xui8=1")


@pytest.fixture(autouse=True)
def here(in_temporary_folder: Path) -> Path:
    Path("x.mlir").write_text(PROGRAM)
    return in_temporary_folder


# -- names ----------------------------------------------------------------------------------------


def test_a_similar_name_is_proposed() -> None:
    known = ["Canonicalize", "cse", "inline"]
    assert expected_name("canonicalise", known) == "did you mean 'Canonicalize'?"
    assert expected_name("sce", known) == "did you mean 'cse'?"
    assert expected_name("none", known) == "expected one of: Canonicalize, cse, inline"
    assert expected_name("", [], "a name among") == "expected a name among: none"
    shortened = f"did you mean '{'x' * 80}...' (90 characters)?"
    assert expected_name("x" * 100_000, ["x" * 90]) == shortened


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("opt x.mlir --passes canonicalise",
         "no pass is named 'canonicalise'; did you mean 'canoni"),
        ("opt x.mlir --passes lower-quant-cast",
         "no pass is named 'lower-quant-cast'; did you mean 'lower-quant-casts' or"),
        ("opt x.mlir --passes lower-quant-casts{roundin=toward-zero}",
         "pass 'lower-quant-casts' has no option 'roundin=toward-zero'; did you mean 'rounding"),
        ("exec x.mlir --function mian", "no function is named 'mian'; did you mean 'main'?"),
        ("exec x.mlir --input x.npy",
         "expected @file.npy or a literal such as 2x2xf32=1,2,3,4, got 'x.npy'; did you mean "
         "'@x.npy'?"),
        ("exec x.mlir --input 2xf33=1", "element type 'f33' in '2xf33=1' is not known; did you me"),
        ("exec x.mlir --input 2x3xf32=1 --input 1xui8=1 --output y.npy",
         "expected @file.npy or - for --output, got 'y.npy'; did you mean '@y.npy'?"),
        ("compile x.mlir --target-cpu znver99",
         "LLVM knows no CPU 'znver99' of x86_64; did you mean 'znver"),
        ("compile x.mlir --target vulkan --vulkan-target amper",
         "IREE knows no Vulkan target 'amper'; did you mean 'ampere'?"),
        ("compile x.mlir --target vulkan --vulkan-target amper --emit mlir",
         "IREE knows no Vulkan target 'amper'; did you mean 'ampere'?"),
    ],
)  # fmt: skip
def test_misspelled_names(arguments: str, message: str) -> None:
    if "--target-cpu" in arguments and "aes" not in (host_features() or ()):
        pytest.skip("not an x86-64 CPU")
    assert fail(2, *arguments.split()).startswith(f"error: {message}")
    assert [path.name for path in Path().iterdir()] == ["x.mlir"]  # no reproducer


def test_misspelled_commands_and_tensors() -> None:
    expected = "Error: No such command 'exce'. Did you mean 'exec'?\n"
    assert call("exce").stderr.endswith(expected)
    assert call("zzzz").stderr.endswith("No such command 'zzzz'.\n")
    Path("x.mlir").write_text(
        "func.func @f(%x: tensor<2x!quant.uniform<i8:f32, 0.5>>) {\n"
        "  %w = quant.dcast %x : tensor<2x!quant.uniform<i8:f32, 0.5>> to tensor<2xf32>\n"
        "  %scales = quant.qcast %w : tensor<2xf32> to tensor<2x!quant.uniform<i8:f32, 0.5>>\n"
        "  return\n}\n"
    )
    line = fail(2, "inspect", "x.mlir", "--scales", "scale")
    assert line == "error: no quantized tensor is named 'scale'; did you mean '%scales'?"


def test_functions_and_targets_in_python(cpu: Device) -> None:
    executable = Executable(compile_to_bytes(PROGRAM), cpu)
    with pytest.raises(AttributeError, match="no function is named 'mian'; did you mean 'main'"):
        executable.mian(1)
    assert not hasattr(executable, "__array__")
    with pytest.raises(UsageError, match="option 'target' must be one of llvm-cpu, vulkan, got"):
        subquant.compile(PROGRAM, target="vulcan")


def test_options_that_may_be_repeated_are_lists_of_strings() -> None:
    options = CompileOptions(target_cpu="znver4", iree_flags=["--iree-opt-level=O1"])  # type: ignore[arg-type]
    assert options == CompileOptions(target_cpu="znver4", iree_flags=("--iree-opt-level=O1",))
    assert hash(options)
    with pytest.raises(
        UsageError, match="option 'iree-flags' must be a list of strings, got '--x'"
    ):
        CompileOptions(iree_flags="--x")  # type: ignore[arg-type]


def test_a_misspelled_device() -> None:
    line = fail(1, "exec", "x.mlir", "--device", "vulcan", *ARGUMENTS)
    assert line == "error: no device 'vulcan'; did you mean 'vulkan'?"
    line = fail(2, "conformance", "--filter", "suite/abs/i8", "--device", "vulcan")
    assert line == "error: no device is named 'vulcan'; did you mean 'vulkan'?"


@pytest.mark.parametrize(
    ("operation", "message"),
    [
        ("%y = stablehlo.ad %x, %x : tensor<2x8xf32>",
         "custom op 'stablehlo.ad' is unknown; did you mean 'stablehlo.pad' or 'stablehlo.add'?"),
        ("%y = stabelhlo.add %x, %x : tensor<2x8xf32>",
         "Dialect `stabelhlo' not found for custom op 'stabelhlo.add'; did you mean 'stablehlo'"),
        ("%y = torch.aten.mtmul %x, %x : tensor<2x8xf32>",
         "custom op 'torch.aten.mtmul' is unknown; did you mean 'torch.aten.matmul'"),
        ("%y = arith.adf %x, %x : tensor<2x8xf32>",
         "custom op 'arith.adf' is unknown; did you mean 'arith.addf'"),
        ('%y = "subquant.quantise"(%x) : (tensor<2x8xf32>) -> tensor<2x8xf32>',
         "unregistered operation 'subquant.quantise' found in dialect ('subquant') that does "
         "not allow unknown operations; did you mean 'subquant.quantize'"),
        ("%y = quant.qcst %x : tensor<2x8xf32> to tensor<2x8xf32>",
         "custom op 'quant.qcst' is unknown; did you mean 'quant.qcast'"),
        ("%y = quant.zzzz %x : tensor<2x8xf32>", "custom op 'quant.zzzz' is unknown\n"),
    ],
)  # fmt: skip
def test_misspelled_operations(operation: str, message: str) -> None:
    Path("x.mlir").write_text(
        f"func.func @f(%x: tensor<2x8xf32>) {{\n  {operation}\n  return\n}}\n"
    )
    result = call("opt", "x.mlir")
    assert result.exit_code == 1
    assert f"x.mlir:2:8: error: {message}" in result.stderr


def test_proposed_passes_exist() -> None:
    register_upstream_passes()
    with create_context():
        for name in pipeline._UPSTREAM_PASSES:
            texts = (f"builtin.module({name})", f"builtin.module(func.func({name}))")
            assert any(_is_pass(text) for text in texts), name


def _is_pass(text: str) -> bool:
    try:
        passmanager.PassManager.parse(text)
    except ValueError:
        return False
    return True


def test_proposed_vulkan_targets_exist() -> None:
    Path("empty.mlir").write_text("module {}")
    for name in IREE_VULKAN_TARGETS:
        command = [compiler_path(), "empty.mlir", "-o", "-", "--compile-to=executable-sources"]
        command += ["--iree-hal-target-device=vulkan", f"--iree-vulkan-target={name}"]
        result = subprocess.run(command, capture_output=True, timeout=60, check=False)
        assert result.returncode == 0, name


# -- types ----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("shape", "type_", "message"),
    [
        ("2x8", "{1:4}, {{1.0, 2.0, 3.0}}",
         "expected 2 scales along axis 1, one for each block, got 3"),
        ("2x8", "{1:4}, {{1.0}}", "expected 2 scales along axis 1, one for each block, got 1"),
        ("2x8", "{0:1, 1:4}, {{1.0:1, 2.0:2}, {3.0:-1, 1.0}, {1.0, 1.0}}",
         "expected 2 scales along axis 0, one for each block, got 3"),
        ("2x5", "1, {1.0, 2.0:3}", "expected 5 scales, one for each index of axis 1, got 2"),
    ],
)  # fmt: skip
def test_a_wrong_number_of_scales(shape: str, type_: str, message: str) -> None:
    Path("x.mlir").write_text(
        f"!q = !quant.uniform<i8:f32:{type_}>\n"
        f"func.func @main(%x: tensor<{shape}xf32>) {{\n"
        f"  %q = quant.qcast %x : tensor<{shape}xf32> to tensor<{shape}x!q>\n"
        "  return\n}\n"
    )
    result = call("compile", "x.mlir")
    assert result.exit_code == 1
    assert result.stderr.splitlines()[0] == f"x.mlir:3:8: error: {message}"


def test_a_misspelled_quantized_type() -> None:
    Path("x.mlir").write_text("func.func private @f(tensor<2x!quant.unifrom<i8:f32, 0.5>>)\n")
    line = fail(1, "inspect", "x.mlir")
    assert line.endswith("error: unknown quantized type unifrom; did you mean 'uniform'?")


def test_other_messages_are_unchanged() -> None:
    for message in ("expected ':'", "quantized dimension size does not match number of scales"):
        assert reworded(message, ["see current operation: x"]) == message


@pytest.mark.parametrize("name", ["f33", "F32", "bf17", "i32"])
@pytest.mark.parametrize("form", ["i8:{}, 0.5", "i8<-1:1>:{}, 0.5:1", "u4:{}:0, {{1.0}}"])
def test_invalid_expressed_types(name: str, form: str) -> None:
    text = f"func.func private @f(tensor<2x!quant.uniform<{form.format(name)}>>)\n"
    Path("x.mlir").write_text(text)
    column = text.index(f":{name}") + 2
    assert fail(1, "inspect", "x.mlir") == (
        f"x.mlir:1:{column}: error: expressed type must be f16, bf16, f32 or f64, got '{name}'"
    )


# -- files in place of others ---------------------------------------------------------------------


def test_files_of_another_kind() -> None:
    Path("x.vmfb").write_bytes(compile_to_bytes(PROGRAM))
    np.save("x.npy", np.zeros(3))
    Path("x.gguf").write_bytes(b"GGUF\xff")
    no_module = "is neither MLIR bytecode nor UTF-8 text, but"
    run = "run it with: subquant run x.vmfb"
    for command in (["exec"], ["compile", "-o", "y.vmfb"], ["opt"]):
        line = fail(1, *command, "x.vmfb")
        assert line == f"error: 'x.vmfb' {no_module} an executable; {run}"
    assert fail(1, "exec", "x.npy").endswith("but an array; give it as an argument: --input @x.npy")
    assert fail(1, "exec", "x.gguf").endswith(
        "a language model writes text with: subquant generate --model x.gguf; "
        "import others with: subquant import x.gguf"
    )
    assert fail(1, "run", "x.gguf").endswith(
        ", but holds weights; expected the output of 'subquant compile'"
    )
    assert fail(1, "run", "x.mlir").endswith("run it with: subquant exec x.mlir")
    Path("x.pt").write_bytes(b"PK\x03\x04" + bytes(30))
    assert f"{no_module} a ZIP archive; " in fail(1, "compile", "x.pt")
    Path("x.ort").write_bytes(b"\x18\0\0\0ORTM" + b"\xff" * 8)
    assert f"{no_module} of ONNX Runtime's own format; " in fail(1, "compile", "x.ort")
    Path("x.safetensors").write_bytes((8).to_bytes(8, "little") + b"{       ")
    assert f"{no_module} holds weights; " in fail(1, "compile", "x.safetensors")


@pytest.mark.parametrize(
    ("content", "advice"),
    [
        ("version https://git-lfs.github.com/spec/v1\n", "git lfs pull"),
        ("\n<!DOCTYPE html>\n", "it is a page of HTML: the download failed, repeat it"),
    ],
)
def test_failed_downloads(content: str, advice: str) -> None:
    for name in ("x.mlir", "x.vmfb", "x.onnx", "x.tflite", "x.gguf", "x.safetensors"):
        Path(name).write_text(content)
        command = {"x.vmfb": "run", "x.gguf": "import", "x.safetensors": "import"}
        message = fail(1, command.get(name, "compile"), name)
        assert message.endswith(advice), message


def test_a_name_of_hugging_face_is_no_folder() -> None:
    message = fail(1, "import", "owner/model-1.5")
    assert message.endswith("run: hf download owner/model-1.5 --local-dir model-1.5")
    Path("owner").mkdir()
    assert fail(1, "import", "owner/model-1.5").endswith("No such file or directory")


# -- arguments ------------------------------------------------------------------------------------

WRONG_ARGUMENTS = [
    (("--input", "2x4xf32=1", "--input", "4xui8=1"),
     "argument 0 of 'main' must have the shape 2x3, got 2x4"),
    (("--input", "2x3xi32=1", "--input", "4xui8=1"),
     "argument 0 of 'main' must be of dtype float32 (f32), got int32; pass it as 2x3xf32=..., "
     "or as @file.npy of float32"),
    (("--input", "2x3xf32=1", "--input", "4xi8=1"),
     "argument 1 of 'main' must be of dtype uint8 (ui8), got int8; pass it as ?xui8=..., or as "
     "@file.npy of uint8"),
    (("--input", "2x3xf32=1"), "function 'main' takes 2 arguments, got 1; "
     "expected: tensor<2x3xf32>, tensor<?xui8>"),
]  # fmt: skip


@pytest.mark.parametrize(("arguments", "message"), WRONG_ARGUMENTS)
def test_arguments_are_checked_before_the_compilation(
    arguments: tuple[str, ...], message: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    called = itertools.count()
    monkeypatch.setattr("subquant.compiler.compilation.run_iree", lambda *_, **__: next(called))
    assert fail(1, "exec", "x.mlir", *arguments) == f"error: {message}"
    assert next(called) == 0


@pytest.mark.parametrize(("arguments", "message"), WRONG_ARGUMENTS)
def test_run_and_exec_check_arguments_alike(arguments: tuple[str, ...], message: str) -> None:
    assert fail(1, "exec", "x.mlir", "--interpret-only", *arguments) == f"error: {message}"
    Path("x.vmfb").write_bytes(compile_to_bytes(PROGRAM))
    assert fail(1, "run", "x.vmfb", *arguments) == f"error: {message}"


def test_wrong_types_in_python() -> None:
    assert CompileOptions(batch=4) == CompileOptions(batch="4")  # type: ignore[arg-type]
    data = compile_to_bytes(PROGRAM)
    with pytest.raises(UsageError, match=r"a file for each scope, .*, got 'x\.irpa'"):
        subquant.load(data, parameters="x.irpa")  # type: ignore[arg-type]


def test_compiled_text_has_no_file_name() -> None:
    line = fail(1, "exec", "x.mlir", "--target", "vulkan", "--device", "llvm-cpu", *ARGUMENTS)
    assert line == (
        "error: the executable was compiled for vulkan, and the device is 'llvm-cpu'; compile it "
        "with --target llvm-cpu"
    )


def test_streams_are_checked_by_their_first_slice() -> None:
    result = succeed("exec", "x.mlir", "--stream", "--input", "5x2x3xf32=1", "--input", "4xui8=1")
    assert result.stdout.startswith("result[0]: 5x2x3xf32=")
    line = fail(1, "exec", "x.mlir", "--stream", "--input", "5x2x4xf32=1", "--input", "4xui8=1")
    assert line == "error: argument 0 of 'main' must have the shape 2x3, got 2x4"


# -- CPUs -----------------------------------------------------------------------------------------

needs_cpuinfo = pytest.mark.skipif(
    not sys.platform.startswith("linux") or not host_features(), reason="no features are known"
)


@needs_cpuinfo
def test_the_host_features_equal_those_of_llvm() -> None:
    known = (cpu_features._X86 if "sse3" in host_features() else cpu_features._AARCH64).keys()
    assert host_features() == llvm_features(CompileOptions(target_cpu="host")) & known
    assert missing_features(recorded_features(CompileOptions())) == []


@needs_cpuinfo
def test_an_executable_for_another_cpu_is_refused(
    cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = compile_to_bytes(PROGRAM)
    monkeypatch.setattr(runtime_features, "host_features", frozenset)
    (function,) = public_functions(load_module(data)[1], "x")
    missing = missing_features(function.reflection[CPU_FEATURES_KEY])
    listed = f"{', '.join(missing[:4])} and {len(missing) - 4} more"
    Path("x.vmfb").write_bytes(data)
    message = (
        f"'x.vmfb' was compiled for a CPU with {listed}, which this one does not have; compile "
        "it here, or with --target-cpu generic"
    )
    assert fail(1, "run", "x.vmfb", *ARGUMENTS) == f"error: {message}"
    with pytest.raises(ExecutionError, match="the executable was compiled for a CPU with "):
        Executable(data, cpu)


@needs_cpuinfo
@pytest.mark.parametrize(
    "options",
    [{"target_cpu": "generic"}, {"iree_flags": ("--iree-llvmcpu-target-cpu=generic",)}],
    ids=["option", "flag"],
)
def test_an_executable_for_any_cpu_runs_everywhere(
    options: dict[str, object], cpu: Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = compile_to_bytes(PROGRAM, CompileOptions(**options))
    monkeypatch.setattr(runtime_features, "host_features", frozenset)
    x = np.ones((2, 3), np.float32)
    np.testing.assert_array_equal(Executable(data, cpu)["main"](x, np.ones(4, np.uint8)), x)


def test_a_named_cpu_records_its_features() -> None:
    if "sse3" not in (host_features() or ()):
        pytest.skip("not an x86-64 CPU")
    recorded = recorded_features(CompileOptions(target_cpu="haswell")).split(",")
    assert {"avx2", "fma", "bmi2", "f16c"} <= set(recorded)
    assert not any(name.startswith("avx512") for name in recorded)
    message = "LLVM knows no CPU 'hasswell' of x86_64; did you mean 'has"
    with pytest.raises(UsageError, match=message):
        recorded_features(CompileOptions(target_cpu="hasswell"))


def test_nothing_is_refused_without_known_features(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (iree_driver, runtime_features):
        monkeypatch.setattr(module, "host_features", lambda: None)
    assert missing_features("avx2,none") == []
    assert recorded_features(CompileOptions()) == ""


def test_the_scales_of_a_tensor_of_many_axes() -> None:
    type_ = "1x" * 70
    Path("many.mlir").write_text(f"""
!q = !quant.uniform<i8:f32:0, {{0.5,0.25}}>
func.func @main(%x: tensor<2x{type_}f32>) -> tensor<2x{type_}!q> {{
  %0 = quant.qcast %x : tensor<2x{type_}f32> to tensor<2x{type_}!q>
  return %0 : tensor<2x{type_}!q>
}}
""")
    line = fail(1, "inspect", "many.mlir", "--scales", "%0")
    assert line == "error: the tensor has 71 axes, expected 64 at most; merge some"


def test_a_reproducer_with_kernels_is_read_by_iree(tmp_path: Path) -> None:
    """The short form of ``memref.alloca`` with an alignment is not."""
    text = one_operation(PRODUCT, ["8x64xi8", "64x64xi8"], "8x64xi32")
    options = CompileOptions(kernels="avx512vnni", target_cpu="znver4")
    bytecode = compile_to_bytes(text, options, emit="mlirbc")
    module = tmp_path / "module.mlir"
    module.write_text(text_of(bytecode))
    assert "memref.alloca" in module.read_text()
    command = [compiler_path(), str(module), "--compile-to=input", "-o", os.devnull]
    subprocess.run(command, check=True)
