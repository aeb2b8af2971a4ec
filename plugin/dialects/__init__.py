"""Dialects: typed views of upstream's ``quant``, and ``subquant``, which is defined in Python."""
