"""Programs with several variables are recorded when they are loaded, and compute the same.

See `subquant.transforms.iree_workarounds.order_variables`. Expected numbers are NumPy's.
"""

from __future__ import annotations

import numpy as np

from bare_iree import CPU_FLAGS, FIXED, compile_bare
from devices import ON_DEVICES, compile_for
from subquant.compiler.compilation import compile_to_bytes
from subquant.compiler.compile_options import CompileOptions
from subquant.runtime import Device

ROWS = {"state_9": 3, "state_11": 5, "state_10": 12}
"""The rows of four values of each variable, in the order in which they are assigned."""


def delays() -> str:
    """A chain of delays: each shifts the row of the one before into its variable."""
    globals_, body = [], []
    row = "%x"
    for number, (name, rows) in enumerate(sorted(ROWS.items())):
        type_ = f"tensor<{rows}x4xi8>"
        globals_.append(
            f'"util.global"() {{sym_name = "{name}", is_mutable, sym_visibility = "private", '
            f"initial_value = dense<{-number}> : {type_}, type = {type_}}} : () -> ()"
        )
    for name, rows in ROWS.items():
        state, whole = f"tensor<{rows}x4xi8>", f"tensor<{rows + 1}x4xi8>"
        body += [
            f'%{name} = "util.global.load"() {{global = @{name}}} : () -> {state}',
            f"%all_{name} = stablehlo.concatenate %{name}, {row}, dim = 0 "
            f": ({state}, tensor<1x4xi8>) -> {whole}",
            f"%new_{name} = stablehlo.slice %all_{name} [1:{rows + 1}, 0:4] : ({whole}) -> {state}",
            f'"util.global.store"(%new_{name}) {{global = @{name}}} : ({state}) -> ()',
            f"%old_{name} = stablehlo.slice %all_{name} [0:1, 0:4] : ({whole}) -> tensor<1x4xi8>",
            f"%row_{name} = stablehlo.add %old_{name}, {row} : tensor<1x4xi8>",
        ]
        row = f"%row_{name}"
    header = "func.func @step(%x: tensor<1x4xi8>) -> tensor<1x4xi8> {"
    return "\n".join([*globals_, header, *body, f"  return {row} : tensor<1x4xi8>", "}"])


@ON_DEVICES
def test_values_of_each_call(device: Device, device_name: str) -> None:
    step = compile_for(delays(), device)["step"]
    states = {
        name: np.full((ROWS[name], 4), -number, np.int8) for number, name in enumerate(sorted(ROWS))
    }
    generator = np.random.default_rng(3)
    for _ in range(15):
        row = argument = generator.integers(-20, 20, (1, 4), dtype=np.int8)
        for name in ROWS:
            whole = np.concatenate([states[name], row])
            states[name], row = whole[1:], whole[:1] + row
        np.testing.assert_array_equal(step(argument), row)


def is_recorded(lowered: bytes) -> bool:
    """True if the commands of a program are recorded when it is loaded."""
    text = compile_bare(lowered, *CPU_FLAGS[1:], "--compile-to=hal").decode()
    return "hal.device.queue.execute.indirect" in text


def test_iree_still_places_initial_values_by_name() -> None:
    lowered = compile_to_bytes(delays(), CompileOptions(), emit="mlir")
    assert is_recorded(lowered)
    assert not is_recorded(delays()), FIXED + "the pass order-variables"
