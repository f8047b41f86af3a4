"""Where jobs come from: readers of job logs and traces, and what makes jobs of their rows.

Imports ``cluster_agent.scheduler`` for the columns of jobs. Runs nothing.
"""
