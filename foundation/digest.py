"""SHA-256 of a content, without OpenSSL.

``hashlib`` loads libcrypto, 4 MB of each process that lasts for months. Python has an implementation of its own, which
takes some three times as long: 4 ms a megabyte, where ours are kilobytes.
"""

from __future__ import annotations

import functools
import importlib
from collections.abc import Callable
from typing import Any


def sha256_hex(content: bytes) -> str:
    """Of these bytes, as 64 hexadecimal digits."""
    return str(_sha256()(content).hexdigest())


@functools.cache  # to look for a module that is not there takes longer than to digest a kilobyte
def _sha256() -> Callable[[bytes], Any]:
    for name in ("_sha2", "_sha256", "hashlib"):  # since Python 3.12; before; where an interpreter has neither
        try:
            made: Callable[[bytes], Any] = importlib.import_module(name).sha256
        except ImportError:
            continue
        return made
    raise ImportError("this Python has no SHA-256")
