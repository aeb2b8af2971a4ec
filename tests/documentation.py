"""The code blocks of Markdown pages: finding them, and running those of a page as one session.

The blocks of a page share a folder that holds ``examples/``, a shell, and the names of one Python
module, and run from top to bottom:

* ``console``: each line that begins with ``$ `` is a command; a here-document, a line after a
  backslash, and lines that begin with ``> `` belong to it. What follows is its output, to the
  letter, with standard error in place. ``...`` stands for any text. A command may fail only if an
  error is what it shows.
* ``sh``: commands whose output is not shown. Each must succeed.
* ``python``: statements. A line that prints has a comment with what it prints, and so may the last
  expression statement of a line; both are compared.
* ``mlir``: a module, which must be valid.
* ``text``: no code.

A comment before a block says what the page does not show::

    <!-- not run: needs a download of 253 MB -->
    <!-- needs: vulkan, espeak-ng, pymicro_wakeword -->

The first is a block that no test runs, and why. The second is run where a Vulkan device, a program
or a Python package of these names is there.

    python tests/documentation.py PAGE...

runs the pages and writes what their commands print now; read the difference before you keep it.
"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import select
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markdown_it import MarkdownIt

__all__ = ["LANGUAGES", "Block", "Session", "blocks_of", "commands_of", "is_as_shown", "rewrite"]

LANGUAGES = ("console", "sh", "python", "mlir", "text")

_LONGEST = 300.0  # seconds that one command may take
_MARKER = re.compile(r"<!--\s*(not run|needs):\s*(.*?)\s*-->", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<-?\s*'?(\w+)'?")
# An executable has code for the CPU of the host.
_SIZE_OF_EXECUTABLE = re.compile(r"(wrote \S+\.vmfb) \([\d,]+ bytes\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        page, line: where its first line is.
        language: the first word after the fence.
        text: the lines between the fences.
        not_run: why no test runs it, or empty.
        needs: what has to be there to run it.
    """

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    needs: tuple[str, ...] = ()

    @property
    def place(self) -> str:
        """Where the block is, for messages."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, without the directives of the site's generator."""
    blocks = []
    marker: dict[str, str] = {}
    for token in MarkdownIt().parse(page.read_text("utf-8")):
        if token.type == "html_block":
            marker = dict(_MARKER.findall(token.content))
            continue
        if token.type in ("fence", "code_block") and not token.info.startswith("{"):
            language, _, rest = token.info.strip().partition(" ")
            assert not rest, f"{page}: a fence has one word, got '{token.info}'"
            blocks.append(
                Block(
                    page,
                    (token.map or [0])[0] + 2,
                    language,
                    token.content,
                    marker.get("not run", ""),
                    tuple(name.strip() for name in marker.get("needs", "").split(",") if name),
                )
            )
        marker = {}
    return blocks


def commands_of(text: str) -> list[tuple[str, str]]:
    """Split what a console shows into commands and their outputs."""
    commands: list[tuple[list[str], list[str]]] = []
    end: str | None = None  # of a here-document
    goes_on = False
    for line in text.splitlines():
        if end is None and not goes_on and line.startswith("$ "):
            commands.append(([line[2:]], []))
        elif not commands:
            raise AssertionError(f"expected a command after '$ ', got '{line}'")
        elif end is not None or goes_on:
            commands[-1][0].append(line)
        elif line.startswith("> ") and not commands[-1][1]:
            commands[-1][0].append(line[2:])
        else:
            commands[-1][1].append(line)
            continue
        if end is not None:
            end = None if line == end else end
        else:
            found = _HERE_DOCUMENT.search(line)
            end = found.group(1) if found else None
        goes_on = end is None and line.endswith("\\")
    return [("\n".join(command), "\n".join(output)) for command, output in commands]


def is_as_shown(found: str, shown: str) -> bool:
    """Whether an output is the one on the page, but for spaces at the ends of lines."""
    found, shown = (
        "\n".join(line.rstrip() for line in _SIZE_OF_EXECUTABLE.sub(r"\1", text).splitlines())
        for text in (found, shown)
    )
    pattern = ".*".join(re.escape(part) for part in re.split(r"\s*\.\.\.\s*", shown.rstrip()))
    return re.fullmatch(pattern, found.rstrip(), re.DOTALL) is not None


class Session(contextlib.AbstractContextManager["Session"]):
    """A shell and a Python namespace in one folder.

    Args:
        folder: where both work; Python's working directory has to be it.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__page__"}
        environment = os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __exit__(self, *exception: object) -> None:
        """End the shell."""
        self._shell.kill()
        self._shell.communicate()

    def run(self, block: Block) -> None:
        """Run a block; an assertion fails where the page does not say what happens."""
        try:
            getattr(self, f"_run_{block.language}")(block)
        except AssertionError as error:
            raise AssertionError(f"{block.place}: {error}") from None

    def command(self, text: str) -> tuple[int, str]:
        """Run a command of the shell; return its status and output."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        script = f"{{\n{text}\n}} </dev/null\nprintf '\\0%d\\0' $?\n"
        self._shell.stdin.write(script.encode())
        self._shell.stdin.flush()
        output = b""
        deadline = time.monotonic() + _LONGEST
        while not output.endswith(b"\0"):
            left = max(deadline - time.monotonic(), 0.0)
            assert select.select([self._shell.stdout], [], [], left)[0], f"no end of: {text}"
            some = os.read(self._shell.stdout.fileno(), 1 << 16)
            assert some, f"the shell ended: {text}"
            output += some
        said, status, _ = output.decode().rsplit("\0", 2)
        return int(status), said

    def rewritten(self, block: Block) -> str:
        """Run a block of commands; return it with what they print now where that is not shown."""
        lines: list[str] = []
        shown_lines = block.text.splitlines()
        for command, shown in commands_of(block.text):
            _, found = self.command(command)
            end = len(command.splitlines())
            lines += shown_lines[:end]
            del shown_lines[: end + len(shown.splitlines())]
            kept = shown if is_as_shown(found, shown) else found
            lines += [line.rstrip() for line in kept.splitlines()]
        return "\n".join(lines) + "\n"

    def _run_console(self, block: Block) -> None:
        for command, shown in commands_of(block.text):
            status, found = self.command(command)
            assert is_as_shown(found, shown), f"$ {command}\ngave\n{found}instead of\n{shown}"
            assert not status or "error: " in shown, f"$ {command}\ngave status {status}"

    def _run_sh(self, block: Block) -> None:
        status, found = self.command(f"(\nset -e\n{block.text}\n)")
        assert not status, f"status {status}:\n{found}"

    def _run_python(self, block: Block) -> None:
        lines = block.text.splitlines()
        said = io.StringIO()
        with contextlib.redirect_stdout(said):
            for statement in ast.parse(block.text).body:
                shown = _comment_after(lines, statement)
                if not isinstance(statement, ast.Expr):
                    code = compile(ast.Module([statement], []), block.place, "exec")
                    exec(code, self.names)
                    continue
                code = compile(ast.Expression(statement.value), block.place, "eval")
                value = eval(code, self.names)
                found = said.getvalue() if value is None else repr(value)
                assert value is None or shown, f"{ast.unparse(statement)} shows nothing"
                assert is_as_shown(found, shown), f"{ast.unparse(statement)}\ngave\n{found}"
                said.seek(0)
                said.truncate()
        assert not said.getvalue(), f"printed on the way: {said.getvalue()}"

    def _run_mlir(self, block: Block) -> None:
        from subquant.core._mlir import ir
        from subquant.dialects import create_context

        with create_context():
            try:
                ir.Module.parse(block.text)
            except ir.MLIRError as error:
                raise AssertionError(str(error)) from None

    def _run_text(self, block: Block) -> None:
        pass


def _comment_after(lines: list[str], statement: ast.stmt) -> str:
    """The comment behind the end of a statement."""
    assert statement.end_lineno is not None
    assert statement.end_col_offset is not None
    rest = lines[statement.end_lineno - 1].encode()[statement.end_col_offset :].decode()
    return rest.strip().removeprefix("#").strip()


def rewrite(page: Path, folder: Path) -> None:
    """Run a page in a folder, and write what its commands print now."""
    text = page.read_text("utf-8")
    with Session(folder) as session:
        for block in blocks_of(page):
            if block.language == "console" and not block.not_run:
                text = text.replace(block.text, session.rewritten(block))
            elif not block.not_run:
                session.run(block)
    page.write_text(text, "utf-8")


def main() -> None:
    """Rewrite the pages of the command line."""
    root = Path(__file__).parent.parent
    os.environ.setdefault("SUBQUANT_CACHE", str(root / ".cache" / "iree"))
    for page in [Path(name).resolve() for name in sys.argv[1:]]:
        with tempfile.TemporaryDirectory() as folder:
            shutil.copytree(root / "examples", Path(folder) / "examples")
            os.chdir(folder)
            rewrite(page, Path(folder))
            os.chdir(root)


if __name__ == "__main__":
    main()
