"""The nodes that dispatch among themselves, and who may send them jobs: two files, equal on all of them.

``nodes.toml`` has the nodes in order; the number of a node is its place, so new ones are added at the end. ``allowed``
(``cluster_agent.fabric.allowed``) has the keys: role node, role submitter for task managers, and role admin for who may
cancel the job of another.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from cluster_agent.dispatch.messages import Rules
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.allowed import checked_name
from foundation.shell.errors import plain_reason
from foundation.shell.settings import decode_toml, is_address

FILE: Final = "nodes.toml"
MOST_NODES: Final = 100_000


class NodeEntry(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A node manager's name, which is that of its key, and where it listens."""

    name: str
    url: str


class NodesFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``slot_s``: jobs start at whole multiples of it. ``reply_s``: so long a task manager waits for candidates, twice
    as long a node keeps an offer. ``grace_s``: so long after its start a reservation waits for its job's other nodes.
    ``pause_s``: a task manager that finds no start tries again after it. ``skew_s``: a node whose clock is further
    apart gets no job."""

    nodes: Annotated[list[NodeEntry], Meta(min_length=1, max_length=MOST_NODES)]
    slot_s: Annotated[float, Meta(ge=0.1, le=3600)] = 60.0
    reply_s: Annotated[float, Meta(ge=0.005, le=60)] = 0.5
    grace_s: Annotated[float, Meta(ge=1, le=3600)] = 90.0
    pause_s: Annotated[float, Meta(ge=1, le=3600)] = 60.0
    skew_s: Annotated[float, Meta(ge=0.1, le=3600)] = 30.0

    @property
    def rules(self) -> Rules:
        """The times of both sides. A start is offered no earlier than its confirmation can be late."""
        reply_us = round(1e6 * self.reply_s)
        return Rules(
            slot_us=round(1e6 * self.slot_s), reply_us=reply_us, offer_us=2 * reply_us, retry_us=reply_us,
            grace_us=round(1e6 * self.grace_s), ahead_us=4 * reply_us, skew_us=round(1e6 * self.skew_s),
            pause_us=round(1e6 * self.pause_s),
        )  # fmt: skip

    def number(self, name: str) -> int:
        """Of the node of this name; -1: there is none."""
        return next((place for place, one in enumerate(self.nodes) if one.name == name), -1)


def read_nodes(directory: Path) -> NodesFile:
    """``nodes.toml``; ``ClusterError`` in one line where it cannot be read, or is wrong."""
    path = directory / FILE
    try:
        found = decode_toml(path.read_text(), NodesFile)
    except (OSError, UnicodeDecodeError) as error:
        raise ClusterError(f"{path}: cannot read the nodes: {getattr(error, 'strerror', None) or error}") from None
    except msgspec.MsgspecError as error:
        raise ClusterError(f"{path}: {plain_reason(str(error))}") from None
    seen: set[str] = set()
    for one in found.nodes:
        checked_name(one.name)
        if one.name in seen:
            raise ClusterError(f"{path}: {one.name} stands twice")
        if not is_address(one.url):
            raise ClusterError(f"{path}: {one.name}: {one.url!r} is no URL such as tcp://HOST:7411")
        seen.add(one.name)
    return found
