"""What the links cost: from an event to confirmed caps over real CURVE sockets, and planning for very many nodes.

1000 simulated agents (real leases, real links, no hardware) in a few client processes; every key pair is its own. The
event: one node's declaration changes, so that it needs other watts and others get them in the same plan; measured is
the time from its report's sending to the confirmation of each new cap by the cluster agent, raises first (no decrease
is waited for). All on this machine's loopback, clients included, so the figures are upper bounds of the agent's own.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import resource
import tempfile
import time
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import zmq

from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.budget.line import BudgetLine
from cluster_agent.budget.plan import plan
from cluster_agent.fabric.allowed import FILE
from cluster_agent.serve.config import BudgetSettings, NodeSettings, Settings
from cluster_agent.serve.server import Server, Unstored
from cluster_agent.serve.sharing import Sharing
from nodectl.keys import KeyPair, write_pair
from nodectl.lease import NodeLease
from nodectl.link import ClusterLink
from nodectl.wire import Declaration

OUT = Path(__file__).parent.parent / "out" / "bench" / "fabric.json"
DECLARED = Declaration(500_000, 150_000, 200_000, 0, "os", 200)
P50_MS, P99_MS, RSS_MB = 150.0, 500.0, 150.0


def pair() -> KeyPair:
    public, secret = zmq.curve_keypair()
    return KeyPair(public.decode(), secret.decode())


def clients(url: str, server: str, names: list[tuple[str, KeyPair]], pipe: Connection) -> None:
    """Agents until told to end: report once a second, confirm a grant as soon as it comes."""
    context = zmq.Context.instance()
    context.set(zmq.MAX_SOCKETS, 65_535)
    links = [ClusterLink(url, keys, server) for _, keys in names]
    now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    leases = [NodeLease(name, "boot-1", DECLARED, 200_000, now_ns) for name, _ in names]
    due_s = [time.monotonic() + i / len(names) for i in range(len(names))]
    confirmed: list[tuple[float, int]] = []
    while not pipe.poll(0.002):
        for i, (link, lease) in enumerate(zip(links, leases, strict=True)):
            is_news = False
            for grant in link.receive():
                now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
                before_mw = lease.cap_mw
                if not lease.take(now_ns, grant):
                    lease.confirm("seen")
                    is_news |= grant.cap_mw != before_mw
                    if grant.cap_mw != before_mw:
                        confirmed.append((time.monotonic(), grant.cap_mw))
            if is_news or time.monotonic() >= due_s[i]:
                link.send(lease.report(time.clock_gettime_ns(time.CLOCK_BOOTTIME), 180_000))
                due_s[i] = time.monotonic() + 1.0
    pipe.send(confirmed)


def over_sockets(n: int, processes: int, events: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as directory:
        at = Path(directory)
        own = pair()
        write_pair(at / "cluster.key", own)
        names = [(f"n{i:05d}", pair()) for i in range(n)]
        (at / FILE).write_text("".join(f"node {name} {keys.public}\n" for name, keys in names))
        settings = Settings(
            "tcp://127.0.0.1:*", False, directory, str(at / "a.db"), str(at / "a.sock"), [], "cap", "fspc", "easy",
            BudgetSettings(n * 300.0), NodeSettings(200.0, 0, 10.0),
        )  # fmt: skip
        server = Server(settings, lambda line: None)
        spawn = multiprocessing.get_context("spawn")
        started, pipes = [], []
        for part in range(processes):
            here, there = spawn.Pipe()
            arguments = (server.router.url, own.public, names[part::processes], there)
            started.append(spawn.Process(target=clients, args=arguments, daemon=True))
            started[-1].start()
            pipes.append(here)
        ledger = server.partition.ledger

        def until(target_mw: int) -> list[float]:
            """Step until every node has confirmed this cap; when each did."""
            open_names = {name for name, _ in names}
            when: list[float] = []
            deadline = time.monotonic() + 120.0
            while open_names and time.monotonic() < deadline:
                server.step(0.1)
                done = [
                    name for name in open_names
                    if name in ledger.accounts and ledger.accounts[name].limit_mw == target_mw
                    and ledger.accounts[name].has_confirmed
                ]  # fmt: skip
                when += [time.monotonic()] * len(done)
                open_names.difference_update(done)
            return when

        began = time.monotonic()
        connected = len(until(300_000))
        connect_s = time.monotonic() - began
        times: list[float] = []
        for event in range(events):
            target_mw = 310_000 + 1_000 * event  # a raise for everybody: no decrease is waited for
            began = time.monotonic()
            ledger.budget.set(n * target_mw)
            times += [moment - began for moment in until(target_mw)]
            for _ in range(20):
                server.step(0.05)
        rss_mb = psutil.Process().memory_info().rss / 1e6
        for pipe in pipes:
            pipe.send("end")
        for process in started:
            process.join(20)
            if process.is_alive():
                process.kill()
        server.close()
    p50, p99 = (float(np.percentile(times, q)) * 1e3 for q in (50, 99)) if times else (float("nan"),) * 2
    return {"agents": n, "connected": connected, "connect_s": connect_s, "caps": len(times), "p50_ms": p50,
            "p99_ms": p99, "rss_mb": rss_mb}  # fmt: skip


def rebalance(n: int) -> dict[str, Any]:
    """One plan and one round of grants for n nodes that all are to be lowered."""
    ledger = Ledger(Unstored(), Terms(0, 8), BudgetLine(n * 300_000), 0.0)
    leases = [NodeLease(f"n{i}", "boot-1", DECLARED, 350_000, 0) for i in range(n)]
    ledger.hear(1.0, *(lease.report(1_000_000_000, 180_000) for lease in leases))
    sharing = Sharing("fspc")
    began = time.process_time()
    plan(ledger, 1.0, lambda at, mw: sharing.share(ledger, at, mw))
    planned = time.process_time()
    grants = ledger.grants(1.0, list(ledger.accounts))
    return {"nodes": n, "plan_ms": 1e3 * (planned - began), "grants_ms": 1e3 * (time.process_time() - planned),
            "grants": len(grants)}  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="200 agents, 2 events, 10 000 nodes")
    is_quick = parser.parse_args(arguments).quick
    n, events = (200, 2) if is_quick else (1000, 5)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    result: dict[str, Any] = {"load": psutil.getloadavg()[0], "cpus": psutil.cpu_count()}
    result["rebalance"] = [rebalance(size) for size in ((10_000,) if is_quick else (10_000, 100_000))]
    for row in result["rebalance"]:
        print("{nodes:7d} nodes: plan {plan_ms:.0f} ms, {grants} grants {grants_ms:.0f} ms (CPU time)".format(**row))
    result["sockets"] = over_sockets(n, 4, events)
    row = result["sockets"]
    print(
        "{agents} agents over CURVE: {connected} connected and capped in {connect_s:.1f} s; {caps} caps confirmed, "
        "p50 {p50_ms:.0f} ms, p99 {p99_ms:.0f} ms; RSS {rss_mb:.0f} MB".format(**row),
        f"(load {result['load']:.1f} on {result['cpus']} CPUs, descriptors {soft}/{hard})",
    )
    OUT.parent.mkdir(parents=True, exist_ok=True)
    OUT.write_text(json.dumps(result, indent=1))
    holds = row["p50_ms"] <= P50_MS and row["p99_ms"] <= P99_MS and row["rss_mb"] <= RSS_MB
    return 0 if holds or is_quick else 1


if __name__ == "__main__":
    raise SystemExit(main())
