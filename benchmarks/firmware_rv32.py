"""The rv32 image: instructions of each job, size, and equality with the host board over 10^5 control slots.

The line's share is counted while hostile bytes come as fast as the image takes them, 16 in each tick (128 kB/s).
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

from benchmarks.experiment import save
from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import Rig, mixed_load
from firmware_bridge.controlpulp import rv32
from firmware_bridge.controlpulp.host import HostOptions
from firmware_bridge.scmi.transports.frames import FrameKind, greeting, pack_frame

CORE_HZ = 500e6
CONTROL_SHARE = 0.40
"""Required: control within 40 % of a 500 MHz core at one instruction per cycle."""


def rig(seed: int, options: HostOptions) -> Rig:
    """A mixed load with noisy sensors on uneven silicon."""
    return Rig.start(options, mixed_load(seed), seed=seed, noisy=True)


HOSTILE = {
    "greetings": pack_frame(FrameKind.HELLO, 0, greeting()),
    "long frames with a wrong CRC": pack_frame(FrameKind.COMMAND, 1, bytes(256))[:-1] + b"\0",
    "heads of long frames, nested": b"\xa5\x5a\x03\x00\xfe\x00",
    "impossible heads": b"\xa5\x5a\x00\x00\x00\x00",
}


def flooded(image: Path, pattern: bytes, ticks: int) -> dict[str, float]:
    """Instructions per tick while the line brings nothing but this pattern: mean, and the worst with a control slot."""
    rig_ = rig(7, HostOptions())
    controller = rv32.Rv32Controller(image, count=True)
    spent = []
    for tick in range(ticks):
        rig_.host.advance_to(tick * 125_000)
        for name in ("temperature_mk", "capacitance_ff", "power_uw"):
            controller.words(name)[:] = rig_.host.wires[name]
        controller.line_in += pattern * 20
        del controller.line_in[1024:]
        spent.append(controller.tick())
        if (controller.words("freq_khz") != rig_.host.wires["freq_khz"]).any():
            raise AssertionError(f"tick {tick}: the flood changes what control decides")
    return {"mean": sum(spent) / ticks, "worst": max(spent)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="firmware_rv32", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="3 000 slots instead of 100 000")
    quick = parser.parse_args(arguments).quick
    reason = rv32.missing()
    if reason:
        print(f"not run: {reason}")
        return 1
    with tempfile.TemporaryDirectory() as folder:
        image = rv32.build(Path(folder) / "controlpulp.elf")
        sizes = subprocess.run(
            ["riscv64-unknown-elf-size", str(image)], check=True, capture_output=True, text=True
        ).stdout.split()[6:9]
        counted: dict[str, int] = {}
        for seed in range(2 if quick else 6):
            worst = run(rig(seed, HostOptions()), rv32.Rv32Controller(image, count=True), 300 if quick else 800, seed)
            counted = {kind: max(counted.get(kind, 0), n) for kind, n in worst.items()}
        slots = 3_000 if quick else 100_000
        run(rig(99, HostOptions()), rv32.Rv32Controller(image), slots, 99)
        with_line = rv32.build(Path(folder) / "line.elf", "-DSERIAL=1")
        ticks = 200 if quick else 2000
        floods = {name: flooded(with_line, pattern, ticks) for name, pattern in {"silence": b"", **HOSTILE}.items()}
        published = rv32.build(Path(folder) / "published.elf", "-DPUBLISHED=1")
        theirs = run(
            rig(1, HostOptions.published()), rv32.Rv32Controller(published, count=True), 500, 1, has_messages=False
        )
    control = counted["fast and control"]
    share = control / (CORE_HZ * 500e-6)
    print(f"{'instructions, worst':24}{'ours':>10}{'published':>12}")
    for kind, number in counted.items():
        print(f"{kind:24}{number:10}{theirs[kind] or '-':>12}")
    print(f"control: {100 * share:.1f} % of a 500 MHz core at one instruction per cycle (required: 40 %)")
    print(
        f"image: {sizes[0]} bytes of code and constants, {sizes[1]} of data, {sizes[2]} of memory (8 KiB of it stack)"
    )
    print(f"{'instructions per tick, line flooded with':44}{'mean':>8}{'worst':>8}  of {CORE_HZ * 125e-6:.0f}")
    for name, flood in floods.items():
        print(f"  {name:42}{flood['mean']:8.0f}{flood['worst']:8.0f}")
    print(f"host and rv32 decided and answered alike over {slots} slots")
    save(
        "firmware_rv32",
        {"instructions": counted, "published": theirs, "share": share, "equal_slots": slots, "flood": floods},
    )
    return 0 if share <= CONTROL_SHARE else 1


if __name__ == "__main__":
    raise SystemExit(main())
