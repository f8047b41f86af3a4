"""Builds ``controlpulp-posix``: the controller as a process. ``python -m firmware_bridge.build_posix [OUTPUT]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from firmware_bridge.build_firmware import FIRMWARE, ROOT, SOURCES

PROGRAM = FIRMWARE / "boards/posix/controlpulp-posix"

_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Wno-unused-parameter", "-Werror")


def build(output: Path, *flags: str) -> Path:
    """Compiles the program with these compiler flags. Replaces the file by a rename, so a running copy stays intact."""
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_suffix(".new")
    names = ("main", "board", "channel", "signaller", "plant")
    board = [str(ROOT / FIRMWARE / f"boards/posix/{name}.c") for name in names]
    core = [str(ROOT / FIRMWARE / f"src/{name}.c") for name in SOURCES]
    subprocess.run(["cc", *_FLAGS, *flags, "-o", str(fresh), *board, *core, "-ldl"], check=True)
    return fresh.replace(output)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / PROGRAM))
