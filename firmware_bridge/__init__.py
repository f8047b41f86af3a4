"""Sends caps and frequency requests to the on-chip power controller over Arm SCMI."""
