"""The seam for vendor protocols (ids 0x80 to 0xFF).

A vendor's messages are declared with the decorators of ``message`` like those of the standard, in a module of their
own; importing it before a ``Dialect`` is made, and naming the protocol's version in that dialect, is all it takes:
codec, client, ``nodectl scmi decode`` and the trace then speak it. Ids below 0x80 belong to the standard.
"""

from __future__ import annotations

from typing import Final

FIRST_VENDOR_PROTOCOL: Final = 0x80

VERSIONS: Final[dict[int, int]] = {}
"""Vendor protocols that every dialect speaks, with their versions."""
