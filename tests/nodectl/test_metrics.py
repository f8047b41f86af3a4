"""The node for Prometheus: what the agent publishes, and what is served of it."""

from __future__ import annotations

import dataclasses
import signal
import stat
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

from prometheus_client.parser import text_string_to_metric_families

from foundation import __version__
from nodectl.commands.metrics import PageCollector
from nodectl.config import Config, build_config
from nodectl.loop.agent import Agent
from nodectl.loop.metrics_page import STALE_S, WRITTEN, metrics_path
from pmu.ports import Ports
from tests.waiting import PATIENCE_S
from twin.in_process_node import InProcess
from twin.machine import load_machine
from twin.physics.model import Twin
from twin.programs.workload import load_workload

Found = dict[tuple[object, ...], float]


def settings(tmp_path: Path, **given: object) -> Config:
    wanted = {"mode": "optimize", "state_dir": str(tmp_path), "metrics": {"listen": "127.0.0.1:9742"}, **given}
    return build_config(wanted, lambda key: ".".join(key))


def ports(node: InProcess, tmp_path: Path) -> Ports:
    return dataclasses.replace(node.ports, lock_path=str(tmp_path / "run" / "lock"))


def values(text: str) -> Found:
    return {
        (sample.name, *sorted(sample.labels.items())): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def of(name: str, found: Found) -> Found:
    """The rows of one metric by their labels."""
    return {key[1:]: value for key, value in found.items() if key[0] == f"nodectl_{name}"}


def made(machine: str, workload: str) -> InProcess:
    loaded = load_machine(machine)
    return InProcess(Twin(loaded, load_workload(workload, loaded, seed=3), seed=3))


def test_the_page_has_joules_as_counters_that_agree_with_the_summary(tmp_path: Path) -> None:
    page = tmp_path / "run" / "agent" / "metrics.prom"
    with made("taurus", "hpl") as node:
        with Agent.open(ports(node, tmp_path), settings(tmp_path, caps={"node_w": 300.0, "rest_w": 50.0})) as agent:
            agent.run(until_ns=node.twin.time_ns + 3_050_000_000)
            first = values(page.read_text())
            agent.run(until_ns=node.twin.time_ns + 3_050_000_000)
            found, summary = values(page.read_text()), agent.summary()
            assert stat.S_IMODE(page.stat().st_mode) == 0o644
        assert not page.exists(), "a run that has ended publishes nothing"
    joules, before = of("energy_joules_total", found), of("energy_joules_total", first)
    by_name = {one.name: one.joules for one in summary.energy}
    for labels, value in joules.items():
        assert before[labels] < value <= by_name[str(dict(labels)["instrument"])]  # type: ignore[arg-type]
    measured = [value for labels, value in joules.items() if ("quality", "measured") in labels]
    assert len(measured) == len(by_name) and sum(measured) > 0.7 * sum(by_name.values())
    assert of("cap_watts", found) == {(): 300.0} and of("packages_cap_watts", found) == {(): 250.0}
    clocks = {dict(labels)["statistic"]: value for labels, value in of("cpu_clock_hertz", found).items()}  # type: ignore[arg-type]
    assert 1e9 < clocks["least"] <= clocks["mean"] <= clocks["most"] < 5e9
    (build,) = of("build_info", found)
    assert ("version", __version__) in build
    assert of("periods_total", found)[()] > of("periods_total", first)[()] > 0


def test_without_the_setting_nothing_is_published(tmp_path: Path) -> None:
    with made("taurus", "hpl") as node, Agent.open(ports(node, tmp_path), settings(tmp_path, metrics={})) as agent:
        agent.run(until_ns=node.twin.time_ns + 2_000_000_000)
        assert list(tmp_path.rglob("metrics*")) == []
    assert metrics_path("/run/nodectl/lock-fuse-0:44") == "/run/nodectl/agent/metrics-fuse-0:44.prom"
    assert metrics_path("") == "", "a node in this process, which no other reaches"


def test_a_page_that_cannot_be_written_costs_the_metrics_and_not_the_run(tmp_path: Path) -> None:
    (tmp_path / "run" / "agent" / "metrics.prom.new").mkdir(parents=True)
    said: list[str] = []
    with made("taurus", "hpl") as node, Agent.open(ports(node, tmp_path), settings(tmp_path), said.append) as agent:
        agent.run(until_ns=node.twin.time_ns + 3_000_000_000)
        assert agent.summary().ticks > 20
    assert sum("no metrics: " in line for line in said) == 1


def test_what_an_agent_has_left_or_what_is_no_page_is_served_as_down(tmp_path: Path) -> None:
    page = tmp_path / "metrics.prom"
    collector = PageCollector(str(page))

    def names() -> list[tuple[str, float]]:
        return [(sample.name, sample.value) for family in collector.collect() for sample in family.samples]

    def write(name: str, value: float, age_s: float) -> None:
        written = f"{WRITTEN}{time.clock_gettime(time.CLOCK_BOOTTIME) - age_s}\n"
        page.write_text(f"# TYPE {name} gauge\n{name} {value}\n{written}")

    assert names() == [("nodectl_up", 0.0)]
    write("nodectl_cap_watts", 300.0, 0.0)
    assert names() == [("nodectl_up", 1.0), ("nodectl_cap_watts", 300.0)]
    write("nodectl_cap_watts", 300.0, STALE_S + 1)
    assert names() == [("nodectl_up", 0.0)]
    write("nodectl_period_seconds", 30.0, STALE_S + 31)
    assert names() == [("nodectl_up", 1.0), ("nodectl_period_seconds", 30.0)], "it is replaced once per period"
    write("nodectl_period_seconds", 30.0, STALE_S + 91)
    assert names() == [("nodectl_up", 0.0)]
    for text in ("not a page {", "nodectl_cap_watts 300.0\n", f"{WRITTEN}long ago\n"):
        page.write_text(text)
        assert names() == [("nodectl_up", 0.0)]


def test_the_command_answers_prometheus_and_ends_at_sigterm(tmp_path: Path) -> None:
    import socket

    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "nodectl.cli", "metrics", "--listen", f"127.0.0.1:{port}"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    assert process.stderr.readline() == f"nodectl metrics: http://127.0.0.1:{port}/metrics\n"
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE_S) as answer:
        assert ("nodectl_up",) in values(answer.read().decode())
    process.send_signal(signal.SIGTERM)
    assert process.wait(PATIENCE_S) == 0
    process.stderr.close()
    done = subprocess.run(command[:4], capture_output=True, text=True, timeout=PATIENCE_S)
    assert done.returncode == 2 and "set [metrics] listen" in done.stderr
