"""Rows of nodes and of jobs by their changes alone: always those of a full listing, whatever happens in between."""

from __future__ import annotations

import random
import tempfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Terms
from cluster_agent.budget.sharers.view import Job, Tag
from cluster_agent.errors import ClusterError
from cluster_agent.page.row_table import RowTable
from cluster_agent.serve import job_requests, row_changes
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.people_protocol import (
    Cancel,
    Changes,
    Drain,
    JobRow,
    ListJobChanges,
    ListJobs,
    ListNodeChanges,
    NodeRow,
    Resume,
)
from cluster_agent.serve.row_changes import RowParts
from cluster_agent.serve.server import Unstored
from nodectl.member.lease import NodeLease
from tests.fabric.job_side import EVE, ROOT_USER, Side
from tests.fabric.links import DECLARED, S

PART = 3


class Site:
    """Nodes of a real partition, of which some have jobs, and what happens to them by chance."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.now_s = 1.0
        self.jobs: dict[str, str] = {}
        self.tagged: list[str] = []
        self.leases: dict[str, NodeLease] = {}
        self.n_rows = 0
        self.restart()

    def restart(self) -> None:
        """Another cluster agent, without anything of the one before."""
        line, terms = BudgetLine(900_000), Terms(failing_together=0)
        sharing = Sharing("fspc", lambda: [Job("1", self.tagged, Tag.MEMORY, "user")] if self.tagged else [])
        self.partition = Partition(Unstored(), terms, line, sharing, self.now_s)
        self.parts = RowParts[str, NodeRow](self.marks_at, self.row, "heard_s_ago")

    def marks_at(self, now_s: float, at: range) -> list[list[Any]]:
        marks = self.partition.marks_at(now_s, at)
        return [*marks, [self.jobs.get(name, "") for name in marks[0]]]

    def row(self, now_s: float, *marks: Any) -> NodeRow | None:
        row = self.partition.row(now_s, *marks[:-1])
        return None if row is None else replace(row, job=marks[-1])

    def with_jobs(self, rows: list[NodeRow]) -> list[NodeRow]:
        for row in rows:
            row.job = self.jobs.get(row.name, "")
        return rows

    def ask(self, request: ListNodeChanges) -> Changes[NodeRow, str]:
        found = self.parts.answer(self.now_s, len(self.partition.ledger.accounts), request)
        self.n_rows += len(found.rows)
        return found

    def listed(self) -> list[NodeRow]:
        return self.with_jobs(self.partition.nodes(self.now_s))

    def report(self) -> None:
        """Some nodes report, perhaps new ones; their names are in no order."""
        names = [f"n{self.dice.randrange(12)}" for _ in range(self.dice.randrange(5))]
        now_ns = round(self.now_s * S)
        for name in names:
            self.leases.setdefault(name, NodeLease(name, "boot-1", DECLARED, 200_000, now_ns))
        reports = [self.leases[name].report(now_ns, self.dice.randrange(400_000)) for name in dict.fromkeys(names)]
        given: list[dict[str, Any]] = [
            {},
            {"tag": "memory"},
            {"quality": "measured"},
            {"asked_mw": 300_000, "held": "yes"},
        ]
        for grant in self.partition.hear(self.now_s, [replace(one, **self.dice.choice(given)) for one in reports]):
            self.leases[grant.node].take(now_ns, grant)
            self.leases[grant.node].confirm("seen")

    def wait(self) -> None:
        """Perhaps until nodes are silent."""
        self.now_s += self.dice.choice((0.0, 0.5, 40.0, 40.0))
        self.partition.turn(self.now_s)

    def move(self) -> None:
        self.partition.ledger.budget.set(self.dice.randrange(500_000, 4_000_000))
        self.partition.replan(self.now_s)

    def forget(self) -> None:
        """A node that is silent, if there is one."""
        silent = [row.name for row in self.partition.nodes(self.now_s) if row.state == "silent"]
        if silent:
            self.partition.ledger.forget(self.now_s, self.dice.choice(silent))

    def tag(self) -> None:
        """Of a job that the next plan sees, on some nodes or on none."""
        self.tagged = [one for one in self.partition.ledger.accounts.names if self.dice.random() < 0.4]
        self.partition.replan(self.now_s)

    def fill_disk(self) -> None:
        """Or empty it again."""
        self.partition.alarms.set("store", "" if "store" in self.partition.alarms else "full")

    def leave(self) -> None:
        """A node leaves, or has no power, as a person says."""
        for name in self.leases:
            accounts = self.partition.ledger.accounts
            if name in accounts and self.dice.random() < 0.3:
                column = self.dice.choice((accounts.has_left, accounts.is_off, accounts.is_leaving))
                column[accounts.places[name]] ^= True

    def start_job(self) -> None:
        self.jobs = {f"n{self.dice.randrange(12)}": str(self.dice.randrange(3))}


def node_table(ask: Callable[[ListNodeChanges], Changes[NodeRow, str]]) -> RowTable[NodeRow]:
    return RowTable(ListNodeChanges, ask, "name", "heard_s_ago")


HAPPENS: dict[str, Callable[[Site], None]] = {
    "reports": Site.report, "time": Site.wait, "a budget": Site.move, "a node is gone": Site.forget,
    "a job": Site.start_job, "a tag": Site.tag, "a disk": Site.fill_disk, "a switch": Site.leave,
    "another agent": Site.restart, "nothing": lambda site: None,
}  # fmt: skip


OFTEN = [*sorted(HAPPENS), "reports", "reports", "time", "a node is gone"]


def same(rows: Iterable[NodeRow]) -> list[NodeRow]:
    return [replace(row, heard_s_ago=None) for row in rows]


def ages(rows: Iterable[NodeRow]) -> list[float]:
    return [-1.0 if row.heard_s_ago is None else row.heard_s_ago for row in rows]


@given(st.integers(0, 1000), st.lists(st.lists(st.sampled_from(OFTEN), min_size=1, max_size=6), max_size=10))
@settings(max_examples=60, deadline=None)
def test_whatever_happens_the_rows_are_those_of_a_full_listing(seed: int, happened: list[list[str]]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_changes, "PART", PART)
        site = Site(seed)
        site.report()
        often, seldom = node_table(site.ask), node_table(site.ask)
        for number, events in enumerate(happened):
            for event in events:
                HAPPENS[event](site)
            for table in (often, seldom)[: 1 + (number % 3 == 2)]:
                rows, listed = table.read(), site.listed()
                assert same(rows) == same(listed)
                assert ages(rows) == pytest.approx(ages(listed), abs=1e-5)


@pytest.mark.parametrize("column", ["limit_mw", "count_mw", "target_mw", "declarations"])
def test_a_number_of_the_ledger_that_changes_alone_is_seen(column: str) -> None:
    site = Site(7)
    for _ in range(10):
        site.report()
    table = node_table(site.ask)
    table.read()
    site.n_rows, values = 0, getattr(site.partition.ledger.accounts, column)
    values[0] = replace(values[0], lease_class="sticky") if column == "declarations" else values[0] + 1000
    assert same(table.read()) == same(site.listed()) and site.n_rows == 1


def test_what_has_not_changed_is_not_sent_again() -> None:
    site = Site(7)
    table = node_table(site.ask)
    for _ in range(40):
        site.report()
    table.read()
    site.n_rows, site.now_s = 0, site.now_s + 0.25
    before = {row.name: row.heard_s_ago for row in table.read()}
    assert site.n_rows == 0
    site.now_s += 0.25
    assert all(row.heard_s_ago == pytest.approx(before[row.name] + 0.25) for row in table.read())
    site.jobs["n3"] = "9"
    assert next(row.job for row in table.read() if row.name == "n3") == "9" and site.n_rows == 1


def test_a_node_that_was_forgotten_goes_and_comes_back_when_it_reports() -> None:
    site = Site(5)
    for _ in range(10):
        site.report()
    table = node_table(site.ask)
    name = table.read()[0].name
    site.now_s += 100.0
    site.partition.turn(site.now_s)
    table.read()
    site.partition.ledger.forget(site.now_s, name)
    assert name not in {row.name for row in table.read()}
    site.partition.hear(site.now_s, [site.leases[name].report(round(site.now_s * S), 100_000)])
    assert table.read()[0].name == name and same(table.read()) == same(site.listed())


def test_an_agent_that_goes_away_in_between_leaves_a_table_that_the_next_reading_completes() -> None:
    site = Site(3)
    for _ in range(40):
        site.report()
    is_gone = False

    def ask(request: ListNodeChanges) -> Changes[NodeRow, str]:
        if is_gone and request.part:
            raise ClusterError("gone")
        return site.ask(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(row_changes, "PART", PART)
        table = node_table(ask)
        table.read()
        site.jobs = {row.name: "5" for row in site.listed()}
        is_gone = True
        with pytest.raises(ClusterError):
            table.read()
        site.restart()
        site.report()
        is_gone = False
        assert same(table.read()) == same(site.listed())


class Queue(Side):
    """Jobs of a real partition, and what happens to them by chance."""

    def __init__(self, tmp_path: Path, seed: int) -> None:
        self.dice = random.Random(seed)
        super().__init__(tmp_path, nodes=4)
        self.speak()

    def request(self, request: ListJobChanges) -> Changes[JobRow, int]:
        found: Changes[JobRow, int] = self.ask[ListJobChanges](EVE, request)
        return found

    def listed(self) -> list[JobRow]:
        return list(self.ask[ListJobs](EVE, ListJobs()))

    def one(self) -> list[int]:
        """A job that is alive, or none."""
        return [self.dice.choice(sorted(self.side.live.jobs))] if self.side.live.jobs else []

    def reports(self) -> None:
        self.speak(power_mw=self.dice.choice((-1, 100_000)))

    def come(self) -> None:
        others = self.one() if self.dice.random() < 0.3 else []
        self.submit(nodes=self.dice.randrange(1, 4), after=others, tag=self.dice.choice(("", "memory")))

    def end(self) -> None:
        for parts in self.parts.values():
            if parts and self.dice.random() < 0.5:
                parts[0] = replace(parts[0], phase="ended", ended_s=self.now_s, status=self.dice.choice((0, 1)))
        self.speak()

    def cancel(self) -> None:
        if numbers := self.one():
            self.ask[Cancel](ROOT_USER, Cancel(numbers))

    def drain(self) -> None:
        name = self.dice.choice(sorted(self.parts))
        if self.dice.random() < 0.5:
            self.ask[Drain](ROOT_USER, Drain(name))
        else:
            self.ask[Resume](ROOT_USER, Resume(name))


@given(st.integers(0, 1000), st.lists(st.lists(st.sampled_from(
    [Queue.reports, Queue.come, Queue.come, Queue.end, Queue.cancel, Queue.drain]
), min_size=1, max_size=5), max_size=8))  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_whatever_happens_the_rows_of_jobs_are_those_of_a_full_listing(
    seed: int, happened: list[list[Callable[[Queue], None]]]
) -> None:
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        patch.setattr(row_changes, "PART", PART)
        patch.setattr(job_requests, "PART", PART)
        queue = Queue(Path(folder), seed)
        often, seldom = (RowTable[JobRow](ListJobChanges, queue.request, "job", "took_s") for _ in range(2))
        for number, events in enumerate(happened):
            for event in events:
                event(queue)
            for table in (often, seldom)[: 1 + (number % 3 == 2)]:
                assert list(table.read()) == queue.listed()


def test_of_jobs_only_those_that_have_changed_are_sent(tmp_path: Path) -> None:
    queue = Queue(tmp_path, 1)
    for _ in range(6):
        queue.submit(nodes=1)
    queue.speak()
    queue.speak()
    whole = queue.request(ListJobChanges())
    assert [row.state for row in whole.rows] == ["running"] * 4 + ["queued"] * 2
    assert queue.request(ListJobChanges(0, whole.run, whole.version)).rows == []
    queue.ask[Cancel](ROOT_USER, Cancel([6]))
    after = queue.request(ListJobChanges(0, whole.run, whole.version))
    assert (after.rows, after.gone) == ([], [6])
    queue.now_s += 0.5
    table = RowTable[JobRow](ListJobChanges, queue.request, "job", "took_s")
    table.read()
    queue.now_s += 2.0
    assert [row.took_s for row in table.read()] == [row.took_s for row in queue.listed()]
