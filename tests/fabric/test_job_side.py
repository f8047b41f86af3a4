"""The jobs' half of the cluster agent without processes: what it asks, refuses and survives; time is made up."""

from __future__ import annotations

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

from cluster_agent.budget.kept_counts import DeposedError
from cluster_agent.budget.sharers.rates import Learned
from cluster_agent.budget.sharers.speed import SpeedModel
from cluster_agent.budget.sharers.view import Tag
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.people import NOBODY, PROTOCOL, Caller, answer
from cluster_agent.serve.config import JobSettings
from cluster_agent.serve.job_requests import REQUESTS, JobRequests, no_jobs
from cluster_agent.serve.job_service import STORE_RETRY_S, JobService
from cluster_agent.serve.people_protocol import Cancel, JobRow, ListJobs, Requeue, ShowJob, Submit
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from foundation.wire.job_messages import (
    JobPart,
    JobQuery,
    JobStart,
    NodeJobs,
    PartEnergy,
)
from tests.fabric.job_side import EVE, ROOT_USER, Side
from tests.waiting import PATIENCE_S


def test_nodes_that_report_are_queried_for_their_jobs_until_they_answer(tmp_path):
    made = Side(tmp_path)
    made.silent = {"n1"}
    made.speak()
    assert [name for name, one in made.sent if isinstance(one, JobQuery)] == ["n0", "n1"]
    made.sent.clear()
    made.speak()
    assert [name for name, one in made.sent if isinstance(one, JobQuery)] == ["n1"]
    assert made.side.node_states(["n0"])[0] == ("idle", "", "")
    assert made.side.node_states(["n1"])[0][2] == "no report yet", "of its jobs, so soon after its first report"
    for _ in range(8):
        made.speak()
    state, _, why = made.side.node_states(["n1"])[0]
    assert (state, why) == ("down", "its agent runs no jobs (`jobs = true` in its [cluster])")


def test_nodes_are_not_heard_yet_just_after_a_start_and_unheard_of_later(tmp_path):
    made = Side(tmp_path)
    assert made.side.node_states(["n0"])[0] == ("down", "", "no report yet")
    made.now_s += 16.0
    assert made.side.node_states(["n0"])[0][2] == "it does not report"


def test_a_node_of_an_older_protocol_gets_no_message_and_counts_as_one_that_runs_no_jobs(tmp_path):
    made = Side(tmp_path)
    made.older = {"n0"}
    made.speak()
    made.submit()
    made.speak()
    assert {name for name, _ in made.sent} == {"n1"}
    assert made.side.node_states(["n0"])[0] == ("down", "", "its agent is too old to run jobs")
    made.now_s += 100.0
    assert made.side.node_states(["n0"])[0][2] == "it does not report"


def test_a_full_disk_accepts_no_job_starts_none_and_ends_with_it_all_as_it_was_stored(tmp_path):
    made = Side(tmp_path)
    made.speak()
    running, waiting = made.submit(nodes=2), made.submit()
    made.speak()
    made.speak()
    pages = made.database.rows("PRAGMA page_count")[0][0]
    made.database.rows(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(ClusterError, match="full"):
        for _ in range(100):
            made.submit(name="x" * 90, env={"A": "x" * 3000})
    stored = {job.id: job.state for job in made.store.find()}
    assert "full" in made.database.trouble and not made.side.is_open
    assert made.said == [], "the partition's alarm speaks of the disk, once for all"
    with pytest.raises(ClusterError, match="no other request about jobs works"):
        made.ask[Cancel](ROOT_USER, Cancel([waiting]))
    assert made.ask[ListJobs](EVE, ListJobs(everything=True))
    made.sent.clear()
    made.speak()
    assert made.sent == [], "nothing is started that could not be written down"
    made.database.rows("PRAGMA max_page_count = 1000000")
    made.now_s += STORE_RETRY_S
    made.speak()
    made.speak()
    assert made.database.trouble == "" and made.said == []
    assert {number: job.state for number, job in made.side.live.jobs.items()} == stored
    assert (stored[running], stored[waiting]) == ("running", "queued")


def test_who_has_lost_the_epoch_starts_no_job(tmp_path):
    made = Side(tmp_path)
    made.store.own()
    made.speak()
    made.submit()
    JobStore(Database(tmp_path / "a.db")).own()
    with pytest.raises(DeposedError, match="another cluster agent has taken over"):
        made.speak()
    assert not any(isinstance(one, JobStart) for _, one in made.sent)


def test_a_jobs_record_says_what_it_drew_how_well_that_is_known_and_what_bound_it(tmp_path):
    made = Side(tmp_path, 1)
    made.speak()
    job = made.submit()
    made.speak()
    made.speak()
    for _ in range(10):
        made.speak(power_mw=300_000, asked_mw=300_000, quality="measured")
    for _ in range(10):
        made.speak(power_mw=200_000, asked_mw=300_000, quality="estimated")
    (part,) = made.parts["n0"]
    made.parts["n0"] = [msgspec.structs.replace(part, phase="ended", ended_s=made.now_s)]
    made.speak(power_mw=100_000)
    found, _ = made.ask[ShowJob](ROOT_USER, ShowJob(job))
    assert found.state == "done"
    assert found.energy_j == pytest.approx(300.0 * 10 + 200.0 * 10 + 250.0, abs=1.0)  # 250 W: the report's default
    assert (found.measured, found.covered) == (pytest.approx(3000 / 5250, abs=0.01), pytest.approx(1.0, abs=0.05))
    assert (found.cap_w, found.bound_by) == (pytest.approx(300.0), "fspc: static")
    assert found.bound == pytest.approx(10 / 21, abs=0.05)
    assert (found.slowdown, found.slowdown_from) == (pytest.approx(0.25), "predicted by the sharer")


def test_nodes_energy_counters_count_rather_than_the_power_of_an_instant(tmp_path):
    made = Side(tmp_path, 1)
    made.speak()
    job = made.submit()
    made.speak()
    for n in range(1, 11):
        made.speak(power_mw=400_000, energy_mj=100_000 * n, quality="measured")  # 100 J in each second
    found, _ = made.ask[ShowJob](ROOT_USER, ShowJob(job))
    assert found.energy_j == pytest.approx(400.0 + 9 * 100.0)  # before the first reading there is nothing to subtract


def test_the_joules_of_a_running_job_do_not_go_back_when_the_cluster_agent_restarts(tmp_path):
    made = Side(tmp_path, 1)
    made.speak()
    job = made.submit()
    for _ in range(5):
        made.speak(power_mw=300_000, quality="measured")

    def joules(side: JobService) -> float:
        return JobRequests(side).handlers[ShowJob](ROOT_USER, ShowJob(job))[0].energy_j

    before_j = joules(made.side)
    assert before_j > 0
    made.side.close()
    again = JobService(JobSettings(), made.store, made.parts, made._send, lambda name: True, now=lambda: made.now_s)
    assert joules(again) == before_j


class Metered(Side):
    """Nodes that draw 300 W each and count what they draw for their job, whether or not anybody hears it."""

    def count(self, seconds: float, **changes: Any) -> None:
        """The time passes, and nothing arrives."""
        self.now_s += seconds
        for name, parts in self.parts.items():
            self.parts[name] = [self._counted(part, seconds, **changes) for part in parts]

    def _counted(self, part: JobPart, seconds: float, **changes: Any) -> JobPart:
        before = part.energy or PartEnergy()
        if part.is_over:
            return part
        now = PartEnergy(
            before.measured_mj + round(300_000 * seconds), metered_ms=before.metered_ms + round(1000 * seconds)
        )
        return msgspec.structs.replace(part, energy=now, **changes)

    def speak(self, **given: Any) -> None:
        self.count(1.0)
        self.now_s -= 1.0
        super().speak(power_mw=300_000, quality="measured", **given)

    def row(self, job: int) -> JobRow:
        return self.ask[ShowJob](ROOT_USER, ShowJob(job))[0]

    def killed(self) -> None:
        """The cluster agent is killed, and the next one starts from what is on the disk."""
        self.database.close()
        self.database = Database(Path(self.database.path))
        self.store = JobStore(self.database)
        self.side = JobService(
            JobSettings(), self.store, self.parts, self._send, lambda name: True, self.said.append, lambda: self.now_s
        )
        self.ask = JobRequests(self.side).handlers


def begun(tmp_path: Path, nodes: int = 2) -> tuple[Metered, int]:
    made = Metered(tmp_path, nodes)
    made.speak()
    job = made.submit(nodes=nodes)
    for _ in range(5):
        made.speak()
    return made, job


def drew_j(made: Metered) -> float:
    return sum(part.energy.measured_mj for parts in made.parts.values() for part in parts if part.energy) / 1e3


def test_what_a_job_draws_while_nobody_hears_its_nodes_is_counted_when_they_are_heard_again(tmp_path):
    made, job = begun(tmp_path)
    assert made.row(job).energy_j == pytest.approx(drew_j(made)) and drew_j(made) > 0
    made.count(18.0)
    made.speak()
    assert made.row(job).energy_j == pytest.approx(drew_j(made))
    assert drew_j(made) > 2 * 300 * 18, "nothing of the gap is missing"
    made.count(18.0)
    made.count(3.0, phase="ended", ended_s=made.now_s + 3)
    made.count(40.0)
    made.sent.clear()
    drew = drew_j(made)
    super(Metered, made).speak(power_mw=50_000)  # and forgotten
    found = made.row(job)
    assert (found.state, found.energy_j) == ("done", pytest.approx(drew))
    assert found.measured == 1.0 and found.covered == pytest.approx(1.0, abs=0.05)


def test_the_joules_of_a_running_job_never_fall_however_the_cluster_agent_ends(tmp_path):
    made, job = begun(tmp_path)
    shown: list[float] = []
    for away_s in (0.3, 7.0, 18.0):
        for _ in range(4):
            made.speak()
            shown.append(made.row(job).energy_j)
        made.speak()  # what nobody has seen need not be on the disk
        made.count(away_s)
        made.killed()
        shown.append(made.row(job).energy_j)
        made.speak()
        shown.append(made.row(job).energy_j)
        assert shown[-1] == pytest.approx(drew_j(made)), "the gap is closed, and nothing counted twice"
    assert shown == sorted(shown)


def test_people_who_look_often_do_not_make_the_store_write_often(tmp_path):
    made, job = begun(tmp_path)
    made.row(job)
    before = made.database.rows("SELECT body FROM job")
    made.count(0.5)
    made.now_s -= 0.5
    super(Metered, made).speak()
    made.now_s -= 0.9  # so soon after
    made.row(job)
    assert made.database.rows("SELECT body FROM job") == before


def test_counters_that_lie_count_no_more_than_a_node_could_have_drawn_and_nothing_back(tmp_path):
    made, job = begun(tmp_path, 1)
    most_j = 1_000_000 * (made.now_s + 2 - made.row(job).started_s)
    before_j = made.row(job).energy_j
    for measured_mj in (0, (1 << 53) - 1, 5):
        part = made.parts["n0"][0]
        lie = PartEnergy(measured_mj, metered_ms=(1 << 53) - 1)
        made.parts["n0"] = [msgspec.structs.replace(part, energy=lie)]
        super(Metered, made).speak()
        found = made.row(job)
        assert before_j <= found.energy_j <= most_j + 1_000_000 * 3
        before_j = found.energy_j
    assert found.energy_j > 1e6, "the lie was believed as far as it could be true"


def test_energy_alone_is_no_reason_to_schedule(tmp_path):
    made, _ = begun(tmp_path)
    made.side.turn()
    made.count(0.2)
    news = [NodeJobs(name, "boot", list(parts)) for name, parts in made.parts.items()]
    made.side.hear(news, [], lambda one: ("", None))
    assert made.side.due_s() > 0.1


def _learned(made: Side) -> Learned | None:
    (job,) = made.side.sharers_jobs()
    return job.learned


def _works(made: Side, **given: Any) -> None:
    """A minute at full draw and a minute at 200 W, where a unit of work takes 2.2 times as long."""
    for is_held, per_s in ((False, 1000), (True, 455)):
        for _ in range(60):
            made.units += per_s
            counts = {name: made.units for name in ("units", "instructions") if name in given}
            watts = 200_000 if is_held else 500_000
            made.speak(power_mw=watts, asked_mw=watts, held="yes" if is_held else "no", **counts)


def test_what_a_job_loses_is_learned_from_the_work_that_its_nodes_report(tmp_path):
    straight = SpeedModel("straight", 0.0, (1.0, 0.4), (1.0, 0.5))  # twice the time at 200 of 500 W
    found = {}
    for kind in ("units", "instructions", "neither"):
        (tmp_path / kind).mkdir()
        made = Side(tmp_path / kind, 1, {Tag.MIXED: straight})
        made.speak()
        made.submit(EVE, name="lu", tag="mixed")
        made.speak()
        assert _learned(made) is None
        for _ in range(3):
            _works(made, **{kind: True})
        found[kind] = _learned(made)
    assert found["neither"] is None
    assert found["units"].loss == pytest.approx(1.2, abs=0.02)
    assert found["instructions"].loss == pytest.approx(1.1, abs=0.01)
    assert found["units"].words.startswith("by its progress it loses 1.")


def test_tags_come_from_the_user_then_the_nodes_then_the_last_such_job(tmp_path):
    made = Side(tmp_path, 1)

    def tags(**given: Any) -> list[str]:
        made.speak(**given)
        return [f"{job.tag.name if job.tag is not None else None} {job.tag_source}" for job in made.side.sharers_jobs()]

    def over() -> None:
        made.parts["n0"] = [msgspec.structs.replace(one, phase="ended") for one in made.parts["n0"]]
        made.speak()
        made.speak()

    made.speak()
    made.submit(EVE, name="a")
    assert tags() == ["None "]
    assert tags(tag="memory") == ["MEMORY node agent"]
    assert tags(tag="what a newer agent says") == ["None "]
    tags(tag="memory")
    over()
    made.submit(EVE, name="a")
    assert tags() == ["MEMORY job history"]
    assert tags(tag="mixed") == ["MIXED node agent"]
    over()
    made.submit(EVE, name="a", tag="compute")
    assert tags(tag="mixed") == ["COMPUTE user"]
    over()
    made.submit(ROOT_USER, name="a")
    assert tags() == ["None "], "another user's job says nothing"


def test_environment_and_script_are_shown_to_the_owner_and_to_administrators_alone(tmp_path):
    made = Side(tmp_path)
    job = made.submit(EVE, script="#!/bin/sh\n: secret script\n", env={"TOKEN": "secret value"})
    for caller in (EVE, ROOT_USER, Caller(NOBODY, "key alice", "admin")):
        _, shown = made.ask[ShowJob](caller, ShowJob(job))
        assert "secret script" in shown.spec.script and shown.spec.env == {"TOKEN": "secret value"}
    for caller in (Caller(1001, "bob", "viewer"), Caller(NOBODY, "key carol", "viewer")):
        got = repr([made.ask[ShowJob](caller, ShowJob(job)), made.ask[ListJobs](caller, ListJobs(everything=True))])
        assert "secret" not in got and "(its owner's)" in got


def test_a_user_who_has_as_many_jobs_as_a_user_may_have_submits_no_more_and_the_others_do(tmp_path):
    made = Side(tmp_path, settings=JobSettings(jobs_per_user=2))
    jobs = [made.submit(EVE), made.submit(EVE)]
    with pytest.raises(ClusterError, match="2 jobs of eve wait or run already"):
        made.submit(EVE)
    made.submit(Caller(1001, "bob", "viewer"))
    made.ask[Cancel](EVE, Cancel([jobs[0]]))
    made.submit(EVE)


def test_a_user_who_has_as_many_jobs_as_a_user_may_have_gets_no_more_by_queueing_old_ones_again(tmp_path):
    made = Side(tmp_path, settings=JobSettings(jobs_per_user=2))
    old = [made.submit(EVE), made.submit(EVE)]
    made.ask[Cancel](EVE, Cancel(old))
    new = made.submit(EVE)
    with pytest.raises(ClusterError, match="2 jobs of eve wait or run already"):
        made.ask[Requeue](EVE, Requeue([*old, new]))
    assert [job.state for job in made.store.find(old)] == ["cancelled", "cancelled"], "all of them, or none"
    made.ask[Requeue](EVE, Requeue([old[0], old[0], new]))
    assert sorted(made.side.live.jobs) == [old[0], new]


def test_the_jobs_of_a_user_have_no_more_bytes_together_than_a_start_can_read(tmp_path, monkeypatch):
    monkeypatch.setattr("cluster_agent.serve.job_requests.LEAST_BYTES", 2 << 20)
    made = Side(tmp_path, settings=JobSettings(jobs_per_user=20))
    jobs = [made.submit(EVE, script="x" * 65_536, env={"A": "y" * 120_000}) for _ in range(11)]
    with pytest.raises(ClusterError, match="have 2 MiB of scripts and environments already"):
        made.submit(EVE, script="x" * 65_536, env={"A": "y" * 120_000})
    made.submit(Caller(1001, "bob", "viewer"), script="x" * 65_536, env={"A": "y" * 120_000})
    made.ask[Cancel](EVE, Cancel(jobs[:1]))
    made.submit(EVE, script="x" * 65_536, env={"A": "y" * 120_000})
    with pytest.raises(ClusterError, match="have 2 MiB of scripts and environments already"):
        made.ask[Requeue](EVE, Requeue(jobs[:1]))


@pytest.mark.parametrize("user", ["9" * 20, "9" * 96, str(1 << 32)])
def test_a_uid_that_nobody_can_have_ends_no_agent(tmp_path, user):
    """SQLite's integers have 64 bits."""
    frame = msgspec.msgpack.encode([PROTOCOL, "jobs", {"everything": True, "user": user}])
    assert "a uid has 32 bits" in answer(Side(tmp_path).ask, EVE, frame).error


def test_jobs_with_huge_records_are_listed_a_few_at_a_time_and_remembered_as_far_as_they_can_be_read(
    tmp_path, monkeypatch
):
    """A user with a thousand of them stopped the cluster agent for seconds, by each list that was asked for."""
    for name, most in (("MOST_PAGE", 300_000), ("MOST_EXPORT", 100_000), ("MOST_PAST", 500_000)):
        monkeypatch.setattr(f"cluster_agent.store.job_store.{name}", most)
    made = Side(tmp_path)
    jobs = [made.submit(EVE, script="x" * 65_536) for _ in range(10)]
    made.ask[Cancel](EVE, Cancel(jobs))
    pages = [made.ask[ListJobs](EVE, ListJobs(everything=True))]
    while pages[-1]:
        pages.append(made.ask[ListJobs](EVE, ListJobs(everything=True, after=pages[-1][-1].job)))
    assert [[one.job for one in page] for page in pages] == [[1, 2, 3, 4], [5, 6, 7, 8], [9, 10], []]
    assert [job.id for job in made.store.ended(1000)] == [4, 5, 6, 7, 8, 9, 10]
    assert [job.id for job in made.store.ended(1000, in_a_moment=True)] == [10]


def test_a_programs_name_is_no_longer_in_tables_than_a_jobs_may_be(tmp_path):
    made = Side(tmp_path)
    made.ask[Submit](EVE, Submit(["/bin/" + "x" * 200_000], 10, "/"))
    (found,) = made.ask[ListJobs](EVE, ListJobs())
    assert found.title == "x" * 96


def test_a_word_of_many_blanks_is_no_time_at_once():
    """It was tried in as many ways as the square of its blanks, for an hour."""
    text = "from cluster_agent.jobs.admission import _is_time as t; print(t('1' + ' ' * 500_000 + 'x'), t(' 2 min '))"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, timeout=PATIENCE_S, check=True)
    assert done.stdout == "False True\n"


def test_a_job_that_is_named_twice_in_one_request_is_ended_and_queued_again_once(tmp_path):
    """The second of two records of one job would have a row of its own: it ended the cluster agent."""
    made = Side(tmp_path)
    job = made.submit(EVE)
    assert made.ask[Cancel](EVE, Cancel([job] * 3)) == [f"job {job} is cancelled"]
    assert made.ask[Requeue](EVE, Requeue([job, job])) == [f"job {job} is queued"]
    for _ in range(5):
        made.speak()
    starts = [message for _, message in made.sent if isinstance(message, JobStart)]
    assert {(start.job, start.attempt) for start in starts} == {(job, 1)}


def test_whatever_is_requested_of_jobs_is_answered_and_breaks_nothing(tmp_path):
    dice = random.Random(9)
    made = Side(tmp_path)
    made.speak()
    job = made.submit()
    fields = ["job", "jobs", "node", "reason", "states", "user", "after", "everything", "command", "walltime_s",
              "workdir", "script", "nodes", "env", "tag", "name", "grace_s", "requeue", "output", "is_on", "part",
              "run", "since"]  # fmt: skip
    values: list[Any] = [
        None, True, -1, 0, 1, job, 1 << 62, (1 << 64) - 1, 1.5, float("nan"), "", "x" * 70_000, "\0", "n0", "memory",
        "/", b"\xff", [], ["a"], [1, 2], [[]], {}, {"A": "b"}, {"A": 1}, [1 << 63], ["queued"], "root", "-1",
    ]  # fmt: skip
    n_accepted = 0
    right: dict[str, Any] = {
        "submit": {"command": ["a"], "walltime_s": 10, "workdir": "/"}, "jobs": {"everything": True},
        "job-changes": {}, "job": {"job": job}, "job-tally": {}, "state-export": {},
        "cancel": {"jobs": [job]}, "requeue": {"jobs": [job]}, "drain": {"node": "n0"}, "resume": {"node": "n0"},
        "power": {"node": "n0", "is_on": False}, "reservations": {}, "unreserve": {"name": "a"},
        "reserve": {"reservation": {"name": "a", "nodes": 1, "from_s": 1 << 31, "length_s": 60, "users": ["root"]}},
        "measure-node": {"node": "n0", "spec": {"command": ["a"], "walltime_s": 10, "workdir": "/"}},
    }  # fmt: skip
    made.side.can_switch = True
    for _ in range(3000):
        kind = dice.choice(REQUESTS).kind
        body: Any = dict(right[kind])
        for _ in range(dice.randrange(3)):
            body[dice.choice(fields) if dice.random() < 0.3 or not body else dice.choice(list(body))] = dice.choice(
                values
            )
        if dice.random() < 0.1:
            body = dice.choice(values)
        frame = msgspec.msgpack.encode([PROTOCOL, kind, body])
        if dice.random() < 0.2:
            frame = frame[: dice.randrange(len(frame))]
        got = answer(made.ask, EVE, frame)
        assert got.error or got.status == 0
        assert "\n" not in got.error
        n_accepted += not got.error
    assert n_accepted > 300, "not all of it was garbage"
    assert made.side.live.jobs[job].state in ("queued", "starting", "running"), "eve may not touch it"
    assert made.side.live.nodes["n0"].drained is None
    assert all(one.uid == EVE.uid for one in made.store.find() if one.id != job)
    made.speak()


def test_an_agent_that_runs_no_jobs_says_so():
    for request, handle in no_jobs().items():
        with pytest.raises(ClusterError, match=r"a \[jobs\] table in its settings"):
            handle(EVE, request)


def test_a_node_that_is_known_to_be_idle_is_not_queried_every_time_it_says_nothing(tmp_path):
    made = Side(tmp_path)
    made.speak()
    made.silent = {"n0", "n1"}
    made.sent.clear()
    for _ in range(7):
        made.speak()
    assert not made.sent
    made.speak()
    assert [name for name, one in made.sent if isinstance(one, JobQuery)] == ["n0", "n1"]
