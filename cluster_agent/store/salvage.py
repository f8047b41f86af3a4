"""What is in force where the log is damaged or missing: every record that is right in the log or in SQLite.

Nothing is guessed downwards, and one line is said for each thing that is lost in both:

    a node's name or declaration     a node of its own name takes the place, and counts the largest TDP known until it
                                     is forgotten by hand
    a count                          the node's TDP, until it reports
    the epoch                        nodes report it (rule 9 of docs/ledger.md)
    the budget                       the one of the settings, with an alarm
    commits                          no count is believed: TDP
    a job, a change                  left out; the damaged files are kept
    all jobs                         no job is started or ended until ``clusterctl store repair --give-up-jobs``
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec

from cluster_agent.budget.accounts import NONE
from cluster_agent.store.commit_log import CommitLog, Logged, is_over
from cluster_agent.store.ledger_store import BLOCK
from cluster_agent.store.records import TABLES, Row, Rows
from foundation.wire.power_messages import Declaration

SKIPPED: Final = 10_000
"""Ours: so many jobs may have been submitted of which nothing is known any more."""

UNCERTAIN: Final = "?"
"""As the boot in which the store was written: its counts are not believed once older leases have run out."""


@dataclass(slots=True)
class Findings:
    """What an examination found. ``lines``: one for each thing that is wrong. ``is_damaged``: SQLite is. ``rows``: by
    table, what can be read of it. ``version``: of SQLite; 0: not known. ``number``: of its last commit; ``last_job``:
    the highest number that a job has got there."""

    lines: list[str] = field(default_factory=list)
    is_damaged: bool = False
    rows: dict[str, Rows] = field(default_factory=dict)
    log: Logged = field(default_factory=Logged)
    version: int = 0
    number: int = 0
    last_job: int = 0

    def damage(self, *lines: str) -> None:
        """SQLite is damaged in this way."""
        self.lines += lines
        self.is_damaged |= bool(lines)

    @property
    def has_lost_commits(self) -> bool:
        """Whether neither has all commits, as far as is known."""
        is_less = self.number < self.log.number or (self.log.is_cut and self.number == self.log.number)
        return self.log.is_there and not self.log.is_whole and is_less

    @property
    def has_lost_jobs(self) -> bool:
        """Whether there were jobs, as far as is known, and none of them can be read."""
        jobs = self.rows.get("job")
        is_lost = not self.log.is_whole and (jobs is None or (bool(jobs.torn) and not jobs.good))
        return is_lost or bool(self.rows_of("lost_jobs"))

    def rows_of(self, table: str) -> dict[Any, Row]:
        """By key, the rows of a table: the log's where it is whole or newer, or SQLite is damaged and lacks it. What
        SQLite lacks in order, a line that is lost has dropped."""
        is_whole = self.log.is_whole
        rows = {} if is_whole else {row[0]: row[:-1] for row in self.rows.get(table, Rows()).good}
        for key, number, row in self.log.of(table):
            is_newer = is_whole or number > self.number
            if row is not None and (is_newer or (self.is_damaged and key not in rows)):
                rows[key] = row
            elif row is None and is_newer:
                rows.pop(key, None)
        return rows


def write_salvaged(log: CommitLog, found: Findings) -> list[str]:
    """Write a new log of all that can be relied on; a line for each thing that is lost. Its commit is a new one."""
    rows: dict[str, list[Row]] = {table: list(found.rows_of(table).values()) for table in TABLES}
    members, lines = _members(found)
    encode, counts_mw = msgspec.json.encode, _stored_counts(found)
    rows["member"] = [(place, name, encode(declared)) for place, (name, declared) in enumerate(members)]
    blocks = [range(first, min(first + BLOCK, len(members))) for first in range(0, len(members), BLOCK)]
    rows["count"] = [(n, encode([counts_mw.get(place, NONE) for place in block])) for n, block in enumerate(blocks)]
    rows["owner"] = [(1, *_owner(found))]
    if not rows["budget"] and found.rows.get("budget", Rows()).bad:
        lines.append("the budget that was set last is lost: the one of the settings is in force")
    if found.has_lost_jobs:
        rows["lost_jobs"] = [(1, time.time())]
        lines.append("its jobs are lost: put back a backup, or `clusterctl store repair --give-up-jobs`")
    records = [(table, row) for table in TABLES for row in rows[table] if not is_over(table, row)]
    past = [row for row in rows["job"] if is_over("job", row)]
    log.write(max(found.number, found.log.number) + 1, records, _last_job(found), past)
    return lines


def _members(found: Findings) -> tuple[list[tuple[str, Declaration]], list[str]]:
    """Names and declarations by place, and what is not known of them."""
    known = {
        row[0]: (row[1], msgspec.json.decode(row[2], type=Declaration)) for row in found.rows_of("member").values()
    }
    counts_mw = _stored_counts(found)
    bad = [row[0] for row, _ in found.rows.get("member", Rows()).bad if _is_place(row[0])]
    places = max([*known, *counts_mw, *bad, -1]) + 1
    largest_mw = max([one.tdp_mw for _, one in known.values()], default=0)
    members, lines, names = [], [], set[str]()
    for place in range(places):
        name, declared = known.get(place, ("", None))
        if declared is None or name in names:
            most_mw = max(largest_mw, counts_mw.get(place, 0), 1)
            name, declared = f"lost-{place}", Declaration(most_mw, most_mw, most_mw, most_mw, "sticky")
            lines.append(
                f"the name of the node at place {place} is lost: {name} counts for it, at most {most_mw / 1000:g} W,"
                f" until `clusterctl nodes forget {name} --is-off`"
            )
        names.add(name)
        members.append((name, declared))
    return members, lines


def _is_place(value: object) -> bool:
    return isinstance(value, int) and 0 <= value < 1 << 20


def _stored_counts(found: Findings) -> dict[int, int]:
    """By place, what can be relied on: of a damaged log no count, since the line that raised it may be the one that is
    damaged; of SQLite none if commits are lost."""
    blocks = [] if found.has_lost_commits else found.rows.get("count", Rows()).good
    counts_mw = [(block, msgspec.json.decode(stored, type=list[int])) for block, stored, _ in blocks]
    return {block * BLOCK + n: mw for block, stored in counts_mw for n, mw in enumerate(stored)}


def _owner(found: Findings) -> tuple[int, str]:
    stored = found.rows.get("owner", Rows()).good
    newest = found.rows_of("owner")
    if stored and not found.has_lost_commits:
        return newest[1][1], newest[1][2]
    return max([row[1] for row in (*stored, *newest.values())], default=0), UNCERTAIN


def _last_job(found: Findings) -> int:
    """No number is given twice, since nodes know jobs by it. Where none is known, seconds since 1970 are above all."""
    jobs = found.rows.get("job", Rows())
    numbers = [row[0] for row, _ in jobs.bad if isinstance(row[0], int) and 0 < row[0] < 1 << 48]
    logged = [key for key, _, _ in found.log.of("job")]
    last: int = max([found.last_job, found.log.last_job, *numbers, *(row[0] for row in jobs.good), *logged])
    if found.has_lost_jobs and not last:
        return int(time.time())
    return last + SKIPPED if found.has_lost_commits or jobs.torn or not found.rows else last
