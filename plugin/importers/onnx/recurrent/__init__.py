"""Importers of LSTM, GRU and RNN."""
