"""Compiling a C program of ours, as a step of the package's build."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror")
_HARDENED = ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")


def build_program(sources: Sequence[Path], output: Path, *flags: str) -> Path:
    """Compile it; it needs libc, and loads anything else itself (``-ldl``). ``flags`` take the place of hardening.
    Replaces the file by a rename, so a running copy stays intact."""
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_suffix(".new")
    chosen = flags or _HARDENED
    subprocess.run(["cc", *_FLAGS, *chosen, "-o", str(fresh), *map(str, sources), "-ldl"], check=True)
    return fresh.replace(output)
