"""HTML of which the type checker knows that foreign text in it is escaped, and the parts that all views are made of.

``Html`` is made by these functions and by f-strings of such; ``text`` is the only way in for a name from elsewhere.
Colours never stand alone: a sign and a word are next to each.
"""

from __future__ import annotations

import html
import re
from collections.abc import Iterable, Sequence
from functools import lru_cache
from typing import Final, Literal, NewType, TypeAlias
from urllib.parse import quote

from cluster_agent.page.snapshot import OTHERS
from foundation.shell.plain_text import plain

Html = NewType("Html", str)
Kind: TypeAlias = Literal["ok", "wait", "bad", "off"]

SIGNS: Final[dict[Kind, str]] = {"ok": "●", "wait": "◆", "bad": "▲", "off": "○"}
_UNIT: Final = re.compile(r"(?<=\d) (?=(?:[kM]?W|[kM]?Wh|%|s|min|h)(?!\w))")
LONGEST: Final = 60
LONGEST_SENTENCE: Final = 400
LONGEST_PROSE: Final = 1500
"""Ours: characters that are shown of a name, of a sentence, and of several."""


def text(value: str, longest: int = LONGEST_SENTENCE) -> Html:
    """Text from anywhere: on one line, without control characters or changes of direction, cut and escaped."""
    return _text(value[: longest + 1], longest)


@lru_cache(4096)
def _text(value: str, longest: int) -> Html:
    """Most texts of a view were in the one before, and in those of other viewers."""
    shown = plain(value[:longest]) + ("…" if len(value) > longest else "")
    return Html(_UNIT.sub("\u00a0", html.escape(shown)))


def prose(value: str) -> Html:
    """Sentences with commands in backquotes."""
    parts = value[:LONGEST_PROSE].split("`")
    if not len(parts) % 2:  # one without its end
        return text(value, LONGEST_PROSE)
    return joined(Html(f"<code>{text(part)}</code>") if at % 2 else text(part) for at, part in enumerate(parts))


def name(value: str) -> Html:
    """A name that somebody chose, on its own: its direction does not change that of what follows."""
    if value == OTHERS:
        return Html(f"<i>{text(value)}</i>")
    return Html(f"<bdi>{text(value, LONGEST)}</bdi>") if value.strip() else Html("<i>(no name)</i>")


def title_of(title: str, user: str) -> Html:
    """A job's title, which another user's has not."""
    return name(user if user == OTHERS else title)


def part_of_url(value: str) -> str:
    """A name as one part of a path, or as a value of a query."""
    return quote(value, safe="", errors="replace")


def link(url: str, content: Html) -> Html:
    """``url``: of ours; names in it went through ``part_of_url``."""
    return Html(f'<a href="{html.escape(url)}">{content}</a>')


def joined(parts: Iterable[Html], between: str = "") -> Html:
    """One after the other."""
    return Html(between.join(parts))


def badge(kind: Kind, word: str) -> Html:
    """A state: sign, colour and word."""
    return Html(f"<span class={kind}><span aria-hidden=true>{SIGNS[kind]}</span>\u00a0{text(word, LONGEST)}</span>")


def paragraph(content: Html, kind: str = "") -> Html:
    """``kind``: a class of the style sheet."""
    return Html(f"<p class={kind}>{content}</p>" if kind else f"<p>{content}</p>")


def table(caption: str, headings: Sequence[str], rows: Iterable[Sequence[Html]], words: Sequence[int] = ()) -> Html:
    """The first cell of a row names it. ``words``: columns that are words, to the left; the others are numbers."""
    titles = [text(heading) for heading in headings]
    kinds = ["" if at and at not in words else " class=word" for at in range(len(titles))]
    head = "".join(f"<th scope=col{kind}>{title}</th>" for kind, title in zip(kinds, titles, strict=True))
    lines = []
    for first, *others in rows:
        cells = zip(titles[1:], kinds[1:], others, strict=True)
        rest = "".join(f'<td{kind} data-title="{title}">{cell}</td>' for title, kind, cell in cells)
        lines.append(f"<tr><th scope=row>{first}</th>{rest}</tr>")
    return Html(
        f"<table><caption>{text(caption)}</caption><thead><tr>{head}</tr></thead><tbody>{''.join(lines)}</tbody></table>"
    )


def facts(rows: Iterable[tuple[str, Html]]) -> Html:
    """Names and values, one pair a line."""
    return Html("<dl>" + "".join(f"<div><dt>{text(term)}</dt><dd>{value}</dd></div>" for term, value in rows) + "</dl>")


def bar(label: str, parts: Iterable[tuple[str, float]], mark: float | None = None) -> Html:
    """Shares of a whole next to each other, each with its class; ``mark``: a line there. ``label`` says it in words."""
    drawn, at = [], 0.0
    for kind, share in parts:
        wide = min(max(share, 0.0), 1.0 - at)
        if wide > 0:
            drawn.append(f'<rect class={kind} x="{100 * at:.1f}%" width="{100 * wide:.1f}%" height="100%"/>')
        at += wide
    if mark is not None:
        place = f"{100 * min(max(mark, 0.0), 1.0):.1f}%"
        drawn.append(f'<line class=limit x1="{place}" x2="{place}" y1="-20%" y2="120%"/>')
    return Html(f'<svg class=share role=img aria-label="{text(label)}">{"".join(drawn)}</svg>')
