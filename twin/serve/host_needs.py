"""Requirements of this host for serving a twin, checked before anything starts."""

from __future__ import annotations

import os

from twin.errors import TwinError


def require() -> None:
    """TwinError naming what is missing: rights, the FUSE device, libfuse or its binding."""
    missing = []
    if os.geteuid() != 0:
        missing.append("root")
    if not os.path.exists("/dev/fuse"):
        missing.append("/dev/fuse (the kernel's FUSE)")
    try:
        import mfusepy  # noqa: F401
    except ImportError:
        missing.append("the Python package mfusepy (pip install 'nodectl[twin]')")
    except OSError:
        missing.append("libfuse3 (Debian package fuse3)")
    if missing:
        raise TwinError(f"serving a twin needs {', '.join(missing)}; without them it runs in virtual time only")
