"""Nodes that `clusterctl calibrate --slurm` takes from Slurm: what is said to it, and that they are given back."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cluster_agent.errors import ClusterError
from cluster_agent.slurm.taken_nodes import HOW, REASON, How, taken

SCONTROL = """#!/bin/sh
echo "scontrol $*" >>%(at)s/said
[ ! -e %(at)s/refuses ] || { echo "scontrol: error: Access/permission denied" >&2; exit 1; }
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
            " flags=maint,ignore_jobs"
        ]
        assert lines[1:] == ["waits for Slurm's jobs to end: 17, 18"]
        raise KeyboardInterrupt
    assert said(slurm)[1:] == [f"scontrol delete reservationname={name}"]


def test_nodes_are_drained_and_resumed_unless_somebody_gave_another_reason(slurm: Path) -> None:
    with taken(["n1", "n2"], "drain", 3600.0, quiet, look_s=0.01):
        assert (slurm / "reason.n1").read_text() == f"{REASON}\n"
        (slurm / "reason.n2").write_text("bad fan\n")
    assert sorted(path.name for path in slurm.glob("reason.*")) == ["reason.n2"]
    with pytest.raises(ClusterError, match="node n2 is drained or down in Slurm: bad fan"):
        taken(["n1", "n2"], "drain", 3600.0, quiet).__enter__()
    assert not (slurm / "reason.n1").exists(), "nothing was done"


@pytest.mark.parametrize("how", HOW)
def test_a_slurm_that_refuses_is_one_line(slurm: Path, how: How) -> None:
    (slurm / "refuses").touch()
    with pytest.raises(ClusterError, match=r"scontrol.* failed: scontrol: error: Access/permission denied$"):
        taken(["n1"], how, 60.0, quiet).__enter__()
