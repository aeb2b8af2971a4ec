"""From a module to an executable: read, lower by passes, and hand over to IREE's compiler.

`compilation` does it all, with `iree` and `cache`; `options` and `targets` say what is compiled
for. MLIR works in a child process, which `worker` asks: there `served` does what it is asked for,
with `reading` and `text_checks`, which make modules of text and bytes, `pipeline` and `lowering`,
which run passes on them, and `opt` and `inspection`, the engines of the commands of these names.
"""
