"""Streams of small layers are one dispatch, and compute NumPy's numbers in each call.

See `subquant.kernels.fusion.concatenate_fusion`.
"""

from __future__ import annotations

import re

import numpy as np
import pytest

from devices import main_of
from instruction_sets import EVERY
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from test_dispatch_fusion import Program

ELEMENTS = {"i8": np.int8, "f32": np.float32}


class Stream:
    """A chain of layers of one frame: a product of the last frames, which are a variable.

    Integers are shifted to 8 bits; floats are sums of products of small integers, which are exact.
    """

    def __init__(self, element="i8", channels=40, seed=0):
        self.random = np.random.default_rng(seed)
        self.element, self.channels = element, channels
        self.globals, self.lines, self.steps = [], [], []
        self.states = {}

    def type_of(self, *shape, element=None):
        return f"tensor<{'x'.join(map(str, (*shape, element or self.element)))}>"

    def numbers(self, *shape):
        return self.random.integers(-3, 4, shape).astype(ELEMENTS[self.element])

    def constant(self, name, array, element=None):
        type_ = self.type_of(*array.shape, element=element)
        self.lines.append(f"{name} = stablehlo.constant dense<{array.tolist()}> : {type_}")

    def variable(self, name, frames):
        array = self.numbers(frames, self.channels)
        type_ = self.type_of(frames, self.channels)
        self.states[name] = array
        self.globals.append(
            f'"util.global"() {{sym_name = "{name}", is_mutable, sym_visibility = "private", '
            f"initial_value = dense<{array.tolist()}> : {type_}, type = {type_}}} : () -> ()"
        )

    def layer(self, frame, name, axis=0):
        """Append a layer: the frames of a variable and one more; returns the frame of its result.

        The frames are joined along `axis`: with 1 they are columns.
        """
        frames, channels, number = len(self.states[name]), self.channels, len(self.steps)
        size = (frames + 1) * channels
        state, new = self.type_of(frames, channels), self.type_of(1, channels)
        whole = self.type_of(frames + 1, channels)
        weight = self.numbers(size, channels)
        self.constant(f"%w{number}", weight)
        load = f'%s{number} = "util.global.load"() {{global = @{name}}} : () -> {state}'
        store = f'"util.global.store"(%n{number}) {{global = @{name}}} : ({state}) -> ()'
        if axis:
            columns = self.type_of(channels, frames), self.type_of(channels, 1)
            whole = self.type_of(channels, frames + 1)
            self.lines += [
                load,
                f"%c{number} = stablehlo.reshape %s{number} : ({state}) -> {columns[0]}",
                f"%d{number} = stablehlo.reshape {frame} : ({new}) -> {columns[1]}",
                f"%a{number} = stablehlo.concatenate %c{number}, %d{number}, dim = 1 "
                f": ({', '.join(columns)}) -> {whole}",
                f"%m{number} = stablehlo.slice %a{number} [0:{channels}, 1:{frames + 1}] "
                f": ({whole}) -> {columns[0]}",
                f"%n{number} = stablehlo.reshape %m{number} : ({columns[0]}) -> {state}",
                store,
            ]
        else:
            self.lines += [
                load,
                f"%a{number} = stablehlo.concatenate %s{number}, {frame}, dim = 0 "
                f": ({state}, {new}) -> {whole}",
                f"%n{number} = stablehlo.slice %a{number} [1:{frames + 1}, 0:{channels}] "
                f": ({whole}) -> {state}",
                store,
            ]
        flat, accumulator = self.type_of(1, size), "i32" if self.element == "i8" else "f32"
        wide = self.type_of(1, channels, element=accumulator)
        self.lines += [
            f"%f{number} = stablehlo.reshape %a{number} : ({whole}) -> {flat}",
            f"%p{number} = stablehlo.dot_general %f{number}, %w{number}, "
            f"contracting_dims = [1] x [0] : ({flat}, {self.type_of(*weight.shape)}) -> {wide}",
        ]
        if self.element == "i8":
            for each, value in (("l", 4), ("lo", -128), ("hi", 127)):
                self.constant(f"%{each}{number}", np.full((1, channels), value), "i32")
            self.lines += [
                f"%r{number} = stablehlo.shift_right_arithmetic %p{number}, %l{number} : {wide}",
                f"%q{number} = stablehlo.clamp %lo{number}, %r{number}, %hi{number} : {wide}",
                f"%y{number} = stablehlo.convert %q{number} : ({wide}) -> {new}",
            ]
        else:
            self.constant(f"%lo{number}", np.full((1, channels), -4.0))
            self.constant(f"%hi{number}", np.full((1, channels), 4.0))
            self.lines.append(
                f"%y{number} = stablehlo.clamp %lo{number}, %p{number}, %hi{number} : {wide}"
            )
        self.steps.append((name, weight, axis))
        return f"%y{number}"

    def expected(self, frame):
        """The result of a call in NumPy; the states are those after it."""
        frame = frame.astype(np.int64 if self.element == "i8" else np.float64)
        for name, weight, axis in self.steps:
            state = self.states[name]
            if axis:
                whole = np.concatenate([state.reshape(self.channels, -1), frame.T], 1)
                self.states[name] = whole[:, 1:].reshape(state.shape)
            else:
                whole = np.concatenate([state, frame])
                self.states[name] = whole[1:]
            product = whole.reshape(1, -1) @ weight.astype(whole.dtype)
            is_i8 = self.element == "i8"
            frame = np.clip(product >> 4, -128, 127) if is_i8 else np.clip(product, -4, 4)
        return frame

    def text(self, result):
        type_ = self.type_of(1, self.channels)
        body = "\n  ".join([*self.lines, f"return {result} : {type_}"])
        header = f"func.func @main(%x: {type_}) -> {type_} {{"
        return "\n".join([*self.globals, header, f"  {body}", "}"])


def check(stream, result, dispatches=1, calls=6, **options):
    text = stream.text(result)
    lowered = compile_to_bytes(text, CompileOptions(**options), emit="mlir").decode()
    assert lowered.count('"flow.dispatch"') == dispatches
    main = main_of(text, **options)
    for _ in range(calls):
        frame = stream.numbers(1, stream.channels)
        np.testing.assert_array_equal(main(frame), stream.expected(frame))
    return lowered


@pytest.mark.parametrize("instructions", EVERY)
@pytest.mark.parametrize("element", ELEMENTS)
@pytest.mark.share(4)
def test_a_stream_is_one_dispatch(element, instructions):
    stream, value = Stream(element, channels=24), "%x"
    for number, frames in enumerate((4, 1, 7)):
        stream.variable(f"state{number}", frames)
        value = stream.layer(value, f"state{number}")
    lowered = check(stream, value, kernels=instructions)
    # No copy is left: neither of a state nor of frames.
    assert not re.search(r"stablehlo\.(concatenate|slice)", lowered)


def test_frames_that_are_columns():
    stream, value = Stream(), "%x"
    for number, frames in enumerate((3, 9)):
        stream.variable(f"state{number}", frames)
        value = stream.layer(value, f"state{number}", axis=1)
    check(stream, value)


def test_a_variable_that_is_read_after_it_is_written():
    """A layer reads a variable that an earlier layer has written, in another dispatch."""
    stream = Stream()
    stream.variable("state", 3)
    value = stream.layer(stream.layer(stream.layer("%x", "state"), "state"), "state")
    check(stream, value, 3)


def test_separate_dispatches_on_request():
    stream = Stream()
    stream.variable("state", 3)
    check(stream, stream.layer("%x", "state"), 1, fuse_below_macs=0)


def test_halves_of_the_channels():
    """Slices of slices, and a concatenation whose integers a product converts."""
    program = Program(9, 80)
    halves = [program.columns("%x", start, start + 40) for start in (0, 40)]
    products = [program.product(program.columns(each, 4, 36), 24) for each in halves]
    joined = program.joined(program.product(products[0], 24), program.product(products[1], 40))
    value = program.product(program.columns(program.product(joined, 64), 32, 64), 48)
    # The slices of the argument are not between kernels.
    lowered = compile_to_bytes(program.text(value), CompileOptions(), emit="mlir").decode()
    assert lowered.count('"flow.dispatch"') == 1
    output = main_of(program.text(value))(program.x)
    np.testing.assert_array_equal(output, program.arrays[value])
