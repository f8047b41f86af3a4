"""A live partition whose nodes stay on, boot ahead and go off by a profile, in virtual time on made-up nodes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster_agent.jobs.power_switching import PowerTimes
from cluster_agent.kept_on import EVERY_NODE, NodesAhead
from cluster_agent.serve.config import read_settings
from cluster_agent.serve.live_budget.budget_schedule import read_schedule
from foundation.shell.settings import ConfigError
from tests.live.test_node_power import BOOT_S, Site

SETTINGS = """[budget]
w = 100000.0
[nodes]
tdp_w = 400.0
[jobs]
policy = "{}"
machine = "taurus"
[jobs.power]
off_command = "off %N"
on_command = "on %N"
keep_on = "profile.csv"
"""

NAMES = "from_s,watts,cores\n"


def site_of(path: Path, rows: str, nodes: int = 4, retries: int = 1) -> Site:
    """Nodes of two cores that boot in 20 s; the profile counts from now."""
    path.write_text(NAMES)
    times = PowerTimes(60.0, 30.0, 100.0, retries, keep_on=str(path), cores=2, boot_s=BOOT_S)
    site = Site(nodes, times)
    write(path, site, rows)
    return site


def write(path: Path, site: Site, rows: str) -> None:
    """Replace the file: its seconds count from the site's present time."""
    now_s = int(site.fake.now_s)
    lines = [(int(row.split(",")[0]) + now_s, row.split(",")[1]) for row in rows.split()]
    path.with_suffix(".new").write_text(NAMES + "".join(f"{at_s},100,{cores}\n" for at_s, cores in lines))
    os.replace(path.with_suffix(".new"), path)


def test_nodes_boot_before_the_step_and_go_off_after_it(tmp_path: Path) -> None:
    site = site_of(tmp_path / "p.csv", "0,2 400,6 700,2")
    begun_s = site.fake.now_s
    site.until(lambda: site.count("off") == 3)
    assert site.states["n00"] == "idle"
    site.until(lambda: site.count("booting") == 2)
    assert begun_s + 400 - BOOT_S <= site.fake.now_s <= begun_s + 400 - BOOT_S + 10
    site.until(lambda: site.count("idle") == 3)
    assert site.fake.now_s <= begun_s + 410
    for _ in range(280):  # longer than idle_off_s: the profile keeps them
        site.step()
    assert site.count("idle") == 3 and site.fake.now_s < begun_s + 700
    site.until(lambda: site.count("off") == 3, 60)


def test_a_job_that_cannot_wait_boots_the_nodes_that_the_profile_has_off(tmp_path: Path) -> None:
    site = site_of(tmp_path / "p.csv", "0,2")
    site.until(lambda: site.count("off") == 3)
    job = site.fake.submit(run_s=50, nodes=3)
    site.until(lambda: site.count("booting") == 2, 10)
    site.until(lambda: job.state == "done")
    assert len(job.nodes) == 3


def test_another_node_boots_for_one_that_does_not(tmp_path: Path) -> None:
    site = site_of(tmp_path / "p.csv", "0,0 300,4", retries=0)
    site.until(lambda: site.count("off") == 4)
    site.works = lambda one: one.state == "powering-off" or one.name not in ("n00", "n01")
    site.until(lambda: site.count("idle") == 2)
    assert site.states == {"n00": "down", "n01": "down", "n02": "idle", "n03": "idle"}


def test_a_restart_in_mid_profile_goes_on_with_it(tmp_path: Path) -> None:
    site = site_of(tmp_path / "p.csv", "0,4 2000,8")
    site.until(lambda: site.count("off") == 2)
    before = list(site.ran)
    site.fake.kill_and_restart()
    site.fake.partition.turn()  # before any node was heard
    site.serve()
    for _ in range(300):
        site.step()
    assert site.count("off") == 2 and site.ran == before


def test_a_node_that_is_not_heard_after_a_restart_gets_another_one_booted_in_its_place(tmp_path: Path) -> None:
    site = site_of(tmp_path / "p.csv", "0,4")
    site.until(lambda: site.count("off") == 2)
    site.fake.kill_and_restart()
    for name in ("n00", "n01"):
        site.fake.nodes[name].is_cut = True
    begun_s = site.fake.now_s
    site.until(lambda: site.count("booting") == 2)
    assert site.fake.now_s - begun_s > site.fake.partition.power.silence_s


def test_without_a_profile_all_nodes_stay_on_and_a_lost_one_stays_in_force(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    site = site_of(path, "0,2")
    path.unlink()
    for _ in range(100):
        site.step()
    assert site.count("idle") == 4 and site.ran == []
    assert sum("all nodes stay on" in line for line in site.fake.said) == 1
    write(path, site, "0,2")
    site.until(lambda: site.count("off") == 3)
    path.write_text("from_s,watts,cores\nx\n")  # a wrong one, then none
    site.step(10)
    path.unlink()
    for _ in range(100):
        site.step()
    assert site.count("off") == 3
    assert sum("the profile before it stays in force" in line for line in site.fake.said) == 2


def test_a_profile_that_is_replaced_counts_and_one_that_has_ended_goes_on(tmp_path: Path) -> None:
    path = tmp_path / "p.csv"
    site = site_of(path, "0,2 100,4")
    site.until(lambda: site.count("off") == 2)
    for _ in range(600):
        site.step()
    assert site.count("idle") == 2
    write(path, site, "0,8")
    site.until(lambda: site.count("idle") == 4)


def test_the_watts_of_a_profile_are_a_budget_and_nodes_boot_ahead_within_it(tmp_path: Path) -> None:
    """One file: its watts are the partition's budget by schedule, its cores the nodes that stay on. Each node counts
    200 W here, and the second one that boots has to wait for the budget of the step."""
    path = tmp_path / "p.csv"
    site = site_of(path, "0,2 400,6")
    begun_s = int(site.fake.now_s)
    path.write_text(f"{NAMES}{begun_s},500,2\n{begun_s + 400},900,6\n")
    steps = read_schedule(path)
    assert steps == [(begun_s, 500_000), (begun_s + 400, 900_000)]

    def has_watts() -> bool:
        budget_mw = max(mw for at_s, mw in steps if at_s <= site.fake.now_s)
        return 200_000 * (4 - site.count("off") + 1) <= budget_mw

    site.has_watts = has_watts
    site.until(lambda: site.count("off") == 3)
    site.until(lambda: site.count("booting") == 1)
    assert site.fake.now_s < begun_s + 400  # ahead
    for _ in range(10):
        site.step()
    assert site.count("off") == 2  # no watts before the step
    site.until(lambda: site.count("idle") == 3)
    assert site.fake.now_s >= begun_s + 400


def test_settings_say_what_a_node_has_and_that_a_profile_is_no_parameter_of_a_live_policy(tmp_path: Path) -> None:
    path, profile = tmp_path / "cluster.toml", tmp_path / "profile.csv"
    path.write_text(SETTINGS.format("easy:idle_off_s=300"))
    jobs = read_settings(path).jobs
    assert jobs is not None and jobs.power_times is not None
    times = jobs.power_times
    assert (times.keep_on, times.cores, times.boot_s, times.idle_off_s) == (str(profile), 12, 152.0, 300.0)
    profile.write_text(NAMES + "0,1,1\n")
    for policy, problem in (
        ("easy", "needs idle_off_s: nodes that it does not keep go off"),
        (f"easy:idle_off_s=300,keep_on={profile}", "keep_on of a policy is for replays"),
    ):
        path.write_text(SETTINGS.format(policy))
        with pytest.raises(ConfigError, match=problem):
            read_settings(path)


def test_a_file_is_read_only_when_it_has_changed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said = tmp_path / "p.csv", list[str]()
    path.write_text(NAMES + "0,100,4\n")
    ahead = NodesAhead(str(path), 2, 10.0, said.append)
    assert [ahead.wanted(at_s) for at_s in (1.0, 20.0, 40.0)] == [2, 2, 2]
    assert len(said) == 1
    assert NodesAhead(str(tmp_path / "none"), 2, 10.0, said.append).wanted(1.0) == EVERY_NODE


def test_a_wrong_file_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, said, read = tmp_path / "p.csv", list[str](), list[Path]()
    path.write_text(NAMES + "0,100,x\n")
    read_bytes = Path.read_bytes
    monkeypatch.setattr(Path, "read_bytes", lambda self: [read.append(self), read_bytes(self)][1])
    ahead = NodesAhead(str(path), 2, 10.0, said.append)
    assert [ahead.wanted(at_s) for at_s in (1.0, 20.0, 40.0)] == [EVERY_NODE] * 3
    assert len(read) == len(said) == 1
    path.write_text(NAMES + "0,100,10\n")
    assert ahead.wanted(60.0) == 5 and len(read) == 2
