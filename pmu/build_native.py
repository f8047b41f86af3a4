"""Builds ``pmu._native``: the sweeps over counters and kept files, and sleeping to a deadline (see ``csrc/sweep.h``).

The declarations are read from the header itself, so that C and Python cannot drift apart.
"""

from __future__ import annotations

import os
import pathlib
import re

from cffi import FFI

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSRC = pathlib.Path("pmu/csrc")


def declarations(header: str) -> str:
    """The C header with no preprocessor lines but numbers, which is all that cffi reads of them."""
    return "\n".join(
        re.sub(r"\s*/\*.*", "", line) if line.startswith("#") else line
        for line in header.splitlines()
        if not line.startswith("#") or re.match(r"#define \w+ \d", line)
    )


ffibuilder = FFI()
ffibuilder.cdef(declarations((ROOT / CSRC / "sweep.h").read_text()))
ffibuilder.set_source(
    "pmu._native",
    '#include "sweep.h"',
    sources=[str(CSRC / "sweep.c")],
    depends=[str(CSRC / "sweep.h")],
    include_dirs=[str(CSRC)],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
