"""Workloads that papers describe, drawn from a seed."""
