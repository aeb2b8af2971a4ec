"""Models of other tools, read as MLIR."""
