"""Builds ``libpulp.so``: the plant for a controller in another process. ``python -m twin.pulp.build``."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

FLAGS = (
    "-std=c11", "-D_GNU_SOURCE", "-O3", "-ffp-contract=off", "-fno-math-errno", "-Wall", "-Wextra", "-Werror",
    "-shared", "-fPIC", "-fvisibility=hidden",
)  # fmt: skip

_HERE = Path(__file__).parent.resolve()


def build(output_dir: Path, *flags: str) -> Path:
    """Compiles the library into a folder. Replaces a library in use there by a rename."""
    target = output_dir / "libpulp.so"
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(".new")
    sources = [str(_HERE / name) for name in ("plant.c", "sensor_faults.c", "library.c")]
    subprocess.run(["cc", *FLAGS, *flags, "-o", str(fresh), *sources, "-lm"], check=True)
    return fresh.replace(target)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE))
