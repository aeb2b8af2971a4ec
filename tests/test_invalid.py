"""Invalid inputs and their exact diagnostics: none may crash, or raise anything but SubquantError.

``tests/invalid/*.mlir`` holds the cases that are text, split by ``// -----``, each after the
diagnostic it must give::

    // error @+1:3 VerificationError: 'func.func' op argument 0 ...
    // note: ...

``@+1:3`` is a place: lines below the comment's last line, and the column. Every note is compared
too, but for the operation that MLIR shows after "see current operation". What text cannot write
(scales that are not positive and finite, bytes that are not text) is below.
"""

import re
from pathlib import Path

import numpy as np
import pytest

from subquant.compiler import mlir_client
from subquant.compiler.reading import parse_bytecode, parse_file, parse_text
from subquant.compiler.text_checks import MAX_NESTING
from subquant.core._mlir import ir, quant
from subquant.dialects import create_context
from subquant.errors import CompilerError, InputError, ParseError, SubquantError, VerificationError
from subquant.transforms.quantization.verify_quantization import VerifyQuantization

FOLDER = Path(__file__).parent / "invalid"
EXPECTED = re.compile(r"// error @(?:\+(\d+):(\d+)|file) (\w+): (.*)\n((?:// note: .*\n)*)")


def split_cases():
    for path in sorted(FOLDER.glob("*.mlir")):
        for text in path.read_text().split("// -----\n"):
            name = re.search(r"@(\w+)[(\s]", text.split("// error", 1)[-1].split("\n", 1)[-1])
            number = sum(1 for _ in re.finditer("// error", text))
            assert number == 1, f"{path}: expected one '// error' in each case, got\n{text}"
            yield pytest.param(text, id=f"{path.stem}-{name.group(1) if name else 'op'}")


def verify(path):
    result = mlir_client.optimize(
        path.read_bytes(), str(path), None, reproducer=path.parent / "again"
    )
    for error in result.errors:
        raise error


@pytest.mark.parametrize("text", list(split_cases()))
def test_diagnostic(text, tmp_path):
    path = tmp_path / "case.mlir"
    path.write_text(text)
    expected = EXPECTED.search(text)
    with pytest.raises(SubquantError) as caught:
        verify(path)
    error = caught.value
    line, column, class_name, message, notes = expected.groups()
    position = str(path)
    if line is not None:
        position += f":{text.count(chr(10), 0, expected.end()) + int(line)}:{column}"
    shown = str(error).split("\n")[0]
    assert shown == f"{position}: error: {message}"
    assert type(error).__name__ == class_name
    assert error.exit_status == 1
    without_ir = [note for note in error.notes if not note.startswith("see current operation")]
    assert without_ir == [line[len("// note: ") :] for line in notes.splitlines()]


# -- types that text cannot write -----------------------------------------------------------------


def check_argument(element, shape=(4,)):
    type_ = ir.RankedTensorType.get(shape, element) if shape is not None else element
    module = ir.Module.create(ir.Location.file("made.py", 7, 3))
    with ir.InsertionPoint(module.body), ir.Location.file("made.py", 8, 5):
        ir.Operation.create(
            "func.func",
            attributes={
                "sym_name": ir.StringAttr.get("f"),
                "sym_visibility": ir.StringAttr.get("private"),
                "function_type": ir.TypeAttr.get(ir.FunctionType.get([type_], [])),
            },
            regions=1,
        )
    with pytest.raises(VerificationError) as caught:
        VerifyQuantization().run(module.operation)
    return str(caught.value)


BAD_SCALES = [(0.0, "0"), (-1.0, "-1"), (np.inf, "inf"), (-np.inf, "-inf"), (np.nan, "NaN")]
START = "made.py:8:5: error: 'func.func' op "


@pytest.fixture
def context():
    with create_context() as context, ir.Location.unknown():
        yield context


@pytest.mark.parametrize(("scale", "shown"), BAD_SCALES)
def test_scale_per_tensor(context, scale, shown):
    i8, f32 = ir.IntegerType.get_signless(8), ir.F32Type.get()
    type_ = quant.UniformQuantizedType.get(1, i8, f32, scale, 0, -128, 127)
    expected = f"the scale of argument 0 must be positive and finite, got {shown}"
    assert check_argument(type_) == START + expected
    assert check_argument(type_, None) == START + expected


@pytest.mark.parametrize(("scale", "shown"), BAD_SCALES)
def test_scale_per_axis(context, scale, shown):
    i8, f32 = ir.IntegerType.get_signless(8), ir.F32Type.get()
    type_ = quant.UniformQuantizedPerAxisType.get(
        1, i8, f32, [1.0, 1.0, scale, 1.0], [0] * 4, 0, -128, 127
    )
    expected = f"scale[2] of argument 0 must be positive and finite, got {shown}"
    assert check_argument(type_) == START + expected


def sub_channel(scales, zero_points, axes, blocks, expressed="f32"):
    element = ir.Type.parse(expressed)
    i8 = ir.IntegerType.get_signless(8)
    parameters = [
        ir.DenseElementsAttr.get(np.array(scales), type=shaped(scales, element)),
        ir.DenseElementsAttr.get(np.array(zero_points, np.int8), type=shaped(zero_points, i8)),
    ]
    get = quant.UniformQuantizedSubChannelType.get
    return get(1, i8, element, *parameters, axes, blocks, -128, 127)


def shaped(values, element):
    return ir.RankedTensorType.get(np.shape(values), element)


@pytest.mark.parametrize(("scale", "shown"), BAD_SCALES)
def test_scale_sub_channel(context, scale, shown):
    type_ = sub_channel(np.array([[1.0], [scale]], np.float32), [[0], [0]], [0], [2])
    expected = f"scale[1, 0] of argument 0 must be positive and finite, got {shown}"
    assert check_argument(type_, (4, 3)) == START + expected


@pytest.mark.parametrize(
    ("scale", "expressed", "shown"),
    [
        (1e-50, "f32", "1e-50, which rounds to 0"),
        (1e39, "f32", "1e+39, which rounds to inf"),
        (1e-9, "f16", "1e-09, which rounds to 0"),
        (70000.0, "f16", "70000, which rounds to inf"),
        (1e-45, "bf16", "1e-45, which rounds to 0"),
    ],
)
def test_scale_that_the_expressed_type_cannot_hold(context, scale, expressed, shown):
    i8 = ir.IntegerType.get_signless(8)
    type_ = quant.UniformQuantizedType.get(1, i8, ir.Type.parse(expressed), scale, 0, -128, 127)
    expected = f"the scale of argument 0 must be positive and finite in {expressed}, got {shown}"
    assert check_argument(type_) == START + expected


def test_axes_and_blocks_that_the_parser_refuses(context):
    ones, zeros = np.ones(2, np.float32), [0, 0]
    expected = "quantized dimension of argument 0 is negative, got -1"
    assert check_argument(sub_channel(ones, zeros, [-1], [2])) == START + expected
    expected = "block size along axis 0 of argument 0 must be at least 1, got 0"
    assert check_argument(sub_channel(ones, zeros, [0], [0])) == START + expected


# -- bytes ----------------------------------------------------------------------------------------


def error_of(content, tmp_path, name="case.mlir"):
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(SubquantError) as caught:
        verify(path)
    assert isinstance(caught.value, (InputError, CompilerError))
    return str(caught.value).replace(str(tmp_path), "TMP")


def test_files_that_are_not_text(tmp_path):
    assert error_of(b"module {\n  \0}", tmp_path) == (
        "TMP/case.mlir:2:3: error: text has a NUL character"
    )
    assert error_of(b"module \xff\xfe", tmp_path) == (
        "error: 'TMP/case.mlir' is neither MLIR bytecode nor UTF-8 text (byte 7)"
    )
    with create_context() as context, pytest.raises(ParseError) as caught:
        parse_text("module {\n} \ud800", context, "given")
    assert str(caught.value) == "given:2:3: error: text has a surrogate, which is no character"


def test_files_that_cannot_be_read(tmp_path):
    with create_context() as context:
        missing, folder = tmp_path / "no.mlir", tmp_path
        reasons = {missing: "No such file or directory", folder: "Is a directory, expected a file"}
        for path, reason in reasons.items():
            with pytest.raises(InputError) as caught:
                parse_file(path, context)
            assert str(caught.value) == f"error: cannot read '{path}': {reason}"


@pytest.mark.parametrize(
    ("start", "opening", "closing"),
    [
        ("", "module {", "}"),
        ("", '"test.x"() ({', "}) : () -> ()"),
        ('"test.x"() : () -> ', "tuple<", ">"),
        ("#a = ", "[", "]"),
        ('// a comment {\n"test.string {"', "[", "]"),
        ("#set = affine_set<(d0) : (d0 >= 0)>\n", "[", "]"),
    ],
)
def test_deep_nesting_of_brackets(tmp_path, start, opening, closing):
    depth = 100_000 * sum(opening.count(bracket) for bracket in "[({<")
    depth -= 100_000 * opening.count("()")
    content = start + opening * 100_000 + closing * 100_000
    assert error_of(content.encode(), tmp_path) == (
        f"TMP/case.mlir: error: brackets are nested {depth} deep, expected at most {MAX_NESTING}"
    )


def test_deep_nesting_without_brackets(tmp_path):
    content = '"t.x"() {a = affine_map<(d0) -> (' + "-" * 100_000 + "d0)>} : () -> ()"
    assert error_of(content.encode(), tmp_path) == (
        "TMP/case.mlir: error: upstream's MLIR crashed while it parsed the module (SIGSEGV); "
        "replay with: subquant opt TMP/again"
    )


@pytest.mark.long
@pytest.mark.parametrize("separator", ["\n", " "])
@pytest.mark.parametrize(("sigil", "start", "end"), [("#", "[", "]"), ("!", "tuple<", ">")])
def test_deep_nesting_of_aliases(tmp_path, separator, sigil, start, end):
    names = (f"{sigil}a{n + 1} = {start}{sigil}a{n}{end}{separator}" for n in range(20_000))
    text = f'{sigil}a0 = i8 {"".join(names)}"t.x"() {{a = {sigil}a20000}} : () -> ()'
    assert re.match(
        rf"TMP/case.mlir: error: aliases are nested 2000\d deep, expected at most {MAX_NESTING}$",
        error_of(text.encode(), tmp_path),
    )


def test_the_greatest_nesting_is_accepted(tmp_path):
    path = tmp_path / "case.mlir"
    path.write_text("module {" * MAX_NESTING + "}" * MAX_NESTING)
    verify(path)
    tuples = "".join(f"!a{n + 1} = tuple<!a{n}>\n" for n in range(MAX_NESTING - 2))
    path.write_text(f'!a0 = i8\n!b = i8\n!c = i8\n{tuples}"t.x"() : () -> !a{MAX_NESTING - 2}')
    verify(path)


def test_many_brackets_that_are_not_nested(tmp_path):
    """Nor those of comments and strings, and arrows, which are none."""
    path = tmp_path / "case.mlir"
    line = 'func.func private @f{0}() -> i8 // (((\n"t.x"() {{a = "<<<", m = affine_map<() -> ()>}}'
    line += " : () -> ()\n"
    path.write_text("".join(line.format(n) for n in range(2000)))
    verify(path)


def bytecode():
    source = "func.func private @f(tensor<4x!quant.uniform<i8:f32:{0:2}, {1.0, 2.0:3}>>)"
    with create_context() as context:
        data = []
        parse_text(source, context).operation.write_bytecode(Data(data))
        return b"".join(data)


class Data:
    """A file that records writes."""

    def __init__(self, pieces):
        self.write = pieces.append


def test_bytecode_is_read():
    with create_context() as context:
        module = parse_bytecode(bytecode(), context)
        VerifyQuantization().run(module.operation)
        assert "!quant.uniform<i8:f32:{0:2}, {1.000000e+00, 2.000000e+00:3}>" in str(module)


def test_broken_bytecode(tmp_path):
    whole = bytecode()
    random = np.random.default_rng(0).bytes(300)
    broken = {
        "magic": whole[:4],
        "cut early": whole[:20],
        "cut late": whole[:-40],
        "random": whole[:4] + random,
        "random after the version": whole[:40] + random,
        "zeros": whole[:4] + bytes(200),
    }
    for name, content in broken.items():
        error = error_of(content, tmp_path, "case.mlirbc")
        assert error.startswith("TMP/case.mlirbc"), (name, error)
        assert ": error: " in error.split("\n")[0], (name, error)


def test_bytecode_with_a_name_that_is_not_text(tmp_path):
    broken = bytecode().replace(b"func\0", b"f\xffnc\0")
    assert broken != bytecode()
    error = error_of(broken, tmp_path, "case.mlirbc")
    assert error == (
        "TMP/case.mlirbc: error: upstream's MLIR crashed while it parsed the module (SIGABRT); "
        "replay with: subquant opt TMP/again"
    )
