"""Jobs of the site's own manager, as its prolog says: their modes move policies live, and their joules are counted."""

from __future__ import annotations

import json
import math
import os
import subprocess
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import msgspec
import numpy as np
import pytest

from cluster_agent.slurm.site_files import Choices, to_install
from nodectl.config import build_config
from nodectl.journal import open_journal
from nodectl.journal.decide_again import replay
from nodectl.loop.agent import Agent
from nodectl.site_jobs import job_watch
from nodectl.site_jobs.job_cgroups import JobCgroups
from nodectl.site_jobs.job_folder import JobFolder, SiteJob, mode_in
from nodectl.site_jobs.job_parts import Drawn, JobParts
from nodectl.site_jobs.joules_page import MOST_BYTES, REPORTED, REPORTED_S, JobAccounts
from pmu.decode import decode
from pmu.node import Instruments
from pmu.ports import Ports
from pmu.system import OsFiles
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

needs_root = pytest.mark.skipif(os.geteuid() != 0, reason="giving a file to another user needs root")

LIMIT = "/sys/devices/system/cpu/cpufreq/policy0/scaling_max_freq"
FIXED_KHZ = 1_800_000


class Node:
    """An emulated node with the real agent in virtual time, whose clock is also the one of the jobs' files."""

    def __init__(self, inside: InProcess, at: Path, mode: str, by_default: str = "optimize") -> None:
        self.twin, self.said, self.at = inside.twin, list[str](), at
        self.ports: Ports = replace(inside.ports, lock_path=str(at / "lock-1"))
        settings = {
            "mode": mode, "state_dir": str(at), "budget": {"core_share": 0.0}, "gpu_policy": {"name": "none"},
            "jobs": {"mode": by_default}, "cpu_policy": {"name": "fixed", "params": {"clock_khz": FIXED_KHZ}},
        }  # fmt: skip
        self.agent = Agent.open(self.ports, build_config(settings, lambda key: ".".join(key)), self.said.append)
        scripts = site_scripts(at)
        self._prolog, self._epilog = scripts

    def limit_khz(self) -> int:
        return int(self.ports.files.read(LIMIT))

    def tick(self) -> int:
        self.agent.tick()
        return self.limit_khz()

    def begin(self, job: str, comment: str) -> None:
        run_hook(self._prolog, job, comment)

    def end(self, job: str) -> None:
        run_hook(self._epilog, job, "")

    def record(self) -> list[dict[str, object]]:
        return [json.loads(line) for line in (self.at / "job-modes.jsonl").read_text().splitlines()]


def site_scripts(at: Path) -> tuple[str, str]:
    """The prolog and the epilog of nodes as they are installed, for an agent whose lock is below ``at``."""
    (at / "slurm.conf").touch()
    written = {
        change.path.name: change.after or "" for change in to_install(at / "slurm.conf", Choices(with_nodes=True))
    }
    return written["prolog-node"].replace("/run/nodectl", str(at)), written["epilog-node"].replace(
        "/run/nodectl", str(at)
    )


def run_hook(script: str, job: str, comment: str, **more: str) -> None:
    names = {"SLURM_JOB_ID": job, "SLURM_JOB_USER": "alice", "SLURM_JOB_COMMENT": comment, **more}
    subprocess.run(["sh", "-euc", script], env={**os.environ, **names}, check=True)


@pytest.fixture
def inside() -> Iterator[InProcess]:
    with InProcess(Twin(load_machine("curie"))) as made:
        yield made


def test_a_job_that_asks_to_be_monitored_has_its_clocks_back_until_it_ends(inside: InProcess, tmp_path: Path) -> None:
    node = Node(inside, tmp_path, "optimize")
    whole_khz = node.limit_khz()
    with node.agent:
        node.tick()
        assert node.tick() == FIXED_KHZ
        node.begin("17", 'solve "x" nodectl=memory nodectl=monitor')
        assert node.tick() == whole_khz, "policies rest, and what they had moved is back"
        node.end("17")
        assert node.tick() == FIXED_KHZ
    assert node.limit_khz() == whole_khz
    start, end = node.record()
    assert (start["job"], start["user"], start["event"], start["mode"], start["said"]) == (
        "17", "alice", "start", "monitor", "monitor",
    )  # fmt: skip
    assert start["policies"] == {} and end["event"] == "end" and end["mode"] == "optimize"
    assert end["policies"] == {"cpu": {"name": "fixed", "params": {"clock_khz": FIXED_KHZ}}}
    assert "job 17 of alice: start, mode monitor" in node.said
    report = replay(open_journal(tmp_path / "journal"))
    assert report.is_equal and report.decided == report.records - 2, "the first sweep, and the job's period"


def test_a_site_may_leave_it_to_jobs_to_ask_for_policies(inside: InProcess, tmp_path: Path) -> None:
    node = Node(inside, tmp_path, "optimize", by_default="monitor")
    whole_khz = node.limit_khz()
    with node.agent:
        assert node.tick() == whole_khz
        node.begin("17", "nodectl=optimize")
        assert node.tick() == FIXED_KHZ
        node.begin("18", "")
        assert node.tick() == whole_khz, "where jobs share a node the most careful mode counts"
        node.end("18")
        assert node.tick() == FIXED_KHZ
        node.end("17")
        assert node.tick() == whole_khz


def test_a_job_that_wants_nothing_of_it_is_not_in_the_journal(inside: InProcess, tmp_path: Path) -> None:
    node = Node(inside, tmp_path, "optimize")
    with node.agent:
        for _ in range(5):
            node.tick()
        node.begin("17", "nodectl=off")
        for _ in range(20):
            node.tick()
        node.end("17")
        for _ in range(5):
            node.tick()
    report = replay(open_journal(tmp_path / "journal"))
    assert report.is_equal
    assert report.decided == 10 and report.records == 12, "the first sweep, and the last one of that time"


def test_a_run_that_only_monitors_moves_nothing_for_a_job_that_asks_for_more(inside: InProcess, tmp_path: Path) -> None:
    node = Node(inside, tmp_path, "monitor")
    whole_khz = node.limit_khz()
    with node.agent:
        node.begin("17", "nodectl=optimize")
        assert node.tick() == node.tick() == whole_khz
    assert node.record()[0]["mode"] == "monitor"


@pytest.mark.parametrize(
    ("comment", "mode"),
    [
        ("nodectl=Monitor", "monitor"),
        ("nodectl=memory,nodectl=off", "off"),
        ("xnodectl=off", ""),
        ("nodectl=offline", ""),
        ("nodectl=off=1", ""),
        ("計算 nodectl=optimize\n" + "y" * 9000, "optimize"),
        ("", ""),
    ],
)
def test_the_mode_is_a_word_of_the_comment(comment: str, mode: str) -> None:
    assert mode_in(comment) == mode


@needs_root
def test_what_others_put_into_the_folder_is_no_job(inside: InProcess, tmp_path: Path) -> None:
    node = Node(inside, tmp_path, "optimize")
    folder = tmp_path / "site-jobs"
    folder.mkdir()
    os.mkfifo(folder / "1")
    (folder / "2").symlink_to("/etc/passwd")
    os.chown(folder / "2", 65534, 65534, follow_symlinks=False)
    (folder / "3").mkdir()
    (folder / ".new.4").write_text("user=alice\ncomment=nodectl=off")
    (folder / "5").write_bytes(b"\xff\xfe" * 9000)
    (folder / "6; rm").write_text("comment=nodectl=off")
    with node.agent:
        assert [node.tick() for _ in range(3)][-1] == FIXED_KHZ
    assert {one["job"] for one in node.record()} == {"5"}
    assert all(len(line.split()) == 9 for line in (tmp_path / "job-joules").read_text().splitlines()[1:])


# --- joules


def drawn(page: str) -> dict[str, list[str]]:
    return {words[0]: words[1:] for words in map(str.split, page.splitlines()[1:])}


def job(name: str, began_s: float = 0.0) -> SiteJob:
    return SiteJob(name, "alice", "", began_s)


def packages_j(agent: Agent) -> float:
    """All that the node's packages have drawn, by the agent's own summary."""
    return sum(one.joules for one in agent.summary().energy if "/" not in one.name and one.name.startswith("package"))


def test_a_jobs_joules_are_those_of_the_node_while_it_ran(inside: InProcess, tmp_path: Path) -> None:
    """Files have the wall clock's time and this node a virtual one, so a job begins and ends at the end of a period."""
    node = Node(inside, tmp_path, "monitor")
    with node.agent:
        node.tick()
        node.twin.start_workload(load_workload("hpl", node.twin.machine, duration_s=3600.0))
        began_s = time.time()
        node.begin("17", "")
        node.tick()
        late_s = time.time() - began_s
        before_j = packages_j(node.agent)
        for _ in range(50):
            node.tick()
        node.end("17")
        node.tick()
        drawn_j = packages_j(node.agent) - before_j
    user, joules, of_meters, seconds, missing, most, quality, end = drawn((tmp_path / "job-joules").read_text())["17"]
    assert user == "alice" and most == "1" and end.endswith("Z") and quality == "measured"
    assert 5.0 <= float(seconds) <= 5.2
    assert float(missing) <= late_s + 0.01, "what the wall clock went on between the prolog and the agent's look"
    assert abs(float(joules) / drawn_j - 1) < 0.05, "a period of fifty at each end"
    assert float(of_meters) > float(joules), "rest_w is 0 here, and memory has a meter"


def test_what_cores_draw_is_remembered_on_a_node_that_is_never_empty(
    inside: InProcess, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "REMEMBER_S", 1.5)
    of_a_killed_agent, learned = tmp_path / ".core-watts.json.99", tmp_path / "core-watts.json"
    of_a_killed_agent.touch()
    node = Node(inside, tmp_path, "monitor")
    with node.agent:
        node.begin("17", "")
        for _ in range(12):
            node.tick()
        node.begin("18", "")
        node.tick()
        assert not learned.exists(), "not at each start of a job"
        for _ in range(3):
            node.tick()
        node.end("17")
        node.tick()
        assert msgspec.json.decode(learned.read_bytes()), "18 goes on"
    assert not of_a_killed_agent.exists()


def test_a_job_ends_with_its_epilog_and_not_when_somebody_looks() -> None:
    now = [100.0]
    accounts = JobAccounts(wall_s=lambda: now[0])
    accounts.add({"1": job("1", 99.6)}, 99.6, Drawn(300.0, "measured"), 1.0)
    now[0] = 101.0
    accounts.add({}, 100.25, Drawn(400.0, "measured"), 1.0)
    _, joules, _, seconds, missing, most, _, end = drawn(accounts.page())["1"]
    assert math.isclose(float(joules), 0.4 * 300 + 0.25 * 400)
    assert (float(seconds), float(missing), most, end) == (0.65, 0.0, "1", "1970-01-01T00:01:40.250Z")


def test_jobs_that_follow_each_other_within_a_period_do_not_share_it() -> None:
    now = [10.0]
    accounts = JobAccounts(wall_s=lambda: now[0])
    accounts.add({"1": job("1", 9.0)}, 9.0, Drawn(100.0, "measured"), 1.0)
    now[0] = 11.0
    accounts.add({"2": job("2", 10.75)}, 10.5, Drawn(100.0, "measured"), 1.0)
    found = drawn(accounts.page())
    assert found["1"][5] == found["2"][5] == "1"
    assert float(found["2"][1]) == 25.0
    assert 150.0 <= float(found["1"][1]) <= 175.0


class Counted(dict[str, "float | None"]):
    """Processor time by job, in place of the kernel's."""

    def seconds(self, job: str) -> float | None:
        return self[job]

    def forget(self, job: str) -> None:
        del self[job]


def test_jobs_that_share_a_node_share_its_joules_by_processor_time() -> None:
    now, used = [10.0], Counted({"1": 0.0, "2": 0.0})
    accounts = JobAccounts(cgroups=used, wall_s=lambda: now[0])
    both = {"1": job("1", 9.0), "2": job("2", 9.0)}
    accounts.add(both, 9.0, Drawn(0.0, "measured"), 1.0)
    for number in range(1, 11):
        now[0] += 1.0
        used |= {"1": 3.0 * number, "2": 1.0 * number}
        accounts.add(both, 9.0, Drawn(200.0, "measured"), 1.0)
    found = drawn(accounts.page())
    assert (float(found["1"][1]), float(found["2"][1])) == (1500.0, 500.0)
    assert found["1"][5] == "2" and float(found["node"][1]) == 2000.0
    used["2"] = math.nan
    now[0] += 1.0
    accounts.add(both, 9.0, Drawn(200.0, "measured"), 1.0)
    found = drawn(accounts.page())
    assert (float(found["1"][1]), float(found["1"][4])) == (1500.0, 1.0), "nobody can say, so nobody gets it"


def test_the_cluster_agent_gets_the_joules_of_jobs_that_are_here_and_of_those_that_have_ended_lately() -> None:
    now, used = [10.0], Counted({"1": 0.0, "2": 0.0})
    accounts = JobAccounts(cgroups=used, wall_s=lambda: now[0])
    both = {"1": job("1", 9.0), "2": job("2", 9.0)}
    accounts.add(both, 9.0, Drawn(0.0, "measured"), 1.0)
    for number in range(1, 11):
        now[0] += 1.0
        used |= {"1": 3.0 * number, "2": 1.0 * number}
        accounts.add(both, 9.0, Drawn(200.0, "measured"), 1.0)
    assert accounts.reported() == {"1": (1_500_000, 150_000), "2": (500_000, 50_000)}
    now[0] += 1.0
    accounts.add({"2": both["2"]}, now[0] - 1.0, Drawn(200.0, "measured"), 1.0)
    assert accounts.reported() == {"2": (700_000, 200_000), "1": (1_500_000, 0)}, "of one that has ended no more watts"
    now[0] += REPORTED_S
    accounts.add({"2": both["2"]}, 21.0, Drawn(math.nan, "missing"), 1.0)
    assert accounts.reported() == {"2": (round(700_000 * 13 / 12), 0)}, "one ended long ago; the other's mean goes on"
    accounts.add({"2": both["2"]}, 21.0, Drawn(math.nan, "missing"), 1.0)
    assert accounts.reported() == {}, "two of fourteen seconds were not metered"
    many = {str(number): job(str(number), now[0] - 1.0) for number in range(100, 150)}
    used |= dict.fromkeys(many, 0.0)
    accounts.add(many, now[0] - 1.0, Drawn(1.0, "measured"), 1.0)
    accounts.add(dict(list(many.items())[:40]), now[0], Drawn(1.0, "measured"), 1.0)
    found = accounts.reported()
    assert len(found) == REPORTED and max(found) < "140", "those that are here come first"


def test_a_job_whose_processes_are_to_come_or_have_gone_has_used_nothing() -> None:
    now, used = [10.0], Counted({"1": 50.0, "2": None})
    accounts = JobAccounts(cgroups=used, wall_s=lambda: now[0])
    both = {"1": job("1", 9.0), "2": job("2", 9.0)}
    accounts.add(both, 9.0, Drawn(100.0, "measured", 40.0), 1.0)  # the kernel has not counted a whole interval yet
    for first, second in ((52.0, None), (53.0, 1.0), (53.0, None)):
        now[0] += 1.0
        used |= {"1": first, "2": second}
        accounts.add(both, 9.0, Drawn(200.0, "measured", 80.0), 1.0)
    found = drawn(accounts.page())
    assert (float(found["1"][1]), float(found["2"][1])) == (50.0 + 200.0 + 100.0 + 100.0, 50.0 + 0.0 + 100.0 + 100.0)
    assert (found["1"][2], found["1"][4]) == ("180.000", "0.000"), "nothing is lost at the ends of the other job"
    used |= {"1": None, "2": None}
    now[0] += 1.0
    accounts.add(both, 9.0, Drawn(200.0, "measured", 80.0), 1.0)
    assert drawn(accounts.page())["1"][4] == "1.000", "no cgroup at all: this site's Slurm has none"


def test_time_that_a_job_used_alone_is_not_that_of_a_shared_interval() -> None:
    now, used = [10.0], Counted({"1": 0.0, "2": 0.0, "3": 0.0})
    accounts = JobAccounts(cgroups=used, wall_s=lambda: now[0])
    for there, first in (("12", 1.0), ("12", 2.0), ("1", 500.0), ("13", 900.0), ("13", 901.0)):
        now[0] += 1.0
        used |= {"1": first, "2": first, "3": first - 900.0 if first >= 900.0 else 0.0}
        accounts.add({name: job(name, now[0] - 1.0) for name in there}, now[0] - 1.0, Drawn(100.0, "measured"), 1.0)
    assert float(drawn(accounts.page())["3"][1]) == 100.0, "half of each interval"


GPUS = [("", ()), ("0", (0,)), ("0,2,13", (0, 2, 13)), ("gpu0", ()), ("1,x", (1,)), ("0-3", ())]


@pytest.mark.parametrize(("text", "gpus"), GPUS)
def test_a_jobs_gpus_are_those_that_slurm_gave_it(tmp_path: Path, text: str, gpus: tuple[int, ...]) -> None:
    prolog, _ = site_scripts(tmp_path)
    run_hook(prolog, "17", "gpus=5 nodectl=off", SLURM_JOB_GPUS=text)
    (found,) = JobFolder(str(tmp_path / "lock-1")).look().values()
    assert (found.user, found.mode, found.gpus) == ("alice", "off", gpus)


def test_a_gpu_is_of_the_job_that_has_it(tmp_path: Path) -> None:
    with InProcess(Twin(load_machine("spr-h100"))) as inside:
        node = Node(inside, tmp_path, "monitor")
        layout = node.agent.layout
        parts = JobParts(node.ports, layout, node.agent.config, JobCgroups(node.ports.files))
        instruments = Instruments(node.ports, layout)
        first = instruments.sweep()
        inside.twin.advance(1.0)
        sample = decode(layout, first, instruments.sweep())
        gpus_j = 100.0 * 2.0 ** np.arange(len(layout.gpus))
        sample = replace(sample, gpu=replace(sample.gpu, energy_j=gpus_j))
        whole = parts.drawn(sample, {"1": replace(job("1"), gpus=(0,)), "2": replace(job("2"), gpus=(1,))})
        found = parts.split(whole, {"1": 3.0, "2": 1.0})
        node.agent.stop()
    for_all_j = whole.joules - 300.0  # also the GPUs that nobody has
    assert found["1"].joules == pytest.approx(0.75 * for_all_j + 100.0)
    assert found["2"].joules == pytest.approx(0.25 * for_all_j + 200.0)
    assert found["1"].metered_j + found["2"].metered_j == pytest.approx(whole.metered_j)


def test_the_next_agent_goes_on_and_says_how_long_nobody_metered() -> None:
    now = [10.0]
    first = JobAccounts(wall_s=lambda: now[0])
    both = {"1": job("1", 9.0), "2": job("2", 9.0)}
    first.add({"1": both["1"]}, 9.0, Drawn(100.0, "measured"), 1.0)
    now[0] = 11.0
    first.add({"1": both["1"]}, 9.0, Drawn(100.0, "measured"), 1.0)
    now[0] = 15.0
    page = first.page().replace("1 alice", "7 bob 55.0 - 1.0 0.0 1 measured running\n1 alice")
    second = JobAccounts(page, wall_s=lambda: now[0])
    second.add({"1": both["1"]}, 9.0, Drawn(50.0, "estimated"), 1.0)
    found = drawn(second.page())
    assert found["1"] == ["alice", "250.000", "-", "3.000", "3.000", "1", "estimated", "running"]
    assert found["7"] == ["bob", "55.000", "-", "1.000", "0.000", "1", "measured", "unknown"], (
        "it ended without an agent"
    )
    assert found["node"][1] == "250.000"


def test_a_memory_that_could_not_be_read_once_leaves_what_meters_have_shown() -> None:
    accounts = JobAccounts(wall_s=lambda: 10.0)
    for of_meters in (90.0, math.nan, 80.0):
        accounts.add({"1": job("1", 1.0)}, 1.0, Drawn(100.0, "measured", of_meters), 1.0)
    assert [drawn(accounts.page())[name][1:3] for name in ("1", "node")] == [["300.000", "170.000"]] * 2


def test_a_page_without_what_meters_show_goes_on_and_does_not_guess_it() -> None:
    page = "node - 50.0 5.0 1.0 1 measured -\n1 alice 20.0 2.0 0.0 1 measured running\n"
    accounts = JobAccounts(page, wall_s=lambda: 10.0)
    accounts.add({"1": job("1", 7.0), "2": job("2", 10.0)}, 10.0, Drawn(100.0, "measured", 90.0), 1.0)
    found = drawn(accounts.page())
    assert (found["node"][1:4], found["1"][1:4]) == (["150.000", "-", "6.000"], ["120.000", "-", "3.000"])
    assert found["2"][2] == "0.000"


@pytest.mark.parametrize(
    "page", ["", "x", "1 a b - c d e measured f\n", "1 a nan - 1 1 1 measured -\n", "# 1 2 3 4 5 6 7 8\n"]
)
def test_a_damaged_page_is_none(page: str) -> None:
    assert drawn(JobAccounts(page).page()).keys() == {"node"}


def test_the_page_stays_small() -> None:
    now = [10.0]
    accounts = JobAccounts(wall_s=lambda: now[0])
    many = {f"{number:064d}": job(f"{number:064d}", 9.0) for number in range(900)}
    accounts.add(many, 9.0, Drawn(100.0, "measured"), 1.0)
    assert len(accounts.page()) <= MOST_BYTES


def test_processor_time_of_a_job_is_found_in_both_versions_of_cgroups(tmp_path: Path) -> None:
    tree = {
        "sys/fs/cgroup/system.slice/n01_slurmstepd.scope/job_17/cpu.stat": "usage_usec 2500000\nuser_usec 1\n",
        "sys/fs/cgroup/system.slice/n01_slurmstepd.scope/job_17/cpuset.cpus.effective": "0-2,8\n",
        "sys/fs/cgroup/cpuset/slurm_n01/uid_1000/job_18/cpuset.effective_cpus": "4-5\n",
        "sys/fs/cgroup/cpuset/slurm_n01/uid_1000/job_19/cpuset.effective_cpus": "4-\n",
        "sys/fs/cgroup/cpuacct/slurm_n01/uid_1000/job_18/cpuacct.usage": "3500000000\n",
        "sys/fs/cgroup/cpuacct/slurm_n01/uid_1000/job_19/cpuacct.usage": "no number\n",
    }
    for name, text in tree.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    times = JobCgroups(OsFiles(str(tmp_path)))
    assert (times.seconds("17"), times.seconds("18")) == (2.5, 3.5)
    assert math.isnan(times.seconds("19") or 0.0) and times.seconds("20") is None
    assert (times.cpus("17"), times.cpus("18"), times.cpus("19")) == ({0, 1, 2, 8}, {4, 5}, set())
