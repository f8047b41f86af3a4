"""At which clocks work costs the fewest joules: the sets that a calibration finds, next to the truth's.

EMULATED, virtual time. A set is all clocks within 1 % of the fewest joules per unit. ``fma`` stands for Linpack, and
``stream`` is STREAM; sensors err as in ``calibration_table``. A set is *right* if it has the clock of the truth's
fewest joules and its ends are at most one clock from the truth's; *excess* is the most that one of its clocks costs
above the truth's fewest, per cent (1 is what the set allows).

Machines of the twin are judged on nodes 1 to 3, and on curves that are drawn: voltage over the clock, switching,
leakage and what the node draws besides, from a seed. Seeds of ``LOOKED_AT`` were used to write this, ``JUDGED`` were
not run before.
"""

from __future__ import annotations

import argparse
import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec
import numpy as np

from benchmarks.calibration_table import METER_GAIN, RAPL_GAIN, Truth, measured, regulated, truths
from benchmarks.experiment import save
from calibration.kernels.port import FMA, STREAM
from calibration.measure.node_session import Setting
from calibration.table.least_energy import within
from calibration.table.pstate_table import Point
from twin.machine import Machine, load_machine

MACHINES: Final = ("taurus", "curie")
NODES: Final = (1, 2, 3)
BASE: Final = "curie"
LOOKED_AT: Final = (1, 2, 3, 101, 110)
JUDGED: Final = tuple(range(201, 211))
LEVEL: Final = "all"


class Case(NamedTuple):
    """A machine file, or ``drawn``; ``seed``: node, or of the drawn curve."""

    machine: str
    seed: int


class Row(msgspec.Struct, frozen=True):
    """Sets in GHz. ``meter``: ``node`` or ``rapl``, what the joules are of."""

    machine: str
    seed: int
    kernel: str
    meter: str
    found: tuple[float, ...]
    truth: tuple[float, ...]
    is_right: bool
    excess: float
    clocks: int
    stays: int


def drawn_machine(seed: int) -> Machine:
    """Curie with other silicon and another board."""
    random, base = np.random.default_rng(seed), load_machine(BASE)
    low, bend = random.uniform(0.65, 0.9), random.uniform(0.8, 2.2)
    mhz = np.array([khz / 1e3 for khz in base.steps_khz])
    rise = ((mhz - mhz[0]) / (mhz[-1] - mhz[0])) ** bend
    power = msgspec.structs.replace(
        base.power,
        volts=tuple((float(one), float(low + (1.05 - low) * part)) for one, part in zip(mhz, rise, strict=True)),
        dynamic_w=base.power.dynamic_w * random.uniform(0.7, 1.2),
        leak_w_per_v=base.power.leak_w_per_v * random.uniform(0.5, 2.0),
        rest_w=random.uniform(20.0, 150.0),
        leak_per_k=random.uniform(0.008, 0.02),
    )
    return msgspec.structs.replace(base, power=power)


def judged(case: Case) -> list[Row]:
    machine = drawn_machine(case.seed) if case.machine == "drawn" else load_machine(case.machine)
    drawn = np.random.default_rng(case.seed).uniform(-1, 1, 2)
    gains = (1 + RAPL_GAIN * float(drawn[0]), 1 + METER_GAIN * float(drawn[1]))
    machine = regulated(machine, gains[0])
    sweep, points = measured(machine, case.seed, 0, gains, (FMA, STREAM))
    cpus = {LEVEL: sweep.session.cpus_of(LEVEL)}
    truth = truths(machine, case.seed, sweep.session.clocks, cpus, (FMA, STREAM))
    rows = []
    for kernel in ("fma", "stream"):
        own = [point for point in points if (point.kernel, point.level) == (kernel, LEVEL)]
        for meter in ("node", "rapl"):
            rows.append(row(case, kernel, meter, own, truth, len(sweep.dwells)))
    return rows


def row(case: Case, kernel: str, meter: str, own: Sequence[Point], truth: Mapping[Setting, Truth], stays: int) -> Row:
    is_node = meter == "node"
    right = {
        point.khz: (one.node_w if is_node else one.package_w + one.dram_w) / one.units_per_s
        for point in own
        if (one := truth[Setting(kernel, LEVEL, point.khz)])
    }
    seen = {p.khz: (p.node_w if is_node else p.package_w + p.dram_w) / p.speed for p in own}
    found, known = within(seen), within(right)
    clocks, least = sorted(right), min(right.values())
    ends = [abs(clocks.index(a) - clocks.index(b)) for a, b in ((found[0], known[0]), (found[-1], known[-1]))]
    return Row(
        case.machine,
        case.seed,
        kernel,
        meter,
        tuple(khz / 1e6 for khz in found),
        tuple(khz / 1e6 for khz in known),
        max(ends) <= 1 and min(right, key=lambda khz: right[khz]) in found,
        100 * max(right[khz] / least - 1 for khz in found),
        len(clocks),
        stays,
    )


def cases(seeds: Sequence[int], is_quick: bool) -> Iterator[Case]:
    if not is_quick:
        yield from (Case(machine, node) for machine in MACHINES for node in NODES)
    yield from (Case("drawn", seed) for seed in seeds[: 2 if is_quick else None])


def shown(values: Sequence[float]) -> str:
    return f"{values[0]:g}" if len(values) == 1 else f"{values[0]:g}-{values[-1]:g} ({len(values)})"


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.least_energy_clocks", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="two drawn curves")
    parser.add_argument("--looked-at", action="store_true", help="the curves that were looked at while it was written")
    options = parser.parse_args(arguments)
    wanted = list(cases(LOOKED_AT if options.looked_at else JUDGED, options.quick or options.looked_at))
    if options.looked_at:
        wanted = [Case("drawn", seed) for seed in LOOKED_AT]
    print(
        "EMULATED; GHz within 1 % of the fewest joules (number of clocks); excess: of the worst clock found, per cent"
    )
    print(f"{'machine':9}{'seed':>5} {'kernel':8}{'joules of':10}{'found':16}{'truth':16}{'right':6}{'excess':>7}")
    rows: list[Row] = []
    with multiprocessing.get_context("fork").Pool(1) as pool:
        for found in pool.imap(judged, wanted):
            rows += found
            for one in found:
                print(
                    f"{one.machine:9}{one.seed:5} {one.kernel:8}{one.meter:10}{shown(one.found):16}"
                    f"{shown(one.truth):16}{'yes' if one.is_right else 'NO':6}{one.excess:7.2f}",
                    flush=True,
                )
    for machine in dict.fromkeys(one.machine for one in rows):
        for meter in ("node", "rapl"):
            own = [one for one in rows if (one.machine, one.meter) == (machine, meter)]
            right = sum(one.is_right for one in own)
            worst = max(one.excess for one in own)
            print(f"{machine}, joules of {meter}: {right} of {len(own)} sets right; worst excess {worst:.2f} %")
    save("least_energy_clocks", {"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
