"""Builds ``libnodectl-cpus.so``, which programs of a run preload (twin/csrc/cpus_preload.c).

``python -m twin.build_preload`` builds it alone.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twin.errors import TwinError

NAME = "libnodectl-cpus.so"
FLAGS = ("-std=c11", "-D_GNU_SOURCE", "-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", "-fno-builtin-fopen")

_HERE = Path(__file__).parent.resolve()


def library_path() -> Path:
    """The built library; TwinError if it has not been built."""
    path = _HERE / NAME
    if not path.exists():
        raise TwinError(f"{path} has not been built; run `make setup`")
    return path


def build(output_dir: Path) -> Path:
    """Compile the library into a folder. Replaces a library in use there by a rename."""
    target = output_dir / NAME
    target.parent.mkdir(parents=True, exist_ok=True)
    fresh = target.with_suffix(".new")
    source = str(_HERE / "csrc" / "cpus_preload.c")
    subprocess.run(["cc", *FLAGS, "-o", str(fresh), source, "-Wl,--no-undefined", "-ldl"], check=True)
    return fresh.replace(target)


if __name__ == "__main__":
    print(build(Path(sys.argv[1]) if len(sys.argv) > 1 else _HERE))
