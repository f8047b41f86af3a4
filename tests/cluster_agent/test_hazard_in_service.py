"""A room's hazard in service: kept, trained, promoted, run, rolled back by command. Rooms are EMULATED."""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cluster_agent.cli import main
from cluster_agent.commands.learning import model_service, room_hazard, training_job
from cluster_agent.errors import ClusterError, WrongUseError
from cluster_agent.model_service.group_table import TableError
from cluster_agent.model_service.hazard_run import run_hazard
from cluster_agent.model_service.job_records import JobWords
from cluster_agent.model_service.model_registry import Card, Change, Metrics, Registry
from cluster_agent.model_service.room_model import RoomModel
from cluster_agent.prediction.models import find_model
from cluster_agent.serve.people_protocol import ListNodes, LowerBudget, NodeRow, Submit
from cluster_agent.thermal_hazard.hazard_features import NAMES, Readings
from cluster_agent.thermal_hazard.hazard_model import HazardModel
from cluster_agent.thermal_hazard.inlet_days import keep, kept
from twin.room.room_failures import drawn
from twin.room.room_spec import read_room
from twin.room.room_year import year

STEP_S, DAYS, HOUR_S = 900.0, 60, 3600.0
NODES = [f"n{node:02}" for node in range(36)]
NOW_S = time.time() // STEP_S * STEP_S


@cache
def room() -> tuple[np.ndarray, np.ndarray]:
    """Degrees and watts of sixty days with fouling and drift."""
    failures = drawn("fouling", DAYS * 24.0, 30.0, 4, 2) + drawn("drift", DAYS * 24.0, 20.0, 4, 3)
    found = year(read_room(), "command", failures, DAYS * 86_400.0)
    return found.inlet_c[:, ::4], found.rack_w.sum(1)


def readings() -> Readings:
    inlet_c, power_w = room()
    return Readings(NOW_S - (len(inlet_c) - 1) * STEP_S, STEP_S, inlet_c.copy(), power_w)


def written(folder: Path, of: Readings) -> None:
    """As ``keep`` leaves them, all at once."""
    folder.mkdir(exist_ok=True, parents=True)
    assert of.power_w is not None
    steps = round(of.start_s / STEP_S) + np.arange(len(of.inlet_c))
    for day in np.unique(steps // 96).tolist():
        rows = steps // 96 == day
        name = time.strftime("%Y-%m-%d", time.gmtime(day * 86_400))
        np.savez(folder / f"{name}.npz", nodes=np.array(NODES), step=steps[rows],
                 inlet_c=of.inlet_c[rows].astype(np.float16), power_w=of.power_w[rows])  # fmt: skip


@dataclass
class Agent:
    """A cluster agent whose nodes show these degrees; what it was asked."""

    inlet_c: dict[str, float] = field(default_factory=dict)
    lowered: list[LowerBudget] = field(default_factory=list)

    def ask(self, socket: Any, request: Any) -> Any:
        if isinstance(request, LowerBudget):
            self.lowered.append(request)
            return ["the budget is lowered", "800 W now"]
        assert isinstance(request, ListNodes)
        return [NodeRow(name, "capped", 1.0, 1.0, 1.0, 1.0, 300.0, "", "measured", "os", 0.5, inlet_c=degrees)
                for name, degrees in self.inlet_c.items()]  # fmt: skip


@pytest.fixture
def agent(monkeypatch: pytest.MonkeyPatch) -> Agent:
    made = Agent(dict(zip(NODES, room()[0][-1].tolist(), strict=True)))
    monkeypatch.setattr(room_hazard, "ask", made.ask)
    monkeypatch.setattr(model_service, "rows_since", lambda place, request: [])
    monkeypatch.setattr(model_service, "_waiting", lambda place: [])
    return made


@pytest.fixture
def models(tmp_path: Path) -> Callable[..., int]:
    """The command, on a folder that has sixty days of temperatures."""
    written(tmp_path / "inlets", readings())

    def run(*arguments: str) -> int:
        return main(["models", *arguments, "--folder", str(tmp_path)])

    return run


def version(registry: Registry, intercept: float, known_s: float = NOW_S - 30 * 86_400.0) -> None:
    """A champion by force, whose chance is the same for ever, and which was right when it was trained."""
    weights = [0.0] * len(NAMES)
    JobWords(registry.path.parent, is_made=True)
    model = HazardModel(weights, [1.0] * len(NAMES), weights, intercept, 0.5)
    card = Card(kind="hazard", name=registry.name, version=0, jobs=1, known_s=known_s, error=0.05,
                model_sha256="", metrics_sha256="", shares={})  # fmt: skip
    made = registry.add(card, Metrics(), RoomModel(NODES, np.quantile(room()[0], 0.95, axis=0), model, 0.05))
    registry.change(Change(made.card.version, 0, 1.0, "root", "by the test", is_forced=True))


def test_from_kept_temperatures_to_a_prediction_by_command(
    tmp_path: Path, models: Callable[..., int], agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    metrics = tmp_path / "models.prom"
    assert models("train", "hazard", "--inlets", str(tmp_path / "inlets")) == 0
    found = re.search(r"unseen: wrong in (0\.\d+) of them, the last value in (0\.\d+)", capsys.readouterr().out)
    assert found and float(found[1]) < float(found[2])
    assert models("promote", "hazard", "--force") == 0
    assert "version 1 predicts now" in capsys.readouterr().out
    assert models("run", "--metrics", str(metrics)) == 0
    said = capsys.readouterr()
    assert re.search(r"hazard: version 1 predicts; error on the last \d+ unseen hours 0\.\d+ \(alarm above", said.out)
    assert (
        re.search(r"chance of a thermal hazard [01]\.\d\d, an alarm from 0\.\d\d on", said.out) and agent.lowered == []
    )
    assert 'clusterctl_model_hazard_chance{model="hazard"}' in metrics.read_text()
    assert models("train", "hazard", "--inlets", str(tmp_path / "inlets")) == 0
    capsys.readouterr()
    assert models("run", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["models"]
    assert (one["champion"], one["candidate"]) == (1, 2)
    assert one["compared_errors"][0] == one["compared_errors"][1], "trained on the same"
    assert models("train", "hazard", "--inlets", str(tmp_path / "inlets"), "--share", "0.15") == 0
    assert Registry(tmp_path, "hazard").version(3).room.share == 0.15
    capsys.readouterr()
    assert models("run", "--json") == 0
    (one,) = json.loads(capsys.readouterr().out)["models"]
    assert one["candidate"] == 3 and one["compared_errors"] is None, "their hazards are not the same"
    assert models("status") == models("rollback", "hazard") == 0
    assert capsys.readouterr().out.endswith("hazard: nobody predicts now\n")


def test_a_training_as_a_job_is_the_same_command(
    tmp_path: Path, models: Callable[..., int], monkeypatch: pytest.MonkeyPatch
) -> None:
    queued = list[Submit]()

    def accepted(place: Any, request: Submit) -> int:
        queued.append(request)
        return 41

    monkeypatch.setattr(training_job, "ask", accepted)
    inlets = str(tmp_path / "inlets")
    assert models("train", "hazard", "--inlets", inlets, "--share", "0.15", "--submit") == 0
    assert queued[0].command[-4:] == ["--inlets", inlets, "--share", "0.15"] and len(queued) == 1
    assert queued[0].command[1:4] == ["models", "train", "hazard"] and "--kept" not in queued[0].command


def test_a_model_that_says_1_for_ever_is_rolled_back_and_then_nothing_is_lowered(
    tmp_path: Path, models: Callable[..., int], agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    version(Registry(tmp_path, "hazard"), 50.0)
    assert models("run", "--lower") == 1
    said = capsys.readouterr()
    assert "ALARM: version 1 was rolled back: its error on the last" in said.err
    assert said.err.count("nobody predicts") == 1 and agent.lowered == []
    assert models("run", "--lower") == 1 and agent.lowered == []
    assert (
        models("train", "hazard", "--inlets", str(tmp_path / "inlets")) == models("promote", "hazard", "--force") == 0
    )
    assert models("run") == 0


def test_a_predicted_hazard_is_said_and_the_agent_is_asked_for_an_hour_if_that_is_wanted(
    tmp_path: Path, models: Callable[..., int], agent: Agent, capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """The version is of yesterday, so nobody knows better yet."""
    version(Registry(tmp_path, "hazard"), 1.0, NOW_S - 86_400.0)
    assert models("run") == 0 and agent.lowered == []
    assert "hazard: ALARM: chance of a thermal hazard 0.73, an alarm from 0.50 on" in capsys.readouterr().err
    assert models("run", "--lower") == 0
    (request,) = agent.lowered
    assert request.hours == 1.0 and request.why.startswith("model hazard: chance of a thermal hazard 0.73")
    assert "hazard: the budget is lowered; 800 W now" in capsys.readouterr().err

    def refused(socket: Any, request: Any) -> Any:
        if isinstance(request, LowerBudget):
            raise WrongUseError("the budget is not lowered for a hazard before tomorrow")
        return agent.ask(socket, request)

    monkeypatch.setattr(room_hazard, "ask", refused)
    assert models("run", "--lower") == 0
    assert "hazard: the budget is not lowered for a hazard before tomorrow" in capsys.readouterr().err


def test_where_no_hazard_is_predicted_nothing_is_asked(
    tmp_path: Path, models: Callable[..., int], agent: Agent, capsys: pytest.CaptureFixture[str]
) -> None:
    version(Registry(tmp_path, "hazard"), -1.0, NOW_S - 86_400.0)
    assert models("run", "--lower") == 0 and agent.lowered == []
    assert "ALARM" not in capsys.readouterr().err


def test_half_the_racks_silent_predict_nothing_and_a_stuck_sensor_is_named_and_left_out(tmp_path: Path) -> None:
    registry = Registry(tmp_path, "hazard")
    version(registry, 1.0, NOW_S - 86_400.0)
    of = readings()
    whole = run_hazard(registry, of, NODES)
    assert whole.hazard is not None and whole.lines == []
    of.inlet_c[-24:, :20] = np.nan
    silent = run_hazard(registry, of, NODES)
    assert silent.hazard is None
    assert silent.lines == ["most inlet temperatures of the last six hours are missing: nothing is predicted"]
    of = readings()
    of.inlet_c[-200:, 3] = 80.0
    of.inlet_c[-200:, 4] = 18.0  # as cold for as long: of a coarse scale
    stuck = run_hazard(registry, of, NODES)
    assert stuck.hazard is not None
    assert stuck.lines == ["the inlets of n03 have been the same for a day and are left out"]
    of.inlet_c[-200:, :20] = 80.0
    most = run_hazard(registry, of, NODES)
    assert most.hazard is None, "a room whose sensors are stuck is not hot"
    assert most.lines == ["the inlets of n00, n01, n02 and 17 more have been the same for a day and are left out",
                          *silent.lines]  # fmt: skip


def test_a_row_that_comes_twice_counts_once_and_nodes_come_and_go(tmp_path: Path) -> None:
    at_s = NOW_S // 86_400 * 86_400.0
    keep(tmp_path / "inlets", at_s, {"b": 21.0, "a": 255.0}, 100.0)
    keep(tmp_path / "inlets", at_s + 1.0, {"b": 22.0}, 200.0)
    keep(tmp_path / "inlets", at_s + STEP_S, {"c": 25.5}, 300.0)
    found, nodes, damaged = kept(tmp_path / "inlets", at_s + STEP_S)
    assert nodes == ["a", "b", "c"] and damaged == [] and found.start_s == at_s
    rows = [[None if np.isnan(one) else one for one in row] for row in found.inlet_c.tolist()]
    assert rows == [[None, 22.0, None], [None, None, 25.5]]
    assert found.power_w is not None and found.power_w.tolist() == [200.0, 300.0]
    (path,) = (tmp_path / "inlets").iterdir()
    path.write_bytes(path.read_bytes()[:100])
    with pytest.raises(ClusterError, match="no inlet temperatures of the last 400 days"):
        kept(tmp_path / "inlets", at_s)


def test_only_so_many_days_are_kept_and_a_damaged_one_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cluster_agent.thermal_hazard.inlet_days.KEPT_DAYS", 3)
    for day in range(5):
        keep(tmp_path / "inlets", NOW_S + day * 86_400.0, {"a": 20.0 + day}, 1.0)
    files = sorted((tmp_path / "inlets").iterdir())
    assert len(files) == 3
    files[1].write_bytes(b"PK")
    found, _, damaged = kept(tmp_path / "inlets", NOW_S + 4 * 86_400.0)
    assert damaged == [files[1].name] and np.nansum(found.inlet_c) == 22.0 + 24.0


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("weights", np.zeros(3), "has weights of another shape"),
        ("mean", np.full(len(NAMES), np.nan), "predicts what is no number"),
        ("sigma", np.zeros(len(NAMES)), "always or never an alarm"),
        ("intercept_threshold_share", np.array([0.0, 0.0, 0.05]), "always or never an alarm"),
        ("nodes", np.array(["a", "a"]), "without a threshold, or twice"),
        ("nodes", np.array([{}, {}], object), "which are code"),
    ],
)
def test_a_file_that_is_no_model_of_a_room_is_refused(name: str, value: Any, says: str, tmp_path: Path) -> None:
    arrays = {"nodes": np.array(["a", "b"]), "threshold_c": np.array([24.0, np.nan]), "mean": np.zeros(len(NAMES)),
              "sigma": np.ones(len(NAMES)), "weights": np.zeros(len(NAMES)),
              "intercept_threshold_share": np.array([0.0, 0.5, 0.05])}  # fmt: skip
    np.savez(tmp_path / "good.npz", **arrays)
    good = RoomModel.of_content((tmp_path / "good.npz").read_bytes())
    assert RoomModel.of_content(good.content()).nodes == ["a", "b"]
    np.savez(tmp_path / "bad.npz", allow_pickle=True, **(arrays | {name: value}))
    with pytest.raises(TableError, match=says):
        RoomModel.of_content((tmp_path / "bad.npz").read_bytes())


def test_a_model_of_a_room_is_no_model_of_watts(tmp_path: Path, models: Callable[..., int]) -> None:
    registry = Registry(tmp_path, "hazard")
    version(registry, 1.0)
    with pytest.raises(WrongUseError, match="predicts the hazard of a room, and not the watts of jobs"):
        find_model(str(registry.path))
    with pytest.raises(WrongUseError, match="has versions of another kind"):
        registry.refuse_other("group table")
    assert models("train", "hazard", "--kept") == 2
