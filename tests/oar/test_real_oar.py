"""The scripts on a real OAR: caps in force before a job runs, modes on its nodes while it does, and a head that is gone
stops no queue. Nodes are scripted agents with real leases and links; their watts are emulated.

The last test runs what docs/oar.md has people type, word for word. All of it takes some 40 s, since an OAR has to come
up and jobs to run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from cluster_agent.hook.build_hook import build
from tests.fabric.cluster import ROOT, Cluster
from tests.slurm.site import Site, page_blocks, why_none

if why_none("oar"):
    pytest.skip(why_none("oar"), allow_module_level=True)

NODES = ("n01", "n02", "n03", "n04")
WAIT_S = 3.0
OAR_USER = "64032"  # by its number: this machine does not know OAR's users
JOB = "cut -d' ' -f1 /proc/uptime >>${1:-/dev/null}; sleep ${2:-30}"


class Both(NamedTuple):
    """An OAR with its jobs' folder, and the cluster agent next to it."""

    site: Site
    head: Cluster
    serving: subprocess.Popen[bytes]
    ran: Path

    def clusterctl(self, *words: str) -> str:
        """A command where OAR's configuration is."""
        return self.site.run("env", f"PYTHONPATH={ROOT}", sys.executable, "-m", "cluster_agent.cli", *words)

    def follow(self) -> None:
        self.clusterctl("oar", "follow", "--once", "--socket", str(self.head.socket))

    def known(self) -> list[dict[str, object]]:
        found: list[dict[str, object]] = self.head.ask("notify", "list")
        return found

    def submit(self, name: str, *options: str, seconds: float = 1.0, nodes: int = 1, walltime: str = "0:10") -> str:
        """Alice's job, which writes when it began, in seconds since boot, to the file of this name; its number."""
        job = f"{self.ran}/job.sh {self.ran}/{name} {seconds}"
        words = ["oarsub", "-n", name, "-l", f"/network_address={nodes},walltime={walltime}", *options, job]
        said = self.site.shell(f"cd {self.ran}; exec {' '.join(repr(word) for word in words)}", user="alice")
        return said.rpartition("OAR_JOB_ID=")[2].strip()

    def began_s(self, name: str) -> float:
        """Waits until the job of this name has begun; seconds since boot."""
        self.head.until(lambda: (self.ran / name).exists() and (self.ran / name).read_text().endswith("\n"))
        return float((self.ran / name).read_text())

    def state(self, number: str) -> str:
        return str(json.loads(self.site.run("oarstat", "-J", "-j", number))[number]["state"])


@pytest.fixture(scope="module")
def both() -> Iterator[Both]:
    """One OAR for all of these tests, which leaves nothing behind."""
    mounts = Path("/proc/self/mountinfo").read_text()
    with Site(nodes=len(NODES), manager="oar") as site:
        ran = site.at / "ran"
        ran.mkdir()
        ran.chmod(0o777)
        (ran / "job.sh").write_text(f"#!/bin/sh\n{JOB}\n")
        (ran / "job.sh").chmod(0o755)
        (site.at / "head").mkdir()
        build(site.at / "nodectl-hook")
        with Cluster(site.at / "head", 1000.0, sharer="aapc", notifiers=[OAR_USER]) as head:
            serving = head.serve()
            for name in NODES:
                head.node(name, cap_w=150.0)
            head.until(lambda: [row["state"] for row in head.ask("nodes") or []] == ["capped"] * 4)
            made = Both(site, head, serving, ran)
            site.shell("mkdir /run/nodectl; cp -a /etc/oar /run/oar-before; oaradmissionrules -S -f >/run/rules-before")
            place = ["--socket", str(head.socket), "--hook", str(site.at / "nodectl-hook")]
            lacking = site.shell(
                f"PYTHONPATH={ROOT} {sys.executable} -m cluster_agent.cli oar check {' '.join(place)} || true"
            )
            assert [line.split()[0] for line in lacking.splitlines()] == [
                "SERVER_PROLOGUE_EXEC_FILE", "SERVER_EPILOGUE_EXEC_FILE", "OAR",
            ]  # fmt: skip
            shown = made.clusterctl("oar", "install", "--yes", "--nodes", "--wait", str(WAIT_S), *place)
            assert '+SERVER_PROLOGUE_EXEC_FILE="/etc/oar/nodectl/server-prologue"' in shown
            assert made.clusterctl("oar", "check", *place) == "nothing is lacking\n"
            yield made
    assert not site.at.exists() and Path("/proc/self/mountinfo").read_text() == mounts
    assert not Path("/etc/oar").exists() and not Path("/var/lib/oar").exists()


def test_caps_are_in_force_before_a_job_runs_and_its_mode_is_on_its_nodes_until_it_ends(both: Both) -> None:
    both.site.shell("mkdir -p /run/nodectl/site-jobs; touch /run/nodectl/site-jobs/0")  # its end was lost
    number = both.submit("first", "-t", "bdpo=monitor", "-t", "nodectl=compute", nodes=2, seconds=3)
    began_s = both.began_s("first")
    (job,) = both.known()
    assert (job["job"], job["tag"], job["user"], job["title"]) == (number, "compute", "alice", "first")
    assert job["nodes"] == ["n01", "n02"]
    for name in ("n01", "n02"):
        raised = [
            at_ns / 1e9 for at_ns, what, cap_mw, _ in both.head.history(name) if what == "done" and cap_mw > 150_000
        ]
        assert raised and raised[0] < began_s + 0.01, "seconds since boot have two digits"
    file = f"/run/nodectl/site-jobs/{number}"
    assert both.site.run("cat", file) == "user=alice\ncomment=nodectl=monitor nodectl=compute\n"
    assert both.site.run("stat", "-c", "%U", file).strip() == "root"
    assert both.site.run("ls", "/run/nodectl/site-jobs").split() == [number]
    both.head.until(lambda: both.known() == [])
    both.site.until(lambda: number not in both.site.run("ls", "/run/nodectl/site-jobs"))
    both.head.until(lambda: both.head.cap_w("n01") == both.head.cap_w("n02") == 150.0)
    assert number in both.head.ctl("energy").stdout


@pytest.mark.parametrize(
    ("types", "refusal"),
    [
        (["bdpo=fast"], "bdpo=fast is none of nodectl=memory, nodectl=mixed"),
        (["bdpo"], "bdpo is none of"),
        (["bdpo=off", "bdpo=monitor"], "a job has one type bdpo=...: bdpo=off bdpo=monitor"),
        (["bdpotent"], "unknown job type: bdpotent"),
    ],
)
def test_a_type_that_means_nothing_is_refused_when_the_job_is_submitted(
    both: Both, types: list[str], refusal: str
) -> None:
    words = " ".join(f"-t {one}" for one in types)
    said = both.site.shell(f"cd {both.ran}; oarsub {words} 'sleep 9' 2>&1 || true", user="alice")
    assert refusal in said and "OAR_JOB_ID" not in said


def test_a_head_that_is_gone_delays_a_job_as_long_as_was_said_and_stops_no_queue(both: Both) -> None:
    os.kill(both.serving.pid, signal.SIGSTOP)
    try:
        number = both.submit("second", seconds=0.1)
        both.site.until(lambda: (both.ran / "second").exists(), patience_s=60)
        both.site.until(lambda: both.state(number) == "Terminated", patience_s=60)
    finally:
        os.kill(both.serving.pid, signal.SIGCONT)
    log = both.site.shell("cat /var/log/oar.log")
    waited_ms = int(log.split(f"job {number}: no cluster agent after ")[1].split()[0])
    assert 1000 * WAIT_S <= waited_ms < 1000 * WAIT_S + 1000
    assert "stopping all scheduler queues" not in log


def test_what_scripts_have_missed_is_found_and_a_container_is_no_job(both: Both) -> None:
    both.head.until(lambda: both.head.ask("notify", "list") is not None)
    both.follow()  # ends what the stopped head could not hear of
    container = both.submit("container", "-t", "container", nodes=2, seconds=60, walltime="0:30")
    both.began_s("container")
    number = both.submit("inner", "-t", f"inner={container}", "-t", "nodectl=memory", seconds=60)
    both.began_s("inner")
    assert [(job["job"], job["submitted_s"]) for job in both.known()] == [(number, 0)], "a script does not know it"
    both.head.ctl("notify", "end", number, "--cluster", "oar")  # as if its prologue had been lost
    both.head.ctl("notify", "start", "9999", "n04", "--cluster", "oar")  # as if its epilogue had been lost
    both.head.ctl("notify", "start", "9999", "n04", "--cluster", "other")
    both.follow()
    found = {(job["job"], job["cluster"]): job for job in both.known()}
    assert set(found) == {(number, "oar"), ("9999", "other")}
    assert found[number, "oar"]["tag"] == "memory" and found[number, "oar"]["submitted_s"] != 0
    both.site.run("oardel", container)
    both.site.until(lambda: both.state(container) in ("Error", "Terminated"))
    both.follow()
    if both.state(number) == "Running":
        assert number in [job["job"] for job in both.known()], "known as long as it runs itself"
        both.site.run("oardel", number)
    both.head.until(lambda: [job["job"] for job in both.known()] == ["9999"])
    both.head.ctl("notify", "end", "9999", "--cluster", "other")


def test_remove_leaves_files_and_rules_as_they_were(both: Both) -> None:
    assert "-SERVER_PROLOGUE_EXEC_FILE=" in both.clusterctl("oar", "remove", "--yes")
    assert both.site.shell("diff -r /run/oar-before /etc/oar; oaradmissionrules -S -f | diff /run/rules-before -") == ""
    assert both.clusterctl("oar", "remove", "--yes") == "nothing to change\n"


SYSTEMCTL = """#!/bin/sh
# what a site's systemd would do, for the lines of the page
[ "$*" = "restart clusterctl" ] || { echo "systemctl $*: not known here" >&2; exit 1; }
"""


def as_a_site(both: Both) -> None:
    """Programs and sockets where the packages have them; `yes` to what is asked."""
    program = f"exec env PYTHONPATH={ROOT} {sys.executable} -m cluster_agent.cli"
    both.site.shell(
        f"""
        mkdir -p /run/clusterctl /usr/lib/nodectl /usr/local/bin
        ln -sfn {both.head.socket} /run/clusterctl/clusterctl.sock
        cp {both.site.at}/nodectl-hook /usr/lib/nodectl/nodectl-hook
        printf '#!/bin/sh\\nyes | {program} "$@"\\n' >/usr/local/bin/clusterctl
        cat >/usr/local/bin/systemctl <<'END'
{SYSTEMCTL}END
        printf '#!/bin/sh\\ncd {both.ran}; exec runuser -u alice -- /usr/bin/oarsub "$@"\\n' >/usr/local/bin/oarsub
        chmod 755 /usr/local/bin/*
        """
    )


def test_what_the_page_has_people_type_takes_a_site_there_and_back(both: Both) -> None:
    as_a_site(both)
    (watch, look), (cap,), (modes,) = (page_blocks("oar.md", name) for name in ("Watch", "Cap", "Modes per job"))
    (back,) = page_blocks("oar.md", "Back")

    def typed(lines: str) -> str:
        return both.site.shell(f"export PATH=/usr/local/bin:$PATH; cd {both.ran}\n{lines}")

    shown = typed(watch.replace("oar check", "oar check || true #"))
    assert "SERVER_PROLOGUE_EXEC_FILE is not set" in shown and "+SERVER_PROLOGUE_EXEC_FILE=" in shown
    numbers = [typed(cap).rpartition("OAR_JOB_ID=")[2].strip()]
    both.head.until(lambda: [str(job["job"]) for job in both.known()] == numbers)  # it started without modes
    shown = typed(modes)
    assert "bdpo=monitor" in shown
    numbers.append(shown.rpartition("OAR_JOB_ID=")[2].strip())
    both.head.until(lambda: sorted(str(job["job"]) for job in both.known()) == sorted(numbers))
    both.site.until(lambda: both.site.run("ls", "/run/nodectl/site-jobs").split() == numbers[1:])
    shown = typed(look)
    assert all(f"{number}@oar" in shown for number in numbers) and "alice" in shown
    both.site.run("oardel", *numbers)
    both.head.until(lambda: both.known() == [])
    typed(back)
    assert both.site.shell("diff -r /run/oar-before /etc/oar; oaradmissionrules -S -f | diff /run/rules-before -") == ""
