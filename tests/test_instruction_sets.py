"""Choice of instruction sets, and the instructions in compiled kernels."""

from __future__ import annotations

import re

import numpy as np
import pytest

from block_programs import program
from integer_programs import product
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.pipeline import compile_pipeline
from subquant.errors import UsageError
from subquant.kernels.isa.registry import INSTRUCTION_SETS, fastest_instruction_set

ASSEMBLY = {
    "avx512vnni-amd": ("znver4", "vpdpbusd", "zmm"),
    "avx512vnni": ("icelake-server", "vpdpbusd", "zmm"),
    "avxvnni": ("alderlake", "vpdpbusd", "ymm"),
    "avx2": ("haswell", "vpmaddubsw", "ymm"),
    "portable": ("znver3", "vpmaddwd", "ymm"),  # LLVM proves that the multiplicands have few bits
}


def test_every_instruction_set_has_its_assembly() -> None:
    """`test_kernels_amx.py` and `test_arm_code_contains_sdot` test the others."""
    assert ASSEMBLY.keys() == INSTRUCTION_SETS.keys() - {"amx", "neon-dotprod"}


@pytest.mark.parametrize("instructions", ASSEMBLY)
@pytest.mark.share(6)
def test_kernels_contain_their_instructions(instructions, tmp_path):
    cpu, mnemonic, register = ASSEMBLY[instructions]
    flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}"
    options = CompileOptions(
        activations="int8", kernels=instructions, target_cpu=cpu, iree_flags=(flag,)
    )
    compile_to_bytes(program(4, 256, 64, 32), options)
    [file] = tmp_path.glob("*.s")
    text = file.read_text()
    matches = [line for line in text.splitlines() if mnemonic in line and register in line]
    assert len(matches) >= 8  # the k-packs of a step
    assert ("prefetcht0" in text) == (not instructions.endswith("-amd"))


@pytest.mark.long
def test_gemm_tiles_share_loads_of_activations(tmp_path):
    flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}"
    for rows, is_shared in (8, True), (4, False):  # many, and few
        options = CompileOptions(
            activations="int8", kernels="avx2", target_cpu="haswell", iree_flags=(f"{flag}/{rows}",)
        )
        compile_to_bytes(program(rows, 256, 96, 32), options)
        [file] = (tmp_path / str(rows)).glob("*.s")
        products, read = map(file.read_text().count, ["vpmaddubsw", "vpbroadcastd"])
        assert (read < 0.75 * products) == is_shared


@pytest.mark.long
def test_cached_weights_are_not_prefetched(tmp_path):
    for columns, is_asked_for in (64, False), (1024, True):  # 32 KiB, and 512
        w = np.full((512, columns), 3, np.int8)
        flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}/{columns}"
        options = CompileOptions(
            kernels="avx512vnni", target_cpu="icelake-server", iree_flags=(flag,)
        )
        compile_to_bytes(product(1, 512, columns, constant=w), options)
        [file] = (tmp_path / str(columns)).glob("*.s")
        assert ("prefetcht0" in file.read_text()) == is_asked_for


def test_amd_variant_is_chosen_by_sse4a():
    vectors = ["avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vnni"]
    assert fastest_instruction_set([*vectors, "sse4a"]).name == "avx512vnni-amd"
    assert fastest_instruction_set(["avx2", "sse4a"]).name == "avx2"
    for cpu, name in [("znver4", "avx512vnni-amd"), ("znver3", "avx2"), ("haswell", "avx2")]:
        passes = compile_pipeline(CompileOptions(activations="int8", target_cpu=cpu))
        [chosen] = [each for each in passes if each.name == "select-kernels"]
        assert chosen.instructions == name


@pytest.mark.long
def test_portable_code_calls_no_fma_function(tmp_path):
    flag = f"--iree-hal-dump-executable-intermediates-to={tmp_path}"
    options = CompileOptions(activations="int8", target_cpu="generic", iree_flags=(flag,))
    compile_to_bytes(program(4, 256, 64, 32), options)
    [file] = tmp_path.glob("*.s")
    text = file.read_text()
    assert "mulps" in text
    assert not re.search(r"\bcallq?\s+fmaf", text)


def test_arm_code_contains_sdot(tmp_path):
    flags = (
        "--iree-llvmcpu-target-triple=aarch64-linux-gnu",
        "--iree-llvmcpu-target-cpu=cortex-a76",
        f"--iree-hal-dump-executable-intermediates-to={tmp_path}",
    )
    options = CompileOptions(activations="int8", iree_flags=flags)
    compile_to_bytes(program(4, 256, 64, 32, "i8"), options)
    [file] = tmp_path.glob("*.s")
    assert len(re.findall(r"\bsdot\b", file.read_text())) >= 8


def test_fastest_instruction_set_of_features():
    features = ["avx2", "fma", "avx512f", "avx512bw", "avx512dq", "avx512vnni"]
    assert fastest_instruction_set(features).name == "avx512vnni"
    assert fastest_instruction_set(["avx2", "avxvnni"]).name == "avxvnni"
    assert fastest_instruction_set(["avx2", "fma"]).name == "avx2"
    assert fastest_instruction_set(["neon", "dotprod"]).name == "neon-dotprod"
    assert fastest_instruction_set([]).name == "portable"


def test_missing_cpu_features_are_an_error():
    options = CompileOptions(activations="int8", kernels="avx512vnni", target_cpu="znver3")
    needed = "avx512bw, avx512dq, avx512f, avx512vnni"
    with pytest.raises(UsageError, match=f"need {needed}, which the CPU 'znver3' does not have"):
        compile_to_bytes(program(4, 256, 64, 32), options)


@pytest.mark.parametrize(
    ("text", "kernel"),
    [
        (program(1, 256, 4096, 32), "blockwise_gemm"),
        (program(1, 4096, 8192, 32), "blockwise_gemm"),
        (program(1, 4096, 5000, 32), "blockwise_gemm"),
        (program(250, 256, 64, 32), "quantize_rows"),
        (product(512, 1024, 1024), "int8_conv"),
        (product(784, 64, 128), "int8_conv"),
    ],
    ids=["few", "many", "ragged", "rows", "matrix", "pixels"],
)
def test_many_threads_share_workgroups(text, kernel):
    """No thread computes much more than its share of the workgroups."""
    options = CompileOptions(activations="int8", kernels="avx2", target_cpu="haswell")
    lowered = compile_to_bytes(text, options, emit="mlir").decode()
    counts = re.findall(r'"stream.return"\(%c(\d+)(?:_\d+)?, .*\n.*@(\w+), sym_name', lowered)
    workgroups = next(int(count) for count, name in counts if name == kernel)
    for threads in (2, 4, 8, 16):
        assert workgroups / threads > 0.95 * -(-workgroups // threads)
