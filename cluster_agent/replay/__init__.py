"""Replays of job logs: running the scheduler over a workload, measuring the schedule and writing the results."""
