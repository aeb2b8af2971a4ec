"""Operator schemas: checks of types and attributes, conversion to the newest operator set."""
