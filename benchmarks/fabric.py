"""What the links cost: from an event to confirmed caps over real CURVE sockets, and 10 000 nodes that report.

Simulated agents (``fabric_clients``: real leases, codec and sockets, no hardware) in a few client processes; every key
pair is its own. All on this machine's loopback, and the clients share its processors with the cluster agent, whose own
processor time is listed apart. Two kinds of events, neither of which waits for a decrease:

- *raise*: the budget rises, and with it the caps of all nodes;
- *start*: a job starts on 8 nodes that idle at their MOP, and they get their TDP (``aapc``).

Measured for each cap, from the event to when the cluster agent has heard that it is confirmed.
"""

from __future__ import annotations

import argparse
import gc
import math
import multiprocessing
import os
import resource
import signal
import statistics
import tempfile
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from multiprocessing.process import BaseProcess
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import psutil
import zmq

from benchmarks import fabric_clients
from benchmarks.experiment import save
from benchmarks.fabric_clients import DECLARED
from cluster_agent.budget.accounts import Ints
from cluster_agent.budget.sharers.view import Job, Tag
from cluster_agent.fabric.allowed import FILE
from cluster_agent.serve.config import BudgetSettings, NodeSettings, Settings
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.server import Server
from foundation.wire.keys import KeyPair, write_pair
from foundation.wire.power_messages import Report
from tests.yardstick import yardstick_us

P50_MS, P99_MS, RSS_MB, GAP_MS = 150.0, 500.0, 150.0, 1000.0
NODES_OF_A_START = 8


def pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


class Swarm:
    """A cluster agent in this process and ``n`` nodes in others, which join over ``starts_s`` and report every
    ``period_s``."""

    def __init__(self, n: int, processes: int, sharer: str, starts_s: float, period_s: float = 1.0) -> None:
        self.n, self._processes, self._starts_s, self._period_s = n, processes, starts_s, period_s
        self._directory = tempfile.TemporaryDirectory()
        at = Path(self._directory.name)
        own = pair()
        write_pair(at / "cluster.key", own)
        self._nodes = [(f"n{i:05d}", pair()) for i in range(n)]
        (at / FILE).write_text("".join(f"node {name} {keys.public}\n" for name, keys in self._nodes))
        settings = Settings(
            "tcp://127.0.0.1:*", False, str(at), str(at / "a.db"), str(at / "a.sock"), [], "cap", sharer,
            BudgetSettings(n * 300.0), nodes=NodeSettings(tdp_w=200.0, failing_together=0),
        )  # fmt: skip
        self.server = Server(settings, lambda line: None)
        self.partition, self.ledger = self.server.partition, self.server.partition.ledger
        self.heard = 0
        self._public = own.public
        self._started: list[tuple[BaseProcess, Connection]] = []
        receive = self.server.router.receive

        def counted(now_s: float) -> list[Report]:
            reports = receive(now_s)
            self.heard += len(reports)
            return reports

        self.server.router.receive = counted  # type: ignore[method-assign]

    def __enter__(self) -> Swarm:
        spawn = multiprocessing.get_context("spawn")
        for _ in range(self._processes):
            here, there = spawn.Pipe()
            arguments = (self.server.router.url, self._public, self._starts_s, self._period_s, there)
            process = spawn.Process(target=fabric_clients.run, args=arguments, daemon=True)
            process.start()
            self._started.append((process, here))
        for part, (_, pipe) in enumerate(self._started):
            pipe.send(self._nodes[part :: self._processes])
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for process, _ in self._started:
            if process.is_alive():
                process.kill()
        self.server.close()
        self._directory.cleanup()

    def end(self) -> tuple[int, int, float]:
        """The clients' sum of reports sent and of those sent late, and their processor seconds."""
        for _, pipe in self._started:
            pipe.send("end")
        counts = [pipe.recv() if pipe.poll(30) else (0, 0, math.nan) for _, pipe in self._started]
        return sum(one[0] for one in counts), sum(one[1] for one in counts), sum(one[2] for one in counts)

    def report_every(self, period_s: float) -> None:
        """From now on."""
        for _, pipe in self._started:
            pipe.send(f"{period_s}")

    def agent_s(self) -> float:
        """The processor seconds of the cluster agent and its front process so far."""
        return time.process_time() + self.front_s()

    def rss_mb(self) -> float:
        """The memory of both."""
        return sum(psutil.Process(pid).memory_info().rss for pid in (None, self.server.router.front_pid)) / 1e6

    def pss_mb(self) -> float:
        """The same, with pages that several processes have counted in equal parts to each."""
        return sum(psutil.Process(pid).memory_full_info().pss for pid in (None, self.server.router.front_pid)) / 1e6

    def front_s(self) -> float:
        """Those of the front process alone."""
        return sum(psutil.Process(self.server.router.front_pid).cpu_times()[:2])

    def clients_s(self) -> float:
        """The processor seconds of the clients so far."""
        return sum(sum(psutil.Process(process.pid).cpu_times()[:2]) for process, _ in self._started)

    def confirmed(self, at: Ints, target_mw: int) -> Any:
        """Which of these nodes certainly have this cap."""
        accounts = self.ledger.accounts
        return (accounts.limit_mw[at] == target_mw) & (accounts.target_mw[at] == target_mw) & accounts.has_confirmed[at]

    def until(self, at: Ints, target_mw: int, patience_s: float) -> list[float]:
        """Step until these nodes have confirmed this cap: when each of them had."""
        when: list[float] = []
        deadline = time.monotonic() + patience_s
        while len(at) and time.monotonic() < deadline:
            self.server.step(0.1)
            is_done = self.confirmed(at, target_mw)
            when += [time.monotonic()] * int(is_done.sum())
            at = at[~is_done]
        return when

    def rest(self, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            self.server.step(0.05)

    def join(self, target_mw: int, patience_s: float) -> float:
        """Until all nodes are known and capped: how long that took."""
        began = time.monotonic()
        while len(self.ledger.accounts) < self.n or not self.ledger.accounts.is_heard.all():
            self.server.step(0.1)
            if time.monotonic() - began > patience_s:
                raise SystemExit(f"only {int(self.ledger.accounts.is_heard.sum())} of {self.n} nodes came in time")
        left = self.n - len(self.until(np.arange(self.n), target_mw, patience_s))
        if left:
            raise SystemExit(f"{left} of {self.n} nodes were not capped in time")
        return time.monotonic() - began


def raises(n: int, processes: int, events: int) -> dict[str, Any]:
    """The budget rises: every node gets more."""
    with Swarm(n, processes, "fspc", 5.0) as swarm:
        connect_s = swarm.join(300_000, 300.0)
        swarm.rest(2.0)

        def event(number: int) -> tuple[Ints, int]:
            target_mw = 310_000 + 1_000 * number
            swarm.ledger.budget.set(n * target_mw)
            return np.arange(n), target_mw

        row = _timed(swarm, events, event, 1.0)
        gc.collect()
        return row | {"what": "raise", "agents": n, "connect_s": connect_s,
                      "rss_mb": swarm.rss_mb(), "pss_mb": swarm.pss_mb()}  # fmt: skip


def starts(n: int, processes: int, events: int) -> dict[str, Any]:
    """Jobs start on idle nodes, one after the other."""
    running: list[Job] = []
    with Swarm(n, processes, "aapc", 5.0) as swarm:
        swarm.ledger.budget.set(n * DECLARED.tdp_mw)
        swarm.partition.sharing = Sharing("aapc", lambda: running)
        swarm.join(DECLARED.mop_mw, 300.0)
        swarm.rest(2.0)
        names = swarm.ledger.accounts.names

        def event(number: int) -> tuple[Ints, int]:
            at = np.arange(number * NODES_OF_A_START, (number + 1) * NODES_OF_A_START) % n
            running.append(Job(f"j{number}", [names[place] for place in at.tolist()], Tag.COMPUTE))
            now_s = time.clock_gettime(time.CLOCK_BOOTTIME)
            swarm.partition.happened(now_s, "start")
            for grant in swarm.partition.turn(now_s):
                swarm.server.router.send(grant)
            return at, DECLARED.tdp_mw

        return _timed(swarm, events, event, 0.2) | {"what": "start", "agents": n}


def restarts(n: int, processes: int, times: int) -> dict[str, Any]:
    """The front process is aborted: how long nobody listens, and until all nodes are heard again."""
    with Swarm(n, processes, "fspc", 5.0) as swarm:
        swarm.join(300_000, 300.0)
        swarm.rest(2.0)
        accounts, budget_mw = swarm.ledger.accounts, swarm.ledger.budget.budget_mw
        gaps_ms: list[float] = []
        half_s: list[float] = []
        all_s: list[float] = []
        most_mw = 0
        for _ in range(times):
            began_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            os.kill(swarm.server.router.front_pid, signal.SIGABRT)
            took_s: list[float] = []
            while len(took_s) < n and (now_s := 1e-9 * (time.clock_gettime_ns(time.CLOCK_BOOTTIME) - began_ns)) < 60.0:
                swarm.server.step(0.05)
                most_mw = max(most_mw, swarm.ledger.total_mw)
                heard = int((accounts.report_id > began_ns + 1_000_000).sum()) if swarm.server.router.gap_s else 0
                took_s += [now_s] * (heard - len(took_s))
            gaps_ms.append(1e3 * swarm.server.router.gap_s)
            half_s.append(took_s[n // 2 - 1] if len(took_s) >= n // 2 else math.inf)
            all_s.append(took_s[-1] if len(took_s) == n else math.inf)
            swarm.rest(3.0)
        swarm.end()
    return {
        "agents": n, "times": times, "gap_ms": statistics.median(gaps_ms), "longest_gap_ms": max(gaps_ms),
        "half_s": statistics.median(half_s), "all_s": statistics.median(all_s), "last_s": max(all_s),
        "over_w": max(most_mw - budget_mw, 0) / 1000, "load": psutil.getloadavg()[0], "yardstick_us": yardstick_us(50),
    }  # fmt: skip


def _timed(swarm: Swarm, events: int, event: Callable[[int], tuple[Ints, int]], pause_s: float) -> dict[str, Any]:
    """Milliseconds per cap, and the cluster agent's processor time per event, without that for reports that had come
    anyway."""
    began_s, heard, began = swarm.agent_s(), swarm.heard, time.monotonic()
    swarm.rest(3.0)
    report_s = (swarm.agent_s() - began_s) / max(swarm.heard - heard, 1)
    busy = (swarm.agent_s() - began_s) / (time.monotonic() - began)
    times_ms: list[float] = []
    cpu_ms: list[float] = []
    expected = 0
    for number in range(events):
        began, began_s, heard = time.monotonic(), swarm.agent_s(), swarm.heard
        at, target_mw = event(number)
        times_ms += [1e3 * (moment - began) for moment in swarm.until(at, target_mw, 60.0)]
        others = swarm.heard - heard - len(at)
        cpu_ms.append(1e3 * (swarm.agent_s() - began_s - report_s * max(others, 0)))
        expected += len(at)
        swarm.rest(pause_s)
    sent, late, client_s = swarm.end()
    return {
        "events": events, "caps": len(times_ms), "expected": expected,
        "p50_ms": float(np.percentile(times_ms, 50)), "p99_ms": float(np.percentile(times_ms, 99)),
        "agent_cpu_ms": statistics.median(cpu_ms), "agent_idle_percent": 100 * busy, "report_us": 1e6 * report_s,
        "sent": sent, "late": late, "clients_cpu_s": client_s,
        "yardstick_us": yardstick_us(50), "load": psutil.getloadavg()[0],
    }  # fmt: skip


def many(n: int, processes: int, seconds: float, period_s: float, joining_s: float) -> dict[str, Any]:
    """So many nodes that report, all of them capped: how old what is known of them is, and at what cost. ``joining_s``:
    between two reports of a node until all are there."""
    with Swarm(n, processes, "fspc", n / 250, joining_s) as swarm:
        accounts = swarm.ledger.accounts
        rss_mb, began_s = swarm.rss_mb(), swarm.agent_s()
        connect_s = swarm.join(300_000, 500.0)
        joined_s = swarm.agent_s() - began_s
        if joining_s != period_s:
            swarm.report_every(period_s)
        swarm.rest(5.0)
        heard, began, began_s, front_s = swarm.heard, time.monotonic(), swarm.agent_s(), swarm.front_s()
        clients_s = swarm.clients_s()
        ages_s: list[np.ndarray[Any, np.dtype[np.float64]]] = []
        while time.monotonic() - began < seconds:
            swarm.rest(0.5)
            ages_s.append(time.clock_gettime(time.CLOCK_BOOTTIME) - accounts.report_id / 1e9)
        took, heard = time.monotonic() - began, swarm.heard - heard
        used_s, front_s = swarm.agent_s() - began_s, swarm.front_s() - front_s
        age_s = np.concatenate(ages_s)
        row = {
            "agents": n, "period_s": period_s, "seconds": took, "connect_s": connect_s,
            "connect_ms_each": 1e3 * joined_s / n, "heard_percent": 100 * heard * period_s / (n * took),
            "fresh_percent": 100 * float((age_s <= 1 + period_s).mean()),
            "age_p50_s": float(np.percentile(age_s, 50)), "age_p99_s": float(np.percentile(age_s, 99)),
            "agent_cpu_percent": 100 * used_s / took, "front_percent": 100 * front_s / took,
            "report_us": 1e6 * used_s / max(heard, 1),
            "clients_cpu_percent": 100 * (swarm.clients_s() - clients_s) / took,
            "silent": int(swarm.ledger.is_silent(time.clock_gettime(time.CLOCK_BOOTTIME)).sum()),
            "rss_mb": swarm.rss_mb(), "rss_before_mb": rss_mb,
            "yardstick_us": yardstick_us(50), "load": psutil.getloadavg()[0],
        }  # fmt: skip
        sent, late, _ = swarm.end()
    return row | {"late_percent": 100 * late / max(sent, 1)}


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--quick", action="store_true", help="200 agents, few events; 1000 instead of 10 000 that report"
    )
    parser.add_argument("--only", choices=("raise", "start", "many", "restart"), help="one of the parts")
    parser.add_argument("--peers", type=int, default=0, help="so many that report instead of 10 000")
    parser.add_argument("--period", type=float, default=1.0, help="seconds between two reports of one of the many")
    parser.add_argument("--joining", type=float, help="the same until all of them are there")
    options = parser.parse_args(arguments)
    n, events = (200, 2) if options.quick else (1000, 5)
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    rows: list[dict[str, Any]] = []
    if options.only in (None, "raise"):
        rows.append(raises(n, 2, events))
    if options.only in (None, "start"):
        rows.append(starts(n, 2, 10 * events))
    for row in rows:
        print("{what} with {agents} agents over CURVE: {caps} of {expected} caps confirmed, p50 {p50_ms:.0f} ms, p99 "
              "{p99_ms:.0f} ms; cluster agent {agent_cpu_ms:.0f} ms of a processor an event, {agent_idle_percent:.0f} %"
              " of one between them, {report_us:.0f} us a report (load {load:.1f}, yardstick {yardstick_us:.0f} us)"
              .format(**row))  # fmt: skip
        if "rss_mb" in row:
            print(
                "all connected and capped in {connect_s:.1f} s; RSS {rss_mb:.0f} MB, PSS {pss_mb:.0f} MB".format(**row)
            )
    is_met = all(row["p50_ms"] <= P50_MS and row["p99_ms"] <= P99_MS and row["caps"] == row["expected"] for row in rows)
    is_met &= all(row.get("rss_mb", 0.0) <= RSS_MB for row in rows)
    result: dict[str, Any] = {"events": rows}
    if options.only in (None, "restart"):
        result["restarts"] = row = restarts(n, 2, 5)
        is_met &= row["longest_gap_ms"] <= GAP_MS and row["over_w"] == 0
        print("front process aborted {times} times with {agents} nodes: nobody listens for {gap_ms:.0f} ms (longest "
              "{longest_gap_ms:.0f}); half of the nodes are heard again after {half_s:.1f} s, all after {all_s:.1f} s "
              "(longest {last_s:.1f}); {over_w:.0f} W over the budget (load {load:.1f}, yardstick {yardstick_us:.0f} "
              "us)".format(**row))  # fmt: skip
    if options.only in (None, "many"):
        peers = min(options.peers or (1000 if options.quick else 10_000), hard - 1000)
        result["many"] = row = many(
            peers, 4, 10.0 if options.quick else 30.0, options.period, options.joining or options.period
        )
        print(
            "{agents} agents, a report every {period_s:g} s: all connected and capped in {connect_s:.0f} s "
            "({connect_ms_each:.1f} ms of a processor each); {heard_percent:.1f} % of all reports heard; age of what "
            "is known p50 {age_p50_s:.2f} s, p99 {age_p99_s:.2f} s, {fresh_percent:.2f} % at most a second late, "
            "{silent} silent; cluster agent {agent_cpu_percent:.0f} % of a processor ({front_percent:.0f} % its "
            "front process), {report_us:.0f} us a report, RSS {rss_mb:.0f} MB ({rss_before_mb:.0f} before they came); "
            "clients {clients_cpu_percent:.0f} %, {late_percent:.1f} % sent late (load {load:.1f}, yardstick "
            "{yardstick_us:.0f} us)".format(**row)
        )
    save("fabric", result)
    return 0 if is_met or options.quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
