"""Scheduling on nodes that differ: jobs ask for cores, GPUs and memory, node by node."""
