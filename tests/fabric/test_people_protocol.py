"""The people protocol: what goes over the socket, what is refused, and that both ends mean the same types."""

import math
import socket
import time
import typing
from types import SimpleNamespace

import msgspec
import pytest

from cluster_agent.cli import main
from cluster_agent.fabric.people import (
    NOBODY,
    PATIENCE_S,
    PROTOCOL,
    AnswerEnvelope,
    Caller,
    Later,
    ReceivedAnswer,
    Request,
    answer,
    answer_type,
    pack_request,
    unpack_answer,
)
from cluster_agent.fabric.router import PeopleRequest
from cluster_agent.jobs.job import Job, JobSpec
from cluster_agent.scheduler.switches.live_reservations import Reservation
from cluster_agent.serve.config import BudgetSettings, JobSettings, NodeSettings, Settings
from cluster_agent.serve.people_protocol import (
    BudgetView,
    Cancel,
    CountJobs,
    CountJoules,
    Drain,
    ExplainCap,
    ExportReplay,
    ExportState,
    ForgetHistory,
    ForgetNode,
    JobRow,
    ListBudgetChanges,
    ListForeign,
    ListHistory,
    ListJobChanges,
    ListJobs,
    ListJoules,
    ListNodeChanges,
    ListNodes,
    ListPhases,
    ListReservations,
    ListRunning,
    LowerBudget,
    MeasureNode,
    NodeRow,
    NotifyEnd,
    NotifyStart,
    Requeue,
    Reserve,
    Resume,
    SetBudget,
    SetSchedule,
    ShowBudget,
    ShowJob,
    Submit,
    SwitchPower,
    SwitchRules,
    Unreserve,
)
from cluster_agent.serve.server import ROUND_S, Server
from lab.cluster_demo.emulated_partition import free_port

ROOT_USER = Caller(0, "root", "admin")

ON_THE_WIRE = {
    "nodes": (ListNodes(), {}),
    "node-changes": (ListNodeChanges(3, 5, 7), {"part": 3, "run": 5, "since": 7}),
    "job-changes": (ListJobChanges(3, 5, 7), {"part": 3, "run": 5, "since": 7}),
    "why": (ExplainCap("n0"), {"node": "n0"}),
    "node-forget": (ForgetNode("n0"), {"node": "n0", "is_off": False}),
    "budget": (ShowBudget(), {}),
    "budget-changes": (ListBudgetChanges(), {}),
    "budget-set": (SetBudget(900.0), {"w": 900.0, "dry_run": False, "group": ""}),
    "budget-schedule": (
        SetSchedule([(1e9, 5_000_000)], "a.csv", "rack"),
        {"steps": [[1e9, 5_000_000]], "source": "a.csv", "group": "rack"},
    ),
    "budget-rules": (SwitchRules("night", True), {"name": "night", "is_on": True}),
    "budget-lower": (LowerBudget(1.5, "a hazard"), {"hours": 1.5, "why": "a hazard"}),
    "submit": (
        Submit(["a"], 60, "/"),
        {"command": ["a"], "walltime_s": 60, "workdir": "/", "script": "", "name": "", "nodes": 1, "output": "",
         "error": "", "env": {}, "prolog": "", "epilog": "", "tag": "", "grace_s": 30, "requeue": True, "eco": False,
         "cores": 0, "gpus": 0, "mics": 0, "memory_gb": 0.0, "after": [], "after_done": [], "queue": "",
         "reservation": "", "share": "", "halves": 0, "begin_s": 0, "best_effort": False, "components": []},
    ),
    "jobs": (ListJobs(), {"everything": False, "states": [], "user": "", "after": 0}),
    "job": (ShowJob(7), {"job": 7}),
    "job-tally": (CountJobs(), {}),
    "state-export": (ExportState(), {}),
    "replay-export": (ExportReplay(), {}),
    "cancel": (Cancel([7]), {"jobs": [7]}),
    "requeue": (Requeue([7]), {"jobs": [7]}),
    "drain": (Drain("n0"), {"node": "n0", "reason": ""}),
    "resume": (Resume("n0"), {"node": "n0"}),
    "notify-start": (
        NotifyStart("a7", ["n0"], "memory", "n[1-2]", "hpc", 1_795_909_975, 1, "alice", "a title", 2.5, "batch"),
        {
            "job": "a7", "nodes": ["n0"], "tag": "memory", "node_list": "n[1-2]", "cluster": "hpc",
            "submitted_s": 1_795_909_975, "restarts": 1, "user": "alice", "title": "a title", "wait_s": 2.5,
            "partition": "batch",
        },
    ),
    "notify-list": (ListForeign(), {}),
    "foreign-running": (ListRunning(), {}),
    "user-joules": (CountJoules(), {}),
    "job-joules": (ListJoules(5.0, "alice"), {"since_s": 5.0, "user": "alice"}),
    "notify-end": (
        NotifyEnd("a7", "hpc", 1_795_909_975, 1),
        {"job": "a7", "cluster": "hpc", "submitted_s": 1_795_909_975, "restarts": 1},
    ),
    "history": (ListHistory(5.0, "alice"), {"since_s": 5.0, "user": "alice"}),
    "history-phases": (ListPhases("alice"), {"user": "alice"}),
    "history-forget": (ForgetHistory("alice"), {"user": "alice"}),
    "power": (SwitchPower("n0", True), {"node": "n0", "is_on": True}),
    "reserve": (
        Reserve(Reservation("maint", 2, 60, 30, ["ada"])),
        {"reservation": {"name": "maint", "nodes": 2, "from_s": 60, "length_s": 30, "users": ["ada"]}},
    ),
    "unreserve": (Unreserve("maint"), {"name": "maint"}),
    "reservations": (ListReservations(), {}),
    "measure-node": (
        MeasureNode("n0", JobSpec(["a"], 60, "/")),
        {"node": "n0", "spec": {"command": ["a"], "walltime_s": 60, "workdir": "/", "script": "", "name": "",
                                "nodes": 1, "output": "", "error": "", "env": {}, "prolog": "", "epilog": "", "tag": "",
                                "grace_s": 30, "requeue": True, "eco": False, "cores": 0, "gpus": 0, "mics": 0,
                                "memory_gb": 0.0, "after": [], "after_done": [], "queue": "",
                                "reservation": "", "share": "", "halves": 0, "begin_s": 0, "best_effort": False,
                                "components": []}},
    ),
}  # fmt: skip
"""Each kind with a request and its body, as commands of before this protocol had types send it: with its defaults."""

WATTS = dict.fromkeys(("budget_w", "fixed_w", "counts_w", "reserve_w", "free_w", "over_w", "mop_w", "short_w"), 1.0)


@pytest.fixture
def server(tmp_path):
    settings = Settings(
        listen=f"tcp://127.0.0.1:{free_port()}", insecure=True, keys=str(tmp_path), store=str(tmp_path / "a.db"),
        socket=str(tmp_path / "s"), mode="cap", budget=BudgetSettings(w=1000.0), nodes=NodeSettings(tdp_w=500.0),
        jobs=JobSettings(),
    )  # fmt: skip
    made = Server(settings, lambda line: None)
    yield made
    made.close()


def sent(kind: str, body: object) -> bytes:
    return msgspec.msgpack.encode([PROTOCOL, kind, body])


@pytest.mark.parametrize("kind", ON_THE_WIRE)
def test_a_request_is_understood_as_commands_sent_it_before_it_had_a_type(kind):
    request, body = ON_THE_WIRE[kind]
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(body), type=type(request)) == request
    found = msgspec.msgpack.decode(pack_request(request).body)
    assert msgspec.convert(found, type(request)) == request
    assert found.items() <= body.items(), "what is sent has the names and values of before"


def test_what_has_its_default_is_not_sent_so_an_older_agent_takes_what_asks_nothing_new_of_it():
    later = {"queue", "begin_s", "best_effort", "components"}
    fields = [(one.name, one.type, one) for one in msgspec.structs.fields(Submit) if one.name not in later]
    older = msgspec.defstruct(
        "Older", [(name, type_) if one.required else (name, type_, _default(one)) for name, type_, one in fields],
        forbid_unknown_fields=True,
    )  # fmt: skip
    for nested in (Submit(["a"], 60, "/"), Submit(["a"], 60, "/", nodes=2, env={"A": "b"})):
        taken = msgspec.msgpack.decode(pack_request(nested).body, type=older)
        assert (taken.command, taken.nodes, taken.env) == (["a"], nested.nodes, nested.env)
        measured = msgspec.msgpack.decode(pack_request(MeasureNode("n0", nested)).body)
        assert msgspec.convert(measured["spec"], older) == taken
    with pytest.raises(msgspec.ValidationError, match="unknown field `queue`"):
        msgspec.msgpack.decode(pack_request(Submit(["a"], 60, "/", queue="night")).body, type=older)


def _default(field: msgspec.structs.FieldInfo) -> object:
    made = field.default_factory
    return field.default if made is msgspec.NODEFAULT else msgspec.field(default_factory=made)


def test_an_agent_handles_every_request_with_functions_of_its_type_and_of_its_answers(server):
    assert {request.kind for request in server.handlers} == set(ON_THE_WIRE)
    for request, handle in server.handlers.items():
        hints = typing.get_type_hints(handle, include_extras=True)
        answers = hints["return"]
        if Later in typing.get_args(answers):  # at once or later, the answer is the same
            (answers,) = (one for one in typing.get_args(answers) if one is not Later)
        assert (hints["request"], answers) == (request, answer_type(request)), request.kind


def test_answers_have_the_names_that_scripts_and_older_commands_know():
    assert NodeRow.__struct_fields__ == (
        "name", "state", "wanted_w", "granted_w", "in_force_w", "counts_w", "draws_w", "tag", "quality", "lease_class",
        "heard_s_ago", "jobs", "job", "jobs_why", "tag_source", "energy_j", "bound_by", "waits_for", "inlet_c",
    )  # fmt: skip
    assert BudgetView.__struct_fields__ == (
        *WATTS, "nodes", "silent", "is_young", "mode", "sharer", "epoch", "steps", "alarms", "lowering_s",
        "loop_lag_s", "energy_j", "alarm_kinds", "store_free_bytes", "ahead", "ahead_over", "groups",
        "rules",
    )  # fmt: skip
    assert JobRow.__struct_fields__ == (
        "job", "user", "uid", "title", "state", "status", "reason", "nodes", "node_names", "walltime_s", "submitted_s",
        "started_s", "ended_s", "attempts", "tag", "tag_source", "energy_j", "measured", "method", "node_s", "covered",
        "cap_w", "capped", "bound_by", "bound", "slowdown", "slowdown_from", "waits_for", "requested", "took_s",
        "planned_s",
    )  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "body", "said"),
    [
        ("budgets", {}, "no request 'budgets' here (nearest: budget)"),
        ("jobs", {"evrything": True}, "jobs: unknown key 'evrything' (nearest: everything)"),
        ("nodes", {"a\nb": 1}, r"nodes: unknown key 'a\nb'"),
        ("power", {"node": "n0"}, "power: is_on is missing"),
        ("power", {"node": "n0", "is_on": 1}, "power: is_on: expected true or false, got a whole number"),
        ("why", [], "why: expected a table, got a list"),
        ("why", {"node": "x" * 97}, "why: node: expected text of length <= 96"),
        ("cancel", {"jobs": [1, "2"]}, "cancel: jobs[1]: expected a whole number, got text"),
        ("cancel", {"jobs": []}, "cancel: jobs: expected a list of length >= 1"),
        ("submit", {"command": ["a"], "walltime_s": 9, "workdir": "/", "after": [1 << 63]}, "submit: after[0]: "),
        ("budget-set", {"w": math.nan}, "budget-set: w: expected a number > 0.0"),
        ("budget-set", {"w": math.inf}, "budget-set: w: expected a number <= 1000000000000.0"),
        ("budget-schedule", {"steps": [[math.nan, 5]], "source": ""}, "budget-schedule: steps[0][0]: expected a"),
        ("budget-schedule", {"steps": [[math.inf, 5]], "source": ""}, "budget-schedule: steps[0][0]: expected a"),
        ("budget-schedule", {"steps": [[1.0, 0]], "source": ""}, "budget-schedule: steps[0][1]: expected a whole"),
    ],
)  # fmt: skip
def test_a_wrong_request_gets_one_line_that_names_the_place(server, kind, body, said):
    got = answer(server.handlers, ROOT_USER, sent(kind, body))
    assert got.error.startswith(said)
    assert "\n" not in got.error and "`" not in got.error
    assert got.status in (1, 2)


def test_a_request_out_of_bounds_is_refused_before_it_is_sent(tmp_path, capsys):
    assert main(["jobs", "9" * 30, "--socket", str(tmp_path / "nobody")]) == 2
    assert capsys.readouterr().err.startswith("clusterctl jobs: job: expected a whole number <= ")


def test_an_answer_that_is_not_finite_or_not_of_its_type_is_refused():
    view = WATTS | {
        "nodes": 1, "silent": 0, "is_young": False, "mode": "cap", "sharer": "fspc", "epoch": 1, "steps": [],
        "alarms": [],
    }  # fmt: skip

    def received(body: object) -> ReceivedAnswer:
        return msgspec.msgpack.decode(
            msgspec.msgpack.encode(AnswerEnvelope(PROTOCOL, "", 0, body)), type=ReceivedAnswer
        )

    assert unpack_answer(ShowBudget(), received(view)).free_w == 1.0
    for wrong in (view | {"free_w": math.nan}, view | {"steps": [[math.inf, 1.0]]}, [], None):
        with pytest.raises(msgspec.ValidationError):
            unpack_answer(ShowBudget(), received(wrong))


def test_a_submitted_job_is_stored_as_its_user_sent_it():
    submit = Submit(["a", "b"], 60, "/tmp", env={"A": "b"}, nodes=2)
    assert submit.spec == JobSpec(["a", "b"], 60, "/tmp", env={"A": "b"}, nodes=2)
    stored = Job(1, 0, "root", submit.spec, 0.0)
    assert msgspec.json.decode(msgspec.json.encode(stored), type=Job) == stored


def test_every_request_names_its_answer():
    def all_of(kind: type[Request]) -> set[type[Request]]:
        return {kind}.union(*map(all_of, kind.__subclasses__()))

    ours = {kind for kind in all_of(Request) if kind.__module__ == "cluster_agent.serve.people_protocol"}
    assert {type(request) for request, _ in ON_THE_WIRE.values()} == ours


def test_a_turn_answers_no_further_request_when_the_time_for_people_is_over(server, monkeypatch):
    """A user with many requests that take long each would have kept the loop from its nodes until their leases end."""
    monkeypatch.setattr("cluster_agent.serve.server.PEOPLE_S", 0.0)
    asked: list[str] = []
    server.handlers[ListNodes] = lambda caller, request: asked.append(caller.name) or []
    frame = sent("nodes", {})
    keys = [PeopleRequest(Caller(NOBODY, f"key {n}", "viewer"), frame, None) for n in range(3)]
    keys.append(PeopleRequest(Caller(NOBODY, "key admin", "admin"), frame, None))
    told: list[str] = []
    monkeypatch.setattr(server.router, "requests", lambda: [keys.pop(0) for _ in range(len(keys))])
    monkeypatch.setattr(server.router, "answer", lambda request, _: told.append(request.caller.name))
    for n in range(1, 5):
        server.step(0.0)
        assert len(asked) == len(told) == n
    assert told == ["key admin", "key 0", "key 1", "key 2"]
    people = [socket.socket(socket.AF_UNIX) for _ in range(3)]
    for one in people:
        one.connect(str(server.admin.path))
        one.sendall(len(frame).to_bytes(4, "big") + frame)
    server.step(0.0)
    for n in range(5, 8):
        server.step(0.0)
        assert len(asked) == n
    for one in people:
        one.close()


def test_messages_of_nodes_wait_no_longer_after_a_round_in_which_people_were_answered(server, monkeypatch):
    now_s = [1000.0]

    def passes(seconds: float) -> None:
        now_s[0] += seconds

    clock = SimpleNamespace(**{**vars(time), "monotonic": lambda: now_s[0], "sleep": passes})
    monkeypatch.setattr("cluster_agent.serve.server.time", clock)
    monkeypatch.setattr(server.router, "answer", lambda *_: None)
    for works_s, waits_s in ((0.0, ROUND_S), (0.004, 4 * 0.004)):
        server.handlers[ListNodes] = lambda *_: passes(0.006) or []
        keys = [PeopleRequest(Caller(NOBODY, "key", "viewer"), sent("nodes", {}), None)]
        monkeypatch.setattr(server.router, "requests", lambda keys=keys: [keys.pop()] if keys else [])
        monkeypatch.setattr(server.router, "receive", lambda _, works_s=works_s: passes(works_s) or [])
        passes(1.0)
        began_s = now_s[0]
        server.step(0.0)
        assert not keys and server._round_end_s == pytest.approx(began_s + waits_s)


def test_a_request_that_has_waited_for_longer_than_whoever_asked_is_not_answered(server, monkeypatch):
    monkeypatch.setattr("cluster_agent.serve.server.PEOPLE_S", 0.0)
    asked: list[str] = []
    server.handlers[ListNodes] = lambda caller, request: asked.append(caller.name) or []
    keys = [PeopleRequest(Caller(NOBODY, f"key {n}", "viewer"), sent("nodes", {}), None) for n in range(3)]
    monkeypatch.setattr(server.router, "requests", lambda: [keys.pop(0) for _ in range(len(keys))])
    monkeypatch.setattr(server.router, "answer", lambda *_: None)
    server._turn(100.0, [])
    server._turn(100.0 + PATIENCE_S, [])
    server._turn(100.0 + PATIENCE_S, [])
    assert asked == ["key 0"]
