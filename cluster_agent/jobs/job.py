"""A job from its submission to its record: what was requested, what became of it, and what it took.

    queued ──► starting ──► running ──► ending ──► done | failed | cancelled | timeout | lost
      ▲                        │                                                       │
      └──────────── requeued (once, if it was lost; or by hand) ◄──────────────────────┘

``starting``: nodes are chosen and the start was sent; ``running``: all nodes have reported their part; ``ending``: the
end was requested, or some nodes' parts have ended. A job is ``lost`` when a node cannot report what became of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate
from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from cluster_agent.scheduler.switches.limit_rules import LONGEST_QUEUE
from cluster_agent.scheduler.unlike_nodes.components import MOST_COMPONENTS
from foundation.wire.job_messages import HOOK_S, JobPart, JobStart, PartEnergy, filled, standard_output

State: TypeAlias = Literal["queued", "starting", "running", "ending", "done", "failed", "cancelled", "timeout", "lost"]
STATES: Final[tuple[State, ...]] = (
    "queued", "starting", "running", "ending", "done", "failed", "cancelled", "timeout", "lost",
)  # fmt: skip
ACTIVE: Final = ("starting", "running", "ending")
OVER: Final = ("done", "failed", "cancelled", "timeout", "lost")

LONGEST_S: Final = 10 * 366 * 86_400
"""The longest walltime, about ten years."""

LATEST_S: Final = 4_102_444_800
"""Ours: no job is to begin later, at the end of 2099 (UTC)."""

COMPONENT: Final = "NODECTL_COMPONENT"
"""In the environment of a heterogeneous job: which of its components, from 0, has the node."""

PREEMPTED: Final = "preempted for another job"
"""The reason of a best-effort job whose nodes another job gets."""

LONGEST_GRACE_S: Final = 30
"""Ours: of a best-effort job, since another one waits for its nodes meanwhile."""

LONGEST_NAME: Final = 96
"""Ours: characters of a job's name."""

Text: TypeAlias = Annotated[str, Meta(max_length=4096)]


KIB_PER_GB: Final = 1 << 20

Count: TypeAlias = Annotated[int, Meta(ge=0, le=1 << 20)]

Numbers: TypeAlias = Annotated[list[Annotated[int, Meta(ge=1, le=(1 << 63) - 1)]], Meta(max_length=1000)]
"""Jobs by their number, as SQLite numbers rows."""


class Component(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """So many nodes of a job, each of which has at least these cores, GPUs, MICs and memory."""

    nodes: Annotated[int, Meta(ge=1)] = 1
    cores: Count = 0
    gpus: Count = 0
    mics: Count = 0
    memory_gb: Annotated[float, Meta(ge=0, le=1 << 20)] = 0.0

    @property
    def per_node(self) -> tuple[int, int, int, int]:
        """Cores, GPUs, MICs and KiB of memory that a node must have; every job needs a core."""
        return max(self.cores, 1), self.gpus, self.mics, round(self.memory_gb * KIB_PER_GB)

    def fits(self, has: tuple[int, int, int, int]) -> bool:
        """Whether a node that has this is enough."""
        return all(need <= one for need, one in zip(self.per_node, has, strict=True))

    @property
    def requested(self) -> str:
        """The same in words; empty: any node does."""
        counts = [(self.cores, "core"), (self.gpus, "GPU"), (self.mics, "MIC")]
        words = [f"{count} {name}{'s' if count > 1 else ''}" for count, name in counts if count]
        return ", ".join([*words, *([f"{self.memory_gb:g} GB"] if self.memory_gb else [])])

    @property
    def in_words(self) -> str:
        """With its nodes."""
        of = f" with {self.requested}" if self.requested else ""
        return f"{self.nodes} node{'s' if self.nodes > 1 else ''}{of}"


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What the submitter requests. ``command`` runs once on each of the nodes; see ``JobStart``. Cores, GPUs, MICs and
    memory are what each of these must have at least; the job has its nodes alone, unless it shares them."""

    command: list[str]
    walltime_s: Annotated[int, Meta(ge=1, le=LONGEST_S)]
    workdir: Text
    script: Annotated[str, Meta(max_length=1 << 16)] = ""
    name: Annotated[str, Meta(max_length=LONGEST_NAME)] = ""
    nodes: Annotated[int, Meta(ge=1)] = 1
    output: Text = ""
    error: Text = ""
    env: dict[str, str] = {}
    prolog: Text = ""
    epilog: Text = ""
    tag: str = ""
    """Memory, mixed or compute (``budget.sharers.view.Tag``), "" if the submitter gives none."""
    grace_s: Annotated[int, Meta(ge=1, le=3600)] = 30
    requeue: bool = True
    """Whether the job is requeued once if it is lost with a node."""
    eco: bool = False
    """Whether it may be slowed for a power cap, and be killed after others (policy ``eco``)."""
    cores: Count = 0
    gpus: Count = 0
    mics: Count = 0
    memory_gb: Annotated[float, Meta(ge=0, le=1 << 20)] = 0.0
    after: Numbers = []
    """Until these jobs have ended, however, it is not in the queue of the scheduler (``waiting.Postponed``)."""
    after_done: Numbers = []
    """The same, and if one of these is not done then, it is cancelled."""
    queue: Annotated[str, Meta(max_length=LONGEST_QUEUE)] = ""
    """Of the partition, if it has several; "": the first."""
    reservation: Annotated[str, Meta(max_length=LONGEST_QUEUE)] = ""
    """In whose intervals it runs, on the nodes that are kept for it; "": in none."""
    share: Annotated[str, Meta(max_length=32)] = ""
    """Whether another job may run on the other halves of its nodes: ``auto``, down to the policy's least speed; a
    number, down to this one; ``exclusive``: none may; "": as the partition says."""
    halves: Annotated[int, Meta(ge=0, le=1 << 21)] = 0
    """Of nodes, if it wants an odd number of these; 0: whole nodes."""
    begin_s: Annotated[int, Meta(ge=0, le=LATEST_S)] = 0
    """Until this time (Unix seconds), too; 0: it may begin at once."""
    best_effort: bool = False
    """Whether it runs on nodes that no other job can use now, until one can (``csrc/best_effort.c``)."""
    components: Annotated[list[Component], Meta(max_length=MOST_COMPONENTS)] = []
    """What starts together, of a heterogeneous job; then ``nodes`` is their sum, and cores to memory are theirs. Empty:
    the job is one, of its own."""

    @property
    def shares(self) -> int:
        """Halves of nodes that it takes."""
        return self.halves or 2 * self.nodes

    @property
    def requests(self) -> list[Component]:
        """Its components, or what it requests as one."""
        return self.components or [Component(self.nodes, self.cores, self.gpus, self.mics, self.memory_gb)]

    def on_rank(self, rank: int) -> int:
        """The component that has the node of this rank: the nodes of one follow those of the one before it."""
        ends = list(accumulate(one.nodes for one in self.requests))
        return next((at for at, end in enumerate(ends) if rank < end), len(ends) - 1)

    def fits(self, has: tuple[int, int, int, int]) -> bool:
        """Whether a node that has this is enough for any component."""
        return any(one.fits(has) for one in self.requests)

    @property
    def requested(self) -> str:
        """What a node must have, in words; empty: any node does."""
        if not (self.components or self.cores or self.gpus or self.mics or self.memory_gb):
            return ""  # of most jobs, for each node
        words = [one.requested for one in self.requests]
        return " or ".join(one or "1 core" for one in words) if any(words) else ""


METHOD: Final = "energy as nodes report it"
QUALITIES: Final = ("measured", "estimated", "stale", "wrapped", "clipped")

HIGHEST_W: Final = 1_000_000
"""No node draws a megawatt, as on the wire: counters that say so are not believed."""


@dataclass(frozen=True, slots=True)
class PowerInterval:
    """A node's mean power over some seconds, and its cap meanwhile (-1: no cap, or power not measured)."""

    seconds: float
    power_mw: int
    quality: str
    cap_mw: int
    bound: str
    slowdown: float | None


class Account(msgspec.Struct):
    """What a job took, summed over all its nodes and attempts.

    ``energy_j``: by the quality of the power that was summed. ``uncovered_s``: seconds of node time that no report
    covers, from which the missing share follows. ``cap_j``: the integral of the caps; ``capped_s``: node-seconds under
    a cap; ``bound_s``: node-seconds in which it bound, by what bound. ``predicted_s``: node-seconds for which the
    sharer has a model of the job; by that model they would have been ``at_full_speed_s`` without caps.
    """

    energy_j: dict[str, float] = {}
    method: str = ""
    node_s: float = 0.0
    covered_s: float = 0.0
    cap_j: float = 0.0
    capped_s: float = 0.0
    bound_s: dict[str, float] = {}
    slowdown: float | None = None
    """Extra time as a share, as nodes estimate it (of several the highest); None: no estimate."""
    predicted_s: float = 0.0
    at_full_speed_s: float = 0.0

    def copy(self) -> Account:
        """A copy that later changes leave alone."""
        return msgspec.structs.replace(self, energy_j=dict(self.energy_j), bound_s=dict(self.bound_s))

    def add(self, interval: PowerInterval) -> None:
        """Count an interval; negative seconds take back what was counted too much."""
        seconds = interval.seconds
        if interval.power_mw >= 0:
            self.method = METHOD
            self.energy_j[interval.quality] = (
                self.energy_j.get(interval.quality, 0.0) + interval.power_mw / 1e3 * seconds
            )
            self.covered_s += seconds
        if interval.cap_mw >= 0:
            self.cap_j += interval.cap_mw / 1e3 * seconds
            self.capped_s += seconds
        if interval.bound:
            self.bound_s[interval.bound] = self.bound_s.get(interval.bound, 0.0) + seconds
        if interval.slowdown is not None:
            self.predicted_s += seconds
            self.at_full_speed_s += seconds / (1 + interval.slowdown)

    def add_energy(self, before: PartEnergy, now: PartEnergy) -> None:
        """Count what a node's counters have grown by."""
        self.method = METHOD
        self.covered_s += (now.metered_ms - before.metered_ms) / 1e3
        for quality in QUALITIES:
            grown_mj = getattr(now, f"{quality}_mj") - getattr(before, f"{quality}_mj")
            if grown_mj:
                self.energy_j[quality] = self.energy_j.get(quality, 0.0) + grown_mj / 1e3

    @property
    def joules(self) -> float | None:
        """Energy of all qualities; None: none was measured."""
        return sum(self.energy_j.values()) if self.energy_j else None

    @property
    def slowdown_estimate(self) -> tuple[float, str] | None:
        """Extra time as a share, and where the estimate comes from; None: no estimate."""
        if self.slowdown is not None:
            return self.slowdown, "nodes"
        if self.at_full_speed_s > 0:
            return self.predicted_s / self.at_full_speed_s - 1, "predicted by the sharer"
        return None


class Configured(msgspec.Struct, frozen=True):
    """The configuration in which a job was started: nodes, cores of each, cap of each package, how long it is expected
    to run, and the cap of each node."""

    nodes: int
    cores: int
    cap_w: float
    length_s: int
    node_mw: int


class Partner(msgspec.Struct, frozen=True):
    """A job that had other halves of a job's nodes, and how fast both were expected to be next to each other, as shares
    of their speeds alone; None: not known."""

    job: int
    speed: float | None
    its_speed: float | None


class Job(msgspec.Struct):
    """A job as stored. Times in Unix seconds."""

    id: int
    uid: int
    user: str
    spec: JobSpec
    submitted_s: float
    state: State = "queued"
    attempt: int = 0
    nodes: list[str] = []
    on: list[str] = []
    """The only nodes that it may run on; empty: any."""
    full_power: bool = False
    """Whether its nodes need their highest cap, before others get more than their MOP."""
    started_s: float | None = None
    ended_s: float | None = None
    queued_s: float = 0.0
    """When it joined the queue last."""
    status: int | None = None
    losses: int = 0
    reason: str = ""
    expected_end_s: int | None = None
    level: int = 0
    """Of the frequencies or caps of the machine file, 0 the highest: what the policy gives it."""
    planned_uw: int = 0
    """What each of its nodes is planned to draw, where the policy predicts it; 0: it does not."""
    without_model: bool = False
    """Whether the site's model failed to predict that, or was late, so that the nearest past jobs did."""
    configured: Configured | None = None
    """Where the policy chooses among configurations; None: it does not, or the job waits."""
    halves: dict[str, int] = {}
    """By node of which it has one half of the cores: which one, 0 or 1."""
    partners: list[Partner] = []
    placed_why: str = ""
    """Why it has these partners, or none; "": the policy shares no nodes."""
    may_take_s: int = 0
    """How long its nodes let it run, if that is longer than its walltime, since a partner may slow it."""
    is_cancelled: bool = False
    tag: str = ""
    """The tag by which it is shared watts, and its source: user, node agent, job history."""
    tag_source: str = ""
    account: Account = msgspec.field(default_factory=Account)
    parts: dict[str, JobPart] = {}
    """By node, how its part of this attempt ended: the node forgets that once it is stored here."""
    awaits: dict[str, float] = {}
    """Nodes that were given up and may still run it, and when (Unix seconds) each has ended it by itself at the latest:
    until then it is not started again."""
    group: str = ""
    """Its user's first group, by name; "": not known."""
    metered: dict[str, PartEnergy] = {}
    """By node, what of its energy counters in this attempt the account has. In one record with the account, so that
    after a restart the next report closes the gap, and counts nothing twice."""

    @property
    def is_being_ended(self) -> bool:
        """Whether its end was requested, which always has a reason (``Runs.stop``). Without one a job is ``ending``
        while some of its parts have ended well and the others go on."""
        return self.state == "ending" and self.reason != ""

    @property
    def walltime_s(self) -> int:
        """How long its nodes let it run: in a configuration that is slower than requested, it may take longer."""
        longest_s = max(self.spec.walltime_s, self.may_take_s, self.configured.length_s if self.configured else 0)
        return min(longest_s, LONGEST_S)

    @property
    def hooks_s(self) -> float:
        """How long its prolog and epilog may take."""
        return HOOK_S * (bool(self.spec.prolog) + bool(self.spec.epilog))

    def meter(self, node: str, energy: PartEnergy, now_s: float) -> None:
        """Take a node's counters. They only grow, and not faster than time and any node allow."""
        before = self.metered.get(node, PartEnergy())
        longest_ms = max(round(1e3 * (now_s - (self.started_s or now_s))), 0)
        most = dict.fromkeys(PartEnergy.__struct_fields__, HIGHEST_W * longest_ms) | {"metered_ms": longest_ms}
        grown = {
            name: max(min(getattr(energy, name), limit), getattr(before, name)) for name, limit in most.items()
        }  # fmt: skip
        self.metered[node] = now = PartEnergy(**grown)
        self.account.add_energy(before, now)

    @property
    def title(self) -> str:
        """Its name in tables. A program's name may have as many characters as a command, and each row has one."""
        name = self.spec.name or (self.spec.command[0].rpartition("/")[2] if self.spec.command else "script")
        return name[:LONGEST_NAME]

    def start_on(self, node: str) -> JobStart:
        """The message to one of its nodes. In output paths %j is the job, %n the node's rank, %N its name, %a the
        attempt."""
        spec, rank = self.spec, self.nodes.index(node)
        named = self.id, self.attempt, rank, node
        env = spec.env
        if self.configured is not None:
            env = {**env, "NODECTL_CORES": str(self.configured.cores)}
        if spec.components:
            env = {**env, COMPONENT: str(spec.on_rank(rank))}

        return JobStart(
            job=self.id, attempt=self.attempt, uid=self.uid, command=spec.command, script=spec.script,
            workdir=spec.workdir, output=filled(spec.output or standard_output(len(self.nodes)), *named),
            error=filled(spec.error, *named), env=env,
            walltime_s=self.walltime_s, grace_s=spec.grace_s, prolog=spec.prolog, epilog=spec.epilog, rank=rank,
            nodes=self.nodes, tag=spec.tag, half=self.halves.get(node, -1),
        )  # fmt: skip


def in_queue(job: Job) -> tuple[float, int]:
    """The key of the order in which jobs join the queue: live, after a restart, and in what is exported."""
    return job.queued_s, job.id
