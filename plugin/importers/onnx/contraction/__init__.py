"""Importers of matrix products, convolutions and Einsum."""
