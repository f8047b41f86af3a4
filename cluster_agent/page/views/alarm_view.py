"""Alarms, each with what to do."""

from __future__ import annotations

from cluster_agent.page.snapshot import Alarm
from cluster_agent.page.views.context import Content, Context
from cluster_agent.page.views.markup import Html, badge, joined, paragraph, prose, text
from cluster_agent.page.views.quantities import count, moment


def alarm_list(context: Context) -> Html:
    """All that are on, or that there is none."""
    if not context.snapshot.alarms:
        return paragraph(badge("ok", "No alarm is on: nothing is to be done."))
    return Html(f"<ul class=alarms>{joined(_alarm(context, one) for one in context.snapshot.alarms)}</ul>")


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
