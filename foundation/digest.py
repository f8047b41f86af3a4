"""SHA-256 of a content, without OpenSSL.

``hashlib`` loads libcrypto, 4 MB of each process that lasts for months. Python has an implementation of its own, which
takes some three times as long: 4 ms a megabyte, where ours are kilobytes.
"""

from __future__ import annotations

import importlib


def sha256_hex(content: bytes) -> str:
    """Of these bytes, as 64 hexadecimal digits."""
    for name in ("_sha2", "_sha256", "hashlib"):  # since Python 3.12; before; where an interpreter has neither
        try:
            return str(importlib.import_module(name).sha256(content).hexdigest())
        except ImportError:
            continue
    raise ImportError("this Python has no SHA-256")
