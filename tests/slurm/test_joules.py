"""Joules of jobs that another manager runs: exact on nodes of their own, unknown where nobody can know them."""

from __future__ import annotations

import csv
import itertools
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cluster_agent.commands.beside_slurm import slurm_energy
from cluster_agent.commands.beside_slurm.slurm_energy import Sum
from cluster_agent.errors import ClusterError
from cluster_agent.fabric.people import Caller
from cluster_agent.history import kept_rows
from cluster_agent.jobs.foreign_jobs import ForeignJob
from cluster_agent.serve.config import BudgetSettings, NodeSettings, Settings
from cluster_agent.serve.people_protocol import (
    CountJoules,
    ForgetHistory,
    JoulesRow,
    ListForeign,
    ListJoules,
    ListRunning,
    NotifyEnd,
    NotifyStart,
    RunningJob,
)
from cluster_agent.serve.server import Server
from cluster_agent.slurm.bound_times import BoundTimes
from cluster_agent.slurm.job_comments import JobComments, words
from cluster_agent.slurm.job_joules import JobJoules
from foundation.wire.power_messages import Declaration
from lab.cluster_demo.emulated_partition import free_port
from tests.fabric.links import report

SLURM = Caller(64032, "slurm", "notifier")
DECLARED = Declaration(tdp_mw=500_000, mop_mw=100_000, safe_mw=100_000, boot_mw=100_000, lease_class="hw")
NODES = ("n1", "n2", "n3")


class Head:
    """A cluster agent whose clocks and reports are the test's. Node number k draws k times 100 W."""

    def __init__(self, at: Path) -> None:
        self.at, self.now_s, self.ids = at, 1000.0, itertools.count(1)
        self.boots = dict.fromkeys(NODES, "boot-1")
        self.mj = dict.fromkeys(NODES, 5_000_000)
        self.shares: dict[str, dict[str, tuple[int, int]]] = {}
        self.bound: set[str] = set()
        self.settings = Settings(
            listen=f"tcp://127.0.0.1:{free_port()}", insecure=True, keys=str(at), store=str(at / "a.db"),
            socket=str(at / "s"), mode="observe", budget=BudgetSettings(w=2000.0), nodes=NodeSettings(tdp_w=500.0),
        )  # fmt: skip
        self.open()

    def open(self) -> None:
        self.server = Server(self.settings, lambda line: None, lambda: self.now_s, lambda: 1e9 + self.now_s)

    def restart(self) -> None:
        self.server.close()
        self.open()

    def run(self, seconds: int) -> None:
        """Each node reports once a second."""
        for _ in range(seconds):
            self.now_s += 1.0
            for number, node in enumerate(NODES, start=1):
                self.mj[node] += number * 100_000
            self.server.partition.hear(self.now_s, [
                report(node, boot_id=self.boots[node], report_id=next(self.ids), declaration=DECLARED,
                       energy_mj=self.mj[node], power_mw=100_000 * int(node[1]), site_jobs=self.shares.get(node, {}),
                       asked_mw=400_000, held="yes" if node in self.bound else "no")
                for node in NODES
            ])  # fmt: skip
            self.server._foreign_starts.hear(self.now_s, self.server.partition.reports.values())

    def start(self, job: str, node_list: str, **more: object) -> None:
        self.server.handlers[NotifyStart](SLURM, NotifyStart(job, node_list=node_list, cluster="hpc", **more))

    def end(self, job: str, **more: object) -> None:
        self.server.handlers[NotifyEnd](SLURM, NotifyEnd(job, "hpc", **more))

    def rows(self) -> list[JoulesRow]:
        found: list[JoulesRow] = self.server.handlers[ListJoules](SLURM, ListJoules())
        return found


@pytest.fixture
def head(tmp_path: Path) -> Iterator[Head]:
    made = Head(tmp_path)
    yield made
    made.server.close()


def test_a_jobs_joules_are_those_of_its_nodes_between_its_notices(head: Head) -> None:
    head.run(3)
    head.now_s += 0.5  # between two reports: 0.5 s at the power of the last one
    head.start("7", "n[1-2],gpu1", user="alice", title="solve", tag="memory")
    head.now_s -= 0.5
    head.run(60)
    head.now_s += 0.25
    head.end("7")
    (row,) = head.rows()
    assert (row.user, row.title, row.tag, row.nodes, row.is_shared) == ("alice", "solve", "memory", 2, False)
    assert row.ended_s - row.began_s == pytest.approx(59.75)
    assert row.energy_j == pytest.approx((100 + 200) * 59.75)
    of_it = Sum()
    of_it.add(row)
    assert of_it.node_w == pytest.approx(150.0)


def test_a_row_says_for_how_long_a_cap_bound_its_nodes_and_what_decided_it(head: Head) -> None:
    head.run(1)
    head.start("7", "n[1-2]", partition="batch")
    head.run(10)
    head.bound = {"n1"}
    head.start("7", "n[1-2]")  # of `follow`, a second notice of the same run
    head.run(5)
    head.bound = {"n1", "n2", "n3"}
    head.start("8", "n2")  # on a node that both have, its cap binds both
    head.run(5)
    head.now_s += 100.0  # no report: 15 s of that count at most
    head.run(1)
    head.end("8")
    head.end("7")
    head.bound = set()
    head.start("7", "n1")
    head.run(2)
    head.end("7")
    eight, seven, again = head.rows()
    (by,) = seven.bound_s
    assert by == head.server.partition.sharing.in_short("n1")[0] != ""
    assert (seven.partition, seven.heard_s, seven.bound_s[by]) == ("batch", 2 * (20 + 15), 5 + 2 * (5 + 15))
    assert (eight.partition, eight.heard_s, eight.bound_s) == ("", 20.0, {by: 20.0})
    assert (again.partition, again.heard_s, again.bound_s) == ("", 2.0, {}), "nothing is left of the earlier run"


def test_after_a_restart_it_covers_the_time_since(head: Head) -> None:
    head.bound = {"n1"}
    head.run(1)
    head.start("7", "n1", partition="batch")
    head.run(10)
    head.restart()
    head.run(4)
    head.end("7")
    head.restart()
    (row,) = head.rows()
    assert (row.partition, row.heard_s, sum(row.bound_s.values())) == ("batch", 3.0, 3.0)


def test_a_bound_node_whose_cap_no_plan_explains_is_bound_all_the_same() -> None:
    times, job = BoundTimes(), ForeignJob("7", ["n1"])
    times.began(1.0, job)
    times.hear(3.0, [report("n1", asked_mw=400_000, held="yes")], {"n1": [job.key]}, lambda heard: ("", None))
    assert (times.of(job).heard_s, times.of(job).bound_s) == (2.0, {"not known": 2.0})


def test_a_users_mean_stands_next_to_that_of_the_partition(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def job(number: int, user: str, partition: str, watts: float, **more: object) -> JoulesRow:
        one = msgspec.structs.replace(made(number, user), energy_j=watts, partition=partition)  # of a second
        return msgspec.structs.replace(one, **more)

    rows = [
        job(1, "alice", "batch", 100.0, heard_s=10.0, bound_s={"even: slowed": 4.0, "even: tag": 1.0}),
        job(2, "alice", "gpu", 900.0),
        job(3, "bob", "batch", 300.0, heard_s=2.0),
        job(4, "bob", "", 500.0, energy_j=None),
    ]
    monkeypatch.setattr(slurm_energy, "rows_since", lambda socket, request: rows)
    monkeypatch.setenv("COLUMNS", "160")

    def shown(*words: str) -> str:
        return CliRunner().invoke(slurm_energy.energy, ["--socket", "none", *words], catch_exceptions=False).output

    assert [" ".join(line.split()) for line in shown("--users").splitlines()[1:5]] == [
        "alice gpu 1 0 0.0003 900.0 900.0 -",
        "bob batch 1 0 0.0001 300.0 200.0 0 %",
        "alice batch 1 0 0.0000 100.0 200.0 50 % (even: slowed, 40 %; others)",
        "bob - 1 1 0.0000 - 433.3 -",
    ]
    of_alice = shown("--user", "alice").splitlines()
    assert of_alice[-3:-1] == [
        "partition batch, of alice 100.0 W a node: 2 jobs, 0.0001 kWh, 200.0 W a node",
        "partition gpu, of alice 900.0 W a node: 1 jobs, 0.0003 kWh, 900.0 W a node",
    ]
    assert of_alice[-1].startswith("all users: 4 jobs")

    file = tmp_path / "rows.csv"
    assert shown("--out", str(file)) == f"{file}: 4 jobs\n"
    with open(file, newline="") as text:
        read = list(csv.DictReader(text))
    assert [(row["job"], row["energy_j"], row["partition"]) for row in read] == [
        ("1", "100.0", "batch"), ("2", "900.0", "gpu"), ("3", "300.0", "batch"), ("4", "", ""),
    ]  # fmt: skip
    assert msgspec.json.decode(read[0]["bound_s"]) == rows[0].bound_s
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'nodectl[export]'")
    shown("--user", "bob", "--out", str(tmp_path / "rows.parquet"))
    stored = pq.read_table(tmp_path / "rows.parquet").to_pylist()
    assert stored == [msgspec.structs.asdict(row) | {"bound_s": "{}"} for row in rows[2:]]


def test_they_go_on_over_a_restart_of_the_cluster_agent_and_of_a_notice(head: Head) -> None:
    head.run(1)
    head.start("7", "n2", user="alice")
    head.run(10)
    head.restart()
    head.run(10)
    head.start("7", "n2", user="alice", submitted_s=1_795_909_975)  # of `follow`, which knows the submission
    head.run(10)
    head.end("7", submitted_s=1_795_909_975, restarts=0)
    head.restart()
    (row,) = head.rows()
    assert row.energy_j == pytest.approx(200.0 * 30) and row.submitted_s == 1_795_909_975


def test_where_jobs_share_a_node_neither_has_joules(head: Head) -> None:
    head.run(1)
    head.start("7", "n[1-2]")
    head.run(5)
    head.start("8", "n2")
    head.start("9", "n3")
    head.run(5)
    head.end("8")
    head.end("7")
    head.run(5)
    head.end("9")
    assert [(row.job, row.energy_j, row.is_shared) for row in head.rows()] == [
        ("8", None, True), ("7", None, True), ("9", pytest.approx(300.0 * 10), False),
    ]  # fmt: skip


def test_where_nodes_say_whose_the_joules_are_jobs_that_share_them_have_their_own(head: Head) -> None:
    head.run(1)
    head.start("7", "n[1-2]")
    head.start("8", "n2")
    head.start("9", "n2")
    head.shares = {"n1": {"7": (500_000, 90_000)}, "n2": {"7": (300_000, 40_000), "8": (70_000_000, 0)}}
    head.run(5)
    head.now_s += 0.5  # since the last report: half a second at the watts that each had then
    for job in "789":
        head.end(job)
    assert [(row.job, row.energy_j, row.is_shared) for row in head.rows()] == [
        ("7", pytest.approx(500.0 + 300.0 + 0.5 * (90.0 + 40.0)), True),
        ("8", pytest.approx(200.0 * 5.5), True),  # no more than its node drew
        ("9", None, True),  # no prolog has run there for it
    ]
    kept = head.server.history.history.rows(0.0, "", 9)
    assert [(row.job, row.watts) for row in kept] == [("7", None), ("8", None), ("9", None)], "they learn no share"


def test_metrics_get_the_joules_of_jobs_that_run_and_of_users_whose_jobs_have_ended(head: Head) -> None:
    def running() -> list[RunningJob]:
        return list(head.server.handlers[ListRunning](SLURM, ListRunning()))

    def users() -> dict[str, tuple[float, int, int]]:
        return {one.user: (one.energy_j, one.jobs, one.unknown)
                for one in head.server.handlers[CountJoules](SLURM, CountJoules())}  # fmt: skip

    head.run(1)
    head.start("7", "n[1-2]", user="alice")
    head.start("8", "n3", user="bob")
    head.run(10)
    seven, eight = running()
    assert (seven.job, seven.manager, seven.user, seven.nodes) == ("7", "hpc", "alice", ["n1", "n2"])
    assert (seven.energy_j, eight.energy_j) == (pytest.approx(3000.0), pytest.approx(3000.0))
    assert users() == {}, "of jobs that have ended"
    head.end("7")
    head.start("9", "n3", user="alice")
    assert [(one.job, one.energy_j, one.is_shared) for one in running()] == [("8", None, True), ("9", None, True)]
    head.end("9")
    head.end("8")
    assert users() == {"alice": (pytest.approx(3000.0), 2, 1), "bob": (0.0, 1, 1)}
    head.server.handlers[ForgetHistory](Caller(0, "root", "admin"), ForgetHistory("alice"))
    assert set(users()) == {"bob"}
    head.restart()
    assert users() == {}, "counters that begin with the agent, as their help says"


def test_a_node_that_booted_or_has_no_counter_has_none(head: Head) -> None:
    head.run(1)
    head.start("7", "n1")
    head.boots["n1"] = "boot-2"
    head.run(5)
    head.end("7")
    head.mj["n2"] = -10_000_000
    head.run(1)
    head.start("8", "n2")
    head.run(1)
    head.end("8")
    head.start("9", "n3")
    head.mj["n3"] = 0  # it fell
    head.run(1)
    head.end("9")
    assert [row.energy_j for row in head.rows()] == [None, None, None]


def test_each_run_of_a_number_has_a_row_of_its_own(head: Head) -> None:
    """A requeued job whose epilog was lost, and a number that Slurm has given again."""
    head.run(1)
    head.start("7", "n1", user="alice", restarts=0)
    head.run(10)
    head.start("7", "n2", user="alice", restarts=1)
    head.run(10)
    head.start("7", "n3", user="bob", restarts=1)
    assert [one.user for one in head.server.handlers[ListForeign](SLURM, ListForeign())] == ["bob"]
    head.run(10)
    head.end("7", restarts=0)  # late, of the first run
    head.end("7", restarts=1)
    assert [(row.user, row.restarts, row.energy_j) for row in head.rows()] == [
        ("alice", 0, pytest.approx(1000.0)), ("alice", 1, pytest.approx(2000.0)), ("bob", 1, pytest.approx(3000.0)),
    ]  # fmt: skip


def test_joules_reach_slurms_record_as_words_and_are_tried_again_until_it_is_there() -> None:
    rows, taken, lines = (
        [msgspec.structs.replace(made(1), nodes=2, energy_j=600.0, ended_s=11.0)],
        list[str](),
        list[str](),
    )
    is_there = False
    now_s = 0.0

    def store(row: JoulesRow) -> None:
        if not is_there:
            raise ClusterError("no such job yet")
        taken.append(f"{row.job}: {words(row)}")

    comments = JobComments(
        lambda since_s: [row for row in rows if row.ended_s > since_s], store, lines.append, lambda: now_s
    )
    comments.turn()
    is_there = True
    comments.turn()
    comments.turn()
    assert taken == ["1: nodectl joules=600 mean_w=30.0 nodes=2"]
    is_there = False
    rows.append(msgspec.structs.replace(made(2), energy_j=None, ended_s=12.0))
    comments.turn()
    now_s = 400.0
    comments.turn()
    comments.turn()
    assert lines == ["no such job yet; given up"]
    shared = msgspec.structs.replace(made(3), energy_j=None, is_shared=True)
    known = msgspec.structs.replace(shared, energy_j=5.0)
    assert words(known) == "nodectl joules=5 mean_w=5.0 nodes=1 shared=yes"
    assert (words(rows[1]), words(shared)) == ("nodectl joules=unknown nodes=1", "nodectl joules=shared nodes=1")


def made(number: int, user: str = "alice") -> JoulesRow:
    return JoulesRow(str(number), "hpc", 0, 0, user, "", "", 1, float(number), number + 1.0, 5.0, False)


def test_rows_stay_within_two_files_and_survive_damage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kept_rows, "MOST_BYTES", 4000)
    path = tmp_path / "joules"
    joules = JobJoules(path)
    for number in range(200):
        joules.add(made(number))
    assert sum(file.stat().st_size for file in tmp_path.iterdir()) < 2 * 4200 and len(list(tmp_path.iterdir())) == 2
    assert len(joules.since(-1.0, "", 1000)) == 200
    assert [one.job for one in joules.since(51.0, "", 2)] == ["51", "52"]
    kept = [one.job for one in JobJoules(path).since(-1.0, "", 1000)]
    assert kept == [str(number) for number in range(200 - len(kept), 200)] and len(kept) > 20
    path.write_bytes(b'\x00{"x": 1}\n' + msgspec.json.encode(made(500)) + b"\n" + msgspec.json.encode(made(501))[:-3])
    assert [one.job for one in JobJoules(path).since(300.0, "", 9)] == ["500"]
    joules._path = tmp_path / "none" / "joules"
    joules.add(made(502))
    assert "cannot write the joules of jobs" in joules.trouble
    assert joules.since(502.0, "alice", 9) and not joules.since(502.0, "bob", 9)
