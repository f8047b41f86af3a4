"""The rv32 image for SoCs that `make test` does not run: it compiles with their headers.

Runs: `hil_tests/test_litex.py`.
"""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from firmware_bridge.controlpulp import rtl, rtl_litex, rv32

SAMPLE = Path(__file__).parent / "litex"
"""Headers that LiteX generated for the SoC of the rig (``twin/rtl/litex_soc.py``)."""

pytestmark = pytest.mark.skipif(rtl.missing() is not None, reason=str(rtl.missing()))


def test_the_image_for_litex_takes_addresses_and_clock_from_its_headers(tmp_path: Path) -> None:
    image = rtl_litex.build(tmp_path / "litex.elf", SAMPLE)
    assert rv32.symbol(image, "_start") == 0x4000_0000
    assert rv32.symbol(image, "shared") == 0x8008_0000, "the window, which the core does not cache"
    assert rv32.symbol_range(image, "soc_feed_watchdog").stop - rv32.symbol(image, "soc_feed_watchdog") > 8


def test_a_litex_soc_without_window_or_watchdog_has_its_mailboxes_in_ram_and_feeds_nothing(tmp_path: Path) -> None:
    headers = copy_without(tmp_path, "WINDOW", "WATCHDOG0")
    image = rtl_litex.build(tmp_path / "litex.elf", headers)
    assert rv32.symbol(image, "shared") == 0x400F_F000
    assert len(rv32.symbol_range(image, "soc_feed_watchdog")) == 2, "a return"


@pytest.mark.parametrize(
    ("missing", "reason"), [("UPTIME", "build it with --timer-uptime"), ("VARIANT_IMAC", "--cpu-variant=imac")]
)
def test_a_litex_soc_that_does_not_fit_is_refused_with_the_option_to_give(
    missing: str, reason: str, tmp_path: Path
) -> None:
    with pytest.raises(subprocess.CalledProcessError) as refused:
        rtl_litex.build(tmp_path / "litex.elf", copy_without(tmp_path, missing))
    assert reason in refused.value.stderr


def copy_without(folder: Path, *words: str) -> Path:
    """The sample without the lines that have one of these words, and with what LiteX's own build adds."""
    (folder / "generated").mkdir()
    for header in (SAMPLE / "generated").iterdir():
        lines = [line for line in header.read_text().splitlines() if not any(word in line for word in words)]
        text = "\n".join(lines)
        (folder / "generated" / header.name).write_text(f"#include <system.h>\n{text}\n")
    return folder


def test_the_header_for_controlpulp_compiles_and_agrees_with_the_mailboxs_layout(tmp_path: Path) -> None:
    """It is all that there is of it here: nobody has run the image on ControlPULP."""
    boards = Path(rtl_litex.__file__).parent / "boards"
    (tmp_path / "use.c").write_text(
        '#include "controlpulp.h"\n#include "board.h"\n#include <stddef.h>\n'
        '_Static_assert(sizeof(struct smt_area) == SCMI_DOORBELL, "the doorbell follows the payload");\n'
        '_Static_assert(offsetof(struct smt_area, payload) == 0x1c, "as in the SCMI mailbox unit");\n'
    )
    options = [
        "-std=c11",
        "-Wall",
        "-Wextra",
        "-Werror",
        "-ffreestanding",
        "-fsyntax-only",
        f"-I{boards}/controlpulp",
        f"-I{boards}/../src",
    ]
    compiled = subprocess.run([rv32.COMPILER, *options, str(tmp_path / "use.c")], capture_output=True, text=True)
    assert compiled.returncode == 0, compiled.stderr
