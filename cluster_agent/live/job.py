"""A job from its submission to its record: what was asked, what became of it, and what it took.

    queued ──► starting ──► running ──► ending ──► done | failed | cancelled | timeout | lost
      ▲                        │                                                       │
      └──────────── requeued (once, if it was lost; or by hand) ◄──────────────────────┘

``starting``: nodes are chosen and told; ``running``: all of them have said so; ``ending``: told to end, or ended on
some nodes. A job is ``lost`` when a node cannot say what became of it.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal, TypeAlias

import msgspec
from msgspec import Meta

from nodectl.job_wire import JobStart

State: TypeAlias = Literal["queued", "starting", "running", "ending", "done", "failed", "cancelled", "timeout", "lost"]
STATES: Final[tuple[State, ...]] = (
    "queued", "starting", "running", "ending", "done", "failed", "cancelled", "timeout", "lost",
)  # fmt: skip
ACTIVE: Final = ("starting", "running", "ending")
OVER: Final = ("done", "failed", "cancelled", "timeout", "lost")

Text: TypeAlias = Annotated[str, Meta(max_length=4096)]


class JobSpec(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is asked for. ``command`` runs once on each of the nodes; see ``JobStart``."""

    command: list[str]
    walltime_s: Annotated[int, Meta(ge=1, le=10 * 366 * 86_400)]
    workdir: Text
    script: Annotated[str, Meta(max_length=1 << 16)] = ""
    name: Annotated[str, Meta(max_length=96)] = ""
    nodes: Annotated[int, Meta(ge=1)] = 1
    output: Text = ""
    error: Text = ""
    env: dict[str, str] = {}
    prolog: Text = ""
    epilog: Text = ""
    tag: str = ""
    """Memory, mixed or compute (``budget.sharers.view.Tag``), "" where the submitter does not say."""
    grace_s: Annotated[int, Meta(ge=1, le=3600)] = 30
    requeue: bool = True
    """Whether it is queued again, once, after it was lost with a node."""


class Account(msgspec.Struct):
    """What a job took, over all its nodes and attempts.

    ``energy_j`` by the quality of the power it was summed from; seconds of node time that no report covers are
    ``uncovered_s``, so that the share that is missing can be told. ``cap_j`` is the integral of the caps, ``capped_s``
    the node-seconds under one, ``bound_s`` those in which it bound, by what bound.
    """

    energy_j: dict[str, float] = {}
    method: str = ""
    node_s: float = 0.0
    covered_s: float = 0.0
    cap_j: float = 0.0
    capped_s: float = 0.0
    bound_s: dict[str, float] = {}
    slowdown: float | None = None
    """Extra time as a share; None where nobody could tell. Of several nodes the highest."""

    @property
    def joules(self) -> float | None:
        """None: nothing of it was measured."""
        return sum(self.energy_j.values()) if self.energy_j else None


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
    started_s: float | None = None
    ended_s: float | None = None
    queued_s: float = 0.0
    """When it joined the queue last."""
    status: int | None = None
    losses: int = 0
    reason: str = ""
    expected_end_s: int | None = None
    is_cancelled: bool = False
    account: Account = msgspec.field(default_factory=Account)

    @property
    def title(self) -> str:
        """What it is called in tables."""
        return self.spec.name or (self.spec.command[0].rpartition("/")[2] if self.spec.command else "script")

    def start_on(self, node: str) -> JobStart:
        """The message to one of its nodes. In output paths %j is the job, %n the node's rank, %N its name, %a the
        attempt."""
        spec, rank = self.spec, self.nodes.index(node)
        own = {"%j": str(self.id), "%n": str(rank), "%N": node, "%a": str(self.attempt)}
        standard = "job-%j.out" if len(self.nodes) == 1 else "job-%j-%n.out"

        def filled(path: str) -> str:
            for mark, text in own.items():
                path = path.replace(mark, text)
            return path

        return JobStart(
            job=self.id, attempt=self.attempt, uid=self.uid, command=spec.command, script=spec.script,
            workdir=spec.workdir, output=filled(spec.output or standard), error=filled(spec.error), env=spec.env,
            walltime_s=spec.walltime_s, grace_s=spec.grace_s, prolog=spec.prolog, epilog=spec.epilog, rank=rank,
            nodes=self.nodes, tag=spec.tag,
        )  # fmt: skip
