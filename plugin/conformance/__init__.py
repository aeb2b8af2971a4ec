"""``subquant conformance``: programs with known results, run on devices; a table of outcomes."""
