"""Sums whose dispatch would have several results, on Vulkan.

IREE 3.13 fuses what is made of a sum, or of a greatest element, into its dispatch. Where that has
several results, as the scale of each row and the row as integers in that scale, it tiles by one of
them and may compute the others for all rows at once, in vectors that it then refuses ("failed to
legalize operation 'arith.constant'", "'vector.from_elements'"), for some extents::

    %m = stablehlo.reduce(%x ...) applies stablehlo.maximum across dimensions = [1]
    %b = stablehlo.broadcast_in_dim %m, dims = [0] : (tensor<8xf32>) -> tensor<8x64xf32>
    %q = stablehlo.divide %x, %b : tensor<8x64xf32>
    return %q, %m

The sum alone has one result, which is small.
"""

from __future__ import annotations

from ..._mlir import Value
from .thread_positions import is_fused_by_elements

__all__ = ["has_several_results"]


def has_several_results(value: Value) -> bool:
    """True if more than one tensor that is made of a sum, itself included, is read elsewhere."""
    seen: set[Value] = set()
    pending, leaving = [value], 0
    while pending:
        value = pending.pop()
        if value in seen:
            continue
        seen.add(value)
        users = [use.owner.operation for use in value.uses]
        leaving += any(not is_fused_by_elements(user) for user in users)
        if leaving > 1:
            return True
        pending += [v for user in users if is_fused_by_elements(user) for v in user.results]
    return False
