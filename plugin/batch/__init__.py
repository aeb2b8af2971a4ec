"""Many models compiled in one run: each whole or not at all, whatever becomes of the others.

`models` finds them and names their outputs, `tasks` compiles one wherever it is done (on this
machine, or by a worker of a cluster: `subquant.batch.engines`), `run` hands them out and writes
what comes back, and `manifest` is what ``--resume`` knows them by. `compiling` does it all in one
call. `report` says what became of all, and `merging` puts several such reports together.
"""
