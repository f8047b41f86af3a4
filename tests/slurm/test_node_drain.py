"""Nodes in trouble are drained in Slurm and come back, and what an administrator has drained stays so."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.serve.people_protocol import NodeRow
from cluster_agent.slurm.node_drain import (
    AFTER_S,
    CALIBRATION,
    CALM_S,
    MARK,
    NodeDrain,
    read_reasons,
    set_state,
    trouble,
)


def row(name: str = "n01", **changes: Any) -> NodeRow:
    well: dict[str, Any] = {
        "name": name, "state": "capped", "wanted_w": 300.0, "granted_w": 300.0, "in_force_w": 300.0, "counts_w": 300.0,
        "draws_w": 250.0, "tag": "", "quality": "measured", "lease_class": "os", "heard_s_ago": 0.5,
    }  # fmt: skip
    return NodeRow(**well | changes)


class World:
    """Twenty nodes of a Slurm, as far as `sinfo` and `scontrol` show them."""

    def __init__(self) -> None:
        self.rows = {f"n{number:02d}": row(f"n{number:02d}") for number in range(1, 21)}
        self.reasons = dict.fromkeys(self.rows, "")
        self.said: list[str] = []
        self.now_s = 0.0
        self.drain = NodeDrain(
            lambda: list(self.rows.values()), lambda: self.reasons, self.update, self.said.append, lambda: self.now_s
        )

    def update(self, name: str, state: str, reason: str) -> None:
        self.reasons[name] = reason if state == "drain" else ""

    def turn(self, after_s: float = 0.0) -> dict[str, str]:
        """The nodes that are drained or down, a time later."""
        self.now_s += after_s
        self.drain.turn()
        return {name: reason for name, reason in self.reasons.items() if reason}


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({}, ""),
        ({"quality": "missing"}, "sensor"),
        ({"state": "silent"}, "silent"),
        ({"state": "joining"}, "not confirmed"),
        ({"granted_w": 200.0}, "not confirmed"),
        ({"granted_w": None}, ""),
        ({"state": "left", "quality": "missing"}, ""),
        ({"state": "never heard", "quality": "missing"}, ""),
        ({"state": "off", "quality": "missing"}, ""),
    ],
)
def test_trouble_is_a_broken_sensor_or_a_cap_that_is_not_in_force(changes: dict[str, Any], words: str) -> None:
    found = trouble(row(**changes))
    assert (words in found) and bool(found) == bool(words)


def test_a_node_is_drained_when_its_trouble_lasts_and_resumed_when_it_is_over() -> None:
    world = World()
    world.rows["n03"] = row("n03", quality="missing")
    assert world.turn() == {} == world.turn(AFTER_S - 1)
    assert world.turn(2) == {"n03": f"{MARK}a sensor is broken: its power is not known"}
    assert world.said == ["node n03: drain in Slurm, nodectl: a sensor is broken: its power is not known"]
    world.rows["n03"] = row("n03")
    assert world.turn(1) and world.turn(CALM_S - 1)
    assert world.turn(2) == {}
    world.rows["n03"] = row("n03", quality="missing")
    assert world.turn(1) == {}, "its time begins again"


def test_what_others_have_drained_is_left_alone() -> None:
    world = World()
    of_others = {"n03": "disk", "n04": "disk", "n05": CALIBRATION}
    world.reasons |= of_others
    world.rows["n03"] = row("n03", quality="missing")
    world.turn()
    assert world.turn(CALM_S + AFTER_S) == of_others
    world.rows["n03"] = row("n03")
    assert world.turn(CALM_S + AFTER_S) == of_others


def test_trouble_of_many_nodes_drains_none_of_them() -> None:
    world = World()
    world.rows |= {name: row(name, state="silent") for name in ("n01", "n02", "n03")}
    world.turn()
    assert world.turn(AFTER_S + 1) == {}
    assert world.said[-1].startswith("no node is drained or resumed: 3 of 20 nodes are in trouble")
    world.rows["n03"] = row("n03")
    assert set(world.turn(1)) == {"n01", "n02"}


def test_who_does_not_answer_drains_nothing() -> None:
    def silent() -> dict[str, str]:
        raise ClusterError("sinfo failed")

    said: list[str] = []
    drain = NodeDrain(lambda: [row(quality="missing")], silent, lambda *_: None, said.append, lambda: 0.0)
    drain.turn()
    drain.turn()
    assert said == ["no node is drained or resumed: sinfo failed"]


def test_the_words_of_sinfo_and_scontrol(tmp_path: Path) -> None:
    program = tmp_path / "sinfo"
    program.write_text(
        "#!/bin/sh\nprintf 'n01|idle|none\\nn02|drained*|a | b\\nn03|down|none\\nn04|mixed|old\\n'\n"
        f'echo "$@" >>{tmp_path}/words\n'
    )
    program.chmod(0o755)
    assert read_reasons(str(program)) == {"n01": "", "n02": "a | b", "n03": "down", "n04": ""}
    set_state("n01", "drain", "nodectl: x y", str(program))
    set_state("n01", "resume", "", str(program))
    assert (tmp_path / "words").read_text().splitlines()[1:] == [
        "update nodename=n01 state=drain reason=nodectl: x y",
        "update nodename=n01 state=resume",
    ]
    program.write_text("#!/bin/sh\necho no such node >&2; exit 1\n")
    with pytest.raises(ClusterError, match="no such node"):
        set_state("n09", "drain", "x", str(program))
