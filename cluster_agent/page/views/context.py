"""What a view gets, and what it gives: a title and parts by the id of their element, which are replaced when they
change."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Final, TypeVar

import msgspec

from cluster_agent.page.snapshot import Snapshot, Viewer
from cluster_agent.page.views.markup import Html, joined, link, part_of_url, text

Given = TypeVar("Given")
Made = TypeVar("Made")


LONGEST_IN_URL: Final = 300
"""Ours: characters of a name; the server takes addresses of some thousand bytes."""


class Context(msgspec.Struct, frozen=True):
    """``root``: the way from the address of this view to that of the first one, so that the page may be anywhere.
    ``about``: the node or job in the path; ``query``: what follows it."""

    snapshot: Snapshot
    viewer: Viewer
    root: str
    about: str
    query: Mapping[str, str]

    @property
    def now_s(self) -> float:
        """When what is shown was said."""
        return self.snapshot.taken_s

    def to(self, view: str, content: Html, about: str = "", **query: str) -> Html:
        """A link to another view; the words alone where a name is too long for an address."""
        if any(len(value) > LONGEST_IN_URL for value in (about, *query.values())):
            return content
        path = f"{self.root}{view}" + (f"/{part_of_url(about)}" if about else "")
        pairs = "&".join(f"{key}={part_of_url(value)}" for key, value in query.items() if value)
        return link(path + (f"?{pairs}" if pairs else ""), content)

    def number(self, key: str) -> int:
        """A number of the query, from 1 on; 1 for anything else."""
        given = self.query.get(key, "")
        return max(int(given), 1) if given.isdecimal() and given.isascii() and len(given) < 8 else 1


class Content(msgspec.Struct, frozen=True):
    """A view. ``parts``: by the id of their element, in order."""

    title: str
    parts: dict[str, Html]
    status: int = 200


def for_all_viewers(make: Callable[[Given], Made]) -> Callable[[Given], Made]:
    """What was made of an argument is there again for the same object: viewers share a snapshot's tuples."""
    last: list[tuple[Given, Made]] = []

    def made(given: Given) -> Made:
        if not (last and last[0][0] is given):
            last[:] = [(given, make(given))]
        return last[0][1]

    return made


ROWS: Final = 100
"""Ours: rows of a table before the next page of it."""


def pages_of(context: Context, view: str, number: int, **query: str) -> Html:
    """Links to the other pages of a long table."""
    most, at = -(-number // ROWS), context.number("page")
    if most <= 1:
        return Html("")
    parts = [text(f"page {min(at, most)} of {most}")]
    parts += [context.to(view, text("← earlier rows"), page=str(min(at, most) - 1), **query)] if at > 1 else []
    parts += [context.to(view, text("later rows →"), page=str(at + 1), **query)] if at < most else []
    return Html(f"<p class=pages>{joined(parts, ' · ')}</p>")


def page_of(context: Context, number: int) -> slice:
    """Which rows are on this page of the table."""
    first = (min(context.number("page"), max(-(-number // ROWS), 1)) - 1) * ROWS
    return slice(first, first + ROWS)
