"""Faults that hit two groups of sensors at once: one reference, one converter or one clock for several of them.

``firmware_faults`` breaks one group at a time, so another one contradicts it. Here all sensors of two or three groups
lie alike: a common scale, offset, delay or freeze, and sensors of two domains that change places. What no sound sensor
contradicts is not found, and is published: the true watts that stay hidden, over the cap, and the hottest die.
``--long``: power and activity times a factor for 4,000 slots (2 s). ``--bound``: the same under a load and a cap that
never change, until the guard's own step shows it, at most 95 s. ``--air``: sound sensors instead, whose inlet jumps
by up to 10 K and whose cooling by up to a fifth.

All results are emulated.
"""

from __future__ import annotations

import argparse
import itertools
import multiprocessing
import zlib
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from benchmarks.experiment import save
from benchmarks.firmware_faults import (
    CRITICAL_C,
    GROUPS,
    LATE,
    POWER0,
    STEPS,
    UNIT,
    Case,
    Outcome,
    joined,
    loads,
    run,
    sound,
)
from twin.pulp.plant import CORES, DOMAIN_CORES, Fault, Plant

ALL: Final = {"t": GROUPS["temperatures, all"], "a": GROUPS["activity, all"], "p": GROUPS["power, all"]}
ONE: Final = {"t": GROUPS["temperatures, domain"], "a": GROUPS["activity, domain"], "p": GROUPS["power, one domain"]}
LOADS: Final = ("class 2", "mixture", "light to heavy")
ONSETS: Final = ("before the start", LATE)
LONG_SLOTS: Final = 4_000
BOUND_SLOTS: Final = 190_000
LOOK_SLOTS: Final = 100
FACTORS: Final = (0.5, 0.7, 0.8, 0.9)
HIDDEN: Final = 1.05
"""Of the cap: less is no excess."""


class Row(msgspec.Struct, frozen=True):
    """A lie of sensors that lie together. ``hidden``: the highest slot after the 20th, over the cap, of the cases
    without an alarm; 0 where each had one. ``die_c``: the hottest."""

    together: str
    lie: str
    cases: int
    alarms: int
    slots_above: int
    hidden: float
    die_c: float


@dataclass(frozen=True, slots=True)
class Lie:
    """``amount``: by kind of sensor, in K, nF, W, factors or readings; a kind that is not in it is sound."""

    name: str
    fault: Fault
    amount: dict[str, float]


LIES: Final = (
    *(Lie(f"x {x}", Fault.SCALED, {"t": 1 - 0.1 * (1 - x), "a": x, "p": x}) for x in (0.5, 0.7, 0.8, 0.9, 1.25)),
    Lie("less", Fault.BIASED, {"t": -12.0, "a": -0.3, "p": -8.0}),
    Lie("frozen", Fault.STUCK, {"t": 0.0, "a": 0.0, "p": 0.0}),
    Lie("8 ms late", Fault.LATE, {"t": 32.0, "a": 160.0, "p": 80.0}),
)
"""A scale of 0.7 is one of watts and farads; of temperatures, in kelvin, a tenth of it (10 K)."""

TOGETHER: Final = {
    "power and activity": ("pa", ALL), "power and temperatures": ("pt", ALL),
    "activity and temperatures": ("at", ALL), "all three": ("pat", ALL), "all three, one domain": ("pat", ONE),
}  # fmt: skip
SWAPPED: Final = "two domains change places"


def break_together(plant: Plant, case: Case) -> None:
    """From now on they lie. ``case.variant`` is the name of the lie."""
    if case.group == SWAPPED:
        _swap_domains(plant)
        return
    kinds, groups = TOGETHER[case.group]
    lie = next(one for one in LIES if one.name == case.variant)
    for kind in kinds:
        unit = 1.0 if lie.fault in (Fault.SCALED, Fault.LATE) else UNIT[kind]
        plant.fault_amount[groups[kind]] = lie.amount[kind] * unit
        plant.fault[groups[kind]] = lie.fault


def _swap_domains(plant: Plant) -> None:
    """All sensors of the first domain show what those of the third would, and the other way round."""
    for first, size in ((0, DOMAIN_CORES), (CORES, DOMAIN_CORES), (POWER0 + 1, 1)):
        for sensor, other in itertools.product(range(size), (0, 2)):
            at = first + other * size + sensor
            plant.fault_amount[at] = first + (2 - other) * size + sensor
            plant.fault[at] = Fault.SWAPPED


def outcome(case: Case) -> Outcome:
    """One case."""
    return run(case, break_together)


def cases() -> list[Case]:
    """All pairs, lies, loads, steps and onsets."""
    found = []
    for load, step, onset in itertools.product(LOADS, STEPS, ONSETS):
        for group, lie in itertools.product(TOGETHER, LIES):
            found.append(Case(group, "common", lie.name, lie.fault, 0.0, load, step, onset))
        found.append(Case(SWAPPED, "swapped", "", Fault.SWAPPED, 0.0, load, step, onset))
    assert set(LOADS) <= set(loads())
    return found


def rows_of(outcomes: Sequence[Outcome]) -> list[Row]:
    """A row for each pair and lie, in order."""
    by_row: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
    for one in outcomes:
        by_row[one.case.group, one.case.variant].append(one)
    rows = []
    for (group, lie), members in by_row.items():
        capped = [one for one in members if one.case.step[1]]
        rows.append(
            Row(
                group, lie, len(members), sum(one.alarms > 0 for one in members),
                max(one.slots_above for one in capped),
                round(max((one.worst for one in capped if not one.alarms), default=0.0), 2),
                round(max(one.die_c for one in members), 1),
            )
        )  # fmt: skip
    return rows


def long_cases() -> list[Case]:
    """Power and activity times a factor, for two seconds, under each step of the cap."""
    plain = Case("power and activity", "common", "", Fault.SCALED, 0.0, "class 2", STEPS[0], LATE)
    capped = [step for step in STEPS if step[1]]
    return [
        replace(plain, variant=f"x {factor}", step=step, load=load, slots=LONG_SLOTS // 90 * 90)
        for factor, step, load in itertools.product(FACTORS, capped, ("class 2", "light to heavy"))
    ]


def bound_cases() -> list[Case]:
    """Power and activity times a factor, under caps that stay as they are."""
    plain = Case("power and activity", "common", "", Fault.SCALED, 0.0, "class 2", STEPS[0], LATE, slots=BOUND_SLOTS)
    caps = [step for step in STEPS if step[1]]
    return [replace(plain, variant=f"x {factor}", step=step) for factor in (0.7, 0.8, 0.9) for step in caps]


def until_found(case: Case) -> str:
    """A line: when an alarm has come, and the highest power until then, over the cap."""
    rig = joined(loads()[case.load][1], zlib.crc32(repr(case).encode()), 4.0)
    rig.plant.noise(temperature_k=0.3, power=0.01, capacitance=0.01)
    cap_w = rig.cap(case.step[1])
    rig.host.advance_slots(5_000)
    break_together(rig.plant, case)
    worst, slots = 0.0, 0
    while slots < case.slots and not rig.host.view().guard_alarms:
        rig.host.advance_slots(LOOK_SLOTS)
        slots += LOOK_SLOTS
        worst = max(worst, float(rig.plant.power_w[0]) / cap_w)
    how = "found after" if rig.host.view().guard_alarms else "not found in"
    return f"{case.variant} under {cap_w:.0f} W: {worst:.2f} of the cap, {how} {slots / 2000:.1f} s"


def moving_air(seed: int) -> tuple[int, int, float]:
    """``sound`` in air that changes."""
    return sound((seed, 5_000), is_air_moving=True)


def _sound_in_moving_air(processes: int) -> int:
    with multiprocessing.get_context("fork").Pool(processes) as pool:
        found = pool.map(moving_air, range(500_000, 500_200), chunksize=1)
    slots, alarms = sum(one[0] for one in found), sum(one[1] for one in found)
    lost = sum(slots * share for slots, _, share in found) / slots
    print(f"{slots} sound slots in air that changes, {alarms} alarms, work lost {lost:.2%}")
    return 1 if alarms else 0


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks firmware_faults_together", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="every eleventh case")
    parser.add_argument("--long", action="store_true", help="power and activity together for two seconds instead")
    parser.add_argument("--bound", action="store_true", help="how long they stay hidden where nothing else moves")
    parser.add_argument("--air", action="store_true", help="a million sound slots while the air changes instead")
    parser.add_argument("--processes", type=int, default=2, help="how many cases at a time")
    options = parser.parse_args(arguments)
    if options.air:
        return _sound_in_moving_air(options.processes)
    if options.bound:
        with multiprocessing.get_context("fork").Pool(options.processes) as pool:
            for line in pool.imap(until_found, bound_cases()):
                print(line, flush=True)
        return 0
    chosen = long_cases() if options.long else cases()[:: 11 if options.quick else 1]
    with multiprocessing.get_context("fork").Pool(options.processes) as pool:
        outcomes = pool.map(outcome, chosen, chunksize=5)
    rows = rows_of(outcomes)
    print(" | ".join(Row.__struct_fields__))
    for row in rows:
        print(" | ".join(str(value) for value in msgspec.structs.astuple(row)))
    hottest = max(one.die_c for one in outcomes)
    print(f"{len(outcomes)} cases, hottest die {hottest:.1f} C ({CRITICAL_C:.0f} is critical)")
    if not (options.quick or options.long):
        save("firmware_faults_together", {"rows": rows})
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
