"""Nodes that go off by a profile made a day ahead, next to every timer (Bridi, PhD thesis, Bologna 2018, ch. 7).

The schedule is the same for all: EST without strictness, on the days of ``benchmarks.profit``. Per load and setting the
joules of nodes without jobs (boots and switch-offs included), the boots, and the instants at which jobs waited for one;
``never``: all nodes stay on. The first day is only seen. The forecast of a day is the profit plan of the day before.
Offsets 70 and 50 are the printed ones; 100 keeps all on, and 0 nothing beyond the mean. Nothing was chosen. EMULATED.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from benchmarks.experiment import save
from benchmarks.profit import LOADS, work
from cluster_agent.cluster import load_machine
from cluster_agent.prices.cooling import our_table, our_temperatures
from cluster_agent.prices.node_profile import (
    WithoutJobs,
    busy_nodes,
    by_profile,
    by_timer,
    extraction,
    used_by_hour,
    whole_nodes,
)
from cluster_agent.prices.profit_days import DAY_S, busy_spells, by_rule, planned
from cluster_agent.prices.profit_model import CHEAP, J_PER_KWH, POWER, Site, Tariff

OFFSETS: Final = (100, 70, 50, 0)
TIMERS_S: Final = (1, 60, 300, 900, 1800, 3600)


def found(load: str) -> dict[str, WithoutJobs]:
    days, machine = LOADS[load][1], load_machine("curie-fat")
    of, highest_w = work(load, days), machine.nodes * machine.node.busy_w[0]
    site = Site(Tariff(CHEAP, POWER), our_table("air", highest_w), our_temperatures("winter", days * DAY_S))
    online = by_rule(of, days, "est", False, "true")
    plan = planned(of, site, days, "multi", "true", 0).carried
    used = busy_nodes(busy_spells(of, online), DAY_S, days * DAY_S)
    rows = {"never": by_timer(used, days * DAY_S, machine, days * DAY_S)}
    for off_s in reversed(TIMERS_S):
        rows[f"timer {off_s} s"] = by_timer(used, off_s, machine, days * DAY_S)
    for offset in OFFSETS:
        on: list[int] = []
        for day in range(1, days):
            before, forecast = (used_by_hour(of, one, day - 1) for one in (online, plan))
            on += whole_nodes(extraction(before, forecast, offset / 100), machine.nodes)
        rows[f"profile, offset {offset}"] = by_profile(used, on, machine, days * DAY_S)
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="low load alone")
    options = parser.parse_args(arguments)
    everything = {}
    for load in ("low",) if options.quick else ("low", "medium"):
        everything[load] = rows = found(load)
        print(f"{load:24} {'kWh':>8} {'boots':>6} {'late':>6}")
        for name, row in rows.items():
            print(f"  {name:22} {row.joules / J_PER_KWH:8.1f} {row.boots:6} {row.late:6}", flush=True)
    save("nodes_ahead", {"rows": everything})
    return 0


if __name__ == "__main__":
    sys.exit(main())
