"""Builds ``nodectl-kernels``. ``python -m calibration.kernels.build_kernels [OUTPUT]``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.resolve()
PROGRAM = "nodectl-kernels"

_FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-Wall", "-Wextra", "-Wshadow", "-Werror", "-pthread")
_EXACT = ("-O3", "-ffp-contract=off", "-fno-tree-vectorize")
"""O3 keeps the chains in registers. The scalar loops stay scalar, and nothing is rounded once that C rounds twice."""
_HARDENED = ("-fstack-protector-strong", "-fPIE", "-pie", "-Wl,-z,relro,-z,now")


def build(output: Path, sources: Path = ROOT / "csrc") -> Path:
    """Compiles the program; it needs libc and nothing else. Replaces the file by a rename, so a running copy stays
    intact."""
    output.parent.mkdir(parents=True, exist_ok=True)
    fresh = output.with_suffix(".new")
    units = map(str, sorted(sources.glob("*.c")))
    subprocess.run(["cc", *_FLAGS, *_EXACT, *_HARDENED, "-o", str(fresh), *units, "-lm"], check=True)
    return fresh.replace(output)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / PROGRAM))
