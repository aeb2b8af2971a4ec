"""Batch compilation of many models; the failure of one does not affect the others.

`models` finds them and names their outputs, `tasks` compiles one (here, or on a worker of a
cluster: `subquant.batch.engines`), `run` submits them and writes the outputs, and `manifest`
records them for ``--resume``. `compiling` is the function of the API, `report` writes reports,
`merging` merges them.
"""
