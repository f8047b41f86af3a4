"""Jobs on made-up nodes: the engine live, and what becomes of jobs when nodes, messages or the agent go."""

from __future__ import annotations

import re
import signal
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from cluster_agent.cluster import Machine, NodeGroup, Topology
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.jobs.admission import check_live
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.jobs.job_table import GrowingJobs
from cluster_agent.jobs.live_jobs import Partition
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.orders.priority import Account, Priority
from cluster_agent.scheduler.policies.registry import choose
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.power_phases import Power
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from foundation.wire.job_messages import JobPart, NodeJobs
from lab.emulated.emulated_jobs import TwinJobs
from tests.cluster_agent.traces import PROCESSORS, compositions, native_starts, traces
from tests.live.fakes import EASY, Fake
from twin.errors import TwinError
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import duration_s

UNSHRUNK = (Phase.explicit, Phase.reuse, Phase.generate)  # a schedule of 20 jobs can be read as it is


def is_live(composition: Composition) -> bool:
    is_drawn = composition.priority is not None and composition.priority.spread > 0  # by the number of a user
    return not is_drawn and composition.estimate != "clairvoyant"


def with_all_users(composition: Composition, jobs: Jobs) -> Composition:
    """A log's users have their shares from the start, live ones from their first job or from a file."""
    if composition.priority is None:
        return composition
    accounts = {user: composition.priority.accounts.get(user, Account()) for user in range(jobs.n_users)}
    return replace(composition, priority=replace(composition.priority, accounts=accounts))


@settings(max_examples=60, phases=UNSHRUNK)
@given(
    jobs=traces(most=20),
    composition=compositions(ties="instant").filter(is_live),
)
def test_the_live_partition_makes_the_schedule_of_the_replay(jobs: Jobs, composition: Composition) -> None:
    composition = with_all_users(composition, jobs)
    expected = native_starts(composition, jobs)
    first_s = 0.0  # as the trace's: what is learned depends on the time of day
    fake = Fake(PROCESSORS, composition, now_s=first_s)
    submitted: list[Job] = []
    starts: dict[int, int] = {}
    fake.settle()
    while len(starts) < len(expected):
        elapsed_s = fake.now_s - first_s
        fake.end_due()
        fake.report()
        while len(submitted) < len(jobs) and jobs.submit_s[len(submitted)] <= elapsed_s:
            row = len(submitted)
            columns = int(jobs.run_s[row]), int(jobs.width[row]), int(jobs.request_s[row]), int(jobs.user[row])
            submitted.append(fake.submit(*columns))
        fake.settle()
        for row, job in enumerate(submitted):
            if row not in starts and job.started_s is not None:
                starts[row] = int(job.started_s - first_s)
        fake.now_s += 1
        assert elapsed_s < 2_000
    assert starts == expected


def test_a_table_serves_more_nodes_than_there_can_be_users_in_it() -> None:
    table = GrowingJobs(capacity=100, users=4)
    assert table.has_room(jobs=3, placeholders=90), "placeholders of nodes that are away have no user"
    assert not table.has_room(jobs=3, placeholders=97), "rows are short"
    for uid in (7, 8, 9):
        table.add(1, uid, 0, 1, 1)
    assert table.has_room(jobs=0, placeholders=90) and not table.has_room(jobs=1, placeholders=0)


def test_a_table_that_is_full_is_replaced_under_way_and_no_job_is_disturbed() -> None:
    fake = Fake(3, capacity=8)
    jobs = [fake.submit(run_s=2 + i % 5, nodes=1 + i % 2) for i in range(60)]
    fake.until(lambda: all(job.state == "done" for job in jobs))
    assert all(job.attempt == 1 for job in jobs)


def test_a_job_runs_on_all_its_nodes_and_ends_when_the_last_has_ended() -> None:
    fake = Fake(4)
    job = fake.submit(run_s=5, nodes=3)
    fake.settle()
    assert (job.state, job.nodes) == ("running", ["n00", "n01", "n02"])
    fake.end(fake.nodes["n00"], (job.id, 1))
    fake.step()
    assert job.state == "ending"
    fake.until(lambda: job.state == "done")
    assert job.account.node_s == pytest.approx(10.0)


def test_a_node_gets_no_other_job_before_the_job_that_has_it_is_recorded_as_ended() -> None:
    """Not even if its own part is over and the scheduler has room elsewhere."""
    fake = Fake(3)
    wide = fake.submit(run_s=5, nodes=2, others_s=(8,))
    fake.settle()
    fake.step(6)
    assert (wide.state, wide.nodes) == ("ending", ["n00", "n01"])
    later, last = fake.submit(run_s=30), fake.submit(run_s=30)
    fake.step(0.93)
    assert (later.state, later.nodes, last.state) == ("running", ["n02"], "queued")
    fake.until(lambda: last.state == "running")
    assert last.started_s is not None and wide.ended_s is not None
    assert (last.nodes, last.started_s >= wide.ended_s) == (["n00"], True)


def test_a_part_that_fails_ends_the_job_on_its_other_nodes() -> None:
    fake = Fake(2)
    job = fake.submit(run_s=500, nodes=2)
    fake.settle()
    fake.end(fake.nodes["n01"], (job.id, 1), status=3)
    fake.until(lambda: job.state == "failed")
    assert job.status == 3


def test_a_node_that_fell_silent_and_rebooted_loses_its_job_which_runs_again_once() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=50)
    fake.settle()
    for attempt in (2, 2):
        fake.nodes["n00"].reboot()
        fake.step()
        assert job.attempt == attempt
    assert job.state == "lost"
    assert "n00" in job.reason


def test_a_job_that_is_not_to_be_queued_again_is_lost_with_its_node() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=50, requeue=False)
    fake.settle()
    fake.nodes["n00"].reboot()
    fake.step()
    assert (job.state, job.attempt) == ("lost", 1)


def test_a_node_cut_off_for_a_while_is_down_and_its_job_goes_on() -> None:
    fake = Fake(2)
    job, other = fake.submit(run_s=100), None
    fake.settle()
    fake.nodes["n00"].is_cut = True
    for _ in range(20):
        fake.step()
    assert fake.partition.nodes["n00"].state == "down" and not fake.partition.nodes["n00"].may_be_silent
    fake.partition.drain("n00", "a fan")
    assert fake.partition.nodes["n00"].state == "drained" and fake.partition.nodes["n00"].may_be_silent
    fake.partition.resume("n00")
    other = fake.submit(run_s=1, nodes=2)
    fake.step(5)
    assert other.state == "queued"  # the node that is down is not counted on
    fake.nodes["n00"].is_cut = False
    fake.until(lambda: other.state == "done")
    assert (job.state, job.attempt, job.losses) == ("done", 1, 0)


def test_a_job_on_a_node_that_stays_silent_is_given_up_and_its_remains_are_killed_when_it_returns() -> None:
    fake = Fake(2)
    job = fake.submit(run_s=600)
    fake.settle()
    fake.nodes["n00"].is_cut = True
    fake.until(lambda: job.attempt == 2)
    assert job.nodes == ["n01"]
    fake.nodes["n00"].is_cut = False
    fake.step()
    assert fake.nodes["n00"].parts == {}
    assert fake.nodes["n00"].runs == [(job.id, 1)]
    fake.until(lambda: job.state == "done")


def test_an_agent_that_was_stopped_for_long_blames_no_node_for_the_silence() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=5000, walltime_s=9000)
    fake.settle()
    fake.now_s += 1000
    fake.partition.turn()  # before a report has been read
    assert (fake.partition.nodes["n00"].state, job.state, job.attempt) == ("allocated", "running", 1)


def test_a_drained_node_finishes_its_job_and_gets_no_other_until_it_is_resumed() -> None:
    fake = Fake(1)
    first, second = fake.submit(run_s=5), fake.submit(run_s=5)
    fake.settle()
    fake.partition.drain("n00", "fan", 0)
    fake.step(30)
    assert (first.state, second.state) == ("done", "queued")
    fake.kill_and_restart()
    fake.step()
    assert (fake.partition.nodes["n00"].state, fake.partition.nodes["n00"].drained) == ("draining", "fan")
    fake.partition.resume("n00")
    fake.until(lambda: not fake.partition.jobs)


def test_a_node_that_hears_but_does_not_start_a_job_is_drained_and_the_job_goes_elsewhere() -> None:
    fake = Fake(2)
    fake.nodes["n00"].is_cut = True
    job = fake.submit(run_s=5)
    fake.partition.turn()
    for _ in range(70):  # it speaks, but messages to it do not arrive
        fake.now_s += 1
        fake.deliver()
        fake.nodes["n00"].is_cut = False
        fake.report()
        fake.nodes["n00"].is_cut = True
        fake.partition.turn()
    assert fake.partition.nodes["n00"].state == "draining"
    assert job.nodes == ["n01"]


def test_a_waiting_job_that_is_cancelled_makes_way_for_those_behind_it() -> None:
    fake = Fake(2)
    fake.submit(run_s=100)
    wide, narrow = fake.submit(run_s=10, nodes=2), fake.submit(run_s=200, walltime_s=5000)
    fake.settle()
    assert narrow.state == "queued"
    fake.partition.cancel(wide)
    fake.settle()
    assert (wide.state, narrow.state) == ("cancelled", "running")


def test_a_running_job_that_is_cancelled_ends_as_cancelled() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=100)
    fake.settle()
    fake.partition.cancel(job)
    assert job.state == "ending"
    fake.settle()
    assert (job.state, job.status) == ("cancelled", -15)


def test_a_job_queued_again_by_hand_runs_from_its_start() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=10)
    fake.settle()
    fake.partition.requeue(job)
    fake.until(lambda: job.state == "done")
    assert job.attempt == 2
    fake.partition.requeue(job)
    fake.until(lambda: job.state == "done")
    assert job.attempt == 3


def test_a_job_that_is_being_ended_to_run_again_can_still_be_cancelled() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=10)
    fake.settle()
    fake.partition.requeue(job)
    fake.partition.cancel(job)
    fake.settle()
    assert (job.state, job.attempt) == ("cancelled", 1)


def test_a_node_that_was_drained_before_it_came_into_the_partition_stays_so() -> None:
    fake = Fake(1)
    fake.store.drain("n9", "its fan", 0)
    fake.partition.take_in(["n9"])
    assert fake.partition.nodes["n9"].drained == "its fan"


@settings(max_examples=25)
@given(data=st.data())
def test_killed_and_restarted_at_any_instant_no_job_is_lost_or_run_twice(data: st.DataObject) -> None:
    fake = Fake(4)
    jobs: dict[int, JobSpec] = {}
    for _ in range(60):
        what = data.draw(st.sampled_from(["submit", "turn", "deliver", "step", "kill", "settle"]))
        if what == "submit":
            times_s = data.draw(st.lists(st.integers(1, 8), min_size=1, max_size=4))
            job = fake.submit(times_s[0], data.draw(st.integers(1, 4)), others_s=times_s[1:])
            jobs[job.id] = job.spec
        elif what == "turn":
            fake.partition.turn()
        elif what == "deliver":
            fake.deliver()
        elif what == "kill":
            fake.kill_and_restart()
        elif what == "step":
            fake.step()
        else:
            fake.settle()
    fake.until(lambda: not fake.partition.jobs)
    ended = {job.id: job for job in fake.store.find()}
    assert {number: job.state for number, job in ended.items()} == dict.fromkeys(jobs, "done")
    runs = [key for node in fake.nodes.values() for key in node.runs]
    assert sorted(runs) == sorted((number, 1) for number, spec in jobs.items() for _ in range(spec.nodes))


@pytest.mark.parametrize("is_orderly", [True, False])
def test_a_restart_leaves_a_job_alone_one_of_whose_parts_has_ended(is_orderly: bool) -> None:
    fake = Fake(3)
    job = fake.submit(run_s=3, nodes=3, others_s=(3, 60))
    fake.until(lambda: job.state == "ending")
    fake.step()
    if is_orderly:
        fake.partition.runs.save()
    fake.kill_and_restart()
    for _ in range(5):
        fake.step()
    assert job.id in fake.partition.jobs, "its last part goes on"
    assert fake.partition.nodes["n00"].state == "allocated", "and until then its nodes are its own"
    other = fake.submit(run_s=1)
    fake.until(lambda: not fake.partition.jobs)
    found = {one.id: (one.state, one.status, one.attempt) for one in fake.store.find()}
    assert found == {job.id: ("done", 0, 1), other.id: ("done", 0, 1)}


def test_after_a_restart_a_job_is_ended_whose_part_has_failed_before_it() -> None:
    fake = Fake(2)
    job = fake.submit(run_s=500, nodes=2)
    fake.settle()
    fake.end(fake.nodes["n01"], (job.id, 1), status=3)
    fake.nodes["n00"].is_cut = True
    fake.step()
    fake.kill_and_restart()
    fake.nodes["n00"].is_cut = False
    fake.until(lambda: not fake.partition.jobs)
    (found,) = fake.store.find()
    assert (found.state, found.status, found.attempt) == ("failed", 3, 1)


def test_a_job_stored_by_a_version_that_did_not_store_ends_is_not_ended_by_the_upgrade() -> None:
    fake = Fake(2)
    job = fake.submit(run_s=3, nodes=2, others_s=(30,))
    fake.until(lambda: job.state == "ending")
    fake.step()
    job.parts.clear()
    fake.store.save(job)
    fake.kill_and_restart()
    fake.until(lambda: not fake.partition.jobs)
    (found,) = fake.store.find()
    assert (found.state, found.status, found.attempt) == ("done", 0, 1)


def test_energy_is_summed_from_reports_by_their_quality_and_what_is_not_covered_is_known() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=10)
    fake.settle()
    for i in range(10):
        fake.now_s += 1
        if i < 8:
            fake.partition.add_power("n00", 200_000, "measured" if i < 6 else "estimated", 250_000, "cap")
    fake.step(0)
    assert job.state == "done"
    assert job.account.energy_j == {"measured": 1200.0, "estimated": 400.0}
    assert (job.account.node_s, job.account.covered_s) == (10.0, 8.0)
    assert (job.account.cap_j, job.account.capped_s, job.account.bound_s) == (2000.0, 8.0, {"cap": 8.0})


@pytest.mark.parametrize("ahead_s", [-86_400.0, -30.0, -3.0, 0.0, 3.0, 30.0, 86_400.0])
def test_a_node_whose_clock_differs_has_the_same_record_of_its_job(ahead_s: float) -> None:
    """200 W from the start to the end, and two reports between the end and the one that says so: 250 W of idling."""
    fake = Fake(1)
    fake.nodes["n00"].ahead_s = ahead_s
    job = fake.submit(run_s=10)
    fake.settle()
    for second in range(12):
        fake.now_s += 1
        if second == 9:
            fake.end(fake.nodes["n00"], (job.id, 1))  # and its report is on its way for two seconds
        fake.partition.add_power("n00", 200_000 if second < 10 else 250_000, "measured", 300_000, "cap")
    fake.step(0)
    assert job.state == "done"
    assert job.account.energy_j["measured"] == pytest.approx(2000.0)
    assert (job.account.node_s, job.account.covered_s) == (10.0, 10.0)
    assert (job.account.cap_j, job.account.capped_s) == (3000.0, 10.0)


def test_impossible_jobs_are_refused_with_the_reason() -> None:
    fake = Fake(2)
    with pytest.raises(WrongUseError, match="3 nodes requested, but the partition has 2"):
        fake.submit(1, nodes=3)
    with pytest.raises(WrongUseError, match="nearest: MEMORY"):
        fake.submit(1, tag="memroy")


def test_policies_that_need_a_replay_are_refused_live() -> None:
    for composition, reason in (
        (Composition(estimate="clairvoyant"), "estimate=clairvoyant needs run times in advance, and a live partition"),
        (Composition(ties="sc15"), "ties=sc15 needs processors that are free before their job has ended"),
        (Composition(power=Power()), "a policy that knows watts needs watts, and a live partition without `machine`"),
    ):
        with pytest.raises(WrongUseError, match=reason):
            check_live(composition)


def test_a_job_that_cannot_be_stored_is_not_accepted(tmp_path: Path) -> None:
    database = Database(tmp_path / "cluster.db")
    partition = Partition(["n00"], EASY, JobStore(database), lambda: 0.0)
    pages = database.rows("PRAGMA page_count")[0][0]
    database.rows(f"PRAGMA max_page_count = {pages}")  # as a full disk
    with pytest.raises(ClusterError, match="full"):
        for _ in range(100):
            partition.submit(0, "root", JobSpec(["x" * 4000], 10, "/"))
    assert len(partition.jobs) == len(JobStore(database).find())


@pytest.mark.parametrize("body", [b'{"id": 1, "ended_s": "never"}', b"\xff\x00", b""])
def test_a_damaged_record_of_a_job_is_left_out_and_reported_once(tmp_path: Path, body: bytes) -> None:
    database, said = Database(tmp_path / "cluster.db"), []
    before = Partition(["n00"], EASY, JobStore(database), lambda: 0.0)
    kept = [before.submit(0, "root", JobSpec(["true"], 10, "/")).id for _ in range(3)]
    database.rows("UPDATE job SET body = ? WHERE id = ?", (body, kept.pop(1)))
    store = JobStore(database, said.append)
    assert list(Partition(["n00"], EASY, store, lambda: 0.0).jobs) == kept == [job.id for job in store.find()]
    assert [line.partition(": its record in ")[0] for line in said] == ["ALARM: job 2 is left out"]
    assert database.rows("SELECT body FROM job WHERE id = 2") == [(body,)], "for whoever repairs it"


def test_a_node_cannot_account_for_more_time_than_has_passed() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=5, nodes=1, walltime_s=50)
    fake.settle()
    began_s = fake.now_s
    (node,) = fake.nodes.values()
    (key,) = node.parts
    fake.now_s += 3.0
    node.parts[key] = JobPart(*key, "ended", started_s=1.0, ended_s=9e10)
    fake.report()
    fake.settle()
    assert (job.state, job.account.node_s) == ("done", fake.now_s - began_s)


def test_a_job_that_waits_says_for_what() -> None:
    fake = Fake(4)
    running = fake.submit(run_s=100, nodes=3, walltime_s=200)
    fake.settle()
    wide, long, narrow = (
        fake.submit(run_s=5, nodes=nodes, walltime_s=walltime_s) for nodes, walltime_s in ((4, 50), (1, 1000), (2, 50))
    )
    fake.settle()
    end = datetime.fromtimestamp(fake.now_s + 200).strftime("%H:%M:%S")
    assert fake.partition.why_waiting() == {
        wide.id: f"first in the queue: needs 4 nodes, and 1 is idle; enough by {end} at the latest, when job "
        f"{running.id} is to have ended",
        long.id: f"number 2 in the queue, behind job {wide.id}: needs 1 node, and 1 is idle, kept for those before it",
        narrow.id: f"number 3 in the queue, behind job {long.id}: needs 2 nodes, and 1 is idle",
    }
    fake.until(lambda: narrow.state == "done")
    assert fake.partition.why_waiting() == {}


def test_a_job_that_waits_for_nodes_that_get_none_says_so() -> None:
    fake = Fake(3)
    fake.partition.drain("n00", "a fan", 0)
    fake.nodes["n01"].is_cut = True
    fake.until(lambda: not fake.partition.nodes["n01"].is_up)
    job = fake.submit(run_s=5, nodes=3)
    fake.settle()
    assert fake.partition.why_waiting()[job.id] == (
        "first in the queue: needs 3 nodes, and 1 is idle; 2 of the missing nodes cannot get a job (1 down, 1 draining)"
    )


def test_the_queues_order_is_the_policys() -> None:
    fake = Fake(1, choose("wfp3").composition)
    fake.submit(run_s=100)
    fake.settle()
    slow, quick = fake.submit(run_s=5, walltime_s=1000), fake.submit(run_s=5, walltime_s=10)
    fake.settle()
    fake.now_s += 10.0
    fake.submit(run_s=5)
    fake.settle()
    why = fake.partition.why_waiting()
    assert why[quick.id].startswith("first") and why[slow.id].startswith(
        f"number 2 in the queue, behind job {quick.id}"
    )


def test_a_node_without_jobs_is_there_while_it_reports_and_not_for_ever() -> None:
    fake = Fake(1)
    node = fake.partition.nodes["n00"]
    fake.nodes["n00"].is_cut = True  # it says nothing of jobs any more
    for second in range(40):
        fake.partition.spoke("n00", "boot1")
        fake.step()
        assert node.is_up == (second < 12 + 15), "12 s that its reports do for, and then 15 s"


def test_a_job_that_no_node_runs_is_refused_when_it_is_submitted() -> None:
    fake = Fake(3)
    for name in ("n00", "n01"):
        fake.partition.heard(NodeJobs(name, "boot1", [], runs_only="twin-workload"))
    fake.submit(run_s=5, nodes=1)  # n02 runs it
    for asked in ({"nodes": 2}, {"nodes": 3, "prolog": "true"}):
        with pytest.raises(WrongUseError, match=r"n00 and 1 more: emulated nodes run only `twin-workload NAME TIME"):
            fake.submit(run_s=5, **asked)
    spec = JobSpec(command=["twin-workload", "hpl", "60s"], walltime_s=100, workdir="/", nodes=2)
    assert fake.partition.submit(1000, "someone", spec).state == "queued"
    with pytest.raises(WrongUseError, match="3 nodes requested, but only 2 emulated ones run `twin-workload`"):
        fake.partition.submit(1000, "someone", msgspec.structs.replace(spec, nodes=3))


def test_a_job_of_a_user_whom_no_node_serves_is_refused_when_it_is_submitted() -> None:
    fake = Fake(3)
    for name in ("n00", "n01"):
        fake.partition.heard(NodeJobs(name, "boot1", [], runs_uid=4711))
    assert fake.submit(run_s=5, nodes=1, uid=1000).state == "queued", "n02 has not said whose jobs it runs"
    with pytest.raises(WrongUseError, match=r"n00 and 1 more run only jobs of uid 4711, not of someone \(uid 1000\)"):
        fake.submit(run_s=5, nodes=2, uid=1000)
    assert fake.submit(run_s=5, nodes=2, uid=4711).state == "queued"
    spec = JobSpec(command=["true"], walltime_s=100, workdir="/", nodes=1)
    with pytest.raises(WrongUseError, match=r"n00 runs only jobs of uid 4711, not of root \(uid 0\)"):
        fake.partition.submit(0, "root", spec, ["n00"], True)


def test_a_job_that_was_accepted_before_its_nodes_were_heard_waits_and_is_sent_to_none_that_would_refuse_it() -> None:
    fake = Fake(2)
    job = fake.submit(run_s=5, nodes=1, uid=1000)
    for name in ("n00", "n01"):
        fake.partition.heard(NodeJobs(name, "boot1", [], runs_uid=4711))
    fake.partition.turn()
    fake.partition.turn()
    assert job.state == "queued" and fake.partition.outbox == []


def test_among_emulated_nodes_a_job_waits_for_a_node_that_runs_it() -> None:
    fake = Fake(3)
    fake.emulated = {"n00", "n01"}
    fake.report()
    first, second = (fake.submit(run_s=5) for _ in range(2))
    fake.settle()
    assert (first.nodes, second.state) == (["n02"], "queued")
    assert fake.partition.why_waiting()[second.id] == "needs 1 nodes that run such a job, and 0 of those are idle"
    for _ in range(8):
        fake.step()
    assert (first.state, second.state, second.nodes) == ("done", "running", ["n02"])
    third = fake.submit(run_s=5)
    fake.settle()
    fake.partition.cancel(third)
    spec = JobSpec(command=["twin-workload", "3", "60s"], walltime_s=100, workdir="/", nodes=2)
    emulated = fake.partition.submit(1000, "someone", spec)
    fake.settle()
    assert (third.state, emulated.nodes) == ("cancelled", ["n00", "n01"]), "and emulated work for emulated nodes"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("hlp 60s", "n00 and 1 more cannot run a workload 'hlp' (nearest: hpl)"),
        ("hpl 60x", "'60x' is not a time above 0 such as 30s or 2min"),
        ("hpl 0s", "'0s' is not a time above 0"),
        ("hpl 60s 1parsec", "'1parsec' is not a time above 0"),
        ("hpl", "twin-workload hpl: emulated nodes run `twin-workload NAME TIME [UNIT]`, e.g. "),
        ("hpcg 60s", "cannot run a workload 'hpcg'"),
    ],
)
def test_emulated_work_with_a_wrong_name_or_time_is_refused_when_it_is_submitted(words: str, said: str) -> None:
    fake = Fake(2)
    for name in ("n00", "n01"):
        runs = TwinJobs(Twin(load_machine("curie")), name).runs_names
        fake.partition.heard(NodeJobs(name, "boot1", [], "twin-workload", runs))

    def submit(words: str) -> str:
        spec = JobSpec(command=["twin-workload", *words.split()], walltime_s=100, workdir="/", nodes=2)
        return fake.partition.submit(1000, "someone", spec).state

    with pytest.raises(WrongUseError, match=re.escape(said)):
        submit(words)
    for fine in ("hpl 60s", "stream .5min 50ms", "mixed-cpu:7 60", "trace:/a/b.csv 1h"):
        assert submit(fine) == "queued"


def test_a_time_is_one_when_work_is_submitted_if_it_is_one_to_the_emulated_node() -> None:
    fake = Fake(1)
    fake.partition.heard(NodeJobs("n00", "boot1", [], "twin-workload", ["hpl"]))

    def is_taken(text: str) -> bool:
        spec = JobSpec(command=["twin-workload", "hpl", text], walltime_s=100, workdir="/", nodes=1)
        try:
            return fake.partition.submit(1000, "someone", spec).state == "queued"
        except WrongUseError:
            return False

    def is_run(text: str) -> bool:
        try:
            return duration_s(text) > 0
        except TwinError:
            return False

    times = ("30s", ".5min", "2.h", "60", " 5 ms ", "0s", "0.0", "5 m", "-1s", "1e3s", "5S", "s", ".", "5us", "nan")
    assert [is_taken(text) for text in times] == [is_run(text) for text in times] == [True] * 5 + [False] * 10


def fair_share(**given: Any) -> Composition:
    return Composition(backfill="easy", priority=Priority(half_life_s=1000.0, **given))


def who_is_first(fake: Fake, uids: tuple[int, int], is_restarted: bool) -> int:
    """Of two users whose jobs wait for the one node."""
    before = fake.submit(run_s=5, uid=3)
    fake.settle()
    for uid in uids:
        fake.submit(run_s=5, uid=uid)
    if is_restarted:
        fake.kill_and_restart()
        fake.report()
    fake.until(lambda: before.id not in fake.partition.jobs)
    (first,) = [job.uid for job in fake.partition.jobs.values() if job.state == "running"]
    fake.until(lambda: not fake.partition.jobs)
    return first


def test_who_has_used_less_is_served_first_also_after_a_restart_and_with_users_who_come_later() -> None:
    fake = Fake(1, fair_share())
    fake.submit(run_s=100, uid=1)
    fake.until(lambda: not fake.partition.jobs)
    assert who_is_first(fake, (1, 2), False) == 2
    assert who_is_first(fake, (1, 2), True) == 2


def test_energy_fair_share_goes_by_the_joules_that_nodes_have_metered() -> None:
    node = NodeGroup(1, 1, frequency_mhz=(2000,), busy_w=(400.0,), idle_w=100.0)
    fake = Fake(1, fair_share(cpu=0.0, energy=1.0), machine=Machine("one", (node,), Topology(), {}))
    for uid, power_w in ((1, 390), (2, 130)):
        job = fake.submit(run_s=60, uid=uid)
        fake.settle()
        while job.id in fake.partition.jobs:
            fake.partition.add_power("n00", power_w * 1000, "measured")
            fake.step()
        assert job.account.joules == pytest.approx(60 * power_w, rel=0.1)
    assert who_is_first(fake, (1, 2), False) == 2, "of as many processor-seconds fewer joules"
    assert who_is_first(fake, (1, 2), True) == 2


def test_a_job_on_a_node_that_was_given_up_starts_again_only_when_its_first_run_is_known_to_be_gone() -> None:
    fake = Fake(2)
    job = fake.submit(run_s=3000, walltime_s=4000)
    fake.settle()
    first = fake.nodes["n00"]
    first.is_cut = True
    fake.until(lambda: job.losses == 1)
    fake.step(60)
    assert (job.state, job.nodes) == ("queued", [])
    assert "until n00 no longer runs it" in fake.partition.why_waiting()[job.id]
    fake.kill_and_restart()
    fake.step(60)
    job = fake.partition.jobs[job.id]
    assert job.state == "queued", "the restart has not forgotten it"
    first.is_cut = False
    fake.report()
    assert fake.partition.nodes["n00"].state == "draining", "what is left there is being killed"
    assert not fake.partition.nodes["n00"].may_start
    fake.until(lambda: job.state == "running", most_s=20)
    assert (first.parts.keys(), job.attempt) == ({(job.id, 2)} & first.parts.keys(), 2)


@pytest.mark.parametrize("how", ["reboot", "by hand", "walltime", "off"])
def test_what_else_makes_known_that_a_job_that_was_given_up_runs_nowhere(how: str) -> None:
    fake = Fake(2)
    job = fake.submit(run_s=400, walltime_s=500)
    fake.settle()
    fake.nodes["n00"].is_cut = True
    fake.until(lambda: job.losses == 1)
    assert job.state == "queued"
    if how == "reboot":
        fake.nodes["n00"].reboot()
        fake.nodes["n00"].is_cut = False
    elif how == "by hand":
        fake.partition.requeue(job)
    elif how == "off":
        fake.partition.no_longer_runs("n00")
    fake.until(lambda: job.attempt == 2, most_s=700 if how == "walltime" else 5)


def test_no_job_is_started_where_one_that_was_given_up_still_runs() -> None:
    fake = Fake(1)
    job = fake.submit(run_s=9000, walltime_s=9000, requeue=False)
    fake.settle()
    node = fake.nodes["n00"]
    node.is_cut = True
    fake.until(lambda: job.state == "lost")
    node.is_cut, node.is_deaf = False, True
    second = fake.submit(run_s=1)
    fake.step(30)
    assert (second.state, fake.partition.nodes["n00"].state) == ("queued", "draining")
    assert f"job {job.id}" in fake.partition.nodes["n00"].gets_none
    node.is_deaf = False
    fake.until(lambda: second.state == "done", most_s=20)


def test_a_node_that_says_why_it_starts_no_job_gets_none() -> None:
    fake = Fake(1)
    fake.partition.heard(NodeJobs("n00", "boot1", [], refuses="no user"))
    job = fake.submit(run_s=1)
    fake.partition.turn()
    assert (job.state, fake.partition.nodes["n00"].gets_none) == ("queued", "no user")
    fake.until(lambda: job.state == "done", most_s=20)


@pytest.mark.parametrize("by", ["walltime", "cancel"])
def test_a_job_that_does_not_end_in_time_is_an_alarm_and_its_node_stays_its_own(by: str) -> None:
    fake = Fake(1)
    job = fake.submit(run_s=9000, walltime_s=100 if by == "walltime" else 5000, grace_s=5)
    fake.settle()
    node = fake.nodes["n00"]
    node.is_deaf = True
    second = fake.submit(run_s=1)
    fake.step()
    if by == "cancel":
        fake.partition.cancel(job)
    assert not fake.partition.alarm
    fake.until(lambda: fake.partition.alarm, most_s=130)
    assert f"job {job.id} has not ended on n00" in fake.partition.alarm
    for _ in range(60):
        fake.step()
    assert (second.state, job.id in fake.partition.jobs) == ("queued", True)
    assert signal.SIGKILL in node.signals
    node.is_deaf = False
    fake.until(lambda: second.state == "done", most_s=20)
    assert not fake.partition.alarm
