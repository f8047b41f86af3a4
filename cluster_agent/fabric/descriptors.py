"""File descriptors for the links: each connected node is one, and the usual soft limit is 1024.

The hard limit is set by the administrator; up to there a process may raise its own (setrlimit(2)).
"""

from __future__ import annotations

import resource
from typing import Final

MOST, SPARE = 65_536, 128
"""Ours: as the shipped unit allows; files that are open in addition to the links to nodes."""

_WITHOUT: Final = resource.RLIM_INFINITY


def take() -> None:
    """Raise the soft limit as far as it goes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = MOST if hard == _WITHOUT else min(hard, MOST)
    if soft != _WITHOUT and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def missing(nodes: int) -> str:
    """Words for an alarm if not all of so many nodes can be connected; empty if they can."""
    limit, needed = resource.getrlimit(resource.RLIMIT_NOFILE)[0], nodes + SPARE
    if limit == _WITHOUT or needed <= limit:
        return ""
    return (
        f"{nodes} nodes are allowed and this process may open {limit} files: some cannot connect"
        f" (LimitNOFILE={needed} in its unit, or ulimit -n {needed})"
    )
