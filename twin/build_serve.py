"""Builds ``twin._serve``: counters served as descriptors, the seccomp listener, mounts (see ``csrc/serve.h``).

The declarations are read from the header itself, so C and Python cannot disagree.
"""

from __future__ import annotations

import os
import pathlib

from cffi import FFI

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSRC = pathlib.Path("twin/csrc")
PARTS = (
    *("affinity", "caller", "events", "fuse", "mounts", "opener", "process", "seccomp", "statfs", "syscalls", "trees"),
)
SOURCES = tuple(f"serve_{part}.c" for part in PARTS)


def declarations(header: str) -> str:
    """The C header without its preprocessor lines, which cffi cannot parse."""
    return "\n".join(line for line in header.splitlines() if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef(declarations((ROOT / CSRC / "serve.h").read_text()))
ffibuilder.cdef('extern "Python" void perf_called(void *to, perf_call_t *call);')
ffibuilder.set_source(
    "twin._serve",
    '#include "serve.h"',
    sources=[str(CSRC / name) for name in SOURCES],
    depends=[
        *(str(CSRC / header) for header in ("serve.h", "serve_internal.h", "serve_seccomp.h")),
        "nodectl/include/nodectl_progress.h",
    ],
    include_dirs=[str(CSRC), "nodectl/include"],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
