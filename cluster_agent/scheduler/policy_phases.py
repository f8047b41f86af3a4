"""The phases of a batch scheduler, and a policy as a composition of them.

estimate   how long a job is taken to run, and its new value when the job runs longer
order      which waiting job is the head of the queue
admit      may the head start? Here: are there enough free processors
place      which processors it gets: the free ones with the lowest numbers
backfill   which jobs behind a head that cannot start may start before it

These are pure: their only inputs are the queue, the running jobs and the time. What ships is native, but for the orders
of rules. An *order* in Python gets the whole queue as arrays before a pass, where it can matter; *estimate* and
*backfill* may be functions, too, on processors without watts, in replays. On a machine that knows watts *admit* checks
those too, and there are two phases more, *react* (to power caps) and *idle* (switching nodes off): see ``power_phases``
and ``idle_off``. On unlike nodes a policy may *plan*, which comes after *order* and chooses the jobs that *admit* looks
at: see ``plans.plan_phase``.

What cannot go together is not listed anywhere: each phase declares what it needs of the others and what it takes from
them, and so does each kind of resources (``Declared``, ``clash``).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.typing as npt

from cluster_agent.kept_on import Kept
from cluster_agent.scheduler.job_columns import Busy, Float64s, Int32s, Int64s, Past, Submitted
from cluster_agent.scheduler.power_phases import Admitted, Power

if TYPE_CHECKING:
    from cluster_agent.scheduler.configurations.choices import Choose, Rule
    from cluster_agent.scheduler.orders.priority import Priority
    from cluster_agent.scheduler.orders.score_formula import Score
    from cluster_agent.scheduler.plans.looks import Portfolio
    from cluster_agent.scheduler.plans.plan_phase import PlanBudget, Planner

Estimate: TypeAlias = Literal["requested", "clairvoyant", "mean2", "learned"]
"""The user's requested time; the true run time (an oracle, for comparison); the integer floor of the mean of the
user's last two ended jobs, at most the request, and the request until two have ended (Tsafrir, Etzion, Feitelson,
IEEE TPDS 18(6), 2007, doi 10.1109/TPDS.2007.70606); a linear model fitted to each job as it ends (``learner``)."""

History: TypeAlias = Literal["user", "similar"]
"""Whose last two ended jobs ``mean2`` takes: the user's, as published; of these the ones of the same width and request,
once there are two (ours; similar jobs as in Gibbons, JSSPP 1997, and Smith, Foster, Taylor, JSSPP 1998)."""

Fixed: TypeAlias = Literal["submission", "start"]
"""Until when ``mean2`` changes an estimate: it is fixed at submission, as published, or follows the user's jobs that
end for as long as the job waits (ours). Of many jobs submitted at once all but the first are then estimated by the
first."""

Correction: TypeAlias = Literal["requested", "incremental", "doubling", "doubling-capped"]
"""What a job's estimate becomes when it runs on: the request; the first estimate plus 1, 5, 15, 30 min, 1, 2, 5, 10,
20, 50, 100 h, at most the request (Tsafrir 2007); twice the estimate, as published *not* limited by the request
(Gaussier et al., SC'15); the same limited by it (ours)."""

Model: TypeAlias = Literal["thesis", "sc15"]
"""The features for ``learned``: the 20 of the thesis; the 18 of the simulator that its figures come from."""

Loss: TypeAlias = Literal["linear-linear", "linear-squared", "squared-linear", "squared-squared"]
"""How the error of ``learned`` counts: that of an estimate that is too long, then that of one that is too short."""

Weight: TypeAlias = Literal["equal", "short-wide", "long-narrow", "small", "large"]
"""Which jobs' errors count for more, with q processors for p seconds: 1; 5 + log(q/p); 5 + log(p/q); 11 + log(1/(pq));
1 + log(pq)."""

Backfill: TypeAlias = Literal["none", "list", "easy", "conservative", "compress"]
"""No job overtakes; any job that fits starts, without reservations; no job delays the head's reservation; no job delays
any job ahead of it, planned again in every pass; the same, with reservations that are kept and only move forward."""

Scan: TypeAlias = Literal["queue", "shortest"]
"""The order in which jobs behind the head are tried: that of the queue, or shortest estimate first."""

Placing: TypeAlias = Literal["first", "pack"]
"""Which nodes a unit gets, where nodes differ. ``first``: those with room in the order of their numbers (Bridi, PhD
thesis, Bologna 2018, ch. 6). ``pack`` (ours): first nodes without an accelerator that the job would block, then the
fullest, then the lowest number."""

Ties: TypeAlias = Literal["instant", "sc15"]
"""Which events of one instant share a pass. ``instant``: all of them; processors are free when their job has ended.
``sc15``: as the simulator of the SC'15 campaign had it, each event by itself, submissions before ends, and processors
count as free from the expected end of their job, ended or not; the machine hands them over at the end of the instant,
when all that ends has ended."""


_UNKNOWN: Final = np.full(0, np.nan)


class Queue(msgspec.Struct, frozen=True):
    """The waiting jobs as columns, in their present order. A column that is not known here is NaN, never 0."""

    job: Int32s
    submit_s: Int64s
    request_s: Int64s
    estimate_s: Int64s
    width: Int32s  # processors, or cores of all units
    user: Int32s
    units: Float64s = _UNKNOWN  # a unit is on one node; on nodes, as the columns up to memory_kib
    gpus: Float64s = _UNKNOWN  # of all units
    mics: Float64s = _UNKNOWN
    memory_kib: Float64s = _UNKNOWN
    watts: Float64s = _UNKNOWN  # as admitted: given, predicted, or the machine's most; on processors with idle shares
    promise_s: Float64s = _UNKNOWN  # the wait that the job's queue promises

    def __post_init__(self) -> None:
        if self.units is not _UNKNOWN is not self.promise_s:  # all are given: an order gets many of these
            return
        for name in KNOWN_SOMEWHERE:
            if getattr(self, name) is _UNKNOWN:
                msgspec.structs.force_setattr(self, name, np.full(len(self.job), np.nan))

    @property
    def joules(self) -> Float64s:
        """What the job takes, if it runs for as long as estimated."""
        return self.estimate_s * self.watts

    def at(self, positions: Int64s) -> Queue:
        """The jobs at these positions, in that order."""
        return Queue(*(getattr(self, name)[positions] for name in self.__struct_fields__))


KNOWN_SOMEWHERE: Final = Queue.__struct_fields__[6:]
"""The columns that not every kind of resources has."""

Order: TypeAlias = Callable[[Queue, int], Int64s | npt.NDArray[np.floating[Any]]]
"""``order(queue, now_s)``: whole numbers are the queue's positions in the order in which their jobs are to be served;
others are scores, the lowest served first, equal ones in order of submission, NaN last.

It is called where its answer can matter. Scores follow from the columns of the jobs and from the time, not from the
queue's present order: they are worked out only where two jobs wait and one may fit. Positions may follow from that
order, too: they are worked out wherever two jobs wait."""

OrderAt: TypeAlias = Literal["choices", "passes"]
"""When *order* is called: where its answer can matter; or before every pass, as one must be that counts its calls or
follows what it has seen."""

OwnEstimate: TypeAlias = Callable[[Submitted, Past], float]
"""``estimate(submitted, past)``: for how many seconds the job will run; what counts are whole ones, from 1 to its
request. Called once for each job, when it is submitted."""

OwnBackfill: TypeAlias = Callable[[Queue, Busy, int], Sequence[int] | npt.NDArray[np.integer[Any]]]
"""``backfill(queue, busy, now_s)``: the positions in the queue of the jobs that start now, which fit together into what
is free; called where the head, which is position 0, does not fit, and one of the others may."""

Known: TypeAlias = Callable[[Int32s], Mapping[str, Float64s]]
"""``known(job)``: the columns of ``KNOWN_SOMEWHERE`` that a kind of resources has, of these jobs."""


class Learning(msgspec.Struct, frozen=True):
    """The variant of ``estimate=learned``. The default is the one that the thesis selects (E-Loss)."""

    model: Model = "thesis"
    loss: Loss = "squared-linear"
    weight: Weight = "large"


class Declared(NamedTuple):
    """What a phase, or a kind of resources, needs of the others, and what it takes from them and why."""

    name: str
    needs: Sequence[str] = ()
    takes: Mapping[str, str] = MappingProxyType({})


HEAD: Final = "a head of the queue"
ORDER: Final = "the order of the queue for itself"
FIRST_ESTIMATES: Final = "plans that are first estimates"
JOULES: Final = "joules for every job"
KEPT: Final = "places that are kept"
EARLY: Final = "processors that are free before their job has ended"
WATTS: Final = "watts"
RUN_TIMES: Final = "run times in advance"
SWITCHING: Final = "nodes that are off for a cap"
JOB_WATTS: Final = "the watts of jobs in advance"
NODE_PREDICTIONS: Final = "predictions on nodes that differ"
CONFIGURATIONS: Final = "a table of configurations"
REPLAY: Final = "a replay"
PAST: Final = "all that has happened before"
STARTS: Final = "the choice of who starts"
BUDGETS: Final = "joules that are counted"
SHARES: Final = "nodes of two shares"

NODES: Final = "nodes"
BOOTS: Final = "boots"
PROCESSORS: Final = "a number of processors"
ESTIMATES: Final = "estimates of its own"
GPUS: Final = "GPUs"
MEMORY: Final = "memory"
PROMISES: Final = "promised waits"
OTHERS_WATTS: Final = "watts that the policy does not own"

ON_PROCESSORS: Final = Declared("a number of processors", takes={WATTS: "has none: give a machine such as curie"})
A_LOG: Final = Declared(
    "a log of processors",
    takes={
        CONFIGURATIONS: "has none: give --configurations",
        **dict.fromkeys((NODES, GPUS, MEMORY, PROMISES), "has none: choose another policy, or a trace with nodes"),
    },
)
A_TRACE_WITH_NODES: Final = Declared(
    "a trace with nodes",
    takes={
        CONFIGURATIONS: "has none: choose another policy, or a log of processors",
        PROCESSORS: "has nodes that differ: choose another policy, or a log of processors",
        ESTIMATES: "plans with the requested times: choose estimate=requested",
        SWITCHING: "has none: choose idle_off_s",
    },
)
LIVE: Final = Declared(
    "a live partition",
    takes={
        EARLY: "has none",
        RUN_TIMES: "has none: choose another estimate",
        JOB_WATTS: "has none: choose another one",
        NODE_PREDICTIONS: "has none: choose easy-capped",
        REPLAY: "is none: choose a rule that ships",
        PROMISES: "has none: choose another order",
        OTHERS_WATTS: "counts none: give the policy power=Power()",
    },
)
STEPPED: Final = Declared(
    "a stepped world",
    takes={
        CONFIGURATIONS: "has none: give a log of processors, or a trace with nodes",
        EARLY: "has none: it decides once all of an instant has happened",
        PAST: "is forked without it: choose another one",
        STARTS: "leaves that to its caller: choose another policy",
        BUDGETS: "counts none: leave the budget out",
        BOOTS: "knows none: leave idle_off_s out",
        SHARES: "has none: choose another policy",
        REPLAY: "is none: leave one of them out",
    },
)
"""Where the caller decides, step by step (``stepping``)."""
A_WARM_START: Final = Declared("a warm start", (PAST,))
WITHOUT_WATTS: Final = Declared(
    "a live partition without `machine`", takes={WATTS: "does not know them: give one in [jobs]"}
)
"""Where the settings do not say what a node draws."""
WITHOUT_CONFIGURATIONS: Final = Declared(
    "a live partition without `configurations`", takes={CONFIGURATIONS: "has none: give a file in [jobs]"}
)
"""Where the settings do not say in which ways jobs can run."""
WITHOUT_PAIRS: Final = Declared(
    "a live partition without `pairs`",
    takes={SHARES: "knows no speeds of jobs next to each other: give a file in [jobs]"},
)
"""Where the settings do not say how fast jobs are on halves of nodes."""
WITHOUT_SWITCHING: Final = Declared(
    "a live partition without [jobs.power]", takes={SWITCHING: "has none: choose another mode"}
)
"""Where the settings have no commands that switch nodes."""


def clash(declared: Sequence[Declared]) -> str | None:
    """Why these do not go together, in one line; None: they do."""
    for one in declared:
        for other in declared:
            for thing in one.needs if other is not one else ():
                if thing in other.takes:
                    return f"{one.name} needs {thing}, and {other.name} {other.takes[thing]}"
    return None


class Composition(msgspec.Struct, frozen=True):
    """A policy, ready to run, on any kind of resources that has what its phases need. ``order`` None is the order of
    submission."""

    estimate: Estimate | OwnEstimate = "requested"
    history: History = "user"
    fixed: Fixed = "submission"
    correct: Correction = "requested"
    shadow: float = 1.0
    """A job that starts is planned to run for this many times its estimate, at most its request; infinity: its request.
    The head's shadow time (Mu'alem and Feitelson 2001) follows; whether a job fits before it still goes by the
    estimate."""
    learning: Learning = Learning()
    order: Order | None = None
    order_at: OrderAt = "choices"
    priority: Priority | None = None
    """The native *order* by age, size and past usage."""
    score: Score | None = None
    """The native *order* by a formula. One of the three."""
    backfill: Backfill | OwnBackfill = "none"
    scan: Scan = "queue"
    ties: Ties = "instant"
    idle_off_s: int | None = None
    """A node without a job goes off after this time, and boots when a job needs it (``idle_off``); None: it stays on.
    Needs a machine with watts."""
    kept: Kept = Kept()
    """With ``idle_off_s``: how many nodes stay on whether they have jobs or not, or boot ahead (ours)."""
    power: Power | None = None
    """What the policy does with watts, if it knows them."""
    guard: float | None = None
    """A job whose bounded slowdown would pass this even if it started now becomes the head; highest first (ours)."""
    passes_if_new_fits: bool = False
    """A submission leads to a pass only if the new job fits what is free (part of ``ties=sc15``, see ``easy``)."""
    needs: tuple[str, ...] = ()
    """What ``order`` cannot do without: ``WATTS``, ``GPUS``, ``MEMORY``, ``PROMISES``."""
    placing: Placing | None = None
    """The *place* phase on nodes that differ, for a policy that is for these alone; None: ``first``."""
    plan: Planner | None = None
    """Which starts a pass tries (``plans``); where there is no plan, order and backfill decide."""
    plan_budget: PlanBudget | None = None
    portfolio: Portfolio | None = None
    """Its members order and backfill in place of these phases (``plans.looks``)."""
    choose: Choose | Rule | None = None
    """In which of its configurations a job runs: a choice in Python, or one that is native."""

    def __post_init__(self) -> None:
        for phase, known in _NAMED.items():
            name, may_be_own = getattr(self, phase), phase in ("estimate", "backfill")
            if name not in known and not (may_be_own and callable(name)):
                more = ", or a function" if may_be_own else ""
                raise ValueError(f"no {phase} is called {name!r}: one of {', '.join(filter(None, known))}{more}")
        if not self.shadow >= 1:
            raise ValueError(f"shadow={self.shadow:g}: give 1 or more")
        if self.idle_off_s is not None and not self.idle_off_s > 0:
            raise ValueError(f"idle_off_s={self.idle_off_s}: give 1 second or more")
        if self.kept:
            self.kept.check(self.idle_off_s is not None, self.power is not None)
        if self.plan is not None and self.backfill != "list":
            raise ValueError(f"a plan needs backfill=list to fall back on, and this is {self.backfill}")
        if self.portfolio is not None and (self.backfill, self.scan) != ("easy", "queue"):
            raise ValueError("the members of a portfolio backfill: leave backfill and scan to them")
        if reason := clash(self.declared):
            raise ValueError(reason)

    @property
    def declared(self) -> list[Declared]:
        """What its phases declare."""
        keeps_places = {HEAD: "gives every job a place"}
        has_nodes = self.placing is not None
        phases = [
            (
                Declared(f"estimate={self.estimate}", (ESTIMATES,)),
                self.estimate != "requested" and not callable(self.estimate),
            ),
            (Declared("an estimate in Python", (ESTIMATES, REPLAY)), callable(self.estimate)),
            (
                Declared("a backfill in Python", (PROCESSORS, REPLAY), {WATTS: "counts processors alone"}),
                callable(self.backfill),
            ),
            (Declared("estimate=clairvoyant", (RUN_TIMES,)), self.estimate == "clairvoyant"),
            (Declared("estimate=learned", (PAST,)), self.estimate == "learned"),
            (Declared("correct=incremental", (FIRST_ESTIMATES,)), self.correct == "incremental"),
            (Declared(f"shadow={self.shadow:g}", takes={FIRST_ESTIMATES: "plans for longer"}), self.shadow > 1),
            (
                Declared("an order by a rule", (ORDER, *self.needs), {ORDER: "orders it, too"}),
                self.order is not None,
            ),
            (Declared("an order by a rule", (OTHERS_WATTS,)), WATTS in self.needs and self.power is None),
            (
                Declared("an order by priorities", (ORDER, PROCESSORS, PAST), {ORDER: "orders it, too"}),
                self.priority is not None,
            ),
            (Declared("an order by a score", (ORDER, PROCESSORS), {ORDER: "orders it, too"}), self.score is not None),
            (Declared("guard", (HEAD, PROCESSORS)), self.guard is not None),
            (Declared("scan=shortest", (PROCESSORS,)), self.scan == "shortest"),
            (Declared("backfill=conservative", (JOULES, PROCESSORS)), self.backfill == "conservative"),
            (Declared("backfill=compress", (KEPT, PROCESSORS), keeps_places), self.backfill == "compress"),
            (Declared("ties=sc15", (EARLY, PROCESSORS)), self.ties == "sc15"),
            (Declared(f"placing={self.placing}", (NODES,), {PROCESSORS: "is for nodes that differ"}), has_nodes),
            (Declared("a plan", (NODES, STARTS), {BOOTS: "knows none: leave one of them out"}), self.plan is not None),
            (Declared("a plan of shared nodes", (SHARES,)), shares_nodes(self.plan)),
            (Declared("a portfolio", (ORDER, PROCESSORS, PAST), _NOT_LOOKED_AT), self.portfolio is not None),
            (Declared("a choice among configurations", (CONFIGURATIONS, WATTS), _NOT_CHOSEN), self.choose is not None),
            (Declared("a choice in Python", (REPLAY,)), callable(self.choose)),
            (
                Declared("idle_off_s", (WATTS, BOOTS), {KEPT: "boots nodes first"}),
                self.idle_off_s is not None,
            ),
            (Declared(str(self.kept), (PROCESSORS,)), bool(self.kept)),
        ]
        of_watts = _declared_of(self.power, has_nodes) if self.power is not None else []
        return [one for one, is_used in (*phases, *of_watts) if is_used]

    @property
    def frees_at_estimate(self) -> bool:
        """Whether processors count as free from the expected end of their job on."""
        return self.ties == "sc15"

    @property
    def owns_watts(self) -> bool:
        """Whether the policy decides about watts, so that no sharer may (``owner``)."""
        return self.power is not None or self.choose is not None

    @property
    def admitted(self) -> Admitted:
        """The watts with which jobs of a trace that has them are admitted."""
        return "given" if self.power is None or self.power.admitted is None else self.power.admitted

    @property
    def plan_time_s(self) -> float | None:
        """The most seconds of one plan; None: as many as it takes, or no plan is made."""
        return None if self.plan_budget is None else self.plan_budget.time_s

    @property
    def needs_requests(self) -> bool:
        """Whether the schedule depends on requested times."""
        plans = self.backfill not in ("none", "list") or self.order is not None or self.score is not None
        return plans and self.estimate != "clairvoyant"


def shares_nodes(plan: Planner | None) -> bool:
    """Whether a planner is for nodes of two shares."""
    return getattr(plan, "shares_nodes", False) is True


def _declared_of(power: Power, has_nodes: bool) -> list[tuple[Declared, bool]]:
    """What the phases that know watts declare, and whether each is used."""
    until_end, admitted = "counts a job's watts until it has ended", power.admitted
    is_predicted = admitted is not None and admitted != "given"
    return [
        (
            Declared("a policy that knows watts", (WATTS,), {KEPT: "plans again in each pass", EARLY: until_end}),
            True,
        ),
        (Declared("a mode that switches nodes off", (SWITCHING,)), power.idle is not None),
        (Declared("a reaction to caps", (PROCESSORS,)), power.react is not None),
        (Declared("a lower frequency", (PROCESSORS,)), power.lowers_frequencies),
        (Declared("a cap that is unknown until it begins", (PROCESSORS,)), not power.looks_ahead),
        (Declared("watts of a busy node", (PROCESSORS,)), power.node_w is not None),
        (Declared("is_metered", (NODES,)), power.is_metered),
        (Declared("rescale=true", (PROCESSORS,), _NOT_LOWERED), power.rescales),
        (Declared("metered=true", (PROCESSORS, REPLAY), _NOT_METERED), power.meters),
        (Declared("a budget of joules", (PROCESSORS, BUDGETS)), power.budget is not None),
        (
            Declared("rule=reducepc", takes={JOULES: "sets them aside for the head alone"}),
            power.budget is not None and power.budget.rule == "reducepc",
        ),
        (Declared("of=given", (JOB_WATTS,)), admitted == "given" and not has_nodes),
        (Declared(f"of={admitted}", (NODE_PREDICTIONS,)), is_predicted and has_nodes),
        (Declared(f"of={admitted}", (PAST,)), is_predicted),
    ]


_NOT_LOWERED: Final = {
    BOOTS: "counts on nodes that are on: leave one of them out",
    BUDGETS: "lowers jobs for caps alone",
    KEPT: "gives places at one frequency",
    JOULES: "gives places at one frequency",
}
_NOT_METERED: Final = {
    BOOTS: "reads nodes that are on: leave one of them out",
    BUDGETS: "counts watts, not joules",
}
"""What does not go with running jobs that are lowered, or metered, and why."""

_NOT_LOOKED_AT: Final = {
    ORDER: "has members that order it: leave one of them out",
    WATTS: "counts none: leave one of them out",
    EARLY: "has none: leave one of them out",
}
"""What does not go with a portfolio, and why."""

_NOT_CHOSEN: Final = {
    PROCESSORS: "counts nodes: leave one of them out",
    ESTIMATES: "takes the times of its rows: choose estimate=requested",
    SWITCHING: "has none: leave one of them out",
    BOOTS: "knows none: leave one of them out",
}
"""What does not go with configurations, and why."""

_NAMED: Final[dict[str, tuple[str | None, ...]]] = {
    "estimate": get_args(Estimate),
    "history": get_args(History),
    "fixed": get_args(Fixed),
    "correct": get_args(Correction),
    "backfill": get_args(Backfill),
    "scan": get_args(Scan),
    "ties": get_args(Ties),
    "order_at": get_args(OrderAt),
    "placing": (*get_args(Placing), None),
}
"""The fields of ``Composition`` that take one of some names, and these."""
