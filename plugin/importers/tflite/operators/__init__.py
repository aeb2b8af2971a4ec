"""Operator importers, a module for each family of operators."""
