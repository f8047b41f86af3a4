"""What can be set, its defaults, and one clear line when it is set wrongly.

The file is TOML (``/etc/nodectl/nodectl.toml``); every number's unit is in its key. ``settings`` reads it.
"""

from __future__ import annotations

import platform
import re
from collections.abc import Collection, Iterator, Mapping
from itertools import combinations
from pathlib import Path
from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from foundation.mqtt.mqtt_settings import MqttSettings
from foundation.shell.errors import UsageError, nearest
from foundation.shell.extension import same_name
from foundation.shell.settings import ConfigError, checked, host_and_port, is_address, type_where
from nodectl.decide.node_cap import CAP_ROW

DEFAULT_PATH: Final = "/etc/nodectl/nodectl.toml"

type_mode = Literal["monitor", "optimize"]
MODES: Final[tuple[type_mode, ...]] = ("monitor", "optimize")

NO_CAP: Final = {"fix": "0 means no cap"}


class PolicyChoice(msgspec.Struct, frozen=True):
    """The policy of one domain of knobs; ``nodectl policies`` lists all of them with their parameters."""

    name: Annotated[str, Meta(description="Its name, or `FILE.py[:NAME]` for one of your own; `none`: no policy.")]
    params: Annotated[dict[str, Any], Meta(description="Its parameters, such as `{ bound = 0.03 }`.")] = {}


NO_POLICY: Final = PolicyChoice("none")


class JournalSettings(msgspec.Struct, frozen=True):
    """The journal: what was read and decided, for ``nodectl replay``."""

    dir: Annotated[str, Meta(description="Its directory; empty: `journal` below the state directory.")] = ""
    max_bytes: Annotated[
        int,
        Meta(
            description="The most that it takes, at least 1000000; the oldest segments go first. 0: no journal.", ge=0
        ),
    ] = 1_000_000_000


class Caps(msgspec.Struct, frozen=True):
    """Limits that the agent never exceeds; 0: none."""

    node_w: Annotated[float, Meta(description="Mean power of the whole node; also `--cap-w`.", ge=0, extra=NO_CAP)] = (
        0.0
    )
    rest_w: Annotated[
        float,
        Meta(
            description="Of it, what the node draws outside its processor packages (board, fans; its GPUs too, but not"
            " under a cluster's cap): comes off first.",
            ge=0,
        ),
    ] = 0.0
    cpu_max_khz: Annotated[int, Meta(description="The highest clock of cores.", ge=0, extra=NO_CAP)] = 0
    gpu_max_mhz: Annotated[int, Meta(description="The highest clock of GPUs.", ge=0, extra=NO_CAP)] = 0
    gpu_temperature_c: Annotated[float, Meta(description="Of a GPU: clocks fall above it.", ge=0, extra=NO_CAP)] = 0.0
    memory_temperature_c: Annotated[
        float,
        Meta(
            description="Of the hottest memory module (hwmon drivers spd5118, jc42): core clocks fall above it.",
            ge=0,
            extra=NO_CAP,
        ),
    ] = 0.0

    def highest(self, domain: str) -> int:
        """The highest clock of a domain, in the unit of its knobs; 0 = no limit."""
        return {"cpu": self.cpu_max_khz, "gpu": self.gpu_max_mhz}.get(domain, 0)


class Scmi(msgspec.Struct, frozen=True):
    """An on-chip controller that moves some of this node's knobs (docs/scmi.md)."""

    url: Annotated[str, Meta(description="Where it is, such as `scmi+shm:/run/scmi.sock`; empty: none.")] = ""
    knobs: Annotated[
        dict[str, str],
        Meta(
            description='Knob = domain of the controller, by name or number: `"node/cap_mw" = "package"` is what'
            ' node_w leaves to the packages, `"cpu/policy0/max_khz" = "cluster-0"` a clock limit.'
        ),
    ] = {}
    clocks_by: Annotated[
        Literal["limits", "level"],
        Meta(description="A clock becomes the upper limit of a performance domain, or its level."),
    ] = "limits"


class Cluster(msgspec.Struct, frozen=True):
    """The cluster agent that caps this node (docs/cluster.md), and what this node declares to it: DC watts of the whole
    node."""

    url: Annotated[
        str, Meta(description='`tcp://HOST:7410`; empty: none. Needs mode "optimize", and no caps.node_w.')
    ] = ""
    key: Annotated[str, Meta(description="This node's key pair, mode 0600.")] = "/etc/nodectl/keys/node.key"
    server_key: Annotated[str, Meta(description="The cluster agent's public key: a file, or the key itself.")] = (
        "/etc/nodectl/keys/cluster.pub"
    )
    insecure: Annotated[bool, Meta(description="Without keys, over loopback alone, for trials.")] = False
    name: Annotated[str, Meta(description="This node's name in its reports; by default the host's.")] = (
        platform.node() or "node"
    )
    tdp_w: Annotated[float, Meta(description="The most it draws.", ge=0)] = 0.0
    mop_w: Annotated[float, Meta(description="The least it can be capped to (minimal operating power).", ge=0)] = 0.0
    safe_w: Annotated[float, Meta(description="The cap that it falls to without a lease.", ge=0)] = 0.0
    boot_w: Annotated[float, Meta(description="The most it draws from power-on until it is capped.", ge=0)] = 0.0
    lease_class: Annotated[Literal["hw", "os", "sticky"], Meta(description="What ends a lease (docs/ledger.md).")] = (
        "os"
    )
    settle_s: Annotated[float, Meta(description="How long until a lower cap is in force.", ge=0, le=600)] = 1.0
    watchdog_s: Annotated[
        float,
        Meta(
            description="How long until an agent that hangs is replaced: systemd's WatchdogSec and a restore.",
            ge=0,
            le=600,
        ),
    ] = 20.0
    jobs: Annotated[
        bool, Meta(description="Run the cluster's jobs, as the user of [jobs]; the service then is root (jobs.conf).")
    ] = False


class Jobs(msgspec.Struct, frozen=True):
    """How this node runs the cluster's jobs, if it does ([cluster] jobs), and what policies do during those of another
    manager (docs/slurm.md)."""

    user: Annotated[
        str,
        Meta(
            description="The user that jobs run as, and whose jobs this node runs. A service needs it, since its agent"
            " is root: without it the node starts no job, and jobs of root only with `root`. Empty, by hand: the user"
            " of the agent."
        ),
    ] = ""
    mode: Annotated[
        Literal["optimize", "monitor", "off"],
        Meta(
            description="With mode optimize: what policies do without a job of another manager here, and during one"
            " whose comment has no nodectl=optimize, monitor or off: decide, rest, or rest without a journal."
        ),
    ] = "optimize"


class Dispatch(msgspec.Struct, frozen=True):
    """A node whose jobs are dispatched without the cluster agent (docs/dardis.md): then that starts none here."""

    listen: Annotated[
        str,
        Meta(
            description="`tcp://0.0.0.0:7411`: where other nodes and task managers connect; empty: the cluster agent"
            " starts this node's jobs. Needs [cluster] jobs and keys."
        ),
    ] = ""
    keys: Annotated[
        str, Meta(description="The directory of `nodes.toml` and `allowed`, which are equal on all nodes.")
    ] = "/etc/nodectl/dispatch"
    user: Annotated[
        str,
        Meta(
            description="Whom the node manager becomes, if the agent is root and there is such a user. It needs to read"
            " `allowed`. Empty: it runs as the agent does."
        ),
    ] = "nodectl-dispatch"


class GpuSettings(msgspec.Struct, frozen=True):
    """What NVML cannot say of this node's GPUs."""

    locked_clock_mhz: Annotated[
        int | dict[str, int],
        Meta(
            description="The clock that the site itself has locked its GPUs to, 0: none, -1: not declared, so it is"
            " observed. One number for all, or by index or UUID: `{ 0 = 1095, 1 = 0 }`. Also `--gpu-locked-mhz`.",
        ),
    ] = -1
    absent: Annotated[
        tuple[str, ...],
        Meta(
            description="Cards on the PCI bus that are not this system's, such as those passed through to a guest:"
            ' addresses, or patterns such as `"0000:41:*"`; `["*"]`: all. What they draw belongs into `caps.rest_w`.'
        ),
    ] = ()

    def baseline_mhz(self, index: int, uuid: str) -> int:
        """What is declared of one GPU; -1: nothing."""
        declared = self.locked_clock_mhz
        if isinstance(declared, dict):
            return declared.get(uuid, declared.get(str(index), -1))
        return declared


type_action = Literal["yield", "reassert", "alarm"]


class Foreign(msgspec.Struct, frozen=True):
    """What is done when another program moves a knob that this agent has set (``nodectl.write.foreign_writers``). A
    value above a cap in force is always set again (``nodectl.write.cap_guard``)."""

    action: Annotated[
        type_action,
        Meta(
            description="Leave it to the other (yield), set it again (reassert), or leave it and log an ALARM (alarm)."
        ),
    ] = "yield"
    times: Annotated[
        int,
        Meta(
            description="How often `reassert` sets a knob again before it yields with an alarm; ten quiet minutes begin"
            " a new count.",
            ge=1,
            le=1000,
        ),
    ] = 3
    kinds: Annotated[
        dict[str, type_action],
        Meta(description="Another action for kinds of knobs, by the first part of their names: rapl, scmi, …"),
    ] = {}
    end_jobs: Annotated[
        bool,
        Meta(
            description="End the jobs of this node (SIGTERM, then their grace) while a program sets a limit above the"
            " cluster's cap again and again."
        ),
    ] = False

    def of(self, knob: str) -> type_action:
        """The action for the knob of that name."""
        return self.kinds.get("scmi" if "#" in knob else knob.partition("/")[0], self.action)


class Budget(msgspec.Struct, frozen=True):
    """What the agent itself may cost.

    Half of one CPU is ours: BDPO's old loop harmed the job when its CPU time grew (REGALE D2.3 §3.4), without a figure.
    """

    core_share: Annotated[
        float,
        Meta(
            description="Of one CPU, on average; above it the period doubles, and this is reported. 0: no limit.",
            ge=0,
            extra={"fix": "0 turns the budget off"},
        ),
    ] = 0.5
    max_period_ms: Annotated[float, Meta(description="The longest that the period may become.", ge=1)] = 1000.0


class Metrics(msgspec.Struct, frozen=True):
    """This node for Prometheus (docs/operations.md, "Watch")."""

    listen: Annotated[
        str,
        Meta(description="The address of `nodectl metrics`, such as `127.0.0.1:9742`; empty: nothing is published."),
    ] = ""


class Config(msgspec.Struct, frozen=True):
    """All settings of ``nodectl run``. They are stored at the head of each journal, so that a replay uses the same."""

    mode: Annotated[type_mode, Meta(description="Only look (monitor), or act (optimize).")] = "monitor"
    dry_run: Annotated[bool, Meta(description="With optimize: decide and keep the journal, but write nothing.")] = False
    period_ms: Annotated[float, Meta(description="Between two readings.", ge=1, le=60_000)] = 100.0
    cpu_policy: Annotated[PolicyChoice, Meta(description="Of the cores' clocks.")] = PolicyChoice("bdpo-cpu-bounded")
    gpu_policy: Annotated[PolicyChoice, Meta(description="Of the GPUs' clocks.")] = PolicyChoice("gpu-ladder")
    policies: Annotated[
        dict[str, PolicyChoice],
        Meta(
            description="Of every other domain: `epp` (energy preference), `uncore`. Also"
            " `--policy DOMAIN=NAME[:KEY=VALUE,...]`."
        ),
    ] = {}
    journal: JournalSettings = JournalSettings()
    caps: Caps = Caps()
    scmi: Scmi = Scmi()
    cluster: Cluster = Cluster()
    jobs: Jobs = Jobs()
    dispatch: Dispatch = Dispatch()
    budget: Budget = Budget()
    metrics: Metrics = Metrics()
    mqtt: MqttSettings = MqttSettings()
    gpu: GpuSettings = GpuSettings()
    foreign: Foreign = Foreign()
    may_raise: Annotated[
        tuple[str, ...],
        Meta(
            description="Limits that may be set above what the site had them at: names of knobs, or patterns such as"
            " `rapl/*`."
        ),
    ] = ()
    remember: Annotated[
        bool,
        Meta(
            description="Keep the phases of programs on GPUs below the state directory, and begin with them when the"
            " program comes again."
        ),
    ] = True
    state_dir: Annotated[str, Meta(description="Journal, jobs and phases.")] = "/var/lib/nodectl"
    calibration: Annotated[
        str,
        Meta(
            description="The directory in which `nodectl calibrate` leaves what it measured of this node; empty: none"
            " is used, policies have their defaults."
        ),
    ] = "/var/lib/nodectl/calibration"

    def choice(self, domain: str) -> PolicyChoice:
        """The policy of one domain of knobs. ``policies`` has those of every domain but "cpu" and "gpu"."""
        own = {"cpu": self.cpu_policy, "gpu": self.gpu_policy}
        return own.get(domain) or self.policies.get(domain, NO_POLICY)

    def without(self, domains: Collection[str]) -> Config:
        """These settings with no policy for some domains."""
        return msgspec.structs.replace(
            self,
            cpu_policy=NO_POLICY if "cpu" in domains else self.cpu_policy,
            gpu_policy=NO_POLICY if "gpu" in domains else self.gpu_policy,
            policies={name: choice for name, choice in self.policies.items() if name not in domains},
        )

    @property
    def journal_dir(self) -> Path:
        """The directory of the journal."""
        return Path(self.journal.dir) if self.journal.dir else Path(self.state_dir) / "journal"

    @property
    def writes(self) -> bool:
        """Whether this run may move a knob."""
        return self.mode == "optimize" and not self.dry_run

    @property
    def caps_power(self) -> bool:
        """Whether power may be capped in this run: by a setting, through a controller, or by a cluster."""
        return self.caps.node_w > 0 or CAP_ROW in self.scmi.knobs or bool(self.cluster.url)

    @property
    def decides(self) -> bool:
        """Whether policies decide in this run."""
        return self.mode == "optimize"


def build_config(settings: Mapping[str, Any], where: type_where) -> Config:
    """A checked ``Config`` from plain values."""
    from nodectl.policies import registry

    config = checked(settings, Config, where)
    for path, problem in _out_of_range(config):
        raise ConfigError(f"{where(path)}: {'.'.join(path)}: {problem}")
    for name in config.policies:
        place = f"{where(('policies', name))}: policies.{name}"
        if name not in registry.DOMAINS:
            raise ConfigError(f"{place}: there are no such knobs{nearest(name, registry.DOMAINS)}")
        if policy_path(name) != ("policies", name):
            raise ConfigError(f"{place}: this policy is set as {policy_path(name)[0]}")
    for domain in registry.DOMAINS:
        choice = config.choice(domain)
        try:
            registry.check(choice.name, domain, choice.params)
        except registry.PolicyError as error:
            raise ConfigError(f"{where((*policy_path(domain), *error.key))}: {error}") from None
    for first, second in combinations(registry.DOMAINS, 2):
        name = config.choice(second).name
        if same_name(config.choice(first).name, name):
            at = where((*policy_path(second), "name"))
            raise ConfigError(
                f"{at}: {name}: the file of the {first.upper()} policy has the same name, by which a journal knows"
                " them: rename one"
            )
    return config


def policy_path(domain: str) -> tuple[str, ...]:
    """The key of a domain's policy in the settings."""
    return (f"{domain}_policy",) if domain in ("cpu", "gpu") else ("policies", domain)


SCMI_SCHEMES: Final = ("scmi+inproc", "scmi+shm", "scmi+serial")
_DELEGABLE: Final = re.compile(rf"{CAP_ROW}|cpu/policy\d+/max_khz")


def _out_of_range(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    if config.dry_run and not config.decides:
        yield ("dry_run",), "needs mode optimize: monitoring writes nothing anyway"
    if config.budget.max_period_ms < config.period_ms:
        yield ("budget", "max_period_ms"), f"is below period_ms ({config.period_ms:g})"
    if 0 != config.journal.max_bytes < 1_000_000:
        yield ("journal", "max_bytes"), f"{config.journal.max_bytes} is under a megabyte; 0 keeps no journal"
    if 0 < config.caps.node_w <= config.caps.rest_w:
        yield ("caps", "node_w"), f"{config.caps.node_w:g} W must be above rest_w ({config.caps.rest_w:g} W)"
    if config.metrics.listen:
        try:
            host_and_port(config.metrics.listen)
        except UsageError as error:
            yield ("metrics", "listen"), str(error)
    if problem := config.mqtt.problem:
        yield ("mqtt", problem[0]), problem[1]
    yield from _scmi_problems(config.scmi)
    yield from _cluster_problems(config)
    yield from _dispatch_problems(config)
    yield from _limit_problems(config)


def _limit_problems(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    declared = config.gpu.locked_clock_mhz
    clocks = declared if isinstance(declared, dict) else {"": declared}
    for gpu, clock_mhz in clocks.items():
        if not -1 <= clock_mhz <= 100_000:
            yield ("gpu", "locked_clock_mhz", *([gpu] if gpu else [])), f"{clock_mhz} is no clock; 0: no lock"
        if gpu and not gpu.isdigit() and not gpu.startswith(("GPU-", "MIG-")):
            yield ("gpu", "locked_clock_mhz", gpu), f"{gpu!r} is no index or UUID of a GPU"
    for pattern in config.gpu.absent:
        if not _PCI_PATTERN.fullmatch(pattern):
            yield ("gpu", "absent"), f"{pattern!r} is no PCI address such as 0000:41:00.0, and no pattern of one"
    yield from _kind_problems(config)


_PCI_PATTERN: Final = re.compile(r"(?=.*[:*])[0-9a-f:.*?\[\]-]{1,40}")


def _kind_problems(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    if not config.foreign.kinds and not config.may_raise:
        return
    from nodectl.knobs.registry import first_parts  # only here: few settings name a kind, and all commands read some

    known = first_parts()
    for kind in config.foreign.kinds:
        if kind not in known:
            yield ("foreign", "kinds", kind), f"there are no knobs of this kind{nearest(kind, known)}"
    for pattern in config.may_raise:
        kind = "scmi" if "#" in pattern else pattern.partition("/")[0]
        if pattern != "*" and kind not in known:
            yield ("may_raise",), f"{pattern!r} names no knob, such as rapl/*{nearest(kind, known)}"


def _cluster_problems(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    cluster = config.cluster
    if not cluster.url:
        return
    if not is_address(cluster.url):
        yield ("cluster", "url"), f"{cluster.url!r} is no URL such as tcp://HOST:7410"
    if not config.decides:
        yield ("cluster", "url"), 'a node that only monitors cannot be capped; set mode = "optimize"'
    if config.caps.node_w:
        yield ("caps", "node_w"), "the cluster caps this node already ([cluster] url); remove one of the two"
    for name in ("tdp_w", "mop_w", "safe_w", "boot_w"):
        if not 0 < getattr(cluster, name) < 1e6:
            yield ("cluster", name), "is missing or no number of watts"
    if not cluster.mop_w <= cluster.safe_w <= cluster.tdp_w:
        yield ("cluster", "safe_w"), f"{cluster.safe_w:g} W is not between mop_w and tdp_w"
    if cluster.mop_w <= config.caps.rest_w:
        yield ("cluster", "mop_w"), f"{cluster.mop_w:g} W must be above caps.rest_w ({config.caps.rest_w:g} W)"


def _dispatch_problems(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    listen, cluster = config.dispatch.listen, config.cluster
    if not listen:
        return
    if not is_address(listen):
        yield ("dispatch", "listen"), f"{listen!r} is no URL such as tcp://0.0.0.0:7411"
    if not (cluster.url and cluster.jobs):
        yield ("dispatch", "listen"), "a node that dispatches needs [cluster] url, for its watts, and jobs = true"
    if cluster.insecure and not cluster.key:
        yield ("dispatch", "listen"), "a node that dispatches needs a key ([cluster] key)"


def _url_problem(url: str) -> str:
    """What is wrong with the URL of a controller; empty if nothing is."""
    scheme, colon, rest = url.partition(":")
    if not colon or scheme not in SCMI_SCHEMES:
        return f"{url!r} is no SCMI URL, e.g. scmi+shm:/run/scmi.sock{nearest(scheme, SCMI_SCHEMES)}"
    if not rest and scheme != "scmi+inproc":
        return f"{url!r} names no socket or device"
    return f"{url!r} has a '#', which separates the domain in a knob's name" if "#" in url else ""


def _scmi_problems(scmi: Scmi) -> Iterator[tuple[tuple[str, ...], str]]:
    if scmi.url:
        if problem := _url_problem(scmi.url):
            yield ("scmi", "url"), problem
        if not scmi.knobs:
            yield ("scmi", "knobs"), f'is empty: nothing would be delegated; e.g. "{CAP_ROW}" = "package"'
    elif scmi.knobs:
        yield ("scmi", "url"), "is missing: where the controller is, e.g. scmi+shm:/run/scmi.sock"
    for name, domain in scmi.knobs.items():
        if not _DELEGABLE.fullmatch(name):
            there = f'"{CAP_ROW}" and "cpu/policyN/max_khz"'
            near = nearest(name, (CAP_ROW, "cpu/policy0/max_khz"))
            yield ("scmi", "knobs", name), f"no knob of this name can be delegated, only {there}{near}"
        elif not domain or "/" in domain:
            yield ("scmi", "knobs", name), f"{domain!r} is no name or number of a domain"
    by_domain: dict[tuple[bool, str], str] = {}
    for name, domain in scmi.knobs.items():
        first = by_domain.setdefault((name == CAP_ROW, domain), name)
        if first != name:
            yield ("scmi", "knobs", name), f"domain {domain!r} is taken for {first} already"
