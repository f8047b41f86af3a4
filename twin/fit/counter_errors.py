"""Error curves of DRAM activity, derived from a sweep of counters and times over the clock of a GPU.

DRAM activity is a share of time. A run has the same traffic at any clock, so activity times run time is constant, if
the counter is right and work is done at all clocks alike. How it moves with the clock, relative to the highest, is the
ratio of the speed that activity implies to the true speed.

Source: ``gpu-v100-counters`` (github.com/nsfcac/gpupowermodel at 0b28e68f5a9d, mean_fp_data_21_apps.csv and
mean_fp_data_HPC_apps.csv): 16 applications at 117 clocks, 510 to 1380 MHz. Run time is energy over mean power. Rows
that the table calls suspect are left out, and so is an application of which they are more than a quarter (``histo``).
What is left scatters from clock to clock by some per cent, so a point is the median over the clocks within
half of the distance between points; the twin adds noise of its own. The point at the highest clock has a half of that
range alone, so its noise, 0.4 to 6 %, is in all ratios of its curve.

``python -m twin.fit.counter_errors v100-counters.csv`` prints the shipped table.
"""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np

from foundation.foreign_text import foreign_text, rows_by_name
from twin.physics.error_curves import ErrorCurve

POINTS = tuple(round(0.4 + 0.05 * k, 2) for k in range(13))
"""Clocks relative to the highest. Below 0.4 there would be fewer measured clocks on one side."""

MOST_SUSPECT = 0.25

HEAD = """\
# Speed implied by DRAM activity over true speed, by clock relative to the highest (1380 MHz), of a V100.
# From the figures of github.com/nsfcac/gpupowermodel at 0b28e68f5a9d (no licence file), medians over 9 clocks;
# derived by twin/fit/counter_errors.py, which says how.
"""


def derive(path: Path) -> tuple[ErrorCurve, ...]:
    """The error curves of the applications in a sweep, by name, rounded to 0.001."""
    rows: dict[str, list[tuple[float, float, float]]] = {}
    suspect: dict[str, int] = {}
    for _, row in rows_by_name(foreign_text(path.read_bytes()), comment="#")[1]:
        name = row["application"]
        suspect[name] = suspect.get(name, 0) + bool(row["suspect"])
        if not row["suspect"]:
            point = float(row["clock_mhz"]), float(row["dram_active"]), float(row["energy_over_power_s"])
            rows.setdefault(name, []).append(point)
    return tuple(
        _curve(name, points)
        for name, points in sorted(rows.items())
        if suspect[name] <= MOST_SUSPECT * (suspect[name] + len(points))
    )


def _curve(name: str, points: list[tuple[float, float, float]]) -> ErrorCurve:
    mhz, active, seconds = np.array(sorted(points)).T
    clock, traffic = mhz / mhz[-1], active * seconds
    half = (POINTS[1] - POINTS[0]) / 2 + 1e-9
    found = np.array([np.median(traffic[np.abs(clock - point) <= half]) for point in POINTS])
    return ErrorCurve(name, POINTS, tuple(round(float(value), 3) for value in found / found[-1]))


def main(argv: list[str]) -> int:
    """Print the table of ``argv[0]``."""
    curves = derive(Path(argv[0]))
    sys.stdout.write(HEAD)
    print("application", *(f"{point:.2f}" for point in POINTS), sep=",")
    for curve in curves:
        print(curve.name, *(f"{value:.3f}" for value in curve.ratio), sep=",")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
