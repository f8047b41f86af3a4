"""`clusterctl top` and `clusterctl metrics`: looking at a partition without a right to change it."""

import asyncio
import os
import pty
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable
from typing import Any

import msgspec
import pytest

from lab.cluster_demo.emulated_partition import free_port
from tests.fabric.cluster import PATIENCE_S, ROOT, Cluster

pytest.importorskip("textual", reason="textual is not installed")
pytest.importorskip("prometheus_client", reason="prometheus-client is not installed")

from prometheus_client.parser import text_string_to_metric_families
from textual.pilot import Pilot
from textual.widgets import DataTable, Static

from cluster_agent.commands import metrics
from cluster_agent.commands.metrics import PartitionCollector
from cluster_agent.commands.top import Reason, Top, summary
from cluster_agent.errors import WrongUseError
from cluster_agent.fabric.ask import ask
from cluster_agent.serve.people_protocol import (
    BudgetView,
    JobRow,
    ListJobs,
    ListNodes,
    NodeRow,
    NotifyEnd,
    NotifyStart,
    ShowBudget,
)


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    """Two nodes, one job that runs and one that waits."""
    with Cluster(tmp_path_factory.mktemp("looking"), 1000.0, jobs={}) as made:
        made.serve()
        for name in ("n0", "n1"):
            made.node(name, cap_w=150.0)
        made.until(lambda: sum(row["jobs"] == "idle" for row in made.ask("nodes") or []) == 2)
        for _ in range(2):
            done = made.ctl("submit", "-D", str(made.at), "-N", "2", "-J", "one", "--", "sleep", "600")
            assert done.returncode == 0, done.stderr
        made.until(lambda: made.ask("jobs", "1")["row"]["state"] == "running")
        yield made
        made.ctl("cancel", "1", "2")
        made.until(lambda: made.ask("jobs", "1")["row"]["state"] == "cancelled", is_kept=False)


def test_metrics_tell_prometheus_of_budget_nodes_and_jobs(cluster):
    port = free_port()
    options = ["metrics", "--listen", f"127.0.0.1:{port}", "--socket", str(cluster.socket)]
    process = cluster.start("-m", "cluster_agent.cli", *options, log="metrics.log")
    cluster.until(lambda: "http://" in (cluster.at / "metrics.log").read_text())
    watts, joules = "clusterctl_job_power_watts", "clusterctl_job_energy_joules_total"

    def scraped() -> dict[tuple[Any, ...], float]:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
            families = text_string_to_metric_families(answer.read().decode())
        return {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}

    cluster.until(lambda: any(key[0] == joules for key in scraped()))
    found = scraped()
    assert found["clusterctl_up",] == 1
    assert found["clusterctl_budget_watts",] == 1000.0
    assert found["clusterctl_nodes",] == 2
    row = next(row for row in cluster.ask("nodes") if row["name"] == "n0")
    assert found["clusterctl_node_in_force_watts", ("node", "n0")] == pytest.approx(row["in_force_w"])
    assert found["clusterctl_node_power_watts", ("node", "n1")] > 0
    assert found["clusterctl_jobs", ("state", "running")] == 1
    assert found["clusterctl_jobs", ("state", "queued")] == 1
    assert found["clusterctl_node_jobs", ("node", "n0")] + found["clusterctl_node_jobs", ("node", "n1")] >= 1
    (running,) = {key[1:] for key in found if key[0] == watts}
    assert ("jobid", "1") in running and found[watts, *running] > 0
    assert found[joules, *running] >= 0
    later = scraped()  # nodes and partition are read one after the other, while joules grow
    of_nodes, later_of_nodes = (
        [one["clusterctl_node_energy_joules_total", ("node", name)] for name in ("n0", "n1")] for one in (found, later)
    )
    rounding_j = 1e-6
    assert min(of_nodes) > 0 and sum(of_nodes) <= later["clusterctl_energy_joules_total",] + rounding_j
    assert found["clusterctl_energy_joules_total",] <= sum(later_of_nodes) + rounding_j
    assert 0 < found["clusterctl_loop_lag_seconds",] < PATIENCE_S
    by_state = {state: found["clusterctl_job_nodes", ("state", state)] for state in ("idle", "allocated", "down")}
    assert by_state["allocated"] >= 1 and sum(by_state.values()) == 2
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0


def test_without_its_agent_a_scrape_says_so_and_nothing_else(tmp_path):
    (family,) = PartitionCollector(tmp_path / "nobody.sock").collect()
    assert (family.name, [sample.value for sample in family.samples]) == ("clusterctl_up", [0])


Found = dict[tuple[Any, ...], float]


def collected(cluster: Cluster) -> Found:
    families = PartitionCollector(cluster.socket).collect()
    return {(one.name, *sorted(one.labels.items())): one.value for family in families for one in family.samples}


def test_metrics_have_jobs_of_another_manager_and_users_from_0(cluster):
    job = {"jobid": "77", "user": 'al"ice\n', "manager": "hpc"}
    ask(cluster.socket, NotifyStart("77", ["n0", "elsewhere"], cluster="hpc", user=job["user"]))
    try:
        found = collected(cluster)
        assert found["clusterctl_job_power_watts", *sorted(job.items())] > 0
        assert found["clusterctl_job_node_info", *sorted((job | {"node": "n0"}).items())] == 1
        assert found["clusterctl_node_jobs", ("node", "n0")] == 2
        assert found["clusterctl_user_energy_joules_total", ("user", job["user"])] == 0
        assert found["clusterctl_user_ended_jobs_total", ("energy", "known"), ("user", job["user"])] == 0
    finally:
        ask(cluster.socket, NotifyEnd("77", "hpc"))
    later = collected(cluster)
    assert later["clusterctl_user_ended_jobs_total", ("energy", "unknown"), ("user", job["user"])] == 1
    assert ("clusterctl_job_power_watts", *sorted(job.items())) not in later
    assert later["clusterctl_store_free_bytes",] > 0 and later["clusterctl_alarm", ("kind", "store")] == 0


def test_of_an_older_cluster_agent_metrics_show_what_it_knows(cluster, monkeypatch):
    now = collected(cluster)

    def older(place: Any, request: Any) -> Any:
        if request.kind in ("foreign-running", "user-joules"):
            raise WrongUseError(f"no request {request.kind!r} here")
        return ask(place, request)

    monkeypatch.setattr(metrics, "ask", older)
    found = collected(cluster)
    assert {key[0] for key in now} - {key[0] for key in found} <= {
        "clusterctl_user_energy_joules_total", "clusterctl_user_ended_jobs_total",
        "clusterctl_budget_set_timestamp_seconds",
    }  # fmt: skip
    assert any(key[0] == "clusterctl_job_node_info" for key in found)


@pytest.mark.parametrize("state", ["silent", "off", "left"])
def test_metrics_have_no_power_of_a_node_that_does_not_report(cluster, monkeypatch, state):
    """Its last report is over: the sum would count watts that other nodes have by now."""

    def later(place: Any, request: Any) -> Any:
        found = ask(place, request)
        for row in found if request.kind == "nodes" else ():
            row.state = state if row.name == "n0" else row.state
        return found

    monkeypatch.setattr(metrics, "ask", later)
    found = collected(cluster)
    assert {key[1:] for key in found if key[0] == "clusterctl_node_power_watts"} == {(("node", "n1"),)}
    assert found["clusterctl_node_in_force_watts", ("node", "n0")] > 0


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--listen", "here"], "--listen here: give HOST:PORT, like 127.0.0.1:9741"),
        (["--listen", "127.0.0.1:99999"], "give HOST:PORT"),
        (["--listen", "203.0.113.1:9741"], "cannot listen there"),
    ],
)
def test_an_address_that_is_none_is_refused_in_one_line(cluster, options, said):
    done = cluster.ctl("metrics", *options)
    assert done.returncode in (1, 2)
    assert said in done.stderr and done.stderr.count("\n") == 1


async def until(pilot: Pilot[None], is_so: Callable[[], bool]) -> None:
    end_s = time.monotonic() + PATIENCE_S
    while not is_so():
        assert time.monotonic() < end_s
        await pilot.pause(0.05)


def test_top_shows_budget_nodes_and_jobs_and_why_a_node_has_its_cap(cluster):
    async def look() -> None:
        app = Top(cluster.socket, 0.2)
        async with app.run_test(size=(160, 40)) as pilot:
            nodes, jobs = app.query_one("#nodes", DataTable), app.query_one("#jobs", DataTable)
            await until(pilot, lambda: nodes.row_count == 2 and jobs.row_count == 2)
            assert [nodes.get_row_at(n)[0] for n in range(2)] == ["n0", "n1"]
            assert [jobs.get_row_at(n)[3] for n in range(2)] == ["running", "queued"]
            assert "of 1000 W" in str(app.query_one("#budget", Static).render())
            await pilot.press("down", "enter")
            await until(pilot, lambda: isinstance(app.screen, Reason))
            assert "job 1" in str(app.screen.query_one(Static).render())
            await pilot.press("escape", "q")
        assert app.return_code == 0

    asyncio.run(look())


def test_top_goes_on_when_the_agent_is_away(tmp_path):
    async def look() -> str:
        app = Top(tmp_path / "nobody.sock", 0.2)
        async with app.run_test() as pilot:
            budget = app.query_one("#budget", Static)
            await until(pilot, lambda: "no cluster agent" in str(budget.render()))
            return str(budget.render())

    assert "the tables are from before" in asyncio.run(look())


def test_an_answer_that_comes_when_top_is_below_another_screen_or_at_its_end_is_no_error(cluster):
    """An agent slow to answer, of which the request's thread has the answer only then."""
    budget, rows, queue = (ask(cluster.socket, each) for each in (ShowBudget(), ListNodes(), ListJobs()))
    app = Top(cluster.socket, 60.0)

    async def look() -> DataTable[str]:
        async with app.run_test() as pilot:
            nodes = app.query_one("#nodes", DataTable)
            await until(pilot, lambda: nodes.row_count == 2)
            await pilot.press("enter")
            await until(pilot, lambda: isinstance(app.screen, Reason))
            app._show(budget, rows[:1], queue)
            assert nodes.row_count == 1
        app._show(budget, rows, queue)
        app._say("no cluster agent")
        return nodes

    assert asyncio.run(look()).row_count == 2


def test_top_wants_a_terminal_and_leaves_it_as_it_was(cluster):
    assert "top needs a terminal" in cluster.ctl("top").stderr
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "cluster_agent.cli", "top", "--socket", str(cluster.socket)]
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TERM": "xterm"}
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment, cwd=ROOT) as process:
        os.close(theirs)
        drawn, is_asked = b"", False
        while True:
            try:
                part = os.read(ours, 65536)
            except OSError:  # the last one who had it open has ended
                break
            drawn += part
            if not is_asked and b"epoch" in drawn:
                is_asked = True
                os.write(ours, b"q")
        assert process.wait(PATIENCE_S) == 0
    os.close(ours)
    assert b"\x1b[?1049h" in drawn and b"\x1b[?1049l" in drawn, "it draws on a screen of its own, and leaves it"


def test_nodes_may_be_requested_a_few_at_a_time(cluster):
    def names(request: ListNodes) -> list[str]:
        return [row.name for row in ask(cluster.socket, request)]

    assert names(ListNodes()) == ["n0", "n1"] and names(ListNodes(most=1)) == ["n0"]
    assert names(ListNodes("n0", 5)) == names(ListNodes("n00", 1)) == ["n1"] and names(ListNodes("n1", 5)) == []


def test_the_page_of_a_partition_says_what_runs_and_why_the_other_job_waits(cluster):
    def fetched(path: str) -> str:
        with socket.socket(socket.AF_UNIX) as peer:
            peer.settimeout(PATIENCE_S)
            peer.connect(str(at))
            peer.sendall(f"GET {path} HTTP/1.0\r\n\r\n".encode())
            return b"".join(iter(lambda: peer.recv(1 << 16), b"")).decode()

    at = cluster.at / "page.sock"
    command = [sys.executable, "-m", "cluster_agent.cli", "page", "--socket", str(cluster.socket), "--listen", str(at)]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment, cwd=ROOT)
    try:
        assert process.stderr.readline().startswith("clusterctl page:")
        cluster.until(lambda: "first in the queue" in fetched("/jobs"))
        for path in ("/", "/nodes", "/nodes/n0", "/jobs/1", "/jobs/2", "/budget", "/energy", "/alarms", "/page.css"):
            assert fetched(path).startswith("HTTP/1.1 200 "), path
        cluster.until(lambda: "1000" in fetched("/") and "n1" in fetched("/nodes"))  # each part is requested by itself
        cluster.until(lambda: fetched("/nodes/n7").startswith("HTTP/1.1 404 "))
        rows = msgspec.json.decode(fetched("/api/jobs").partition("\r\n\r\n")[2], type=list[JobRow])
        assert [(row.job, row.title, row.state) for row in rows] == [(1, "one", "running"), (2, "one", "queued")]
        process.terminate()
        assert process.wait(PATIENCE_S) == 0 and process.stderr.read() == ""
    finally:
        process.kill()
        process.wait()


def test_the_bar_of_top_adds_up():
    view = BudgetView(
        budget_w=1000, fixed_w=100, counts_w=700, reserve_w=50, free_w=150, over_w=0, mop_w=200, short_w=0, nodes=2,
        silent=0, is_young=False, mode="cap", sharer="fspc", epoch=3, steps=[(60.0, 800.0)], alarms=["nodes burn"],
    )  # fmt: skip
    row = NodeRow("n0", "capped", 400, 400, 400, 400, 300, "", "measured", "sticky", 0.5)
    lines = summary(view, [row]).splitlines()
    bar = lines[0].partition("]")[0][1:]
    assert (bar.count("#"), bar.count("="), bar.count("-"), bar.count(".")) == (4, 12, 16, 8)
    assert lines[-2:] == ["in 60 s: 800 W", "ALARM: nodes burn"]
