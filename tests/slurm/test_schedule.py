"""Our engine decides which jobs of a Slurm start: its decisions, refusals, losses and races, with a Slurm that is made
up; test_real_schedule.py has a real one."""

from __future__ import annotations

import io
import random
from collections.abc import Sequence
from dataclasses import dataclass, field
from dataclasses import replace as changed
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.replay.event_log import LoggedScheduler
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policies import registry
from cluster_agent.slurm.queue_schedule import RETRY_S, QueueSchedule
from cluster_agent.slurm.queue_table import COLUMNS, NodeState, OwnNodes, QueueRow, row_of
from tests.oracle.scheduler import ReferenceScheduler

DEFER_S = 600


@dataclass
class FakeJob:
    """``run_s``: how long it runs; ``starts_after_s``: how long Slurm takes to start it once it may."""

    row: QueueRow
    run_s: float
    starts_after_s: float = 0.0
    wanted: tuple[str, ...] = ()
    starts: list[float] = field(default_factory=list)


class FakeSlurm:
    """Starts jobs whose begin time has come, on the nodes of their release or else on any, and checks itself that no
    node has two. ``refuses``: by user, the reason why it starts none of them; ``is_down``: nothing answers."""

    def __init__(self, nodes: int = 4) -> None:
        self.now_s = 1_000_000.0
        self.names = [f"n{number}" for number in range(nodes)]
        self.jobs: dict[str, FakeJob] = {}
        self.out: set[str] = set()  # nodes that are down
        self.odd: dict[str, NodeState] = {}  # what Slurm says of nodes that no job has
        self.refuses: dict[int, str] = {}
        self.is_down, self.loses = False, 0
        self.commands: list[str] = []
        self.own: dict[str, OwnNodes] = {}

    def submit(self, width: int = 1, run_s: float = 10.0, uid: int = 1000, **more: Any) -> str:
        key: str = more.pop("key", str(len(self.jobs) + 1))
        starts_after_s = more.pop("starts_after_s", 0.0)
        now_s = int(self.now_s)
        row = QueueRow(
            key=key, state="PD", eligible_s=now_s + DEFER_S, submitted_s=now_s, started_s=0, restarts=0, width=width,
            limit_s=60, uid=uid, is_component=False, priority=100, partitions=("all",), group=(uid, "normal", "a"),
            nodes=(), requires="", has_wants=False, reason="BeginTime", waits_for_jobs=False,
        )  # fmt: skip
        self.jobs[key] = FakeJob(changed(row, **more), run_s, starts_after_s)
        return key

    @property
    def busy(self) -> set[str]:
        return {name for job in self.jobs.values() if job.row.state == "R" for name in job.row.nodes}

    def edit(self, key: str, **more: Any) -> None:
        self.jobs[key].row = changed(self.jobs[key].row, **more)

    def step(self, seconds: float = 1.0) -> None:
        self.now_s += seconds
        for key, job in list(self.jobs.items()):
            if job.row.state == "R" and self.now_s >= job.starts[-1] + job.run_s:
                self.edit(key, state="CD", nodes=())
        for key, job in self.jobs.items():
            self._start(key, job)

    def _start(self, key: str, job: FakeJob) -> None:
        row = job.row
        if row.state != "PD" or row.eligible_s + job.starts_after_s > self.now_s or row.priority == 0:
            return
        free = [name for name in self.names if name not in self.busy | self.out]
        nodes = job.wanted or tuple(free[: row.width])
        is_free = {*nodes} <= {*free} and len(nodes) == row.width
        if reason := self.refuses.get(row.uid) or ("" if is_free else "Resources"):
            self.edit(key, reason=reason)
            return
        job.starts.append(self.now_s)
        self.edit(key, state="R", nodes=nodes, started_s=int(self.now_s), reason="None")

    def read(self) -> tuple[list[QueueRow], dict[str, NodeState]]:
        if self.is_down:
            raise ClusterError("squeue did not answer")
        rows = [job.row for job in self.jobs.values() if job.row.state in ("PD", "R")]
        states = {name: self.odd.get(name, "away" if name in self.out else "idle") for name in self.names}
        return rows, states | dict.fromkeys(self.busy, "busy")

    def update(self, commands: Sequence[str]) -> list[str]:
        if self.is_down:
            raise ClusterError("scontrol did not answer")
        found = []
        for command in commands:
            self.commands.append(command)
            if self.loses:
                self.loses -= 1
                continue
            words = dict(word.split("=", 1) for word in command.split()[1:])
            if self.jobs[words["jobid"]].row.state != "PD":
                continue
            ahead_s = int(words["starttime"].removeprefix("now") or 0)
            self.edit(
                words["jobid"], eligible_s=int(self.now_s) + ahead_s, reason="None" if ahead_s == 0 else "BeginTime"
            )
            if "nodelist" in words:
                nodes = tuple(filter(None, words["nodelist"].split(",")))
                if not {*nodes} <= {*self.names}:
                    found.append(f"{words['jobid']}: Invalid node name specified")
                self.jobs[words["jobid"]].wanted = nodes
                self.edit(words["jobid"], requires=",".join(nodes))
        return found

    def own_nodes(self, key: str) -> OwnNodes:
        return self.own.get(key, "")


class Both:
    """A schedule and its Slurm. ``step`` lets a second pass."""

    def __init__(self, nodes: int = 4, policy: str = "easy", capacity: int = 4096) -> None:
        self.slurm, self.said, self.log = FakeSlurm(nodes), list[str](), io.BytesIO()
        self.policy, self.capacity = policy, capacity
        self.restart()

    def restart(self) -> None:
        """The schedule begins again, and knows nothing."""
        self.made = QueueSchedule(
            self.slurm, registry.choose(self.policy).composed, "all", DEFER_S, lambda: self.slurm.now_s,
            self.said.append, lambda scheduler, clock: LoggedScheduler(scheduler, clock, self.log), self.note,
            self.capacity,
        )  # fmt: skip

    def note(self, *values: Any) -> None:
        self.log.write(msgspec.json.encode(values) + b"\n")

    def step(self, times: int = 1) -> None:
        for _ in range(times):
            before = {key for key, job in self.made.jobs.items() if job.phase == "released"}
            self.made.turn()
            self.check(before)
            self.slurm.step()

    def check(self, before: set[str]) -> None:
        """No release has a node that another job has, runs on or was released to; no run has started twice."""
        jobs = self.made.jobs
        for key in {key for key, job in jobs.items() if job.phase == "released"} - before:
            others = {name for other, job in jobs.items() if other != key for name in job.nodes}
            assert not others & {*jobs[key].nodes} and len(jobs[key].nodes) == jobs[key].row.width
        assert all(len(job.starts) <= 1 + job.row.restarts for job in self.slurm.jobs.values())

    def started(self) -> dict[str, float]:
        return {key: job.starts[0] for key, job in self.slurm.jobs.items() if job.starts}

    def phase(self, key: str) -> str:
        return self.made.jobs[key].phase


def test_the_policy_decides_which_job_starts_and_on_which_nodes() -> None:
    both = Both()
    first, wide, short = (both.slurm.submit(3, 20.0), both.slurm.submit(4, 5.0), both.slurm.submit(1, 5.0, limit_s=10))
    both.step(2)
    assert [one for one in both.slurm.commands if "now " in one] == [
        "update jobid=1 starttime=now nodelist=n0,n1,n2", "update jobid=3 starttime=now nodelist=n3",
    ], "the short job ends before the wide one could start"  # fmt: skip
    both.step(40)
    started = both.started()
    assert started[short] < started[wide] and started[first] < started[wide] and both.made.jobs == {}


def test_a_deferred_job_stays_deferred_as_long_as_it_waits_and_is_slurms_soon_after() -> None:
    both = Both(1)
    both.slurm.submit(1, 2000.0)
    waiting = both.slurm.submit()
    for _ in range(1500):
        both.step()
        assert both.slurm.jobs[waiting].row.eligible_s - both.slurm.now_s >= DEFER_S / 2 - 2
    gone_s = both.slurm.now_s
    both.slurm.jobs["1"].run_s = 0.0
    while waiting not in both.started():
        both.slurm.step()
    assert DEFER_S / 2 - 2 <= both.started()[waiting] - gone_s <= DEFER_S


def test_what_slurm_says_no_to_is_not_released() -> None:
    both = Both()
    now_s = int(both.slurm.now_s)
    both.slurm.submit(reason="None", waits_for_jobs=True)
    both.slurm.submit(priority=0, reason="JobHeldUser")
    later = both.slurm.submit(eligible_s=now_s + 100 + DEFER_S)
    both.slurm.submit(5)
    both.slurm.submit(partitions=("other",))
    both.step(50)
    assert [one for one in both.slurm.commands if "now " in one] == []
    both.slurm.edit("1", waits_for_jobs=False)
    both.slurm.edit("2", priority=7, reason="BeginTime")
    both.step(60)
    assert {"1", "2", later} == both.started().keys() and both.started()[later] >= now_s + 100


def test_a_limit_is_learned_from_one_refusal_and_tried_again_when_a_job_of_the_user_has_ended() -> None:
    both = Both()
    both.slurm.submit(1, 40.0, uid=1)
    both.step(2)
    both.slurm.refuses[1] = "QOSMaxJobsPerUserLimit"
    for _ in range(5):
        both.slurm.submit(1, 5.0, uid=1)
    other = both.slurm.submit(1, 5.0, uid=2)
    both.step(8)
    tried = [one for one in both.slurm.commands if "starttime=now " in one and "jobid=1 " not in one]
    assert len(tried) <= 4 and both.started()[other], "three nodes are free: at most three are tried"
    assert {both.phase(str(number)) for number in range(2, 7)} == {"deferred"}
    assert all(both.slurm.jobs[str(number)].row.eligible_s > both.slurm.now_s for number in range(2, 7))
    both.slurm.refuses.clear()
    both.step(60)
    assert len(both.started()) == 7


def test_a_release_that_slurm_does_not_take_is_given_up_and_tried_later() -> None:
    both = Both()
    key = both.slurm.submit()
    both.slurm.loses = 1
    both.step(3)
    assert both.phase(key) == "deferred" and both.started() == {}
    both.step(int(RETRY_S) + 3)
    assert key in both.started()


def test_a_job_that_starts_while_it_is_recalled_runs_once_and_keeps_its_nodes() -> None:
    both = Both(2)
    slow = both.slurm.submit(2, 30.0, starts_after_s=17.0)
    both.step(16)
    other = both.slurm.submit(1, 5.0)
    both.slurm.loses = 100  # what the recall says is lost
    both.step(3)
    assert slow in both.started() and other not in both.started() and both.phase(slow) == "running"
    both.slurm.loses = 0
    both.step(60)
    assert other in both.started()


@pytest.mark.parametrize("after", [0, 1, 2, 5])
def test_a_schedule_that_was_killed_at_any_time_starts_nothing_twice(after: int) -> None:
    both = Both()
    for number in range(8):
        both.slurm.submit(1 + number % 3, 6.0, starts_after_s=1.5)
    for _ in range(30):
        both.step(after)
        both.made.turn()  # released, and killed before it has seen what became of it
        both.restart()
        both.slurm.step()
    both.step(30)
    assert len(both.started()) == 8 and all(len(job.starts) == 1 for job in both.slurm.jobs.values())


def test_a_slurm_that_is_silent_in_the_middle_of_a_release_loses_nothing() -> None:
    both = Both()
    key = both.slurm.submit(2)
    both.slurm.is_down = True
    with pytest.raises(ClusterError, match="squeue did not answer"):
        both.made.turn()
    both.slurm.is_down = False
    both.slurm.update, answers = lambda commands: (_ for _ in ()).throw(ClusterError("x")), both.slurm.update  # type: ignore[method-assign]
    with pytest.raises(ClusterError):
        both.made.turn()
    both.slurm.update = answers  # type: ignore[method-assign]
    both.step(int(RETRY_S) + 3)
    assert key in both.started()


def test_a_requeued_job_is_another_run_and_a_number_that_is_given_twice_another_job() -> None:
    both = Both()
    key = both.slurm.submit(2, 100.0)
    both.step(3)
    now_s = int(both.slurm.now_s)
    both.slurm.edit(key, state="PD", nodes=(), restarts=1, submitted_s=now_s, eligible_s=now_s + DEFER_S)
    both.step(3)
    assert len(both.slurm.jobs[key].starts) == 2
    both.slurm.edit(key, state="PD", nodes=(), restarts=0, submitted_s=now_s + 7, eligible_s=now_s + DEFER_S, uid=5)
    both.slurm.jobs[key].starts.clear()
    both.step(4)
    assert len(both.slurm.jobs[key].starts) == 1 and both.made.jobs[key].row.uid == 5


def test_jobs_that_slurm_has_started_itself_and_nodes_that_are_down_take_no_node_twice() -> None:
    both = Both()
    both.slurm.out = {"n0"}
    own = both.slurm.submit(2, 30.0, eligible_s=int(both.slurm.now_s) - 5)
    both.slurm.step()
    assert own in both.started()
    key = both.slurm.submit(2)
    both.step(20)
    assert key not in both.started()
    both.slurm.out.clear()
    both.step(2)
    assert set(both.slurm.jobs[key].wanted) == {"n0", "n3"}


@pytest.mark.parametrize(("state", "overtakes"), [("busy", False), ("away", True)])
def test_a_node_that_is_soon_back_is_waited_for_and_one_that_is_down_is_not(state: NodeState, overtakes: bool) -> None:
    both = Both()
    both.slurm.odd = {"n0": state}
    wide, later = both.slurm.submit(4, 5.0), both.slurm.submit(1, 5.0, limit_s=600)
    both.step(3)
    assert (later in both.started()) == overtakes
    both.slurm.odd = {}
    both.step(30)
    assert {wide, later} == both.started().keys()


def test_slurm_places_a_job_by_what_it_requests_and_starts_a_heterogeneous_one_itself() -> None:
    both = Both()
    both.slurm.submit(has_wants=True)
    both.slurm.submit(requires="n3")
    both.slurm.own["2"] = "requires"
    both.slurm.submit(requires="n1")  # of an earlier release
    both.slurm.submit(key="4+0", is_component=True)
    both.slurm.submit(key="4+1", is_component=True)
    both.slurm.jobs["4"] = both.slurm.jobs["4+0"]
    both.step(1)
    assert both.slurm.commands == [
        "update jobid=4 starttime=now", "update jobid=1 starttime=now", "update jobid=2 starttime=now",
        "update jobid=3 starttime=now nodelist=n2",
    ]  # fmt: skip


def test_a_job_that_excludes_the_nodes_of_its_release_is_placed_by_slurm_from_then_on() -> None:
    both = Both()
    both.slurm.refuses[1000], both.slurm.own["1"] = "BadConstraints", "excludes"
    both.slurm.submit(2)
    both.step(4)
    both.slurm.refuses.clear()
    both.step(int(RETRY_S) + 3)
    assert [one for one in both.slurm.commands if one.startswith("update jobid=1 ")] == [
        "update jobid=1 starttime=now nodelist=n0,n1", f"update jobid=1 starttime=now+{DEFER_S} nodelist=",
        "update jobid=1 starttime=now",
    ]  # fmt: skip


def test_an_edited_job_keeps_its_place_and_a_full_table_is_begun_again() -> None:
    both = Both(2, capacity=64)
    both.slurm.submit(2, 15.0)
    for _ in range(60):
        both.slurm.submit(1, 1.0)
    both.step(3)
    both.slurm.edit("2", width=2)
    both.step()
    assert both.slurm.jobs["2"].row.width == int(both.made._table.jobs.width[both.made.jobs["2"].place])
    both.step(200)
    assert len(both.started()) == 61 and both.started()["2"] == min(both.started()[str(n)] for n in range(2, 62))


def test_a_job_that_slurm_has_refused_keeps_its_place() -> None:
    both = Both(2)
    both.slurm.refuses[1] = "QOSMaxJobsPerUserLimit"
    refused, wide = both.slurm.submit(2, 5.0, uid=1), both.slurm.submit(2, 10.0, uid=2)
    both.step(4)
    assert wide in both.started() and both.phase(refused) == "deferred"
    later = both.slurm.submit(2, 5.0, uid=3)
    both.slurm.refuses.clear()
    both.made.jobs[refused].retry_s = 0.0
    both.step(30)
    assert both.started()[refused] < both.started()[later]


def test_a_policy_that_owns_watts_is_refused() -> None:
    with pytest.raises(WrongUseError, match="watts"):
        Both(policy="easy-power")


class Again:
    """The plain reference, fed with the log of a schedule: ``line`` takes one, and compares what it decides."""

    def __init__(self, lines: list[list[Any]], policy: str) -> None:
        self.policy, self.compared = policy, 0
        count = 1 + max(line[2] if line[0] == "adopt" else line[1] for line in lines if line[0] in ("adopt", "job"))
        number, submit_s, run_s, request_s = (np.zeros(count, np.int64) for _ in range(4))
        width, user = np.zeros(count, np.int32), np.zeros(count, np.int32)
        self.jobs = Jobs(number, submit_s, run_s, request_s, width, user)

    def row(self, place: int, submitted_s: int, limit_s: int, width: int) -> None:
        self.jobs.submit_s[place], self.jobs.width[place] = submitted_s, width
        self.jobs.request_s[place] = self.jobs.run_s[place] = limit_s

    def line(self, what: str, *values: Any) -> None:
        if what == "job":
            place, _, submitted_s, limit_s, width, _ = values
            self.row(place, submitted_s, limit_s, width)
        elif what in ("begin", "submit", "end", "overrun", "pass", "adopt", "withdraw", "requeue"):
            getattr(self, f"_{what}")(*values)
        else:
            assert what in ("command", "running", "found", "gone", "refused")

    def _begin(self, now_s: int, nodes: int) -> None:
        self.made = ReferenceScheduler(registry.choose(self.policy).composed, self.jobs, nodes)

    def _submit(self, now_s: int, place: int, is_pass_due: bool) -> None:
        assert self.made.submit(now_s, place) == is_pass_due

    def _end(self, now_s: int, place: int) -> None:
        self.made.end(place)

    def _overrun(self, now_s: int, place: int, end_s: int) -> None:
        assert self.made.overrun(place) == end_s

    def _pass(self, now_s: int, started: list[list[int]]) -> None:
        decided = [[place, 0, self.made.expected_end_s(place)] for place in self.made.decide(now_s)]
        assert decided == started, f"at {now_s} s"
        self.compared += len(started)

    def _adopt(
        self, now_s: int, place: int, submitted_s: int, began_s: int, limit_s: int, width: int, end_s: int
    ) -> None:
        self.row(place, submitted_s, limit_s, width)
        self.made.running[place] = began_s
        self.made.estimate_s[place] = self.made.first_estimate_s[place] = end_s - began_s

    def _withdraw(self, now_s: int, place: int) -> None:
        if self.made.running.pop(place, None) is None:
            self.made.queue.remove(place)

    def _requeue(self, now_s: int, place: int) -> None:
        self.made.estimate_s[place] = self.made.first_estimate_s[place]
        self.made.queue = sorted([*self.made.queue, place])


def decided_again(log: bytes, policy: str) -> int:
    """How many starts the plain reference has decided as the log of one schedule says; it fails where one differs."""
    lines = [msgspec.json.decode(line) for line in log.splitlines()]
    again = Again(lines, policy)
    for line in lines:
        again.line(*line)
    return again.compared


@pytest.mark.parametrize("policy", ["easy", "fcfs", "easy-sjbf", "conservative", "wfp3"])
def test_decisions_are_those_of_the_plain_reference_fed_with_the_same_events(policy: str) -> None:
    both, rng = Both(8, policy), random.Random(3)
    while len(both.started()) < 80:
        if len(both.slurm.jobs) < 80:
            for _ in range(rng.choice([0, 0, 0, 1])):
                run_s = rng.randint(1, 30)
                both.slurm.submit(rng.choice([1, 1, 2, 3, 5, 8]), run_s, limit_s=run_s + rng.choice([-1, 0, 5, 30]) + 1)
        both.step()
    assert decided_again(both.log.getvalue(), policy) == 80


@pytest.mark.parametrize("seed", range(20))
def test_whatever_happens_no_node_is_given_twice_and_no_job_is_lost(seed: int) -> None:
    rng = random.Random(seed)
    both = Both(rng.randint(2, 6), capacity=256)
    slurm = both.slurm
    for _ in range(60):
        waiting = [key for key, job in slurm.jobs.items() if job.row.state == "PD"]
        running = [key for key, job in slurm.jobs.items() if job.row.state == "R"]
        what = rng.choice(
            ["submit", "submit", "lose", "kill", "down", "up", "refuse", "loose", "requeue", "cancel", "go on"]
        )
        if what == "submit":
            slurm.submit(rng.randint(1, len(slurm.names)), rng.randint(1, 20), rng.randint(1, 3),
                         starts_after_s=rng.choice([0.0, 0.0, 2.0, 16.0]))  # fmt: skip
        elif what == "lose":
            slurm.loses = rng.randint(0, 3)
        elif what == "kill":
            both.made.turn()
            both.restart()
        elif what == "down":
            slurm.out = {rng.choice(slurm.names)} - slurm.busy
        elif what == "up":
            slurm.out = set()
        elif what == "refuse":
            slurm.refuses = rng.choice([{}, {1: "QOSMaxNodePerUserLimit"}])
        elif what == "loose" and waiting:
            slurm.edit(rng.choice(waiting), eligible_s=int(slurm.now_s))
        elif what == "requeue" and running:
            key, now_s = rng.choice(running), int(slurm.now_s)
            restarts = slurm.jobs[key].row.restarts + 1
            slurm.edit(key, state="PD", nodes=(), restarts=restarts, submitted_s=now_s, eligible_s=now_s + DEFER_S)
        elif what == "cancel" and waiting:
            slurm.edit(rng.choice(waiting), state="CA")
        both.step(rng.randint(1, 4))
    slurm.out, slurm.refuses, slurm.loses = set(), {}, 0
    for _ in range(DEFER_S * 2):
        both.step()
        if all(job.row.state != "PD" for job in slurm.jobs.values()):
            break
    assert [key for key, job in slurm.jobs.items() if job.row.state == "PD"] == []
    assert decided_again(both.log.getvalue(), "easy") >= sum(len(job.starts) for job in slurm.jobs.values()) // 2


def line(**changes: str) -> str:
    usual = {
        "JobArrayID": "17_3", "StateCompact": "PD", "EligibleTime": "1796033054", "SubmitTime": "1796032454",
        "StartTime": "N/A", "RestartCnt": "0", "NumNodes": "2-4", "TimeLimit": "1-00:05:00", "UserID": "64034",
        "HetJobID": "N/A", "PriorityLong": "4294901750", "Partition": "all,other", "QOS": "normal",
        "Account": "research", "NodeList": "", "ReqNodes": "", "tres-per-node": "N/A", "Reason": "BeginTime",
        "Dependency": "(null)", "Feature": "(null)",
    } | changes  # fmt: skip
    return "".join(f"{usual[name]}|" for name in COLUMNS)


def test_a_line_of_squeue_is_read_and_one_that_is_none_is_no_job() -> None:
    row = row_of(line())
    assert row is not None and row.may_start and not row.has_nodes and not row.has_wants
    assert (row.key, row.width, row.limit_s, row.partitions) == ("17_3", 2, 86_700, ("all", "other"))
    assert row.order == (1796032454, [17, 3])
    running = row_of(line(StateCompact="R", NodeList="n[01-02]", ReqNodes="n01", TimeLimit="UNLIMITED"))
    assert running is not None and running.has_nodes and running.nodes == ("n01", "n02") and running.requires == "n01"
    wants = row_of(line(Feature="(fast|big)"))
    assert wants is not None and wants.has_wants
    for bad in ("", "17|PD", line(RestartCnt="x"), line(NodeList="n[1-"), line(UserID="")):
        assert row_of(bad) is None
