"""Importers of reductions, normalizations and orderings along axes."""
