"""Printing of the module after passes, by options with the names that ``mlir-opt`` has for them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from ..core.option_fields import option
from ..errors import UsageError, expected_name, quoted

if TYPE_CHECKING:
    from ..core._mlir import Operation


@dataclass(frozen=True)
class IRPrinting:
    """Options of printing; the dumps go to standard error.

    Args:
        mlir_print_ir_after_all: print the module after each pass.
        mlir_print_ir_after: print it after the passes with these names.
        mlir_print_ir_after_change: print it only if a pass changed it. Without the two options
            above, this applies to all passes.
        mlir_elide_elementsattrs_if_larger: the number of elements, or of characters of a resource,
            above which a constant is printed as ``__elided__``; None for no limit.

    Raises:
        UsageError: the limit is negative.
    """

    mlir_print_ir_after_all: bool = option(
        False, "Print the module after each pass, to standard error."
    )
    mlir_print_ir_after: tuple[str, ...] = option(
        (), "Print the module after this pass, to standard error; may be repeated.", "PASS"
    )
    mlir_print_ir_after_change: bool = option(
        False, "Print the module after passes that change it only."
    )
    mlir_elide_elementsattrs_if_larger: int | None = option(
        None, "Print constants with more elements than N as __elided__.", "N"
    )

    def __post_init__(self) -> None:
        limit = self.mlir_elide_elementsattrs_if_larger
        if limit is not None and limit < 0:
            raise UsageError(f"--mlir-elide-elementsattrs-if-larger must be 0 or more, got {limit}")

    @property
    def selects_passes(self) -> bool:
        """True if the module is printed after a pass."""
        return bool(
            self.mlir_print_ir_after_all
            or self.mlir_print_ir_after
            or self.mlir_print_ir_after_change
        )

    def text_of(self, module: Operation) -> str:
        """Return a module as text."""
        limit = self.mlir_elide_elementsattrs_if_larger
        return str(module.get_asm(large_elements_limit=limit, large_resource_limit=limit))


NO_PRINTING = IRPrinting()


@dataclass
class IRPrinter:
    """Printer of the module after passes.

    Args:
        options: the passes, and the form of the text.
        write: called with the text of each dump.
    """

    options: IRPrinting
    write: Callable[[str], object]
    _last_text: str | None = None

    def check_passes(self, passes: Sequence[str]) -> None:
        """Raise UsageError for a pass of ``--mlir-print-ir-after`` that is not in the pipeline."""
        for name in self._names():
            if name not in passes:
                raise UsageError(
                    f"--mlir-print-ir-after: the pipeline has no pass {quoted(name)}; "
                    f"{expected_name(name, dict.fromkeys(passes))}"
                )

    def before_pass(self, module: Operation) -> None:
        """Keep the text of the module, to know whether a pass changes it."""
        if self.options.mlir_print_ir_after_change and self._last_text is None:
            self._last_text = self.options.text_of(module)

    def after_pass(self, name: str, module: Operation) -> None:
        """Print the module if the options select the pass `name`."""
        options = self.options
        if not options.selects_passes:
            return
        names, only_changes = self._names(), options.mlir_print_ir_after_change
        is_selected = options.mlir_print_ir_after_all or not names or name in names
        if not (is_selected or only_changes):
            return
        text = options.text_of(module)
        is_changed = text != self._last_text
        if only_changes:
            self._last_text = text
        if is_selected and (is_changed or not only_changes):
            self.write(f"// -----// IR Dump After {name} //----- //\n{text}\n\n")

    def _names(self) -> list[str]:
        """Return the names of ``--mlir-print-ir-after``, which also takes several with commas."""
        return [
            name.strip() for item in self.options.mlir_print_ir_after for name in item.split(",")
        ]
