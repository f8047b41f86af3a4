"""Builds ``nodectl._progress``: the header that C programs include, for ``nodectl.progress``."""

from __future__ import annotations

from cffi import FFI

ffibuilder = FFI()
ffibuilder.cdef("void progress_tick(uint64_t units);")
ffibuilder.set_source(
    "nodectl._progress",
    '#include "nodectl_progress.h"\nstatic void progress_tick(uint64_t units) { nodectl_progress_tick(units); }\n',
    depends=["nodectl/include/nodectl_progress.h"],
    include_dirs=["nodectl/include"],
    extra_compile_args=["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
