"""Builds ``twin._kernel``: counters served as descriptors, the seccomp listener, mounts (see ``csrc/kernel.h``).

The declarations are read from the header itself, so that C and Python cannot drift apart.
"""

from __future__ import annotations

import os
import pathlib

from cffi import FFI

ROOT = pathlib.Path(__file__).resolve().parent.parent
CSRC = pathlib.Path("twin/csrc")
SOURCES = ("kernel_doors.c", "kernel_events.c", "kernel_fuse.c", "kernel_process.c", "kernel_seccomp.c")


def declarations(header: str) -> str:
    """The C header without its preprocessor lines, which cffi does not read."""
    return "\n".join(line for line in header.splitlines() if not line.startswith("#"))


ffibuilder = FFI()
ffibuilder.cdef(declarations((ROOT / CSRC / "kernel.h").read_text()))
ffibuilder.cdef('extern "Python" void perf_called(void *to, perf_call_t *call);')
ffibuilder.set_source(
    "twin._kernel",
    '#include "kernel.h"',
    sources=[str(CSRC / name) for name in SOURCES],
    depends=[str(CSRC / "kernel.h"), str(CSRC / "kernel_seccomp.h"), "nodectl/include/nodectl_progress.h"],
    include_dirs=[str(CSRC), "nodectl/include"],
    define_macros=[("_GNU_SOURCE", None)],
    extra_compile_args=["-std=c11", "-O2", "-Wall", "-Wextra"],
)

if __name__ == "__main__":
    os.chdir(ROOT)
    ffibuilder.compile(verbose=True)
