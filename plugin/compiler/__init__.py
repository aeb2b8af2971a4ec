"""From a module to an executable: read, lower by passes, and hand over to IREE's compiler.

`reading` and `crash_guards` make modules of text and bytes, `pipeline` runs passes on them,
`options` and `targets` say what is compiled for, and `compilation` does it all with `iree` and
`cache`. `opt` and `inspection` are the engines of the commands of these names.
"""
