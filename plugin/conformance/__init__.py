"""``subquant conformance``: programs with known results, run on devices, and a table of outcomes."""
