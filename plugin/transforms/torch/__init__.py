"""Passes for modules of the ``torch`` dialect."""
