"""What the page costs: its process with 10,000 nodes and 5,000 jobs for 50 viewers, and the cluster agent's loop.

Two parts. In the first the page's process (``clusterctl page``, as it is installed) asks a cluster agent made of rows
behind the real socket; 50 viewers, each a user with jobs of its own, follow the views by server-sent events, every row
of nodes moves once a second, and the budget moves at moments of chance:

- *first paint*: from the request to the last byte of a view's HTML;
- *update*: from the moment when the cluster agent has a new budget to its event at the last of its viewers, and the
  same of rows: every node is bound by something else;
- *share*: processor time of the page's process over time, with viewers and with one.

In the second the cluster agent is the real one with simulated nodes (``fabric``): how long anything waits for its loop
(``loop_lag``) without the page, with it, and with 50 viewers, in turns.

Before both, what one reading of 10,000 rows of a real ledger costs, and one of 5,000 real jobs of which every second
one runs, as processor time, which a busy machine changes little: the cluster agent's for a part and for all parts, and
the page's, if all rows have changed and if none has; and the same as it was, by full listings.

*slowed*: wall time over processor time of a yardstick (``tests.yardstick``) that is measured every second, that is how
much other work on the machine lengthens a short piece of work. *yard us*: its processor time, 120 to 150 on a machine
left to itself.
"""

from __future__ import annotations

import argparse
import contextlib
import math
import os
import pwd
import random
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from http.client import HTTPResponse
from pathlib import Path
from typing import Any

import msgspec
import psutil
from msgspec.structs import replace

from benchmarks.experiment import save
from benchmarks.fabric import Swarm
from benchmarks.fabric_clients import DECLARED
from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.kept_counts import Change
from cluster_agent.budget.ledger import Terms
from cluster_agent.fabric.people import PROTOCOL, AnswerEnvelope, ReceivedAnswer, unpack_answer
from cluster_agent.page.row_table import RowTable
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.config import JobSettings
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.people_protocol import (
    Changes,
    JobRow,
    ListJobChanges,
    ListJobs,
    ListNodeChanges,
    ListNodes,
    NodeRow,
)
from cluster_agent.serve.row_changes import RowParts
from cluster_agent.serve.server import Unstored
from nodectl.member.lease import NodeLease
from tests.fabric.job_side import ROOT_USER, Side
from tests.page.synthetic_head import SyntheticHead
from tests.yardstick import yardstick_ns

NODES, JOBS, ENDED, VIEWERS = 10_000, 5_000, 5_000, 50
FIRST_S, UPDATE_S, SHARE, WEIGHT_KB = 1.0, 1.0, 0.20, 300.0
UNIT = Path(__file__).parents[1] / "systemd" / "clusterctl-page.service"
FOLLOWED = ("/budget", "/", "/nodes", "/jobs", "/energy")
"""Which views viewers follow, in turn."""


@contextlib.contextmanager
def page_of(head: Path, at: Path) -> Iterator[psutil.Process]:
    """The page's process, with the priority that its unit gives it."""
    command = ["nice", "-n", re.findall(r"(?m)^Nice=(\d+)$", UNIT.read_text())[0]]
    command += [sys.executable, "-m", "cluster_agent.cli", "page", "--socket", str(head), "--name", "main"]
    command += ["--listen", str(at / "page.sock"), "--proxy-socket", str(at / "proxy.sock")]
    command += ["--proxy-user", pwd.getpwuid(os.geteuid()).pw_name]
    started = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert started.stderr is not None
    try:
        if not started.stderr.readline().startswith("clusterctl page:"):
            raise SystemExit(started.stderr.read())
        yield psutil.Process(started.pid)
    finally:
        started.terminate()
        started.wait(30)


def connected(at: Path, path: str, user: str) -> socket.socket:
    """With a request sent."""
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(60)
    peer.connect(str(at / "proxy.sock"))
    peer.sendall(f"GET {path} HTTP/1.1\r\nHost: x\r\nX-Remote-User: {user}\r\nConnection: close\r\n\r\n".encode())
    return peer


def got(at: Path, path: str, user: str) -> bytes:
    """A body."""
    with connected(at, path, user) as peer:
        answer = HTTPResponse(peer)
        answer.begin()
        return answer.read()


class Follower:
    """A viewer who follows a view, in a thread: when each budget arrived, and how many bytes and events there were."""

    def __init__(self, at: Path, view: str, user: str) -> None:
        self._peer, self.view = connected(at, f"/updates?view={view}", user), view
        self.arrived_s: dict[bytes, float] = {}
        self.bytes = self.events = 0
        self._thread = threading.Thread(target=self._follow, daemon=True)
        self._thread.start()

    def _follow(self) -> None:
        """By whole events: a number that is looked for may stand across two packets."""
        rest = b""
        with contextlib.suppress(OSError):
            while part := self._peer.recv(1 << 16):
                now_s = time.monotonic()
                self.bytes += len(part)
                *whole, rest = (rest + part).split(b"\n\n")
                for event in whole:
                    self.events += event.startswith(b"data:")
                    for mark in MARKS:
                        if mark in event:
                            self.arrived_s.setdefault(mark, now_s)

    def close(self) -> None:
        """No more."""
        with contextlib.suppress(OSError):
            self._peer.shutdown(socket.SHUT_RDWR)
        self._thread.join()
        self._peer.close()


MARKS: list[bytes] = []
"""What the events of the view of the budget have when a new one has arrived: a word of its line in the ledger."""


def synthetic(seconds: float, viewers: int) -> dict[str, Any]:
    """The first part. The head and the viewers are threads of this process."""
    MARKS.clear()
    rng = random.Random(5)
    with tempfile.TemporaryDirectory() as folder:
        at = Path(folder)
        with SyntheticHead(at / "head.sock", NODES, JOBS, ENDED, users=VIEWERS) as head, page_of(head.path, at) as page:
            began_s = time.monotonic()
            first = got(at, "/", "user0")
            cold_s = time.monotonic() - began_s
            while len(msgspec.json.decode(got(at, "/api/jobs", "user0"))) < JOBS:
                time.sleep(0.2)
            paints = {view: _paint(at, view, page) for view in (*FOLLOWED, "/nodes/r000n00", "/jobs/1")}
            followers = [Follower(at, FOLLOWED[i % len(FOLLOWED)], f"user{i}") for i in range(viewers)]
            time.sleep(8.0)  # until the first events of all are over
            cpu_s, head_s, then_s, before = _cpu_s(page), head.busy_s, time.monotonic(), dict(head.answered)
            when = [then_s + seconds * (i + rng.random()) / 10 for i in range(10)]
            set_s: dict[bytes, float] = {}
            next_move_s = then_s
            strain: list[tuple[float, float]] = []
            while (now_s := time.monotonic()) < then_s + seconds:
                if when and now_s >= when[0]:
                    when.pop(0)
                    words = f"set it for time number {len(set_s):04d}"
                    MARKS.append(words.encode())
                    set_s[words.encode()] = time.monotonic()
                    head.budget = replace(head.budget, budget_w=3e6 + 1e5 * rng.random())
                    head.changes = [Change(time.time(), "root", words), *head.changes]
                    head.nodes = [replace(row, bound_by=words) for row in head.nodes]
                if now_s >= next_move_s:
                    next_move_s += 1.0
                    head.moves(rng)
                    strain.append(_strain())
                time.sleep(0.01)
            until_s = time.monotonic() + 15.0
            while time.monotonic() < until_s and not all(
                MARKS[-1] in one.arrived_s for one in followers if one.view in ("/budget", "/nodes")
            ):
                time.sleep(0.05)
            took_s = time.monotonic() - then_s
            used_s = _cpu_s(page) - cpu_s
            for one in followers:
                one.close()
            rss_mb = page.memory_info().rss / 1e6

            def updates_s(view: str) -> list[float]:
                """Until the last viewer has it, or what came after it."""
                shown, marks = [one for one in followers if one.view == view], list(set_s)
                return [
                    max(min(one.arrived_s.get(later, math.inf) for later in marks[i:]) for one in shown) - set_s[mark]
                    for i, mark in enumerate(marks)
                ]

            return {
                "viewers": viewers, "cold_first_paint_s": cold_s, "paints": paints, "first_bytes": len(first),
                "updates_s": updates_s("/budget"), "rows_s": updates_s("/nodes"), "share": used_s / took_s,
                "rss_mb": rss_mb,
                "head_share": (head.busy_s - head_s) / took_s,
                "answers_per_s": {kind: (now - before.get(kind, 0)) / took_s for kind, now in head.answered.items()},
                "kb_per_s_and_viewer": sum(one.bytes for one in followers) / viewers / took_s / 1000,
                "events_per_s_and_viewer": sum(one.events for one in followers) / viewers / took_s,
                "load": psutil.getloadavg()[0],
                "slowed": statistics.mean(slowed for slowed, _ in strain),
                "yard_us": statistics.median(yard_us for _, yard_us in strain),
            }  # fmt: skip


def _strain() -> tuple[float, float]:
    """Of five yardsticks: wall time over processor time, and the processor time of one in microseconds."""
    began_s = time.monotonic()
    used_ns = sum(yardstick_ns() for _ in range(5))
    return 1e9 * (time.monotonic() - began_s) / used_ns, used_ns / 5e3


def _paint(at: Path, view: str, page: psutil.Process) -> dict[str, float]:
    """Ten times, each for another viewer, so that nothing is kept from before. ``cpu_s``: of the page's process, which
    polls meanwhile."""
    times_s, weight, used_s = [], 0, _cpu_s(page)
    for number in range(10):
        began_s = time.monotonic()
        weight = len(got(at, view, f"user{number + 20}"))
        times_s.append(time.monotonic() - began_s)
    used_s = _cpu_s(page) - used_s
    assets = sum(len(got(at, name, "user0")) for name in ("/page.css", "/page.js"))
    return {"median_s": statistics.median(times_s), "worst_s": max(times_s), "kb": (weight + assets) / 1000,
            "cpu_s": used_s / 10}  # fmt: skip


def reading() -> dict[str, dict[str, float]]:
    """Processor time, in ms, the least of five: of the cluster agent and of the page, for all rows, and of the cluster
    agent for the costliest answer."""
    at_s = 3.0
    partition = Partition(Unstored(), Terms(failing_together=0), BudgetLine(NODES * 300_000), Sharing("fspc"), 0.0)
    leases = [NodeLease(f"n{number:05d}", "boot-1", DECLARED, 200_000, 0) for number in range(NODES)]

    def report() -> None:
        partition.hear(at_s, [lease.report(round(at_s * 1e9), 150_000 + round(at_s)) for lease in leases])

    def listed(request: ListNodes) -> list[NodeRow]:
        return partition.nodes(at_s, request.after, request.most)

    def changed(request: ListNodeChanges) -> Changes[NodeRow, str]:
        return parts.answer(at_s, NODES, request)

    def full(ask: Ask) -> None:
        rows: list[NodeRow] = ask(ListNodes(most=500), listed)
        while rows:
            rows = ask(ListNodes(rows[-1].name, 500), listed)

    parts = RowParts[str, NodeRow](partition.marks_at, partition.row, "heard_s_ago")
    meter = Ask()
    table = RowTable[NodeRow](ListNodeChanges, lambda request: meter(request, changed), "name", "heard_s_ago")
    found: dict[str, dict[str, float]] = {}
    for name in ("a full listing", "all rows changed", "no row changed"):
        for _ in range(5):
            at_s += 1.0
            if name != "no row changed":
                report()
            meter.begin()
            full(meter) if name == "a full listing" else table.read()
            now = meter.end()
            before = found.get(name, now)
            found[name] = {key: min(before[key], value) for key, value in now.items()}
    return found


def job_reading() -> dict[str, dict[str, float]]:
    """Processor time of the cluster agent, in ms, for all rows of jobs, and for the costliest answer."""
    with tempfile.TemporaryDirectory() as folder:
        side = Side(Path(folder), NODES, settings=JobSettings(jobs_per_user=2 * JOBS))
        side.speak()
        with side.store.together():
            for _ in range(JOBS):
                side.submit(nodes=2 * NODES // JOBS)
        for _ in range(3):
            side.speak()

        def listed(request: ListJobs) -> list[JobRow]:
            rows: list[JobRow] = side.ask[ListJobs](ROOT_USER, request)
            return rows

        def changed(request: ListJobChanges) -> Changes[JobRow, int]:
            found: Changes[JobRow, int] = side.ask[ListJobChanges](ROOT_USER, request)
            return found

        def full() -> None:
            last = 0
            while rows := meter(ListJobs(after=last), listed):
                last = rows[-1].job

        meter = Ask()
        table = RowTable[JobRow](ListJobChanges, lambda request: meter(request, changed), "job", "took_s")
        meter.begin()
        table.read()
        found: dict[str, dict[str, float]] = {}
        for name, read in (("jobs: a full listing", full), ("jobs: none changed", table.read)):
            for _ in range(5):
                meter.begin()
                read()
                now = meter.end()
                before = found.get(name, now)
                found[name] = {key: min(before[key], value) for key, value in now.items()}
        side.database.close()
        return found


class Ask:
    """Asks without a socket: what is sent is encoded and decoded, and timed apart at each end."""

    def begin(self) -> None:
        """Of a reading."""
        self._began_s, self._head_s, self._most_s = time.process_time(), 0.0, 0.0

    def __call__(self, request: Any, answer: Any) -> Any:
        began_s = time.process_time()
        sent = msgspec.msgpack.encode(AnswerEnvelope(PROTOCOL, "", 0, answer(request)))
        took_s = time.process_time() - began_s
        self._head_s, self._most_s = self._head_s + took_s, max(self._most_s, took_s)
        return unpack_answer(request, msgspec.msgpack.decode(sent, type=ReceivedAnswer))

    def end(self) -> dict[str, float]:
        """Milliseconds."""
        whole_s = time.process_time() - self._began_s
        head_ms = 1e3 * self._head_s
        return {"head_ms": head_ms, "answer_ms": 1e3 * self._most_s, "page_ms": 1e3 * whole_s - head_ms}


def _cpu_s(process: psutil.Process) -> float:
    return sum(process.cpu_times()[:2])


def lag(nodes: int, seconds: float, turns: int) -> dict[str, Any]:
    """The second part: waits for the real cluster agent's loop without the page, with it, with one and with many
    viewers, in turns."""
    waits_ms: dict[str, list[float]] = {"without": [], "nobody looks": [], "one viewer": [], f"{VIEWERS} viewers": []}
    shares: dict[str, list[float]] = {name: [] for name in waits_ms}
    with tempfile.TemporaryDirectory() as folder, Swarm(nodes, 1, "fspc", nodes / 250, 2.0) as swarm:
        at = Path(folder)
        swarm.join(300_000, 300.0)
        add = swarm.server._lag.add
        into: list[float] = []

        def counted(now_s: float, lag_s: float) -> None:
            into.append(1e3 * lag_s)
            add(now_s, lag_s)

        swarm.server._lag.add = counted  # type: ignore[method-assign]
        for _ in range(turns):
            for name in waits_ms:
                with contextlib.ExitStack() as opened:
                    if name != "without":
                        opened.enter_context(page_of(swarm.server.admin.path, at))
                    number = {"one viewer": 1, f"{VIEWERS} viewers": VIEWERS}.get(name, 0)
                    followers = [Follower(at, FOLLOWED[i % len(FOLLOWED)], f"user{i}") for i in range(number)]
                    swarm.rest(4.0)
                    into.clear()
                    used_s = time.thread_time()
                    swarm.rest(seconds)
                    shares[name].append((time.thread_time() - used_s) / seconds)
                    waits_ms[name] += into
                    for one in followers:
                        one.close()
        swarm.end()
    return {
        name: {
            "rounds": len(waits), "median_ms": statistics.median(waits), "p99_ms": _p99(waits), "most_ms": max(waits),
            "share": statistics.median(shares[name]), "load": psutil.getloadavg()[0],
        }
        for name, waits in waits_ms.items()
    }  # fmt: skip


def _p99(values: list[float]) -> float:
    return sorted(values)[int(0.99 * (len(values) - 1))]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="fewer nodes and shorter runs")
    options = parser.parse_args(arguments)
    readings = reading() | job_reading()
    print(f"{'a reading of all rows':<24}{'agent ms':>10}{'an answer':>11}{'page ms':>9}")
    for name, one in readings.items():
        print(f"{name:<24}{one['head_ms']:>10.1f}{one['answer_ms']:>11.2f}{one['page_ms']:>9.1f}")
    seconds = 15.0 if options.quick else 60.0
    rows = [synthetic(seconds, viewers) for viewers in (len(FOLLOWED), VIEWERS)]
    lags = lag(500, 6.0, 1) if options.quick else lag(2_000, 15.0, 3)
    print(f"EMULATED: {NODES:,} nodes, {JOBS:,} jobs; load {rows[-1]['load']:.1f} on {os.cpu_count()} processors")
    print(f"{'view':<16}{'first paint s':>14}{'worst s':>9}{'processor s':>13}{'kB':>7}")
    for view, paint in rows[-1]["paints"].items():
        print(f"{view:<16}{paint['median_s']:>14.3f}{paint['worst_s']:>9.3f}{paint['cpu_s']:>13.3f}{paint['kb']:>7.1f}")
    titles = (
        "viewers", "budget s", "worst", "rows s", "worst", "share %", "MB", "kB/s each", "head %", "cold s", "slowed",
        "yard us",
    )  # fmt: skip
    print("".join(f"{title:>10}" for title in titles))
    for row in rows:
        budget_s, rows_s = row["updates_s"], row["rows_s"]
        numbers = (
            statistics.median(budget_s), max(budget_s), statistics.median(rows_s), max(rows_s), 100 * row["share"],
            row["rss_mb"], row["kb_per_s_and_viewer"], 100 * row["head_share"], row["cold_first_paint_s"],
            row["slowed"], row["yard_us"],
        )  # fmt: skip
        print(f"{row['viewers']:>10}" + "".join(f"{number:>10.2f}" for number in numbers))
    print(f"{'loop of the real agent':<24}{'median ms':>10}{'p99 ms':>8}{'most ms':>9}{'share %':>9}")
    for name, one in lags.items():
        print(
            f"{name:<24}{one['median_ms']:>10.2f}{one['p99_ms']:>8.1f}{one['most_ms']:>9.1f}{100 * one['share']:>9.1f}"
        )
    save("page", {"reading": readings, "page": rows, "loop": lags})
    paints = [paint for row in rows for paint in row["paints"].values()]
    missed = [
        *(f"first paint {one['worst_s']:.2f} s" for one in paints if one["worst_s"] > FIRST_S),
        *(f"page of {one['kb']:.0f} kB" for one in paints if one["kb"] > WEIGHT_KB),
        *(f"cold first paint {row['cold_first_paint_s']:.2f} s" for row in rows if row["cold_first_paint_s"] > FIRST_S),
        *(f"{what} after {max(row[what]):.2f} s with {row['viewers']} viewers" for row in rows
          for what in ("updates_s", "rows_s") if max(row[what]) > UPDATE_S),
        *(f"share {100 * row['share']:.0f} %" for row in rows if row["share"] > SHARE),
    ]  # fmt: skip
    for line in missed:
        print(f"missed: {line}")
    return 1 if missed else 0


if __name__ == "__main__":
    sys.exit(main())
