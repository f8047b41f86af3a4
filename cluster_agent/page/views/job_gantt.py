"""The plan: a row for each job over time, filled where it runs, an outline where it is planned to run."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import datetime
from typing import Final

from cluster_agent.page.snapshot import ends_s
from cluster_agent.page.views.markup import Html, text, title_of
from cluster_agent.page.views.quantities import clock, long
from cluster_agent.reports.html_parts import tick
from cluster_agent.serve.people_protocol import JobRow

MOST_ROWS: Final = 24
LONGEST_S: Final = 7 * 86_400.0
"""Ours: how many jobs the chart has, and how far it goes."""
STEPS_S: Final = (300, 600, 1800, 3600, 7200, 14_400, 21_600, 43_200, 86_400, 172_800)


def gantt(now_s: float, own: Sequence[JobRow], runs: Sequence[JobRow], waits: Sequence[JobRow], number: int) -> Html:
    """One's own jobs first, then planned ones by their start, then those that run: of each the first ``MOST_ROWS`` at
    least, of ``number`` that there are."""
    planned = [job for job in waits if job.planned_s is not None]
    mine = [job for job in own if ends_s(job) is not None]
    half = MOST_ROWS // 2
    chosen = {job.job: job for job in (*mine[:half], *planned[:half], *runs[:MOST_ROWS], *planned[half:MOST_ROWS])}
    shown = sorted(list(chosen.values())[:MOST_ROWS], key=lambda job: (job.state == "queued", _begin_s(job), job.job))
    if not shown:
        return Html("")
    first_s = max(min(_begin_s(job) for job in shown), now_s - LONGEST_S / 7)
    last_s = min(max(max(ends_s(job) or now_s for job in shown), now_s + 60), now_s + LONGEST_S)
    rows = "".join(_row(job, now_s, first_s, last_s) for job in shown)
    plans = (
        "Outlines: planned by the policy or predicted, which changes whenever jobs come or end early."
        if planned
        else "No start is planned or predicted: when a job that waits will start is not known."
    )
    more = f" {len(shown)} of {number:,} jobs." if len(shown) < number else ""
    return Html(
        f"<h2>Until when, and what next</h2><figure><div class=rows>{rows}<div class='row head'>"
        f"<span class=name></span>{_axis(now_s, first_s, last_s)}<span class=value></span></div></div>"
        f"<figcaption>Filled: runs, at most until its end here. {plans} The upright line is now.{more}"
        "</figcaption></figure>"
    )


def _begin_s(job: JobRow) -> float:
    return (job.planned_s if job.state == "queued" else job.started_s) or 0.0


def _row(job: JobRow, now_s: float, first_s: float, last_s: float) -> Html:
    begins_s, until_s = max(_begin_s(job), first_s), min(ends_s(job) or now_s, last_s)
    is_planned = job.state == "queued"
    span_s = last_s - first_s
    x, wide = 100 * (begins_s - first_s) / span_s, 100 * max(until_s - begins_s, 0.0) / span_s
    kind = "planned" if is_planned else f"job job{job.job % 4}"
    words = "is to run" if is_planned else "runs"
    label = text(f"job {job.job} {words} for at most {long(job.walltime_s)}")
    now = f"{100 * (now_s - first_s) / span_s:.2f}%"
    return Html(
        f"<div class=row><span class=name>{text(str(job.job))} {title_of(job.title, job.user)}</span>"
        f'<svg class=plan role=img aria-label="{label}"><rect class="{kind}" x="{x:.2f}%" y="4" width="{wide:.2f}%"'
        f' height="18"/><line class=reference x1="{now}" x2="{now}" y1="0" y2="26"/></svg>'
        f"<span class=value>{_when(job, now_s)}</span></div>"
    )


def _when(job: JobRow, now_s: float) -> Html:
    nodes = text(f"{job.nodes:,} node{'s' if job.nodes > 1 else ''}")
    if job.state == "queued":
        return Html(f"from {clock(job.planned_s, now_s)}, {nodes}")
    return Html(f"until {clock(ends_s(job), now_s)}, {nodes}")


def _axis(now_s: float, first_s: float, last_s: float) -> Html:
    """Round times of the day; with the day where it is a long time."""
    span_s = last_s - first_s
    step_s = next((one for one in STEPS_S if span_s / one <= 5), STEPS_S[-1])
    local = datetime.fromtimestamp(now_s).astimezone().utcoffset()
    shift_s = local.total_seconds() if local else 0.0
    numbers = range(math.ceil((first_s + shift_s) / step_s), math.floor((last_s + shift_s) / step_s) + 1)
    form = "%H:%M" if span_s < 86_400 else "%a %H:%M" if step_s < 86_400 else "%a %d"
    ticks = "".join(
        tick((at_s - first_s) / span_s, datetime.fromtimestamp(at_s).strftime(form))
        for at_s in (number * step_s - shift_s for number in numbers)
    )
    return Html(f"<svg class=axis aria-hidden=true>{ticks}</svg>")
