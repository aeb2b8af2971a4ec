"""The commands of ``subquant``: one module for each, and their shared options and output.

`subquant.cli` imports a command's module when the command is called. The module imports only the
declarations of its options; the bindings and IREE are imported when the command runs, so that
``--help`` and shell completion are quick.
"""
