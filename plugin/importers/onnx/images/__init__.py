"""Importers of pooling, resizing and sampling of images."""
