"""Builds ``nodectl._progress``: the headers that C programs include, for ``nodectl.progress`` and ``nodectl.hints``."""

from __future__ import annotations

from cffi import FFI

ffibuilder = FFI()
ffibuilder.cdef("""
    void progress_tick(uint64_t units);
    void hint_copy(uint64_t bytes);
    void hint_kernel(void);
    uint32_t hint_phase(uint32_t number);
    void hint_wait_begin(void);
    void hint_wait_end(void);
""")
ffibuilder.set_source(
    "nodectl._progress",
    """
    #include "nodectl_hints.h"
    #include "nodectl_progress.h"
    static void progress_tick(uint64_t units) { nodectl_progress_tick(units); }
    static void hint_copy(uint64_t bytes) { nodectl_hints_copy(bytes); }
    static void hint_kernel(void) { nodectl_hints_kernel(); }
    static uint32_t hint_phase(uint32_t number) { return nodectl_hints_phase(number); }
    static void hint_wait_begin(void) { nodectl_hints_wait_begin(); }
    static void hint_wait_end(void) { nodectl_hints_wait_end(); }
    """,
    depends=["nodectl/include/nodectl_hints.h", "nodectl/include/nodectl_progress.h"],
    include_dirs=["nodectl/include"],
    extra_compile_args=["-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Wshadow", "-Werror"],
    py_limited_api=True,
)

if __name__ == "__main__":
    ffibuilder.compile(verbose=True)
