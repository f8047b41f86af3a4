"""What a person sees: whole pages of HTML, and their parts for those that follow them as they change.

``pages`` makes the page of a path, ``fragments`` its parts, ``assets`` the style and the script that it names. A page
has no other files, no inline style or script, and links that are relative, so that it may be served below any address.
All of it works without the script, which only replaces parts by what the server sends.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl

from cluster_agent.page.snapshot import Snapshot, Viewer
from cluster_agent.page.views.alarm_view import alarm_view
from cluster_agent.page.views.budget_view import budget_view
from cluster_agent.page.views.context import Content, Context
from cluster_agent.page.views.energy_view import energy_view
from cluster_agent.page.views.job_detail import job_detail
from cluster_agent.page.views.job_views import job_list
from cluster_agent.page.views.markup import Html
from cluster_agent.page.views.node_views import node_detail, node_list
from cluster_agent.page.views.overview import overview
from cluster_agent.page.views.page_frame import banner, whole_page

VIEWS: Final[dict[str, Callable[[Context], Content]]] = {
    "": overview, "nodes": node_list, "jobs": job_list, "budget": budget_view, "energy": energy_view,
    "alarms": alarm_view,
}  # fmt: skip
DETAILS: Final[dict[str, Callable[[Context], Content]]] = {"nodes": node_detail, "jobs": job_detail}


def pages(path: str, query: Mapping[str, str], snapshot: Snapshot, viewer: Viewer) -> tuple[int, str] | None:
    """Status and HTML of ``path``, which is decoded (``/nodes/n 1``) and has no prefix; None: there is no such view.

    A node or job that is not there is a page with status 404. ``snapshot`` has been through ``access.seen_by``; for a
    node's page it has its ``why``, for a job's its ``job``.
    """
    found = _view(path, query, snapshot, viewer)
    if found is None:
        return None
    view, context, content = found
    return content.status, whole_page(context, view, content, time.time())


def fragments(view: str, snapshot: Snapshot, viewer: Viewer) -> dict[str, str]:
    """Of ``view``, a decoded path and a query as it is in an address, the inner HTML of each part by the id of its
    element; none if there is no such view."""
    path, _, query = view.partition("?")
    found = _view(path, dict(parse_qsl(query, errors="replace")), snapshot, viewer)
    if found is None:
        return {}
    _, context, content = found
    parts = {name: str(part) for name, part in content.parts.items()}
    return parts | {"banner": banner(context, time.time())}


def assets() -> dict[str, tuple[str, bytes]]:
    """By path, type and bytes of what pages name: the server serves them as they are."""
    here = Path(__file__).parent
    # the style of reports comes first, so that live and replay look alike
    style = (here.parents[1] / "reports" / "page.css").read_bytes() + (here / "live.css").read_bytes()
    return {
        "/page.css": ("text/css; charset=utf-8", style),
        "/page.js": ("text/javascript; charset=utf-8", (here / "live.js").read_bytes()),
    }


def _view(
    path: str, query: Mapping[str, str], snapshot: Snapshot, viewer: Viewer
) -> tuple[str, Context, Content] | None:
    """The name of the view, what it got and what it made."""
    name, slash, about = path.removeprefix("/").partition("/")
    make = DETAILS.get(name) if slash else VIEWS.get(name)
    if make is None or (slash and not about):
        return None
    context = Context(snapshot, viewer, "../" if slash else "./", about, query)
    return name, context, make(context)


__all__ = ["Html", "assets", "fragments", "pages"]
