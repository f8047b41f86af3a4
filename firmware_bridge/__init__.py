"""Hands caps and frequency requests to the on-chip controller over Arm SCMI. Nothing is delegated yet."""
