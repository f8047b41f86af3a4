"""Nodes of a real partition switched off and on by the site's commands, and the cluster agent killed in between."""

from __future__ import annotations

import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from cluster_agent.budget.budget_line import BudgetLine
from cluster_agent.budget.ledger import Ledger, Terms
from cluster_agent.serve.config import JobSettings, PowerSettings, read_settings
from cluster_agent.serve.job_service import JobService
from cluster_agent.serve.power_commands import PowerCommands, arguments
from cluster_agent.store.database import Database
from cluster_agent.store.job_store import JobStore
from cluster_agent.store.ledger_store import SqliteLedgerStore
from foundation.shell.settings import ConfigError
from foundation.wire.job_messages import NodeJobs
from tests.fabric.cluster import Cluster
from tests.fabric.links import DECLARED, report
from tests.waiting import PATIENCE_S

SITE = """#!/bin/sh
echo "$1 $2" >> {ran}
exec {body}
"""


def site(at: Path, body: str = "true") -> dict[str, Any]:
    """A site whose commands note that they ran, in ``ran``, and then do ``body``."""
    script = at / "switch"
    script.write_text(SITE.format(ran=at / "ran", body=body))
    script.chmod(0o755)
    return {"off_command": f"{script} off %N", "on_command": f"{script} on %N"}


def ran(at: Path) -> list[str]:
    return (at / "ran").read_text().splitlines() if (at / "ran").exists() else []


class Head:
    """Ledger, jobs' side and power's side without sockets; time is made up, the commands are real."""

    def __init__(self, at: Path, budget_w: float = 700.0, body: str = "true", **power: Any) -> None:
        self.at, self.now_s, self.budget_w = at, 1000.0, budget_w
        settings = {"idle_off_s": 60.0, "off_within_s": 50.0, "retries": 1} | power
        self.power = PowerSettings(**settings, **site(at, body))
        self.boots: dict[str, int | None] = {"n0": 1, "n1": 1}
        self.said: list[str] = []
        self.start()

    def start(self) -> None:
        self.database = Database(self.at / "a.db")
        jobs = JobSettings(power=self.power)
        self.ledger = Ledger(
            SqliteLedgerStore(self.database, "head-1"), Terms(0, 0), BudgetLine(round(self.budget_w * 1000)), self.now_s
        )
        self.side = JobService(
            jobs, JobStore(self.database), self.boots, lambda *_: True, lambda _: True, self.said.append,
            lambda: self.now_s, can_switch=True,
        )  # fmt: skip
        self.switch = PowerCommands(jobs, self.power, self.side, self.ledger, lambda: None)

    def kill_and_restart(self) -> None:
        self.database.close()
        self.start()

    def step(self) -> None:
        """A second."""
        self.now_s += 1.0
        at_ns = round(self.now_s * 1e9)
        on = {name: f"boot-{boot}" for name, boot in self.boots.items() if boot}
        reports = [report(name, at_ns, boot_id=boot, limit_mw=200_000) for name, boot in on.items()]
        self.ledger.hear(self.now_s, *reports)
        self.side.hear([NodeJobs(name, boot, []) for name, boot in on.items()], reports, lambda _: ("", None))
        self.side.turn()
        self.ledger.grants(self.now_s, on)
        self.switch.step(self.now_s)
        time.sleep(0.002)

    def until(self, state: str, name: str = "n1", most_s: int = 400) -> None:
        for _ in range(most_s):
            if self.state(name) == state:
                return
            for one in self.switch._running.values():  # a real process, which may take its time
                one.process.wait(PATIENCE_S)
            self.step()
        raise AssertionError(f"in vain: {self.said}")

    def state(self, name: str = "n1") -> str:
        return self.side.node_states([name])[0][0]


def switched_off(at: Path, **given: Any) -> Head:
    """n1 is off, n0 stays on."""
    head = Head(at, keep_idle=1, **given)
    head.until("powering-off")
    head.step()
    head.boots["n1"] = None
    head.until("off")
    head.step()
    return head


def test_an_off_node_counts_nothing_only_when_its_command_has_ended_well_and_its_lease_is_over(tmp_path):
    head = Head(tmp_path, keep_idle=1)
    head.until("powering-off")
    began_s = head.now_s
    assert head.ledger.accounts["n1"].count_mw >= DECLARED.safe_mw
    head.boots["n1"] = None
    head.until("off")
    assert head.now_s - began_s >= head.ledger.settle_s
    head.step()
    assert head.ledger.accounts["n1"].count_mw == 0
    assert ran(tmp_path) == ["off n1"]


def test_an_off_node_is_still_off_and_counts_nothing_after_the_agent_was_killed(tmp_path):
    head = switched_off(tmp_path)
    head.kill_and_restart()
    assert head.state() == "off"
    head.step()
    head.step()
    assert head.ledger.accounts["n1"].count_mw == 0
    assert ran(tmp_path) == ["off n1"], "no command is run again without need"


def test_a_boot_is_counted_before_the_command_that_causes_it_and_waits_for_its_watts(tmp_path):
    head = switched_off(tmp_path, budget_w=500.0)
    head.ledger.budget.set(400_000)  # n0 counts 300 W, and a boot takes as much
    with head.side.changing() as live:
        live.power.switch_on(live.nodes["n1"])
    for _ in range(5):
        head.step()
    assert head.state() == "off" and "waits for watts" in head.side.node_states(["n1"])[0][2]
    head.ledger.budget.set(650_000)
    head.step()
    assert head.state() == "booting" and head.ledger.accounts["n1"].count_mw == DECLARED.boot_mw
    head.kill_and_restart()
    assert head.ledger.accounts["n1"].count_mw >= DECLARED.boot_mw
    head.until("booting")
    head.boots["n1"] = 2
    head.until("idle")


def test_a_command_that_fails_says_why_and_one_that_cannot_be_run_too(tmp_path):
    head = Head(tmp_path, keep_idle=1, body="ls /no/such/bmc")
    head.until("powering-off")
    head.until("down")
    assert "No such file or directory" in head.side.node_states(["n1"])[0][2]
    (tmp_path / "b").mkdir()
    head = Head(tmp_path / "b", keep_idle=1)
    (tmp_path / "b" / "switch").unlink()
    head.until("powering-off")
    head.until("down")
    assert "cannot be run" in head.side.node_states(["n1"])[0][2]


def test_a_command_that_hangs_is_killed_with_all_that_it_started(tmp_path):
    head = Head(tmp_path, keep_idle=1, body="sleep 1000", off_within_s=5.0, retries=0)
    head.until("powering-off")
    head.step()
    (running,) = head.switch._running.values()
    for _ in range(10):
        head.step()
    assert running.process.returncode == -signal.SIGKILL
    assert "took too long" in head.side.node_states(["n1"])[0][2]


def test_commands_are_words_without_a_shell():
    assert arguments("ipmitool -H '%N bmc' power on", "n1; rm") == ["ipmitool", "-H", "n1; rm bmc", "power", "on"]


@pytest.mark.parametrize(
    ("table", "problem"),
    [
        ('off_command = "x %N"', "jobs.power.on_command: is missing"),
        ('off_command = "x"\non_command = "y %N"', "jobs.power.off_command: must contain %N"),
        ('off_command = "x \'%N"\non_command = "y %N"', "jobs.power.off_command: No closing quotation"),
        ('off_command = "x %N"\non_command = "y %N"\nidle_off_s = 3', "idle_off_s: 3 s is not a time of at least 30 s"),
        ('off_command = "x %N"\non_command = "y %N"\nretries = -1', "jobs.power.retries: -1 is negative"),
        (
            'off_command = "x %N"\non_command = "y %N"\nidle_off_s = 60\nkeep_on = "p"',
            "keep_on: needs `machine` in [jobs]",
        ),
        ('of_command = "x %N"', "unknown key 'jobs.power.of_command' (nearest: off_command)"),
    ],
)
def test_wrong_settings_are_one_line_with_what_is_wrong(tmp_path, table, problem):
    path = tmp_path / "cluster.toml"
    path.write_text(f"[budget]\nw = 100.0\n[nodes]\ntdp_w = 10.0\n[jobs]\n[jobs.power]\n{table}\n")
    with pytest.raises(ConfigError, match=r"cluster.toml:\d+: ") as refused:
        read_settings(path)
    assert problem in str(refused.value)


def test_a_node_of_a_real_partition_is_switched_off_by_hand_survives_a_kill_and_boots_for_nobody_else(tmp_path):
    with Cluster(tmp_path, 1100.0, jobs={"down_after_s": 3.0}) as cluster:
        with open(cluster.config, "a") as config:
            commands = site(tmp_path)
            lines = [f'{key} = "{value}"' for key, value in commands.items()]
            config.write("\n".join(["[jobs.power]", "off_within_s = 60.0", "boot_within_s = 60.0", *lines, ""]))

        def row(name: str) -> dict[str, Any]:
            return next((row for row in cluster.ask("nodes") or [] if row["name"] == name), {})

        def state(name: str) -> str:
            return str(row(name).get("jobs"))

        serve = cluster.serve()
        cluster.node("n0", cap_w=150.0)
        cluster.node("n1", cap_w=150.0)
        cluster.until(lambda: state("n0") == state("n1") == "idle")
        assert "is powering off" in cluster.ctl("power", "off", "n1").stdout
        cluster.until(lambda: ran(tmp_path) == ["off n1"])
        cluster.until(lambda: state("n1") == "powering-off")
        cluster.started["n1"].kill()
        (tmp_path / "n1.cap").write_text("0")
        os.kill(serve.pid, signal.SIGKILL)
        serve.wait()
        cluster.serve()
        cluster.until(lambda: state("n1") == "off")
        cluster.until(lambda: (row("n1").get("state"), row("n1").get("jobs_why")) == ("off", "by hand"))
        # an off node is not one that is missed; the other may be late on a loaded machine
        cluster.until(lambda: (cluster.ask("budget", "show") or {}).get("silent") == 0)
        assert cluster.ctl("power", "on", "n1").returncode == 0
        cluster.until(lambda: "on n1" in ran(tmp_path))
        cluster.until(lambda: state("n1") == "booting")
        cluster.node("n1", boot_id="boot-2")
        cluster.until(lambda: state("n1") == "idle", is_kept=False)
        assert ran(tmp_path).count("on n1") == 1
