"""The example of a model with the extra [learn]: trained on a history, run behind the door, and nothing of it needed
otherwise."""

from __future__ import annotations

import csv
import importlib.util
import math
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.prediction.models import SafePredictor, find_model

TRAIN = Path(__file__).parents[2] / "examples" / "learned-model" / "train.py"
LEARN = ("sklearn", "lightgbm", "onnxruntime", "skl2onnx")
lacks = [name for name in LEARN if importlib.util.find_spec(name) is None]
learns = pytest.mark.skipif(bool(lacks), reason=f"pip install 'nodectl[learn]': {', '.join(lacks)} missing")


def history(path: Path, jobs: int = 300) -> Path:
    """Ada's jobs draw 100 W a node, bob's 300."""
    with path.open("w", newline="") as file:
        table = csv.writer(file)
        table.writerow(("user", "application", "nodes", "request_s", "watts"))
        for at in range(jobs):
            nodes, user = 1 + at % 4, ("ada", "bob")[at // 4 % 2]
            watts = {"ada": 100.0, "bob": 300.0}[user] * nodes * (1 + 0.01 * (at % 7 - 3))
            table.writerow((user, "cfd", nodes, 3600, "" if at % 50 == 0 else watts))
        table.writerow(("eve", "cfd", 1, "", "nan"))
    return path


def job(user: str) -> Submission:
    return Submission("1000", "cfd ./cfd", 2, 2, 0, 0, 0, 3600, login=user, title="cfd")


@learns
@pytest.mark.parametrize("option", ([], ["--lightgbm"]), ids=("onnx", "lightgbm"))
def test_trees_that_were_trained_on_a_history_predict_behind_the_door(tmp_path: Path, option: list[str]) -> None:
    main = runpy.run_path(str(TRAIN))["main"]
    path = tmp_path / "boosted.py"
    assert main([str(history(tmp_path / "jobs.csv")), str(path), *option]) == 0
    said: list[str] = []
    power = SafePredictor(find_model(str(path)), PowerPredictor(lambda job: 1000.0), said.append)
    for user, watts in (("ada", 200.0), ("bob", 600.0)):
        found = power.predict(job(user))
        assert (found.origin, said) == ("model", [])
        assert found.expected_w == pytest.approx(watts, rel=0.1) and found.maximum_w >= found.typical_w
    (trees,) = (one for one in tmp_path.iterdir() if one.suffix in (".onnx", ".txt"))
    trees.write_bytes(trees.read_bytes() + b"\n")
    other = SafePredictor(find_model(str(path)), PowerPredictor(lambda job: 1000.0), said.append)
    assert other.predict(job("ada")).origin == "TDP" and "train again" in said[0]


@learns
def test_too_few_jobs_are_said_in_a_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    main = runpy.run_path(str(TRAIN))["main"]
    assert main([str(history(tmp_path / "jobs.csv", jobs=20)), str(tmp_path / "boosted.py")]) == 1
    assert capsys.readouterr().err.endswith("19 jobs with metered watts; 100 are needed\n")


def test_the_core_predicts_without_the_extra() -> None:
    """What the agent and its commands import."""
    code = (
        "import sys, cluster_agent.serve.server, cluster_agent.commands.learning.predict;"
        f" print(*{set(LEARN)!r} & sys.modules.keys())"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
    assert math.isfinite(PowerPredictor(lambda job: 1000.0).predict(job("ada")).expected_w)
