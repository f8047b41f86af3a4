"""Measures a node: how fast it computes, and what it draws at each clock. Imports nodectl and pmu, never the twin."""
