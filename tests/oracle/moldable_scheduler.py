"""Jobs with configurations in plain Python: the scheduler, and the choices of the policies as their papers tell them.

The native ones are tested against these (``csrc/resources/nodes.c``, ``choices.c``).
"""

from __future__ import annotations

from collections.abc import Sequence

from msgspec.structs import replace

from cluster_agent.cluster import UW
from cluster_agent.replay.simulated import SimulatedMachine
from cluster_agent.scheduler.configurations.choices import ChoiceInput, Choose, length_s
from cluster_agent.scheduler.configurations.table import Configuration, best, place_of
from cluster_agent.scheduler.policies import moldable, registry
from cluster_agent.scheduler.policies.power_aware import rmap
from cluster_agent.scheduler.power_cap import whole_uw
from cluster_agent.scheduler.world import Ways, World
from tests.oracle.one_frequency import UnderACap


def least(ways: Ways) -> tuple[int, int]:
    """The fewest nodes, and the fewest microwatts, of any configuration."""
    every = [row for rows in ways.rows.tables for row in rows]
    return min((row.nodes for row in every), default=0), min((row.uw for row in every), default=0)


def true_row(ways: Ways, job: int, known: Configuration) -> Configuration:
    """The true time and watts of a row that the policy knows."""
    if ways.truth is None:
        return known
    return next(row for row in ways.truth[job] if place_of(row) == place_of(known))


class MoldableScheduler(UnderACap):
    """See ``interfaces.Scheduler``. ``chosen``: the configuration in which each job was started."""

    def __init__(self, choose: Choose, world: World) -> None:
        super().__init__(world.caps, seen_s=0)
        assert world.ways is not None
        self.jobs, self.ways, self.nodes = world.jobs, world.ways, world.workload.processors
        self.queue: list[int] = []
        self.running: dict[int, int] = {}  # job: when it will have ended
        self.chosen: dict[int, Configuration] = {}
        self._choose = choose
        self.least_nodes, self.least_uw = least(self.ways)

    def submit(self, now_s: int, job: int) -> bool:
        """The job joins the queue."""
        self.queue.append(job)
        return True

    def end(self, job: int) -> None:
        """Its nodes and watts are free."""
        del self.running[job]

    def overrun(self, job: int) -> int:
        """The table's times are taken as true; a job that runs longer is expected to end at any moment."""
        self.running[job] += 1
        return self.running[job]

    def expected_end_s(self, job: int) -> int:
        """When a running job is expected to end."""
        return self.running[job]

    def decide(self, now_s: int) -> list[int]:
        """Start heads while they can start; then jobs that leave the head its reservation."""
        started: list[int] = []
        while self.queue and (row := self.starts_now(now_s, self.queue[0])):
            started.append(self._start(now_s, self.queue[0], row))
        if not self.queue:
            return started
        head, *others = self.queue
        row = self._choose(self._choice_input(now_s, head))
        at_s = None if row is None else self._earliest_s(now_s, row)
        if at_s is None and self._starts_alone(now_s, head):
            return started  # it waits for another row than the chosen one, until nobody runs at the latest
        return started + self._backfill(now_s, others, row, at_s)

    def _backfill(self, now_s: int, others: Sequence[int], head: Configuration | None, head_s: int | None) -> list[int]:
        """Start jobs that leave the head its nodes and watts at ``head_s``; one that can never run at these watts has
        none (a replay drops such jobs before it begins)."""
        started: list[int] = []
        left_nodes = left_uw = 0
        if head is not None and head_s is not None:
            left_nodes = self._free_nodes(head_s) - head.nodes
            left_uw = self.left_uw(head_s, length_s(head)) - head.uw
        for job in others:
            if self._free_nodes(now_s) < self.least_nodes or self.left_uw(now_s, 0) < self.least_uw:
                break  # there is room for nobody, however many wait
            row = self.starts_now(now_s, job)
            if row is None:
                continue
            ends_in_time = head is None or head_s is None or now_s + length_s(row) <= head_s
            if ends_in_time or (row.nodes <= left_nodes and row.uw <= left_uw):
                if not ends_in_time:  # it runs on next to the head
                    left_nodes, left_uw = left_nodes - row.nodes, left_uw - row.uw
                started.append(self._start(now_s, job, row))
        return started

    def starts_now(self, now_s: int, job: int) -> Configuration | None:
        """The configuration in which the job could start, if it is the one that is chosen."""
        row = self._choose(self._choice_input(now_s, job))
        return row if row is not None and self._earliest_s(now_s, row) == now_s else None

    def _starts_alone(self, now_s: int, job: int) -> bool:
        """Whether it would start if nobody else ran, as far as no other cap is known."""
        if self.cap.next_change_s(now_s) is not None:
            return False
        most_w = self.cap.at(now_s)

        def earliest_s(row: Configuration) -> int | None:
            return now_s if row.nodes <= self.nodes and row.uw <= whole_uw(most_w) else None

        given = replace(
            self._choice_input(now_s, job), free_nodes=self.nodes, free_w=whole_uw(most_w) / UW, earliest_s=earliest_s
        )
        row = self._choose(given)
        return row is not None and earliest_s(row) is not None

    def _choice_input(self, now_s: int, job: int) -> ChoiceInput:
        jobs = self.jobs
        return ChoiceInput(
            now_s,
            self.ways.rows[job],
            int(jobs.width[job]),
            int(jobs.request_s[job]),
            self.nodes,
            self.cap.at(now_s),
            self._free_nodes(now_s),
            self.left_uw(now_s, 0) / UW,
            lambda row: self._earliest_s(now_s, row),
        )

    def _start(self, now_s: int, job: int, row: Configuration) -> int:
        self.queue.remove(job)
        self.chosen[job] = row
        self.running[job] = now_s + length_s(row)
        return job

    def _free_nodes(self, at_s: int) -> int:
        return self.nodes - sum(self.chosen[job].nodes for job, end_s in self.running.items() if end_s > at_s)

    def drawn_uw(self, at_s: int) -> int:
        """What the running jobs draw that are expected to run beyond ``at_s``."""
        return sum(self.chosen[job].uw for job, end_s in self.running.items() if end_s > at_s)

    def _earliest_s(self, now_s: int, row: Configuration) -> int | None:
        later_s = (at_s for at_s in (*self.running.values(), *self.cap.time_s) if at_s > now_s)
        for at_s in sorted({now_s, *later_s}):
            if row.nodes <= self._free_nodes(at_s) and row.uw <= self.left_uw(at_s, length_s(row)):
                return at_s
        return None


class TableMachine(SimulatedMachine):
    """Runs each job for the true time of the configuration that the scheduler has chosen."""

    def __init__(self, scheduler: MoldableScheduler) -> None:
        super().__init__(scheduler.jobs, "instant")
        self._scheduler = scheduler

    def start(self, now_s: int, job: int, expected_end_s: int, level: int = 0) -> None:
        """The job runs as long as its configuration takes."""
        self._jobs.run_s[job] = length_s(true_row(self._scheduler.ways, job, self._scheduler.chosen[job]))
        super().start(now_s, job, expected_end_s, level)


def choice_of(policy: str) -> Choose:
    """The choice of ``rmap`` or ``moldable`` with its parameters."""
    params = registry.choose(policy).params
    if isinstance(params, moldable.Params):
        return by_end(params)
    assert isinstance(params, rmap.Params)
    return {"traditional": traditional, "naive": naive(params), "adaptive": adaptive(params)}[params.policy]


# --- REGALE D2.3, section 3.1


def by_end(params: moldable.Params) -> Choose:
    """The least score, waiting included."""

    def choose(given: ChoiceInput) -> Configuration | None:
        """The least score."""
        ends = []
        for row in given.rows:
            start_s = given.earliest_s(row)
            if start_s is not None:
                ends.append((start_s - given.now_s + length_s(row), row))
        if not ends:
            return None
        limit_s = params.slowdown * min(end_s for end_s, _ in ends)

        def score(end_s: int, row: Configuration) -> float:
            if params.rule == "cores-endtime":
                return row.nodes * row.cores * end_s
            return end_s if params.rule == "stock" else row.energy_j if end_s <= limit_s else float("inf")

        return min(ends, key=lambda one: (score(*one), one[0], one[1].nodes))[1]

    return choose


# --- RMAP (Patki et al., HPDC 2015)


def traditional(given: ChoiceInput) -> Configuration | None:
    """The requested nodes with all cores at the highest cap, or as many of them as the cluster's watts allow."""
    cores, cap_w = max((row.cores, row.cap_w) for row in given.rows)
    full = [row for row in given.rows if (row.cores, row.cap_w) == (cores, cap_w) and row.watts <= given.cluster_w]
    fitting = [row for row in full if row.nodes <= given.nodes]
    return max(fitting, key=lambda row: row.nodes, default=None)


def naive(params: rmap.Params) -> Choose:
    """The fastest within the fair share, wherever that leads."""

    def choose(given: ChoiceInput) -> Configuration | None:
        return best(given.rows, fair_share_w(given, params.priority), given.cluster_nodes, params.near)

    return choose


def adaptive(params: rmap.Params) -> Choose:
    """Naive's choice if it can start; else the fastest that can, if it is fast enough; else naive's, later."""

    def choose(given: ChoiceInput) -> Configuration | None:
        bound_w = fair_share_w(given, params.priority)
        wanted = best(given.rows, bound_w, given.cluster_nodes, params.near)
        if wanted is None or (bound_w <= given.free_w and given.earliest_s(wanted) == given.now_s):
            return wanted
        rows = [row for row in given.rows if given.earliest_s(row) == given.now_s]
        now = best(rows, min(bound_w, given.free_w), given.free_nodes, params.near)
        return now if now is not None and now.time_s <= (1 + params.th) * given.request_s else wanted

    return choose


def fair_share_w(given: ChoiceInput, priority: float) -> float:
    """P_job: a ceiling on the job's package watts."""
    return priority * given.nodes / given.cluster_nodes * given.cluster_w
