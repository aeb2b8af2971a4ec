"""Input of any content is one line on standard error: no traceback, no partial file."""

from __future__ import annotations

import io
import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st

from command_line import fail, fail_in_one_line, files, succeed
from subquant.cli import main
from subquant.commands.arrays import parse_input, read_npy
from subquant.commands.console import show_progress
from subquant.conformance.options import MAX_JOBS, MAX_RANDOM_PROGRAMS, RunOptions
from subquant.core.option_fields import parse_option
from subquant.errors import InputError, SignatureError, SubquantError, UsageError, printable
from subquant.formats.irpa import Splat
from subquant.formats.irpa_writer import create_archive
from subquant.numerics.casts import dequantize, quantize
from subquant.numerics.parameters import ExpressedType, QuantizationParameters, StorageType
from subquant.runtime.arguments import storage_of_argument
from subquant.runtime.streaming import stream
from subquant.signature import Signature, ValueType

ONE_CASE = ("--filter", "suite/abs/i8-to-i8$")
ESCAPE = "\x1b[2J"

pytestmark = pytest.mark.usefixtures("in_temporary_folder")


def refusal(status: int, *arguments: str) -> str:
    """Run a command that must fail with one line, and leave no file; return the line."""
    before = files()
    line = fail_in_one_line(status, *arguments)
    assert files() == before
    return line


def problem(read: Callable[[], object], expected: type[SubquantError] = InputError) -> str:
    """Return the message of an error, empty for valid input; other exceptions are raised."""
    try:
        read()
    except expected as error:
        return str(error).removeprefix("error: ")
    return ""


def npy(header: bytes, data: bytes = b"abcd") -> bytes:
    return b"\x93NUMPY\x01\x00" + len(header).to_bytes(2, "little") + header + data


def header(descr: str, shape: str) -> bytes:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}}}".encode()


HEADER = "its header does not describe an array"
NO_NUMBERS = "it has elements of dtype {}, expected numbers"
HEADERS: dict[str, tuple[bytes, str]] = {
    "open bracket": (b"{'descr': '<f4', (", HEADER),
    "extent beyond 64 bits": (header("'<f4'", "(99999999999999999999, 0)"), HEADER),
    "keys of two types": (b"{'descr': '<f4', 1: False, 'shape': ()}", HEADER),
    "a type of nothing": (header("((),)", "()"), HEADER),
    "deep": (b"[" * 9000, HEADER),
    "records": (header("[('a', '<f4')]", "(1,)"), NO_NUMBERS.format("'[('a', '<f4')]'")),
    "text": (header("'<U1'", "(1,)"), NO_NUMBERS.format("'<U1'")),
}


@pytest.mark.parametrize("name", HEADERS)
def test_npy_headers_of_any_content(name: str) -> None:
    content, message = HEADERS[name]
    Path("x.npy").write_bytes(npy(content))
    assert problem(lambda: read_npy("x.npy")) == f"cannot read 'x.npy': {message}"


def test_an_npy_of_more_than_the_memory() -> None:
    Path("x.npy").write_bytes(npy(header("'<f8'", "(1000000, 1000000, 1000)")))
    assert "the array does not fit in memory" in problem(lambda: read_npy("x.npy"))


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=80), st.integers(0, 60))
def test_npy_headers_that_are_mutated(noise: bytes, position: int) -> None:
    valid = header("'<f4'", "(1,)") + b" " * 20 + b"\n"
    Path("x.npy").write_bytes(npy(valid[:position] + noise + valid[position + len(noise) // 2 :]))
    assert "\n" not in problem(lambda: read_npy("x.npy"))


DIGITS = "9" * 5000
SHORT = "'" + "9" * 80 + "...'"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (DIGITS, f"expected @file.npy or a literal such as 2x2xf32=1,2,3,4, got {SHORT} (5,000"),
        (f"{DIGITS}xi8=1", f"the size {SHORT} (5,000 characters) in"),
        (f"i{DIGITS}=1", "element type 'i999"),
        (f"2xi8={DIGITS}", "expected numbers of type i8 in '2xi8=999"),
        (f"2xi8=0x{DIGITS}", "expected numbers of type i8 in '2xi8=0x999"),
        ("1x" * 65 + "i8=1", "an array has at most 64 axes, got 65 in '1x1x"),
    ],
    ids=["number", "size", "element type", "decimal", "hexadecimal", "axes"],
)
def test_literals_of_thousands_of_digits(text: str, message: str) -> None:
    shown = problem(lambda: parse_input(text), UsageError)
    assert shown.startswith(message)
    assert len(shown) < 400


def test_numbers_of_thousands_of_digits_elsewhere() -> None:
    Path("x.mlir").write_text(NAMED + f"// expected-error @+{DIGITS} {{{{x}}}}\n")
    succeed("opt", "x.mlir", "--verify-diagnostics")
    for name in (DIGITS, "²"):
        line = refusal(2, "inspect", "x.mlir", "--scales", name)
        assert line.startswith("error: no quantized tensor is named '")
        assert len(line) < 200
    passes = f"legalize-integer-widths{{containers={DIGITS}}}"
    assert "must be one of 8, 32, got '999" in refusal(2, "opt", "x.mlir", "--passes", passes)

    @dataclass(frozen=True)
    class Count:
        count: int = 1

    with pytest.raises(UsageError, match="option 'count' must be an integer of 64 bits, got '999"):
        parse_option(Count, "count", DIGITS)
    assert parse_option(Count, "count", "-12") == -12


MASKED = np.ma.masked_array([1, 2], [False, True])
NO_MASKS = "is a masked array, and programs know no masks; fill it: x.filled(0)"
WRONG_VALUES: list[tuple[str, Any, str]] = [
    ("ui8", [2.7, 1.2], "must be integers of 64 bits or less (ui8), got 2.7"),
    ("ui8", [float("nan"), 1.0], "must be integers of 64 bits or less (ui8), got nan"),
    ("i8", [2.0], "must be integers of 64 bits or less (i8), got 2.0"),
    ("i8", [2**70], f"must be integers of 64 bits or less (i8), got {2**70}"),
    ("i8", ["1"], "must be integers of 64 bits or less (i8), got 1"),
    ("i1", [0.5, 0.0], "must be booleans (i1), got 0.5"),
    ("i1", [0, 1, 5], "must be booleans (i1), got 5"),
    ("ui8", MASKED, NO_MASKS),
    ("f32", MASKED.astype("f4"), NO_MASKS),
]


def stored(value: Any, element: str) -> np.ndarray:
    type_ = ValueType(element, (len(value),))
    return storage_of_argument(value, type_, "argument 0", quantized_io=False)


@pytest.mark.parametrize(("element", "value", "message"), WRONG_VALUES, ids=str)
def test_values_that_a_type_does_not_have(element: str, value: Any, message: str) -> None:
    assert problem(lambda: stored(value, element), SignatureError) == f"argument 0 {message}"


@pytest.mark.parametrize(
    ("element", "value"),
    [("i1", [0, 1]), ("i1", [True, False]), ("ui8", [3, 255]), ("i8", []), ("f32", [1, 2.5])],
    ids=str,
)
def test_lists_of_numbers_that_a_type_has(element: str, value: Any) -> None:
    array = stored(value, element)
    assert array.tolist() == [float(v) if element == "f32" else int(v) for v in value]


HALVES = (np.array(0.5), np.array(1))
PARAMETERS = QuantizationParameters(StorageType(8), ExpressedType.F32, (), (), *HALVES)
MASK = "expected an array without a mask; fill it: x.filled(0)"


@pytest.mark.parametrize(
    ("convert", "values", "message"),
    [
        (dequantize, [2.7], "expected integers, got an array of float64"),
        (dequantize, np.ones(2, ml_dtypes.bfloat16), "expected integers, got an array of bfloat16"),
        (dequantize, MASKED, MASK),
        (quantize, MASKED, MASK),
        (quantize, [1j], "expected numbers, got an array of complex128"),
        (quantize, ["a"], "expected numbers, got an array of <U1"),
        (quantize, [None], "expected numbers, got an array of object"),
    ],
)
def test_values_that_casts_do_not_take(convert: Any, values: Any, message: str) -> None:
    assert problem(lambda: convert(values, PARAMETERS), UsageError) == message


def test_values_that_casts_take() -> None:
    for reals in ([0.5, 1.0], np.array([0.5, 1.0], ml_dtypes.bfloat16), np.array([0.5, 1.0])):
        assert quantize(reals, PARAMETERS).tolist() == [2, 3]
    assert quantize([1], PARAMETERS).tolist() == [3]
    assert dequantize([2, 3], PARAMETERS).tolist() == [0.5, 1.0]
    assert quantize([], PARAMETERS).size == dequantize([], PARAMETERS).size == 0


def test_progress_shows_names_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    with show_progress(f"quantize a[/x]{ESCAPE}") as progress:
        progress(f"1 of 2: [red]b{ESCAPE}")
    assert "quantize a[/x]\\x1b[2J: 1 of 2: [red]b\\x1b[2J" in terminal.getvalue()
    assert ESCAPE not in terminal.getvalue()


def test_a_mask_is_not_lost_in_a_stream() -> None:
    class Echo:
        signature = Signature((ValueType("f32", (2,)),), ())

        def invoke(self, arguments: Any, *, quantized_io: bool = False) -> list[np.ndarray]:
            (type_,) = self.signature.inputs
            return [storage_of_argument(arguments[0], type_, "argument 0", False)]

    with pytest.raises(SignatureError, match="step 0 of 3: argument 0 is a masked array"):
        stream(Echo(), [np.ma.zeros((3, 2), np.float32)])


def test_an_archive_of_a_value_that_stands_for_more_than_the_memory() -> None:
    value = np.broadcast_to(np.float32(1), (1 << 20, 1 << 20)).view(Splat)
    with create_archive("x.irpa") as archive:
        archive.add_tensor("w", value)
    line = refusal(1, "quantize", "x.irpa", "-o", "y.irpa")
    size = "tensor 'w' of shape 1048576x1048576 takes 61,440 GiB"
    assert line.startswith(f"error: {size} to quantize, and this machine ")
    assert line.endswith(" GiB; leave it out with --select")
    succeed("import", "x.irpa", "-o", "y.irpa")
    assert Path("y.irpa").stat().st_size == Path("x.irpa").stat().st_size


@pytest.mark.parametrize(("name", "most"), [("random", MAX_RANDOM_PROGRAMS), ("jobs", MAX_JOBS)])
def test_numbers_that_are_huge(name: str, most: int) -> None:
    for number in (most + 1, 10**20):
        shown = fail(2, "conformance", "--list", f"--{name}", str(number))
        assert f"{number} is not in the range" in shown
        with pytest.raises(UsageError, match=f"to {most} .*, got {number}$"):
            RunOptions(**{name: number})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"," * 9_000_000, "the list of expected results has 9000000 values, expected at most"),
        (b"[" * 1_000, "the list of expected results is nested too deeply"),
        (b'{"version": ' + b"9" * 5000 + b"}", "the list of expected results is not valid: an int"),
        (b"\xff", "the list of expected results is not UTF-8"),
        (b"{}", "'x.json' is no list of expected results of version"),
    ],
    ids=["long", "deep", "digits", "bytes", "empty"],
)
def test_lists_of_expected_results_of_any_content(content: bytes, message: str) -> None:
    Path("x.json").write_bytes(content)
    assert message in refusal(1, "conformance", *ONE_CASE, "--expected", "x.json")


@pytest.mark.parametrize("option", ["--stablehlo", "--llvm", "--expected"])
def test_paths_that_are_too_long(option: str) -> None:
    assert "a" * 300 in refusal(1, "conformance", *ONE_CASE, option, "a" * 300)


@pytest.mark.parametrize("value", ["nan", "-1", "-inf"])
@pytest.mark.parametrize("option", ["--atol", "--rtol"])
def test_tolerances_that_are_none(option: str, value: str) -> None:
    Path("x.mlir").write_text(PROGRAM)
    message = f"error: {option} must be 0 or more, got {float(value)}"
    assert refusal(2, "exec", "x.mlir", option, value) == message


PROGRAM = """!q = !quant.uniform<i8:f32:{1:4}, {{0.5:1, 2.0:-3}}>
func.func @main(%x: tensor<2x8xf32>) -> tensor<2x8x!q> {
  %q = quant.qcast %x : tensor<2x8xf32> to tensor<2x8x!q>
  return %q : tensor<2x8x!q>
}
"""


@pytest.fixture(scope="module")
def executable() -> bytes:
    return succeed("compile", "-", "-o", "-", stdin=PROGRAM).stdout_bytes


@pytest.fixture(scope="module")
def signature(executable: bytes) -> str:
    start = executable.index(b'{"version":1')
    text, _ = json.JSONDecoder().raw_decode(executable[start:].decode(errors="replace"))
    return json.dumps(text, separators=(",", ":"))


INPUTS = b'"inputs":[{"element":"f32","abi":["tensor<2x8xf32>"],"shape":[2,8]}]'
ABI = b'"abi":["tensor<2x8xf32>"]'
NO_LIST = "signature cannot be read (expected a list of objects, got '1')"
NO_TYPES = "signature cannot be read (a value of type tensor<2x8xf32> is 0 values of the program)"
OTHER_VALUES = "its signature has other values than its program"
DAMAGES: dict[str, tuple[bytes, bytes, str]] = {
    "inputs that are a number": (INPUTS, b'"inputs":1', NO_LIST),
    "a value without types": (ABI, b'"abi":[]', NO_TYPES),
    "an extent that is no number": (b'"shape":[2,8]', b'"shape":[-1]', "'[-1]' is no shape"),
    "a key of another name": (b'"version"', b'"versiom"', "(there is no 'version')"),
    "another version": (b'"version":1', b'"version":2', "a signature of version 1, got '2'"),
    "arguments too few": (INPUTS, b'"inputs":[]', OTHER_VALUES),
    "a number that is a tensor": (ABI, b'"abi":["f32"]', OTHER_VALUES),
    "a name that is no text": (b"subquant.target", b"subquant.targe\xff", "that is not UTF-8 text"),
}


@pytest.mark.parametrize("command", ["inspect", "run"])
@pytest.mark.parametrize("name", DAMAGES)
def test_signatures_that_are_damaged(name: str, command: str, executable: bytes) -> None:
    old, new, message = DAMAGES[name]
    assert old in executable
    Path("x.vmfb").write_bytes(executable.replace(old, new.ljust(len(old))))
    line = refusal(1, command, "x.vmfb")
    assert line.startswith("error: 'x.vmfb' is damaged: ")
    assert message in line
    assert line.endswith("; compile the module again")


def _mutated(value: Any, draw: Callable[[int], int]) -> Any:
    """Put something else in place of a part of JSON, at any depth."""
    rest: list[Any] = [None, True, -1, 10**400, 0.5, "", "x\x00", [], [[]], {}, {"a": 1}]
    if draw(4) == 0 or not isinstance(value, (dict, list)) or not value:
        return rest[draw(len(rest))]
    keys = list(value) if isinstance(value, dict) else list(range(len(value)))
    key = keys[draw(len(keys))]
    copy = value.copy()
    copy[key] = _mutated(value[key], draw)
    return copy


def test_types_that_are_not_exchanged_are_part_of_a_signature() -> None:
    type_ = "tensor<2xcomplex<f32>>"
    Path("x.mlir").write_text(f"func.func @f(%x: {type_}) -> {type_} {{ return %x : {type_} }}")
    succeed("compile", "x.mlir")
    assert type_ in succeed("inspect", "x.vmfb").stdout
    message = "values of type 'complex<f32>' cannot be exchanged with NumPy"
    assert refusal(1, "run", "x.vmfb", "--input", "2xf32=1") == f"error: {message}"


@settings(max_examples=400, deadline=None)
@given(data=st.data())
def test_signatures_that_are_mutated(data: st.DataObject, signature: str) -> None:
    text = json.dumps(_mutated(json.loads(signature), lambda n: data.draw(st.integers(0, n - 1))))
    message = problem(lambda: Signature.from_json(text))
    assert "\n" not in message
    if not message:
        written = Signature.from_json(text).to_json()
        assert Signature.from_json(written).to_json() == written


@pytest.mark.parametrize("text", ["", "[" * 100000, "1", "[]", '{"version":' + "9" * 5000 + "}"])
def test_signatures_that_are_none(text: str) -> None:
    with pytest.raises(InputError, match="signature"):
        Signature.from_json(text)


NAMED = """func.func @"f\\1B[2J[/x]"(%x: tensor<2x!quant.uniform<i8:f32, 0.5>>)
    -> tensor<2x!quant.uniform<i8:f32, 0.5>> {
  return %x : tensor<2x!quant.uniform<i8:f32, 0.5>>
}
"""


def safetensors(names: list[str]) -> bytes:
    """Two rows of 32 floats for each name."""
    header = {
        name: {"dtype": "F32", "shape": [2, 32], "data_offsets": [256 * n, 256 * n + 256]}
        for n, name in enumerate(names)
    }
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + np.ones(64 * len(names), "<f4").tobytes()


def printable_output(*command: str) -> str:
    """The output of a command, which raises nothing and prints printable characters alone."""
    result = CliRunner().invoke(main, command, env={"COLUMNS": "200"})
    assert isinstance(result.exception, (type(None), SystemExit))
    assert result.output.replace("\n", "").isprintable()
    return result.output


@pytest.mark.parametrize(
    "name", ["a[/x]", "[red]a", "a\x1b[2J", "\x1b]0;title\x07", "a\x9b2J", "\u202ea"]
)
def test_names_of_tensors_are_shown_as_they_are_and_not_obeyed(name: str) -> None:
    Path("x.safetensors").write_bytes(safetensors([name]))
    for command in (
        ["quantize", "x.safetensors", "-o", "x.irpa"],
        ["quantize", "x.safetensors", "--granularity", "axis", "--axis", "9", "-o", "y.irpa"],
        ["import", "x.safetensors", "-o", "z.irpa"],
        *(["inspect", file] for file in ("x.safetensors", "x.irpa", "z.irpa")),
    ):
        assert printable(name) in printable_output(*command) or command[0] == "import"


def test_names_of_functions_are_shown_as_they_are_and_not_obeyed() -> None:
    Path("x.mlir").write_text(NAMED)
    for command in (
        ["inspect", "x.mlir"],
        ["inspect", "x.mlir", "--scales", "0"],
        ["compile", "x.mlir", "-o", "x.vmfb"],
        ["inspect", "x.vmfb"],
        ["run", "x.vmfb", "--input", "2xf32=1"],
        ["run", "x.vmfb", "--function", "g"],
        ["opt", "x.mlir", "--passes", "legalize-qdq-to-quantized-op{remarks=true}"],
    ):
        assert "f\\x1b[2J[/x]" in printable_output(*command) or command[0] in ("compile", "opt")


@pytest.mark.parametrize("command", ["inspect", "compile", "exec"])
@pytest.mark.parametrize(
    "text",
    [
        'func.func @"\\FF"(%x: tensor<2x!quant.uniform<i8:f32, 0.5>>) { return }',
        'func.func @f() { func.call @"\\FF"() : () -> () return }',
    ],
    ids=["function", "callee"],
)
def test_names_that_are_no_text(text: str, command: str) -> None:
    Path("x.mlir").write_text(text)
    message = "the module has a name that is not UTF-8 text"
    assert refusal(1, command, "x.mlir") == f"x.mlir: error: {message}"


@pytest.mark.parametrize("raised", [SignatureError, InputError, UsageError])
def test_errors_show_what_a_terminal_would_obey(raised: type[InputError]) -> None:
    assert str(raised(f"a{ESCAPE}\x07\nb\tc")) == "error: a\\x1b[2J\\x07\nb\tc"
