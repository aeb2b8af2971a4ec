"""Programs of the suite that one device, or IREE, does not execute: they are only lowered."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from .program import Program, Quantized
from .suite_types import TYPES, one_operation, region_body, tensor


def solvers() -> Iterator[Program]:
    """Yield the linear algebra that IREE does not execute."""
    for name in ("i8", "i16"):
        element = TYPES[name]
        assert isinstance(element, Quantized)
        zero, unit = int(element.zero_point), 20
        matrix = zero + unit * np.array([[4, 1, 0], [1, 3, 1], [0, 1, 2]])
        x = tensor((3, 3), name)
        yield one_operation("cholesky", name, (x,), x, "lower = true", {"lower": True},
                            inputs={0: matrix}, interpreted=False, runs=False)  # fmt: skip


_GROUP = "replica_groups = dense<0> : tensor<1x1xi64>"
_CHANNEL = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 0>"
_HOST = "channel_handle = #stablehlo.channel_handle<handle = 1, type = 2>, is_host_transfer = true"

LEGALIZED: dict[str, str] = {
    "all_gather": ('%r0 = "stablehlo.all_gather"(%a0) <{all_gather_dim = 0 : i64, '
                   f"{_GROUP}, {_CHANNEL}}}> : ($a0) -> $r0"),
    "all_reduce": f'%r0 = "stablehlo.all_reduce"(%a0) <{{{_GROUP}}}> (REGION) : ($a0) -> $r0',
    "all_to_all": ('%r0 = "stablehlo.all_to_all"(%a0) <{split_dimension = 0 : i64, '
                   "concat_dimension = 0 : i64, split_count = 1 : i64, "
                   f"{_GROUP}}}> : ($a0) -> $r0"),
    "collective_broadcast": ('%r0 = "stablehlo.collective_broadcast"(%a0) '
                             f"<{{{_GROUP}}}> : ($a0) -> $r0"),
    "collective_reduce": (f'%r0 = "stablehlo.collective_reduce"(%a0) <{{{_GROUP}}}> '
                          "(REGION) : ($a0) -> $r0"),
    "collective_permute": ('%r0 = "stablehlo.collective_permute"(%a0) '
                           "<{source_target_pairs = dense<0> : tensor<1x2xi64>}> : ($a0) -> $r0"),
    "reduce_scatter": ('%r0 = "stablehlo.reduce_scatter"(%a0) <{scatter_dimension = 0 '
                       f": i64, {_GROUP}}}> (REGION) : ($a0) -> $r0"),
    "infeed": ("%t = stablehlo.create_token : !stablehlo.token\n"
               '%i:2 = "stablehlo.infeed"(%t) <{infeed_config = ""}> : (!stablehlo.token) -> '
               '($r0, !stablehlo.token)\n%r0 = "stablehlo.reshape"(%i#0) : ($r0) -> $r0'),
    "outfeed": ("%t = stablehlo.create_token : !stablehlo.token\n"
                '%o = "stablehlo.outfeed"(%a0, %t) <{outfeed_config = ""}> : ($a0, '
                '!stablehlo.token) -> !stablehlo.token\n%r0 = "stablehlo.reshape"(%a0) : ($a0) -> '
                "$r0"),
    "send": ("%t = stablehlo.create_token : !stablehlo.token\n"
             f'%o = "stablehlo.send"(%a0, %t) <{{{_HOST}}}> : ($a0, !stablehlo.token) -> '
             '!stablehlo.token\n%r0 = "stablehlo.reshape"(%a0) : ($a0) -> $r0'),
    "recv": ("%t = stablehlo.create_token : !stablehlo.token\n"
             f'%i:2 = "stablehlo.recv"(%t) <{{{_HOST.replace("type = 2", "type = 3")}}}> : '
             '(!stablehlo.token) -> ($r0, !stablehlo.token)\n'
             '%r0 = "stablehlo.reshape"(%i#0) : ($r0) -> $r0'),
    "async_start": ('%f = "stablehlo.async_start"(%a0) ({\n^bb0(%x: $a0):\n'
                    '  %y = "stablehlo.all_gather"(%x) <{all_gather_dim = 0 : i64, '
                    f"{_GROUP}, {_CHANNEL}}}> : ($a0) -> $a0\n  stablehlo.return %y : $a0\n}}) : "
                    '($a0) -> !stablehlo.future<$r0>\n%r0 = "stablehlo.async_done"(%f) : '
                    "(!stablehlo.future<$r0>) -> $r0"),
}  # fmt: skip
"""Programs that a device cannot execute: only checked to leave no quantized type."""


LEGALIZED["async_done"] = LEGALIZED["async_start"]


def legalized() -> Iterator[Program]:
    """Yield the operations of `LEGALIZED`."""
    for op, text in LEGALIZED.items():
        for name in ("i8", "u4"):
            x = tensor((4, 2), name)
            body = text.replace("REGION", region_body("add"))
            yield Program(f"{op}/{name}", op, (x,), (x,), body, "identity", {},
                          {"e": tensor((), name)}, runs=False, interpreted=False)  # fmt: skip
