"""The processes of kernels that this test run has started, and none else."""

from __future__ import annotations

import psutil

from calibration.kernels.build_kernels import PROGRAM


def kernel_processes(parent: int) -> list[psutil.Process]:
    """Living processes that compute a kernel for ``parent``; its number stands in their arguments."""
    found = []
    for process in psutil.process_iter(["cmdline", "status"]):
        words = process.info["cmdline"] or [""]
        is_kernel = words[0].endswith(PROGRAM) and len(words) > 6 and words[6] == str(parent)
        if is_kernel and process.info["status"] != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found
