"""`nodectl demo --scmi`: caps followed within two control periods, and a controller that dies and returns."""

import json

from lab.node_demo.controller_demo import Step
from nodectl.cli import main


def test_every_cap_is_followed_within_two_control_periods_and_the_figures_are_kept(tmp_path, capsys):
    assert main(["demo", "--scmi", "--out", str(tmp_path)]) == 0
    shown = capsys.readouterr().out
    assert "Every cap was followed within two control periods (1 ms). EMULATED." in shown
    assert shown.count("ALARM") == 1
    assert (tmp_path / "demo-scmi.png").read_bytes()[:4] == b"\x89PNG"
    kept = json.loads((tmp_path / "demo-scmi.json").read_text())
    assert kept["emulated"]
    assert [step["slots"] <= 2 for step in kept["steps"]] == [True] * 6
    outage = kept["outage"]
    assert outage["found_out_s"] - outage["killed_s"] <= 0.3
    assert outage["in_force_again_s"] - outage["returned_s"] <= 0.2
    assert outage["handed_back_s"] > outage["in_force_again_s"]
    assert outage["highest_after_w"] <= 1.10 * outage["cap_then_w"]


def test_a_cap_that_comes_too_late_is_not_called_followed():
    step = Step(0.5, 0.6, 120.0, 120.0, 200.0, 0.2, 2, 119.0, 117.0)
    assert step.is_followed
    assert not Step(0.5, 0.6, 120.0, 120.0, 200.0, 0.2, 3, 119.0, 117.0).is_followed
    assert not Step(0.5, 0.6, 120.0, 120.0, 200.0, 0.2, 1, 125.0, 117.0).is_followed
    assert not Step(0.5, 0.6, 120.0, 130.0, 200.0, 0.2, 1, 119.0, 117.0).is_followed
