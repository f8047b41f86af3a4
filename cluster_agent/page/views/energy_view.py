"""What jobs cost in the last week: per user, with a comparison, one's own first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from cluster_agent.history.job_history import HistoryRow
from cluster_agent.page.snapshot import OTHERS, UserEnergy
from cluster_agent.page.user_energy import FEWEST_JOBS
from cluster_agent.page.views.context import Content, Context
from cluster_agent.page.views.markup import Html, bar, name, paragraph, table, text, title_of
from cluster_agent.page.views.quantities import NONE, compared, count, energy, long, moment, shown_j

MOST_JOBS: Final = 50
MOST_USERS: Final = 200
"""Ours: rows of each table."""


def per_node_h_j(row: HistoryRow) -> float | None:
    """Joules of a node hour; None: not known."""
    node_h = row.nodes * row.run_s / 3600
    return row.energy_j / node_h if row.energy_j is not None and node_h > 0 else None


def against(value_j: float | None, median_j: float | None) -> Html:
    """By how much it is above or below a median."""
    return NONE if value_j is None or not median_j else text(compared(value_j / median_j))


def energy_view(context: Context) -> Content:
    """``/energy``."""
    snapshot, user = context.snapshot, context.viewer.user
    own = next((one for one in snapshot.energy if user and one.user == user), None)
    parts = {"answer": Html(f"<h1>What jobs cost last week</h1>{_answer(context, own)}")}
    mine = [row for row in snapshot.ended if user and row.user == user]
    if mine:
        parts["own"] = _jobs(context, "Your jobs of the last week, the costliest first", mine)
    if snapshot.energy:
        parts["users"] = _users(context, snapshot.energy)
    if context.viewer.sees_all and snapshot.ended:
        parts["all"] = _jobs(context, "The costliest jobs of everybody", snapshot.ended)
    note = (
        "Only jobs that have ended. Joules are not known of a job that shared a node with another one, or that no node"
    )
    note += " measured: it ended at once, or the node has no meter."
    parts["notes"] = paragraph(text(note), "note")
    return Content("Energy", parts)


def _answer(context: Context, own: UserEnergy | None) -> Html:
    median_j = context.snapshot.median_per_node_h_j
    if context.viewer.user is None:
        return paragraph(text("Who you are is not known here, so your own jobs are not marked."), "said")
    if own is None:
        return paragraph(Html(f"No job of {name(context.viewer.user)} has ended in the last week."), "said")
    if own.unknown == own.jobs:
        return paragraph(text(f"What your jobs took is not known: {count(own.jobs, 'job')} ended."), "said")
    unknown = f", of which {own.unknown} of unknown energy" if own.unknown else ""
    words = f"Your jobs took {energy(own.energy_j)} ({count(own.jobs, 'job')}{unknown})."
    if own.per_node_h_j is not None and median_j:
        words += (
            f" A node hour took {energy(own.per_node_h_j)}, {compared(own.per_node_h_j / median_j)}"
            f" the median of everybody's jobs ({energy(median_j)})."
        )
    elif own.per_node_h_j is not None:
        words += (
            f" A node hour took {energy(own.per_node_h_j)}. There is nothing to compare that with:"
            f" the energy of fewer than {FEWEST_JOBS} jobs is known."
        )
    return paragraph(text(words), "said")


def _users(context: Context, found: Sequence[UserEnergy]) -> Html:
    whole_j = sum(one.energy_j for one in found) or 1.0
    own_first = sorted(found, key=lambda one: one.user != context.viewer.user or not one.user)[:MOST_USERS]
    rows = [
        [
            _user(context, one.user),
            shown_j(one.energy_j if one.unknown < one.jobs else None),
            text(f"{100 * one.energy_j / whole_j:.0f} %") if one.unknown < one.jobs else NONE,
            bar(f"{100 * one.energy_j / whole_j:.0f} % of all", [("drawn", one.energy_j / whole_j)]),
            text(f"{one.jobs:,}"),
            text(f"{one.unknown:,}") if one.unknown else NONE,
            shown_j(one.per_node_h_j),
            against(one.per_node_h_j, context.snapshot.median_per_node_h_j),
        ]
        for one in own_first
    ]
    titles = ("user", "energy", "of all", "share", "jobs", "not known", "per node hour", "against the median")
    more = f" The first {MOST_USERS} of {len(found):,}." if len(found) > MOST_USERS else ""
    return table(f"Users, by energy in the last week.{more}", titles, rows, (3, 7))


def _user(context: Context, user: str) -> Html:
    if user == OTHERS:
        return Html("<i>all others</i>")
    return Html(f"{name(user)} (you)") if user and user == context.viewer.user else name(user)


def _jobs(context: Context, caption: str, found: Sequence[HistoryRow]) -> Html:
    first = sorted(found, key=lambda row: -(row.energy_j or 0.0))[:MOST_JOBS]
    median_j = context.snapshot.median_per_node_h_j
    rows = [
        [
            _job(context, row),
            title_of(row.application, row.user),
            *([name(row.user)] if context.viewer.sees_all else []),
            shown_j(row.energy_j),
            text(f"{row.nodes:,}"),
            text(long(row.run_s)),
            moment(row.ended_s, context.now_s),
            shown_j(per_node_h_j(row)),
            against(per_node_h_j(row), median_j),
        ]
        for row in first
    ]
    users = ["user"] if context.viewer.sees_all else []
    titles = ["job", "name", *users, "energy", "nodes", "ran", "ended", "per node hour", "against the median"]
    more = f". The first {MOST_JOBS} of {len(found):,}" if len(found) > MOST_JOBS else ""
    return table(caption + more, titles, rows, (1, *([2] if users else []), len(titles) - 1))


def _job(context: Context, row: HistoryRow) -> Html:
    if row.manager or not row.job.isdecimal() or row.user == OTHERS:
        return name(row.job)
    return context.to("jobs", text(row.job, 60), row.job)
