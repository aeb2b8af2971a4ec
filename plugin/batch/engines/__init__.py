"""Engines for many tasks: threads of this machine, or the workers of a Dask cluster.

>>> for done in run_tasks(tasks, jobs=2):                         # doctest: +SKIP
...     print(done.task.name, done.error or done.value)
"""

from __future__ import annotations

from ...isolation.limits import available_cores
from .local_threads import run_tasks
from .tasks import HOST_CPU, Done, Task, needs_of

__all__ = ["HOST_CPU", "Done", "Task", "available_cores", "needs_of", "run_tasks"]
