"""Faults on demand: what real instruments and knobs do wrong, at a chosen time."""
