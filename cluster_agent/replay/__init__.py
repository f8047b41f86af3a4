"""Replays of job logs: reading them, running the scheduler over them, and writing what came of it."""
