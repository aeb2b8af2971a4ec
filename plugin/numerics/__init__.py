"""Formulas, in NumPy: element types, parameters, casts, fixed point, requantization.

Nothing here knows MLIR. A formula is written over "arrays" with Python's operators and NumPy's
functions, and the same lines run on NumPy's arrays and on the values of a program that is being
written (`subquant.emit`).
"""
