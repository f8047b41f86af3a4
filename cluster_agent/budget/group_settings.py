"""``[[budget.group]]`` and ``[[gear]]`` of the settings, and what must be so for them to make a tree of budgets.

A group's ``nodes`` are those that are in no group below it. The limits of the groups of one parent may be more than the
parent's together, since that is what lets watts go where they are needed; a single one may not, since it could never
be reached, and whoever wrote it has probably mistaken a number.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cluster_agent.budget.budget_line import MOST_W
from cluster_agent.budget.levels import Group, Levels
from foundation.shell.errors import UsageError, nearest
from foundation.shell.names import expanded, first_of

MOST_GEAR_W: Final = 10**9
MOST_COUNT: Final = 1_000_000
KEY: Final = "budget.group"
MOST_NAMED: Final = 3
"""Ours: how many nodes a line names."""

Name = Annotated[
    str, Meta(pattern="^[A-Za-z0-9][A-Za-z0-9_.:-]{0,63}$", description="Letters, digits and `_.:-`, at most 64.")
]


class GroupSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A part of the partition with a limit of its own: a room, a rack, a PDU, a partition of another job manager."""

    name: Name
    w: Annotated[
        float,
        Meta(
            description="Its limit: DC watts of its nodes, of those in groups below it, and of its gear. One that was"
            " set by hand counts until this is changed.",
            gt=0,
            le=MOST_W,
        ),
    ]
    nodes: Annotated[
        str, Meta(description="Its nodes that are in no group below it, such as `n[01-40],n77`; empty: none.")
    ] = ""
    parent: Annotated[str, Meta(description="The group that it is in; empty: the whole budget.")] = ""


class GearSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What draws power next to the nodes, and is not capped: switches, pumps, fans and supplies of a chassis."""

    name: Name
    w: Annotated[float, Meta(description="The most that one of them draws, in DC watts.", gt=0, le=MOST_GEAR_W)]
    count: Annotated[int, Meta(description="So many of them.", ge=1, le=MOST_COUNT)] = 1
    group: Annotated[
        str, Meta(description="The `[[budget.group]]` behind whose limit they are; empty: the whole budget alone.")
    ] = ""


def gear_mw(gear: Sequence[GearSettings], group: str | None = None) -> int:
    """What all of it draws, or, with ``group``, what is directly in that."""
    return sum(round(one.w * 1000) * one.count for one in gear if group is None or one.group == group)


def gear_w(groups: Sequence[GroupSettings], gear: Sequence[GearSettings]) -> dict[str, float]:
    """What the gear of each group draws, that of the groups below it included, in W."""
    by_name = {one.name: one for one in groups}
    found = dict.fromkeys(by_name, 0.0)
    for piece in gear:
        for name in _upwards(piece.group, by_name):
            found[name] += piece.w * piece.count
    return found


def levels_of(groups: Sequence[GroupSettings], gear: Sequence[GearSettings]) -> Levels:
    """The tree of settings without ``problems``."""
    return Levels(
        [
            Group(
                one.name, round(one.w * 1000), tuple(expanded(one.nodes)) if one.nodes else (), one.parent,
                gear_mw(gear, one.name),
            )
            for one in groups
        ]
    )  # fmt: skip


def problems(
    groups: Sequence[GroupSettings], gear: Sequence[GearSettings], budget_w: float
) -> Iterator[tuple[str, str]]:
    """What is wrong: the key, and one line that begins with the name. ``budget_w``: the whole budget, 0 if it is not
    known."""
    by_name = {one.name: one for one in groups}
    if len(by_name) < len(groups):
        names = [one.name for one in groups]
        again = _again(names)
        yield f"{KEY}[{again}].name", f"the group {names[again]} is there twice"
        return
    for at, one in enumerate(groups):
        key, problem = _of_parent(one, by_name, budget_w)
        if problem:
            yield f"{KEY}[{at}].{key}", f"group {one.name}: {problem}"
            return
    yield from _of_nodes(groups)
    for at, piece in enumerate(gear):
        if piece.group and piece.group not in by_name:
            words = f"no group is called {piece.group!r}{nearest(piece.group, by_name)}"
            yield f"gear[{at}].group", f"gear {piece.name}: {words}"
            return
    fixed_w = gear_w(groups, gear)
    for at, one in enumerate(groups):
        if one.w <= fixed_w[one.name]:
            words = f"{one.w:g} W is not above what its gear draws ({fixed_w[one.name]:g} W)"
            yield f"{KEY}[{at}].w", f"group {one.name}: {words}"
            return


def _of_parent(one: GroupSettings, by_name: dict[str, GroupSettings], budget_w: float) -> tuple[str, str]:
    """The key, and what is wrong with it; "": nothing."""
    if not one.parent:
        if 0 < budget_w < one.w:
            return "w", f"{one.w:g} W are more than the whole budget (budget.w: {budget_w:g} W): set at most that"
        return "", ""
    if one.parent not in by_name:
        return "parent", f"its parent {one.parent!r} is no group{nearest(one.parent, by_name)}"
    if one.name in _upwards(one.parent, by_name):
        return "parent", f"it is below itself, by its parent {one.parent}"
    parent = by_name[one.parent]
    if parent.w < one.w:
        return "w", f"{one.w:g} W are more than its parent {parent.name} may draw ({parent.w:g} W): set at most that"
    return "", ""


def _upwards(name: str, by_name: dict[str, GroupSettings]) -> list[str]:
    """The group and those that it is in, each once."""
    found: list[str] = []
    while name in by_name and name not in found:
        found.append(name)
        name = by_name[name].parent
    return found


def _of_nodes(groups: Sequence[GroupSettings]) -> Iterator[tuple[str, str]]:
    group_of: dict[str, str] = {}
    for at, one in enumerate(groups):
        key = f"{KEY}[{at}].nodes"
        try:
            names = expanded(one.nodes) if one.nodes else []
        except UsageError as error:
            yield key, f"group {one.name}: {error}"
            return
        if twice := [name for name in names if name in group_of]:
            words = f"{first_of(twice, MOST_NAMED)} in group {group_of[twice[0]]} already: a node is in one group"
            yield key, f"group {one.name}: {words}, and in those that this one is in"
            return
        if len(set(names)) < len(names):
            yield key, f"group {one.name}: {names[_again(names)]} is there twice"
            return
        group_of |= dict.fromkeys(names, one.name)


def _again(names: Sequence[str]) -> int:
    """Where the first stands that has been there before; one has."""
    seen: set[str] = set()
    return next(at for at, name in enumerate(names) if name in seen or seen.add(name))  # type: ignore[func-returns-value]
