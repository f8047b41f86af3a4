"""Builds ``twin._pulp``: the plant of the ControlPULP controller. Run as a script or named in setup.py."""

from __future__ import annotations

import os
import re
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent


def declarations(header: str) -> str:
    """The C header without the parts that cffi cannot parse: comments, guards and includes. Numeric #defines stay."""
    text = re.sub(r"/\*.*?\*/", "", header, flags=re.DOTALL)
    numeric = re.compile(r"#define \w+ \d+\s*$")
    return "\n".join(line for line in text.splitlines() if not line.startswith("#") or numeric.match(line))


ffibuilder = FFI()
ffibuilder.cdef(declarations((ROOT / "twin/pulp/plant.h").read_text()))
ffibuilder.set_source(
    "twin._pulp",
    '#include "plant.h"',
    sources=["twin/pulp/plant.c", "twin/pulp/sensor_faults.c"],
    depends=["twin/pulp/plant.h"],
    include_dirs=["twin/pulp"],
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"],
    libraries=["m"],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
