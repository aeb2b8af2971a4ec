"""Kinds of inputs that are modules in text or bytecode, and pipelines of passes on them."""

from __future__ import annotations

import dataclasses
import random
import re

from .case import PARSE_LIMIT, Case, module_case
from .corpus import Corpus
from .mutations import NUMBERS, mutate_bytes, mutate_text


def text(rng: random.Random, corpus: Corpus) -> Case:
    """Changed text of modules."""
    changed = mutate_text(rng, rng.choice(corpus.texts), corpus.texts)
    return module_case(rng, changed.encode("utf-8", "surrogatepass"), "x.mlir")


def bytecode(rng: random.Random, corpus: Corpus) -> Case:
    """Changed bytecode of modules."""
    return module_case(rng, mutate_bytes(rng, rng.choice(corpus.bytecode)), "x.mlirbc")


def nesting(rng: random.Random, corpus: Corpus) -> Case:
    """Depths and sizes."""
    count = rng.choice((2, 50, 255, 257, 1000, 5000, 60000, 200000))
    few = min(count, 3000)
    number = rng.choice(NUMBERS)
    makers = (
        lambda: "module {" * few + "}" * few,
        lambda: f"func.func private @f({'tuple<' * count}i8{'>' * count})",
        lambda: f'"a.b"() {{x = {"[" * count}{"]" * count}}} : () -> ()',
        lambda: f'"a.b"() {{x = affine_map<(d0) -> ({" + ".join(["d0"] * count)})>}} : () -> ()',
        lambda: f'"a.b"() {{x = affine_map<(d0) -> ({"-" * count}d0)>}} : () -> ()',
        lambda: f'"a.b"() {{x = affine_map<(d0) -> ({"(" * count}d0{")" * count})>}} : () -> ()',
        lambda: "\n".join(
            [
                "!a0 = i8",
                *(f"!a{n} = tuple<!a{n - 1}, !a{n - 1}>" for n in range(1, min(count, 40))),
                f"func.func private @f(!a{min(count, 40) - 1})",
            ]
        ),
        lambda: (
            "!a0 = i8 "
            + " ".join(f"!a{n} = tuple<!a{n - 1}>" for n in range(1, count))
            + f' "a.b"() : () -> !a{count - 1}'
        ),
        lambda: (
            "#a0 = 1 "
            + " ".join(f"#a{n} = [#a{n - 1}]" for n in range(1, count))
            + f' "a.b"() {{x = #a{count - 1}}} : () -> ()'
        ),
        lambda: f"func.func private @f(tensor<{number}x{number}xi8>)",
        lambda: f"func.func private @f(tensor<{'1x' * count}i8>)",
        lambda: f"func.func private @f(!quant.uniform<i8:f32:{number}, {{1.0:{number}}}>)",
        lambda: f"func.func private @f(!quant.uniform<i8<{number}:{number}>:f32, {number}>)",
        lambda: (
            f"func.func private @f(tensor<4x!quant.uniform<i8:f32:{{0:{number}}}, "
            f"{{{', '.join(['1.0'] * min(count, 5000))}}}>>)"
        ),
        lambda: (
            "func.func private @f(tensor<4x!quant.uniform<i8:f32:{0:1}, "
            f"{'{' * few}1.0{'}' * few}>>)"
        ),
        lambda: f"func.func @f(%x: i8) {{ return %x#{number} : i8 }}",
        lambda: f'%r:{number} = "a.b"() : () -> (i8)',
        lambda: f"func.func @f() {{ {'cf.br ^b0 ^b0: ' * few} return }}",
        lambda: f"func.func @f() {{ {'%0 = arith.constant 1 : i8 ' * 1} return }}" * few,
        lambda: f"// {'x' * count}\n",
        lambda: f'"{"x" * count}"() : () -> ()',
        lambda: f'func.func private @"{"x" * count}"()',
        lambda: f'"a.b"() : () -> () loc({"fused[" * few}"x"{"]" * few})',
        lambda: (
            f'"a.b"() {{x = dense<{number}> : tensor<{number}xi'
            f"{rng.choice((1, 8, 64))}>}} : () -> ()"
        ),
        lambda: f'"a.b"() {{x = dense<"0x{"00" * few}"> : tensor<{few}xi8>}} : () -> ()',
        lambda: f'"a.b"() {{x = dense_resource<{number}> : tensor<4xi8>}} : () -> ()',
        lambda: f"#m = #sparse_tensor.encoding<{{ {number} }}>",
        lambda: "func.func private @f(tensor<2xi8, #sparse_tensor.encoding<{}>>)",
        lambda: CONVOLUTION.format(number, number, number, number, rng.choice(NUMBERS)),
    )
    return module_case(rng, rng.choice(makers)().encode(), "x.mlir")


CONVOLUTION = """
!x = tensor<1x4x4x1xi8>
func.func @f(%x: !x, %w: tensor<1x1x1x1xi8>) -> tensor<1x4x4x1xi32> {{
  %y = stablehlo.convolution(%x, %w) dim_numbers = [b, 0, {}, f]x[0, 1, i, o]->[b, 0, 1, f],
    window = {{stride = [{}, 1], pad = [[{}, 0], [0, 0]], rhs_dilate = [1, {}]}}
    {{batch_group_count = 1 : i64, feature_group_count = {} : i64}}
    : (!x, tensor<1x1x1x1xi8>) -> tensor<1x4x4x1xi32>
  return %y : tensor<1x4x4x1xi32>
}}
"""


UPSTREAM = (
    "canonicalize", "cse", "symbol-dce", "inline", "sccp", "remove-dead-values", "strip-debuginfo",
    "loop-invariant-code-motion", "control-flow-sink", "topological-sort", "mem2reg", "sroa",
    "symbol-privatize", "lower-quant-ops", "strip-func-quant-types", "normalize-quant-types",
    "chlo-legalize-to-stablehlo", "stablehlo-legalize-to-vhlo", "vhlo-legalize-to-stablehlo",
    "stablehlo-canonicalize-dynamism", "stablehlo-aggressive-folder", "stablehlo-refine-shapes",
    "stablehlo-aggressive-simplification", "stablehlo-legalize-to-linalg",
    "stablehlo-convert-to-signless",
    "stablehlo-legalize-quant-to-math", "stablehlo-legalize-qdq-to-quantized-op",
    "stablehlo-legalize-quantized-op-to-qdq", "stablehlo-compatibility-expander",
    "shape-legalize-to-stablehlo", "stablehlo-legalize-composite-to-call", "tosa-to-linalg",
    "tosa-to-linalg-named", "tosa-to-arith", "tosa-to-tensor", "tosa-to-scf", "tosa-validate",
    "tosa-layerwise-constant-fold", "tosa-infer-shapes", "tosa-make-broadcastable",
    "linalg-generalize-named-ops", "linalg-fuse-elementwise-ops", "linalg-fold-unit-extent-dims",
    "convert-linalg-to-loops", "convert-scf-to-cf", "convert-tensor-to-linalg", "arith-expand",
    "arith-unsigned-when-equivalent", "int-range-optimizations", "convert-arith-to-llvm",
    "convert-func-to-llvm", "one-shot-bufferize", "fold-tensor-subset-ops",
    "empty-tensor-to-alloc-tensor",
    "resolve-shaped-type-result-dims", "affine-simplify-structures", "lower-affine",
)  # fmt: skip


def pipelines(rng: random.Random, corpus: Corpus) -> Case:
    """Passes in any order on modules, changed or not."""
    from subquant.core.option_fields import choices_of, spelling_of
    from subquant.transforms import PASSES, load_pass

    steps = []
    for _ in range(rng.randrange(1, 5)):
        if rng.random() < 0.4:
            steps.append(rng.choice(UPSTREAM))
            continue
        name = rng.choice(list(PASSES))
        options = []
        for option in dataclasses.fields(load_pass(name)):
            if rng.random() < 0.3:
                choices = choices_of(load_pass(name), option.name) or ("true", "false", "7")
                value = rng.choice([*choices, "x"])
                options.append(f"{spelling_of(option)}={value}".replace("_", "-"))
        steps.append(name + (f"{{{' '.join(options)}}}" if options else ""))
    passes = ",".join(steps)
    if rng.random() < 0.15:
        passes = mutate_text(rng, passes, corpus.texts)
    inputs = rng.choice(corpus.texts)
    if rng.random() < 0.4:
        inputs = mutate_text(rng, inputs, corpus.texts)
    data = inputs.encode("utf-8", "surrogatepass")
    passes = passes.replace("\0", "")
    arguments = ["opt", "x.mlir", "--passes", passes, "-o", "out.mlir", *PARSE_LIMIT]
    return Case(arguments, {"x.mlir": data}, "out.mlir")


_ATTRIBUTE = re.compile(r"[\w.]+ = (?:[^,<>{}\[\]()\"]+|\"[^\"]*\"|[\w.#!]*<[^<>]*>|\[[^\[\]]*\])")


def attributes(rng: random.Random, corpus: Corpus) -> Case:
    """Operations in their generic form without some attributes, or with other values."""
    arguments = rng.choice(corpus.generic)
    for _ in range(rng.choice((1, 1, 2, 4))):
        actual = list(_ATTRIBUTE.finditer(arguments))
        if not actual:
            break
        match = rng.choice(actual)
        name, _, _ = match.group().partition(" = ")
        value = rng.choice(("unit", "1 : i64", "-1 : i64", '"x"', "[]", "array<i64>", "i8",
                            "array<i64: 99999999999>", "dense<1> : tensor<2x2xi64>", "true",
                            "affine_map<(d0) -> (d0)>", "{}", "@f", "1.0 : f64"))  # fmt: skip
        new = "" if rng.random() < 0.5 else f"{name} = {value}"
        arguments = arguments[: match.start()] + new + arguments[match.end() :]
        arguments = re.sub(r"([{<]\s*),|,\s*(?=[}>])", lambda m: m.group(1) or "", arguments)
        arguments = arguments.replace(", ,", ",")
    return module_case(rng, arguments.encode(), "x.mlir")
