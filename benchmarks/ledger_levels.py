"""The budget as a tree: no level is ever over, with a million events of every fault, and what a level costs.

Worlds as in ``ledger`` with two rooms of two racks (``ledger_groups``), whose limits change, too, some without notice.
All counts are EMULATED nodes' watts against the ledger's and the nodes' own code. Rule 11 is then left out, by a
subclass whose groups have room for every raise, and must be seen to break the promise of a group.

The cost: one plan by ``fspc`` and the grants of all nodes after a raise of the budget, without groups and with trees
of one to four levels, 40 nodes to a rack; once no limit binds, once that of every rack, once that of every group of the
widest level. Medians of processor time.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np

from benchmarks.experiment import save
from benchmarks.ledger_world import EVERYTHING, KINDS, Faults, World
from cluster_agent.budget.accounts import Bools, Ints
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.levels import Group, Levels
from cluster_agent.budget.plan import plan
from cluster_agent.budget.sharers import registry
from cluster_agent.budget.sharers.turn import Sharing
from cluster_agent.store.database import Database
from cluster_agent.store.ledger_store import SqliteLedgerStore
from foundation.wire.power_messages import Declaration, Grant, Report
from tests.yardstick import yardstick_us


def _limited(faults: Faults, limit_s: float = 20.0) -> Faults:
    return replace(faults, limit_s=limit_s, change_s=120.0)


WORLDS: Final = {
    "network and agents": _limited(Faults()),
    "a bad network": _limited(KINDS["a bad network"]),
    "kernels and reboots": _limited(KINDS["kernels and reboots"]),
    "cluster agents": _limited(KINDS["cluster agents"]),
    "nodes that leave": _limited(KINDS["nodes that leave"]),
    "nodes that come up": _limited(KINDS["nodes that come up"]),
    "deaf nodes": _limited(KINDS["deaf nodes"], 3.0),
    "all": replace(EVERYTHING, limit_s=20.0),
}
EVENTS: Final = 31_250
SEEDS: Final = 4
RACK: Final = 40
SIZES: Final = (1_000, 10_000, 100_000)
NODE: Final = Declaration(500_000, 200_000, 250_000, 350_000, "os", watchdog_ms=10_000)
REPEATS: Final = 5
TIGHT_W, AMPLE_W = 360.0, 550.0
LEVELS: Final = {
    "": (), "racks": (1,), "rooms, racks": (25, 1), "rooms, rows, racks": (25, 5, 1),
    "buildings, rooms, rows, racks": (125, 25, 5, 1),
}  # fmt: skip
"""Levels by name, each with how many racks one of its groups has."""


class IgnoresGroups(Ledger):
    """Rule 11 off: every group has room for every raise."""

    def _fit_groups(self, now_s: float, at: Ints, costs_mw: Ints) -> Bools:
        return np.ones(len(at), np.bool_)


def faulty(kind: str, seeds: int, events: int, ledger_type: type[Ledger] = Ledger) -> dict[str, Any]:
    """What was over at which level, in some worlds of one kind."""
    over: Counter[str] = Counter()
    used: dict[str, float] = defaultdict(float)
    promised: dict[str, float] = defaultdict(float)
    worst_mw = n_events = changes = 0
    for seed in range(seeds):
        world = World(seed, faults=WORLDS[kind], ledger_type=ledger_type)
        totals = world.run(events)
        n_events += totals.events
        over["site"] += totals.violations
        used["site"] += totals.used_mws
        promised["site"] += totals.promised_mws
        changes += sum(n for what, n in totals.counted.items() if what.startswith("limit changed"))
        assert world.groups is not None
        for name, one in world.groups.groups.items():
            level = name.rstrip("0123456789")
            over[level] += one.violations
            used[level] += one.used_mws
            promised[level] += one.promised_mws
            worst_mw = max(worst_mw, one.worst_mw)
    return {
        "world": kind, "events": n_events, "limits_changed": changes, "worst_w": worst_mw / 1000,
        **{f"over_{level}": over[level] for level in ("site", "room", "rack")},
        **{f"used_percent_{level}": 100 * used[level] / promised[level] for level in ("site", "room", "rack")},
    }  # fmt: skip


def tree(n: int, racks_of: tuple[int, ...], binds: str = "") -> Levels:
    """A tree over ``n`` nodes, each level with so many racks to a group; ``binds``: the level whose limits are less
    than the budget has for each node, "racks" or "widest"."""
    groups: list[Group] = []
    for level, racks in enumerate(racks_of):
        size = racks * RACK
        for first in range(0, n, size):
            last = min(first + size, n)
            parent = f"{level - 1}-{first // (racks_of[level - 1] * RACK)}" if level else ""
            is_tight = (binds, level) in (("racks", len(racks_of) - 1), ("widest", 0))
            limit_w = TIGHT_W if is_tight else AMPLE_W
            nodes = tuple(f"n{at:06d}" for at in range(first, last)) if level == len(racks_of) - 1 else ()
            groups.append(Group(f"{level}-{first // size}", round((last - first) * limit_w * 1000), nodes, parent))
    return Levels(groups)


class Partition:
    """``n`` nodes that have confirmed a cap of their MOP, in a tree."""

    def __init__(self, at: Path, n: int, levels: Levels) -> None:
        self.database = Database(at)
        self.n, self.now_s = n, 0.0
        store = SqliteLedgerStore(self.database, "boot-1")
        self.ledger = Ledger(store, Terms(0, 1), BudgetLine(n * 600_000), 0.0, levels)
        self._confirm([Grant(f"n{at:06d}", 0, "b", 0, NODE.mop_mw, 0, 0, False) for at in range(n)])
        self._confirm(self.ledger.grants(0.0, self.ledger.accounts.names))

    def _confirm(self, grants: list[Grant]) -> None:
        self.now_s += 1.0
        at_ns = round(self.now_s * 1e9)
        self.ledger.hear(self.now_s, *(
            Report(one.node, "b", at_ns, one.epoch, one.epoch, one.sequence, one.cap_mw, "seen", -1, NODE)
            for one in grants
        ))  # fmt: skip

    def change(self, watts: float) -> dict[str, float]:
        """The budget is so much a node from now on: processor seconds of the plan and of the grants."""
        self.ledger.budget.set(round(self.n * watts * 1000))
        begin_s = time.process_time()
        plan(self.ledger, self.now_s, Sharing(registry.choose("fspc").share, self.ledger, ()))
        planned_s = time.process_time()
        grants = self.ledger.grants(self.now_s)
        end_s = time.process_time()
        assert len(grants) == self.n
        self._confirm(grants)
        return {"plan_s": planned_s - begin_s, "grants_s": end_s - planned_s}


def cost(n: int, repeats: int) -> list[dict[str, Any]]:
    """For each tree: of a raise of all caps, where limits bind and where they do not."""
    rows = []
    for name, racks_of in LEVELS.items():
        for binds in ("", "racks", "widest")[: min(len(racks_of), 2) + 1]:
            with tempfile.TemporaryDirectory() as directory:
                partition = Partition(Path(directory) / "a.db", n, tree(n, racks_of, binds))
                partition.change(300.0)
                took = []
                for _ in range(repeats):
                    took.append(partition.change(420.0))
                    partition.change(300.0)
                partition.database.close()
            median = {key: statistics.median(one[key] for one in took) for key in took[0]}
            rows.append({"nodes": n, "levels": name, "groups": len(partition.ledger.levels), "binds": binds, **median})
            print(f"{n:7d} {name or 'none':30} {len(partition.ledger.levels):6d} {binds:6} "
                  f"{1e3 * median['plan_s']:8.1f} {1e3 * median['grants_s']:8.1f} {yardstick_us(20):9.0f}",
                  flush=True)  # fmt: skip
    return rows


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the events, and no 100,000 nodes")
    is_quick = parser.parse_args(arguments).quick
    print("EMULATED nodes, agents and networks; the ledger's and the nodes' own code")
    print(f"{'faults':24} {'events':>8} {'changes':>7} {'over: site':>10} {'rooms':>6} {'racks':>6} {'worst W':>8} "
          f"{'used %: site':>12} {'rooms':>6} {'racks':>6}")  # fmt: skip
    rows = []
    for kind in WORLDS:
        rows.append({"rules": "all rules", **faulty(kind, SEEDS, EVENTS // 10 if is_quick else EVENTS)})
        _print(kind, rows[-1])
    is_kept = not any(row[f"over_{level}"] for row in rows for level in ("site", "room", "rack"))
    events, changes = (sum(row[key] for row in rows) for key in ("events", "limits_changed"))
    verdict = "no level was ever over" if is_kept else "NOT as claimed: a level was over"
    print(f"all rules: {events} events, {changes} changes of a limit; {verdict}")
    rows.append({"rules": "without 11, groups", **faulty("network and agents", 1, EVENTS, IgnoresGroups)})
    _print("without rule 11", rows[-1])
    is_kept &= rows[-1]["over_rack"] > 0
    print(f"{'nodes':>7} {'levels':30} {'groups':>6} {'binds':6} {'plan ms':>8} {'grants':>8} {'yardstick':>9}")
    costs = [row for n in (SIZES[:-1] if is_quick else SIZES) for row in cost(n, 1 if is_quick else REPEATS)]
    save("ledger_levels", {"rows": rows, "costs": costs})
    return 0 if is_kept else 1


def _print(kind: str, row: dict[str, Any]) -> None:
    print("{kind:24} {events:8d} {limits_changed:7d} {over_site:10d} {over_room:6d} {over_rack:6d} {worst_w:8.1f} "
          "{used_percent_site:12.1f} {used_percent_room:6.1f} {used_percent_rack:6.1f}".format(kind=kind, **row),
          flush=True)  # fmt: skip


if __name__ == "__main__":
    raise SystemExit(main())
