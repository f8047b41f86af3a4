"""Frozen schedules: what every policy decided on every log, as hashes that a change of the engine must leave alone."""
