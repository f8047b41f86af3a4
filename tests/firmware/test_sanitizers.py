"""The whole controller under AddressSanitizer and UndefinedBehaviorSanitizer, fed arbitrary bytes.

Each harness replays its corpus (inputs that coverage-guided fuzzing, `make fuzz`, found worth keeping) and goes on with
mutations of it and inputs of its own, some ten seconds of a processor each.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from firmware_bridge.build_firmware import FIRMWARE, ROOT, WITH_LINE
from tests.waiting import LONG_S, processor_time

HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(shutil.which("gcc") is None, reason="gcc is missing: install gcc")


@pytest.mark.timeout(LONG_S)
@pytest.mark.parametrize(("harness", "count"), [("platform", 700_000), ("line", 500_000)])
def test_no_bytes_upset_the_controller(harness: str, count: int, tmp_path: Path) -> None:
    program = tmp_path / f"fuzz_{harness}"
    sources = [ROOT / FIRMWARE / "src" / f"{name}.c" for name in WITH_LINE]
    if harness == "platform":  # the line's harness includes the board
        sources.append(ROOT / FIRMWARE / "boards/host/board.c")
    strict = ["-std=c11", "-O1", "-g", "-Wall", "-Wextra", "-Wshadow", "-Werror"]
    sanitizers = ["-fsanitize=address,undefined", "-fno-sanitize-recover=all"]
    harnesses = [HERE / f"fuzz_{harness}.c", HERE / "fuzz_main.c"]
    built = subprocess.run(
        ["gcc", *strict, *sanitizers, "-o", str(program), *map(str, harnesses + sources)],
        capture_output=True,
        text=True,
    )
    if "asan" in built.stderr and "cannot find" in built.stderr:
        pytest.skip("the sanitizers' libraries are missing: install libgcc-12-dev")
    assert built.returncode == 0, built.stderr
    corpus = sorted((HERE / "corpus" / harness).iterdir())
    assert corpus
    limited = processor_time(900)
    ran = subprocess.run([program, str(count), "1", *corpus], capture_output=True, text=True, preexec_fn=limited)
    assert ran.returncode == 0, ran.stderr[-4000:]
