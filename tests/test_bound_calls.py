"""Bound calls, with fixed arguments and results, and synchronous entry points."""

from __future__ import annotations

import contextlib
import functools
import os
import signal
import threading
from typing import Any

import numpy as np
import pytest

import subquant
from device_programs import QUANTIZED
from devices import ON_DEVICES
from programs import PRODUCT, one_operation
from subquant.errors import ExecutionError, SignatureError, UsageError
from subquant.iree_hooks.entry_names import ALLOCATE_SUFFIX, BOUND_SUFFIX, SYNC_SUFFIX
from subquant.runtime import Device, Executable, native_calls, repeated_calls
from subquant.runtime.function import Function
from subquant.runtime.open_device import aligned_copy

PROGRAM = (
    QUANTIZED
    + """
func.func @two(%x: tensor<6xi32>, %y: tensor<6xi32>)
    -> (tensor<6xi32>, tensor<6xi32> {jax.result_info = "t"}) {
  %s = arith.addi %x, %y : tensor<6xi32>
  %d = arith.subi %s, %y : tensor<6xi32>
  %t = arith.muli %d, %y : tensor<6xi32>
  return %s, %t : tensor<6xi32>, tensor<6xi32>
}
func.func @same(%x: tensor<6xi32>) -> tensor<6xi32> {
  return %x : tensor<6xi32>
}
func.func @any_length(%x: tensor<?xi32>) -> tensor<?xi32> {
  %y = arith.addi %x, %x : tensor<?xi32>
  return %y : tensor<?xi32>
}
func.func @scaled(%x: tensor<6xi32>, %n: i32) -> tensor<6xi32> {
  %e = tensor.empty() : tensor<6xi32>
  %s = linalg.fill ins(%n : i32) outs(%e : tensor<6xi32>) -> tensor<6xi32>
  %y = arith.muli %x, %s : tensor<6xi32>
  return %y : tensor<6xi32>
}
func.func @doubled(%x: tensor<6xi32>, %times: tensor<i32>) -> tensor<6xi32> {
  %zero = arith.constant 0 : i32
  %one = arith.constant 1 : i32
  %r:2 = scf.while (%v = %x, %k = %times) : (tensor<6xi32>, tensor<i32>)
      -> (tensor<6xi32>, tensor<i32>) {
    %n = tensor.extract %k[] : tensor<i32>
    %more = arith.cmpi sgt, %n, %zero : i32
    scf.condition(%more) %v, %k : tensor<6xi32>, tensor<i32>
  } do {
  ^bb0(%v: tensor<6xi32>, %k: tensor<i32>):
    %w = arith.addi %v, %v : tensor<6xi32>
    %n = tensor.extract %k[] : tensor<i32>
    %m = arith.subi %n, %one : i32
    %l = tensor.from_elements %m : tensor<i32>
    scf.yield %w, %l : tensor<6xi32>, tensor<i32>
  }
  return %r#0 : tensor<6xi32>
}
func.func @chosen(%x: tensor<6xi32>, %doubles: tensor<i1>) -> tensor<6xi32> {
  %p = tensor.extract %doubles[] : tensor<i1>
  %r = scf.if %p -> tensor<6xi32> {
    %w = arith.addi %x, %x : tensor<6xi32>
    scf.yield %w : tensor<6xi32>
  } else {
    scf.yield %x : tensor<6xi32>
  }
  return %r : tensor<6xi32>
}
func.func @nothing() {
  return
}
"""
)
X = np.arange(6, dtype=np.int32)


@pytest.fixture(scope="module")
def cpu_program() -> Executable:
    """The program, which a caller's own thread runs."""
    return subquant.compile(PROGRAM, threads=1)


@pytest.fixture
def program(device: Device, request: pytest.FixtureRequest) -> Executable:
    if not device.is_vulkan:
        executable: Executable = request.getfixturevalue("cpu_program")
        return executable
    return subquant.compile(PROGRAM, target="vulkan", device=device)


def both(results: Any) -> list[list[Any]]:
    return [np.asarray(each).tolist() for each in results]


def test_synchronous_entries_of_a_cpu_program(cpu_program: Executable) -> None:
    names = set(cpu_program._module.function_names)
    suffixes = (SYNC_SUFFIX, ALLOCATE_SUFFIX, BOUND_SUFFIX)
    assert {
        "two",
        *(f"{name}{suffix}" for name in ("two", "any_length") for suffix in suffixes),
    } <= names
    # Two may return no memory of their own; the last one loops on data, and keeps its fences.
    without_memory = {name: {f"{name}{SYNC_SUFFIX}"} for name in ("same", "chosen")}
    for name, expected in (*without_memory.items(), ("doubled", set())):
        assert {f"{name}{suffix}" for suffix in suffixes} & names == expected
    assert not any("$" in name for name in cpu_program.functions)


@ON_DEVICES
def test_results_are_those_of_calls(program: Executable) -> None:
    rng = np.random.default_rng(1)
    weights = rng.integers(-8, 8, (4, 8)).astype(np.int8)
    x = rng.standard_normal(8).astype(np.float32)
    product = program.product.bind(weights, x)
    np.testing.assert_array_equal(product().numpy(), program.product(weights, x))
    assert both(program.two.bind(X, X + 1)()) == [[1, 3, 5, 7, 9, 11], [0, 2, 6, 12, 20, 30]]
    assert program.same.bind(X)().numpy().tolist() == X.tolist()
    assert program.any_length.bind(X[:4])().numpy().tolist() == [0, 2, 4, 6]
    assert program.scaled.bind(X, 3)().numpy().tolist() == (3 * X).tolist()
    assert program.doubled.bind(X, np.int32(3))().numpy().tolist() == (8 * X).tolist()
    assert program.doubled(X, np.int32(0)).tolist() == X.tolist()
    for doubles in (False, True):
        expected = (1 + doubles) * X
        assert program.chosen.bind(X, np.array(doubles))().numpy().tolist() == expected.tolist()
        assert program.chosen(X, np.array(doubles)).tolist() == expected.tolist()
    assert program.nothing.bind()() is None


@ON_DEVICES
def test_other_arguments(program: Executable) -> None:
    rng = np.random.default_rng(2)
    weights, new_weights = rng.integers(-8, 8, (2, 4, 8)).astype(np.int8)
    x = rng.standard_normal(8).astype(np.float32)
    product = program.product.bind(weights, x)
    product()
    product.set("x", 2 * x)
    np.testing.assert_array_equal(product().numpy(), program.product(weights, 2 * x))
    product.set("weights", new_weights)
    np.testing.assert_array_equal(product().numpy(), program.product(new_weights, 2 * x))
    product.set(0, program.product.put(0, weights))
    np.testing.assert_array_equal(product().numpy(), program.product(weights, 2 * x))
    scaled = program.scaled.bind(X, 3)
    scaled()
    scaled.set(1, -2)
    assert scaled().numpy().tolist() == (-2 * X).tolist()
    length = program.any_length.bind(X)
    length()
    length.set(0, X[3:])
    assert length().numpy().tolist() == [6, 8, 10]
    halve = program.halve.bind([4.0, -3.0, 0.5, 1.0, 0.0, 63.5], quantized_io=True)
    assert halve().numpy(quantized_io=True).tolist() == [2.0, -1.5, 0.0, 0.5, 0.0, 32.0]
    halve.set(0, np.int8([2, 4, 6, 8, 10, -127]))
    assert halve().numpy().tolist() == [1, 2, 3, 4, 5, -64]
    halve.set(0, [1.0] * 6, quantized_io=True)
    assert halve().numpy().tolist() == [1] * 6


def test_results_stay_in_the_same_memory(cpu_program: Executable) -> None:
    """Results stay in the same memory, and argument arrays are not written to."""
    two = cpu_program.two
    argument_array = two.put(0, X)
    call = two.bind(argument_array, X)
    first, _ = call()
    seen = np.asarray(first)
    call.set(1, 10 * X)
    pinned_again, product = call()
    assert pinned_again is first
    assert seen.tolist() == (11 * X).tolist()
    assert product.numpy().tolist() == (10 * X * X).tolist()
    call.set(0, 2 * X)
    assert both(call()) == [(12 * X).tolist(), (20 * X * X).tolist()]
    assert argument_array.numpy().tolist() == X.tolist()
    assert seen.tolist() == (11 * X).tolist()  # memory of the call with the other array


def test_a_result_is_an_argument(cpu_program: Executable) -> None:
    """The array has no packed tensors, since its memory changes, and it cannot be donated."""
    two = cpu_program.two
    call = two.bind(X, X)
    for factor in (1, 5):
        call.set(1, factor * X)
        total, _ = call()
        twice, _ = two(total, X, resident=True, donate=(0,) if factor == 5 else ())
        assert twice.numpy().tolist() == ((2 + factor) * X).tolist()
    call.set(1, 7 * X)
    call()
    assert twice.numpy().tolist() == (7 * X).tolist()  # in memory of its own


def test_a_worker_pool_and_prepacked_weights(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("subquant.runtime.worker_threads.available_cores", lambda: 2)
    monkeypatch.setattr("subquant.signature.WorkEstimate.gains_from_threads", lambda *a, **k: True)
    rng = np.random.default_rng(3)
    x, other = rng.integers(-128, 128, (2, 64, 256)).astype(np.int8)
    weights, more = rng.integers(-128, 128, (2, 256, 128)).astype(np.int8)
    large = one_operation(PRODUCT, ("64x256xi8", "256x128xi8"), "64x128xi32")
    call = subquant.compile(large, threads=2).main.bind(x, weights)
    np.testing.assert_array_equal(call().numpy(), x.astype(np.int32) @ weights)
    call.set(0, other)
    np.testing.assert_array_equal(call().numpy(), other.astype(np.int32) @ weights)
    call.set(1, more)
    np.testing.assert_array_equal(call().numpy(), other.astype(np.int32) @ more)
    # As a weight: the packed tensors of the previous one are not read.
    chain = subquant.compile(large, threads=1).main
    row = np.eye(64, 256, dtype=np.int8)
    source = subquant.compile(
        "func.func @main(%x: tensor<256x128xi8>) -> tensor<256x128xi8> {"
        "  %y = arith.addi %x, %x : tensor<256x128xi8> return %y : tensor<256x128xi8> }",
        threads=1,
    ).main.bind(weights)
    for argument_array in (weights, more, weights):
        source.set(0, argument_array)
        doubled = (argument_array + argument_array).astype(np.int32)[:64]
        for _ in range(3):
            np.testing.assert_array_equal(chain(row, source()), doubled)


def test_programs_with_other_flags_are_bound(capsys: pytest.CaptureFixture[str]) -> None:
    text = "func.func @main(%x: tensor<6xi32>) -> tensor<6xi32> {"
    text += " %y = arith.addi %x, %x : tensor<6xi32> return %y : tensor<6xi32> }"
    flags = ("--iree-opt-level=O1", "--mlir-print-ir-after=iree-util-fuse-globals")
    call = subquant.compile(text, iree_flags=flags, threads=1).main.bind(X)
    assert "IR Dump After FuseGlobals" in capsys.readouterr().err
    assert call().numpy().tolist() == (2 * X).tolist()
    call.set(0, X + 1)
    assert call().numpy().tolist() == (2 * X + 2).tolist()


def test_wrong_use(cpu_program: Executable) -> None:
    two = cpu_program.two
    with pytest.raises(SignatureError, match="takes 2 arguments, got 1"):
        two.bind(X)
    with pytest.raises(SignatureError, match=r"argument 1 of 'two'.*got.*5"):
        two.bind(X, X[:5])
    call = two.bind(X, X)
    with pytest.raises(UsageError, match="no argument '2'"):
        call.set(2, X)
    with pytest.raises(SignatureError, match=r"argument 0 of 'two'"):
        call.set(0, X.astype(np.float32))
    assert both(call())[0] == (2 * X).tolist()
    argument_array = two.put(0, X)
    two(argument_array, X, donate=(0,), resident=True)
    with pytest.raises(ExecutionError, match="donated"):
        two.bind(argument_array, X)()


def test_one_thread_at_a_time(cpu_program: Executable) -> None:
    call = cpu_program.two.bind(X, X)
    call()
    prepared = call._prepared
    assert prepared is not None
    entered, go_on = threading.Event(), threading.Event()

    def invoke(*argument_array: Any) -> None:
        entered.set()
        go_on.wait(30)
        prepared.invoke(*argument_array)

    call._prepared = prepared._replace(invoke=invoke)
    thread = threading.Thread(target=call)
    thread.start()
    assert entered.wait(30)
    with pytest.raises(UsageError, match="another thread makes this call"):
        call()
    go_on.set()
    thread.join()
    assert both(call())[0] == (2 * X).tolist()


@pytest.fixture
def two(cpu_program: Executable) -> Function:
    """The function `two` before its first call."""
    function = cpu_program.two
    function.__dict__.pop("direct_calls", None)
    return function


ROW, COUNTED = np.zeros((6, 3), np.int32)[:, 0], np.arange(12, dtype=np.uint32)[::2]
"""Arrays with strides: the others may be lent."""


def test_calls_with_numpy_arrays_reuse_memory(two: Function) -> None:
    memory, returned = [], []
    for number in range(4):
        row = ROW + number
        returned.append((number, two(row[::-1], COUNTED)))  # unsigned integers, of the same bits
        memory += two.direct_calls._repeated._memory
    assert len(memory) == 3  # from the second call on
    assert len({id(each) for each in memory}) == 1
    for number, (added, multiplied) in returned:  # later calls left them as they are
        assert added.tolist() == (COUNTED + number).tolist()
        assert multiplied.tolist() == (COUNTED * number).tolist()
        assert added.flags.writeable
    two.direct_calls._repeated._memory.clear()  # as during a call of another thread
    assert both(two(ROW, COUNTED))[0] == COUNTED.tolist()
    assert not two.direct_calls._repeated._memory


def test_lent_arrays_are_not_copied(two: Function) -> None:
    for _ in range(3):
        assert both(two(aligned_copy(X), COUNTED))[0] == (X + COUNTED).tolist()
    assert not two.direct_calls._repeated._memory


@pytest.mark.parametrize(("max_bytes", "is_kept"), [(2 * X.nbytes, False), (1 << 10, True)])
def test_calls_keep_a_limited_amount_of_memory(
    two: Function, max_bytes: int, is_kept: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(repeated_calls, "MAX_KEPT_BYTES", max_bytes)
    for _ in range(3):
        assert both(two(ROW, COUNTED))[0] == COUNTED.tolist()
    assert bool(two.direct_calls._repeated._memory) == is_kept


CALLS = {
    "bound": lambda program: program.two.bind(X, X),
    "results stay": lambda program: functools.partial(program.two, X, X, resident=True),
    "arrays": lambda program: functools.partial(program.two, X, X),
}


@pytest.mark.skipif(not hasattr(signal, "setitimer"), reason="no timers of Unix")
@pytest.mark.filterwarnings(  # Python drops exceptions of an array's release
    "ignore::pytest.PytestUnraisableExceptionWarning"
)
@pytest.mark.parametrize("kind", CALLS)
def test_an_interrupted_call_can_be_repeated(cpu_program: Executable, kind: str) -> None:
    """At any point of a Ctrl-C, the next call is accepted, and the end of Python does not wait."""
    call = CALLS[kind](cpu_program)
    call()

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    previous = signal.signal(signal.SIGALRM, interrupt)
    try:
        for number in range(400):
            with contextlib.suppress(KeyboardInterrupt):
                signal.setitimer(signal.ITIMER_REAL, 1e-5 + 1e-6 * (number % 97))
                for _ in range(1000):
                    call()
            signal.setitimer(signal.ITIMER_REAL, 0)
            assert np.asarray(call()[0]).tolist() == (2 * X).tolist()
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, previous)
    assert not native_calls.CALLS.running


@pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked on Unix only")
@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_a_forked_process_is_refused(cpu_program: Executable) -> None:
    call = cpu_program.two.bind(X, X)
    call()
    child = os.fork()
    if not child:
        try:
            call()
        except ExecutionError as error:
            os._exit(0 if "forked" in str(error) else 2)
        os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert both(call())[0] == (2 * X).tolist()
