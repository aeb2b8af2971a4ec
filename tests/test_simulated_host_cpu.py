"""Simulated CPU: the variable ``SUBQUANT_HOST_CPU`` replaces the CPU of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from programs import LONG
from subquant.compiler.compile_options import CompileOptions
from subquant.compiler.iree_driver import host_features
from subquant.compiler.keys import machine_of
from subquant.errors import UsageError
from subquant.kernels.isa.registry import supported_instruction_sets
from subquant.runtime import host_features as runtime_features

pytestmark = pytest.mark.skipif(
    "sse3" not in (host_features() or ()), reason="this is not an x86-64 CPU"
)
TESTS = Path(__file__).parent


def features_of(cpu: str, monkeypatch: pytest.MonkeyPatch) -> frozenset[str]:
    monkeypatch.setenv("SUBQUANT_HOST_CPU", cpu)
    features = host_features.__wrapped__()
    assert features is not None
    return features


def printed_on(cpu: str, *arguments: str) -> str:
    """Return the output of Python on a simulated CPU."""
    environment = {**os.environ, "SUBQUANT_HOST_CPU": cpu}
    command = [sys.executable, *arguments]
    return subprocess.check_output(command, env=environment, cwd=TESTS, text=True)


@pytest.mark.parametrize(
    ("cpu", "instructions"),
    [
        ("x86-64-v2", "portable"),
        ("haswell", "avx2"),
        ("skylake-avx512", "avx2"),  # AVX512 without VNNI
        ("icelake-server", "avx512vnni"),
        ("znver4", "avx512vnni-amd"),
        ("alderlake", "avxvnni"),
        ("sapphirerapids", "amx"),
        ("sapphirerapids,-amx-int8", "avx512vnni"),
        ("haswell,+avxvnni", "avxvnni"),
    ],
)
def test_kernels_are_those_of_the_cpu(
    cpu: str, instructions: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert supported_instruction_sets(features_of(cpu, monkeypatch))[0] == instructions


def test_code_is_for_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SUBQUANT_HOST_CPU", "haswell,+avxvnni")
    flags = CompileOptions().flags
    assert "--iree-llvmcpu-target-cpu=haswell" in flags
    assert "--iree-llvmcpu-target-cpu-features=+avxvnni" in flags
    assert "--iree-llvmcpu-target-cpu=znver4" in CompileOptions(target_cpu="znver4").flags


def test_executables_for_other_cpus_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    features = features_of("haswell", monkeypatch)
    assert runtime_features.host_features.__wrapped__() == features
    monkeypatch.setattr(runtime_features, "host_features", lambda: features)
    assert runtime_features.missing_features("avx2,avx512f") == ["avx512f"]


def test_the_cache_tells_cpus_apart() -> None:
    code = (
        "from subquant.compiler.keys import machine_of\n"
        "from subquant.compiler.compile_options import CompileOptions\n"
        "print(machine_of(CompileOptions()))"
    )
    assert len({printed_on(cpu, "-c", code) for cpu in ("", "haswell", "znver3")}) == 3
    assert len(machine_of(CompileOptions(target_cpu="haswell"))) == 2


def test_a_cpu_that_llvm_does_not_know(monkeypatch: pytest.MonkeyPatch) -> None:
    message = "LLVM knows no CPU 'haswel' of x86_64; did you mean 'haswell'"
    with pytest.raises(UsageError, match=message):
        features_of("haswel", monkeypatch)


@pytest.mark.skipif(not LONG, reason="3 s; collects the suite again")
def test_the_names_of_tests_are_the_same_on_every_cpu() -> None:
    """The names decide the cases of the short suite."""
    collect = ["-m", "pytest", "--collect-only", "-q", "test_kernels_int8.py"]
    printed = {
        printed_on(cpu, *collect, "-p", "no:cacheprovider").partition("\n\n")[0]
        for cpu in ("x86-64-v2", "sapphirerapids")
    }
    assert len(printed) == 1
