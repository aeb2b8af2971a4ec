"""Kernels for AArch64, compared with NumPy.

Programs are compiled here, and run by IREE's ``iree-run-module`` on an AArch64 machine or in an
emulator. The environment variable SUBQUANT_AARCH64 is the command that starts it; CONTRIBUTING.md
names a source. Without the variable these tests are skipped; other tests read the assembly only.
"""

from __future__ import annotations

import os
import shlex
import subprocess

import numpy as np
import pytest

import block_programs
import test_fused_epilogue as epilogues
import test_kernels_blockwise as blockwise
import test_kernels_depthwise as depthwise
import test_kernels_int8 as int8
from integer_programs import convolution, drawn, product
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.numerics.requantization import Requantization
from subquant.runtime.arguments import pack_storage
from subquant.runtime.vm_modules import read_signatures

RUN = shlex.split(os.environ.get("SUBQUANT_AARCH64", ""))
pytestmark = pytest.mark.skipif(not RUN, reason="SUBQUANT_AARCH64 names no iree-run-module")

TRIPLE = "--iree-llvmcpu-target-triple=aarch64-linux-gnu"
CPUS = {"neon-dotprod": "cortex-a76", "portable": "cortex-a72"}


@pytest.fixture
def run(tmp_path):
    """Compile a program for a CPU, and run it with arrays."""

    def compiled(text, instructions, *arrays, **options):
        cpu = f"--iree-llvmcpu-target-cpu={CPUS[instructions]}"
        compile_options = CompileOptions(kernels=instructions, iree_flags=(TRIPLE, cpu), **options)
        assert "flow.dispatch" in compile_to_bytes(text, compile_options, emit="mlir").decode()
        module = tmp_path / "module.vmfb"
        module.write_bytes(compile_to_bytes(text, compile_options))
        inputs, types = [], read_signatures(module)["main"].inputs
        for number, (array, type_) in enumerate(zip(arrays, types, strict=True)):
            file = tmp_path / f"{number}.npy"
            stored = pack_storage(array, type_)
            np.save(
                file, stored.view(f"i{stored.itemsize}") if stored.dtype.kind == "u" else stored
            )
            inputs.append(f"--input=@{file}")
        output = tmp_path / "output.npy"
        command = [*RUN, f"--module={module}", "--device=local-sync", "--function=main"]
        subprocess.run([*command, *inputs, f"--output=@{output}"], check=True, timeout=300)
        return np.load(output)

    return compiled


INSTRUCTIONS = pytest.mark.parametrize("instructions", CPUS)


@INSTRUCTIONS
@pytest.mark.parametrize("case", blockwise.CASES, ids=str)
@pytest.mark.parametrize("extra", ["", "zeros", "offsets"])
def test_blocks(case, extra, instructions, run):
    if extra and len(case) < 5:
        pytest.skip("of other storage types")
    more = {extra: True} if extra else {}
    inputs = block_programs.arrays(*case, **more)
    text = block_programs.program(*case, **more)
    expected = block_programs.reference(*inputs[:3], case[3], **{extra: inputs[3]} if extra else {})
    result = run(text, instructions, *inputs, activations="int8")
    assert np.abs(result - expected).max() <= 2e-6 * np.abs(expected).max()


@INSTRUCTIONS
@pytest.mark.parametrize("storage", ["u2", "u3", "u4", "u5", "u6", "u8", "i8"])
def test_nothing_saturates_at_the_extremes(storage, instructions, run):
    bits, signed = int(storage[1:]), storage[0] == "i"
    extreme = -(1 << (bits - 1)) if signed else (1 << bits) - 1
    q = np.full((512, 40), extreme, np.int8 if signed else np.uint8)
    scales, text = np.ones((4, 40), np.float32), block_programs.program(3, 512, 40, 128, storage)
    for sign in (-1, 1):
        x = np.full((3, 512), 127 * sign, np.float32)
        result = run(text, instructions, x, q, scales, activations="int8")
        np.testing.assert_allclose(
            result, np.full((3, 40), 127.0 * sign * extreme * 512), rtol=3e-7
        )


@INSTRUCTIONS
@pytest.mark.parametrize("case", sorted(int8.CONVOLUTIONS.keys() - {"one pixel"}))  # has no kernel
def test_convolutions(case, instructions, run):
    x_shape, w_shape, options = int8.CONVOLUTIONS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = convolution(x, w, **options)
    np.testing.assert_array_equal(run(text, instructions, x, w), expected)


@INSTRUCTIONS
@pytest.mark.parametrize(("rows", "depth", "columns"), [(16, 128, 64), (37, 130, 50), (64, 7, 100)])
def test_matrices(rows, depth, columns, instructions, run):
    x, w = drawn(rows, depth), drawn(columns, depth, seed=1)
    text = product(rows, depth, columns, transposed=True)
    expected = x.astype(np.int32) @ w.T.astype(np.int32)
    np.testing.assert_array_equal(run(text, instructions, x, w), expected)


@INSTRUCTIONS
@pytest.mark.parametrize("case", depthwise.DEPTHWISE)
def test_depthwise_convolutions(case, instructions, run):
    x_shape, w_shape, options = depthwise.DEPTHWISE[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = depthwise.depthwise(x, w, **options)
    np.testing.assert_array_equal(run(text, instructions, x, w), expected)


@INSTRUCTIONS
@pytest.mark.parametrize("case", depthwise.GROUPS)
def test_convolutions_of_groups(case, instructions, run):
    x_shape, w_shape, groups, options = depthwise.GROUPS[case]
    x, w = drawn(*x_shape), drawn(*w_shape, seed=1)
    text, expected = depthwise.grouped(x, w, groups, **options)
    np.testing.assert_array_equal(run(text, instructions, x, w), expected)


@INSTRUCTIONS
@pytest.mark.parametrize("target", [*epilogues.TARGETS][1:])
def test_accumulators_are_requantized(target, instructions, run):
    x, accumulators = epilogues.activations(1)
    bias = np.random.default_rng(1).integers(-300, 300, epilogues.N)
    result = run(epilogues.program(len(x), epilogues.SCALES, target, bias), instructions, x)
    expected = epilogues.expected(accumulators, target, bias, Requantization("exact", "half-up"))
    unsigned = epilogues.TARGETS[target][0].signed is False
    result = result.view(f"u{result.itemsize}") if unsigned else result
    np.testing.assert_array_equal(result.astype(np.int64), expected)
