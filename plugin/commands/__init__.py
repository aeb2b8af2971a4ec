"""The commands of ``subquant``, one file each, and what they share.

`subquant.cli` imports a command's file when the command is called. The file imports what its
options need; what does the work (the bindings, IREE) is imported when it runs, so that ``--help``
and completion in a shell are quick.
"""
