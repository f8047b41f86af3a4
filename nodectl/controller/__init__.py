"""Knobs that an on-chip controller moves for this node over SCMI, and the link to it.

Imports ``firmware_bridge.scmi`` and ``nodectl.knobs.api``. Never blocks the agent's loop: the link has its own thread.
"""
