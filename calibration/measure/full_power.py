"""A measurement is repeated when the node loses its power meanwhile: a capped node is slower than it is.

Only a node of a cluster has a cap that comes and goes (``through_agent``).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, TypeVar

from foundation.shell.errors import NodectlError

T = TypeVar("T")

LOOK_NS: Final = 500_000_000
"""Ours: how often a paused session looks whether it may go on; within the agent's patience for a request."""


class GrantLostError(NodectlError):
    """A cap keeps the node below its full power; one line."""


def at_full_power(
    measure: Callable[[], T],
    idle: Callable[[], None],
    renew: Callable[[], None],
    wait: Callable[[int], None],
    paused: Callable[[str], None],
) -> T:
    """What ``measure`` returns, from the first time that it is not broken off by ``GrantLostError``. After that the
    node is made ``idle`` until ``renew`` raises it no more; ``paused`` gets the reason, and "" at the end of it."""
    while True:
        try:
            return measure()
        except GrantLostError as error:
            idle()
            paused(str(error))
        while _is_lost(renew):
            wait(LOOK_NS)
        paused("")


def _is_lost(renew: Callable[[], None]) -> bool:
    try:
        renew()
    except GrantLostError:
        return True
    return False
