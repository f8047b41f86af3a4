"""Measures a node and writes its P-state table. No measurement is implemented yet."""
