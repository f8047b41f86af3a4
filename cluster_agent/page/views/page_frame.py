"""What is around every view: the way to the others, when all this was said, and whether it still is so."""

from __future__ import annotations

from typing import Final

from cluster_agent.page.views.context import LONGEST_IN_URL, Content, Context
from cluster_agent.page.views.markup import Html, badge, joined, name, part_of_url, text
from cluster_agent.page.views.quantities import clock, long, offset

NAMES: Final = {
    "": "Overview", "nodes": "Nodes", "jobs": "Jobs", "budget": "Budget", "energy": "Energy", "alarms": "Alarms",
}  # fmt: skip


def banner(context: Context, clock_s: float) -> Html:
    """When this was said, and, above all else, that the cluster agent does not answer. ``clock_s``: the time now."""
    snapshot = context.snapshot
    if snapshot.lost_since_s is not None:
        since = clock(snapshot.lost_since_s, clock_s)
        last = "Nothing is known yet." if snapshot.budget is None else "All below is the last that it said."
        why = f" ({text(snapshot.lost_why.rstrip('.'), 300)})" if snapshot.lost_why else ""
        return Html(
            f"<p class=lost role=status>{badge('bad', 'The cluster agent does not answer')} since {since},"
            f" for {text(long(max(clock_s - snapshot.lost_since_s, 0.0)))}{why}. {text(last)}"
            f" Nodes keep their caps until their leases end, then fall to their safe caps."
            f" On the head node: <code>systemctl status clusterctl</code></p>"
        )
    if not snapshot.taken_s:
        return Html("<p class=note>The cluster agent has not answered yet.</p>")
    return Html(
        f"<p class=note>As of {clock(snapshot.taken_s, snapshot.taken_s)}, {text(offset(snapshot.taken_s))}: all times"
        " are those of the machine that serves this page.</p>"
    )


def whole_page(context: Context, view: str, content: Content, clock_s: float) -> str:
    """The document. ``view``: of ``NAMES``."""
    partition = context.snapshot.partition
    title = " · ".join(filter(None, [content.title, partition[:60], "nodectl"]))
    sections = "".join(f'<section id="{part}">{inner}</section>' for part, inner in content.parts.items())
    return (
        "<!doctype html><html lang=en><head><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width, initial-scale=1'>"
        f'<title>{text(title)}</title><link rel=stylesheet href="{context.root}page.css">'
        f'<script src="{context.root}page.js" defer></script></head>'
        f"<body{_updates(context, view)}>"
        "<a class=skip href=#main>Skip to the content</a><header>"
        f"<p class=site><b>nodectl</b> {name(partition) if partition else ''}{_viewer(context)}</p>"
        f"<nav aria-label=Views><ul>{joined(_entry(context, one, view) for one in NAMES)}</ul></nav>"
        f"</header><main id=main tabindex=-1><div id=banner>{banner(context, clock_s)}</div>{sections}</main>"
        "<footer><p class=note><span id=live>This page is as of its loading: reload it to see what has changed.</span>"
        " It only shows; changes are made with <code>clusterctl</code>.</p></footer></body></html>\n"
    )


def _updates(context: Context, view: str) -> Html:
    """Where the script hears of changes; not of a name with a question mark, which ends a path, or of a long one."""
    if "?" in context.about or any(map(_is_long, (context.about, *context.query, *context.query.values()))):
        return Html("")
    path = f"/{view}" + (f"/{context.about}" if context.about else "")
    pairs = "&".join(f"{part_of_url(key)}={part_of_url(value)}" for key, value in context.query.items())
    shown = part_of_url(path + (f"?{pairs}" if pairs else ""))
    return Html(f' data-updates="{context.root}updates?view={shown}"')


def _is_long(value: str) -> bool:
    return len(value) > LONGEST_IN_URL


def _viewer(context: Context) -> Html:
    viewer = context.viewer
    if viewer.user is None:
        return text(" · nobody known: names of jobs and users are left out" if not viewer.sees_all else "")
    return Html(f" · {name(viewer.user)}{', administrator' if viewer.sees_all else ''}")


def _entry(context: Context, one: str, view: str) -> Html:
    alarms = len(context.snapshot.alarms)
    words = text(NAMES[one] + (f" ({alarms})" if one == "alarms" and alarms else ""))
    current = " aria-current=page" if one == view else ""
    return Html(f'<li><a href="{context.root}{one}"{current}>{words}</a></li>')
