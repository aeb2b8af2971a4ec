"""Importers of ``ai.onnx.ml``: linear models, support vector machines, tree ensembles."""
