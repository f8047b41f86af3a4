"""An A100 SXM4's watts over its clock, and what they change of what is published of one.

The card of ``xh2415`` is an SXM4 whose volts were fitted to a PCIe card's sweep. ``gpu-stage-clocks`` has a sweep of an
SXM4: stages of one model, forward and backward. Its scale is unknown: 475 to 480 W on a board of 400 W. Three readings:

    as it is    the watts are the card's
    factor      all of them are too high by one factor, so that the highest is the board's limit
    offset      all of them have so much of something else in them

Volts are fitted to the forward passes, and judge the backward ones from their watts at the highest clock alone, as the
PCIe card's law does. Then the published figures of EasyWave, HPCG and QE-PW with each of these volts in the
place of the machine's; nothing else is fitted again. Results of the twin are emulated.
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from collections.abc import Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from benchmarks import published_facts
from benchmarks.experiment import OUT, save
from twin.fit.law import Bench, Card, estimate, fit_card, knots_of, learn_prior, type_f64
from twin.fit.sweep import Curve, read_sweep
from twin.machine import MACHINES, load_machine
from twin.physics.families import SHARED

SWEEP: Final = SHARED / "gpu-stage-clocks/stage-clocks.csv"
PCIE: Final = SHARED / "gpu-clock-powercap/clock-powercap.csv"
CARD, PCIE_CARD, MACHINE = "A100-SXM", "A100-PCIe-80GB", "xh2415"
BOARD_W: Final = 400.0
LOW_MHZ: Final = 1005.0


class Reading(NamedTuple):
    """What the true watts are taken to be: ``factor * watts - offset_w``."""

    name: str
    factor: float
    offset_w: float


class Row(msgspec.Struct, frozen=True):
    """Signed relative errors of backward passes; ``volts``: at 1005 MHz over the top's."""

    reading: str
    law: str
    volts: float
    median: float
    at_low: float
    worst: float


def curves_of(instruction: str, reading: Reading) -> list[Curve]:
    """Both kinds of stages."""
    with SWEEP.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["gpu"], row["instruction"]) == (CARD, instruction)]
    found = []
    for stages in dict.fromkeys(row["stages"] for row in rows):
        own = sorted((row for row in rows if row["stages"] == stages), key=lambda row: float(row["clock_mhz"]))
        top_s = float(own[-1]["time_s"])
        found.append(
            Curve(
                f"{instruction} {stages}",
                tuple(float(row["clock_mhz"]) for row in own),
                tuple(top_s / float(row["time_s"]) for row in own),
                tuple(reading.factor * float(row["power_w"]) - reading.offset_w for row in own),
            )
        )
    return found


def readings() -> tuple[Reading, ...]:
    most_w = max(max(one.power_w) for name in ("forward", "backward") for one in curves_of(name, Reading("", 1.0, 0.0)))
    return (
        Reading("as it is", 1.0, 0.0),
        Reading("factor", BOARD_W / most_w, 0.0),
        Reading("offset", 1.0, most_w - BOARD_W),
    )


def judged(reading: Reading, law: str, card: Card, prior_from: Sequence[Curve]) -> Row:
    """Backward passes by a card's volts; how shares go with what is known of a workload is learned of others."""
    bench = Bench(curves_of("backward", reading), "work", card.top_mhz)
    prior = learn_prior(Bench(prior_from, "work", card.top_mhz), card)
    law_w = estimate(bench, card, bench.known("top"), prior)[1]
    errors, at_low = [], []
    for number, curve in enumerate(bench.curves):
        clocks = np.array(curve.clock_mhz)
        own: type_f64 = law_w[number, : len(clocks)] / np.array(curve.power_w) - 1
        errors.append(own[:-1])
        at_low.append(float(np.interp(LOW_MHZ, clocks, own)))
    every = np.concatenate(errors)
    volts = float(np.interp(LOW_MHZ, *np.array(card.volts).T))
    return Row(
        reading.name, law, volts, float(np.median(every)), float(np.mean(at_low)), float(every[np.abs(every).argmax()])
    )


def fitted(reading: Reading) -> Card:
    """Volts by forward passes. Idle watts are the machine's: no row is idle."""
    curves = curves_of("forward", reading)
    gpu = load_machine(MACHINE).gpu
    assert gpu is not None
    return fit_card(curves, "work", gpu.power.idle_w, knots_of(curves))


def with_volts(name: str, card: Card) -> str:
    """A copy of the machine file with other volts; the file's path."""
    gpu = load_machine(MACHINE).gpu
    assert gpu is not None
    lowest, top_v = card.volts[0][1], gpu.power.volts[-1][1]
    volts = [[gpu.power.volts[0][0], round(lowest * top_v, 4)]]
    volts += [[round(mhz), round(volt * top_v, 4)] for mhz, volt in card.volts]
    text = (MACHINES / f"{MACHINE}.toml").read_text()
    before, gpu_text = text.split("[gpu.power]", 1)
    changed, count = re.subn(r"volts = \[\[.*\]\]", f"volts = {volts}", gpu_text, count=1)
    assert count == 1
    path = OUT / f"{MACHINE}-{name.replace(' ', '-')}.toml"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{before}[gpu.power]{changed}")
    return str(path)


def facts(machines: dict[str, str], seconds: float) -> list[dict[str, str | float | None]]:
    """Energy of each published case by each machine, per cent against the fixed highest clock."""
    found: list[dict[str, str | float | None]] = []
    references: dict[tuple[str, str], float] = {}
    cases = dict.fromkeys(
        (fact.workload, fact.case, fact.energy) for fact in published_facts.FACTS if fact.energy is not None
    )
    for workload, case, published in cases:
        row: dict[str, str | float | None] = {"workload": workload, "case": case, "published": published}
        for name, machine in machines.items():
            occupied = published_facts.with_occupancy(machine)
            if (name, workload) not in references:
                top = published_facts.measure(workload, str(published_facts.HIGH), occupied, seconds, machine)
                references[name, workload] = top.joules("gpu")
            result = published_facts.measure(workload, case, occupied, seconds, machine)
            row[name] = 100 * (result.joules("gpu") / references[name, workload] - 1)
        print(f"{workload:10}{case:10}" + "".join(f"{row[name]:14.1f}" for name in machines) + f"{published:14.0f}")
        found.append(row)
    return found


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu_stage_clocks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="published figures from runs of a third of their length")
    options = parser.parse_args(arguments)
    if not SWEEP.exists():
        print(f"gpu_stage_clocks: needs {SWEEP}")
        return 1
    pcie = read_sweep(PCIE, PCIE_CARD)
    gpu = load_machine(MACHINE).gpu
    assert gpu is not None
    top_mhz, top_v = gpu.power.volts[-1]
    shipped = Card(
        tuple((mhz, volt / top_v) for mhz, volt in gpu.power.volts), gpu.power.idle_w, gpu.power.ready_w, "work"
    )
    print(f"backward passes, top clock ({top_mhz:.0f} MHz) alone given; errors of watts, %")
    print(f"{'reading':12}{'volts of':26}{'at 1005 MHz':>12}{'median':>9}{'at 1005':>9}{'worst':>9}")
    rows, machines = [], {"shipped": str(MACHINES / f"{MACHINE}.toml")}
    for reading in readings():
        own = fitted(reading)
        machines[reading.name] = with_volts(reading.name, own)
        for law, card, others in (
            ("a PCIe card (shipped)", shipped, pcie), ("this one, forward passes", own, curves_of("forward", reading)),
        ):  # fmt: skip
            row = judged(reading, law, card, others)
            rows.append(row)
            print(f"{row.reading:12}{row.law:26}{row.volts:12.2f}{100 * row.median:9.1f}{100 * row.at_low:9.1f}"
                  f"{100 * row.worst:9.1f}", flush=True)  # fmt: skip
    print("\npublished figures by the twin, energy in % against the fixed highest clock")
    print(f"{'workload':10}{'case':10}" + "".join(f"{name:>14}" for name in machines) + f"{'published':>14}")
    table = facts(machines, published_facts.DURATION_S / (3 if options.quick else 1))
    print("JSON:", save("gpu_stage_clocks", {"rows": rows, "facts": table}))
    return 0


if __name__ == "__main__":
    sys.exit(main())
