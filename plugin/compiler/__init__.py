"""Compiler: from a module to an executable; see README.md."""
