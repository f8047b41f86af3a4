"""The settings of ``clusterctl serve``: TOML, units in the keys, one line when something is wrong."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from cluster_agent.budget.ledger import Terms
from cluster_agent.errors import WrongUseError
from cluster_agent.scheduler.owner import check_owner
from nodectl.errors import nearest

DEFAULT_CONFIG: Final = "/etc/nodectl/cluster.toml"
DEFAULT_SOCKET: Final = "/run/clusterctl/clusterctl.sock"


class BudgetSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``w``: the budget at the very first start, DC watts of all nodes and what is fixed; after that the one that was
    set last holds. ``fixed_w``: what nobody caps (switches, storage, nodes without an agent). ``schedule``:
    a file of time,watts (CSV)."""

    w: float = 0.0
    fixed_w: float = 0.0
    schedule: str = ""


class NodeSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """``tdp_w``: what a node of the allow list may draw of which nothing has been heard yet. ``failing_together``: how
    many may reboot at once, by default those of one chassis. ``lease_s``: how long a grant holds."""

    tdp_w: float = 0.0
    failing_together: int = 1
    lease_s: float = 10.0


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """All of them. ``sharer``: NAME[:key=value,...], which owns the partition's watts; ``policy``: of the scheduler
    above it, which must own none."""

    listen: str = "tcp://0.0.0.0:7410"
    insecure: bool = False
    keys: str = "/etc/nodectl/keys"
    store: str = "/var/lib/clusterctl/cluster.db"
    socket: str = DEFAULT_SOCKET
    admins: list[str] = []
    mode: Literal["observe", "cap"] = "observe"
    sharer: str = "fspc"
    policy: str = "easy"
    budget: BudgetSettings = BudgetSettings()
    nodes: NodeSettings = NodeSettings()

    @property
    def terms(self) -> Terms:
        """For the ledger."""
        nodes = self.nodes
        return Terms(milliwatts(self.budget.fixed_w), nodes.failing_together, nodes.lease_s)


def milliwatts(watts: float) -> int:
    """Whole mW."""
    return round(watts * 1000)


def read_settings(path: Path) -> Settings:
    """``WrongUseError`` with file, key and remedy."""
    try:
        settings = msgspec.toml.decode(path.read_text(), type=Settings)
    except (OSError, UnicodeDecodeError) as error:
        raise WrongUseError(f"{path}: cannot read the settings: {getattr(error, 'strerror', error)}") from None
    except msgspec.MsgspecError as error:
        raise WrongUseError(f"{path}: {_in_words(str(error))}") from None
    for key, problem in _problems(settings):
        raise WrongUseError(f"{path}: {key}: {problem}")
    return settings


def _problems(settings: Settings) -> Iterator[tuple[str, str]]:
    budget, nodes = settings.budget, settings.nodes
    for key, value in (("budget.w", budget.w), ("budget.fixed_w", budget.fixed_w), ("nodes.tdp_w", nodes.tdp_w)):
        if not 0 <= value < math.inf:
            yield key, f"{value:g} is negative or no number"
    if budget.w == 0 and not budget.schedule:
        yield "budget.w", "is missing: the budget in watts (or a schedule)"
    if 0 < budget.w <= budget.fixed_w:
        yield (
            "budget.w",
            f"{budget.w:g} W is not above fixed_w ({budget.fixed_w:g} W): nothing would be left for the nodes",
        )
    if nodes.tdp_w == 0:
        yield "nodes.tdp_w", "is missing: a node that has not been heard counts this many watts"
    if nodes.failing_together < 0:
        yield "nodes.failing_together", "is negative"
    if not 2.0 <= nodes.lease_s <= 300.0:
        yield "nodes.lease_s", f"{nodes.lease_s:g} s is outside 2..300: nodes report once a second"
    try:
        check_owner(settings.policy, settings.sharer.partition(":")[0].strip())
    except WrongUseError as error:
        yield "sharer", str(error)


def _in_words(message: str) -> str:
    if "unknown field" in message:
        key = message.partition("`")[2].partition("`")[0]
        known = [field for one in (Settings, BudgetSettings, NodeSettings) for field in one.__struct_fields__]
        return f"unknown key {key!r}{nearest(key, known)}"
    return message[:1].lower() + message[1:].replace("`", "")
