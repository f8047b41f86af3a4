"""Arm SCMI (DEN0056): message codec, transports and client of the agent's side.

``codec`` turns messages into bytes and back; ``transport`` says what carries them; ``client`` asks, waits, retries and
verifies; ``url`` opens a client from ``scmi+serial:///dev/ttyUSB0`` and its kin. See docs/scmi.md.
"""
