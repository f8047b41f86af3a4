"""Builds ``twin._model``: the node's physics in C. Run as a script or named in setup.py."""

from __future__ import annotations

import re
from pathlib import Path

from cffi import FFI

ROOT = Path(__file__).resolve().parent.parent
_PARTS = (
    *("", "_bandwidth", "_cpu", "_gpu", "_gpu_clock", "_gpu_share", "_idle", "_memory"),
    *("_meter", "_state", "_turbo", "_uncore", "_work"),
)
SOURCES = [f"model{part}.c" for part in _PARTS]


def declarations(*headers: str) -> str:
    """The headers without the parts that cffi cannot parse: comments, guards and includes. Simple #defines stay."""
    text = "\n".join((ROOT / "twin" / "csrc" / header).read_text() for header in headers)
    text = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)
    kept = [line for line in text.splitlines() if not line.startswith("#") or re.match(r"#define \w+\s+\w+", line)]
    return "\n".join(re.sub(r"(#define \w+\s+0?x?[0-9a-f]+)u", r"\1", line) for line in kept)


ffibuilder = FFI()
ffibuilder.cdef(declarations("twin_gpu.h", "model.h"))
ffibuilder.set_source(
    "twin._model",
    '#include "model.h"',
    sources=[f"twin/csrc/{name}" for name in SOURCES],
    include_dirs=[str(ROOT / "twin" / "csrc")],
    depends=[f"twin/csrc/{name}" for name in ("model.h", "model_internal.h", "twin_gpu.h")],
    extra_compile_args=["-std=c11", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra"],
    libraries=["m", "pthread"],
)

if __name__ == "__main__":
    import os

    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
