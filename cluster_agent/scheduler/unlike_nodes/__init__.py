"""Scheduling on nodes that differ: jobs request cores, GPUs and memory, node by node."""
