"""The rv32 image: instructions of each job, size, and equality with the host board over 10^5 control slots."""

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

CORE_HZ = 500e6
CONTROL_SHARE = 0.40
"""Required: control within 40 % of a 500 MHz core at one instruction per cycle."""


def rig(seed: int, options: HostOptions) -> Rig:
    """A mixed load with noisy sensors on uneven silicon."""
    return Rig.start(options, mixed_load(seed), seed=seed, noisy=True)


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
    print(f"host and rv32 decided and answered alike over {slots} slots")
    save("firmware_rv32", {"instructions": counted, "published": theirs, "share": share, "equal_slots": slots})
    return 0 if share <= CONTROL_SHARE else 1


if __name__ == "__main__":
    raise SystemExit(main())
