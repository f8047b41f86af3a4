"""What a card loses at its power limit in addition to what the limit takes from its mean clock: the limiter's ripple.

``gpu-clock-powercap`` has two codes on an A100 under limits of 150 to 300 W, each with a requested clock of 1005 to
1410 MHz. Where the limit binds, a higher requested clock is *slower*: the limiter swings about its mean by a share of
what it takes from the clock (``limit_ripple`` of the machine file, the law in ``twin/csrc/model_gpu_clock.c``). The
share was chosen on `pi-solver` (``--chosen`` tries others), `waterlily` judges it. Of `waterlily` knee and sharpness
are fitted to its speeds at 300 W, where no limit binds, and its activity to one run under a limit, for each law on its
own: its measured watts have its start-up in them. The twin's results are emulated.
"""

from __future__ import annotations

import argparse
import csv
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import msgspec
import numpy as np

from benchmarks.experiment import save
from twin.machine import Machine, load_machine
from twin.physics.curves import knee_speed
from twin.physics.families import SHARED
from twin.physics.model import Twin
from twin.programs.workload import load_workload

SWEEP: Final = SHARED / "gpu-clock-powercap/clock-powercap.csv"
CARD, MACHINE = "A100-PCIe-80GB", "a100"
TOP_MHZ, TOP_W = 1410.0, 300.0
CODES: Final = ("pi-solver", "waterlily")
"""The first chose the ripple, the second judges it."""
BOUND: Final = 0.995
"""A limit binds where it leaves less than this of the speed at the highest limit."""
GIVEN: Final = (1305.0, 200.0)
"""MHz and W of the one run under a limit that `waterlily` is fitted to."""
TRIED: Final = (0.0, 0.15, 0.2, 0.25, 0.3, 0.4)


class Row(msgspec.Struct, frozen=True):
    """Speeds under one limit, each over the one at 1410 MHz and 300 W; ``without``, ``rippling``: the twin's."""

    code: str
    limit_w: float
    clock_mhz: float
    measured: float
    without: float
    rippling: float


def measured(code: str) -> dict[tuple[float, float], tuple[float, float]]:
    """Speed and watts by requested clock and limit; the speed over the one at 1410 MHz and 300 W."""
    with SWEEP.open(newline="") as file:
        rows = [row for row in csv.DictReader(file) if (row["gpu"], row["code"]) == (CARD, code)]
    at = {(float(row["clock_mhz_requested"]), float(row["power_limit_w"])): row for row in rows}
    top = float(at[TOP_MHZ, TOP_W]["fom"])
    return {key: (float(row["fom"]) / top, float(row["power_w"])) for key, row in at.items()}


def phase_of(code: str) -> str:
    """Knee and sharpness of its speeds without a limit, as keys of a phase; a code as fast as the clock has no knee."""
    speeds = {mhz: speed for (mhz, limit_w), (speed, _) in measured(code).items() if limit_w == TOP_W}
    clocks = sorted(speeds)
    found = np.array([speeds[mhz] for mhz in clocks])
    if code == CODES[0]:
        return "knee_mhz = 5000.0\n"
    errors = {
        (knee, sharpness): float(np.square(knee_speed([1e3 * mhz for mhz in clocks], knee, sharpness) - found).sum())
        for knee in np.arange(700.0, 2000.0, 20.0).tolist()
        for sharpness in (1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 9.0, 14.0)
    }
    knee, sharpness = min(errors, key=lambda pair: errors[pair])
    return f"knee_mhz = {knee}\nsharpness = {sharpness}\n"


def workload(code: str, activity: float) -> str:
    """The code as a workload of the twin."""
    return (
        f'name = "{code}"\nsummary = "a code of gpu-clock-powercap"\nsource = "gpu-clock-powercap"\n[[gpu]]\n'
        f'[[gpu.phase]]\nname = "steps"\nseconds = 10000.0\nactivity = {activity:.4f}\ndram_active = 0.09\n'
        f"{phase_of(code)}"
    )


class Runner:
    """One card of the machine with one code. Each answer is of ten seconds, once the card is as warm as it gets."""

    def __init__(self, machine: Machine, code: str, activity: float, warm_s: float = 100.0) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "code.toml"
            path.write_text(workload(code, activity))
            self._twin = Twin(machine, load_workload(str(path), machine))
        self._card, self._warm_s = self._twin.gpus.gpu[0], warm_s

    def ran(self, clock_mhz: float, limit_w: float) -> tuple[float, float]:
        """Work a second, and the shown watts."""
        card = self._card
        card.lock_min_mhz, card.lock_max_mhz = 210, round(clock_mhz)
        card.lock_seq += 1
        card.power_limit_mw = round(limit_w * 1e3)
        card.limit_seq += 1
        self._twin.advance(self._warm_s)
        before, joules = self._twin.report().work_done, card.energy_uj
        self._twin.advance(10.0)
        return (self._twin.report().work_done - before) / 10.0, (card.energy_uj - joules) * 1e-7


def rippling(machine: Machine, ripple: float) -> Machine:
    assert machine.gpu is not None
    return msgspec.structs.replace(machine, gpu=msgspec.structs.replace(machine.gpu, limit_ripple=ripple))


def activity_of(code: str, machine: Machine) -> float:
    """That at which it is as fast as it was at ``GIVEN``."""
    if code == CODES[0]:
        return 1.0  # what the volts of the machine were fitted with
    wanted, low, high = measured(code)[GIVEN][0], 0.5, 2.0
    for _ in range(8):
        middle = (low + high) / 2
        (speed,) = speeds(code, machine, middle, [GIVEN])
        low, high = (middle, high) if speed > wanted else (low, middle)
    return (low + high) / 2


def speeds(code: str, machine: Machine, activity: float, requests: Sequence[tuple[float, float]]) -> list[float]:
    """The twin's, over the one at 1410 MHz and 300 W."""
    runner = Runner(machine, code, activity)
    top, _ = runner.ran(TOP_MHZ, TOP_W)
    return [runner.ran(*one)[0] / top for one in requests]


def rows_of(code: str, ripple: float) -> list[Row]:
    """All runs in which a limit bound."""
    machine, found = load_machine(MACHINE), measured(code)
    requests = sorted(
        key for key in found if found[key][0] < BOUND * found[key[0], TOP_W][0] and (code, key) != (CODES[1], GIVEN)
    )
    by = [
        speeds(code, one, activity_of(code, one), requests)
        for one in (rippling(machine, 0.0), rippling(machine, ripple))
    ]
    return [
        Row(code, limit_w, mhz, found[mhz, limit_w][0], plain, with_it)
        for (mhz, limit_w), plain, with_it in zip(requests, *by, strict=True)
    ]


def lost_by_requesting(rows: Sequence[Row], which: str) -> dict[float, float]:
    """By limit: speed at 1410 MHz over the fastest of the lower requested clocks at which that limit binds, less 1."""
    lost = {}
    for limit_w in sorted({row.limit_w for row in rows}):
        here = {row.clock_mhz: getattr(row, which) for row in rows if row.limit_w == limit_w}
        lower = [speed for mhz, speed in here.items() if mhz < TOP_MHZ]
        if TOP_MHZ in here and lower:
            lost[limit_w] = here[TOP_MHZ] / max(lower) - 1.0
    return lost


def scatter(rows: Sequence[Row], which: str) -> tuple[float, float]:
    """Root mean square and worst relative error of speeds."""
    errors = np.array([getattr(row, which) / row.measured - 1.0 for row in rows])
    return float(np.sqrt(np.mean(np.square(errors)))), float(np.abs(errors).max())


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks gpu_limit_ripple", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="only the code that chose the ripple")
    parser.add_argument("--chosen", action="store_true", help="other ripples, on the code that chose it")
    options = parser.parse_args(argv)
    shipped = load_machine(MACHINE).gpu
    assert shipped is not None
    if options.chosen:
        for ripple in TRIED:
            rows = rows_of(CODES[0], ripple)
            errors = [100 * (row.rippling / row.measured - 1.0) for row in rows]
            lost = lost_by_requesting(rows, "rippling")
            print(f"ripple {ripple:.2f}: errors' deviation {np.std(errors):.2f} %, worst {max(map(abs, errors)):.2f} %;"
                  f" lost by requesting 1410 MHz {', '.join(f'{100 * one:.2f}' for one in lost.values())}")  # fmt: skip
        return 0
    all_rows = []
    for code in CODES[: 1 if options.quick else 2]:
        rows = rows_of(code, shipped.limit_ripple)
        all_rows += rows
        print(f"{code}, {'chosen on' if code == CODES[0] else 'judged'}: {len(rows)} runs at their limit, EMULATED")
        for which in ("without", "rippling"):
            print(f"  {which:9}: speed off by {scatter(rows, which)[0]:.2%} (rms), worst {scatter(rows, which)[1]:.2%}")
        for limit_w, found in lost_by_requesting(rows, "measured").items():
            twin = [lost_by_requesting(rows, which)[limit_w] for which in ("without", "rippling")]
            print(f"  {limit_w:.0f} W, requesting 1410 MHz: measured {found:+.2%}, without {twin[0]:+.2%}, "
                  f"with the ripple {twin[1]:+.2%}")  # fmt: skip
    if not options.quick:
        print("JSON:", save("gpu_limit_ripple", {"rows": all_rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
