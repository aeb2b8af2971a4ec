"""A team of threads that share the workgroups of a program's dispatches, on a CPU.

IREE's own executor wakes a thread to begin a call, that wakes others, and the last wakes the
caller: 35 to 50 us each where a core has halted (IREE 3.13, two cores of a Zen 4). A team is the
caller and threads beside it that wait for work by asking for it, as those of OpenMP do, and sleep
when there was none for a millisecond. The caller never waits for one to come: it takes workgroups
until there is none left, and then for those that others have taken.

* `subquant.iree_hooks.session` compiles a program so that a team can run it: IREE's compiler in a
  process of its own, in which each function of a dispatch gets a function around it. What no team
  runs is compiled there, too: `subquant.iree_hooks.sync_entries` adds functions to programs for a
  CPU, and `subquant.iree_hooks.async_entries` to those for Vulkan.
* `subquant.iree_hooks.worker_pool` has these functions, and says how they and the threads share
  work.
* `subquant.runtime.worker_threads` has the threads.

They meet in the **mailbox**, memory of the process with the words that `SLOTS` of that file names.
A program that was given none runs as any other of IREE's.
"""
