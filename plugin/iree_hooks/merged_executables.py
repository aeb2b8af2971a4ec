"""Executables of one target, which are merged before IREE lowers them.

IREE 3.13 builds the pattern sets of its passes for each executable again, which takes most of the
time of a small dispatch, and links all executables of a CPU in the end. The functions have the same
code (`docs/performance/compile-time.md` has the times). Before::

    hal.executable @a { hal.executable.variant @cpu { hal.executable.export @f; module { @f } } }
    hal.executable @b { hal.executable.variant @cpu { hal.executable.export @g; module { @g } } }
    stream.cmd.dispatch @b::@cpu::@g

After::

    hal.executable @a {
      hal.executable.variant @cpu {
        hal.executable.export @f ordinal(0); hal.executable.export @g ordinal(1); module { @f; @g }
      }
    }
    stream.cmd.dispatch @a::@cpu::@g
"""

from __future__ import annotations

from typing import Any, NamedTuple

from .hal_operations import child_operations, descendants

_EXECUTABLE, _VARIANT, _EXPORT = "hal.executable", "hal.executable.variant", "hal.executable.export"
_CODE = ("util.func", "util.initializer")
"""Operations of a module that call dispatches."""
_ENTRY_POINTS = "entry_points"


class _Executable(NamedTuple):
    """An executable with one variant, whose module has functions only."""

    executable: Any
    exports: list[Any]
    module: Any
    target: str

    @staticmethod
    def of(executable: Any) -> _Executable | None:
        """Return the parts of an executable; None if it has others."""
        variants = [op for op in child_operations(executable) if op.name == _VARIANT]
        if len(variants) != 1:
            return None
        children = [op for op in child_operations(variants[0]) if not op.name.endswith("_end")]
        exports = [op for op in children if op.name == _EXPORT]
        modules = [op for op in children if op.name == "builtin.module"]
        if len(modules) != 1 or len(children) != len(exports) + 1:
            return None
        if any(op.name != "func.func" for op in child_operations(modules[0])):
            return None
        return _Executable(executable, exports, modules[0], str(variants[0].attributes))

    @property
    def symbol(self) -> str:
        return _symbol(self.executable)

    @property
    def functions(self) -> list[str]:
        return [_symbol(op) for op in child_operations(self.module)]


def merge_executables(ir: Any, module: Any) -> None:
    """Merge the executables of each target; the module is in the phase ``executable-sources``."""
    executables = [op for op in child_operations(module) if op.name == _EXECUTABLE]
    first: dict[str, _Executable] = {}
    symbols: set[str] = set()
    renamed: dict[str, str] = {}
    for executable in filter(None, map(_Executable.of, executables)):
        is_unique = symbols.isdisjoint(executable.functions)
        symbols.update(executable.functions)
        target = first.setdefault(executable.target, executable)
        if target is not executable and is_unique:
            renamed[executable.symbol] = target.symbol
            _move(ir, executable, target)
    if not renamed:
        return
    for code in [op for op in child_operations(module) if op.name in _CODE]:
        for op in descendants(code):
            if _ENTRY_POINTS in op.attributes:
                _rename(ir, op, renamed)


def _move(ir: Any, source: _Executable, target: _Executable) -> None:
    """Move the exports and the functions of an executable into another one, and erase it."""
    position = ir.InsertionPoint(target.module)
    for export in source.exports:
        with export.context:
            ordinal = ir.IntegerAttr.get(ir.IndexType.get(), len(target.exports))
        export.attributes["ordinal"] = ordinal
        export.detach_from_parent()
        position.insert(export)
        target.exports.append(export)
    for function in child_operations(source.module):
        function.detach_from_parent()
        target.module.regions[0].blocks[0].append(function)
    source.executable.erase()


def _rename(ir: Any, dispatch: Any, renamed: dict[str, str]) -> None:
    """Let the entry points of a dispatch name the merged executables."""
    with dispatch.context:
        points = []
        for entry_point in dispatch.attributes[_ENTRY_POINTS]:
            executable, *path = ir.SymbolRefAttr(entry_point).value
            points.append(ir.SymbolRefAttr.get([renamed.get(executable, executable), *path]))
        dispatch.attributes[_ENTRY_POINTS] = ir.ArrayAttr.get(points)


def _symbol(op: Any) -> str:
    return str(op.attributes["sym_name"].value)
