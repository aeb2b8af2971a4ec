"""Tables and unions of the TensorFlow Lite reader, beside LiteRT's own schema."""

from __future__ import annotations

import inspect
import re

from subquant.importers.flatbuffer import Table
from subquant.importers.tflite.reading import operator_options
from subquant.importers.tflite.reading import schema as own_schema
from tflite_builder import schema


def _generated() -> dict[str, list[str | None]]:
    """The fields of each table of LiteRT's own schema by their slots; None for deprecated ones."""
    source = inspect.getsource(schema())
    tables: dict[str, list[str | None]] = {}
    for name, count in re.findall(r"^def (\w+?)Start\(builder\):\n\s+\S+\((\d+)\)", source, re.M):
        tables[name] = [None] * int(count)
    slots = re.findall(r"^def (\w+)\(builder, \w+\):\n\s+builder\.\w+Slot\((\d+)", source, re.M)
    for function, slot in slots:
        name = max((each for each in tables if function.startswith(f"{each}Add")), key=len)
        tables[name][int(slot)] = function.removeprefix(f"{name}Add").lower()
    return tables


def _own() -> dict[str, type[Table]]:
    tables: dict[str, type[Table]] = {}
    for each in vars(own_schema).values():
        if isinstance(each, type) and issubclass(each, Table) and each is not Table:
            tables[each.__name__.removesuffix("Table")] = each
    for each in (*operator_options.OPTIONS.values(), *operator_options.OPTIONS_2.values()):
        tables[each.__name__] = each
    names = {"Quantization": "QuantizationParameters", "Sparsity": "SparsityParameters",
             "Dimension": "DimensionMetadata", "Subgraph": "SubGraph",
             "Signature": "SignatureDef"}  # fmt: skip
    return {names.get(name, name): each for name, each in tables.items()}


def test_tables_have_the_fields_of_the_schema() -> None:
    generated, own = _generated(), _own()
    for name, table in own.items():
        fields = [field for field in table.__dataclass_fields__ if field != "unknown_slots"]
        expected = generated[name]
        assert len(fields) == len(expected), name
        for field, slot in zip(fields, expected, strict=True):
            assert slot is None or field.replace("_", "") == slot, name
    missing = set(generated) - set(own)
    assert missing == {"CustomQuantization", "MultiAxisQuantization", "VariantSubType",
                       "ExternalBuffer", "ExternalBufferGroup"}  # fmt: skip


def test_unions_have_the_numbers_of_the_schema() -> None:
    for union, own in (("BuiltinOptions", operator_options.OPTIONS),
                       ("BuiltinOptions2", operator_options.OPTIONS_2)):  # fmt: skip
        numbers = vars(getattr(schema(), union))
        expected = {n: name for name, n in numbers.items() if isinstance(n, int) and n}
        assert {number: each.__name__ for number, each in own.items()} == expected
