"""The entry point for vendor protocols (ids 0x80 to 0xFF).

Declare a vendor's messages in a module of their own, with the decorators of ``message``. Import that module before a
``Dialect`` is made, and give the protocol's version in that dialect. Codec, client, ``nodectl scmi decode`` and the
trace then know it. Ids below 0x80 belong to the standard.
"""

from __future__ import annotations

from typing import Final

FIRST_VENDOR_PROTOCOL: Final = 0x80

VERSIONS: Final[dict[int, int]] = {}
"""Vendor protocols of every dialect, with their versions."""
