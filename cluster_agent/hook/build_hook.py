"""Builds ``nodectl-hook``. ``python -m cluster_agent.hook.build_hook [OUTPUT]``."""

from __future__ import annotations

import sys
from pathlib import Path

from foundation.program_build import build_program

ROOT = Path(__file__).parent.resolve()
PROGRAM = "nodectl-hook"
SOURCES = sorted((ROOT / "csrc").glob("*.c"))


def build(output: Path, *flags: str) -> Path:
    """Compiles the program. It needs libc alone, and libzmq only where it speaks over a link."""
    return build_program(SOURCES, output, *flags)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / PROGRAM))
