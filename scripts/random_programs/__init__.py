"""Random integer programs, and their results by Python's integers, for ``scripts/fuzz numbers``."""
