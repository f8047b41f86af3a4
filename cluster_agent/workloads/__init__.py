"""Where jobs come from: readers of job logs and traces, and the conversion of their rows into jobs.

Imports ``cluster_agent.scheduler`` for the columns of jobs. Runs nothing.
"""
