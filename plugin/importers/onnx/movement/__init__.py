"""Importers of operators that move elements or compute shapes."""
