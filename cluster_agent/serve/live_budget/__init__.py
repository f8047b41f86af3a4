"""The budget that is in force, and the schedules and feeds that move it."""
