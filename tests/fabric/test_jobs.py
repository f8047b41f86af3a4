"""Jobs on a partition of real processes: `clusterctl serve`, nodes with their real links and runners, and kills."""

import csv
import importlib
import json
import os
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from cluster_agent.cli import COMMANDS
from tests.fabric.cluster import Cluster, Done


def idle(cluster: Cluster, n: int) -> bool:
    return sum(row["jobs"] == "idle" for row in cluster.ask("nodes") or []) == n


def start(cluster: Cluster, n_nodes: int) -> subprocess.Popen[bytes]:
    """The cluster agent and its nodes, all ready for jobs; the cluster agent's process."""
    serve = cluster.serve()
    for n in range(n_nodes):
        cluster.node(f"n{n}", cap_w=150.0)
    cluster.until(lambda: idle(cluster, n_nodes))
    return serve


def submit(cluster: Cluster, text: str, *options: str) -> int:
    """A shell command as a job in the cluster's directory; its number."""
    done = cluster.ctl("submit", "-D", str(cluster.at), *options, "--", "/bin/sh", "-c", text)
    assert done.returncode == 0, done.stderr
    return int(done.stdout.removeprefix("job "))


def row(cluster: Cluster, job: int) -> dict:
    found = cluster.ask("jobs", str(job))
    return found["row"] if found else {"state": ""}


def wait(cluster: Cluster, job: int, *states: str) -> dict:
    cluster.until(lambda: row(cluster, job)["state"] in states, is_kept=False)
    return row(cluster, job)


def test_a_submitted_job_runs_on_its_nodes_and_leaves_its_output_and_its_record(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}, sharer="aapc") as cluster:
        start(cluster, 3)
        text = "echo $NODECTL_NODE of $NODECTL_NODES; echo $GREETING; sleep 1.5"
        job = submit(
            cluster, text, "-N", "2", "--tag", "memory", "-J", "first", "-o", "out-%j-%N", "--env", "GREETING=hello"
        )
        wait(cluster, job, "running")
        states = {one["name"]: (one["jobs"], one["job"]) for one in cluster.ask("nodes")}
        assert states == {"n0": ("allocated", str(job)), "n1": ("allocated", str(job)), "n2": ("idle", "")}
        assert f"job {job}, MEMORY (user)" in cluster.ctl("why", "n0").stdout
        done = wait(cluster, job, "done", "failed")
        assert (done["state"], done["title"], done["status"], done["node_names"]) == ("done", "first", 0, "n0,n1")
        assert (done["tag"], done["tag_source"]) == ("MEMORY", "user")
        assert (tmp_path / f"out-{job}-n1").read_text() == "n1 of n0,n1\nhello\n"
        assert done["energy_j"] > 100 and 0.3 < done["covered"] <= 1.1
        text = cluster.ctl("jobs", str(job)).stdout
        assert "energy as nodes report it" in text and "MEMORY, from user" in text
        # the same user's job of the same name, without a word on its tag
        again = submit(cluster, "sleep 0.5", "-J", "first")
        assert wait(cluster, again, "done")["tag_source"] == "job history"


def test_a_node_that_gets_a_job_gets_its_cap_at_once(tmp_path):
    with Cluster(tmp_path, 700.0, jobs={}, sharer="aapc") as cluster:
        start(cluster, 3)
        cluster.until(lambda: all(cluster.cap_w(name) < 240.0 for name in cluster.names))
        began_s = time.monotonic()
        submit(cluster, "sleep 60", "--tag", "compute")
        cluster.until(lambda: cluster.cap_w("n0") > 390.0)
        assert time.monotonic() - began_s < 4.0, "it did not wait for the next plan"
        assert cluster.ctl("cancel", "1").returncode == 0


def test_jobs_are_ended_by_people_and_by_their_walltime(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        start(cluster, 1)
        long = submit(cluster, "sleep 1000")
        waiting = submit(cluster, "sleep 1000")
        wait(cluster, long, "running")
        assert cluster.ctl("cancel", str(waiting), str(long)).stdout == (
            f"job {waiting} is cancelled\njob {long} is being ended\n"
        )
        assert wait(cluster, long, "cancelled")["status"] == -signal.SIGTERM
        short = submit(cluster, "trap '' TERM; sleep 1000", "-t", "1s", "--grace", "1s")
        assert wait(cluster, short, "timeout")["reason"] == "its 1 s were over"
        again = cluster.ctl("requeue", str(short))
        assert again.stdout == f"job {short} is queued\n"
        assert wait(cluster, short, "running", "ending")["attempts"] == 2
        assert "is cancelled already" in cluster.ctl("cancel", str(long)).stdout


def test_killed_agents_lose_no_job_and_run_none_twice(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        serve = start(cluster, 2)
        jobs = [submit(cluster, f"echo {n} >>ran; sleep 1") for n in range(6)]
        wait(cluster, jobs[0], "running")
        for _ in range(3):
            serve.kill()
            serve.wait()
            serve = cluster.serve()
            time.sleep(0.7)
        node = cluster.started["n1"]
        node.kill()
        node.wait()
        cluster.node("n1")
        found = [wait(cluster, job, "done", "failed", "lost") for job in jobs]
        assert [(one["state"], one["attempts"]) for one in found] == [("done", 1)] * 6
        assert sorted((tmp_path / "ran").read_text().split()) == list("012345")


def test_a_drained_node_gets_no_job_and_says_why(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        start(cluster, 2)
        assert cluster.ctl("drain", "n0", "--reason", "a fan").stdout == "n0 gets no more jobs\n"
        job = submit(cluster, "sleep 0.2")
        assert wait(cluster, job, "done")["node_names"] == "n1"
        assert "draining: a fan" in cluster.ctl("nodes").stdout
        both = submit(cluster, "sleep 0.2", "-N", "2")
        assert cluster.ctl("resume", "n0").returncode == 0
        assert wait(cluster, both, "done")["node_names"] == "n0,n1"
        assert "nearest: n0" in cluster.ctl("drain", "n00").stderr


def test_a_node_of_a_new_key_joins_and_gets_jobs(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        start(cluster, 1)
        refused = cluster.ctl("submit", "-N", "2", "--", "true")
        assert (refused.returncode, "2 nodes asked for, and the partition has 1" in refused.stderr) == (2, True)
        cluster.node("n1", cap_w=150.0)
        cluster.until(lambda: idle(cluster, 2))
        assert wait(cluster, submit(cluster, "true", "-N", "2"), "done")["node_names"] == "n0,n1"


def test_a_script_brings_its_options_and_the_command_line_wins(tmp_path):
    script = tmp_path / "work.sh"
    script.write_text("#!/bin/sh\n#NODECTL --nodes 2 --time 90s\n#NODECTL --tag mixed  # a remark\necho $1\n")
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        start(cluster, 1)
        done = cluster.ctl("submit", "--script", str(script), "-N", "1", "-D", str(tmp_path), "--", "argument")
        assert done.returncode == 0, done.stderr
        found = wait(cluster, 1, "done")
        assert (found["nodes"], found["walltime_s"], found["tag"], found["title"]) == (1, 90, "MIXED", "work.sh")
        assert (tmp_path / "job-1.out").read_text() == "argument\n"
        script.write_text("#!/bin/sh\n\n#NODECTL --nodes many\n")
        wrong = cluster.ctl("submit", "--script", str(script))
        assert wrong.returncode == 2 and "work.sh:3:" in wrong.stderr and wrong.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to run"),
        (["-t", "5", "--", "true"], "'5' is no duration"),
        (["--tag", "memroy", "--", "true"], "no tag is called 'memroy' (nearest: MEMORY)"),
        (["--env", "SURELY_NOT_SET", "--", "true"], "it is not set here"),
        (["--script", "/no/such", "--"], "cannot read the script"),
        (["-t", "999999999d", "--", "true"], "no such job can be"),
    ],
)
def test_a_wrong_submission_is_one_line_with_its_remedy(tmp_path_factory, arguments, message):
    with Cluster(tmp_path_factory.mktemp("c"), 1000.0, jobs={}) as cluster:
        if "tag" in message:
            start(cluster, 1)
        done = cluster.ctl("submit", *arguments)
        assert done.returncode == 2 and message in done.stderr and done.stderr.count("\n") == 1


def as_user(uid: int, cluster: Cluster, *arguments: str) -> Done:
    """A command of `clusterctl` by another user, as the kernel sees it. (That user may not be able to read this
    checkout, so the program is loaded before.)"""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.chdir(cluster.at)  # it could not come here by name
        os.setgroups([])
        os.setgid(uid)
        os.setuid(uid)
        cluster.socket = Path("ctl.sock")
        os.write(write, json.dumps(cluster.ctl(*arguments)).encode())
        os._exit(0)
    os.close(write)
    with open(read) as answer:
        done = Done(*json.load(answer))
    os.waitpid(child, 0)
    return done


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user needs root")
def test_nobody_touches_the_jobs_of_another_or_the_nodes(tmp_path):
    eve = 12345
    tmp_path.chmod(0o755)
    for command in COMMANDS.values():
        importlib.import_module(command[0])
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        start(cluster, 1)
        job = submit(cluster, "sleep 60", "--env", "PASSWORD=secret")
        wait(cluster, job, "running")
        for verb in ("cancel", "requeue"):
            refused = as_user(eve, cluster, verb, str(job))
            assert refused.returncode == 1 and refused.stderr.count("\n") == 1
            assert f"job {job} is of root: only its owner and administrators may do that" in refused.stderr
        for words in (("drain", "n0"), ("resume", "n0"), ("budget", "set", "900")):
            refused = as_user(eve, cluster, *words)
            assert refused.returncode == 1 and "may look, but not change anything" in refused.stderr
        shown = as_user(eve, cluster, "jobs", str(job), "--json")
        assert shown.returncode == 0 and "secret" not in shown.stdout
        assert row(cluster, job)["state"] == "running"
        # a job of eve's own: the node runs those of its agent's user only, and says so
        own = as_user(eve, cluster, "submit", "--workdir", "/tmp", "--json", "--", "sleep", "9")
        number = json.loads(own.stdout)["job"]
        assert as_user(eve, cluster, "cancel", str(job), str(number)).returncode == 1, "all of them or none"
        assert row(cluster, number)["state"] == "queued"
        assert cluster.ctl("cancel", str(job)).returncode == 0
        failed = wait(cluster, number, "failed")
        assert (failed["uid"], failed["reason"]) == (eve, "n0 runs jobs of user 0 only, not of 12345")


def test_jobs_are_exported_and_asked_for_by_state_and_user(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        start(cluster, 1)
        good, bad = submit(cluster, "true"), submit(cluster, "exit 3")
        wait(cluster, good, "done")
        wait(cluster, bad, "failed")
        assert [one["job"] for one in cluster.ask("jobs", "--state", "failed")] == [bad]
        assert [one["job"] for one in cluster.ask("jobs", "--all", "--user", "root")] == [good, bad]
        assert cluster.ask("jobs") == [] and cluster.ask("jobs", "--all", "--user", "12345") == []
        assert "nearest: failed" in cluster.ctl("jobs", "--state", "faild").stderr
        assert cluster.ctl("jobs", "--export", str(tmp_path / "jobs.csv")).returncode == 0
        with open(tmp_path / "jobs.csv") as file:
            assert [(one["job"], one["state"], one["status"]) for one in csv.DictReader(file)] == [
                (str(good), "done", "0"), (str(bad), "failed", "3"),
            ]  # fmt: skip
        assert cluster.ctl("jobs", "--export", str(tmp_path / "jobs.xls")).returncode == 2
        assert "there is no job 99" in cluster.ctl("jobs", "99").stderr
        if pytest.importorskip("pyarrow", reason="pip install 'nodectl[export]'"):
            import pyarrow.parquet as pq

            assert cluster.ctl("jobs", "--export", str(tmp_path / "jobs.parquet")).returncode == 0
            assert pq.read_table(tmp_path / "jobs.parquet").column("status").to_pylist() == [0, 3]


def test_without_a_table_of_jobs_none_run_and_a_submission_says_so(tmp_path):
    with Cluster(tmp_path, 1000.0) as cluster:
        cluster.serve()
        cluster.until(lambda: cluster.ask("nodes") is not None)
        done = cluster.ctl("submit", "--", "true")
        assert done.returncode == 1 and "[jobs]" in done.stderr


def test_a_second_cluster_agent_that_took_the_epoch_ends_the_first_before_it_starts_another_job(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}, mode="observe") as cluster:
        serve = start(cluster, 1)
        with sqlite3.connect(tmp_path / "cluster.db") as other:
            other.execute("UPDATE owner SET epoch = epoch + 1")
        done = cluster.ctl("submit", "--", "true")
        assert done.returncode == 1
        assert serve.wait(10) == 1
        assert "another cluster agent has taken over" in cluster.said()
