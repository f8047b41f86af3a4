"""Images of the firmware for cores of rv32, each built once for all processes that run tests or rigs.

A build takes two seconds of a processor, and some twenty files of tests want one of nine images. They are kept in
build/images, by what they are built from.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
from functools import cache
from pathlib import Path

from firmware_bridge.controlpulp import rv32

ROOT = Path(__file__).parents[2]
KEPT = ROOT / "build" / "images"
FIRMWARE = ROOT / "firmware_bridge" / "controlpulp"


@cache
def image(*flags: str) -> Path:
    """The image that the compiler makes of this tree with these flags. It belongs to all: nobody may change it."""
    KEPT.mkdir(parents=True, exist_ok=True)
    path = KEPT / f"{_digest(flags)}.elf"
    lock = os.open(KEPT, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX)  # who comes meanwhile waits for the image instead of building it too
        if not path.exists():
            rv32.build(path.with_suffix(".part"), *flags).rename(path)
    finally:
        os.close(lock)
    return path


def _digest(flags: tuple[str, ...]) -> str:
    """Of all that the image depends on: the sources, the compiler, and the flags."""
    digest = hashlib.sha256("\0".join(flags).encode())
    compiler = shutil.which(rv32.COMPILER)
    if compiler:
        found = os.stat(compiler)
        digest.update(f"{compiler} {found.st_size} {found.st_mtime_ns}".encode())
    sources = {*FIRMWARE.glob("src/*"), *FIRMWARE.glob("boards/rv32/*")}
    for source in sorted(sources):
        digest.update(f"\0{source.relative_to(ROOT)}\0".encode() + source.read_bytes())
    return digest.hexdigest()[:16]
