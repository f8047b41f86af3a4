"""Knobs behind an on-chip controller that is reached over SCMI, and the link to it.

Imports ``firmware_bridge.scmi`` and ``nodectl.knobs.api``. Never blocks the agent's loop: the link has its own thread.
"""
