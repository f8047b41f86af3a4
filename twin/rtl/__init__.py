"""Cores in RTL: published Verilog, translated by Verilator, with a small SoC of ours around it (``soc.h``).

``build.sh`` builds and caches a library per core. Who runs an image on it is ``firmware_bridge.controlpulp.rtl``.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

CORES = ("vexriscv", "cv32e40p")
LITEX = "litex"
"""A whole SoC of LiteX, with VexRiscv."""
BUILD = Path(__file__).parent / "build.sh"


def library(core: str, how: str = "plain") -> Path:
    """The model of a core, built if need be; ``how``: ``plain``, ``wave`` (with waveforms) or ``find`` (not built)."""
    return _built(core, how)


def litex_headers() -> Path:
    """The folder with the headers for C that LiteX generated for its SoC."""
    return _built(LITEX, "headers")


def missing(core: str) -> str | None:
    """Why there is no model of this core yet, and what builds it."""
    try:
        library(core, "find")
    except FileNotFoundError as reason:
        return str(reason)
    return None


def _built(core: str, what: str) -> Path:
    environment = {"PYTHON": sys.executable} | os.environ
    made = subprocess.run(["sh", str(BUILD), core, what], capture_output=True, text=True, env=environment)
    if made.returncode:
        raise FileNotFoundError(made.stderr.strip().splitlines()[-1])
    return Path(made.stdout.strip())
