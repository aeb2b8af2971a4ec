"""Code blocks of Markdown pages: parsing, and execution of a page's blocks as one session.

The blocks of a page share a folder that holds ``examples/``, a shell, and the names of one Python
module, and run from top to bottom:

* ``console``: a line that begins with ``$ `` is a command, continued by a here-document, by a line
  after a backslash, and by lines that begin with ``> ``. The lines below are its exact output,
  standard error included. ``...`` matches any text. A command may fail only if its output shows an
  error.
* ``sh``: commands without output, each of which must succeed.
* ``python``: statements. A comment after a statement that prints, or after an expression, has the
  output or the value, and is compared.
* ``mlir``: a module, which must be valid.
* ``text``: no code.

A comment before a block controls its execution::

    <!-- not run: needs a download of 253 MB -->
    <!-- needs: vulkan, espeak-ng, pymicro_wakeword -->

The first block is not run, for the reason. The second runs if this machine has a Vulkan device, and
programs or Python packages with the listed names.

    python tests/documentation.py PAGE...

runs the pages and writes the current output of their commands; review the difference.
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

LANGUAGES = ("console", "sh", "python", "mlir", "text")

_TIMEOUT_SECONDS = 300.0  # of one command
_MARKER = re.compile(r"<!--\s*(not run|needs):\s*(.*?)\s*-->", re.DOTALL)
_HERE_DOCUMENT = re.compile(r"<<-?\s*'?(\w+)'?")
# The size of an executable depends on the host's CPU.
_SIZE_OF_EXECUTABLE = re.compile(r"(wrote \S+\.vmfb) \([\d,]+ bytes\)")


@dataclass(frozen=True)
class Block:
    """A fenced block of code.

    Attributes:
        page, line: location of its first line.
        language: the first word after the fence.
        text: the lines between the fences.
        not_run: reason not to run it, or "".
        needs: devices, programs and packages that it needs.
    """

    page: Path
    line: int
    language: str
    text: str
    not_run: str = ""
    needs: tuple[str, ...] = ()

    @property
    def location(self) -> str:
        """Page and line, for messages."""
        return f"{self.page}:{self.line}"


def blocks_of(page: Path) -> list[Block]:
    """Return the code blocks of a page, without Sphinx directives."""
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
    """Split a console block into commands and their outputs."""
    commands: list[tuple[list[str], list[str]]] = []
    end: str | None = None  # of a here-document
    is_continued = False
    for line in text.splitlines():
        if end is None and not is_continued and line.startswith("$ "):
            commands.append(([line[2:]], []))
        elif not commands:
            raise AssertionError(f"expected a command after '$ ', got '{line}'")
        elif end is not None or is_continued:
            commands[-1][0].append(line)
        elif line.startswith("> ") and not commands[-1][1]:
            commands[-1][0].append(line[2:])
        else:
            commands[-1][1].append(line)
            continue
        if end is not None:
            end = None if line == end else end
        else:
            here_document = _HERE_DOCUMENT.search(line)
            end = here_document.group(1) if here_document else None
        is_continued = end is None and line.endswith("\\")
    return [("\n".join(command), "\n".join(output)) for command, output in commands]


def is_as_shown(output: str, shown: str) -> bool:
    """Return whether an output is the page's, except for spaces at line ends."""
    output, shown = (
        "\n".join(line.rstrip() for line in _SIZE_OF_EXECUTABLE.sub(r"\1", text).splitlines())
        for text in (output, shown)
    )
    pattern = ".*".join(re.escape(part) for part in re.split(r"\s*\.\.\.\s*", shown.rstrip()))
    return re.fullmatch(pattern, output.rstrip(), re.DOTALL) is not None


class Session(contextlib.AbstractContextManager["Session"]):
    """A shell and a Python namespace in one folder, which must be Python's current directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.names: dict[str, Any] = {"__name__": "__page__"}
        self._shell = subprocess.Popen(
            ["bash", "--noprofile", "--norc"],
            cwd=folder,
            env=os.environ | {"COLUMNS": "80", "NO_COLOR": "1", "LC_ALL": "C.UTF-8"},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )

    def __exit__(self, *exception: object) -> None:
        """End the shell."""
        self._shell.kill()
        self._shell.communicate()

    def run(self, block: Block) -> None:
        """Run a block; an AssertionError shows the difference to the page."""
        try:
            getattr(self, f"_run_{block.language}")(block)
        except AssertionError as error:
            raise AssertionError(f"{block.location}: {error}") from None

    def command(self, text: str) -> tuple[int, str]:
        """Run a shell command; return its status and output."""
        assert self._shell.stdin is not None
        assert self._shell.stdout is not None
        script = f"{{\n{text}\n}} </dev/null\nprintf '\\0%d\\0' $?\n"
        self._shell.stdin.write(script.encode())
        self._shell.stdin.flush()
        output = b""
        deadline = time.monotonic() + _TIMEOUT_SECONDS
        while not output.endswith(b"\0"):
            left = max(deadline - time.monotonic(), 0.0)
            assert select.select([self._shell.stdout], [], [], left)[0], f"no end of: {text}"
            chunk = os.read(self._shell.stdout.fileno(), 1 << 16)
            assert chunk, f"the shell ended: {text}"
            output += chunk
        printed, status, _ = output.decode().rsplit("\0", 2)
        return int(status), printed

    def rewritten(self, block: Block) -> str:
        """Run a console block; return it with the current output of its commands."""
        result: list[str] = []
        shown_lines = block.text.splitlines()
        for command, shown in commands_of(block.text):
            _, output = self.command(command)
            end = len(command.splitlines())
            result += shown_lines[:end]
            del shown_lines[: end + len(shown.splitlines())]
            current = shown if is_as_shown(output, shown) else output
            result += [line.rstrip() for line in current.splitlines()]
        return "\n".join(result) + "\n"

    def _run_console(self, block: Block) -> None:
        for command, shown in commands_of(block.text):
            status, output = self.command(command)
            assert is_as_shown(output, shown), f"$ {command}\nprinted\n{output}instead of\n{shown}"
            assert not status or "error: " in shown, f"$ {command}\nended with status {status}"

    def _run_sh(self, block: Block) -> None:
        status, output = self.command(f"(\nset -e\n{block.text}\n)")
        assert not status, f"status {status}:\n{output}"

    def _run_python(self, block: Block) -> None:
        source = block.text.splitlines()
        printed = io.StringIO()
        with contextlib.redirect_stdout(printed):
            for statement in ast.parse(block.text).body:
                # The comment after a statement.
                assert statement.end_lineno is not None
                assert statement.end_col_offset is not None
                line = source[statement.end_lineno - 1].encode()
                rest = line[statement.end_col_offset :].decode()
                shown = rest.strip().removeprefix("#").strip()
                if not isinstance(statement, ast.Expr):
                    code = compile(ast.Module([statement], []), block.location, "exec")
                    exec(code, self.names)
                    continue
                code = compile(ast.Expression(statement.value), block.location, "eval")
                value = eval(code, self.names)
                output = printed.getvalue() if value is None else repr(value)
                assert value is None or shown, f"{ast.unparse(statement)} shows nothing"
                assert is_as_shown(output, shown), f"{ast.unparse(statement)}\nprinted\n{output}"
                printed.seek(0)
                printed.truncate()
        assert not printed.getvalue(), f"unexpected output: {printed.getvalue()}"

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


def rewrite(page: Path, folder: Path) -> None:
    """Run a page in a folder, and write the current output of its commands."""
    text = page.read_text("utf-8")
    with Session(folder) as session:
        for block in blocks_of(page):
            if block.language == "console" and not block.not_run:
                text = text.replace(block.text, session.rewritten(block))
            elif not block.not_run:
                session.run(block)
    page.write_text(text, "utf-8")


def main() -> None:
    """Rewrite the pages named on the command line."""
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
