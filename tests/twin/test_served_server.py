"""The process that serves a twin, by itself."""

from __future__ import annotations

import ctypes
import os
import threading
from pathlib import Path

from twin._serve import lib

THREADS = 12


def test_the_server_never_reads_its_own_files_for_malloc(tmp_path: Path) -> None:
    """glibc reads /sys and /proc/sys for arenas other than the main one; threads make these as they allocate."""

    def arenas(is_server: bool) -> int:
        report = tmp_path / f"arenas-{is_server}"
        child = os.fork()
        if child == 0:
            try:
                _allocate(is_server, bytes(report))
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        return report.read_text().count("<heap nr=")

    assert arenas(is_server=True) == 1
    assert arenas(is_server=False) > 1


def _allocate(is_server: bool, report: bytes) -> None:
    libc = ctypes.CDLL(None)
    libc.malloc.restype = libc.fopen.restype = ctypes.c_void_p
    if is_server:
        lib.process_use_one_arena()
    together = threading.Barrier(THREADS)

    def work() -> None:
        libc.malloc(100_000)
        together.wait()

    threads = [threading.Thread(target=work) for _ in range(THREADS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    file = ctypes.c_void_p(libc.fopen(report, b"w"))
    libc.malloc_info(0, file)
    libc.fclose(file)
