"""A world under a scheduler that speaks Batsim's protocol (``cluster_agent.stepping.batsim``), without a socket: what
it is told, what it may decide, and what it is refused."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest

from cluster_agent.errors import SchedulerError
from cluster_agent.library import World
from cluster_agent.replay.output_columns import Shown
from cluster_agent.replay.world_run import Result, run
from cluster_agent.scheduler.job_columns import Jobs
from cluster_agent.scheduler.policy_phases import Composition
from cluster_agent.scheduler.world import World as Fitted
from cluster_agent.stepping import batsim
from cluster_agent.stepping.batsim import Simulation
from cluster_agent.stepping.batsim_messages import in_order, intervals, procset
from cluster_agent.stepping.steps import Steps
from tests.cluster_agent.foreign_schedulers import Event, InTurn
from tests.cluster_agent.test_stepping import world
from tests.cluster_agent.worlds import workload_of

Given = dict[str, Any]


def simulated(source: Fitted, ask: Callable[[bytes], bytes]) -> Result:
    steps = Steps(source, Composition(), "instants")
    simulation = Simulation(steps, ask)
    simulation.run()
    return Result(steps.world, steps.schedule, decided=simulation.decided())


def jobs(*rows: tuple[int, int, int, int]) -> Fitted:
    """(Submission, run, request, processors) of each, on a machine of eight."""
    submit_s, run_s, request_s, width = (np.array(column, np.int64) for column in zip(*rows, strict=True))
    n = len(rows)
    return Fitted(
        workload_of(Jobs(np.arange(n), submit_s, run_s, request_s, width.astype(np.int32), np.zeros(n, np.int32)), 8)
    )


THREE = ((10, 100, 200, 4), (20, 50, 60, 4), (30, 70, 90, 8))


class Told:
    """A scheduler that answers what it is told to: for a message of that time, and once each; else nothing."""

    def __init__(self, *answers: tuple[float, list[Event]], now: dict[float, float] | None = None) -> None:
        self.messages: list[Given] = []
        self._answers, self._now = list(answers), now or {}

    def ask(self, message: bytes) -> bytes:
        given = json.loads(message)
        self.messages.append(given)
        events: list[Event] = []
        if self._answers and self._answers[0][0] == given["now"] and given["events"][0]["type"] != "SIMULATION_BEGINS":
            events = self._answers.pop(0)[1]
        return json.dumps({"now": self._now.get(given["now"], given["now"]), "events": events}).encode()

    def types(self, now: float) -> list[str]:
        return [event["type"] for message in self.messages if message["now"] == now for event in message["events"]]


def event(at: float, kind: str, **data: Any) -> Event:
    return {"timestamp": at, "type": kind, "data": data}


def start(at: float, job: int, alloc: str) -> Event:
    return event(at, "EXECUTE_JOB", job_id=f"w0!{job}", alloc=alloc)


def test_first_come_first_served_over_the_protocol_is_our_fcfs_job_for_job() -> None:
    source = world(300)
    result = simulated(source, InTurn().ask)
    ours = run(source, Composition())
    assert result.start_s.tolist() == ours.start_s.tolist()
    assert result.schedule.end_s.tolist() == ours.schedule.end_s.tolist()
    assert result.unstarted == 0


def test_jobs_have_the_processors_that_the_scheduler_gave_them() -> None:
    scheduler = Told(
        (10.0, [start(10.0, 0, "4-6 1")]), (20.0, [start(20.0, 1, "7 0 2-3")]), (110.0, [start(110.0, 2, "0-7")])
    )
    result = simulated(jobs(*THREE), scheduler.ask)
    assert Shown(result).allocated.cells() == ["1 4-6", "0 2-3 7", "0-7"]
    assert result.start_s.tolist() == [10, 20, 110]
    ends = [
        one["data"] for message in scheduler.messages for one in message["events"] if one["type"] == "JOB_COMPLETED"
    ]
    assert [(end["job_id"], end["alloc"]) for end in ends] == [("w0!1", "0 2-3 7"), ("w0!0", "1 4-6"), ("w0!2", "0-7")]


def test_a_scheduler_is_told_what_batsim_tells_it_in_the_order_in_which_it_happens() -> None:
    scheduler = InTurn()
    simulated(jobs((10, 100, 200, 4), (110, 50, 60, 4)), scheduler.ask)
    told = [(one["timestamp"], one["type"]) for one in scheduler.told]
    assert told == [
        (0.0, "SIMULATION_BEGINS"),
        (10.0, "JOB_SUBMITTED"),
        (110.0, "JOB_COMPLETED"),
        (110.0, "JOB_SUBMITTED"),
        (110.0, "NOTIFY"),
        (160.0, "JOB_COMPLETED"),
        (160.0, "SIMULATION_ENDS"),
    ]
    job = {"id": "w0!0", "res": 4, "subtime": 10.0, "walltime": 200, "profile": "log"}
    assert scheduler.told[1]["data"] == {"job_id": "w0!0", "job": job}
    assert scheduler.told[4]["data"] == {"type": "no_more_static_job_to_submit"}
    assert [one["id"] for one in scheduler.told[0]["data"]["compute_resources"]] == list(range(8))


def test_nothing_that_a_scheduler_is_told_says_how_long_a_job_will_run() -> None:
    source = jobs((10, 123457, 200000, 4), (20, 123457, 200000, 2))
    scheduler = InTurn()
    simulated(source, scheduler.ask)
    before = [one for one in scheduler.told if one["timestamp"] < 123457]
    assert len(before) == 4 and "123457" not in json.dumps(before)


def test_a_log_that_begins_at_0_is_told_a_second_later_since_pybatsim_needs_times_above_0() -> None:
    scheduler = InTurn()
    result = simulated(jobs((0, 5, 9, 4), (3, 5, 9, 4)), scheduler.ask)
    assert [one["timestamp"] for one in scheduler.told] == [0.0, 1.0, 4.0, 4.0, 6.0, 9.0, 9.0]
    assert result.start_s.tolist() == [0, 3]


def test_a_job_without_a_requested_time_in_the_log_has_no_walltime() -> None:
    """Such a log has the run times in their place."""
    source = Fitted(msgspec.structs.replace(jobs((10, 100, 100, 4)).workload, has_requests=False))
    scheduler = InTurn()
    simulated(source, scheduler.ask)
    assert "walltime" not in scheduler.told[1]["data"]["job"]


def test_a_job_that_is_cut_at_its_request_is_told_so() -> None:
    source = jobs((10, 100, 100, 4), (20, 50, 90, 4))
    source = Fitted(msgspec.structs.replace(source.workload, is_cut=np.array([True, False])))
    scheduler = InTurn()
    simulated(source, scheduler.ask)
    found = {one["data"]["job_id"]: one["data"] for one in scheduler.told if one["type"] == "JOB_COMPLETED"}
    assert (found["w0!0"]["job_state"], found["w0!0"]["return_code"]) == ("COMPLETED_WALLTIME_REACHED", -1)
    assert (found["w0!1"]["job_state"], found["w0!1"]["return_code"]) == ("COMPLETED_SUCCESSFULLY", 0)


# --- what it may decide


def test_it_is_called_when_it_wants_to_be_and_may_start_jobs_then() -> None:
    scheduler = Told(
        (10.0, [event(10.0, "CALL_ME_LATER", timestamp=12.5), event(10.0, "CALL_ME_LATER", timestamp=10.0)]),
        (13.0, [start(13.0, 0, "0-3")]),
    )
    result = simulated(jobs(THREE[0]), scheduler.ask)
    assert scheduler.types(10.0) == ["JOB_SUBMITTED", "NOTIFY", "REQUESTED_CALL"]
    assert scheduler.types(13.0) == ["REQUESTED_CALL"]
    assert result.start_s.tolist() == [13]


def test_it_is_called_before_the_first_job_too() -> None:
    class Early(InTurn):
        def ask(self, message: bytes) -> bytes:
            answer = json.loads(super().ask(message))
            if answer["now"] == 0:
                answer["events"].append(event(0.0, "CALL_ME_LATER", timestamp=4))
            return json.dumps(answer).encode()

    scheduler = Early()
    result = simulated(jobs(*THREE), scheduler.ask)
    assert [(one["timestamp"], one["type"]) for one in scheduler.told[:3]] == [
        (0.0, "SIMULATION_BEGINS"),
        (4.0, "REQUESTED_CALL"),
        (10.0, "JOB_SUBMITTED"),
    ]
    assert result.unstarted == 0


def test_what_it_decides_within_a_second_counts_from_that_second_on() -> None:
    scheduler = Told((10.0, [start(10.005, 0, "0-3")]), now={10.0: 10.7})
    result = simulated(jobs(THREE[0]), scheduler.ask)
    assert result.start_s.tolist() == [10]
    assert scheduler.messages[2]["now"] == 110.0


def test_while_it_thinks_the_world_goes_on_and_it_is_told_afterwards() -> None:
    """It takes 25.4 s of the log's time, and starts the first job 5 s after it came."""
    scheduler = Told((10.0, [start(15.2, 0, "0-3"), start(21.0, 1, "4-7")]), now={10.0: 35.4})
    result = simulated(jobs(*THREE), scheduler.ask)
    assert result.start_s.tolist()[:2] == [15, 21]
    late = scheduler.messages[2]
    assert late["now"] == 35.4
    assert [(one["timestamp"], one["type"]) for one in late["events"]] == [
        (20.0, "JOB_SUBMITTED"),
        (30.0, "JOB_SUBMITTED"),
        (30.0, "NOTIFY"),
    ]


def test_it_may_think_before_the_first_job_comes_and_misses_nothing() -> None:
    scheduler = Told(now={0.0: 25.5})
    simulated(jobs(*THREE), scheduler.ask)
    first = scheduler.messages[1]
    assert first["now"] == 25.5
    assert [(one["timestamp"], one["type"]) for one in first["events"]] == [
        (10.0, "JOB_SUBMITTED"),
        (20.0, "JOB_SUBMITTED"),
    ]


def test_it_may_reject_jobs_and_the_rest_ends_as_soon_as_they_are_all_that_is_left() -> None:
    scheduler = Told(
        (10.0, [start(10.0, 0, "0-3")]),
        (20.0, [event(20.0, "REJECT_JOB", job_id="w0!1"), event(20.0, "CALL_ME_LATER", timestamp=5000)]),
        (30.0, [event(30.0, "REJECT_JOB", job_id="w0!2")]),
    )
    result = simulated(jobs(*THREE), scheduler.ask)
    assert result.start_s.tolist() == [10, -1, -1] and result.unstarted == 2
    assert scheduler.messages[-1]["events"] == [event(110.0, "SIMULATION_ENDS")]


def test_jobs_that_it_kills_end_then_and_both_events_of_batsim_say_so() -> None:
    scheduler = Told(
        (10.0, [start(10.0, 0, "0-3")]),
        (20.0, [start(20.0, 1, "4-7")]),
        (30.0, [event(30.0, "KILL_JOB", job_ids=["w0!0", "w0!1"])]),
        (30.0, [start(30.0, 2, "0-7"), event(30.0, "KILL_JOB", job_ids=["w0!0"])]),
    )
    result = simulated(jobs(*THREE), scheduler.ask)
    assert result.start_s.tolist() == [10, 20, 30]
    assert result.schedule.end_s.tolist() == [30, 30, 100]
    assert result.is_killed.tolist() == [True, True, False]
    assert Shown(result).state.cells() == ["COMPLETED_KILLED", "COMPLETED_KILLED", "COMPLETED_SUCCESSFULLY"]
    one, two, both = scheduler.messages[4]["events"]
    assert [end["data"]["job_state"] for end in (one, two)] == ["COMPLETED_KILLED", "COMPLETED_KILLED"]
    assert both["data"]["job_ids"] == ["w0!0", "w0!1"]
    assert both["data"]["job_progress"]["w0!0"] == {"profile": "log", "progress": 0.2}
    assert scheduler.messages[5]["events"][-1]["data"] == {"job_ids": ["w0!0"], "job_progress": {}}  # it had ended


def test_jobs_that_it_never_starts_are_counted() -> None:
    result = simulated(jobs(*THREE), Told((10.0, [start(10.0, 0, "0-3")])).ask)
    assert result.unstarted == 2


def test_it_may_ask_for_the_joules_of_a_machine_that_has_watts() -> None:
    source = World("cluster_agent/samples/generated-500.swf", machine="curie")
    steps = Steps.of(source, "fcfs", "instants")
    asked = event(165.0, "QUERY", requests={"consumed_energy": {}})
    scheduler = Told((165.0, [start(165.0, 1, "0-1")]), (190.0, [asked | {"timestamp": 190.0}]))
    Simulation(steps, scheduler.ask).run()
    answer = scheduler.messages[3]["events"]
    assert [(one["timestamp"], one["type"]) for one in answer] == [(190.0, "ANSWER")]
    assert answer[0]["data"]["consumed_energy"] == pytest.approx(25 * 709_530, rel=1e-4)


# --- what it is refused

STARTED = (10.0, [start(10.0, 0, "0-3")])

WRONG = {
    "processor 3 is in use by w0!0": [start(20.0, 1, "3-6")],
    "processor 8 does not exist: they go from 0 to 7": [start(20.0, 1, "5-8")],
    "the job needs 4 processors, and its alloc has 3": [start(20.0, 1, "4-6")],
    "alloc '4-7 ' is no set of processors": [start(20.0, 1, "4-7 ")],
    "processor 5 is in its alloc twice": [start(20.0, 1, "4-5 5-6")],
    "alloc '4-x' is no set of processors": [start(20.0, 1, "4-x")],
    "alloc '7-4' is no set of processors": [start(20.0, 1, "7-4")],
    "alloc '' is no set of processors": [start(20.0, 1, "")],
    "no job is called 'w0!77'": [start(20.0, 77, "4-7")],
    "w0!2 has not been submitted": [start(20.0, 2, "0-7")],
    "w0!0 runs already": [start(20.0, 0, "4-7")],
    "w0!1 runs already": [start(20.0, 1, "4-7"), start(20.0, 1, "4-7")],
    "w0!1 was rejected": [event(20.0, "REJECT_JOB", job_id="w0!1"), start(20.0, 1, "4-7")],
    "w0!0 has ended": [start(115.0, 0, "0-3")],
    "job_id is a text, and must be there": [event(20.0, "EXECUTE_JOB", alloc="4-7")],
    "alloc is a text, and must be there": [event(20.0, "EXECUTE_JOB", job_id="w0!1", alloc=[4, 7])],
    "no event is called 'EXECUTE_JOBS' (nearest: EXECUTE_JOB)": [event(20.0, "EXECUTE_JOBS")],
    "a replay of a log has nothing of this kind": [event(20.0, "SET_RESOURCE_STATE", resources="1", state="0")],
    "its time is 19 s, and it is 20 s already": [start(19.0, 1, "4-7")],
    "its time is 20 s, and it is 21 s already": [event(21.0, "SET_JOB_METADATA"), start(20.0, 1, "4-7")],
    "the call is for 3 s, and it is 20 s already": [event(20.0, "CALL_ME_LATER", timestamp=3)],
    "timestamp is a number, and must be there": [event(20.0, "CALL_ME_LATER", timestamp="soon")],
    "only jobs that run can be killed": [event(20.0, "KILL_JOB", job_ids=["w0!1"])],
    "job_ids is a list of texts, and must be there": [event(20.0, "KILL_JOB", job_ids="w0!0")],
    "w0!1 has started in this second": [start(20.0, 1, "4-7"), event(20.0, "KILL_JOB", job_ids=["w0!1"])],
    "the only query here is consumed_energy": [event(20.0, "QUERY", requests={"air_temperature": {}})],
    "joules need a machine with watts": [event(20.0, "QUERY", requests={"consumed_energy": {}})],
    "no notice is called 'hello'": [event(20.0, "NOTIFY", type="hello")],
}


@pytest.mark.parametrize("why", WRONG)
def test_what_cannot_be_is_one_sentence_with_the_text_of_the_event(why: str) -> None:
    *_, last = WRONG[why]
    source = jobs(*THREE)
    with pytest.raises(SchedulerError) as error:
        simulated(source, Told(STARTED, (20.0, WRONG[why]), now={20.0: max(20.0, last["timestamp"])}).ask)
    said = str(error.value)
    assert why in said and f'"type":"{last["type"]}"' in said and "\n" not in said
    for value in last["data"].values():
        assert json.dumps(value, separators=(",", ":")) in said


ANSWERS = {
    "is not JSON": b"{'now': 20}",
    "which Batsim 3 and 4 speak and Batsim 5 does not: \\x14\\x00": b"\x14\x00\x00\x00\x00\x00\x0e\x00",
    "is no message of Batsim's: Object missing required field `events`": b'{"now": 20}',
    "Expected `float`, got `str`": b'{"now": "20", "events": []}',
    "Expected `array`, got `object`": b'{"now": 20, "events": {}}',
    "missing required field `timestamp`": b'{"now": 20, "events": [{"type": "NOTIFY"}]}',
    "is of 19 s, and it is 20 s already": b'{"now": 19, "events": []}',
    "is of 20 s, and it is 25 s already": b'{"now": 20, "events": [{"timestamp": 25, "type": "SET_JOB_METADATA"}]}',
    "out of range": b'{"now": 1e999, "events": []}',
    "is of 1e+17 s, and no replay is longer than 1099511627776 s": b'{"now": 1e17, "events": []}',
    "is nested too deeply": (
        b'{"now": 20, "events": [{"timestamp": 20, "type": "X", "data": {"a": '
        + b"[" * 10_000
        + b"]" * 10_000
        + b"}}]}"
    ),
    "(5000002 bytes)": b"[" + b"1" * 5_000_000 + b"]",
}


@pytest.mark.parametrize("why", ANSWERS)
def test_an_answer_that_is_none_is_one_short_sentence(why: str) -> None:
    def ask(message: bytes) -> bytes:
        now = json.loads(message)["now"]
        return ANSWERS[why] if now == 20 else json.dumps({"now": now, "events": []}).encode()

    with pytest.raises(SchedulerError, match=re.escape(why)) as error:
        simulated(jobs(*THREE), ask)
    assert len(str(error.value)) < 500 and "\n" not in str(error.value)


def test_a_long_event_is_quoted_in_part() -> None:
    many = [start(20.0, 1, " ".join(map(str, range(2000))))]
    with pytest.raises(SchedulerError, match=r"processor \d+ does not exist.*… \(\d+ characters\)$") as error:
        simulated(jobs(*THREE), Told((20.0, many)).ask)
    assert len(str(error.value)) < 400


def test_a_scheduler_that_asks_to_be_called_for_ever_is_stuck(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batsim, "IDLE_CALLS", 50)

    def ask(message: bytes) -> bytes:
        now = json.loads(message)["now"]
        return json.dumps({"now": now, "events": [event(now, "CALL_ME_LATER", timestamp=now + 10)]}).encode()

    with pytest.raises(SchedulerError, match="requested 50 calls in a row, while no job runs"):
        simulated(jobs(*THREE), ask)


@pytest.mark.parametrize("kind", ["CALL_ME_LATER", "KILL_JOB"])
def test_a_scheduler_that_lets_no_time_pass_is_stuck_though_a_job_runs(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batsim, "IDLE_CALLS", 50)
    count = 0

    def ask(message: bytes) -> bytes:
        nonlocal count
        given, count = json.loads(message), count + 1
        assert count < 500, "it hears the same for ever"
        now, comes = given["now"], [one["data"]["job_id"] for one in given["events"] if one["type"] == "JOB_SUBMITTED"]
        again = {"CALL_ME_LATER": {"timestamp": now}, "KILL_JOB": {"job_ids": []}}[kind]
        events = [start(now, 1, "0-3")] if "w0!1" in comes else [event(now, kind, **again)]
        return json.dumps({"now": now, "events": events}).encode()

    with pytest.raises(SchedulerError, match="requested news 50 times in a row in the same second"):
        simulated(jobs(*THREE), ask)


@pytest.mark.parametrize(
    ("text", "alike"), [("0", "0"), ("0-3 7", "0-3 7"), ("7 0-3 5-6", "0-3 5-7"), ("1 0 2-2 9", "0-2 9")]
)
def test_a_set_of_processors_is_read_and_written_in_order(text: str, alike: str) -> None:
    given = intervals(text)
    assert given is not None and procset(in_order(given)) == alike
