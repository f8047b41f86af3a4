"""Models of a site's own: they predict where they can, and the nearest past jobs do where they cannot."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path

import pytest

from cluster_agent.cli import main
from cluster_agent.errors import WrongUseError
from cluster_agent.prediction.job_power import PowerPredictor, Submission
from cluster_agent.prediction.models import MOST_FAILURES, PATIENCE_S, SafePredictor, find_model, in_place_of
from cluster_agent.scheduler.policies.registry import choose

SAMPLES = Path(__file__).parents[2] / "cluster_agent" / "samples"

MINE = """
from cluster_agent.prediction.models import Model, Quantiles

class Mine:
    def __init__(self):
        self.ended = []

    def learn(self, ended):
        self.ended += ended

    def predict(self, submissions):
        return [ANSWER for one in submissions]

MODEL = Model("mine", "a model", Mine)
"""
GOOD = "Quantiles(typical_w=50.0 * one.units, expected_w=60.0 * one.units, maximum_w=90.0 * one.units)"


def write(folder: Path, answer: str = GOOD, text: str = MINE) -> Path:
    path = folder / "mine.py"
    path.write_text(text.replace("ANSWER", answer))
    path.chmod(0o644)
    return path


def job(units: int = 2) -> Submission:
    return Submission("ada", "cfd", units, 16, 0, 0, 0, 3600)


def safe(path: Path, said: list[str], clock_s: Callable[[], float] | None = None) -> SafePredictor:
    return SafePredictor(find_model(str(path)), PowerPredictor(lambda job: 1000.0), said.append, clock_s)


def test_a_models_watts_take_the_place_of_the_nearest_past_jobs(tmp_path: Path) -> None:
    said: list[str] = []
    power = safe(write(tmp_path), said)
    power.learn(job(), 400.0)
    found = power.predict(job())
    assert (found.typical_w, found.expected_w, found.maximum_w, found.origin) == (100.0, 120.0, 180.0, "model")
    assert power.trouble == "" and said == []


@pytest.mark.parametrize(
    ("answer", "said"),
    (
        ("1 / 0", "ZeroDivisionError"),
        ("None", "did not answer one Quantiles"),
        ("Quantiles(float('nan'), 1.0, 1.0)", "typical_w is nan"),
        ("Quantiles(1.0, -3.0, 1.0)", "expected_w is -3.0"),
        ("Quantiles(1.0, 1.0, 1e300)", "maximum_w is 1e+300"),
        ("Quantiles(9.0, 9.0, 1.0)", "maximum_w 1 is below typical_w 9"),
        ("Quantiles('9', 9.0, 10.0)", "typical_w is '9'"),
        ("exit(3)", "SystemExit"),
    ),
)
def test_a_model_that_raises_or_answers_nonsense_is_replaced_and_alarmed_once(
    tmp_path: Path, answer: str, said: str
) -> None:
    lines: list[str] = []
    power = safe(write(tmp_path, answer), lines)
    power.learn(job(), 400.0)
    for _ in range(MOST_FAILURES + 2):
        assert power.predict(job()).expected_w == pytest.approx(400.0)
    (line,) = lines
    assert line.startswith("ALARM: model mine: ") and said in line and "\n" not in line
    assert said in power.trouble


def test_a_model_that_answers_again_ends_the_alarm(tmp_path: Path) -> None:
    lines: list[str] = []
    power = safe(write(tmp_path, f"{GOOD} if len(self.ended) != 1 else None"), lines)
    for _ in range(3):
        power.predict(job())
        power.learn(job(), 400.0)
    assert power.predict(job()).origin == "model"
    assert [line.partition(":")[0] for line in lines] == ["ALARM", "the alarm is over"]


def test_a_model_that_is_late_is_replaced_live(tmp_path: Path) -> None:
    lines: list[str] = []
    times_s = iter(range(100))
    power = safe(write(tmp_path), lines, lambda: PATIENCE_S * 2 * next(times_s))
    assert power.predict(job()).origin == "TDP"
    assert "took 0.10 s for one job" in lines[0]


def test_a_model_that_cannot_even_begin_is_replaced(tmp_path: Path) -> None:
    lines: list[str] = []
    power = safe(write(tmp_path, text=MINE.replace("self.ended = []", "raise OSError('no weights')")), lines)
    assert power.predict(job()).origin == "TDP" and "mine.py:" in lines[0] and "no weights" in lines[0]


def test_what_may_not_be_loaded_is_refused_in_one_line(tmp_path: Path) -> None:
    path = write(tmp_path)
    path.chmod(0o666)
    for choice, said in (
        (str(path), "others may write this code"),
        (str(tmp_path / "none.py"), "cannot read it"),
        ("unknown", "no model is called 'unknown'"),
    ):
        with pytest.raises(WrongUseError, match=said) as error:
            choose(f"easy-power:model={choice}")
        assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "said"),
    (
        (
            "from cluster_agent.prediction.models import Quantile",
            "mine.py:1: ImportError: cannot import name",
        ),
        (MINE.replace("Mine)", "lambda version: Mine())"), "new: cannot be called with ()"),
        ("MODEL = 3", "mine.py:1: MODEL is no cluster_agent.prediction.models.Model"),
        ("import", "mine.py:1: "),
        ("x = '" + "y" * 100 + "'", "larger than"),
    ),
    ids=("another version", "another signature", "no model", "cut off", "too big"),
)
def test_a_models_file_that_cannot_be_one_is_refused_in_one_line(
    tmp_path: Path, text: str, said: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    if said == "larger than":
        monkeypatch.setattr("foundation.shell.extension.MOST_BYTES", 100)
    with pytest.raises(WrongUseError) as error:
        find_model(str(write(tmp_path, text=text)))
    assert said in str(error.value) and "\n" not in str(error.value)


def test_a_replay_with_a_model_records_its_hash_and_is_decided_again_the_same(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, out, log = write(tmp_path), tmp_path / "out", tmp_path / "log.jsonl"
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    trace, policy = str(SAMPLES / "eurora-100.csv"), f"easy-power:rule=est,of=expected,model={path}"
    arguments = ["replay", trace, "--policy", policy, "--cap", "2000", "--out", str(out), "--log", str(log)]
    assert main(arguments) == 0, capsys.readouterr().err
    manifest = json.loads(next(out.rglob("manifest.json")).read_text())
    assert manifest["policy"]["model"]["sha256"] == sha256
    assert json.loads(log.read_text().partition("\n")[0])["model"]["sha256"] == sha256
    assert main(["check-log", str(log)]) == 2
    assert "which a log does not start by itself" in capsys.readouterr().err
    assert main(["check-log", str(log), "--model", str(path)]) == 0
    assert "all the same" in capsys.readouterr().out


def test_a_recorded_model_is_only_named_by_whoever_checks() -> None:
    assert in_place_of("easy-power:of=maximum", None) == "easy-power:of=maximum"
    assert in_place_of("easy-power:model=a.py,of=maximum", "/b/a.py") == "easy-power:model=/b/a.py,of=maximum"
    for spaced in ("easy-power:model =a.py", "easy-power:of=maximum, model\t= a.py ,levels=all"):
        with pytest.raises(WrongUseError, match=r"a\.py is a file, which a log does not start by itself"):
            in_place_of(spaced, None)
    assert in_place_of("easy-power:model =a.py,of=maximum", "/b/a.py") == "easy-power:model =/b/a.py,of=maximum"
    assert in_place_of("easy-power:model=installed", None) == "easy-power:model=installed"
    with pytest.raises(WrongUseError, match="without a model's file"):
        in_place_of("easy", "a.py")


def test_a_score_is_a_probability_or_nothing(tmp_path: Path) -> None:
    lines: list[str] = []
    scored = MINE.replace(
        "    def predict", "    def score(self, window):\n        return window[0]['c'] / 100\n\n    def predict"
    )
    power = safe(write(tmp_path, text=scored), lines)
    assert power.score([{"c": 40.0}]) == 0.4 and lines == []
    assert power.score([{"c": 400.0}]) is None and "score is 4.0" in lines[0]
    assert power.score([]) is None and "IndexError" in power.trouble
    (tmp_path / "other").mkdir()
    assert safe(write(tmp_path / "other"), lines).score([{"c": 40.0}]) is None


def test_a_model_can_be_evaluated_on_a_log(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = write(tmp_path, GOOD)
    assert main(["predict", "evaluate", str(SAMPLES / "eurora-100.csv"), "--model", str(path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["evaluation"]
    assert found["origins"] == {"model": found["judged"]} and found["judged"] > 40
