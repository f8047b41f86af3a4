"""The hooks on a real Slurm: caps in force before a job runs, its end frees them, and a head that is gone delays no job
for longer than was said. Nodes are scripted agents with real leases and links; their watts are emulated.

The last test runs what docs/slurm.md has people type, word for word. It takes some 40 s, since a Slurm has to come up
and jobs to run.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import psutil
import pytest

from cluster_agent.hook.build_hook import build
from foundation.boot import boottime_s
from tests.fabric.cluster import ROOT, Cluster
from tests.slurm.site import Site, page_blocks, why_no_slurm

if why_no_slurm():
    pytest.skip(why_no_slurm(), allow_module_level=True)

NODES = ("n01", "n02", "n03", "n04")
WAIT_S = 3.0
SLURM_USER = "64032"  # by its number: this machine does not know Slurm's users
JOB = "cut -d' ' -f1 /proc/uptime >>$1; sleep $2"


class Both(NamedTuple):
    """A Slurm with its jobs' folder, and the cluster agent next to it."""

    site: Site
    head: Cluster
    serving: subprocess.Popen[bytes]
    ran: Path

    def clusterctl(self, *words: str, user: str = "") -> str:
        """A command where Slurm's configuration is."""
        return self.site.run("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli", *words, user=user)

    def jobs(self) -> list[str]:
        return sorted(job["job"] for job in self.head.ask("notify", "list"))

    def submit(self, name: str, *options: str, seconds: float = 1.0, nodes: int = 1) -> str:
        """Alice's job, which writes when it began, in seconds since boot, to the file of this name."""
        words = ["sbatch", "--parsable", f"-N{nodes}", "-o", "/dev/null", *options, str(self.ran / "job.sh")]
        return self.site.run(*words, str(self.ran / name), str(seconds), user="alice").strip()

    def began_s(self, name: str) -> float:
        """Waits until the job of this name has begun; seconds since boot."""
        self.head.until(lambda: (self.ran / name).exists() and (self.ran / name).read_text().endswith("\n"))
        return float((self.ran / name).read_text())


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    """One Slurm for all of these tests, which leaves nothing behind."""
    mounts = Path("/proc/self/mountinfo").read_text()
    with Site(nodes=len(NODES)) as site:
        namespace = Path(f"/proc/{site.pid}/ns/pid").readlink().name
        ran = site.at / "ran"
        ran.mkdir()
        ran.chmod(0o777)
        (ran / "job.sh").write_text(f"#!/bin/sh\n{JOB}\n")
        (site.at / "head").mkdir()
        build(site.at / "nodectl-hook")
        with Cluster(site.at / "head", 1000.0, sharer="aapc", notifiers=[SLURM_USER]) as head:
            serving = head.serve()
            for name in NODES:
                head.node(name, cap_w=150.0)
            head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * 4)
            made = Both(site, head, serving, ran)
            site.shell("cp -a /etc/slurm /run/slurm-before")
            place = ["--socket", str(head.socket), "--hook", str(site.at / "nodectl-hook")]
            assert "PrologSlurmctld is not set" in site.shell(
                f"PYTHONPATH={ROOT} {sys.executable} -m cluster_agent.cli slurm check {' '.join(place)} || true"
            )
            shown = made.clusterctl("slurm", "install", "--yes", "--tags", "--wait", str(WAIT_S), *place)
            assert "+PrologSlurmctld=/etc/slurm/nodectl/prolog-slurmctld" in shown
            site.restart_controller()
            yield made
        assert len(processes_in(namespace)) > 10
    assert processes_in(namespace) == [] and not site.at.exists()
    assert Path("/proc/self/mountinfo").read_text() == mounts
    assert not Path("/etc/slurm").exists()


def processes_in(namespace: str) -> list[int]:
    found = []
    for pid in psutil.pids():
        try:
            if Path(f"/proc/{pid}/ns/pid").readlink().name == namespace:
                found.append(pid)
        except OSError:
            continue
    return found


def test_a_real_slurm_runs_jobs_of_its_users(both: Both) -> None:
    ran = both.site.run("srun", "-N2", "sh", "-c", "echo $SLURMD_NODENAME $(id -un)", user="alice").splitlines()
    assert sorted(ran) == ["n01 alice", "n02 alice"]
    assert '"user_name": "alice"' in both.site.run("squeue", "--json")
    both.head.until(lambda: both.jobs() == [])


def test_caps_are_in_force_before_a_job_runs_and_its_end_frees_them(both: Both) -> None:
    both.head.until(lambda: [row["in_force_w"] for row in both.head.ask("nodes") or []] == [150.0] * len(NODES))
    slow = both.head.started["n02"]
    slow.send_signal(signal.SIGSTOP)  # shorter than its lease: its cap is only late
    stopped_s = time.monotonic()
    number = both.submit("first", "--comment", 'nodectl=compute "x"', nodes=2, seconds=4)
    both.head.until(lambda: both.head.cap_w("n01") > 150.0)
    while time.monotonic() < stopped_s + 0.7:  # less than what is left of its lease, and than the hook waits
        assert not (both.ran / "first").exists()
        time.sleep(0.05)
    slow.send_signal(signal.SIGCONT)
    began_s = both.began_s("first")
    nodes = both.site.run("squeue", "-h", "-j", number, "-o", "%N").strip()
    assert nodes == "n[01-02]" and both.jobs() == [number]
    for name in ("n01", "n02"):
        raised = [
            at_ns / 1e9 for at_ns, what, cap_mw, _ in both.head.history(name) if what == "done" and cap_mw > 150_000
        ]
        assert raised and raised[0] < began_s + 0.01, "seconds since boot have two digits"
    assert "compute" in both.head.ctl("notify", "list").stdout
    both.head.until(lambda: both.jobs() == [])
    both.head.until(lambda: both.head.cap_w("n01") == both.head.cap_w("n02") == 150.0)


def test_a_job_starts_when_the_head_is_gone_no_later_than_was_said(both: Both) -> None:
    os.kill(both.serving.pid, signal.SIGSTOP)
    try:
        number = both.submit("second", seconds=0.1)
        both.site.until(lambda: (both.ran / "second").exists(), patience_s=60)
        log = both.site.shell(f"cat {both.site.at}/log/nodectl-hook.log")
        state = both.site.run("scontrol", "show", "job", number)
    finally:
        os.kill(both.serving.pid, signal.SIGCONT)
    assert f"job {number}: no cluster agent after" in log
    waited_ms = int(log.split(f"job {number}: no cluster agent after ")[1].split()[0])
    assert 1000 * WAIT_S <= waited_ms < 1000 * WAIT_S + 1000
    assert "Restarts=0" in state, "it was not requeued"


def test_what_hooks_have_missed_is_found_in_the_queue(both: Both) -> None:
    both.head.until(lambda: both.head.ask("notify", "list") is not None)
    follow = ["slurm", "follow", "--cluster", "emulated", "--once", "--socket", str(both.head.socket)]
    both.clusterctl(*follow)  # ends what the stopped head could not hear of
    number = both.submit("third", "--comment", "nodectl=memory", seconds=60)
    both.began_s("third")
    assert both.jobs() == [number]
    assert both.head.ask("notify", "list")[0]["submitted_s"] == 0, "a prolog does not know it"
    both.head.ctl("notify", "end", number, "--cluster", "emulated")  # as if its prolog had been lost
    both.head.ctl("notify", "start", "9999", "n04", "--cluster", "emulated")  # as if its epilog had been lost
    both.head.ctl("notify", "start", "9999", "n04", "--cluster", "other")
    both.clusterctl(*follow)
    ours = [job for job in both.head.ask("notify", "list") if job["cluster"] == "emulated"]
    assert [(job["job"], job["tag"], job["user"]) for job in ours] == [(number, "memory", "alice")]
    assert abs(ours[0]["submitted_s"] - time.time()) < 600
    assert both.jobs() == sorted([number, "9999"]), "a job of another cluster is not this Slurm's to end"
    both.site.run("scancel", number)
    both.site.until(lambda: not both.site.run("squeue", "-h").strip())
    both.head.until(lambda: both.jobs() == ["9999"])
    both.head.ctl("notify", "end", "9999", "--cluster", "other")


def test_a_jobs_joules_are_in_slurms_own_record(both: Both) -> None:
    """The words alone: scripted nodes have no energy counters. What they say is in test_joules.py."""
    log = both.site.at / "log" / "follow"
    words = ["clusterctl", "slurm", "follow", "--cluster", "emulated", "--every", "0.5", "--admin-comment"]
    run = f"PYTHONPATH={ROOT} setpriv --pdeathsig KILL {sys.executable} -m cluster_agent.cli {' '.join(words[1:])}"
    command = [*both.site.within, "sh", "-c", f"exec env {run} --socket {both.head.socket}"]
    with open(log, "wb") as file, subprocess.Popen(command, stdout=file, stderr=file) as following:
        try:
            # a job that ends before it looks gets no comment
            both.site.until(lambda: "follows the queue of emulated by slurmrestd v0.0.38" in log.read_text())
            number = both.submit("fourth", seconds=0.1)
            sacct = ["sacct", "-nPX", "-j", number, "-o", "admincomment"]
            both.site.until(lambda: both.site.run(*sacct).strip(), patience_s=60)
            assert both.site.run(*sacct).strip() == "nodectl joules=unknown nodes=1"
            assert number in both.head.ctl("energy").stdout
        finally:
            following.terminate()
    assert "Traceback" not in log.read_text()


def test_a_user_of_slurm_cannot_forge_a_notice(both: Both) -> None:
    script = f"SLURM_JOB_ID=1 SLURM_JOB_NODELIST=n01 {both.site.at}/nodectl-hook start --socket {both.head.socket} 2>&1"
    assert "may look, but not change anything" in both.site.shell(script, user="alice")
    assert both.jobs() == []


def test_two_users_share_a_node_through_kills_of_the_head_and_of_the_nodes_agent(both: Both) -> None:
    """A hundred kills, of Slurm's daemons too: `python -m benchmarks slurm_kills_shared`."""
    begin_s, site, head = boottime_s(), both.site, both.head
    head.until(lambda: both.jobs() == [])
    site.run("scontrol", "update", "PartitionName=all", "OverSubscribe=NO")
    words = ["sbatch", "--parsable", "-n1", "-c2", "-w", "n01", "-o", "/dev/null", "--wrap", "sleep 900"]
    number = {
        user: site.run(*words, "--comment", f"nodectl={tag}", user=user).strip()
        for user, tag in (("alice", "compute"), ("bob", "memory"))
    }
    head.until(lambda: both.jobs() == sorted(number.values()))
    known = {job["user"]: (job["job"], job["nodes"], job["is_shared"]) for job in head.ask("notify", "list")}
    assert known == {user: (number[user], ["n01"], True) for user in number}
    both.serving.kill()
    both.serving.wait()
    head.serve()
    head.until(lambda: head.ask("notify", "list") is not None)
    assert {job["user"]: (job["job"], job["nodes"], job["is_shared"]) for job in head.ask("notify", "list")} == known
    head.started["n01"].kill()
    head.started["n01"].wait()
    head.fall("n01", 150.0)
    head.node("n01")
    head.until(lambda: head.cap_w("n01") > 150.0)
    assert "COMPUTE" in head.ctl("why", "n01").stdout, "the more sensitive tag of the two"
    site.run("scancel", *number.values())
    head.until(lambda: both.jobs() == [])
    rows = {row["job"]: (row["user"], row["energy_j"], row["is_shared"]) for row in head.ask("energy")}
    assert {job: rows[job] for job in number.values()} == {job: (user, None, True) for user, job in number.items()}
    head.check(begin_s)
    site.run("scontrol", "update", "PartitionName=all", "OverSubscribe=EXCLUSIVE")


def test_nodes_are_taken_from_slurm_once_their_jobs_have_ended_and_given_back(both: Both) -> None:
    node = "n04"
    before = both.submit("before", "-w", node, seconds=8)
    both.began_s("before")
    script = f"""
import subprocess
from cluster_agent.slurm.taken_nodes import taken
with taken(["{node}"], "reservation", 60.0, lambda line: print(line, flush=True), look_s=0.2):
    show = lambda *words: subprocess.run(words, capture_output=True, text=True).stdout.strip()
    print("there:", show("squeue", "-h", "-w", "{node}"))
    print("said:", show("srun", "-w", "{node}", "--immediate=2", "true") or "does not start")
print("after:", show("srun", "-w", "{node}", "echo", "runs"))
"""
    shown = both.site.run("env", f"PYTHONPATH={ROOT}", sys.executable, "-c", script)
    assert f"waits for Slurm's jobs to end: {before}" in shown
    assert "there:\nsaid: does not start\nafter: runs\n" in shown.replace(": \n", ":\n"), shown


def test_job_submit_gives_a_job_the_tag_of_the_last_one_of_its_name(both: Both) -> None:
    def comment(*options: str) -> str:
        number = both.site.run("sbatch", "--parsable", "-H", *options, "--wrap", "true", user="alice").strip()
        shown = both.site.run("squeue", "-h", "-j", number, "-o", "%k").strip()
        both.site.run("scancel", number)
        return shown

    assert comment("-J", "solve") == "(null)"
    assert comment("-J", "solve", "--comment", "nodectl=memory") == "nodectl=memory"
    assert comment("-J", "solve", "--comment", 'project "a"') == 'project "a" nodectl=memory'
    assert comment("-J", "other") == "(null)"
    assert comment("-J", "x" * 200, "--comment", "nodectl=nonsense 計 " + "y" * 900).startswith("nodectl=nonsense 計")


def test_remove_leaves_the_configuration_as_it_was(both: Both) -> None:
    assert "-PrologSlurmctld=" in both.clusterctl("slurm", "remove", "--yes")
    assert both.site.shell("diff -r /run/slurm-before /etc/slurm") == ""
    assert both.clusterctl("slurm", "remove", "--yes") == "nothing to change\n"


SYSTEMCTL = """#!/bin/sh
# what a site's systemd would do, for the lines of the page
echo "systemctl $*" >>/run/systemctl.log
case "$*" in
"restart clusterctl") ;;
"restart slurmctld")
    pid=$(cat /run/slurm/slurmctld.pid)
    kill $pid; while kill -0 $pid 2>/dev/null; do sleep 0.1; done
    setpriv --reuid slurm --regid slurm --clear-groups slurmctld ;;
"enable --now clusterctl-slurm")
    setsid clusterctl slurm follow --admin-comment --every 0.5 >/run/follow.log 2>&1 </dev/null &
    echo $! >/run/follow.pid
    tries=600
    until grep -q "follows the queue of emulated" /run/follow.log; do
        tries=$((tries - 1)); [ $tries != 0 ] || exit 1; sleep 0.1
    done ;;
"disable --now clusterctl-slurm") kill -- -$(cat /run/follow.pid) ;;
*) echo "systemctl $*: not known here" >&2; exit 1 ;;
esac
"""


def blocks(heading: str) -> list[str]:
    return page_blocks("slurm.md", heading)


def as_a_site(both: Both) -> None:
    """Programs and sockets where the packages have them; `yes` to what is asked."""
    site = both.site
    program = f"exec env PYTHONPATH={ROOT} {sys.executable} -m cluster_agent.cli"
    site.shell(
        f"""
        mkdir -p /run/clusterctl /usr/lib/nodectl /usr/local/bin
        ln -sfn {both.head.socket} /run/clusterctl/clusterctl.sock
        cp {site.at}/nodectl-hook /usr/lib/nodectl/nodectl-hook
        printf '#!/bin/sh\\nyes | {program} "$@"\\n' >/usr/local/bin/clusterctl
        cat >/usr/local/bin/systemctl <<'END'
{SYSTEMCTL}END
        chmod 755 /usr/local/bin/clusterctl /usr/local/bin/systemctl
        """
    )


def test_what_the_page_has_people_type_takes_a_site_there_and_back(both: Both) -> None:
    both.clusterctl("slurm", "remove", "--yes")
    as_a_site(both)
    conf = both.site.run("cat", "/etc/slurm/slurm.conf")
    watch, modes = blocks("Watch"), blocks("Modes per job")
    assert (len(watch), len(modes), len(blocks("Back"))) == (2, 1, 1)
    folder = both.ran

    def typed(lines: str) -> str:
        words = f"export PATH=/usr/local/bin:$PATH; cd {folder}; set -x\n{lines}"
        return both.site.shell(words)

    shown = typed(watch[0].replace("slurm check", "slurm check || true #"))
    assert "PrologSlurmctld is not set" in shown and "+PrologSlurmctld=" in shown
    both.site.until(lambda: " idle" in both.site.run("sinfo", "-h", "-o", "%D %T"))
    number = both.submit("watched", "--comment", "nodectl=memory", seconds=600)
    both.began_s("watched")
    shown = typed(watch[1])
    both.site.run("scancel", number)
    assert f"{number}@emulated" in shown and "alice" in shown
    shown = typed(modes[0].replace("sbatch", "sbatch -o /dev/null"))
    assert "+Prolog=/etc/slurm/nodectl/prolog-node" in shown and "Submitted batch job" in shown
    both.site.until(lambda: not both.site.run("squeue", "-h").strip())
    typed(blocks("Back")[0])
    assert both.site.run("cat", "/etc/slurm/slurm.conf") == conf
    assert both.site.shell("ls /etc/slurm/nodectl 2>&1 || true").endswith("No such file or directory\n")
    both.site.until(lambda: " idle" in both.site.run("sinfo", "-h", "-o", "%D %T"))
