"""Importers of If, Loop and Scan."""
