"""Many pieces of work, done on this machine or on a cluster, by engines that others keep.

>>> for done in run_tasks(tasks, jobs=2):                         # doctest: +SKIP
...     print(done.task.name, done.error or done.value)

A `Task` names a function of subquant, as `subquant.isolation.client.call` does, and has all that
it needs as JSON values and bytes, so that any machine can do it. `run_tasks` gives a `Done` for
each, in the order in which they end: from threads of this process (`local`), or of the workers of a
Dask cluster (`cluster`). Both run the same function, `tasks.perform`.
"""

from __future__ import annotations

from ...isolation.limits import available_cores
from .dispatch import run_tasks
from .tasks import HOST_CPU, Done, Task, needs_of

__all__ = ["HOST_CPU", "Done", "Task", "available_cores", "needs_of", "run_tasks"]
