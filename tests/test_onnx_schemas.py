"""Schemas of ONNX Runtime's own operators, and the values that attributes can have."""

from __future__ import annotations

import importlib.util
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from onnx_models import MICROSOFT, model, node, text_of
from subquant.errors import SubquantError
from subquant.importers.onnx.call import IMPORTERS
from subquant.importers.onnx.schemas.contributed_schemas import CONTRIBUTED

F32, U8 = np.float32, np.uint8


def of(
    operator: str, inputs: tuple[tuple[str, tuple[int, ...]], ...], outputs: int = 1,
    opset: int = 23, **attributes: Any,
) -> onnx.ModelProto:  # fmt: skip
    """A model of one node whose inputs are arguments; its results have no stated shape."""
    names = [f"i{n}" if type_ else "" for n, (type_, _) in enumerate(inputs)]
    results = [f"o{n}" for n in range(outputs)]
    arguments = {name: each for name, each in zip(names, inputs, strict=True) if name}
    proto = model([node(operator, names, results, **attributes)], arguments, {}, {}, opset)
    for name in results:
        proto.graph.output.append(helper.make_empty_tensor_value_info(name))
        proto.graph.output[-1].type.tensor_type.elem_type = TensorProto.FLOAT
    return proto


def test_schemas_are_those_of_onnx_runtime() -> None:
    if importlib.util.find_spec("onnxruntime") is None:
        pytest.skip("the package 'onnxruntime' is not installed (extra 'test')")
    from onnxruntime.capi import onnxruntime_pybind11_state

    theirs = {
        f"{each.domain}.{each.name}" if each.domain else each.name: each
        for each in onnxruntime_pybind11_state.get_all_operator_schema()
    }
    for operator, own in CONTRIBUTED.items():
        schema = theirs[operator]
        assert len(own.inputs) == len(schema.inputs), operator
        parameters: dict[str, str] = {}
        for mine, formal in zip(own.inputs, schema.inputs, strict=True):
            option = str(formal.option).rpartition(".")[2]
            assert (mine.name, mine.is_optional, mine.is_variadic) == (
                formal.name, option == "Optional", option == "Variadic"
            ), operator  # fmt: skip
            types = {each.removeprefix("tensor(").removesuffix(")").upper()
                     for each in formal.types}  # fmt: skip
            assert mine.types == types, (operator, mine.name)
            if len(types) > 1:  # inputs of one type parameter have one type
                assert parameters.setdefault(formal.typeStr, mine.type_parameter) == (
                    mine.type_parameter
                ), operator
        assert len(set(parameters.values())) == len(parameters), operator
        assert own.max_outputs == schema.max_output, operator
        kinds = {name: str(each.type).rpartition(".")[2] for name, each in
                 schema.attributes.items()}  # fmt: skip
        assert own.attributes == kinds, operator
        required = {name for name, each in schema.attributes.items() if each.required}
        assert own.required == required, operator


def test_every_importer_of_an_operator_of_onnx_runtime_has_a_schema() -> None:
    assert {name for name in IMPORTERS if name.startswith(f"{MICROSOFT}.")} <= set(CONTRIBUTED)


@pytest.mark.parametrize("operator", IMPORTERS)
def test_the_docstring_of_an_importer_names_the_operator_set(operator: str) -> None:
    domain, _, name = operator.rpartition(".")
    if IMPORTERS.get(name) is IMPORTERS[operator]:  # ONNX has the operator, too
        domain = ""
    versions = [
        each.since_version
        for each in onnx.defs.get_all_schemas()
        if (each.name, each.domain) == (name, domain)
    ]
    assert f"{name}-{max(versions, default=1)}" in (IMPORTERS[operator].__doc__ or "")


QUANTIZED = (("FLOAT", (4, 8)), ("FLOAT", ()), ("UINT8", ()))
STORED = (("UINT8", (4, 8)), ("FLOAT", ()), ("UINT8", ()))
MATRICES = (*(("UINT8", (4, 4)), ("FLOAT", ()), ("UINT8", ())) * 2, ("FLOAT", ()), ("UINT8", ()))
TABLES = (("FLOAT", (8, 4)), ("FLOAT", (8, 4)))

OTHERS: dict[str, tuple[onnx.ModelProto, str]] = {
    f"{operator}-{attribute}": (
        of(f"{MICROSOFT}.{operator}", QUANTIZED if operator == "QuantizeLinear" else STORED,
           **{attribute: value}),
        f"has the attribute '{attribute}', and the attributes of {MICROSOFT}.{operator} are axis",
    )
    for operator, attribute, value in (
        ("QuantizeLinear", "block_size", 2),
        ("QuantizeLinear", "saturate", 1),
        ("QuantizeLinear", "output_dtype", 2),
        ("QuantizeLinear", "precision", 1),
        ("DequantizeLinear", "block_size", 2),
        ("DequantizeLinear", "output_dtype", 1),
    )
} | {
    "QuantizeLinear-float8": (
        of(f"{MICROSOFT}.QuantizeLinear", (*QUANTIZED[:2], ("FLOAT8E4M3FN", ()))),
        "has input 2 ('y_zero_point') of the type FLOAT8E4M3FN, expected",
    ),
    "QuantizeLinear-types": (
        of(f"{MICROSOFT}.QuantizeLinear", (("FLOAT", (4,)), ("FLOAT16", ()), ("UINT8", ()))),
        "has input 1 ('y_scale') of the type FLOAT16, expected FLOAT, the type of input 0",
    ),
    "QLinearMatMul": (of(f"{MICROSOFT}.QLinearMatMul", MATRICES), "is not lowered"),
    "SimplifiedLayerNormalization": (
        of(f"{MICROSOFT}.SimplifiedLayerNormalization", (("FLOAT", (2, 4)), ("FLOAT", (4,)))),
        "is not lowered",
    ),
    "Gelu-approximate": (
        of(f"{MICROSOFT}.Gelu", (("FLOAT", (2, 4)),), approximate="tanh"),
        f"has the attribute 'approximate', and the attributes of {MICROSOFT}.Gelu are none",
    ),
    "RotaryEmbedding-inputs": (
        of(f"{MICROSOFT}.RotaryEmbedding", (("FLOAT", (1, 2, 8, 8)), *TABLES)),
        "has no input 3 ('sin_cache')",
    ),
    "RotaryEmbedding-order": (
        of(f"{MICROSOFT}.RotaryEmbedding",
           (("FLOAT", (1, 2, 8, 8)), *TABLES, ("INT64", (1, 8)))),
        "has input 1 ('position_ids') of the type FLOAT, expected INT64",
    ),
    "QLinearConv-channels_last": (
        of("QLinearConv", (("UINT8", (1, 2, 4, 4)), *MATRICES[1:3], ("UINT8", (2, 2, 3, 3)),
                           *MATRICES[1:3], *MATRICES[6:]), channels_last=1),
        "Unrecognized attribute: channels_last for operator QLinearConv",
    ),
    "DynamicQuantizeMatMul-input": (
        of(f"{MICROSOFT}.DynamicQuantizeMatMul",
           (("FLOAT", (2, 4)), ("UINT8", (4, 3)), ("FLOAT", ()), ("UINT8", ()), ("FLOAT", (3,)),
            ("FLOAT", (3,)))),
        "has 6 inputs, expected 5 at most",
    ),
    "SimplifiedLayerNormalization-attribute": (
        of("SimplifiedLayerNormalization", (("FLOAT", (2, 4)), ("FLOAT", (4,))), momentum=0.5),
        "has the attribute 'momentum', and the attributes of SimplifiedLayerNormalization are",
    ),
    "SimplifiedLayerNormalization-kind": (
        of("SimplifiedLayerNormalization", (("FLOAT", (2, 4)), ("FLOAT", (4,))), epsilon=1),
        "has the attribute 'epsilon' of the kind INT, expected FLOAT",
    ),
    "MatMulNBits-required": (
        of(f"{MICROSOFT}.MatMulNBits",
           (("FLOAT", (2, 32)), ("UINT8", (4, 1, 16)), ("FLOAT", (4,))), K=32, N=4),
        "has no attribute 'block_size'",
    ),
    "BiasAdd-outputs": (
        of(f"{MICROSOFT}.BiasAdd",
           (("FLOAT", (1, 2, 4)), ("FLOAT", (4,)), ("FLOAT", (1, 2, 4))), outputs=2),
        "has 2 outputs, expected 1 at most",
    ),
}  # fmt: skip


def test_a_domain_in_the_name_of_an_operator_is_refused() -> None:
    proto = of("Relu", (("FLOAT", (2,)),))
    proto.graph.node[0].op_type, proto.graph.node[0].domain = "microsoft.Gelu", "com"
    proto.opset_import.add(domain="com", version=1)
    with pytest.raises(SubquantError, match=r"has an operator name with a '\.'"):
        text_of(proto)


SIDE = ("FLOAT", (1, 2, 4, 8))
RANGES: dict[str, tuple[onnx.ModelProto, str]] = {
    "saturate": (of("Cast", (("FLOAT", (2,)),), to=TensorProto.INT8, saturate=2), "0 or 1"),
    "round_mode": (
        of("Cast", (("FLOAT", (2,)),), opset=24, to=TensorProto.INT8, round_mode="even"),
        "up or down or nearest",
    ),
    "num_heads": (of("RotaryEmbedding", (SIDE, *TABLES, ("INT64", (1, 2))), num_heads=-1),
                  "0 or more"),
    "interleaved": (of("RotaryEmbedding", (SIDE, *TABLES, ("INT64", (1, 2))), interleaved=2),
                    "0 or 1"),
    "scale": (of("Attention", (SIDE,) * 3, scale=0.0), "> 0"),
    "softcap": (of("Attention", (SIDE,) * 3, softcap=-1.0), "0 or more"),
    "qk_matmul_output_mode": (of("Attention", (SIDE,) * 3, qk_matmul_output_mode=4),
                              "0 or 1 or 2 or 3"),
    "is_causal": (of("Attention", (SIDE,) * 3, is_causal=-1), "0 or 1"),
    "center_point_box": (
        of("NonMaxSuppression", (("FLOAT", (1, 6, 4)), ("FLOAT", (1, 2, 6))), center_point_box=-1),
        "0 or 1",
    ),
    "keepdims": (of("ArgMax", (SIDE,), keepdims=2), "0 or 1"),
    "auto_pad": (of("MaxPool", (SIDE,), kernel_shape=[2, 2], auto_pad="SAME"),
                 "NOTSET or SAME_UPPER or SAME_LOWER or VALID"),
    "strides": (of("MaxPool", (SIDE,), kernel_shape=[2, 2], strides=[1, 0]), "1 or more"),
    "unidirectional": (
        of(f"{MICROSOFT}.MultiHeadAttention", (("FLOAT", (1, 2, 8)),) * 3, num_heads=2,
           unidirectional=2),
        "0 or 1",
    ),
}  # fmt: skip


LISTS: dict[str, tuple[onnx.ModelProto, str]] = {
    "DeformConv": (
        of("DeformConv",
           (("FLOAT", (1, 2, 4, 4)), ("FLOAT", (2, 2, 3, 3)), ("FLOAT", (1, 18, 2, 2))),
           strides=[1, 1, 1]),
        "has the strides [1, 1, 1], dilations [1, 1] and pads [0, 0, 0, 0], expected 2, 2 and 4",
    ),
    "ConvTranspose-pads": (
        of("ConvTranspose", (("FLOAT", (1, 1, 3)), ("FLOAT", (1, 2, 3))), pads=[100, 1]),
        "has a convolution whose result would have the shape [1, 2, 1, -2]",
    ),
    "ConvTranspose-output_shape": (
        of("ConvTranspose", (("FLOAT", (1, 1, 3)), ("FLOAT", (1, 2, 3))), output_shape=[0]),
        "has the attribute 'output_shape' = 0, expected 1 or more",
    ),
    "LpPool": (
        of("LpPool", (("FLOAT", (1, 1, 4)),), kernel_shape=[2], p=0),
        "has the attribute 'p' = 0, expected 1 or more",
    ),
    "MeanVarianceNormalization": (
        of("MeanVarianceNormalization", (SIDE,), axes=[0, 0]),
        "has the axes [0, 0], one of which is there twice",
    ),
}  # fmt: skip


REFUSED = (
    {f"schema of {name}": case for name, case in OTHERS.items()}
    | {f"lists of {name}": case for name, case in LISTS.items()}
    | {
        f"value of {name}": (proto, f"has the attribute {name!r} = ", f", expected {expected}")
        for name, (proto, expected) in RANGES.items()
    }
)


@pytest.mark.parametrize("name", REFUSED)
def test_a_node_that_its_schema_does_not_admit_is_refused(name: str) -> None:
    proto, *messages = REFUSED[name]
    with pytest.raises(SubquantError) as caught:
        text_of(proto)
    for message in messages:
        assert message in str(caught.value)
