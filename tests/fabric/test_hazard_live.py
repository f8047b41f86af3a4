"""From the air that nodes take in to their caps and back: real agents, a real cluster agent, the command of the timer.

The timer runs every quarter of an hour, by a wall clock of the head that the test moves on. All else is in real time:
links, leases, the nodes and what they draw. Nodes and room are EMULATED.
"""

from __future__ import annotations

import dataclasses
import json
import multiprocessing
import os
import signal
import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import numpy as np
import pytest
from twin._serve import lib

from cluster_agent.cli import main
from cluster_agent.commands.learning import room_hazard
from cluster_agent.serve.config import BudgetSettings, HazardSettings, NodeSettings, Settings
from cluster_agent.serve.server import Server
from lab.cluster_demo.account import mean_w, read_trace
from lab.cluster_demo.emulated_partition import free_port
from lab.emulated.emulated_node import NodePlan, run_node
from lab.emulated.watts import node_watts
from pmu.instruments import hwmon
from tests.waiting import PATIENCE_S
from twin.machine import Machine, Sensor, load_machine
from twin.room.room_failures import drawn
from twin.room.room_spec import read_room
from twin.room.room_year import year

NAMES = ["n1", "n2", "n3", "n4"]
SILENT, STUCK = ("n2", "n3"), "n4"
BUDGET_W, LOWERED_W = 1440.0, 1080.0
CALM_C, HOT_C, STUCK_C = 21.0, 30.0, 80.0
START_S, QUARTER_S, DAYS = 1_750_000_500.0, 900.0, 75
LOWERED_H = 3.0
SILENT_S = 2.0
AVERAGED_S = 1.0


def until(is_so: Callable[[], bool]) -> bool:
    """Whether it is so before long. Each look is a command of its own, so there are few."""
    end_s = time.monotonic() + PATIENCE_S
    while not (found := is_so()) and time.monotonic() < end_s:
        time.sleep(0.1)
    return found


class Head:
    """A cluster agent in a thread. Its wall clock begins at ``START_S``, and can be moved on."""

    def __init__(self, at: Path) -> None:
        self._ahead_s = START_S - time.time()
        self.url, self.socket = f"tcp://127.0.0.1:{free_port()}", at / "ctl"
        self._settings = Settings(
            listen=self.url, keys=str(at / "keys"), store=str(at / "a.db"), socket=str(self.socket), mode="cap",
            budget=BudgetSettings(w=BUDGET_W), hazard=HazardSettings(lower_to=LOWERED_W / BUDGET_W, hours=LOWERED_H),
            nodes=NodeSettings(tdp_w=378.0, failing_together=0, gap_s=0.2),
        )  # fmt: skip
        self.said, self._is_over = list[str](), threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def wall_s(self) -> float:
        return time.time() + self._ahead_s

    def pass_time(self, seconds: float) -> None:
        self._ahead_s += seconds

    def _run(self) -> None:
        server = Server(self._settings, self.said.append, wall_s=self.wall_s)
        try:
            while not self._is_over.is_set():
                server.step(0.05)
        finally:
            server.close()

    def __enter__(self) -> Head:
        self._thread.start()
        assert until(self.socket.exists)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(PATIENCE_S)


class Room:
    """Four emulated nodes under full load, the last of which has an inlet sensor that is stuck at 80 degrees."""

    def __init__(self, at: Path, capsys: pytest.CaptureFixture[str]) -> None:
        self.at, self.head, self._capsys = at, Head(at), capsys
        self.models = str(at / "models")
        sound, watts = machine(), node_watts(load_machine("curie"))
        fault = {"kind": "absurd", "target": "/sys/class/hwmon/hwmon3/temp1_input", "value": round(STUCK_C * 1000)}
        broken = machine(fault)
        (at / "node.toml").write_text('[cpu_policy]\nname = "none"\n[gpu_policy]\nname = "none"\n')
        self._loads = list[socket.socket]()
        self._nodes = {}
        for seed, name in enumerate(NAMES):
            plan = NodePlan(
                name, broken if name == STUCK else sound, watts, self.head.url, at / "keys", at / "node.toml", seed,
                at / f"{name}.jsonl", at / "doors",
            )  # fmt: skip
            self._nodes[name] = multiprocessing.get_context("fork").Process(target=emulate, args=(plan, os.getpid()))

    def __enter__(self) -> Room:
        for node in self._nodes.values():  # before there is a thread
            node.start()
        self.head.__enter__()
        assert until(lambda: all((self.at / "doors" / name).exists() for name in NAMES))
        self._loads += [self.say(name, "hpl") for name in NAMES]
        return self

    def __exit__(self, *_: object) -> None:
        for node in self._nodes.values():
            node.kill()
            node.join()
        self.head.__exit__()
        for load in self._loads:
            load.close()

    def cut(self, *names: str) -> None:
        """Their power, until nobody has heard of them for long."""
        for name in names:
            self._nodes[name].kill()
        assert until(lambda: {one["name"] for one in self.rows() if one["heard_s_ago"] > SILENT_S} == {*names})

    def ctl(self, *words: str) -> str:
        """What a command of ``clusterctl`` prints."""
        self._capsys.readouterr()
        status = main(list(words))
        found = self._capsys.readouterr()
        assert status == 0, found.err
        return found.out + found.err

    def ask(self, *words: str) -> Any:
        return json.loads(self.ctl(*words, "--json", "--socket", str(self.head.socket)))

    def rows(self) -> list[dict[str, Any]]:
        return list(self.ask("nodes"))

    def budget_w(self) -> float:
        return float(self.ask("budget", "show")["budget_w"])

    def run(self) -> str:
        """What the timer says, a quarter of an hour after it ran last."""
        self.head.pass_time(QUARTER_S)
        return self.ctl("models", "run", "--lower", "--folder", self.models, "--socket", str(self.head.socket))

    def say(self, name: str, line: str) -> socket.socket:
        """To the twin of this node, by its door."""
        made = socket.socket(socket.AF_UNIX)
        made.settimeout(PATIENCE_S)
        made.connect(str(self.at / "doors" / name))
        made.sendall(f"{line}\n".encode())
        assert made.recv(100) == b"ok\n"
        return made

    def warm(self, inlet_c: float) -> None:
        """The air of all nodes, until each has reported what its sensor shows."""
        for name in NAMES:
            self.say(name, f"inlet {inlet_c}").close()
        shown = {name: STUCK_C if name == STUCK else inlet_c for name in NAMES}
        assert until(lambda: {one["name"]: one["inlet_c"] for one in self.rows()} == shown)

    def until_caps_are(self, watts: float) -> None:
        """Granted, and confirmed by all nodes."""

        def are() -> bool:
            rows = self.rows()
            sums = [sum(one[which] for one in rows) for which in ("granted_w", "in_force_w")]
            return sums == pytest.approx([watts] * 2, abs=0.1)

        assert until(are), self.rows()

    def draw_w(self) -> float:
        """True power of all nodes from now on, as a mean."""
        time.sleep(AVERAGED_S + 0.2)
        traces = [read_trace(self.at / f"{name}.jsonl") for name in NAMES]
        return float(mean_w(traces, np.array([min(one.at_s[-1] for one in traces)]), AVERAGED_S)[0])


def emulate(plan: NodePlan, parent: int) -> None:
    """In a process of its own, which ends with the test's."""
    if lib.process_die_with(parent, signal.SIGKILL) == 0:
        run_node(plan, lambda line: None)


def machine(*faults: dict[str, Any]) -> Machine:
    """A shipped one, with a sensor where the air comes in."""
    curie = load_machine("curie")
    sensor = Sensor("tmp421", 0, "inlet", "temperature", "inlet", 0, 0.0, 0.0)
    return msgspec.structs.replace(curie, sensors=(*curie.sensors, sensor), faults=faults)


def past(folder: Path) -> None:
    """Weeks of the emulated room with fouled coils and a drift; one sensor has been stuck for more than a day."""
    failures = drawn("fouling", DAYS * 24.0, 30.0, 4, 2) + drawn("drift", DAYS * 24.0, 20.0, 4, 3)
    inlet_c = year(read_room(), "command", failures, DAYS * 86_400.0).inlet_c[:, ::36].copy()
    inlet_c[-100:, NAMES.index(STUCK)] = STUCK_C
    steps = round(START_S / QUARTER_S) - np.arange(len(inlet_c))[::-1]
    folder.mkdir(parents=True)
    for day in np.unique(steps // 96).tolist():
        rows = steps // 96 == day
        name = time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))
        np.savez(folder / f"{name}.npz", nodes=np.array(NAMES), step=steps[rows],
                 inlet_c=inlet_c[rows].astype(np.float16), power_w=np.full(int(rows.sum()), BUDGET_W))  # fmt: skip


@pytest.fixture
def room(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Room]:
    """Inlets are read twice a second in place of every ten seconds."""
    keys = str(tmp_path / "keys")
    assert main(["keys", "new", "cluster", "--dir", keys]) == 0
    assert main(["keys", "new", *NAMES, "--role", "node", "--dir", keys]) == 0
    quick = [dataclasses.replace(one, period_s=0.5) if one.part == "inlet" else one for one in hwmon.LOOP]
    monkeypatch.setattr(hwmon, "LOOP", quick)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    made = Room(tmp_path, capsys)
    monkeypatch.setattr(room_hazard, "time", SimpleNamespace(time=made.head.wall_s))
    with made:
        yield made


def test_hot_air_at_the_nodes_lowers_the_budget_for_a_bounded_time_and_broken_sensors_or_silence_do_not(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes about ten seconds, in which leases, caps and what nodes draw follow, and four of a processor."""
    past(room.at / "models" / "inlets")
    room.ctl("models", "train", "hazard", "--inlets", f"{room.models}/inlets", "--folder", room.models)
    assert "version 1 predicts now" in room.ctl("models", "promote", "hazard", "--folder", room.models)

    room.warm(CALM_C)
    room.until_caps_are(BUDGET_W)
    said = room.run()
    assert "ALARM" not in said and room.budget_w() == BUDGET_W
    assert f"the inlets of {STUCK} have been the same for a day and are left out" in said
    assert LOWERED_W + 100 < room.draw_w() < BUDGET_W

    room.warm(HOT_C)
    said = room.run()
    assert "ALARM: chance of a thermal hazard" in said and f"{LOWERED_W:g} W now" in said
    view, (change,) = room.ask("budget", "show"), room.ask("budget", "log")
    assert view["budget_w"] == LOWERED_W and view["alarm_kinds"] == ["hazard"]
    assert view["steps"] == [[pytest.approx(3600.0, abs=60.0), BUDGET_W]]
    assert change["who"] == "hazard" and "the budget is lowered to 75 % until " in change["what"]
    (why,) = room.ask("why", "n1")["alarms"]
    assert why in change["what"] and "model hazard: chance of a thermal hazard" in why
    room.until_caps_are(LOWERED_W)
    assert room.draw_w() < LOWERED_W

    room.warm(CALM_C)
    shown_w = [(room.run(), room.budget_w())[1] for _ in range(8)]
    assert shown_w[0] == LOWERED_W and shown_w[-1] == BUDGET_W
    room.until_caps_are(BUDGET_W)
    assert any(line.startswith("the alarm is over: the budget is lowered to 75 % until ") for line in room.head.said)
    assert room.draw_w() > LOWERED_W + 100

    room.warm(HOT_C)
    room.cut(*SILENT)
    monkeypatch.setattr(room_hazard, "FRESH_S", SILENT_S)
    runs = [(room.run(), room.budget_w()) for _ in range(14)]
    lowered = [said for said, watts in runs if watts == LOWERED_W]
    assert 0 < len(lowered) <= LOWERED_H * 4 - 1 - shown_w.count(LOWERED_W), "of any 24 hours, whoever predicts"
    assert f"at most {LOWERED_H:g} of 24 hours are lowered" in runs[len(lowered)][0]
    said, watts = runs[-1]
    assert "ALARM" not in said and "are missing: nothing is predicted" in said and watts == BUDGET_W
