"""Nodes that `clusterctl calibrate --slurm` takes from Slurm: what is said to it, and that they are given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.slurm import taken_nodes
from cluster_agent.slurm.taken_nodes import HOW, REASON, How, taken

SCONTROL = """#!/bin/sh
echo "scontrol $*" >>%(at)s/said
[ ! -e %(at)s/refuses ] || { echo "scontrol: error: Access/permission denied" >&2; exit 1; }
[ "$3" != state=resume ] || [ ! -e %(at)s/refuses.${2#nodename=} ] || {
    echo "slurm_update error: Unable to contact slurm controller" >&2; exit 1; }
[ "$1" != delete ] || [ ! -e %(at)s/over ] || {
    echo "slurm_delete_reservation error: Requested reservation is invalid" >&2; exit 1; }
case "$2 $3" in
"nodename="*" state=drain") echo "${4#reason=}" >%(at)s/reason.${2#nodename=} ;;
"nodename="*" state=resume") rm -f %(at)s/reason.${2#nodename=} ;;
esac
"""
SQUEUE = """#!/bin/sh
echo "squeue $*" >>%(at)s/said
[ ! -e %(at)s/jobs ] || cat %(at)s/jobs; rm -f %(at)s/jobs
"""
SINFO = """#!/bin/sh
for node in n1 n2 n3; do
    if [ -e %(at)s/reason.$node ]; then echo "$node|drained|$(cat %(at)s/reason.$node)"; else echo "$node|idle|none"; fi
done
"""


@pytest.fixture
def slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for name, text in (("scontrol", SCONTROL), ("squeue", SQUEUE), ("sinfo", SINFO)):
        (tmp_path / name).write_text(text % {"at": tmp_path})
        (tmp_path / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    return tmp_path


def quiet(line: str) -> None:
    assert line


def said(slurm: Path) -> list[str]:
    return [line for line in (slurm / "said").read_text().splitlines() if line.startswith("scontrol")]


def test_a_reservation_is_made_waited_for_and_deleted_whatever_happens(slurm: Path) -> None:
    lines: list[str] = []
    (slurm / "jobs").write_text("18\n17\n17\n")
    with pytest.raises(KeyboardInterrupt), taken(["n1", "n2"], "reservation", 3600.0, lines.append, look_s=0.01):
        name = f"nodectl-calibrate-{os.getpid()}-n1"
        assert said(slurm) == [
            f"scontrol create reservation reservationname={name} nodes=n1,n2 starttime=now duration=70 users=root"
            " flags=maint,ignore_jobs",
            f"scontrol update reservationname={name} endtime=now+70minutes",
        ]
        assert lines[1:] == ["waits for Slurm's jobs to end: 17, 18"]
        raise KeyboardInterrupt
    assert said(slurm)[2:] == [f"scontrol delete reservationname={name}"]


def test_a_reservation_does_not_run_out_while_jobs_are_waited_for(slurm: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taken_nodes, "PUT_OFF_S", 0.0)
    (slurm / "jobs").write_text("17\n")
    with taken(["n1"], "reservation", 3600.0, quiet, look_s=0.01):
        assert [line.split()[1] for line in said(slurm)] == ["create", "update", "update"]
        (slurm / "over").touch()
    assert said(slurm)[-1].startswith("scontrol delete"), "one that has ended by itself is no error"


def test_nodes_are_drained_and_resumed_unless_somebody_gave_another_reason(slurm: Path) -> None:
    with taken(["n1", "n2"], "drain", 3600.0, quiet, look_s=0.01):
        assert (slurm / "reason.n1").read_text() == f"{REASON}\n"
        (slurm / "reason.n2").write_text("bad fan\n")
    assert sorted(path.name for path in slurm.glob("reason.*")) == ["reason.n2"]
    with pytest.raises(ClusterError, match="node n2 is drained or down in Slurm: bad fan"):
        taken(["n1", "n2"], "drain", 3600.0, quiet).__enter__()
    assert not (slurm / "reason.n1").exists(), "nothing was done"


def test_a_node_that_cannot_be_resumed_keeps_no_other_node_drained(slurm: Path) -> None:
    lines: list[str] = []
    with taken(["n1", "n2"], "drain", 3600.0, lines.append, look_s=0.01):
        (slurm / "refuses.n1").touch()
    assert [path.name for path in slurm.glob("reason.*")] == ["reason.n1"]
    assert lines[1].startswith("n1 may be drained still (scontrol update nodename=n1 state=resume): scontrol failed")


@pytest.mark.parametrize("how", HOW)
def test_a_slurm_that_refuses_is_one_line(slurm: Path, how: How) -> None:
    (slurm / "refuses").touch()
    with pytest.raises(ClusterError, match=r"scontrol.* failed: scontrol: error: Access/permission denied$"):
        taken(["n1"], how, 60.0, quiet).__enter__()
