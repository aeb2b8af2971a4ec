"""IREE's compiler as `subquant.iree_hooks.session` runs it, without verification between passes.

IREE verifies a module after each pass, which takes a fifth of the time of a large compilation and
does not change the code. The short suite does without it, but for processes that tests start. A
module that is refused here, or crashes IREE, is compiled by the session itself, whose messages and
status count.
"""

from __future__ import annotations

import ctypes
import os
import sys
from pathlib import Path
from typing import Any


def main(packages: str, *arguments: str) -> None:
    sys.path[:1] = [str(Path(__file__).parent.parent / "plugin"), packages]
    from iree_hooks import session

    child = os.fork()
    if child:
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        if status:
            program = [sys.executable, "-S", session.__file__, packages, *arguments]
            os.execv(sys.executable, program)
        os._exit(0)

    session._replace_by_empty_modules("numpy", "iree.compiler.tools")
    from iree.compiler import api
    from iree.compiler.api import ctypes_dl

    set_verification = ctypes_dl._dylib.ireeCompilerInvocationSetVerifyIR
    set_verification.argtypes, set_verification.restype = [ctypes.c_void_p, ctypes.c_bool], None
    new_invocation = api.Session.invocation

    def invocation(self: Any) -> Any:
        result = new_invocation(self)
        set_verification(result._inv_p, False)
        return result

    api.Session.invocation = invocation
    messages, stderr = os.memfd_create("messages"), os.dup(2)
    os.dup2(messages, 2)
    status = session._main(*arguments)
    os.dup2(stderr, 2)
    if not status:
        os.write(2, os.pread(messages, 1 << 20, 0))
    os._exit(status)


if __name__ == "__main__":
    main(*sys.argv[1:])
