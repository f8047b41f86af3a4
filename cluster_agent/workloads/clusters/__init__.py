"""Logs of several clusters: which nodes there are, and on which of them each job may run.

Imports ``cluster_agent.workloads`` and ``cluster_agent.cluster``.
"""
