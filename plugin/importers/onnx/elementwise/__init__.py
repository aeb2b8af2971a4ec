"""Importers of elementwise operators on floats, plain integers and booleans."""
