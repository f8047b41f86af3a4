"""Arm SCMI (DEN0056): message codec, transports and client of the agent's side.

``messages`` converts messages to bytes and back; ``transports`` carries the bytes; ``client`` sends commands, waits and
retries; ``controller`` verifies what it sets; ``transports/url.py`` opens a client from a URL such as
``scmi+serial:///dev/ttyUSB0``. See docs/scmi.md.
"""
