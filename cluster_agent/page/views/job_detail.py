"""One job: what it draws, why its clock is what it is, and what it cost so far, against jobs like it."""

from __future__ import annotations

import statistics
from typing import Final

from cluster_agent.budget.tag_sources import in_words
from cluster_agent.jobs.job import ACTIVE, Job
from cluster_agent.page.power_ring import draws_now_w
from cluster_agent.page.predicted_starts import in_full
from cluster_agent.page.snapshot import OTHERS, ends_s
from cluster_agent.page.user_energy import FEWEST_JOBS
from cluster_agent.page.views.causes import bounding, cause
from cluster_agent.page.views.context import Content, Context
from cluster_agent.page.views.energy_view import per_node_h_j
from cluster_agent.page.views.job_views import draws_w, nodes_of, starts, why_not_now
from cluster_agent.page.views.markup import Html, badge, facts, joined, name, paragraph, table, text
from cluster_agent.page.views.node_views import bound_of, node_link, row_of, state_of
from cluster_agent.page.views.quantities import NONE, UNKNOWN, compared, count, energy, long, moment, shown_w, watts
from cluster_agent.serve.people_protocol import JobRow, NodeRow, RunningJob

MOST_NODES: Final = 100
"""Ours: rows of the table of its nodes."""

BY: Final = {"nodes": "as its nodes estimate it", "predicted by the sharer": "as its sharer predicts"}
"""Where an estimate of its slowdown is from (``JobRow.slowdown_from``)."""


def job_detail(context: Context) -> Content:
    """``/jobs/ID``; of another manager's job with ``?manager=``."""
    back = paragraph(context.to("jobs", text("← all jobs")))
    other, (row, job) = _other(context), _own(context)
    if other is not None:
        return _of_other_manager(context, other, back)
    if row is None:
        words = "There is no such job, or it is another user's, which only an administrator may see."
        return Content("No such job", {"answer": Html(f"<h1>No such job</h1>{paragraph(text(words))}{back}")}, 404)
    nodes = [one for node in nodes_of(row) if (one := row_of(context, node)) is not None] if _is_active(row) else []
    draws = draws_w(context, [node.name for node in nodes])
    power = f"<h2>What it draws, and why its clock is what it is</h2>{_power(row, nodes, draws)}"
    parts = {
        "answer": Html(f"<h1>Job {row.job}: {name(row.title)}</h1>{_state(context, row)}"),
        "power": Html("" if row.state == "queued" else power),
        "energy": Html(f"<h2>What it cost</h2>{_cost(context, row)}"),
        "facts": Html(f"<h2>As submitted</h2>{_facts(context, row, job)}"),
        "nodes": _node_table(context, nodes),
        "up": back,
    }
    return Content(f"Job {row.job}", parts)


def _own(context: Context) -> tuple[JobRow | None, Job | None]:
    """The job of ours that the path is about, and, as far as it was requested, its record."""
    found = context.snapshot.job
    if found is not None and str(found[0].job) == context.about:
        return found
    row = next((one for one in context.snapshot.jobs if str(one.job) == context.about), None)
    return (None if row is None or row.user == OTHERS else row), None


def _other(context: Context) -> RunningJob | None:
    """The job of another manager that the path is about."""
    manager = context.query.get("manager", "")
    for job in context.snapshot.running if manager else ():
        if job.job == context.about and (job.manager or "another") == manager:
            return job
    return None


def _is_active(row: JobRow) -> bool:
    return row.state in ACTIVE


def _state(context: Context, row: JobRow) -> Html:
    now_s = context.now_s
    if row.state == "queued":
        return joined(
            [
                paragraph(Html(f"{badge('wait', 'It waits')} since {moment(row.submitted_s, now_s)}."), "said"),
                paragraph(Html(f"<b>Why not now:</b> {text(why_not_now(context, row), 300)}.")),
                _start(context, row),
            ]
        )
    if _is_active(row):
        took = f", for {long(row.took_s)} of at most {long(row.walltime_s)}" if row.took_s is not None else ""
        until = Html(f"{badge('ok', 'It runs')}{text(took)}; it ends by {moment(ends_s(row), now_s)} at the latest.")
        return paragraph(until, "said")
    why = f": {row.reason}" if row.reason else ""
    status = f", exit status {row.status}" if row.status else ""
    kind = badge("ok" if row.state == "done" else "bad", f"It is {row.state}")
    return paragraph(Html(f"{kind}{text(why + status, 300)}; it ended at {moment(row.ended_s, now_s)}."), "said")


def _start(context: Context, row: JobRow) -> Html:
    if row.planned_s is None:
        return in_full(context, row)
    note = text(" A plan changes when jobs end early, come or go.")
    return paragraph(Html(f"<b>When it starts:</b> {starts(context, row)}.{note}"))


def _power(row: JobRow, nodes: list[NodeRow], whole_w: float | None) -> Html:
    lines = []
    if nodes:
        caps_w = sum(node.in_force_w for node in nodes)
        lines.append(
            text(f"It draws {watts(whole_w)} on {count(len(nodes), 'node')}, whose caps allow {watts(caps_w)}.")
        )
        lines += _bound(nodes)
    if row.slowdown is not None:
        takes = "takes" if _is_active(row) else "took"
        by = BY.get(row.slowdown_from, row.slowdown_from)
        lines.append(text(f"By its caps it {takes} {100 * row.slowdown:.1f} % longer, {by}."))
    if row.bound_by and row.bound:
        lines.append(text(f"A cap bound it for {100 * row.bound:.0f} % of its time, mostly: {cause(row.bound_by)}."))
    elif not any(node.bound_by for node in nodes):
        lines.append(text("No cap has bound it so far."))
    if row.tag:
        lines.append(text(f"Its work is tagged {in_words(row.tag, row.tag_source)}."))
    return joined(map(paragraph, lines))


def _bound(nodes: list[NodeRow]) -> list[Html]:
    found = bounding(nodes)
    if not found:
        return [Html(f"{badge('ok', 'No cap slows it')} now: its clock is what its nodes choose by themselves.")]
    return [
        Html(f"{badge('wait', 'cap-bound')} on {number:,} of {count(len(nodes), 'node')}: {text(cause(bound_by))}.")
        for bound_by, number in found
    ]


def _cost(context: Context, row: JobRow) -> Html:
    if row.energy_j is None:
        is_queued = row.state == "queued"
        words = "Nothing yet." if is_queued else "It is not known: no node measured it."
        if is_queued and (found := _alike(context, row)) is not None:
            words += f" The median of {found[1]} is {energy(found[0])} per node hour."
        return paragraph(text(words))
    so_far = " so far" if _is_active(row) else ""
    words = f"It took {energy(row.energy_j)}{so_far}"
    per_h_j = 3600 * row.energy_j / row.node_s if row.node_s > 0 else None
    words += "." if per_h_j is None else f": {energy(per_h_j)} per node hour."
    lines = [text(words)]
    if per_h_j is not None and (found := _alike(context, row)) is not None:
        median_j, whose = found
        lines.append(text(f"That is {compared(per_h_j / median_j)} the median of {whose} ({energy(median_j)})."))
    if row.measured is not None and row.measured < 0.995:
        lines.append(text(f"{100 * row.measured:.0f} % of it rests on measured power, the rest on estimates."))
    return joined(map(paragraph, lines))


def _alike(context: Context, row: JobRow) -> tuple[float, str] | None:
    """Joules of a node hour of jobs like it, and which these are; None: of none are they known."""
    alike = [
        value
        for one in context.snapshot.ended
        if one.application == row.title and one.user == row.user and one.job != str(row.job)
        if (value := per_node_h_j(one))
    ]
    if len(alike) >= FEWEST_JOBS:
        return statistics.median(alike), f"{len(alike)} jobs of its name and user in the last week"
    if context.snapshot.median_per_node_h_j:
        return context.snapshot.median_per_node_h_j, "everybody's jobs in the last week"
    return None


def _facts(context: Context, row: JobRow, job: Job | None) -> Html:
    now_s = context.now_s
    rows = [
        ("user", name(row.user)),
        ("nodes", text(f"{row.nodes:,}" + (f" ({row.requested:,} requested)" if _has_others(row) else ""))),
        ("walltime", text(long(row.walltime_s))),
        ("submitted", moment(row.submitted_s, now_s)),
        ("started", moment(row.started_s, now_s)),
        ("ended", moment(row.ended_s, now_s)),
        ("mean cap of a node", NONE if row.cap_w is None else shown_w(row.cap_w)),
        ("attempts", text(f"{row.attempts:,}")),
    ]
    if job is not None:
        command = " ".join(job.spec.command) if not job.spec.script else "a script"
        rows.insert(1, ("command", Html(f"<code><bdi>{text(command, 200)}</bdi></code>")))
    return facts(rows)


def _has_others(row: JobRow) -> bool:
    return row.requested not in (0, row.nodes)


def _node_table(context: Context, nodes: list[NodeRow]) -> Html:
    if not nodes:
        return Html("")
    rows = [
        [node_link(context, node.name), state_of(node), shown_w(draws_now_w(node)), shown_w(node.in_force_w),
         bound_of(node)]
        for node in nodes[:MOST_NODES]
    ]  # fmt: skip
    more = f". The first {MOST_NODES} of {len(nodes):,}" if len(nodes) > MOST_NODES else ""
    return table(f"Its nodes{more}", ("node", "state", "power", "cap in force", "cap-bound"), rows, (1, 4))


def _of_other_manager(context: Context, job: RunningJob, back: Html) -> Content:
    """What is known of it: its nodes' watts and caps, and its joules."""
    nodes = [one for node in job.nodes if (one := row_of(context, node)) is not None]
    at = Html(f" of {name(job.manager)}") if job.manager else Html(" of another job manager")
    whole_w = draws_w(context, [node.name for node in nodes])
    said = f"It draws {watts(whole_w)} on {count(len(job.nodes), 'node')}; when it ends is its manager's matter."
    answer = paragraph(Html(f"{badge('ok', 'It runs.')} {text(said)}"), "said")
    said = "It shares a node with another job: its joules are its share, where the nodes' agents know it."
    shared = paragraph(text(said)) if job.is_shared else ""
    took = paragraph(text(f"It took {energy(job.energy_j)} so far.")) if job.energy_j is not None else UNKNOWN
    lines = joined(map(paragraph, _bound(nodes))) if nodes else ""
    parts = {
        "answer": Html(f"<h1>Job {name(job.job)}{at}</h1>{answer}"),
        "power": Html(f"<h2>Why its clock is what it is</h2>{lines}"),
        "energy": Html(f"<h2>What it cost</h2>{shared or took}"),
        "nodes": _node_table(context, nodes),
        "up": back,
    }
    return Content(f"Job {job.job[:60]}", parts)
