"""Which jobs share a GPU, and how fast does each run there? Pure functions of measured pairs and of waiting jobs.

Imports ``cluster_agent.errors`` and ``foundation``, nothing else: it starts nothing.
"""
