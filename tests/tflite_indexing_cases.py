"""Operators of TensorFlow Lite that choose, repeat and rearrange, with random parameters."""

from __future__ import annotations

import math
from functools import partial

import numpy as np

from tflite_builder import Graph, Quantized, f32, packed
from tflite_cases import Case, Ends, Rng, quantized
from tflite_elementwise_cases import QUANTIZED

Array = np.ndarray


def _parameters(rng: Rng, dtype: str) -> Quantized | None:
    return quantized(rng, dtype) if dtype in QUANTIZED else None


def gather(graph: Graph, rng: Rng, dtype: str) -> Ends:
    shape = (2, 3, 5, 4)
    batch = int(rng.integers(0, 3))
    axis = int(rng.integers(batch, 4))
    rows = tuple(int(n) for n in rng.integers(1, 4, int(rng.integers(0 if batch else 1, 3))))
    positions = rng.integers(0, shape[axis], (*shape[:batch], *rows))
    parameters = _parameters(rng, dtype)
    result = ((*shape[:axis], *rows, *shape[axis + 1 :]), dtype, parameters)
    return graph.apply(
        "GATHER", [(shape, dtype, parameters), positions.astype(np.int32)], [result],
        "GatherOptions", axis=axis if rng.random() < 0.5 else axis - 4, batchDims=batch,
    )  # fmt: skip


def gather_nd(graph: Graph, rng: Rng, dtype: str) -> Ends:
    shape, depth = (3, 4, 5), int(rng.integers(1, 4))
    positions = np.stack([rng.integers(0, shape[n], (2, 3)) for n in range(depth)], -1)
    parameters = _parameters(rng, dtype)
    result = ((2, 3, *shape[depth:]), dtype, parameters)
    inputs = [(shape, dtype, parameters), positions.astype(np.int32)]
    return graph.apply("GATHER_ND", inputs, [result])


def embedding(graph: Graph, rng: Rng, dtype: str) -> Ends:
    rows, shape = graph.constant(rng.integers(0, 7, 4)), (7, 64)
    data = rng.normal(size=shape).astype(np.float32)
    scale, name, bits = None, None, 32
    if dtype != "float32":
        bits = int(dtype.removeprefix("int").split("-")[0])
        data = rng.integers(-(1 << (bits - 1)), 1 << (bits - 1), shape).astype(np.int8)
        name, scale = f"INT{bits}", Quantized(0.03)
    if dtype.endswith("rows"):
        scale = Quantized(rng.uniform(0.01, 0.1, 7).tolist(), 0, 0)
    if dtype.endswith("blocks"):
        scale = Quantized(rng.uniform(0.01, 0.1, (7, 2)).tolist(), 0, 0, 32)
    stored = packed(data, bits) if bits < 8 else data
    kind = "float32" if scale is None else "int8"
    table = graph.tensor(shape, kind, scale, stored, type_name=name)
    _, [embedded] = graph.apply("EMBEDDING_LOOKUP", [rows, table], [f32(4, 64)])
    [_, operand], results = graph.apply("ADD", [embedded, f32(4, 64)], [f32(4, 64)], "AddOptions")
    return [operand], results


def strided_slice(graph: Graph, rng: Rng, dtype: str) -> Ends:
    shape = (4, 5, 3, 6)
    count = int(rng.integers(1, 5))
    entries = ["ellipsis"] if rng.random() < 0.4 else []
    entries += ["slice"] * (count - len(entries))
    if rng.random() < 0.4:
        entries.append("new")
    entries = [entries[n] for n in rng.permutation(len(entries)).tolist()]
    index: list[object] = []
    starts, stops, steps = [], [], []
    masks = dict.fromkeys(("begin", "end", "ellipsis", "new", "shrink"), 0)
    used, total = 0, entries.count("slice")
    for position, entry in enumerate(entries):
        extent = shape[used] if used < 4 else 1
        start, stop = (int(n) for n in rng.integers(-extent - 2, extent + 3, 2))
        step = int(rng.choice([1, 1, 2, -1, -2]))
        if entry == "ellipsis":
            masks["ellipsis"] |= 1 << position
            index.append(Ellipsis)
            used += 4 - total
            start = stop = 0
            step = 1
        elif entry == "new":
            masks["new"] |= 1 << position
            index.append(None)
            step = 1
        elif rng.random() < 0.3:
            masks["shrink"] |= 1 << position
            start, stop, step = int(rng.integers(-extent, extent)), 0, 1
            index.append(start)
            used += 1
        else:
            bounds = []
            for mask, bound in (("begin", start), ("end", stop)):
                is_hidden = rng.random() < 0.3
                masks[mask] |= is_hidden << position
                bounds.append(None if is_hidden else bound)
            index.append(slice(*bounds, step))
            used += 1
        starts.append(start)
        stops.append(stop)
        steps.append(step)
    sliced = np.zeros(shape, np.int8)[tuple(index)]  # type: ignore[index]
    if not sliced.size:
        return strided_slice(graph, rng, dtype)
    parameters = _parameters(rng, dtype)
    operand = graph.tensor(shape, dtype, parameters)
    result = graph.tensor(sliced.shape, dtype, parameters)
    return [operand], graph.operator(
        "STRIDED_SLICE",
        [operand, *(graph.constant(each) for each in (starts, stops, steps))],
        [result], "StridedSliceOptions", beginMask=masks["begin"], endMask=masks["end"],
        ellipsisMask=masks["ellipsis"], newAxisMask=masks["new"], shrinkAxisMask=masks["shrink"],
    )  # fmt: skip


def positions(
    graph: Graph, rng: Rng, shape: tuple[int, ...], *, computed: bool, most: int
) -> tuple[list[int], int]:
    """Indices from 0 to `most`, constant or computed from an input of floats."""
    if not computed:
        return [], graph.constant(rng.integers(0, most + 1, shape))
    factor, integers = np.full(shape, 100, np.float32), (shape, "int32")
    operands, scaled = graph.apply("MUL", [f32(*shape), factor], [f32(*shape)], "MulOptions")
    _, wide = graph.apply("CAST", scaled, [integers])
    _, size = graph.apply("ABS", wide, [integers])
    _, [result] = graph.apply("FLOOR_MOD", [*size, [most + 1]], [integers])
    return operands, result


def computed_slice(graph: Graph, rng: Rng, dtype: str) -> Ends:
    """Starts that are computed of an input of floats."""
    shape, parameters = (6, 5, 4), _parameters(rng, dtype)
    inputs, starts = positions(graph, rng, (3,), computed=True, most=2)
    result = ((3, 2, 2), dtype, parameters)
    operands, results = graph.apply(
        "SLICE", [(shape, dtype, parameters), starts, [3, 2, 2]], [result]
    )
    return [operands[0], *inputs], results


def padded(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    shape = (2, 4, 5, 3)
    pads = rng.integers(0, 3, (4, 2))
    if name == "MIRROR_PAD":
        pads[0] = rng.integers(0, 2, 2)
    parameters = _parameters(rng, dtype)
    result = ((np.array(shape) + pads.sum(1)).tolist(), dtype, parameters)
    inputs = [(shape, dtype, parameters), pads.tolist()]
    if name == "PADV2":
        inputs.append(((1,), dtype, parameters, rng.integers(0, 100, 1).astype(dtype)))
    if name == "MIRROR_PAD":
        return graph.apply(name, inputs, [result], "MirrorPadOptions", mode=int(rng.integers(0, 2)))
    return graph.apply(name, inputs, [result])


def spread(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    shape, parameters = np.array((2, 4, 5)), _parameters(rng, dtype)
    value = ((), dtype, parameters, np.array(int(rng.integers(0, 100)), dtype))
    between = rng.integers(0, 3, 3)
    extents = shape + (shape - 1) * between
    operand = (shape, dtype, parameters)
    if name == "DILATE":
        inputs = [operand, (between + 1).tolist(), value]
        return graph.apply(name, inputs, [(extents, dtype, parameters)], "DilateOptions")
    low, high = rng.integers(-1, 3, (2, 3))
    return graph.apply(
        name, [operand, value], [(extents + low + high, dtype, parameters)], "StablehloPadOptions",
        edgePaddingLow=low, edgePaddingHigh=high, interiorPadding=between,
    )  # fmt: skip


def spaces(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    size = int(rng.integers(2, 4))
    height, width, depth = (int(n) for n in rng.integers(1, 4, 3))
    large, small = (2, height * size, width * size, depth), (2, height, width, depth * size * size)
    parameters = _parameters(rng, dtype)
    first, last = (small, large) if name == "DEPTH_TO_SPACE" else (large, small)
    ends = [(first, dtype, parameters)], [(last, dtype, parameters)]
    table = {"DEPTH_TO_SPACE": "DepthToSpaceOptions", "SPACE_TO_DEPTH": "SpaceToDepthOptions"}
    return graph.apply(name, *ends, table[name], blockSize=size)


def batches(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    blocks = rng.integers(1, 4, 2)
    extents = rng.integers(2, 4, 2) * blocks
    pads = rng.integers(0, 2, (2, 2))
    pads[:, 1] += (-(extents - pads.sum(1))) % blocks
    inner = np.maximum(extents - pads.sum(1), 1)
    pads[:, 1] = (-(inner + pads[:, 0])) % blocks
    whole = inner + pads.sum(1)
    many = (2 * int(np.prod(blocks)), *(whole // blocks).tolist(), 3)
    few = (2, *inner.tolist(), 3)
    parameters = _parameters(rng, dtype)
    first, last = (few, many) if name == "SPACE_TO_BATCH_ND" else (many, few)
    inputs = [(first, dtype, parameters), blocks.tolist(), pads.tolist()]
    return graph.apply(name, inputs, [(last, dtype, parameters)])


def repeated(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    parameters = _parameters(rng, dtype)
    counts = rng.integers(1, 4, 3)
    shape = np.array((2, 1, 3))
    if name == "BROADCAST_TO":
        shape = np.where(rng.random(3) < 0.5, 1, counts)
    last = (shape * counts if name == "TILE" else np.array((2, *counts))).tolist()
    inputs = [(shape.tolist(), dtype, parameters), counts.tolist() if name == "TILE" else last]
    return graph.apply(
        name, inputs, [(last, dtype, parameters)], version=1 if name == "TILE" else 2
    )


def reverse(graph: Graph, rng: Rng, dtype: str) -> Ends:
    tensor = ((2, 3, 4), dtype, _parameters(rng, dtype))
    first = int(rng.integers(0, 3))
    axes = list(range(first, int(rng.integers(first + 1, 4))))
    return graph.apply("REVERSE_V2", [tensor, axes], [tensor])


def resize(graph: Graph, rng: Rng, name: str, dtype: str) -> Ends:
    height, width, *sizes = (int(n) for n in rng.integers(1, 12, 4))
    parameters = _parameters(rng, dtype)
    corners = bool(rng.integers(0, 2))
    operand, result = ((2, *each, 3) for each in ((height, width), sizes))
    table = "ResizeBilinearOptions" if name == "RESIZE_BILINEAR" else "ResizeNearestNeighborOptions"
    return graph.apply(
        name, [(operand, dtype, parameters), sizes], [(result, dtype, parameters)], table,
        alignCorners=corners,
        halfPixelCenters=not corners and bool(rng.integers(0, 2)),
        version=4 if dtype == "int16" else 3,
    )  # fmt: skip


def one_hot(graph: Graph, rng: Rng, dtype: str) -> Ends:
    depth, axis = int(rng.integers(2, 6)), int(rng.integers(-1, 3))
    operands, wide = graph.apply("CAST", [f32(2, 3)], [((2, 3), "int32")])
    shape = [2, 3]
    shape.insert(axis % 3, depth)
    inputs = [*wide, *(graph.constant(*each) for each in ((depth,), (5, dtype), (-2, dtype)))]
    _, results = graph.apply("ONE_HOT", inputs, [(shape, dtype)], "OneHotOptions", axis=axis)
    return operands, results


def update(graph: Graph, rng: Rng, dtype: str) -> Ends:
    parameters = _parameters(rng, dtype)
    whole, part = ((4, 5, 3), dtype, parameters), ((2, 3, 3), dtype, parameters)
    starts = rng.integers(-2, 5, 3).tolist()
    return graph.apply("DYNAMIC_UPDATE_SLICE", [whole, part, starts], [whole])


def generated_values(graph: Graph, rng: Rng, name: str) -> Ends:
    operand = graph.tensor((2, 3, 4), "float32")
    inputs, shape, dtype = [operand], (2, 3, 4), "float32"
    options: dict[str, object] = {}
    if name == "SHAPE":
        shape, dtype, options = (3,), "int32", {"options": "ShapeOptions", "outType": 2}
    elif name == "RANK":
        shape, dtype = (), "int32"
    elif name == "FILL":
        inputs = [graph.constant(shape), graph.constant(0.5, "float32")]
    elif name == "RANGE":
        start, limit, delta = rng.integers(-9, 9), rng.integers(10, 30), rng.integers(1, 5)
        kind = "int32" if rng.random() < 0.5 else "float32"
        inputs = [graph.constant(n, kind) for n in (start, limit, delta)]
        shape, dtype = (math.ceil((limit - start) / delta),), kind
    generated = graph.tensor(shape, dtype)
    graph.operator(name, inputs, [generated], **options)  # type: ignore[arg-type]
    value = generated
    if dtype == "int32":
        value = graph.tensor(shape, "float32")
        graph.operator("CAST", [generated], [value])
    result = graph.tensor((2, 3, 4) if shape == () else shape, "float32")
    other = operand if shape in ((), (2, 3, 4)) else graph.tensor(shape, "float32")
    return [other] if other == operand else [operand, other], graph.operator(
        "ADD", [other, value], [result], "AddOptions"
    )


_TYPES = ("float32", "int8", "uint8", "int16")

CASES: dict[str, Case] = {
    **{f"{name}-{t}": partial(function, dtype=t)
       for name, function in (("GATHER", gather), ("GATHER_ND", gather_nd),
                              ("STRIDED_SLICE", strided_slice), ("REVERSE_V2", reverse),
                              ("DYNAMIC_UPDATE_SLICE", update))
       for t in ("float32", "int8")},
    **{f"EMBEDDING_LOOKUP-{t}": partial(embedding, dtype=t)
       for t in ("float32", "int8", "int8-rows", "int4", "int4-rows", "int4-blocks",
                 "int2-blocks")},
    **{f"SLICE-computed-{t}": partial(computed_slice, dtype=t) for t in ("float32", "int8")},
    **{f"ONE_HOT-{t}": partial(one_hot, dtype=t) for t in ("float32", "int32")},
    **{f"{n}-{t}": partial(padded, name=n, dtype=t)
       for n in ("PAD", "PADV2", "MIRROR_PAD") for t in _TYPES},
    **{f"{n}-{t}": partial(spread, name=n, dtype=t)
       for n in ("STABLEHLO_PAD", "DILATE") for t in ("float32", "int8")},
    **{f"{n}-{t}": partial(spaces, name=n, dtype=t)
       for n in ("DEPTH_TO_SPACE", "SPACE_TO_DEPTH") for t in ("float32", "int8")},
    **{f"{n}-{t}": partial(batches, name=n, dtype=t)
       for n in ("SPACE_TO_BATCH_ND", "BATCH_TO_SPACE_ND") for t in ("float32", "int8", "uint8")},
    **{f"{n}-{t}": partial(repeated, name=n, dtype=t)
       for n in ("TILE", "BROADCAST_TO") for t in ("float32", "int8")},
    **{f"RESIZE_NEAREST_NEIGHBOR-{t}": partial(resize, name="RESIZE_NEAREST_NEIGHBOR", dtype=t)
       for t in _TYPES},
    **{f"RESIZE_BILINEAR-{t}": partial(resize, name="RESIZE_BILINEAR", dtype=t)
       for t in _TYPES},
    **{f"{n}-float32": partial(generated_values, name=n)
       for n in ("SHAPE", "RANK", "FILL", "RANGE", "ZEROS_LIKE")},
}  # fmt: skip
