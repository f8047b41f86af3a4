"""Builds ``nodectl-restorer``. ``python -m nodectl.build_restorer [OUTPUT]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.resolve()
PROGRAM = "nodectl-restorer"
SOURCES = sorted((ROOT / "csrc").glob("*.c"))

_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror")
_HARDENED = ("-fstack-protector-strong", "-D_FORTIFY_SOURCE=2", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")


def build(output: Path, *flags: str) -> Path:
    """Compiles the program; it needs libc and nothing else. Replaces the file by a rename, so a running copy stays
    intact."""
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_suffix(".new")
    chosen = flags or _HARDENED
    subprocess.run(["cc", *_FLAGS, *chosen, "-o", str(fresh), *map(str, SOURCES), "-ldl"], check=True)
    return fresh.replace(output)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / PROGRAM))
