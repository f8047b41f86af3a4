"""How well the twin's laws of the uncore's clock follow two Skylake-SP under caps (``cpu-gpu-caps/cpu-cap-pcm``).

Under a cap the processor chose core and uncore clocks by itself, so that 22 workloads (codes in two sizes) ran at ten
pairs of clocks each. Of each, two numbers are fitted to its instructions per second and one to its watts (the work of
its cores); the other constants, the same for all, are fitted to every second workload and judged on the rest, then the
other way around. Errors in per cent of the measured values. ``--quick`` changes nothing.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Sequence
from typing import Final

import numpy as np

from benchmarks.experiment import save
from twin.fit.judge import summary
from twin.machine import load_machine
from twin.physics.curves import type_f64, volts
from twin.physics.families import SHARED

TABLE: Final = SHARED / "cpu-gpu-caps" / "cpu-cap-pcm.csv"
COLUMNS: Final = (
    "core_ghz_median",
    "uncore_ghz_median",
    "ginst_per_s",
    "cpu_power_w",
    "read_gbs",
    "write_gbs",
    "cap_w",
)
CORE_GHZ: Final = 3.3
UNCORE_GHZ: Final = 2.4
"""The highest clocks in the table."""
LOWEST_GHZ: Final = 0.8
PACKAGES: Final = 2
SHARES: Final = np.arange(0.0, 1.01, 0.05)


def read() -> list[type_f64]:
    """Of each workload the columns at its caps."""
    found: dict[tuple[str, str], list[list[float]]] = {}
    with TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            found.setdefault((row["size"], row["application"]), []).append([float(row[name]) for name in COLUMNS])
    return [np.array(found[key]) for key in sorted(found)]


def _least_squares(parts: type_f64) -> type_f64:
    """Coefficients, none below 0, whose sum of parts is nearest to 1."""
    best, fewest = np.zeros(parts.shape[1]), np.inf
    for used in ([0, 1], [0], [1]):
        found = np.zeros(parts.shape[1])
        found[used] = np.linalg.lstsq(parts[:, used], np.ones(len(parts)), rcond=None)[0]
        squares = float(((parts @ found - 1) ** 2).sum())
        if found.min() >= 0 and squares < fewest:
            best, fewest = found, squares
    return best


def speed_errors(points: type_f64, share: float) -> type_f64:
    """Of the time of an instruction: a part with the core clock, one that waits, of it a share with the uncore's."""
    core, uncore, rate = points[:, 0], points[:, 1], points[:, 2]
    waits = share * UNCORE_GHZ / uncore + 1 - share
    parts = np.stack([CORE_GHZ / core * rate, waits * rate], axis=1)
    return np.asarray(parts @ _least_squares(parts) - 1)


def _core(points: type_f64) -> type_f64:
    """V^2 f of the cores, relative to the highest clock, with the volts of the machine skylake-6146."""
    ladder = [*(points[:, 0] * 1e9), CORE_GHZ * 1e9]
    v2f = volts(load_machine("skylake-6146").power.volts, ladder) ** 2 * np.array(ladder)
    return np.asarray(v2f[:-1] / v2f[-1])


def _common(points: type_f64, exponent: float) -> type_f64:
    """What the watts that do not go with the core clock are made of: base, uncore's clock, traffic."""
    uncore = (points[:, 1] / UNCORE_GHZ) ** exponent if exponent else np.zeros(len(points))
    return np.stack([np.ones(len(points)), uncore, points[:, 4] + points[:, 5]], axis=1)


def fit_watts(workloads: Sequence[type_f64], exponent: float) -> type_f64:
    """Watts of the base, of the uncore's clock and of a GB/s, of both packages."""
    rows = []
    for number, points in enumerate(workloads):
        own = np.zeros((len(points), len(workloads)))
        own[:, number] = _core(points)
        rows.append(np.hstack([_common(points, exponent), own]) / points[:, 3:4])
    matrix = np.concatenate(rows)
    return np.asarray(np.linalg.lstsq(matrix, np.ones(len(matrix)), rcond=None)[0][:3])


def watt_errors(points: type_f64, constants: type_f64, exponent: float) -> type_f64:
    """With the best watts of this workload's cores."""
    watts, core = points[:, 3], _core(points) / points[:, 3]
    rest = _common(points, exponent) @ constants / watts
    own = float(((1 - rest) * core).sum() / (core**2).sum())
    return np.asarray(rest + own * core - 1)


def cap_errors(points: type_f64, low_w: float, high_w: float) -> type_f64:
    """Of the uncore's clock, if the cap alone lowers it, between these watts of a package."""
    share = np.clip((points[:, 6] / PACKAGES - low_w) / (high_w - low_w), 0, 1)
    return np.asarray((LOWEST_GHZ + share * (UNCORE_GHZ - LOWEST_GHZ)) / points[:, 1] - 1)


def fit_caps(workloads: Sequence[type_f64]) -> tuple[float, float]:
    """The watts of a package with the least mean error."""
    pairs = [(low, high) for low in np.arange(25.0, 52.0, 2.5) for high in np.arange(low + 10, 110.0, 2.5)]
    return min(pairs, key=lambda pair: sum(float(np.abs(cap_errors(w, *pair)).sum()) for w in workloads))


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin_uncore", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the same; it takes a second")
    parser.parse_args(argv)
    try:
        workloads = read()
    except OSError as error:
        print(f"twin_uncore: needs {TABLE}: {error.strerror}")
        return 1
    halves = (workloads[::2], workloads[1::2]), (workloads[1::2], workloads[::2])
    rows: dict[str, object] = {}

    def best_share(group: Sequence[type_f64]) -> float:
        return float(min(SHARES, key=lambda share: sum((speed_errors(w, share) ** 2).sum() for w in group)))

    def report(law: str, errors: Sequence[type_f64], constants: str) -> None:
        found = summary(np.concatenate(errors))
        print(f"{law:42}{found.median_pct:8.2f}{found.p95_pct:8.2f}{found.worst_pct:8.2f}   {constants}")
        rows[law] = {"errors": found, "constants": constants}

    print(f"{'instructions per second':42}  median    95 %   worst")
    report("no uncore clock", [speed_errors(w, 0.0) for w in workloads], "")
    shares = [best_share(fitted) for fitted, _ in halves]
    judged = [
        speed_errors(w, share) for share, (_, others) in zip(shares, halves, strict=True) for w in others
    ]  # fmt: skip
    report("a share of waiting with it, judged", judged, "shares " + ", ".join(f"{share:.2f}" for share in shares))
    share = best_share(workloads)
    report("a share of waiting with it, all", [speed_errors(w, share) for w in workloads], f"share {share:.2f}")
    print(f"{'watts':42}  median    95 %   worst")
    for name, exponent in (("no uncore clock", 0.0), ("linear", 1.0), ("square", 2.0), ("cube", 3.0)):
        errors = [
            watt_errors(w, fit_watts(fitted, exponent), exponent) for fitted, others in halves for w in others
        ]  # fmt: skip
        base, clock, gbs = fit_watts(workloads, exponent) / PACKAGES
        of_all = f"all: base {base:.1f} W, clock {clock:.1f} W a package, {PACKAGES * gbs:.2f} W per GB/s"
        report(f"{name}, judged", errors, of_all)
    print(f"{'uncore clock under a cap':42}  median    95 %   worst")
    report("at its highest", [cap_errors(w, 0.0, 1e-3) for w in workloads], "")
    caps = [fit_caps(fitted) for fitted, _ in halves]
    judged = [cap_errors(w, *cap) for cap, (_, others) in zip(caps, halves, strict=True) for w in others]
    report("by the cap, judged", judged, ", ".join(f"{low:.1f} to {high:.1f} W" for low, high in caps))
    low, high = fit_caps(workloads)
    report("by the cap, all", [cap_errors(w, low, high) for w in workloads], f"{low:.1f} to {high:.1f} W a package")
    print("JSON:", save("twin_uncore", {"laws": rows}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
