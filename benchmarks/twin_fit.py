"""How well the twin's power law follows measured sweeps.

For each sweep: errors over all points, and for each workload left out of the fit, its watts at the highest and lowest
clock, or at the highest alone, given (``twin/fit/judge.py``). Speeds are given throughout. Required on the V100 table:
given two clocks, a median of at most 2 % and a worst of 6 %; given the top clock, a median of at most 4 % and 95 % of
the points within 12 %.

``--quick``: the V100 table alone. Published figures on a blade with fitted cards: ``published_facts``.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import Final

import msgspec

from benchmarks.experiment import save
from twin.errors import TwinError
from twin.fit.judge import Fitted, WorkloadErrors, fit_and_judge
from twin.fit.law import Rate
from twin.fit.speed_laws import left_out_speeds
from twin.fit.sweep import read_sweep
from twin.physics.families import SHARED


class Sweep(msgspec.Struct, frozen=True):
    """A measured sweep, and how it is fitted."""

    title: str
    path: str
    card: str | None
    rate: Rate
    idle_w: float
    power_column: str | None = None


V100: Final = Sweep("V100", "gpu-dvfs/v100-frequency.csv", None, "work", 24.0)
SWEEPS: Final = (
    V100,
    Sweep("V100, core follows the clock", V100.path, None, "clock", 24.0),
    Sweep("another V100 (counters)", "gpu-v100-counters/v100-counters.csv", None, "work", 24.0),
    Sweep("A100 80GB PCIe", "gpu-clock-powercap/clock-powercap.csv", "A100-PCIe-80GB", "work", 59.0),
    Sweep("RTX PRO 6000", "gpu-clock-powercap/clock-powercap.csv", "RTX-PRO-6000", "work", 30.0),
    Sweep("GTX 1080 Ti", "gpu-core-mem-dvfs/core-mem-dvfs.csv", "GTX-1080-Ti", "work", 15.0),
    Sweep("RTX 2070 SUPER", "gpu-core-mem-dvfs/core-mem-dvfs.csv", "RTX-2070-SUPER", "work", 15.0),
    Sweep("2 x EPYC 7502, RAPL", "cpu-epyc-rome/power-by-threads.csv", None, "clock", 0.0, "rapl_package_w"),
    Sweep("2 x EPYC 7502, AC", "cpu-epyc-rome/power-by-threads.csv", None, "clock", 0.0, "ac_power_w"),
    Sweep("2 x Skylake under caps", "cpu-gpu-caps/cpu-cap-pcm.csv", None, "clock", 0.0),
    Sweep("2 x Sandy Bridge node (EP)", "cpu-dvfs/taurus-nas-ep-c.csv", None, "clock", 0.0),
)
"""Idle watts of the cards without a machine are ours."""


def fitted(sweep: Sweep) -> Fitted:
    """One sweep, fitted and judged."""
    return fit_and_judge(read_sweep(SHARED / sweep.path, sweep.card, sweep.power_column), sweep.rate, sweep.idle_w)


def _speeds(titles: Sequence[str]) -> dict[str, dict[str, WorkloadErrors]]:
    """Errors of speeds between the given highest and lowest clock; prints them."""
    print(f"\nspeed of left-out workloads, given at two clocks\n{'sweep':32}{'beta: median, 95 %, worst':41} knee")
    found = {}
    for sweep in SWEEPS:
        if sweep.title not in titles or sweep.rate == "clock":
            continue
        errors = left_out_speeds(read_sweep(SHARED / sweep.path, sweep.card, sweep.power_column))
        cells = [f"{e.median_pct:6.2f}{e.p95_pct:7.2f}{e.worst_pct:7.2f} {e.worst:20.20}" for e in errors.values()]
        print(f"{sweep.title:32}" + " ".join(cells))
        found[sweep.title] = errors
    return found


def unmet(result: Fitted) -> list[str]:
    """The requirements on the V100 table that this result does not meet."""
    two, top = result.verdict.two_clocks, result.verdict.top_clock
    assert two is not None
    assert top is not None
    checks = (
        ("median, two clocks given", two.median_pct, 2.0),
        ("worst, two clocks given", two.worst_pct, 6.0),
        ("median, top clock given", top.median_pct, 4.0),
        ("95 % of points, top clock given", top.p95_pct, 12.0),
    )
    return [f"{what}: {found:.2f} %, required {most:g} %" for what, found, most in checks if found > most]


def _row(title: str, result: Fitted) -> str:
    cells = [
        f"{e.median_pct:6.2f}{e.p95_pct:7.2f}{e.worst_pct:7.2f} {e.worst:20.20}" if e else f"{'-':>20} {'':20}"
        for e in (result.verdict.residual, result.verdict.two_clocks, result.verdict.top_clock)
    ]
    return f"{title:29}{len(result.shares_w):3}  " + " ".join(cells)


def main(argv: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.twin_fit", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="the V100 table alone")
    quick = parser.parse_args(argv).quick
    if not (SHARED / V100.path).exists():
        print(f"twin_fit: needs {SHARED / V100.path}")
        return 1
    print("errors of watts, per cent: median, 95 %, worst and its workload")
    print(f"{'sweep':29}{'of':>3}  {'all watts given':41} {'left out, two clocks given':41} left out, top clock given")
    results: dict[str, Fitted] = {}
    for sweep in SWEEPS[:1] if quick else SWEEPS:
        try:
            results[sweep.title] = fitted(sweep)
        except TwinError as error:
            print(f"{sweep.title:29}{error}")
            continue
        print(_row(sweep.title, results[sweep.title]))
    print("\nV100, worst of each workload: all given, two clocks, top clock")
    for name, worst in results["V100"].verdict.worst_of.items():
        print(f"  {name:14}" + " ".join(f"{x:6.1f}" for x in worst))
    missed = unmet(results["V100"])
    print("required on the V100 table: " + ("met" if not missed else "; ".join(missed)))
    speeds = _speeds(list(results))
    tables: dict[str, dict[str, WorkloadErrors | None]] = {
        title: {
            "residual": r.verdict.residual, "two_clocks": r.verdict.two_clocks, "top_clock": r.verdict.top_clock
        }
        for title, r in results.items()
    }  # fmt: skip
    print("JSON:", save("twin_fit", {"sweeps": tables, "speeds": speeds}))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main())
