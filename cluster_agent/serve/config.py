"""The settings of ``clusterctl serve``: TOML, units in the keys, one line when something is wrong."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta
from msgspec.structs import replace

from cluster_agent.budget import group_settings
from cluster_agent.budget.declared_bounds import DeclaredBounds
from cluster_agent.budget.group_settings import GearSettings, GroupSettings
from cluster_agent.budget.ledger import Terms
from cluster_agent.budget.sharers import registry as sharers
from cluster_agent.budget.sharers.node_factors import read_factors
from cluster_agent.budget_rules.rule_sets import RuleSettings
from cluster_agent.budget_rules.rule_sets import problems as rule_problems
from cluster_agent.cluster import Machine, load_machine
from cluster_agent.errors import WrongUseError
from cluster_agent.jobs.admission import check_live
from cluster_agent.jobs.owned_watts.live_halves import LivePairs, read_live_pairs
from cluster_agent.jobs.owned_watts.live_owner import Owner
from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.jobs.times import Times
from cluster_agent.prediction.models import find_model
from cluster_agent.scheduler.configurations.table import Rows
from cluster_agent.scheduler.owner import NO_SHARER, check_owner
from cluster_agent.scheduler.policies import registry
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.switches.limit_rules import KEYS, rules_of
from cluster_agent.scheduler.switches.live_limits import LiveSwitches, queues_of
from cluster_agent.scheduler.switches.live_windows import LiveWindows
from cluster_agent.scheduler.switches.queue_windows import windows_of
from cluster_agent.workloads.moldable_trace import read_tables
from cluster_agent.workloads.swf import TraceError
from foundation.mqtt.mqtt_settings import MqttSettings
from foundation.shell.errors import NodectlError
from foundation.shell.extension import ExtensionFailedError, below, split
from foundation.shell.settings import ConfigError, checked, is_address, line_of, read_toml

DEFAULT_CONFIG: Final = "/etc/nodectl/cluster.toml"
DEFAULT_SOCKET: Final = "/run/clusterctl/clusterctl.sock"


MOST_OVER_TDP: Final = 2.0
"""Ours: a node may declare so many times what nodes count before their first report, which is at least every TDP where
the budget is kept from the start."""

LEAST_IDLE_S: Final = 30.0
"""Ours: nodes are not switched off and on more often than that helps."""


class BudgetSettings(msgspec.Struct, frozen=True):
    """What the partition may draw."""

    w: Annotated[
        float,
        Meta(
            description="The budget at the very first start: DC watts of all nodes and the fixed power. Later starts"
            " use the last budget that was set.",
            ge=0,
        ),
    ] = 0.0
    fixed_w: Annotated[float, Meta(description="The fixed power: switches, storage, nodes without an agent.", ge=0)] = (
        0.0
    )
    schedule: Annotated[str, Meta(description="A file of time,watts (CSV); empty: none.")] = ""
    feed: Annotated[
        str, Meta(description="A file that another program replaces with the budget in watts; empty: none.")
    ] = ""
    feed_stale_s: Annotated[
        float, Meta(description="An alarm if the feed has not been replaced for so long.", ge=1)
    ] = 300.0
    group: Annotated[
        list[GroupSettings],
        Meta(description="Rooms, racks, PDUs, partitions with limits of their own, each a table `[[budget.group]]`."),
    ] = []


class NodeSettings(msgspec.Struct, frozen=True):
    """Settings of all nodes of the allow list."""

    tdp_w: Annotated[float, Meta(description="What a node counts before its first report.", ge=0)] = 0.0
    most_w: Annotated[
        float,
        Meta(
            description="The most watts that a node may declare: TDP, MOP, safe cap, boot. One that declares more gets"
            " and counts this, with an alarm. 0: twice tdp_w.",
            ge=0,
        ),
    ] = 0.0
    failing_together: Annotated[
        int, Meta(description="How many may reboot at once, such as the nodes of a chassis.", ge=0)
    ] = 1
    lease_s: Annotated[float, Meta(description="How long a grant lasts; nodes report once a second.", ge=2, le=300)] = (
        10.0
    )
    gap_s: Annotated[
        float,
        Meta(
            description="Caps are planned at most this often, except for starts, changes of the budget and nodes that"
            " leave.",
            ge=0.1,
            le=3600,
        ),
    ] = 5.0
    factors: Annotated[
        str,
        Meta(
            description="The file of `clusterctl calibration compare`: hungrier nodes of a job get more of its watts; a"
            " relative path is relative to this file."
        ),
    ] = ""


class PowerSettings(msgspec.Struct, frozen=True):
    """Switching nodes off and on; without this table none is switched. Commands run without a shell, with `%N` for the
    node's name."""

    off_command: Annotated[str, Meta(description="Switches the node `%N` off.")] = ""
    on_command: Annotated[str, Meta(description="Switches the node `%N` on.")] = ""
    idle_off_s: Annotated[
        float, Meta(description="A node without work for so long, at least 30, is switched off; 0: none.", ge=0)
    ] = 0.0
    off_within_s: Annotated[float, Meta(description="How long switching off may take.", ge=5, le=86_400)] = 120.0
    boot_within_s: Annotated[float, Meta(description="How long a boot may take.", ge=5, le=86_400)] = 600.0
    retries: Annotated[int, Meta(description="How often a command is tried again.", ge=0)] = 2
    keep_idle: Annotated[int, Meta(description="So many idle nodes stay on.", ge=0)] = 0
    keep_on: Annotated[
        str,
        Meta(
            description="A profile `from_s,watts,cores` in Unix seconds: the nodes of so many cores stay on, and boot"
            " before each step. It may be replaced at any time. Needs `machine`; a relative path is relative to this"
            " file."
        ),
    ] = ""

    @property
    def times(self) -> PowerTimes:
        """For the partition's jobs."""
        times = self.idle_off_s, self.off_within_s, self.boot_within_s
        return PowerTimes(*times, self.retries, self.keep_idle, self.keep_on)


class JobSettings(msgspec.Struct, frozen=True):
    """Jobs; without this table none run."""

    policy: Annotated[
        str,
        Meta(description="Of the scheduler, `NAME[:key=value,...]`: it leaves watts to the sharer, or owns them."),
    ] = "easy"
    machine: Annotated[
        str,
        Meta(
            description="A machine file, for a policy that owns watts: of its first nodes, the watts of an idle one,"
            " and of a busy one at each level, which are its caps; for `prb`, `easy-capped` and `planned` what the"
            " nodes of each group have and draw, and which these are (`hosts`). A relative path is relative to this"
            " file."
        ),
    ] = ""
    configurations: Annotated[
        str,
        Meta(
            description="For `rmap` and `moldable`: a file of application,nodes,cores,cap_w,time_s,watts (CSV); a job's"
            " application is its name. A relative path is relative to this file."
        ),
    ] = ""
    pairs: Annotated[
        str,
        Meta(
            description="For `shared`: a file of measured speeds on halves of nodes (CSV, docs/shared-nodes.md); a"
            " job's application is its name. A relative path is relative to this file."
        ),
    ] = ""
    share: Annotated[
        Literal["opt-in", "all"],
        Meta(
            description="For `shared`: only jobs with `submit --share` share nodes, or all but those with"
            " `submit --exclusive`."
        ),
    ] = "opt-in"
    down_after_s: Annotated[
        float,
        Meta(description="A node that has not reported its jobs for so long is down; it reports once a second.", ge=3),
    ] = 15.0
    lost_after_s: Annotated[
        float, Meta(description="Its jobs are lost after so long; not less than down_after_s.", ge=3)
    ] = 300.0
    start_within_s: Annotated[
        float, Meta(description="A start that a node does not confirm is given up after so long.", ge=5)
    ] = 60.0
    jobs_per_user: Annotated[
        int,
        Meta(description="So many jobs of one user may wait and run; all are in memory.", ge=1, le=1_000_000),
    ] = 20_000
    limits: Annotated[
        str,
        Meta(
            description="What each user, group or queue, or one, may run at once, rules separated by blanks:"
            " `user:nodes=16,jobs=8 user=ada:jobs=2 queue=debug:nodes=4`. A job over a limit waits, and others go past"
            " it. For policies that leave watts to the sharer."
        ),
    ] = ""
    queues: Annotated[
        str,
        Meta(
            description="Queues of the partition, for `submit --queue`; a job that names none is in the first: `day"
            " night`, or with nodes of their own `batch=n[01-12] debug=n[13-16]`. For policies as `limits`."
        ),
    ] = ""
    share_phases: Annotated[
        bool,
        Meta(description="Whether a node gets phases of a user's program on GPUs that other nodes have measured."),
    ] = False
    tag_model: Annotated[
        str,
        Meta(
            description="Who says from a job's counters how a lower clock slows it, before the nodes' own rule does: a"
            " model's name or `FILE.py` with `score` (docs/predictions.md). A relative path is relative to this file."
        ),
    ] = ""
    windows: Annotated[
        str,
        Meta(
            description="In which hours of the week jobs of a queue may run, where queues share all nodes:"
            " `night=18:00-08:00,sat-sun day=mon-fri@08:00-18:00`; a queue that is not named is always open. For"
            " policies as `limits`."
        ),
    ] = ""
    power: PowerSettings | None = None

    @property
    def switches(self) -> LiveSwitches:
        """``limits``, ``queues`` and ``windows``; ``WrongUseError`` for what is none."""
        windows = LiveWindows(windows_of(self.windows))
        made = LiveSwitches(rules_of(self.limits, "nodes", KEYS, ""), queues_of(self.queues), windows=windows)
        made.check_windows()
        for rule in made.rules:
            if rule.key == "queue":
                made.check_queue(rule.value or "")
                if not made.queues:
                    raise WrongUseError("a limit of queues, and the partition has none ([jobs] queues)")
        return made

    @property
    def composition(self) -> Composition:
        """``WrongUseError`` for a policy that does not run live."""
        composed = registry.choose(self.policy).live
        if composed.kept:
            raise WrongUseError(f"{composed.kept} of a policy is for replays: it is a key of [jobs.power] here")
        if composed.idle_off_s is not None:
            if self.power is None:
                raise WrongUseError("idle_off_s needs commands that switch nodes off and on: [jobs.power]")
            if composed.idle_off_s < LEAST_IDLE_S:
                raise WrongUseError(f"idle_off_s={composed.idle_off_s} is not a time of at least {LEAST_IDLE_S:.0f} s")
            composed = replace(composed, idle_off_s=None)  # below
        given = {"partitions": "=" in self.queues, "limits": bool(self.limits.split())}
        given["windows"] = bool(self.windows.split())
        switches = tuple(name for name, is_given in given.items() if is_given)
        has = bool(self.machine), self.power is not None, bool(self.configurations)
        check_live(composed, *has, switches, bool(self.pairs))
        return composed

    @property
    def power_times(self) -> PowerTimes | None:
        """When nodes are switched; None: never."""
        composed = registry.choose(self.policy).live
        if self.power is None:
            return None
        times = self.power.times
        if times.keep_on:
            node = load_machine(self.machine).node
            times = replace(times, cores=node.cores, boot_s=node.boot_s)
        return times if composed.idle_off_s is None else replace(times, idle_off_s=float(composed.idle_off_s))

    @property
    def live_machine(self) -> Machine | None:
        """``WrongUseError`` for a machine that does not exist, or does not fit the policy."""
        if not self.machine:
            return None
        machine = load_machine(self.machine)
        Owner(self.composition, machine, self.tables)
        return machine

    @property
    def tables(self) -> Mapping[str, Rows] | None:
        """Configurations by application, as the policy knows them; ``WrongUseError`` for a file that is none."""
        if not self.configurations:
            return None
        tables = read_tables(self.configurations)
        if tables.is_generated:
            raise WrongUseError(f"{self.configurations} is generated, and of another machine: give a file")
        return tables.known

    @property
    def live_pairs(self) -> LivePairs | None:
        """``WrongUseError`` for a file that is no table of halves of nodes."""
        return read_live_pairs(self.pairs, self.share == "all") if self.pairs else None

    @property
    def times(self) -> Times:
        """For the partition's jobs."""
        return Times(self.down_after_s, self.lost_after_s, start_within_s=self.start_within_s)


class HistorySettings(msgspec.Struct, frozen=True):
    """What is kept of jobs that have ended (`clusterctl history`)."""

    keep_days: Annotated[
        float,
        Meta(
            description="Jobs that ended longer ago are removed, once a day; 0: only the oldest, when there are too"
            " many.",
            ge=0,
            le=36_600,
        ),
    ] = 0.0


class HazardSettings(msgspec.Struct, frozen=True):
    """How far a predicted thermal hazard may lower the budget (docs/hazard.md)."""

    lower_to: Annotated[
        float,
        Meta(description="To this share of the budget, never below the MOP of every node; 1: never.", ge=0.5, le=1),
    ] = 1.0
    hours: Annotated[float, Meta(description="At most so many of any 24 hours.", ge=0.25, le=24)] = 6.0


class Settings(msgspec.Struct, frozen=True):
    """All settings of ``clusterctl serve``."""

    listen: Annotated[str, Meta(description="Where nodes connect.")] = "tcp://0.0.0.0:7410"
    insecure: Annotated[bool, Meta(description="Without keys, over loopback alone, for trials.")] = False
    keys: Annotated[str, Meta(description="The directory of the keys (`clusterctl keys`).")] = "/etc/nodectl/keys"
    store: Annotated[str, Meta(description="What must survive the agent: grants, nodes, jobs.")] = (
        "/var/lib/clusterctl/cluster.db"
    )
    socket: Annotated[str, Meta(description="Where people's commands reach the agent.")] = DEFAULT_SOCKET
    admins: Annotated[
        list[str], Meta(description="Users who may do what root may: change the budget, drain nodes.")
    ] = []
    mode: Annotated[
        Literal["observe", "cap"], Meta(description="Only look and report (observe), or grant caps (cap).")
    ] = "observe"
    sharer: Annotated[
        str,
        Meta(
            description="`NAME[:key=value,...]`: how the partition's watts are divided (docs/policies.md); `none`: as"
            " the scheduling policy decides."
        ),
    ] = "fspc"
    budget: BudgetSettings = BudgetSettings()
    gear: Annotated[
        list[GearSettings],
        Meta(description="Switches, pumps, chassis: what the budget pays for next to nodes, each a table `[[gear]]`."),
    ] = []
    rules: Annotated[
        list[RuleSettings],
        Meta(description="Sharer, budget and limits by the time of day or by name, each set a table `[[rules]]`."),
    ] = []
    nodes: NodeSettings = NodeSettings()
    jobs: JobSettings | None = None
    history: HistorySettings = HistorySettings()
    hazard: HazardSettings = HazardSettings()
    mqtt: MqttSettings = MqttSettings()
    notifiers: Annotated[
        list[str],
        Meta(description="Users who may say what another job manager runs, and change nothing else: SlurmUser."),
    ] = []

    @property
    def bounds(self) -> DeclaredBounds:
        """For what nodes declare."""
        nodes = self.nodes
        return DeclaredBounds(milliwatts(nodes.tdp_w), milliwatts(nodes.most_w or MOST_OVER_TDP * nodes.tdp_w))

    @property
    def fixed_mw(self) -> int:
        """What the budget pays for and nobody caps: the fixed power and the gear."""
        return milliwatts(self.budget.fixed_w) + group_settings.gear_mw(self.gear)

    @property
    def terms(self) -> Terms:
        """For the ledger."""
        nodes = self.nodes
        return Terms(self.fixed_mw, nodes.failing_together, nodes.lease_s)


def milliwatts(watts: float) -> int:
    """Whole mW."""
    return round(watts * 1000)


def _below(folder: Path, given: dict[str, object]) -> None:
    """Make files that the settings name relative to their folder."""
    jobs, nodes, rules = given.get("jobs"), given.get("nodes"), given.get("rules")
    power = jobs.get("power") if isinstance(jobs, dict) else None
    sharing = [given, *(rules if isinstance(rules, list) else ())]
    for table, key in (*((one, "sharer") for one in sharing), (jobs, "policy"), (jobs, "tag_model")):
        if isinstance(table, dict) and key in table:
            table[key] = below(folder, table[key])
    for table, key, mark in (
        (nodes, "factors", ""),
        (jobs, "machine", r"\.toml$"),
        (jobs, "configurations", r"\.csv"),
        (jobs, "pairs", ""),
        (power, "keep_on", ""),
    ):
        if isinstance(table, dict) and isinstance(name := table.get(key), str) and name and re.search(mark, name):
            table[key] = str(folder / name)


def read_settings(path: Path) -> Settings:
    """Read and check the settings; ``ConfigError`` says file, line, key and how to fix it."""
    text, given = read_toml(path)
    _below(path.parent, given)

    def where(key: tuple[str, ...]) -> str:
        return f"{path}:{line_of(text, key)}"

    made = checked(given, Settings, where)
    for key, problem in _problems(made):
        raise ConfigError(f"{where(tuple(key.split('.')))}: {key}: {problem}")
    return made


def _problems(settings: Settings) -> Iterator[tuple[str, str]]:
    nodes = settings.nodes
    if not is_address(settings.listen):
        yield "listen", f"{settings.listen!r} is not tcp://ADDRESS:PORT, e.g. tcp://0.0.0.0:7410"
    yield from _budget_problems(settings)
    if nodes.tdp_w == 0:
        yield "nodes.tdp_w", "is missing: a node counts this many watts before its first report"
    if 0 < nodes.most_w < nodes.tdp_w:
        yield "nodes.most_w", f"{nodes.most_w:g} W is less than tdp_w ({nodes.tdp_w:g} W): no node could declare that"
    yield from _mqtt_problems(settings.mqtt)
    if nodes.factors:
        try:
            read_factors(Path(nodes.factors))
        except NodectlError as error:
            yield "nodes.factors", str(error)
    sharer = split(settings.sharer)[0]
    try:
        if sharer != NO_SHARER:
            sharers.choose(settings.sharer)
        elif settings.jobs is None:
            raise WrongUseError(f"{NO_SHARER} leaves the watts to the policy of [jobs], and there is no [jobs]")
    except (WrongUseError, ExtensionFailedError) as error:
        yield "sharer", str(error).removeprefix("sharer ")
        return
    if settings.jobs is not None:
        yield from _job_problems(settings.jobs, sharer)


def _budget_problems(settings: Settings) -> Iterator[tuple[str, str]]:
    budget, fixed_w = settings.budget, settings.fixed_mw / 1000
    if budget.w == 0 and not budget.schedule:
        yield "budget.w", "is missing: the budget in watts (or a schedule)"
    if 0 < budget.w <= fixed_w:
        what = "fixed_w and the gear" if settings.gear else "fixed_w"
        yield "budget.w", f"{budget.w:g} W is not above {what} ({fixed_w:g} W): nothing would be left for the nodes"
    is_known = not (budget.schedule or budget.feed)
    yield from group_settings.problems(budget.group, settings.gear, budget.w if is_known else 0.0)
    if budget.group and split(settings.sharer)[0] == NO_SHARER:
        yield group_settings.KEY, "a policy that owns the watts plans with the whole budget: choose a sharer"
    gear = group_settings.gear_w(budget.group, settings.gear)
    yield from rule_problems(settings.rules, gear, fixed_w, lambda sharer: _sharer_problem(settings, sharer))
    if budget.feed and budget.schedule:
        yield "budget.feed", "is set together with a schedule: remove one of them"


def _sharer_problem(settings: Settings, sharer: str) -> str:
    """Why a set of rules cannot have the watts divided by this one; "" if it can."""
    if NO_SHARER in (split(settings.sharer)[0], split(sharer)[0]):
        return f"sharer = {sharer!r}: where a policy owns the watts (sharer = {NO_SHARER!r}), it always does"
    try:
        sharers.choose(sharer)
    except (WrongUseError, ExtensionFailedError) as error:
        return str(error)
    return ""


def _mqtt_problems(mqtt: MqttSettings) -> Iterator[tuple[str, str]]:
    if problem := mqtt.problem:
        yield f"mqtt.{problem[0]}", problem[1]


def _job_problems(jobs: JobSettings, sharer: str) -> Iterator[tuple[str, str]]:
    try:
        check_owner(jobs.policy, sharer)
        _ = jobs.composition
    except (WrongUseError, ExtensionFailedError) as error:
        yield "jobs.policy", str(error).removeprefix("--policy ")
        return
    yield from _switch_problems(jobs)
    try:
        _ = jobs.tables
    except (WrongUseError, TraceError) as error:
        yield "jobs.configurations", str(error).removeprefix("--configurations ")
        return
    try:
        _ = jobs.live_pairs
    except WrongUseError as error:
        yield "jobs.pairs", str(error)
        return
    try:
        _ = find_model(jobs.tag_model) if jobs.tag_model else None
    except (WrongUseError, ExtensionFailedError) as error:
        yield "jobs.tag_model", str(error)
    try:
        _ = jobs.live_machine
    except WrongUseError as error:
        yield "jobs.machine", str(error).removeprefix("--machine ")
    if jobs.lost_after_s < jobs.down_after_s:
        yield "jobs.lost_after_s", f"{jobs.lost_after_s:g} s is less than down_after_s ({jobs.down_after_s:g} s)"
    if jobs.power is not None:
        yield from _power_problems(jobs.power)
        if jobs.power.keep_on and not jobs.machine:
            yield "jobs.power.keep_on", "needs `machine` in [jobs], which says how many cores a node has"
        if jobs.power.keep_on and not (jobs.power.idle_off_s or "idle_off_s" in jobs.policy):
            yield "jobs.power.keep_on", "needs idle_off_s: nodes that it does not keep go off after that time"


def _switch_problems(jobs: JobSettings) -> Iterator[tuple[str, str]]:
    """The first of queues, windows and limits that is wrong: each stands on those before."""
    key = "queues"
    try:
        queues = queues_of(jobs.queues)
        key = "windows"
        LiveSwitches((), queues, windows=LiveWindows(windows_of(jobs.windows))).check_windows()
        key = "limits"
        _ = jobs.switches
    except WrongUseError as error:
        yield f"jobs.{key}", str(error)


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
    if 0 < power.idle_off_s < LEAST_IDLE_S:
        yield "jobs.power.idle_off_s", f"{power.idle_off_s:g} s is not a time of at least 30 s; 0 switches nothing off"
