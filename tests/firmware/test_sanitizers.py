"""The whole controller under AddressSanitizer and UndefinedBehaviorSanitizer, fed arbitrary bytes."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from firmware_bridge.build_firmware import FIRMWARE, ROOT, SOURCES

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: install gcc")


def test_no_bytes_upset_the_controller(tmp_path: Path) -> None:
    program = tmp_path / "fuzz_platform"
    sources = [ROOT / FIRMWARE / "src" / f"{name}.c" for name in SOURCES] + [ROOT / FIRMWARE / "boards/host/board.c"]
    strict = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    harness = str(Path(__file__).parent / "fuzz_platform.c")
    built = subprocess.run(
        ["gcc", *strict, *sanitizers, "-o", str(program), harness, *map(str, sources)], capture_output=True, text=True
    )
    if "asan" in built.stderr and "cannot find" in built.stderr:
        pytest.skip("the sanitizers' libraries are missing: install libgcc-12-dev")
    assert built.returncode == 0, built.stderr
    ran = subprocess.run([str(program), "60000", "1"], capture_output=True, text=True, timeout=120)
    assert ran.returncode == 0, ran.stderr[-4000:]
