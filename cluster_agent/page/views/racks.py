"""Nodes in racks: by their names, since nothing else says where they are, and so that any number fits on a page.

``r12n03`` is in ``r12n``: the number at the end counts within a rack. A rack of more than a hundred (``n00001`` to
``n10000``) is divided by hundreds, and where there are very many small ones, neighbours become one range.
"""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import chain
from typing import Final, NamedTuple

from cluster_agent.page.views.context import for_all_viewers
from cluster_agent.serve.people_protocol import NodeRow

MOST_IN_RACK: Final = 100
MOST_RACKS: Final = 150
"""Ours: nodes of a rack, unless its name says otherwise; rows of the page of all racks."""

_NUMBERS: Final = re.compile(r"(\d+)")


class Rack(NamedTuple):
    """``key``: its name in addresses, that of the first node; ``title``: the first and the last."""

    key: str
    first: str
    last: str
    rows: list[NodeRow]


def order(name: str) -> tuple[tuple[str, int], ...]:
    """So that n9 is before n10."""
    parts = _NUMBERS.split(name)
    return tuple((text, int(number[:18] or -1)) for text, number in zip(parts[::2], [*parts[1::2], ""], strict=True))


def _rack(name: str) -> tuple[str, int]:
    """What is before the last number, and that number; -1: none."""
    *before, number, after = _NUMBERS.split(name) if _NUMBERS.search(name) else (name, "", "")
    return "".join(before) + (f"…{after}" if after else ""), int(number[:18] or -1)


@for_all_viewers
def racks(rows: tuple[NodeRow, ...]) -> list[Rack]:
    """In the order of their names."""
    by_stem: dict[str, list[tuple[int, NodeRow]]] = defaultdict(list)
    for row in rows:
        stem, number = _rack(row.name)
        by_stem[stem].append((number, row))
    found: list[list[NodeRow]] = []
    for _, members in sorted(by_stem.items(), key=lambda one: order(one[0])):
        members.sort(key=lambda one: (one[0], one[1].name))
        if len(members) <= MOST_IN_RACK:
            found.append([row for _, row in members])
            continue
        hundreds: dict[int, list[NodeRow]] = defaultdict(list)
        for number, row in members:
            hundreds[number // MOST_IN_RACK].append(row)
        found += hundreds.values()
    at_once = -(-len(found) // MOST_RACKS)
    ranges = (
        [list(chain.from_iterable(found[at : at + at_once])) for at in range(0, len(found), at_once)]
        if at_once > 1
        else found
    )
    return [Rack(one[0].name, one[0].name, one[-1].name, one) for one in ranges]
