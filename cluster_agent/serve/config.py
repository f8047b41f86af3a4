"""The settings of ``clusterctl serve``: TOML, units in the keys, one line when something is wrong."""

from __future__ import annotations

import math
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Final, Literal

import msgspec

from cluster_agent.budget.ledger import Terms
from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import check_live
from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.jobs.times import Times
from cluster_agent.scheduler.owner import check_owner
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policy_phases import Composition
from nodectl.shell.extension import ExtensionFailedError, below, split
from nodectl.shell.settings import ConfigError, checked, is_address, line_of, read_toml

DEFAULT_CONFIG: Final = "/etc/nodectl/cluster.toml"
DEFAULT_SOCKET: Final = "/run/clusterctl/clusterctl.sock"


class BudgetSettings(msgspec.Struct, frozen=True):
    """``w``: the budget at the very first start, DC watts of all nodes and the fixed power; later starts use the last
    budget that was set. ``fixed_w``: the fixed power (switches, storage, nodes without an agent). ``schedule``: a file
    of time,watts (CSV). ``feed``: a file that another program replaces (``budget_feed``); ``feed_stale_s``: if it is
    not replaced for so long, that is an alarm."""

    w: float = 0.0
    fixed_w: float = 0.0
    schedule: str = ""
    feed: str = ""
    feed_stale_s: float = 300.0


class NodeSettings(msgspec.Struct, frozen=True):
    """``tdp_w``: what a node of the allow list counts before its first report. ``failing_together``: how many may
    reboot at once, by default the nodes of one chassis. ``lease_s``: how long a grant lasts. ``gap_s``: caps are
    planned at most this often, except for starts, changes of the budget and nodes that leave."""

    tdp_w: float = 0.0
    failing_together: int = 1
    lease_s: float = 10.0
    gap_s: float = 5.0


class PowerSettings(msgspec.Struct, frozen=True):
    """Switching nodes off; the table is optional. ``off_command``, ``on_command``: the site's commands, with %N for the
    node's name, run without a shell. The rest are those of ``power_switching.PowerTimes``."""

    off_command: str = ""
    on_command: str = ""
    idle_off_s: float = 0.0
    off_within_s: float = 120.0
    boot_within_s: float = 600.0
    retries: int = 2
    keep_idle: int = 0

    @property
    def times(self) -> PowerTimes:
        """For the partition's jobs."""
        return PowerTimes(self.idle_off_s, self.off_within_s, self.boot_within_s, self.retries, self.keep_idle)


class JobSettings(msgspec.Struct, frozen=True):
    """Jobs; the table is optional. ``policy``: of the scheduler, NAME[:key=value,...], one that leaves watts to the
    sharer. The times are those of ``jobs.times.Times``."""

    policy: str = "easy"
    down_after_s: float = 15.0
    lost_after_s: float = 300.0
    start_within_s: float = 60.0
    power: PowerSettings | None = None

    @property
    def composition(self) -> Composition:
        """``WrongUseError`` for a policy that does not run live."""
        composed = registry.choose(self.policy).composition
        check_live(composed)
        return composed

    @property
    def times(self) -> Times:
        """For the partition's jobs."""
        return Times(self.down_after_s, self.lost_after_s, start_within_s=self.start_within_s)


class Settings(msgspec.Struct, frozen=True):
    """All settings. ``sharer``: NAME[:key=value,...], which divides the partition's watts. Without ``jobs`` none
    run."""

    listen: str = "tcp://0.0.0.0:7410"
    insecure: bool = False
    keys: str = "/etc/nodectl/keys"
    store: str = "/var/lib/clusterctl/cluster.db"
    socket: str = DEFAULT_SOCKET
    admins: list[str] = []
    mode: Literal["observe", "cap"] = "observe"
    sharer: str = "fspc"
    budget: BudgetSettings = BudgetSettings()
    nodes: NodeSettings = NodeSettings()
    jobs: JobSettings | None = None

    @property
    def terms(self) -> Terms:
        """For the ledger."""
        nodes = self.nodes
        return Terms(milliwatts(self.budget.fixed_w), nodes.failing_together, nodes.lease_s)


def milliwatts(watts: float) -> int:
    """Whole mW."""
    return round(watts * 1000)


def read_settings(path: Path) -> Settings:
    """Read and check the settings; ``ConfigError`` says file, line, key and how to fix it."""
    text, given = read_toml(path)
    for table, key in ((given, "sharer"), (given.get("jobs"), "policy")):
        if isinstance(table, dict) and key in table:
            table[key] = below(path.parent, table[key])

    def where(key: tuple[str, ...]) -> str:
        return f"{path}:{line_of(text, key)}"

    made = checked(given, Settings, where)
    for key, problem in _problems(made):
        raise ConfigError(f"{where(tuple(key.split('.')))}: {key}: {problem}")
    return made


def _problems(settings: Settings) -> Iterator[tuple[str, str]]:
    budget, nodes = settings.budget, settings.nodes
    if not is_address(settings.listen):
        yield "listen", f"{settings.listen!r} is not tcp://ADDRESS:PORT, e.g. tcp://0.0.0.0:7410"
    for key, value in (("budget.w", budget.w), ("budget.fixed_w", budget.fixed_w), ("nodes.tdp_w", nodes.tdp_w)):
        if not 0 <= value < math.inf:
            yield key, f"{value:g} is negative or not a number"
    if budget.w == 0 and not budget.schedule:
        yield "budget.w", "is missing: the budget in watts (or a schedule)"
    if 0 < budget.w <= budget.fixed_w:
        yield (
            "budget.w",
            f"{budget.w:g} W is not above fixed_w ({budget.fixed_w:g} W): nothing would be left for the nodes",
        )
    if budget.feed and budget.schedule:
        yield "budget.feed", "is set together with a schedule: remove one of them"
    if not 1.0 <= budget.feed_stale_s < math.inf:
        yield "budget.feed_stale_s", f"{budget.feed_stale_s:g} s is not a time of at least 1 s"
    if nodes.tdp_w == 0:
        yield "nodes.tdp_w", "is missing: a node counts this many watts before its first report"
    if nodes.failing_together < 0:
        yield "nodes.failing_together", "is negative"
    if not 2.0 <= nodes.lease_s <= 300.0:
        yield "nodes.lease_s", f"{nodes.lease_s:g} s is outside 2..300: nodes report once a second"
    if not 0.1 <= nodes.gap_s <= 3600.0:
        yield "nodes.gap_s", f"{nodes.gap_s:g} s is outside 0.1..3600: caps are planned at most this often"
    sharer = split(settings.sharer)[0]
    try:
        sharers.choose(settings.sharer)
    except (WrongUseError, ExtensionFailedError) as error:
        yield "sharer", str(error).removeprefix("sharer ")
        return
    if settings.jobs is not None:
        yield from _job_problems(settings.jobs, sharer)


def _job_problems(jobs: JobSettings, sharer: str) -> Iterator[tuple[str, str]]:
    try:
        check_owner(jobs.policy, sharer)
        _ = jobs.composition
    except (WrongUseError, ExtensionFailedError) as error:
        yield "jobs.policy", str(error).removeprefix("--policy ")
    if not 3.0 <= jobs.down_after_s < math.inf:
        yield "jobs.down_after_s", f"{jobs.down_after_s:g} s is less than 3: nodes report their jobs once a second"
    if not jobs.down_after_s <= jobs.lost_after_s < math.inf:
        yield "jobs.lost_after_s", f"{jobs.lost_after_s:g} s is less than down_after_s ({jobs.down_after_s:g} s)"
    if not 5.0 <= jobs.start_within_s < math.inf:
        yield (
            "jobs.start_within_s",
            f"{jobs.start_within_s:g} s is less than 5: a start that is lost is sent again after 2 s",
        )
    if jobs.power is not None:
        yield from _power_problems(jobs.power)


def _power_problems(power: PowerSettings) -> Iterator[tuple[str, str]]:
    for key, command in (("off_command", power.off_command), ("on_command", power.on_command)):
        try:
            words = shlex.split(command)
        except ValueError as error:
            yield f"jobs.power.{key}", f"{error}: {command}"
            continue
        if not words:
            yield f"jobs.power.{key}", "is missing: the command that switches the node %N"
        elif not any("%N" in word for word in words):
            yield f"jobs.power.{key}", "must contain %N, which stands for the node's name"
    if power.idle_off_s and not 30.0 <= power.idle_off_s < math.inf:
        yield "jobs.power.idle_off_s", f"{power.idle_off_s:g} s is not a time of at least 30 s; 0 switches nothing off"
    for key, seconds in (("off_within_s", power.off_within_s), ("boot_within_s", power.boot_within_s)):
        if not 5.0 <= seconds <= 86_400:
            yield f"jobs.power.{key}", f"{seconds:g} s is outside 5..86400"
    for key, number in (("retries", power.retries), ("keep_idle", power.keep_idle)):
        if number < 0:
            yield f"jobs.power.{key}", "is negative"
