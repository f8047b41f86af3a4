"""Starts that no policy has planned: predicted, said to be so, with what that rests on and how old it is."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from msgspec.structs import replace

from cluster_agent.page.start_prediction import Prediction
from cluster_agent.page.views.context import Context
from cluster_agent.page.views.markup import Html, joined, paragraph, text
from cluster_agent.page.views.quantities import count, long, moment
from cluster_agent.serve.people_protocol import JobRow

OLD_S: Final = 120.0
"""Ours: an older prediction says how old it is."""


def start_s(context: Context, row: JobRow) -> float | None:
    """About when the job starts; None: that is planned, or not predicted."""
    made = context.snapshot.predicted
    return None if made is None or row.planned_s is not None else made.likely_s.get(row.job)


def in_short(context: Context, row: JobRow) -> Html:
    """In a table: about when; or that it is not known."""
    at_s = start_s(context, row)
    if at_s is None:
        return Html("<span class=soft>not planned</span>")
    if at_s <= context.now_s:
        return Html("<span class=soft>predicted:</span> soon")
    return Html(f"<span class=soft>predicted:</span> about {moment(at_s, context.now_s)}")


def filled_in(context: Context, rows: Sequence[JobRow]) -> list[JobRow]:
    """The rows with predicted starts in the place of planned ones."""
    return [row if (at_s := start_s(context, row)) is None else replace(row, planned_s=at_s) for row in rows]


def in_full(context: Context, row: JobRow) -> Html:
    """Of one job: about when, by when if nothing ends early, and what that rests on."""
    made = context.snapshot.predicted
    at_s = start_s(context, row)
    if made is None or at_s is None:
        return paragraph(Html(f"<b>When it starts:</b> {_not_known(made)}"))
    lines = [Html(f"<b>When it starts:</b> {in_short(context, row)}.")]
    whole_s = made.if_whole_s.get(row.job)
    if whole_s is not None and whole_s > at_s + 60.0:
        lines.append(Html(f"If every job takes its whole walltime: {moment(whole_s, context.now_s)}."))
    return Html(joined(map(paragraph, lines)) + basis(context))


def basis(context: Context) -> Html:
    """What predictions rest on; nothing where there are none."""
    made = context.snapshot.predicted
    if made is None or not made.likely_s:
        return Html("")
    age_s = context.now_s - made.made_s
    old = f"It is {long(age_s)} old. " if age_s >= OLD_S else ""
    policy = f"Under the policy in force ({made.policy})"
    if made.instead:
        policy = f"As under {made.policy}, since the policy in force cannot be replayed from the queue alone"
    known = "" if not made.known else (
        f" {count(made.known, 'job')} {'is' if made.known == 1 else 'are'} taken to run as long as the median of those"
        " of the same user and name in the last week, all others for their whole walltime."
    )  # fmt: skip
    known = known or " All jobs are taken to run for their whole walltime."
    rest = " Not in it: jobs that are still to come, watts, and which nodes a job needs."
    return paragraph(text(f"A prediction, from a replay of the queue. {old}{policy}.{known}{rest}"), "note")


def _not_known(made: Prediction | None) -> Html:
    if made is None:
        return text("not planned: the policy in force plans no start, and none is predicted yet.")
    if made.trouble:
        return text(f"not planned, and not predicted: {made.trouble}.", 300)
    return text("not planned, and not predicted: it joined the queue after the last prediction, or cannot start here.")
