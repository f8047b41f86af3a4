"""Jobs on a partition of real processes: `clusterctl serve`, nodes with their real links and runners, and kills."""

import csv
import importlib
import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.cli import COMMANDS
from cluster_agent.serve.config import NodeSettings
from foundation.wire.keys import read_pair, read_public
from nodectl.member.cluster_link import ClusterLink
from tests.fabric.cluster import Cluster, Done
from tests.fabric.links import report


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """Two nodes, 650 W: enough for one of them at its TDP of 500 W next to an idle one at its MOP."""
    with Cluster(tmp_path_factory.mktemp("cluster"), 650.0, jobs={}, gap_s=NodeSettings().gap_s, sharer="aapc") as made:
        start(made, 2)
        yield made


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


def submit_array(cluster: Cluster, text: str, *options: str) -> dict[str, int]:
    """The same for each number of an array; the jobs' numbers."""
    done = cluster.ctl("submit", "--json", "-D", str(cluster.at), *options, "--", "/bin/sh", "-c", text)
    assert done.returncode == 0, done.stderr
    found: dict[str, int] = json.loads(done.stdout)["jobs"]
    return found


def row(cluster: Cluster, job: int) -> dict[str, Any]:
    found = cluster.ask("jobs", str(job))
    return found["row"] if found else {"state": ""}


def wait(cluster: Cluster, job: int, *states: str) -> dict[str, Any]:
    cluster.until(lambda: row(cluster, job)["state"] in states, is_kept=False)
    return row(cluster, job)


def test_a_submitted_job_runs_on_its_nodes_and_leaves_its_output_and_its_record(cluster):
    text = "echo $NODECTL_NODE of $NODECTL_NODES; echo $GREETING; sleep 1.5"
    options = ["-N", "2", "--tag", "memory", "-J", "first", "-o", "out-%j-%N", "--env", "GREETING=hello"]
    job = submit(cluster, text, *options)
    wait(cluster, job, "running")
    states = {one["name"]: (one["jobs"], one["job"]) for one in cluster.ask("nodes")}
    assert states == {"n0": ("allocated", str(job)), "n1": ("allocated", str(job))}
    assert f"job {job}, MEMORY (user)" in cluster.ctl("why", "n0").stdout
    done = wait(cluster, job, "done", "failed")
    assert (done["state"], done["title"], done["status"], done["node_names"]) == ("done", "first", 0, "n0,n1")
    assert (done["tag"], done["tag_source"]) == ("MEMORY", "user")
    assert (cluster.at / f"out-{job}-n1").read_text() == "n1 of n0,n1\nhello\n"
    assert done["energy_j"] > 100 and 0.3 < done["covered"] <= 1.1
    text = cluster.ctl("jobs", str(job)).stdout
    assert "energy as nodes report it" in text and "MEMORY (user)" in text
    # the same user's job of the same name, without a word on its tag
    again = submit(cluster, "sleep 0.5", "-J", "first")
    assert wait(cluster, again, "done")["tag_source"] == "job history"


def test_a_node_that_gets_a_job_gets_its_cap_at_once_and_its_watts_back_are_shared(cluster):
    cluster.until(lambda: all(cluster.cap_w(name) < 340.0 for name in cluster.names))
    job = submit(cluster, "sleep 60", "--tag", "compute", "-o", "/dev/null")
    wait(cluster, job, "running")
    began_s = time.monotonic()
    cluster.until(lambda: cluster.cap_w("n0") == 500.0)
    assert time.monotonic() - began_s < NodeSettings().gap_s - 1.0, "it did not wait for the next plan"
    assert cluster.ctl("cancel", str(job)).returncode == 0
    wait(cluster, job, "cancelled")


def test_jobs_are_ended_by_people_and_by_their_walltime(cluster):
    long = submit(cluster, "sleep 1000", "-N", "2")
    waiting = submit(cluster, "sleep 1000")
    wait(cluster, long, "running")
    assert cluster.ctl("cancel", str(waiting), str(long)).stdout == (
        f"job {waiting} is cancelled\njob {long} is being ended\n"
    )
    assert wait(cluster, long, "cancelled")["status"] == -signal.SIGTERM
    short = submit(cluster, "trap '' TERM; sleep 1000", "-t", "1s", "--grace", "1s")
    assert wait(cluster, short, "timeout")["reason"] == "its walltime of 1 s was over"
    assert cluster.ctl("requeue", str(short)).stdout == f"job {short} is queued\n"
    assert wait(cluster, short, "timeout")["attempts"] == 2
    assert "is cancelled already" in cluster.ctl("cancel", str(long)).stdout


def test_a_drained_node_gets_no_job_and_says_why(cluster):
    assert cluster.ctl("drain", "n0", "--reason", "a fan").stdout == "n0 gets no more jobs\n"
    job = submit(cluster, "sleep 0.2")
    assert wait(cluster, job, "done")["node_names"] == "n1"
    assert "draining: a fan" in cluster.ctl("nodes").stdout
    both = submit(cluster, "true", "-N", "2")
    assert cluster.ctl("resume", "n0").returncode == 0
    assert wait(cluster, both, "done")["node_names"] == "n0,n1"
    assert "nearest: n0" in cluster.ctl("drain", "n00").stderr


def test_nodes_are_reserved_for_users_and_the_list_says_for_whom(cluster):
    given = ["--on", "n1", "--start", "2h", "--for", "1h", "--users", "root"]
    done = cluster.ctl("reserve", "maint", *given, "--every", "week")
    assert done.stdout.startswith("n1 is reserved for maint from ") and "every week again" in done.stdout
    job = submit(cluster, "true", "-t", "30min", "--reservation", "maint")
    (listed,) = cluster.ask("reserve")
    assert (listed["name"], listed["on"], listed["jobs"], listed["users"]) == ("maint", ["n1"], [job], ["root"])
    assert "maint" in cluster.ctl("reserve").stdout and not listed["is_open"]
    assert row(cluster, job)["waits_for"].startswith("waits for its reservation maint, from ")
    assert cluster.ctl("reserve", "maint", "--delete").stderr.count("\n") == 1
    assert cluster.ctl("cancel", str(job)).returncode == 0
    assert cluster.ctl("reserve", "maint", "--delete").stdout == "reservation maint is deleted\n"
    assert cluster.ctl("reserve").stdout == "nothing is reserved\n"
    for wrong, problem in (
        ([*given[:-1], "nobody-here"], "no user is called 'nobody-here' on the cluster agent's machine"),
        (given[2:], "--nodes is missing: clusterctl reserve NAME --nodes N --start TIME --for TIME --users A,B"),
        ([*given, "--delete"], "--on: not with --delete; leave one of them out"),
        (["-N", "1", *given], "--nodes: not with --on; leave one of them out"),
        ([*given[:2], "--start", "soon", *given[4:]], "--start soon: give 2h, 20:00 or 2030-01-31T20:00"),
        ([*given[:4], "--for", "0s", *given[6:]], "--for 0s: a reservation needs some time"),
        ([*given[:4], "--for", "400d", *given[6:]], "and lasts a year at most"),
    ):
        refused = cluster.ctl("reserve", "maint", *wrong)
        assert refused.returncode == 2 and problem in refused.stderr and refused.stderr.count("\n") == 1


def test_a_script_brings_its_options_and_the_command_line_wins(cluster):
    script = cluster.at / "work.sh"
    script.write_text("#!/bin/sh\n#NODECTL --nodes 2 --time 90s\n#NODECTL --tag mixed  # a remark\necho $1\n")
    asked = ["submit", "--script", str(script), "-N", "1", "-D", str(cluster.at)]
    job = cluster.ask(*asked, "--", "argument")["job"]
    found = wait(cluster, job, "done")
    assert (found["nodes"], found["walltime_s"], found["tag"], found["title"]) == (1, 90, "MIXED", "work.sh")
    assert (cluster.at / f"job-{job}.out").read_text() == "argument\n"
    script.write_text("#!/bin/sh\n\n#NODECTL --nodes many\n")
    wrong = cluster.ctl("submit", "--script", str(script))
    assert wrong.returncode == 2 and "work.sh:3:" in wrong.stderr and wrong.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "nothing to run"),
        (["-N", "3", "--", "true"], "3 nodes requested, but the partition has 2"),
        (["-t", "5", "--", "true"], "'5' is no duration"),
        (["-t", "999999999d", "--", "true"], "--time 999999999d: longer than 3660 days"),
        (["--tag", "memroy", "--", "true"], "no tag is called 'memroy' (nearest: MEMORY)"),
        (["--env", "SURELY_NOT_SET", "--", "true"], "it is not set here"),
        (["--env", f"LARGE={'x' * 300_000}", "--", "true"], "move them to files"),
        (["--script", "/no/such", "--"], "cannot read the script"),
        (["--after", "12-x", "--", "true"], "--after 12-x: give numbers and ranges, such as 12 or 12,15-18"),
        (["--after", "9-8", "--", "true"], "--after 9-8: give numbers and ranges"),
        (["--after-done", "0", "--", "true"], "not a valid job"),
        (["--begin", "25:00", "--", "true"], "--begin 25:00: give 2h, 20:00 or 2030-01-31T20:00"),
        (["--begin", "99", "--", "true"], "--begin 99: is past, or after 2099"),
        (["--array", "1-1001", "--", "true"], "--array 1-1001: more than 1000"),
        (["--after", "987654321", "--", "true"], "it is to wait for job 987654321, and there is no such job"),
    ],
)
def test_a_wrong_submission_is_one_line_with_its_fix(cluster, arguments, message):
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


def test_an_array_runs_with_its_numbers_and_a_job_waits_until_all_of_it_is_done(cluster):
    jobs = submit_array(cluster, "sleep 0.3; echo $NODECTL_TASK >>tasks", "--array", "3-5,9,4", "-J", "part")
    assert list(jobs) == ["3", "4", "5", "9"]
    first, last = min(jobs.values()), max(jobs.values())
    after = submit(cluster, "cat tasks >whole", "--after-done", f"{first}-{last}")
    assert row(cluster, after)["waits_for"].startswith("after job")
    assert wait(cluster, after, "done")["title"] == "/bin/sh".rpartition("/")[2]
    assert sorted((cluster.at / "whole").read_text().split()) == ["3", "4", "5", "9"]
    assert row(cluster, jobs["9"])["title"] == "part[9]"
    failed = submit(cluster, "exit 3", "-J", "bad")
    needs = submit(cluster, "true", "--after-done", str(failed), "--after", str(after))
    assert wait(cluster, needs, "cancelled")["reason"] == f"job {failed} was to be done before, and is failed"


@pytest.mark.skipif(os.geteuid() != 0, reason="to be another user needs root")
def test_nobody_touches_the_jobs_of_another_or_the_nodes(cluster):
    eve = 12345
    cluster.at.chmod(0o755)
    for command in COMMANDS.values():
        importlib.import_module(command[0])
    job = submit(cluster, "sleep 60", "-N", "2", "--env", "PASSWORD=secret")
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
    # a job of eve's own: the nodes run those of one user only, so the head does not take it
    own = as_user(eve, cluster, "submit", "--workdir", "/tmp", "--json", "--", "sleep", "9")
    assert own.returncode == 2 and own.stdout == "" and own.stderr.count("\n") == 1
    assert "n0 and 1 more run only jobs of root" in own.stderr and "submit as that user" in own.stderr
    assert cluster.ctl("cancel", str(job)).returncode == 0


def test_the_state_of_the_partition_is_exported_and_its_queue_replayed_in_the_partitions_order(cluster):
    running = submit(cluster, "sleep 60", "-N", "2", "-t", "2min")
    waiting = [submit(cluster, "sleep 0.2", "-N", nodes, "-t", "1min") for nodes in ("1", "2", "1")]
    wait(cluster, running, "running")
    path, out = cluster.at / "today.json", cluster.at / "tomorrow"
    exported = cluster.ctl("state", "export", "--out", str(path))
    assert exported.returncode == 0 and exported.stdout.startswith("3 jobs that wait, 1 that run, ")
    state = json.loads(path.read_text())
    assert (state["source"], state["policy"], state["processors"]) == ("partition", "easy", 2)
    assert json.loads(cluster.ctl("state", "export").stdout)["jobs"][-1] == state["jobs"][-1]
    refused = cluster.ctl("state", "export", "--out", str(cluster.at / "no" / "folder"))
    assert refused.returncode == 1 and refused.stderr.count("\n") == 1 and "choose another --out" in refused.stderr
    replayed = cluster.plain("replay", "--state", str(path), "--out", str(out))
    assert replayed.returncode == 0, replayed.stderr
    folder = cluster.at / "to-replay"
    exported = cluster.ctl("state", "export", "--replay", str(folder))
    # with failures.csv and reservations.csv, where tests before this one had some
    assert "jobs.swf" in exported.stdout and f" in {folder}: clusterctl replay {folder}/jobs.swf " in exported.stdout
    assert cluster.plain("replay", str(folder / "jobs.swf"), "--policy", "easy").returncode == 0
    refused = cluster.ctl("state", "export", "--replay", str(folder), "--out", str(path))
    assert refused.returncode == 2 and "--replay writes several files, and --out one" in refused.stderr
    assert cluster.ctl("cancel", str(running)).returncode == 0
    for job in waiting:
        wait(cluster, job, "done")
    with (out / "jobs.csv").open(newline="") as file:
        starts = {int(one["job_id"]): (float(one["starting_time"]), int(one["job_id"])) for one in csv.DictReader(file)}
    lived = {job: (row(cluster, job)["started_s"], job) for job in waiting}
    assert sorted(waiting, key=lambda job: starts[job]) == sorted(waiting, key=lambda job: lived[job])


def test_jobs_are_exported_and_filtered_by_state_and_user(cluster):
    good, bad = submit(cluster, "true", "-J", "good"), submit(cluster, "exit 3", "-J", "bad")
    wait(cluster, good, "done")
    wait(cluster, bad, "failed")
    assert cluster.ask("jobs", "--state", "failed")[-1]["job"] == bad
    assert [one["job"] for one in cluster.ask("jobs", "--all", "--user", "root")][-2:] == [good, bad]
    assert cluster.ask("jobs") == [] and cluster.ask("jobs", "--all", "--user", "54321") == []
    assert "nearest: failed" in cluster.ctl("jobs", "--state", "faild").stderr
    assert "there is no job 99999" in cluster.ctl("jobs", "99999").stderr
    assert cluster.ctl("jobs", "--export", str(cluster.at / "jobs.xls")).returncode == 2
    assert cluster.ctl("jobs", "--export", str(cluster.at / "jobs.csv")).returncode == 0
    with open(cluster.at / "jobs.csv") as file:
        last = list(csv.DictReader(file))[-2:]
    assert [(one["job"], one["state"], one["status"]) for one in last] == [
        (str(good), "done", "0"), (str(bad), "failed", "3"),
    ]  # fmt: skip
    pq = pytest.importorskip("pyarrow.parquet", reason="pip install 'nodectl[export]'")
    assert cluster.ctl("jobs", "--export", str(cluster.at / "jobs.parquet")).returncode == 0
    assert pq.read_table(cluster.at / "jobs.parquet").column("status").to_pylist()[-2:] == [0, 3]


def test_a_jobs_name_is_kept_as_data_and_does_nothing_to_a_terminal(cluster):
    name = "\x1b[2J\n<0>clusterctl serve: fine\x9b31m"
    job = submit(cluster, "true", "-J", name)
    assert wait(cluster, job, "done")["title"] == name
    for words in (("jobs", "--all"), ("jobs", str(job)), ("jobs", str(job), "--json")):
        shown = cluster.ctl(*words).stdout
        assert "2J" in shown and shown.replace("\n", "").isprintable()


def test_killed_agents_lose_no_job_and_run_none_twice_and_a_node_of_a_new_key_joins(tmp_path):
    with Cluster(tmp_path, 1000.0, jobs={}) as cluster:
        serve = start(cluster, 1)
        cluster.node("n1", cap_w=150.0)
        cluster.until(lambda: idle(cluster, 2))
        jobs = [submit(cluster, f"echo {n} >>ran; sleep 1") for n in range(4)]
        jobs.append(submit(cluster, "echo $((4 + $NODECTL_NODE_RANK)) >>ran", "-N", "2"))
        wait(cluster, jobs[0], "running", "done")
        for _ in range(2):
            serve.kill()
            serve.wait()
            serve = cluster.serve()
            time.sleep(0.7)
        node = cluster.started["n1"]
        node.kill()
        node.wait()
        cluster.node("n1")
        found = [wait(cluster, job, "done", "failed", "lost") for job in jobs]
        assert [(one["state"], one["attempts"]) for one in found] == [("done", 1)] * 5
        assert sorted((tmp_path / "ran").read_text().split()) == list("012345")


def test_a_node_that_claims_a_newer_epoch_does_not_end_an_agent_that_has_jobs(tmp_path):
    with Cluster(tmp_path, 900.0, jobs={}) as cluster:
        serve = start(cluster, 1)
        epoch = cluster.ask("budget", "show")["epoch"]
        cluster.allow("x0")
        keys = read_pair(cluster.keys / "x0.key")
        link = ClusterLink(cluster.url, keys, read_public(str(cluster.keys / "cluster.key")))

        def is_believed() -> bool:
            link.send(report("x0", time.clock_gettime_ns(time.CLOCK_BOOTTIME), seen_epoch=epoch + 7))
            link.receive()
            return cluster.ask("budget", "show")["epoch"] > epoch

        cluster.until(is_believed)
        assert wait(cluster, submit(cluster, "true"), "done")["attempts"] == 1
        assert serve.poll() is None
        link.close()
