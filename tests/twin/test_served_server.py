"""The process that serves a twin, by itself."""

from __future__ import annotations

import ctypes
import os
import re
import threading
from itertools import pairwise
from pathlib import Path

import pytest
from twin._serve import lib

from tests.twin.served_node import ServedNode, why_not_served

THREADS = 12
HEAP_BYTES = 64 << 20
"""HEAP_MAX_SIZE of glibc's malloc: address space that each arena but the main one takes, aligned to it."""

COPY_MAPS = """
import glob
for path in glob.glob("/proc/[0-9]*/comm"):
    if open(path).read() == "nodectl-twin\\n":
        print(open(path.replace("comm", "maps")).read())
"""


@pytest.mark.skipif(bool(why_not_served()), reason=why_not_served())
def test_a_server_at_work_has_one_arena() -> None:
    with ServedNode("curie") as node:
        node.output("sh", "-c", "for i in 1 2 3 4 5 6; do cat /proc/stat /proc/cpuinfo >/dev/null & done; wait")
        maps = node.python(COPY_MAPS)
    ranges = [[int(bound, 16) for bound in row] for row in re.findall(r"^(\w+)-(\w+) ", maps, re.MULTILINE)]
    assert len(ranges) > 100
    heaps = [low for (low, _), (_, high) in pairwise(ranges) if low % HEAP_BYTES == 0 and high - low == HEAP_BYTES]
    assert heaps == []


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
