"""Builds ``pmu._native``: the sweeps over counters and kept files, sleeping to a deadline (``csrc/sweep.h``), decoding
two sweeps (``csrc/decode.h``), and sleeping until a job gives a hint (``csrc/hints.h``).

The declarations are read from the headers themselves, so that C and Python cannot drift apart.
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


HEADERS, SOURCES = ("sweep.h", "decode.h", "hints.h"), ("sweep.c", "decode.c", "hints.c")

ffibuilder = FFI()
for name in HEADERS:
    ffibuilder.cdef(declarations((ROOT / CSRC / name).read_text()))
ffibuilder.set_source(
    "pmu._native",
    "\n".join(f'#include "{name}"' for name in HEADERS),
    sources=[str(CSRC / name) for name in SOURCES],
    depends=[str(CSRC / name) for name in HEADERS],
    include_dirs=[str(CSRC)],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra", "-ffp-contract=off"],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
