"""Limits as they are written: ``user:processors=512,jobs=8 queue=2:jobs=10``."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from cluster_agent.errors import WrongUseError

MOST: Final = 2**31 - 1
KEYS: Final = ("user", "group", "queue")
LONGEST_QUEUE: Final = 64
"""Ours: characters of a queue's name on a live partition."""


class Rule(NamedTuple):
    """At most so many ``what``, of each value of ``key``, or of one."""

    key: str
    value: str | None
    what: str  # "jobs", or what a job has: "processors", on a live partition "nodes"
    most: int


def rules_of(text: str, width: str = "processors", keys: Sequence[str] = KEYS, option: str = "--limit ") -> list[Rule]:
    """The rules, separated by blanks; ``width``: what a job has. ``WrongUseError`` for what is no such rule."""
    found: list[Rule] = []
    for one in text.split():
        key, colon, amounts = one.partition(":")
        key, equals, value = key.partition("=")
        if not colon or key not in keys or bool(equals) != bool(value):
            example = f"{keys[0]}:{width}=NUMBER, {keys[-1]}=NAME:jobs=NUMBER"
            raise WrongUseError(f"{option}{one}: give {example} or the like")
        for amount in amounts.split(","):
            what, _, number = amount.partition("=")
            if what not in (width, "jobs") or not is_number(number):
                raise WrongUseError(f"{option}{one}: {amount!r} is neither {width}=NUMBER nor jobs=NUMBER, from 1")
            found.append(Rule(key, value or None, what, int(number)))
            if sum(rule[:3] == found[-1][:3] for rule in found) > 1:
                raise WrongUseError(f"{option}{one}: another limit is of the same {what}; leave one of them out")
    return found


def is_number(text: str) -> bool:
    """Whether it is a whole number from 1 that the engine can count with."""
    return text.isascii() and text.isdecimal() and len(text) < 11 and 0 < int(text) <= MOST
