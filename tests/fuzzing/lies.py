"""A cluster agent whose nodes say anything at all: the real ``Server`` with its ledger, its store and its jobs.

Only the sockets and the clocks are made up. Two nodes are honest: they have the node's real lease, and run what they
are told. Two lie: all that they send is well formed, and true by chance only. Messages get lost, the agent is killed
and started again, nodes reboot, people set budgets, submit, cancel and requeue jobs.

What must hold after every step is in ``Site.check``; the steps are in ``STEPS``, driven by hypothesis (``test_lies``)
or by a plain random loop, which is some times faster:

    python -m tests.fuzzing.lies 1000000|60s [SEED]     # so many steps, or for so long
"""

from __future__ import annotations

import os
import random
import signal
import sys
import tempfile
import traceback
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Final
from unittest import mock

import msgspec

from cluster_agent.budget.ledger import Ledger
from cluster_agent.fabric.people import Caller, RequestEnvelope, answer, answer_type, pack_request
from cluster_agent.jobs.job import OVER
from cluster_agent.serve import people_protocol as people
from cluster_agent.serve import server as served
from cluster_agent.serve.config import BudgetSettings, JobSettings, NodeSettings, Settings
from cluster_agent.store.mending import examine
from cluster_agent.store.records import TABLES, problem_of
from foundation.wire.job_messages import (
    UP,
    JobForget,
    JobPart,
    JobSignal,
    JobStart,
    NodeJobs,
    kind_of,
    read_job_message,
)
from foundation.wire.power_messages import Declaration, Grant, Report, WireError, pack, read_grant, read_report, unpack
from nodectl.member.lease import NodeLease
from tests.fuzzing.goal import Goal

S: Final = 1_000_000_000
HONEST: Final = ("honest-0", "honest-1")
LIARS: Final = ("liar-0", "liar-1")
DECLARED: Final = Declaration(500_000, 100_000, 150_000, 300_000, "os", 200, 0)
BUDGET_W: Final = 2400.0
PHASES: Final = ("running", "ending", "ended", "refused", "lost")
A_LIFE: Final = 1000
"""Ours: steps in the life of one site."""

ROOT: Final = Caller(0, "root", "admin")

Numbers = Callable[[], int]
"""Where arbitrary numbers come from: of any size up to 64 bits, often a small one or one near a bound."""


class Ends:
    """In place of the router, the socket for people and the list of keys."""

    def __init__(self) -> None:
        self.reports: list[Report] = []
        self.news: list[NodeJobs] = []
        self.sent: list[tuple[str, Any]] = []
        self.url, self.trouble = "nowhere", ""

    def receive(self, now_s: float) -> list[Report]:
        found, self.reports = self.reports, []
        return found

    def job_news(self) -> list[NodeJobs]:
        found, self.news = self.news, []
        return found

    def phase_news(self) -> list[Any]:
        return []

    def requests(self) -> list[Any]:
        return []

    def interests(self) -> dict[int, bool]:
        return {}

    def flush(self) -> None:
        """Nothing waits."""

    def serve_all(self, now_s: float, ready: list[int], until_s: float) -> None:
        """Nobody asks."""

    def send(self, grant: Grant) -> bool:
        self.sent.append((grant.node, grant))
        return True

    def send_job(self, node: str, message: Any) -> bool:
        self.sent.append((node, message))
        return True

    def speaks_jobs(self, node: str) -> bool:
        return True

    def tidy(self, now_s: float) -> None:
        pass

    def close(self) -> None:
        pass


class Honest:
    """A node that does what it is told, and says what is so. ``runs``: every start of a part, which may happen once."""

    def __init__(self, name: str, now_ns: int) -> None:
        self.name, self.boot = name, 0
        self.is_fresh = False
        """Whether it has rebooted and confirmed nothing since: the reserve for reboots pays for what it draws."""
        self.lease = self._booted(now_ns)
        self.parts: dict[tuple[int, int], JobPart] = {}
        self.runs: Counter[tuple[int, int]] = Counter()
        self.truth: dict[tuple[int, int], JobPart] = {}

    def _booted(self, now_ns: int) -> NodeLease:
        return NodeLease(self.name, f"boot-{self.boot}", DECLARED, DECLARED.boot_mw, now_ns)

    def reboot(self, now_ns: int) -> None:
        self.boot += 1
        self.is_fresh = True
        self.lease = self._booted(now_ns)
        for key, part in self.parts.items():  # what had begun is on the node's disk
            if part.phase == "running":
                self.parts[key] = msgspec.structs.replace(part, phase="lost", detail="it rebooted")

    def may_draw_mw(self) -> int:
        return self.lease.limit_mw

    def end(self, key: tuple[int, int], status: int, now_s: float) -> None:
        part = self.parts[key]
        self.parts[key] = self.truth[key] = msgspec.structs.replace(part, phase="ended", status=status, ended_s=now_s)

    def take(self, message: Any, now_ns: int, now_s: float) -> None:
        if isinstance(message, Grant):
            if not self.lease.take(now_ns, message):
                self.lease.confirm("seen")
        elif isinstance(message, JobStart):
            key = message.job, message.attempt
            if key not in self.parts and key not in self.truth:
                self.runs[key] += 1
                self.parts[key] = JobPart(*key, "running", started_s=now_s)
        elif isinstance(message, JobForget):
            self.parts.pop((message.job, message.attempt), None)
        elif isinstance(message, JobSignal):
            part = self.parts.get((message.job, message.attempt))
            if part is not None and part.phase == "running":
                self.end((message.job, message.attempt), -signal.SIGTERM, now_s)


class Site:
    """``with Site() as site: STEPS[name](site, numbers); site.check()``."""

    def __init__(self) -> None:
        self._at = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        at = Path(self._at.name)
        self.now_s = 1000.0
        self.said: list[str] = []
        self.ends = Ends()
        lines = [f"node {name} {str(n) * 40}" for n, name in enumerate((*HONEST, *LIARS))]
        (at / "allowed").write_text("\n".join(lines) + "\n")
        self.settings = Settings(
            listen="tcp://127.0.0.1:1", insecure=True, keys=str(at), store=str(at / "cluster.db"), socket=str(at / "s"),
            mode="cap", budget=BudgetSettings(w=BUDGET_W), nodes=NodeSettings(tdp_w=500.0, failing_together=1),
            jobs=JobSettings(down_after_s=5.0, lost_after_s=30.0),
        )  # fmt: skip
        self.nodes = {name: Honest(name, self.now_ns) for name in HONEST}
        self.submitted: list[int] = []
        self.touched: set[int] = set()
        """Jobs that a person has cancelled or requeued, or that a liar had a part in: they may end in any way."""
        self.server = self._served()

    def __enter__(self) -> Site:
        return self

    def __exit__(self, *error: object) -> None:
        self.server.close()
        self._at.cleanup()

    @property
    def now_ns(self) -> int:
        return round(self.now_s * S)

    def _served(self) -> served.Server:
        with (
            mock.patch.object(served, "Router", lambda *given, **named: self.ends),
            mock.patch.object(served, "AdminSocket", lambda *given, **named: Ends()),
            mock.patch.object(served, "boot_id", lambda: "head-boot"),
        ):
            made = served.Server(self.settings, self.said.append, lambda: self.now_s, lambda: 1e9 + self.now_s)
        self._watch_grants(made.partition.ledger)
        if made.jobs is not None:
            made.jobs.now = lambda: 1e9 + self.now_s
            with made.jobs._shutting():
                made.jobs._open()  # by this clock
        return made

    def _watch_grants(self, ledger: Ledger) -> None:
        """What is granted adds to the sum of counts only what the budget has room for, with the reserve."""
        grants = ledger.grants

        def watched(now_s: float, heard: Iterable[str] = (), only_stored: bool = False) -> list[Grant]:
            ledger.pass_time(now_s)
            before_mw = ledger.total_mw
            made = grants(now_s, heard, only_stored)
            assert ledger.total_mw <= max(before_mw, ledger.spendable_mw(now_s) - ledger.reserve_mw)
            return made

        ledger.grants = watched  # type: ignore[method-assign]

    def restart(self) -> None:
        """kill -9: what was not committed is gone."""
        self.server.database.close()
        for descriptor in (self.server._stop_read, self.server._stop_write):
            os.close(descriptor)  # as the kernel does
        self.ends.sent.clear()
        self.server = self._served()

    def pass_time(self, seconds: float) -> None:
        """Honest nodes fall to their safe caps when their leases are over."""
        self.now_s += seconds
        for node in self.nodes.values():
            if node.lease.lapse(self.now_ns):
                node.lease.confirm("seen")

    # --- what nodes and people send

    def send(self, message: Report | NodeJobs) -> None:
        """As the router takes it: only what is well formed."""
        try:
            envelope = unpack(pack("report" if isinstance(message, Report) else "jobs", message, 3), UP)
            if isinstance(message, Report):
                self.ends.reports.append(read_report(envelope))
            else:
                self.ends.news.append(read_job_message(envelope))
        except WireError:
            pass

    def turn(self, lost: int = 0) -> None:
        """A turn of the agent's loop; ``lost``: a bit for each of its messages that gets lost."""
        self.server._turn(self.now_s, [])
        sent, self.ends.sent = self.ends.sent, []
        for n, (name, message) in enumerate(sent):
            if isinstance(message, Grant):
                grant = read_grant(unpack(pack("grant", message, 3)))
                assert grant == message, "a grant that no node can read"
            else:
                pack(kind_of(message), message, 3)
            if name in self.nodes and not lost >> n & 1:
                self.nodes[name].take(message, self.now_ns, 1e9 + self.now_s)

    def request(self, request: Any) -> Any:
        """What a person gets, as it goes over the wire; a refusal is one printable line."""
        frame = msgspec.msgpack.encode(pack_request(request))
        assert isinstance(msgspec.msgpack.decode(frame, type=RequestEnvelope), RequestEnvelope)
        answered = answer(self.server.handlers, ROOT, frame)
        assert not answered.error or answered.error.isprintable(), answered.error
        got = msgspec.msgpack.decode(msgspec.msgpack.encode(answered.body))
        return None if answered.error else msgspec.convert(got, answer_type(type(request)))

    # --- what must hold

    def check(self) -> None:
        ledger = self.server.partition.ledger
        accounts = ledger.accounts
        assert ledger.total_mw == int(accounts.count_mw.sum())
        assert (accounts.count_mw >= 0).all()
        assert 0 < ledger.epoch < 1 << 61, "epochs are used up"
        for name, node in self.nodes.items():
            account = accounts[name]
            count_mw = account.count_mw
            node.is_fresh &= not (account.has_confirmed and account.boot_id == f"boot-{node.boot}")
            most_mw = node.may_draw_mw()
            assert node.is_fresh or most_mw <= count_mw, f"{name} may draw {most_mw}, and counts {count_mw}"
            assert all(times == 1 for times in node.runs.values()), f"run twice: {node.runs}"

    def check_rarely(self) -> None:
        """What costs more: the store, and what people are shown."""
        found = examine(Path(self.settings.store))
        assert found.lines == []
        assert all(not problem_of(table, row) for table in TABLES for row in found.rows[table].good)
        assert self.request(people.ShowBudget()) is not None
        assert len(self.request(people.ListNodes())) == 4
        assert self.request(people.ExplainCap(LIARS[0])) is not None
        assert self.request(people.ListJobs(everything=True)) is not None
        assert self.server.jobs is not None and self.server.jobs.is_open, self.said[-3:]
        self._check_jobs()

    def _check_jobs(self) -> None:
        """A job of honest nodes alone ended as they know it did."""
        assert self.server.jobs is not None
        for job in self.server.jobs.store.find(self.submitted[-20:]):
            if job.state not in OVER or job.id in self.touched or not set(job.nodes) <= set(HONEST):
                continue
            truths = [self.nodes[name].truth.get((job.id, job.attempt)) for name in job.nodes]
            if None in truths:  # a node rebooted, or was silent for too long
                continue
            status = next((one.status for one in truths if one is not None and one.status), 0)
            assert (job.state == "done") == (status == 0), f"{job.id}: {job.state}, {job.reason}, and was {truths}"


# --- the steps


def wait(site: Site, number: Numbers) -> None:
    """Time passes; honest nodes report, and do what they are told."""
    site.pass_time((0.05, 0.3, 1.0, 3.0, 11.0, 40.0)[min(number() % 16, 5) if number() % 4 == 0 else 2])
    _report_honestly(site, number())
    site.turn(number() if number() % 3 == 0 else 0)


def _report_honestly(site: Site, silent: int) -> None:
    for n, node in enumerate(site.nodes.values()):
        if silent >> n & 5 == 5:
            continue
        site.send(node.lease.report(site.now_ns, node.may_draw_mw()))
        site.send(NodeJobs(node.name, f"boot-{node.boot}", list(node.parts.values())[:16]))


def lie_of_power(site: Site, number: Numbers) -> None:
    """A report with any numbers in it."""
    watts = (number() % (1 << 31), 500_000, 100_000, 10**9)
    declared = Declaration(
        max(watts[number() % 4], 1), max(watts[number() % 4] >> number() % 20, 1), watts[number() % 4] >> 3,
        watts[number() % 4], ("hw", "os", "sticky")[number() % 3], number() % 600_001, number() % 600_001,
    )  # fmt: skip
    epoch = site.server.partition.ledger.epoch
    epochs = (0, epoch, epoch - 1, epoch + 1, epoch + (1 << 20), number(), (1 << 62) - 1)
    site.send(
        Report(
            LIARS[number() % 2],
            f"boot-{number() % 3}",
            (site.now_ns, number())[number() % 2] % (1 << 62),
            max(epochs[number() % 7], 0),
            max(epochs[number() % 7], 0),
            (number() % 50, number())[number() % 2],
            watts[number() % 4],
            ("seen", "provisional", "unseen")[number() % 3],
            watts[number() % 4] - 1,
            declared,
            number() % 5 == 0,
            number() - 1,
            watts[number() % 4] - 1,
            ("", "memory", "x" * 96, "\x1b[31m")[number() % 4],
            "measured",
            "",
            ("", "no", "unsure", "yes")[number() % 4],
            number() - 1,
            number() - 1,
        )
    )
    site.turn()


def lie_of_jobs(site: Site, number: Numbers) -> None:
    """Parts of any jobs: its own, those of others, none."""
    jobs = [*site.submitted[-5:], 1, number() % (1 << 53) or 1]
    times = (0.0, 1e9 + site.now_s, 1e11, float(number() % 10**11), 1e-300)
    parts = [
        JobPart(
            jobs[number() % len(jobs)], number() % 4 + 1, PHASES[number() % 5], number() % 320 - 64,
            ("", "walltime", "told")[number() % 3], times[number() % 5], times[number() % 5],
            ("", "why\n\x1b[2J")[number() % 2], (None, 0.0, -0.99, 1e6)[number() % 4],
        )
        for _ in range(number() % 4)
    ]  # fmt: skip
    name = LIARS[number() % 2]
    site.send(
        NodeJobs(
            name, f"boot-{number() % 3}", parts, ("", "twin-workload", "x")[number() % 3] if number() % 8 == 0 else ""
        )
    )
    site.turn()


def submit(site: Site, number: Numbers) -> None:
    """A job for any nodes; a liar may get a part of it."""
    made = site.request(people.Submit(["run"], 60 + number() % 10**6, "/", nodes=number() % 3 + 1))
    if made is not None:
        site.submitted.append(made)
    site.turn()


def end(site: Site, number: Numbers) -> None:
    """A part on an honest node ends, in any way."""
    node = site.nodes[HONEST[number() % 2]]
    for key, part in list(node.parts.items())[: number() % 3]:
        if part.phase == "running":
            node.end(key, (0, 1, -9)[number() % 3], 1e9 + site.now_s)
    _report_honestly(site, 0)
    site.turn()


def interfere(site: Site, number: Numbers) -> None:
    """A person cancels, requeues, drains or resumes."""
    job = site.submitted[-1 - number() % min(len(site.submitted), 5)] if site.submitted else 1
    node = (*HONEST, *LIARS)[number() % 4]
    kind = number() % 4
    requests = (people.Cancel([job]), people.Requeue([job]), people.Drain(node, "why"), people.Resume(node))
    site.touched |= {job} if kind < 2 else set()
    site.request(requests[kind])
    site.turn()


def set_budget(site: Site, number: Numbers) -> None:
    """Any budget, now or later."""
    watts = (BUDGET_W, 1000.0, 500.0, number() / 1000 + 1, 1e12)[number() % 5]
    site.request(people.SetBudget(min(watts, 1e12), dry_run=number() % 8 == 0))
    if number() % 4 == 0:
        steps = [(1e9 + site.now_s + number() % 100, (1 + number() % 10**7)) for _ in range(number() % 3 + 1)]
        site.request(people.SetSchedule(sorted(steps), "x.csv"))
    site.turn()


def restart(site: Site, number: Numbers) -> None:
    """The agent is killed and started again."""
    site.restart()
    site.turn()


def reboot(site: Site, number: Numbers) -> None:
    """An honest node loses its power, and what it ran."""
    node = site.nodes[HONEST[number() % 2]]
    site.touched |= {job for job, _ in node.parts}
    site.pass_time(60.0)
    node.reboot(site.now_ns)
    site.turn()


STEPS: Final[dict[str, tuple[int, Callable[[Site, Numbers], None]]]] = {
    "wait": (40, wait), "lie_of_power": (22, lie_of_power), "lie_of_jobs": (14, lie_of_jobs), "submit": (6, submit),
    "end": (10, end), "interfere": (3, interfere), "set_budget": (3, set_budget), "restart": (1, restart),
    "reboot": (1, reboot),
}  # fmt: skip
"""By name: how often of a hundred, and the step."""


# --- the plain random loop


def any_number(rng: random.Random) -> int:
    """Of any size; every bit pattern is as likely as its length is."""
    return rng.getrandbits(rng.choice((3, 8, 16, 31, 62)))


def run(steps: int, seed: int) -> Counter[str]:
    """So many steps in the life of one site; an exception is a finding."""
    rng = random.Random(seed)
    done: Counter[str] = Counter()
    weights = [weight for weight, _ in STEPS.values()]
    with Site() as site:
        for name in rng.choices(list(STEPS), weights, k=steps):
            STEPS[name][1](site, lambda: any_number(rng))
            site.check()
            done[name] += 1
            if done.total() % 50 == 0:
                site.check_rarely()
    return done


def main() -> int:
    """Print how many steps were made, and what was found; exit status 1 if anything was."""
    goal, seed = Goal.of_command(sys.argv[1:])
    done: Counter[str] = Counter()
    n, findings = 0, 0
    while findings < 10 and not goal.is_reached(done.total()):
        try:
            done += run(goal.part(A_LIFE, done.total()), seed + n)
        except Exception:
            findings += 1
            print(f"seed {seed + n}:\n{traceback.format_exc()[-1500:]}", flush=True)
        n += 1
        print(f"{done.total()} steps, {findings} findings", flush=True)
    print(dict(done))
    return 1 if findings else 0


if __name__ == "__main__":
    sys.exit(main())
