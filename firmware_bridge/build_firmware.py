"""Builds ``firmware_bridge._controlpulp``: the controller's firmware on the host board, in virtual time.

The declarations are read from the board's header, so C and Python cannot disagree.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
FIRMWARE = Path("firmware_bridge/controlpulp")
SOURCES = (
    *("chip", "control", "allocate", "guard", "published", "executive", "firmware", "meter", "requests", "mailbox"),
    *("fast_channel", "fast_window", "scmi", "scmi_service"),
    *("scmi_base", "scmi_system", "scmi_performance", "scmi_clock", "scmi_sensor", "scmi_powercap", "scmi_telemetry"),
)
WITH_LINE = (*SOURCES, "line")
"""For boards with a serial line."""
WARNINGS = ["-Wall", "-Wextra", "-Wshadow", "-Wno-unused-parameter"]


def declarations(header: str) -> str:
    """The C header without the parts that cffi cannot parse: comments, guards and includes. Numeric #defines stay."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    numeric = re.compile(r"#define \w+ \d+\s*$")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#") or numeric.match(line))


ffibuilder = FFI()
ffibuilder.cdef(declarations((ROOT / FIRMWARE / "boards/host/host.h").read_text()))
ffibuilder.set_source(
    "firmware_bridge._controlpulp",
    '#include "host.h"',
    sources=[str(FIRMWARE / "boards/host/board.c"), *(str(FIRMWARE / "src" / f"{name}.c") for name in WITH_LINE)],
    depends=[str(p.relative_to(ROOT)) for p in sorted((ROOT / FIRMWARE).glob("**/*.h"))],
    include_dirs=[str(FIRMWARE / "boards/host")],
    extra_compile_args=["-std=c11", "-O2", *WARNINGS],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
