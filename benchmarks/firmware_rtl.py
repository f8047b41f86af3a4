"""The rv32 image on two cores in RTL: cycles of each job, with RAM of one and two cycles, and equality with the host.

Loads, temperatures, caps and levels differ from part to part; each part compares every decision and every answer.
EMULATED: the cores are published RTL, memory and devices a model of ours (twin/rtl/soc.h).
"""

from __future__ import annotations

import argparse
import tempfile
from pathlib import Path

import numpy as np

from benchmarks.experiment import save
from benchmarks.firmware_lockstep import run
from benchmarks.firmware_rig import POWERCAP, Rig, command, mixed_load
from firmware_bridge.controlpulp import rtl
from firmware_bridge.controlpulp.host import HostOptions
from twin.pulp.plant import CLASSES, CORES
from twin.rtl import CORES as MODELS
from twin.rtl import library

SLOT_CYCLES = rtl.CLOCK_HZ // 2000
MOST = {1: 100_000, 2: 112_000}
"""Required of fast and control together, by the cycles of RAM."""

PARTS = (("mixed", 0, 100), ("mixed, hot", 7.5, 150), ("heavy, hot", 7.5, 120), ("mixed, no cap", 0, 0))
"""Load, watts per core whose steady temperatures it starts with, package cap in watts."""


def part(core: rtl.RtlController, name: str, heat_w: float, cap_w: int, slots: int, seed: int) -> dict[str, int]:
    """The most cycles of each kind of wake-up."""
    load = mixed_load(seed) if name.startswith("mixed") else np.full(CORES, CLASSES[3])
    rig = Rig.start(HostOptions(), load, seed=seed, noisy=True)
    if heat_w:
        rig.plant.settle(np.full(CORES, heat_w))
    message = command(POWERCAP, 0x5, 0, 0, cap_w * 1000)
    if rig.host.exchange(0, message) != _exchange(core, message):
        raise AssertionError("the cap is answered differently")
    return run(rig, core, slots, seed)


def _exchange(core: rtl.RtlController, message: bytes) -> bytes | None:
    core.send(0, message)
    return core.poll(0)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="firmware_rtl", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="4 slots a part instead of 250 (RAM of 2 cycles: 25)")
    quick = parser.parse_args(arguments).quick
    rows, is_within = [], True
    print(f"EMULATED. {'core':10}{'RAM':>4}{'slots':>7}{'fast':>9}{'fast+control':>14}{'of a slot':>11}{'message':>9}")
    with tempfile.TemporaryDirectory() as folder:
        image = rtl.build(Path(folder) / "controlpulp.elf")
        for model in MODELS:
            for ram_cycles, limit in MOST.items():
                slots = 4 if quick else 250 if ram_cycles == 1 else 25
                worst: dict[str, int] = {}
                for seed, (name, heat_w, cap_w) in enumerate(PARTS, start=5):
                    core = rtl.RtlController(image, library(model), ram_cycles=ram_cycles)
                    found = part(core, name, heat_w, cap_w, slots, seed)
                    core.close()
                    worst = {kind: max(worst.get(kind, 0), cycles) for kind, cycles in found.items()}
                control = worst["fast and control"]
                is_within = is_within and control <= limit
                total = slots * len(PARTS)
                rows.append({"core": model, "ram_cycles": ram_cycles, "slots": total, **worst})
                print(f"          {model:10}{ram_cycles:4}{total:7}{worst['fast']:9}{control:14}"
                      f"{100 * control / SLOT_CYCLES:10.1f}%{worst['message']:9}")  # fmt: skip
    print(f"required: at most {MOST[1]} cycles, {MOST[2]} with RAM of two; all of it bit-equal to the host")
    save("firmware_rtl", {"cores": rows, "within": is_within})
    return 0 if is_within else 1


if __name__ == "__main__":
    raise SystemExit(main())
