"""Cores in RTL: published Verilog, translated by Verilator, with a small SoC of ours around it (``soc.h``).

``build.sh`` builds and caches a library per core. Who runs an image on it is ``firmware_bridge.controlpulp.rtl``.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

CORES = ("vexriscv", "cv32e40p")
BUILD = Path(__file__).parent / "build.sh"


def library(core: str, how: str = "plain") -> Path:
    """The model of a core, built if need be; ``how``: ``plain``, ``wave`` (with waveforms) or ``find`` (not built)."""
    made = subprocess.run(["sh", str(BUILD), core, how], capture_output=True, text=True)
    if made.returncode:
        raise FileNotFoundError(made.stderr.strip().splitlines()[-1])
    return Path(made.stdout.strip())


def missing(core: str) -> str | None:
    """Why there is no model of this core yet, and what builds it."""
    try:
        library(core, "find")
    except FileNotFoundError as reason:
        return str(reason)
    return None
