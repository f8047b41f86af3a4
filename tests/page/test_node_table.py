"""Rows of nodes by their changes alone: always those of a full listing, whatever happens in between."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Terms
from cluster_agent.budget.sharers.view import Job, Tag
from cluster_agent.errors import ClusterError
from cluster_agent.page.node_table import NodeTable
from cluster_agent.serve import node_changes
from cluster_agent.serve.budget_service import Partition
from cluster_agent.serve.live_sharing import Sharing
from cluster_agent.serve.node_changes import NodeParts
from cluster_agent.serve.people_protocol import ListNodeChanges, NodeChanges, NodeRow
from cluster_agent.serve.server import Unstored
from nodectl.member.lease import NodeLease
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
        self.parts = NodeParts(self.marks_at, self.row)

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

    def ask(self, request: ListNodeChanges) -> NodeChanges:
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
        given = [{}, {"tag": "memory"}, {"quality": "measured"}, {"asked_mw": 300_000, "held": "yes"}]
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
        patch.setattr(node_changes, "PART", PART)
        site = Site(seed)
        site.report()
        often, seldom = NodeTable(site.ask), NodeTable(site.ask)
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
    table = NodeTable(site.ask)
    table.read()
    site.n_rows, values = 0, getattr(site.partition.ledger.accounts, column)
    values[0] = replace(values[0], lease_class="sticky") if column == "declarations" else values[0] + 1000
    assert same(table.read()) == same(site.listed()) and site.n_rows == 1


def test_what_has_not_changed_is_not_sent_again() -> None:
    site = Site(7)
    table = NodeTable(site.ask)
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
    table = NodeTable(site.ask)
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

    def ask(request: ListNodeChanges) -> NodeChanges:
        if is_gone and request.part:
            raise ClusterError("gone")
        return site.ask(request)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(node_changes, "PART", PART)
        table = NodeTable(ask)
        table.read()
        site.jobs = {row.name: "5" for row in site.listed()}
        is_gone = True
        with pytest.raises(ClusterError):
            table.read()
        site.restart()
        site.report()
        is_gone = False
        assert same(table.read()) == same(site.listed())
