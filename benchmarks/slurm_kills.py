"""Kills on a real Slurm next to the cluster agent: slurmctld, slurmd, the head, a node's agent, and two at once.

A real Slurm 22.05 with four nodes (scripts/slurm.sh), its hooks, `clusterctl slurm follow` every ten seconds, the
cluster agent, and scripted node agents with real leases and CURVE links, whose hardware is emulated: a file with the
cap. In each round alice's jobs come, one of the five is killed with SIGKILL at a drawn moment and started again a
little later, as systemd would; a node's agent falls to its safe cap then, as its unit does. The round ends when Slurm's
queue and the jobs known to the cluster agent are empty.

What must be true: the caps, by the nodes' own histories, stay within the budget at every instant. No job stays known
for more than 30 s after Slurm, which answers, has it no more. No number stands for two jobs: each job known and each
row of joules has a number and a name that Slurm gave together. A job that Slurm accepted and never ran is lost. It is
Slurm's loss if slurmctld's log has its submission, then a start of slurmctld, and the number is not among the jobs that
this start recovered; all else counts as not explained, and the lines of the log on that number are printed. Needs root.
"""

from __future__ import annotations

import contextlib
import os
import random
import re
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, ClassVar, Final

from benchmarks.experiment import save
from benchmarks.slurm import NODES, SLURM_USER, Hooked, options
from foundation.shell.text_table import render
from tests.fabric.cluster import Cluster
from tests.slurm.site import Site, SiteError

SAFE_W: Final = 200.0
"""Of the scripted nodes."""

LONGEST_S: Final = 30.0
MEND_S: Final = 8.0
PATIENCE_S: Final = 180.0
WHAT: Final = ("slurmctld", "slurmd", "head", "node agent")
Run = tuple[str, str]
"""A job's number and its name, which is another one for each submission."""


def slurms_loss(log: Sequence[str], number: str, submission: int) -> str:
    """What slurmctld's log says of the submission (0: the first) that was given this number, if it was lost by a start
    of slurmctld that did not recover it; empty if the log does not show that."""
    accepted = [at for at, line in enumerate(log) if f"_slurm_rpc_submit_batch_job: JobId={number} " in line]
    if submission >= len(accepted):
        return ""
    own = log[accepted[submission] : (*accepted, len(log))[submission + 1]]
    started = ""
    for line in own:
        if f"_job_complete: JobId={number} done" in line:
            return ""
        if "slurmctld version" in line:
            started, is_there = line, False
        elif started and f"Recovered JobId={number} " in line:
            is_there = True
        elif started and "Recovered information about" in line:
            if not is_there:
                return f"{own[0]}\n  {started}\n  {line}"
            started = ""
    return ""


class Round:
    """The parts that are killed, and what is seen meanwhile."""

    nodes: ClassVar[int] = NODES
    setting: ClassVar[str] = "true"
    """A command that changes Slurm's settings before the first job."""

    def __init__(self, site: Site, head: Cluster, hooked: Hooked, drawn: random.Random) -> None:
        self.site, self.head, self.hooked, self.drawn = site, head, hooked, drawn
        self.submitted: set[Run] = set()
        self.confused: set[Run] = set()
        self.latest_s = 0.0
        self._gone_s: dict[Run, float] = {}
        self._serial = 0
        self.mended = 0

    def submit(self) -> None:
        """Four jobs of one or two nodes, some of which have to wait."""
        for _ in range(4):
            self._serial += 1
            name = f"job{self._serial:04d}"
            seconds = self.drawn.uniform(0.5, 3.0)
            words = ["sbatch", "--parsable", f"-N{self.drawn.choice((1, 2))}", "-J", name, "-o", "/dev/null"]
            script = f"touch {self.site.at}/ran/{name}; sleep {seconds:.1f}"
            number = self.site.run(*words, "--comment", "nodectl=compute", "--wrap", script, user="alice").strip()
            self.submitted.add((number, name))

    def kill(self, what: str) -> list[str]:
        """SIGKILL, and how to start it again."""
        if what == "slurmctld":
            self.site.shell("kill -9 $(cat /run/slurm/slurmctld.pid)")
        elif what == "slurmd":
            name = f"n{self.drawn.randint(1, self.nodes):02d}"
            self.site.shell(f"kill -9 $(cat /run/slurm/slurmd.{name}.pid)")
            return [what, name]
        elif what == "head":
            self.hooked.serving.kill()
            self.hooked.serving.wait()
        else:
            name = f"n{self.drawn.randint(1, self.nodes):02d}"
            self.head.started[name].kill()
            self.head.started[name].wait()
            self.head.fall(name, min(self.head.cap_w(name), SAFE_W))
            return [what, name]
        return [what]

    def start(self, what: str, name: str = "") -> None:
        """The same again."""
        if what == "slurmctld":
            self.site.shell("setpriv --reuid slurm --regid slurm --clear-groups slurmctld")
        elif what == "slurmd":
            self.site.shell(f"slurmd -N {name}")
        elif what == "head":
            self.hooked.serving = self.head.serve()
        else:
            self.head.node(name)

    def look(self) -> bool:
        """Compare once; whether both sides answer and have no job."""
        known = self.head.ask("notify", "list")
        squeue = subprocess.run(
            [*self.site.within, "squeue", "-h", "-o", "%A|%j|%t"],
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        if squeue.returncode or known is None:
            return False
        self.heard(known)
        rows = [line.split("|") for line in squeue.stdout.splitlines()]
        there = {(number, name) for number, name, _ in rows}
        here: set[Run] = {(str(job["job"]), str(job["title"])) for job in known}
        self.confused |= here - self.submitted
        now_s = time.monotonic()
        self._gone_s = {run: self._gone_s.get(run, now_s) for run in here - there}
        self.latest_s = max([self.latest_s, *(now_s - since_s for since_s in self._gone_s.values())])
        return not here and not there

    def heard(self, known: list[dict[str, Any]]) -> None:
        """The jobs that the cluster agent knows now."""

    def found(self) -> dict[str, Any]:
        """More to save, once all jobs have ended."""
        return {}

    def _mend(self) -> None:
        """What an administrator of Slurm does when its own recovery has left jobs that only a release starts or that
        begin in two minutes, nodes drained ("Duplicate jobid") or a batch job that has ended in its queue, until nodes
        register again."""
        self.mended += 1
        self.site.shell(
            "for job in $(squeue -h -t PD -o %A); do scontrol release $job || true;"
            "scontrol update jobid=$job starttime=now || true; done;"
            "for node in $(sinfo -h -N -t drain -o %N | sort -u); do scontrol update nodename=$node state=resume; done;"
            "scontrol reconfigure || true"
        )

    def until_empty(self) -> None:
        """Both sides answer and have no job; what stands in the way is printed if that takes too long."""
        began_s = time.monotonic()
        try:
            again_s = time.monotonic() + MEND_S
            while not self.look():
                if time.monotonic() >= again_s:
                    self._mend()
                    again_s = time.monotonic() + MEND_S
                assert time.monotonic() < began_s + PATIENCE_S, "waited in vain"
                time.sleep(0.2)
        except (AssertionError, SiteError):
            words = (
                "squeue; sinfo -N -o '%N %T %E'; tail -n 20 log/slurmctld head/follow.log head/serve.log log/slurmd.*"
            )
            print(self.head.ctl("notify", "list").stdout, file=sys.stderr)
            print(self.site.run("sh", "-c", f"cd {self.site.at}; {words} 2>&1; true"), file=sys.stderr)
            raise


def measure(times: int, longest_s: float, seed: int = 1, kind_of: type[Round] = Round) -> dict[str, Any]:
    """``times``: of each of the four parts, and of two at once, in turn; no round begins after ``longest_s``."""
    nodes = kind_of.nodes
    drawn = random.Random(seed)
    plan: list[tuple[str, ...]] = []
    for _ in range(times):
        kinds = [*((what,) for what in WHAT), tuple(drawn.sample(WHAT, 2))]
        plan += drawn.sample(kinds, len(kinds))
    with Site(nodes, accounting=False) as site, contextlib.ExitStack() as closing:
        (site.at / "head").mkdir()
        (site.at / "ran").mkdir()
        (site.at / "ran").chmod(0o777)
        budget_w = 350.0 * nodes
        site.shell(kind_of.setting)
        with contextlib.redirect_stdout(sys.stderr):  # the keys
            head = closing.enter_context(Cluster(site.at / "head", budget_w, sharer="aapc", notifiers=[SLURM_USER]))
        hooked = Hooked(site, head, nodes)
        hooked.install()
        follow = ["slurm", "follow", "--cluster", "emulated", "--socket", str(head.socket)]
        head.start("-m", "cluster_agent.cli", *follow, log="follow.log", within=site.within)
        rounds = kind_of(site, head, hooked, drawn)
        began_s = time.monotonic()
        latest: dict[str, float] = {}
        done: Counter[str] = Counter()
        killed_with: dict[Run, tuple[str, ...]] = {}
        for killed in plan:
            if time.monotonic() - began_s > longest_s:
                break
            earlier = set(rounds.submitted)
            rounds.submit()
            killed_with |= dict.fromkeys(rounds.submitted - earlier, killed)
            rounds.latest_s = 0.0
            again_s = time.monotonic() + drawn.uniform(0.0, 3.0)
            while time.monotonic() < again_s:
                rounds.look()
            down = [rounds.kill(what) for what in killed]
            time.sleep(drawn.uniform(0.2, 1.5))
            for words in down:
                rounds.start(*words)
            rounds.until_empty()
            kind = killed[0] if len(killed) == 1 else "two at once"
            done[kind] += 1
            print(f"{done[kind]}: {' and '.join(killed)}: {rounds.latest_s:.1f} s", file=sys.stderr, flush=True)
            latest[kind] = max(latest.get(kind, 0.0), rounds.latest_s)
        lost = {run for run in rounds.submitted if not (site.at / "ran" / run[1]).exists()}
        log = (site.at / "log" / "slurmctld").read_text().splitlines()
        given: dict[str, list[str]] = {}  # in the order of submissions, which is that of names
        for number, name in sorted(rounds.submitted, key=lambda run: run[1]):
            given.setdefault(number, []).append(name)
        not_explained = []
        for number, name in sorted(lost, key=lambda run: run[1]):
            why = slurms_loss(log, number, given[number].index(name))
            if not why:
                not_explained.append((number, name))
                why = "not explained:\n  " + "\n  ".join(line for line in log if re.search(rf"JobId={number}\b", line))
            round_of = " and ".join(killed_with[number, name])
            print(f"lost: job {number}, {name}, with {round_of} killed\n  {why}", file=sys.stderr)
        numbers = Counter(number for number, _ in rounds.submitted)
        rows = {(str(row["job"]), str(row["title"])) for row in head.ask("energy")}
        more = rounds.found()
        highest_w, late_s = head.highest_w(is_excused=True), head.latest_s()
    return {
        "kills": done.total(), "times": dict(done), "took_s": time.monotonic() - began_s, "jobs": len(rounds.submitted),
        "lost": len(lost), "not_explained": not_explained,
        "numbers_given_twice": sum(count > 1 for count in numbers.values()), "latest_s": latest,
        "mended": rounds.mended,
        "confused": sorted(rounds.confused | {run for run in rows if run[1] and run not in rounds.submitted}),
        "highest_w": highest_w, "budget_w": budget_w, "latest_node_s": late_s, "load": os.getloadavg()[0],
        **more,
    }  # fmt: skip


def main(arguments: list[str] | None = None) -> int:
    is_quick = options(arguments, __doc__, "5 kills of each kind instead of 20, for 20 minutes at most")
    if is_quick is None:
        return 0
    found = measure(*((5, 1200.0) if is_quick else (20, 86_400.0)))
    is_kept = shown(found)
    save("slurm_kills", found)
    return 0 if is_kept else 1


def shown(found: dict[str, Any]) -> bool:
    """Print what was found; whether it is what must be true."""
    lines = [(kind, str(found["times"][kind]), f"{late_s:.0f}") for kind, late_s in sorted(found["latest_s"].items())]
    print(render(("killed", "times", "known longer than in Slurm, s"), lines))
    print("{kills} kills in {took_s:.0f} s, {jobs} jobs of Slurm; {lost} were lost, by slurmctld's log not by "
          "Slurm: {not_explained}; {numbers_given_twice} numbers were given twice; confused: {confused}; "
          "Slurm itself was mended {mended} times"
          .format(**found))  # fmt: skip
    print("most that could be drawn {highest_w:.0f} W of {budget_w:.0f} W (load {load:.0f})".format(**found))
    is_kept = found["highest_w"] <= found["budget_w"] and not found["confused"]
    return bool(is_kept and max(found["latest_s"].values()) <= LONGEST_S and not found["not_explained"])


if __name__ == "__main__":
    raise SystemExit(main())
