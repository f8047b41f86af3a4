"""Alarms, each with what to do."""

from __future__ import annotations

from typing import Final

from cluster_agent.page.snapshot import Alarm
from cluster_agent.page.views.causes import what_helps
from cluster_agent.page.views.context import Content, Context, for_all_viewers
from cluster_agent.page.views.markup import Html, badge, joined, paragraph, prose, text
from cluster_agent.page.views.node_views import node_link
from cluster_agent.page.views.quantities import count, moment
from cluster_agent.serve.people_protocol import NodeRow

MOST_NAMED: Final = 10
"""Ours: nodes that are named of those that do not report."""


def alarm_list(context: Context) -> Html:
    """All that are on, or that there is none."""
    unheard = unheard_nodes(context)
    if context.snapshot.alarms:
        alarms = joined(_alarm(context, one) for one in context.snapshot.alarms)
        return Html(f"<ul class=alarms>{alarms}</ul>{unheard}")
    return unheard or paragraph(badge("ok", "No alarm is on: nothing is to be done."))


def unheard_nodes(context: Context) -> Html:
    """Nodes that do not report, which the cluster agent has an alarm of after a minute only; empty: all do."""
    silent = _unheard(context.snapshot.nodes)
    if not silent:
        return Html("")
    named = joined([node_link(context, row.name) for row in silent[:MOST_NAMED]], ", ")
    more = f" and {len(silent) - MOST_NAMED:,} more" if len(silent) > MOST_NAMED else ""
    said = badge("bad", f"{count(len(silent), 'node')} {'does' if len(silent) == 1 else 'do'} not report:")
    fix = Html(f"<b>What to do:</b> {prose(what_helps(silent[0]))}")
    return Html(
        paragraph(Html(f"{said} {named}{text(more)}. A silent node counts the most that it may draw.")) + paragraph(fix)
    )


@for_all_viewers
def _unheard(rows: tuple[NodeRow, ...]) -> list[NodeRow]:
    return [row for row in rows if what_helps(row)]


def _alarm(context: Context, alarm: Alarm) -> Html:
    what = f"<p><b>What to do:</b> {prose(alarm.fix)}</p>" if alarm.fix else ""
    return Html(
        f"<li><p>{badge('bad', alarm.kind)} since {moment(alarm.since_s, context.now_s)}</p>"
        f"<p>{prose(alarm.words)}</p>{what}</li>"
    )


def alarm_view(context: Context) -> Content:
    """``/alarms``."""
    number = len(context.snapshot.alarms)
    said = f"{count(number, 'alarm')} {'is' if number == 1 else 'are'} on." if number else ""
    head = Html(f"<h1>Alarms</h1>{paragraph(text(said), 'said') if said else ''}")
    note = paragraph(
        text(
            "An alarm is what somebody must act on. It ends by itself when its cause has gone; when this page saw it"
            " first is shown, which may be after it began."
        ),
        "note",
    )
    return Content("Alarms", {"answer": Html(head + alarm_list(context)), "notes": note})
