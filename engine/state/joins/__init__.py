"""Columnar state of joins: the rows of both sides that may still find a partner."""
